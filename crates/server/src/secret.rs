//! Tokens and keys: made from the kernel's randomness, kept as digests, compared in constant time.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use belljar_spec::Error;
use serde::{Deserialize, Deserializer};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq;

/// Fewer could be guessed.
const SHORTEST: usize = 16;

/// SHA-256 of a secret. That is enough where secrets are random: there is no dictionary of them.
#[derive(Clone, PartialEq, Eq)]
pub struct Digest([u8; 32]);

impl Digest {
    pub fn of(secret: &str) -> Self {
        Self(Sha256::digest(secret.as_bytes()).into())
    }

    /// Takes the same time whatever the two are.
    pub fn matches(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Not even the digest belongs in a log.
impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digest(…)")
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse(&text).map(Self).ok_or_else(|| {
            serde::de::Error::custom(
                "a key is kept as sha256: and 64 hexadecimal digits; make one with: belljar key",
            )
        })
    }
}

fn parse(text: &str) -> Option<[u8; 32]> {
    let digits = text.strip_prefix("sha256:")?;
    if digits.len() != 64 || !digits.is_ascii() {
        return None;
    }
    let mut bytes = [0; 32];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(bytes)
}

/// A new secret: 256 random bits.
pub fn new_secret() -> Result<String, Error> {
    let (high, low) = (belljar::random_bits()?, belljar::random_bits()?);
    Ok(format!("bj_{high:032x}{low:032x}"))
}

/// The token of the environment, if there is one. An empty one is none, as it is for clients: the daemon makes its own then, and
/// listens to nobody from elsewhere.
pub fn given_token() -> Result<Option<String>, Error> {
    let given = std::env::var_os("BELLJAR_TOKEN");
    let Some(token) = given.filter(|token| !token.is_empty()) else {
        return Ok(None);
    };
    let fine = |token: &String| {
        token.len() >= SHORTEST && token.bytes().all(|byte| byte.is_ascii_graphic())
    };
    match token.into_string().ok().filter(fine) {
        Some(token) => Ok(Some(token)),
        None => Err(Error::InvalidRequest {
            field: "BELLJAR_TOKEN".into(),
            given: "what it is set to".into(),
            accepted: format!(
                "give at least {SHORTEST} letters, digits and signs, or leave it out"
            ),
        }),
    }
}

/// The token of the environment, else the one in the state directory, which the first start makes.
pub fn admin_token(state: &Path) -> Result<String, Error> {
    if let Some(token) = given_token()? {
        return Ok(token);
    }
    let path = state.join("token");
    let failed =
        |error: io::Error| Error::invalid_file("token", &path.to_string_lossy(), error.to_string());
    match fs::read_to_string(&path) {
        Ok(token) if token.trim().len() >= SHORTEST => return Ok(token.trim().to_owned()),
        Ok(_) => fs::remove_file(&path).map_err(failed)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let token = new_secret()?;
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)
        .map_err(failed)?;
    writeln!(file, "{token}").map_err(failed)?;
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_come_back_and_hide() {
        let secret = new_secret().unwrap();
        let digest = Digest::of(&secret);
        let text = digest.to_string();
        assert_eq!(parse(&text).map(Digest), Some(digest.clone()));
        assert!(digest.matches(&Digest::of(&secret)) && !digest.matches(&Digest::of("x")));
        assert!(!format!("{digest:?}").contains(&text[8..20]));
        for bad in [
            "",
            "sha256:",
            "sha256:00",
            &text[7..],
            &text.replace(':', "="),
        ] {
            assert!(parse(bad).is_none(), "{bad}");
        }
        assert_ne!(new_secret().unwrap(), secret);
    }

    #[test]
    fn the_token_is_made_once_and_nobody_else_can_read_it() {
        use std::os::unix::fs::MetadataExt;
        let state = tempfile::tempdir().unwrap();
        let token = admin_token(state.path()).unwrap();
        assert_eq!(admin_token(state.path()).unwrap(), token);
        let mode = fs::metadata(state.path().join("token")).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
