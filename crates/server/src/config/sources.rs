//! What sandboxes are made of and may reach: images, containers, the network, packages.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar::docker::{Network, Pull};
use belljar::image::{Name, Pattern, Policy, Registries};
use belljar::{Outside, PackageSettings};
use belljar_spec::{Error, HostRule, Target, shown};
use serde::Deserialize;

use super::units::{bytes, time};

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Volumes {
    pub allowed: Vec<PathBuf>,
}

impl Volumes {
    pub fn check(&self) -> Result<(), String> {
        match self.allowed.iter().find(|path| !path.is_absolute()) {
            None => Ok(()),
            Some(path) => Err(format!(
                "volumes.allowed: {} is not an absolute path",
                path.display()
            )),
        }
    }

    /// Whether a volume may come from there; what is not there yet is judged by its name.
    pub fn allows(&self, source: &Path) -> bool {
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let source = real(source);
        let mut allowed = self.allowed.iter();
        allowed.any(|allowed| source.starts_with(real(allowed)))
    }
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Images {
    pub allowed: Vec<String>,
    pub pull: Fetch,
    pub ahead: Vec<String>,
    pub insecure: Vec<String>,
    #[serde(deserialize_with = "bytes")]
    pub bytes: u64,
}

/// When an image that is not here is fetched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fetch {
    #[default]
    Ahead,
    FirstUse,
}

impl Default for Images {
    fn default() -> Self {
        Self {
            allowed: vec!["*".into()],
            pull: Fetch::Ahead,
            ahead: Vec::new(),
            insecure: Vec::new(),
            bytes: 16 << 30,
        }
    }
}

impl Images {
    /// What types alone do not say.
    pub fn policy(&self) -> Result<Policy, Error> {
        let allowed: Vec<Pattern> = self
            .allowed
            .iter()
            .map(|text| text.parse())
            .collect::<Result<_, _>>()?;
        if self.pull == Fetch::FirstUse
            && let Some(wide) = allowed.iter().position(|one| !one.names_registry())
        {
            return Err(Error::invalid_request(
                "images.allowed",
                &self.allowed[wide],
                "with pull = \"first_use\" each must name its registry, or callers could make the daemon ask any host",
            ));
        }
        let policy = Policy {
            allowed,
            on_first_use: self.pull == Fetch::FirstUse,
            registries: Registries {
                insecure: self.insecure.clone(),
            },
        };
        for name in &self.ahead {
            policy.check(&name.parse()?)?;
        }
        Ok(policy)
    }
}

/// How containers are made, for requests with the backend docker. What is empty is left to the engine.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Docker {
    pub host: String,
    pub image: String,
    pub images: Vec<String>,
    pub pull: Pull,
    pub network: Network,
    pub runtime: String,
    pub runtimes: Vec<String>,
    #[serde(deserialize_with = "time")]
    pub start_timeout: Duration,
}

impl Docker {
    pub fn settings(&self) -> belljar::docker::Settings {
        let some = |text: &String| (!text.is_empty()).then(|| text.clone());
        belljar::docker::Settings {
            host: some(&self.host),
            image: some(&self.image),
            runtime: some(&self.runtime),
            runtimes: self.runtimes.clone(),
            pull: self.pull,
            network: self.network,
            start_timeout: self.start_timeout,
        }
    }

    /// Whether requests may name this image: a `*` in the settings stands for anything.
    pub fn allows(&self, image: &str) -> bool {
        // Beside a digest a tag says nothing, so a pattern with a tag alone does not speak of it.
        let speaks = |pattern: &str| {
            let version = pattern.rsplit('/').next().unwrap_or_default();
            !image.contains('@') || version.contains('@') || !version.contains(':')
        };
        let allowed = |pattern: &String| speaks(pattern) && fits(pattern, image);
        image == self.image || self.images.iter().any(allowed)
    }

    /// Whether the settings say which registry this image comes from.
    pub fn fetches(&self, image: &str) -> bool {
        let names = |name: &Name| {
            let patterns = self.images.iter().filter_map(|text| text.parse().ok());
            let mut patterns = patterns.filter(Pattern::names_registry);
            patterns.any(|pattern| pattern.fits(name))
        };
        image == self.image || image.parse().is_ok_and(|name| names(&name))
    }
}

