//! Which images may be used, and where they may come from.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use belljar_spec::{Error, shown};

use super::platform::Platform;
use super::reference::Name;
use super::registry::Registries;
use super::store::Store;
use super::{Image, Listed};

/// Names of images: one as it is written anywhere, with `*` for any text in it. Without a tag it stands for all tags and
/// digests; with a tag for no digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// Whether it says which registry it speaks of.
    pub fn names_registry(&self) -> bool {
        let registry = self.0.split('/').next().unwrap_or_default();
        !registry.contains('*')
    }

    pub fn fits(&self, name: &Name) -> bool {
        let path = self.0.rsplit('/').next().unwrap_or_default();
        if !path.contains([':', '@']) {
            return matches(&self.0, &name.without_version());
        }
        // Beside a digest a tag says nothing: the digest alone is what the registry is asked for.
        let named = name.digest().is_none() || path.contains('@');
        named && matches(&self.0, &name.whole())
    }
}

impl FromStr for Pattern {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-/:@*[]".contains(c);
        if text.is_empty() || text.len() > 512 || !text.chars().all(plain) {
            return Err(Error::invalid_request(
                "images.allowed",
                text,
                "give names of images, like python:3.12-slim, registry.example/team/* or *",
            ));
        }
        if text == "*" {
            return Ok(Self("*/*".into()));
        }
        let whole = match text.split_once('/') {
            None => format!("docker.io/library/{text}"),
            Some((first, _)) if first.contains(['.', ':', '*']) || first == "localhost" => {
                text.into()
            }
            Some(_) => format!("docker.io/{text}"),
        };
        Ok(Self(whole))
    }
}

/// With `*` for any text, also with slashes in it.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let mut parts: Vec<_> = parts.collect();
    let Some(last) = parts.pop() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// What a daemon allows.
#[derive(Debug, Clone)]
pub struct Policy {
    pub allowed: Vec<Pattern>,
    /// Whether an image that is not here is fetched when it is first asked for.
    pub on_first_use: bool,
    pub registries: Registries,
}

impl Policy {
    pub fn check(&self, name: &Name) -> Result<(), Error> {
        if self.allowed.iter().any(|pattern| pattern.fits(name)) {
            return Ok(());
        }
        Err(Error::Forbidden {
            reason: format!(
                "the settings of this daemon do not allow the image {} (images.allowed)",
                shown(&name.to_string())
            ),
        })
    }
}

/// The images of a daemon: those that are here and allowed, and those that may be fetched.
pub struct Supply {
    pub store: Store,
    policy: Policy,
    /// Whoever fetches an image holds its lock; others wait, and find it.
    fetching: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl Supply {
    pub fn new(store: Store, policy: Policy) -> Self {
        Self {
            store,
            policy,
            fetching: Mutex::default(),
        }
    }

    /// An image for a request from outside.
    pub async fn get(&self, given: &str) -> Result<Image, Error> {
        match self.store.find(given) {
            Ok(found) => {
                self.policy.check(&found.name)?;
                self.store.check_size(&found)?;
                self.store.image(given)
            }
            Err(Error::NotFound { .. }) => {
                let name: Name = given.parse()?;
                // What is here is nobody's business who may not use it.
                self.policy.check(&name)?;
                if !self.policy.on_first_use {
                    return Err(Error::NotFound {
                        what: "image",
                        given: shown(given),
                        nearest: None,
                    });
                }
                self.fetch(&name).await?;
                self.store.image(given)
            }
            Err(error) => Err(error),
        }
    }

    /// Fetches an image unless it is here.
    pub async fn fetch(&self, name: &Name) -> Result<Listed, Error> {
        let whole = name.whole();
        let lock = {
            let mut fetching = self.fetching.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(fetching.entry(whole.clone()).or_default())
        };
        let held = lock.lock().await;
        let found = match self.store.find(&whole) {
            Err(Error::NotFound { .. }) => {
                let registries = &self.policy.registries;
                let platform = Platform::of_host();
                Box::pin(self.store.pull(name, &platform, registries, &|_| {})).await
            }
            found => found,
        };
        drop(held);
        let mut fetching = self.fetching.lock().unwrap_or_else(PoisonError::into_inner);
        fetching.retain(|_, lock| Arc::strong_count(lock) > 1);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        let fits = |pattern: &str, name: &str| {
            let pattern: Pattern = pattern.parse().unwrap();
            pattern.fits(&name.parse().unwrap())
        };
        for (pattern, name) in [
            ("*", "r.example/x:1"),
            ("python", "python:3.12-slim"),
            ("python:3.*", "python:3.12"),
            ("team/*", "team/a:1"),
            ("r.example/team/*", "r.example/team/a/b:1"),
            ("localhost:5000/*", "localhost:5000/x"),
            ("*.example/x", "r.example/x:2"),
        ] {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        let digest = format!("sha256:{}", "a".repeat(64));
        for (pattern, name, expected) in [
            ("*", "app:1", true),
            ("app", "app", true),
            ("app", "app:1", true),
            ("app:1", "app:1", false),
            ("app:*", "app:1", false),
            ("*/*:1*", "app:1", false),
            ("app:1@sha256:*", "app:1", true),
            ("app@sha256:*", "app", true),
            ("app@sha256:b*", "app", false),
        ] {
            let name = format!("{name}@{digest}");
            assert_eq!(fits(pattern, &name), expected, "{pattern} {name}");
        }
        for (pattern, name) in [
            ("python", "pythonx"),
            ("python", "evil/python"),
            ("python", "r.example/library/python"),
            ("python:3.*", "python:2.7"),
            ("r.example/team/*", "r.example/teamx/a"),
            ("r.example/*", "r.example.evil.example/x"),
            ("r.example/x:1", "r.example/x:12"),
        ] {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
        let registry = |text: &str| text.parse::<Pattern>().unwrap().names_registry();
        assert!(registry("python") && registry("r.example/*"));
        assert!(!registry("*") && !registry("*.example/x"));
        for bad in ["", "a b", "é"] {
            assert!(bad.parse::<Pattern>().is_err());
        }
    }

    /// Somebody else may have put it there, with other bounds.
    #[test]
    fn an_image_that_is_here_is_held_to_the_cap() {
        let dir = tempfile::tempdir().unwrap();
        let mut tar = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(5000);
        header.set_mode(0o644);
        tar.append_data(&mut header, "x", &[7; 5000][..]).unwrap();
        let file = dir.path().join("app.tar");
        std::fs::write(&file, tar.into_inner().unwrap()).unwrap();
        let store = Store::open(dir.path()).unwrap();
        store.import(&file, None, &Platform::of_host()).unwrap();
        let get = |bytes| {
            let bounds = crate::image::Bounds {
                bytes,
                ..crate::image::Bounds::default()
            };
            let policy = Policy {
                allowed: vec!["*".parse().unwrap()],
                on_first_use: false,
                registries: Registries::default(),
            };
            let supply = Supply::new(store.clone().with_bounds(bounds), policy);
            let runtime = tokio::runtime::Builder::new_current_thread().build();
            runtime.unwrap().block_on(supply.get("app"))
        };
        assert!(get(5000).is_ok());
        let error = get(4999).unwrap_err();
        assert!(matches!(error, Error::Forbidden { .. }), "{error}");
        let text = error.to_string();
        assert!(
            text.contains("5000 bytes") && text.contains("images.bytes"),
            "{text}"
        );
    }
}
