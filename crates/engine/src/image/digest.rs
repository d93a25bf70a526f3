//! SHA-256 of content: the names of everything in the store, and what content is held against.

use std::fmt::{self, Write as _};
use std::io::{self, Read};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

/// The SHA-256 of some content.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Without the algorithm, as a name of a file.
    pub fn hex(&self) -> String {
        let mut text = String::with_capacity(64);
        for byte in self.0 {
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    /// Enough of it for people.
    pub fn short(&self) -> String {
        self.hex()[..12].to_owned()
    }

    pub fn from_hex(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
        }
        Some(Self(bytes))
    }
}

impl FromStr for Digest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.strip_prefix("sha256:")
            .and_then(Self::from_hex)
            .ok_or_else(|| format!("{} is no SHA-256 digest", belljar_spec::shown(text)))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Hashes what is read through it, and reads no more than is allowed.
pub(super) struct Measured<R> {
    inner: R,
    hash: Sha256,
    left: u64,
}

/// What a [`Measured`] reader says when there is more than was allowed.
pub(super) const TOO_LARGE: &str = "it is larger than is allowed";

impl<R: Read> Measured<R> {
    pub fn new(inner: R, most: u64) -> Self {
        Self {
            inner,
            hash: Sha256::new(),
            left: most,
        }
    }

    /// Reads what is left, and tells the digest of it all.
    pub fn finish(mut self) -> io::Result<Digest> {
        io::copy(&mut self, &mut io::sink())?;
        Ok(Digest(self.hash.finalize().into()))
    }
}

impl<R: Read> Read for Measured<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.left = self
            .left
            .checked_sub(count as u64)
            .ok_or_else(|| io::Error::other(TOO_LARGE))?;
        self.hash.update(&buffer[..count]);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").to_string(), empty);
        assert_eq!(empty.parse(), Ok(Digest::of(b"")));
        for bad in [
            "",
            "sha256:",
            "md5:00",
            &empty[7..],
            "sha256:zz",
            &empty.replace("e3", "+3"),
        ] {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
    }

    #[test]
    fn no_more_than_allowed() {
        let digest = |most| Measured::new(&b"abc"[..], most).finish();
        assert_eq!(digest(3).unwrap(), Digest::of(b"abc"));
        assert_eq!(digest(2).unwrap_err().to_string(), TOO_LARGE);
    }
}