fn fits(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((before, after)) => text.strip_prefix(before).is_some_and(|rest| {
            (0..=rest.len())
                .filter(|at| rest.is_char_boundary(*at))
                .any(|at| fits(after, &rest[at..]))
        }),
    }
}

impl Default for Docker {
    fn default() -> Self {
        Self {
            host: String::new(),
            image: String::new(),
            images: vec!["*".into()],
            pull: Pull::Missing,
            network: Network::Loopback,
            runtime: String::new(),
            runtimes: Vec::new(),
            start_timeout: Duration::from_mins(1),
        }
    }
}

/// How sandboxes reach the outside.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkRules {
    pub private: Vec<HostRule>,
    /// Addresses of the host at which ports of sandboxes may be listened for.
    pub publish: Vec<IpAddr>,
    /// Empty: those of the host.
    pub resolver: String,
}

impl NetworkRules {
    pub fn outside(&self) -> Result<Outside, String> {
        let named = |rule: &&HostRule| !matches!(rule.target, Target::Block { .. });
        if let Some(rule) = self.private.iter().find(named) {
            return Err(format!(
                "network.private: {rule} is not an address or block of addresses"
            ));
        }
        let resolver =
            match self.resolver.as_str() {
                "" => None,
                text => Some(text.parse().map_err(|_| {
                    format!("network.resolver: {} is not ADDRESS:PORT", shown(text))
                })?),
            };
        Ok(Outside {
            resolver,
            private: Some(self.private.clone()),
        })
    }
}

/// Where packages come from.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PackageRules {
    /// Empty: what pip on the host uses.
    pub python: String,
    /// Empty: what npm on the host uses.
    pub javascript: String,
    pub hosts: Vec<HostRule>,
    #[serde(deserialize_with = "time")]
    pub timeout: Duration,
    /// Of one set, while it is installed and after.
    #[serde(deserialize_with = "bytes")]
    pub bytes: u64,
    /// Of all sets together.
    #[serde(deserialize_with = "bytes")]
    pub store_bytes: u64,
}

impl Default for PackageRules {
    fn default() -> Self {
        Self {
            python: String::new(),
            javascript: String::new(),
            hosts: Vec::new(),
            timeout: Duration::from_mins(10),
            bytes: 4 << 30,
            store_bytes: 32 << 30,
        }
    }
}

impl PackageRules {
    /// With what is installed kept in this directory.
    pub fn settings(&self, place: PathBuf) -> PackageSettings {
        let named = |text: &String| (!text.is_empty()).then(|| text.clone());
        PackageSettings {
            place,
            python: named(&self.python),
            javascript: named(&self.javascript),
            hosts: self.hosts.clone(),
            timeout: self.timeout,
            bytes: self.bytes,
            store_bytes: self.store_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_named_by_patterns() {
        let docker = Docker {
            image: "mine".into(),
            images: [
                "python:3.*",
                "registry.test/*/app",
                "pinned:1@sha256:a*",
                "open.test/*",
            ]
            .map(String::from)
            .to_vec(),
            ..Docker::default()
        };
        for (image, allowed) in [
            ("mine", true),
            ("python:3.12-slim", true),
            ("python:2.7", false),
            ("registry.test/team/app", true),
            ("registry.test/team/app2", false),
            ("other", false),
            ("python:3.12@sha256:aa", false),
            ("pinned:1@sha256:aa", true),
            ("pinned:1@sha256:bb", false),
            ("open.test/app:1@sha256:aa", true),
        ] {
            assert_eq!(docker.allows(image), allowed, "{image}");
        }
        assert!(Docker::default().allows("anything"));
        for (image, fetched) in [
            ("mine", true),
            ("python:3.12-slim", true),
            ("open.test/app", true),
            ("registry.test/team/app", true),
            ("other", false),
        ] {
            assert_eq!(docker.fetches(image), fetched, "{image}");
        }
        // A pattern that begins with a star says nothing of registries, nor does one that ends within the name of one.
        let wide = Docker {
            images: ["*", "py*"].map(String::from).to_vec(),
            ..Docker::default()
        };
        for image in ["py.test/x", "127.0.0.1:80/x", "py.test:80/x"] {
            assert!(wide.allows(image) && !wide.fetches(image), "{image}");
        }
        assert!(wide.fetches("pypy"));
    }
}
