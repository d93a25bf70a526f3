//! Who to be at a registry, from the files that `docker login` writes.

use std::collections::HashMap;
use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

const PATIENCE: Duration = Duration::from_secs(30);
const MOST_BYTES: u64 = 1 << 20;

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Config {
    auths: HashMap<String, Entry>,
    cred_helpers: HashMap<String, String>,
    creds_store: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
}

/// What a helper says.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    username: String,
    secret: String,
}

/// Who the caller is at a registry.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Login {
    Nobody,
    Password(String, String),
    /// Something that tokens are made from.
    Identity(String),
}

/// As Docker's own files have it. Blocks while a helper is asked.
pub(crate) fn login(registry: &str) -> Result<Login, String> {
    let directory = std::env::var_os("DOCKER_CONFIG")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".docker")));
    let Some(path) = directory.map(|directory| directory.join("config.json")) else {
        return Ok(Login::Nobody);
    };
    match fs::metadata(&path) {
        Ok(found) if found.len() <= MOST_BYTES => {}
        _ => return Ok(Login::Nobody),
    }
    let text = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    // What is in it is secret, also where it is broken.
    let config: Config = serde_json::from_slice(&text)
        .map_err(|error| format!("{} is broken in line {}", path.display(), error.line()))?;
    config.lookup(registry)
}

impl Config {
    fn lookup(&self, registry: &str) -> Result<Login, String> {
        let keys = keys(registry);
        let helper = keys.iter().find_map(|key| self.cred_helpers.get(key));
        if let Some(helper) = helper {
            return ask(helper, &keys);
        }
        let entry = keys.iter().find_map(|key| self.auths.get(key));
        if let Some(entry) = entry
            && let Some(auth) = entry.auth()?
        {
            return Ok(auth);
        }
        // A store is asked only for those that it was told about.
        match (&self.creds_store, entry) {
            (Some(store), Some(_)) => ask(store, &keys),
            _ => Ok(Login::Nobody),
        }
    }
}

/// What a registry is called in that file.
fn keys(registry: &str) -> Vec<String> {
    let mut keys = vec![
        registry.to_owned(),
        format!("https://{registry}"),
        format!("http://{registry}"),
    ];
    if registry == "docker.io" {
        keys.insert(0, "https://index.docker.io/v1/".into());
        keys.push("index.docker.io".into());
    }
    keys
}

impl Entry {
    fn auth(&self) -> Result<Option<Login>, String> {
        if let Some(token) = self.identitytoken.as_ref().filter(|text| !text.is_empty()) {
            return Ok(Some(Login::Identity(token.clone())));
        }
        if let Some(encoded) = self.auth.as_ref().filter(|text| !text.is_empty()) {
            let broken = || "an `auth` in Docker's config.json is broken; log in again".to_owned();
            let bytes = STANDARD.decode(encoded.trim()).map_err(|_| broken())?;
            let text = String::from_utf8(bytes).map_err(|_| broken())?;
            let (name, password) = text.split_once(':').ok_or_else(broken)?;
            let password = password.trim_end_matches('\0');
            return Ok(Some(Login::Password(name.into(), password.into())));
        }
        Ok(self
            .username
            .clone()
            .zip(self.password.clone())
            .map(|(name, password)| Login::Password(name, password)))
    }
}

/// Asks a helper, a program beside Docker: the registry on its input, the answer on its output.
fn ask(helper: &str, keys: &[String]) -> Result<Login, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if helper.is_empty() || !helper.chars().all(plain) {
        return Err("a helper in Docker's config.json has a name that is none".into());
    }
    let program = format!("docker-credential-{helper}");
    let key = keys.first().map_or("", String::as_str);
    let mut child = Command::new(&program)
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| {
            format!("{program}, which Docker's config.json names, does not start: {error}")
        })?;
    if let Some(mut input) = child.stdin.take() {
        let _ = input.write_all(key.as_bytes());
    }
    let output = child.stdout.take();
    let reading = thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(output) = output {
            let _ = output.take(MOST_BYTES).read_to_end(&mut text);
        }
        text
    });
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("{program} did not answer in time"));
            }
        }
    };
    let text = reading.join().unwrap_or_default();
    if !status.success() {
        // That is how they say that they know nothing.
        return Ok(Login::Nobody);
    }
    let answer: Answer = serde_json::from_slice(&text)
        .map_err(|_| format!("{program} gave an answer that is none"))?;
    if answer.username == "<token>" {
        return Ok(Login::Identity(answer.secret));
    }
    Ok(Login::Password(answer.username, answer.secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(config: &str, registry: &str) -> Result<Login, String> {
        serde_json::from_str::<Config>(config)
            .unwrap()
            .lookup(registry)
    }

    #[test]
    fn what_docker_login_writes() {
        let config = r#"{"auths": {
            "https://index.docker.io/v1/": {"auth": "YWRhOnB3OngA"},
            "r.example:5000": {"username": "u", "password": "p"},
            "bad.example": {"auth": "???"},
            "token.example": {"auth": "YTpi", "identitytoken": "x"},
            "http://old.example": {"auth": "YTpi"}}, "HttpHeaders": {}}"#;
        let basic = |name: &str, password: &str| Ok(Login::Password(name.into(), password.into()));
        assert_eq!(lookup(config, "docker.io"), basic("ada", "pw:x"));
        assert_eq!(lookup(config, "r.example:5000"), basic("u", "p"));
        assert_eq!(lookup(config, "old.example"), basic("a", "b"));
        assert_eq!(lookup(config, "r.example"), Ok(Login::Nobody));
        assert!(lookup(config, "bad.example").is_err());
        let token = lookup(config, "token.example");
        assert_eq!(token, Ok(Login::Identity("x".into())));
        assert!(lookup(r#"{"credHelpers": {"r.example": "../x"}}"#, "r.example").is_err());
        assert!(
            lookup(
                r#"{"credHelpers": {"r.example": "no-such-helper"}}"#,
                "r.example"
            )
            .is_err()
        );
        assert_eq!(
            lookup(r#"{"credsStore": "no-such-helper"}"#, "r.example"),
            Ok(Login::Nobody)
        );
    }
}
