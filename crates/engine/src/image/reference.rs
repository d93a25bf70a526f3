//! Names of images, as people write them and as registries know them.

use std::fmt;
use std::str::FromStr;

use belljar_spec::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::digest::Digest;

const DEFAULT_REGISTRY: &str = "docker.io";

/// Like `python:3.12-slim`, which means `docker.io/library/python:3.12-slim`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

impl Name {
    /// With registry and tag, as nobody else is called.
    pub fn whole(&self) -> String {
        format!("{}/{}{}", self.registry, self.repository, self.version())
    }

    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// Registry and repository: what a rule about images speaks of.
    pub(super) fn without_version(&self) -> String {
        format!("{}/{}", self.registry, self.repository)
    }

    fn version(&self) -> String {
        let tag = self.tag.as_ref().map(|tag| format!(":{tag}"));
        let digest = self.digest.as_ref().map(|digest| format!("@{digest}"));
        tag.unwrap_or_default() + &digest.unwrap_or_default()
    }

    pub(super) fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    pub(super) fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// In the words of the client for registries.
    pub(super) fn reference(&self) -> oci_client::Reference {
        let (registry, repository) = (self.registry.clone(), self.repository.clone());
        match (&self.digest, &self.tag) {
            (Some(digest), _) => {
                oci_client::Reference::with_digest(registry, repository, digest.to_string())
            }
            (None, Some(tag)) => oci_client::Reference::with_tag(registry, repository, tag.clone()),
            (None, None) => oci_client::Reference::with_tag(registry, repository, "latest".into()),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        if text.is_empty() || text.len() > 512 {
            return None;
        }
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest.parse().ok()?)),
            None => (text, None),
        };
        let (registry, rest) = match rest.split_once('/') {
            Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => {
                (first, rest)
            }
            _ => (DEFAULT_REGISTRY, rest),
        };
        let (repository, tag) = match rest.rsplit_once(':') {
            Some((repository, tag)) => (repository, Some(tag)),
            None => (rest, None),
        };
        if !is_registry(registry) || !repository.split('/').all(is_part) || !tag.is_none_or(is_tag)
        {
            return None;
        }
        let registry = match registry {
            "index.docker.io" => DEFAULT_REGISTRY,
            other => other,
        };
        let alone = registry == DEFAULT_REGISTRY && !repository.contains('/');
        let tag = tag.or((digest.is_none()).then_some("latest"));
        Some(Self {
            registry: registry.to_owned(),
            repository: if alone {
                format!("library/{repository}")
            } else {
                repository.to_owned()
            },
            tag: tag.map(str::to_owned),
            digest,
        })
    }
}

/// A host, and a port if it has one.
fn is_registry(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    let label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
    };
    let address = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let is_host = match address {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => host.split('.').all(label),
    };
    is_host && port.is_none_or(is_port)
}

/// Words of a-z and 0-9 with single separators between them.
fn is_part(part: &str) -> bool {
    let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let separators =
        |text: &str| matches!(text, "." | "_" | "__") || text.chars().all(|c| c == '-');
    part.starts_with(word)
        && part.ends_with(word)
        && part
            .split(word)
            .filter(|gap| !gap.is_empty())
            .all(separators)
}

fn is_tag(tag: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    tag.len() <= 128 && tag.starts_with(word) && tag.chars().all(|c| word(c) || ".-".contains(c))
}

impl FromStr for Name {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::parse(text).ok_or_else(|| {
            Error::invalid_request(
                "image",
                text,
                "give the name of an image, like python:3.12-slim or registry.example/team/app@sha256:…",
            )
        })
    }
}

/// As short as it can be.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = self.whole();
        let short = whole.strip_prefix("docker.io/").unwrap_or(&whole);
        f.write_str(short.strip_prefix("library/").unwrap_or(short))
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let both = |text: &str| {
            let name: Name = text.parse().unwrap();
            assert_eq!(name.to_string().parse::<Name>().unwrap(), name);
            (name.to_string(), name.whole())
        };
        let long = "docker.io/library/python:latest";
        assert_eq!(both("python"), ("python:latest".into(), long.into()));
        assert_eq!(both("index.docker.io/library/python").1, long);
        for same in [
            "localhost:5000/a/b:1",
            "team/app:x",
            "index.r.example/x:y",
            "[::1]:5000/x:y",
            "127.0.0.1:9/a_b/c--d:1",
        ] {
            assert_eq!(both(same).0, same);
        }
        let digest = format!("r.example/app@sha256:{}", "0".repeat(64));
        assert_eq!(both(&digest).1, digest);
        for bad in [
            "",
            "UPPER",
            "a b",
            "--privileged",
            "a:b:c",
            "x@sha256:12",
            "a/../b",
            "a..b",
            "r.example/",
            "-r.example/x",
            "r.example:0/x",
            "r.example:99999/x",
            "a:",
            "a:-x",
            "/a",
            "a//b",
            "é",
            "[::g]:5/x",
            "a/b?c",
            "a#b",
        ] {
            assert!(bad.parse::<Name>().is_err(), "{bad}");
        }
    }
}
