//! The daemon's settings. `belljar.toml` beside this crate lists each with its default; a test keeps the two the same.

mod service;
mod sources;
mod tenants;
mod units;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use belljar::runtime::Registry;
use belljar_spec::{Backend, Error, RunRequest, Volume, shown};
use serde::Deserialize;

pub use service::{Budget, History, Http, LimitRules, Sandboxes, Tls};
pub use sources::{Docker, Images, NetworkRules, PackageRules, Volumes};
use tenants::known;
pub use tenants::{ADMIN, Template, Tenant};
use units::time;

/// The documented settings with their defaults.
pub const REFERENCE: &str = include_str!("../../belljar.toml");

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub listen: String,
    pub unix: String,
    pub hosts: Vec<String>,
    pub origins: Vec<String>,
    /// Zero: never.
    #[serde(deserialize_with = "time")]
    pub idle_exit: Duration,
    pub backend: Backend,
    pub tls: Tls,
    pub http: Http,
    pub budget: Budget,
    pub sandboxes: Sandboxes,
    pub pool: BTreeMap<String, usize>,
    pub limits: LimitRules,
    pub history: History,
    pub volumes: Volumes,
    pub images: Images,
    pub docker: Docker,
    pub network: NetworkRules,
    pub packages: PackageRules,
    pub tenants: BTreeMap<String, Tenant>,
    pub templates: BTreeMap<String, Template>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:7117".into(),
            unix: "auto".into(),
            hosts: Vec::new(),
            origins: Vec::new(),
            idle_exit: Duration::ZERO,
            backend: Backend::Native,
            tls: Tls::default(),
            http: Http::default(),
            budget: Budget::default(),
            sandboxes: Sandboxes::default(),
            pool: [("python".into(), 4)].into(),
            limits: LimitRules::default(),
            history: History::default(),
            volumes: Volumes::default(),
            images: Images::default(),
            docker: Docker::default(),
            network: NetworkRules::default(),
            packages: PackageRules::default(),
            tenants: BTreeMap::new(),
            templates: BTreeMap::new(),
        }
    }
}

impl Config {
    /// From the text of a file called `name`.
    pub fn parse(text: &str, name: &str) -> Result<Self, Error> {
        let mut config: Self =
            toml::from_str(text).map_err(|error| invalid(name, error.to_string().trim_end()))?;
        // Who names one language has not said that another shall have none.
        for (language, ready) in Self::default().pool {
            config.pool.entry(language).or_insert(ready);
        }
        config.check().map_err(|reason| invalid(name, &reason))?;
        Ok(config)
    }

    /// What types alone do not say.
    fn check(&self) -> Result<(), String> {
        self.address()?;
        self.check_names()?;
        if (self.tls.certificate.as_os_str().is_empty()) != (self.tls.key.as_os_str().is_empty()) {
            return Err("tls: give both certificate and key, or none".into());
        }
        for (name, value) in [
            ("http.connections", self.http.connections),
            ("http.large_bodies", self.http.large_bodies),
            ("sandboxes.maximum", self.sandboxes.maximum),
        ] {
            if value == 0 {
                return Err(format!("{name}: it must be more than 0"));
            }
        }
        for (name, value) in [
            ("http.read_timeout", self.http.read_timeout),
            ("http.write_timeout", self.http.write_timeout),
            ("budget.queue_timeout", self.budget.queue_timeout),
            ("packages.timeout", self.packages.timeout),
            ("sandboxes.idle_timeout", self.sandboxes.idle_timeout),
            ("docker.start_timeout", self.docker.start_timeout),
        ] {
            if value.is_zero() {
                return Err(format!("{name}: it must be more than 0"));
            }
        }
        if self.packages.bytes < 1 << 20 {
            return Err("packages.bytes: give at least 1m".into());
        }
        self.volumes.check()?;
        self.images
            .policy()
            .map_err(|error| format!("images: {error}"))?;
        self.docker
            .settings()
            .check()
            .map_err(|error| format!("docker.host: {error}"))?;
        self.network.outside()?;
        let most = self.limits.check()?;
        self.budget.check(&self.limits.usual(&most)?)?;
        let mut owners = Vec::new();
        for (name, tenant) in &self.tenants {
            tenant.check(name)?;
            for key in &tenant.keys {
                if let Some((_, other)) = owners.iter().find(|(known, _)| *known == key) {
                    return Err(format!(
                        "tenants.{name}: one of its keys is a key of tenants.{other}, too; make another with: belljar key"
                    ));
                }
                owners.push((key, name));
            }
        }
        let languages = Registry::load().map_err(|error| error.to_string())?;
        for name in self.pool.keys() {
            known(&languages, Some(name)).map_err(|error| format!("pool: {error}"))?;
        }
        for (name, template) in &self.templates {
            template
                .check(&most, &languages)
                .and_then(|preset| self.admits(&preset))
                .map_err(|error| format!("templates.{name}: {error}"))?;
        }
        Ok(())
    }

    /// What no request may name is no preset either: all requests for it would be refused.
    fn admits(&self, preset: &RunRequest) -> Result<(), Error> {
        let refused = |volume: &&Volume| !self.volumes.allows(Path::new(&volume.source));
        if let Some(volume) = preset.volumes.iter().find(refused) {
            return Err(Error::InvalidVolume {
                given: shown(&volume.source),
                accepted: "give a directory below those of volumes.allowed".into(),
            });
        }
        match (&preset.image, preset.backend.unwrap_or(self.backend)) {
            (Some(image), Backend::Native) => self.images.policy()?.check(&image.parse()?),
            (Some(image), Backend::Docker) if !self.docker.allows(image) => {
                let accepted = "name one that docker.images allows";
                Err(Error::invalid_request("image", image, accepted))
            }
            _ => Ok(()),
        }
    }

    /// Whether a container's image may come from where its name says, for whoever asks.
    pub fn fetches(&self, image: &str) -> bool {
        let named = |template: &Template| {
            let fields = template.of_run();
            fields.get("image").and_then(|image| image.as_str()) == Some(image)
        };
        self.docker.fetches(image) || self.templates.values().any(named)
    }

    /// One that no request could ever have would let nobody in, and say nothing.
    fn check_names(&self) -> Result<(), String> {
        let is_name = |host: &&String| !host.is_empty() && !host.contains(['/', ':', '*', ' ']);
        if let Some(host) = self.hosts.iter().find(|host| !is_name(host)) {
            return Err(format!(
                "hosts: {} is not accepted; give a name alone, like jar.example.org",
                shown(host)
            ));
        }
        let is_origin = |origin: &&String| {
            let rest = origin
                .strip_prefix("https://")
                .or_else(|| origin.strip_prefix("http://"));
            rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(['/', '*', ' ']))
        };
        if let Some(origin) = self.origins.iter().find(|origin| !is_origin(origin)) {
            return Err(format!(
                "origins: {} is not accepted; give it as browsers do, like https://page.example.org",
                shown(origin)
            ));
        }
        Ok(())
    }

    /// Where to listen for TCP.
    pub fn address(&self) -> Result<Option<SocketAddr>, String> {
        if self.listen.is_empty() {
            return Ok(None);
        }
        self.listen.parse().map(Some).map_err(|_| {
            format!(
                "listen: {} is not accepted; give an address with a port, like 127.0.0.1:7117 or [::1]:7117",
                shown(&self.listen)
            )
        })
    }
}

fn invalid(name: &str, reason: &str) -> Error {
    Error::invalid_file("config", name, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_says_the_defaults() {
        assert_eq!(
            Config::parse(REFERENCE, "reference").unwrap(),
            Config::default()
        );
        // And names every setting: none is hidden behind a default.
        let written: toml::Table = REFERENCE.parse().unwrap();
        for (section, count) in [
            ("http", 6),
            ("budget", 4),
            ("sandboxes", 4),
            ("limits", 2),
            ("history", 4),
            ("tls", 2),
            ("volumes", 1),
            ("docker", 8),
            ("network", 3),
            ("packages", 6),
        ] {
            assert_eq!(
                written[section].as_table().unwrap().len(),
                count,
                "{section}"
            );
        }
    }

    #[test]
    fn names_that_requests_have() {
        let text = "hosts = ['jar', 'jar.example.org']\norigins = ['http://localhost:3000', 'https://page.example.org']";
        Config::parse(text, "x.toml").unwrap();
    }

    #[test]
    fn templates_may_have_what_requests_may() {
        let text = "[volumes]\nallowed = ['/srv/data']\n[templates.t]\nvolumes = ['/srv/data/sets:/data']\nimage = 'ruby'";
        Config::parse(text, "x.toml").unwrap();
    }

    #[test]
    fn a_small_budget_needs_small_limits() {
        let text = "[budget]\nmemory_bytes = '100m'\n[limits]\ndefault = { memory_bytes = '64m' }";
        Config::parse(text, "x.toml").unwrap();
    }

    #[test]
    fn maxima_may_be_raised() {
        let text = "[limits]\nmaximum = { timeout_ms = '5h' }\ndefault = { timeout_ms = '3h' }\n[templates.t]\nlimits = { timeout_ms = '4h' }";
        Config::parse(text, "x.toml").unwrap();
    }

    #[test]
    fn templates_have_fields_of_runs_and_of_sandboxes() {
        let text = "[templates.t]\nlanguage = 'python'\ncollect = ['*.csv']\nglobals = { x = 1 }\nidle_timeout_ms = '10m'\nmax_runs = 3";
        let config = Config::parse(text, "x.toml").unwrap();
        let template = &config.templates["t"];
        let names = |fields: serde_json::Map<_, _>| fields.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(template.of_run()), ["collect", "globals", "language"]);
        assert_eq!(
            names(template.of_sandbox()),
            ["idle_timeout_ms", "language", "max_runs"]
        );
    }

    #[test]
    fn what_is_wrong_is_said() {
        let message = |text: &str| Config::parse(text, "x.toml").unwrap_err().to_string();
        for (text, part) in [
            ("liste = 1", "unknown field `liste`"),
            ("listen = 'here'", "127.0.0.1:7117"),
            ("hosts = ['jar.example.org:7117']", "a name alone"),
            ("hosts = ['http://jar.example.org']", "a name alone"),
            ("origins = ['page.example.org']", "as browsers do"),
            ("origins = ['https://page.example.org/']", "as browsers do"),
            ("[http]\nread_timeout = '5'", "\"5\" is not accepted"),
            ("[http]\nread_timeout = '0s'", "more than 0"),
            ("[tls]\nkey = '/k'", "both"),
            ("[tenants.a]\n", "belljar key"),
            ("[budget]\nmemory_bytes = '100m'", "limits.default"),
            ("[budget]\ncpus = 0.5", "limits.default"),
            (
                "[tenants.a]\nkeys = ['sha256:0000000000000000000000000000000000000000000000000000000000000001']\nruns_at_once = 0",
                "tenants.a: runs_at_once",
            ),
            (
                "[tenants.admin]\nkeys = ['sha256:0000000000000000000000000000000000000000000000000000000000000000']",
                "admin",
            ),
            ("[tenants.a]\nkeys = ['secret']", "belljar key"),
            ("[templates.t]\nlanguag = 'c'", "languag"),
            ("[templates.t]\ncode = 'x'", "leave it out"),
            ("[volumes]\nallowed = ['data']", "absolute"),
            ("[network]\nprivate = ['example.org']", "network.private"),
            ("[network]\nresolver = 'here'", "network.resolver"),
            ("[docker]\nhost = 'ssh://there'", "docker.host"),
            ("[docker]\nnetwork = 'host'", "`loopback` or `bridge`"),
            (
                "[limits]\nmaximum = { memory_bytes = '1' }",
                "limits.maximum",
            ),
            (
                "[limits]\nmaximum = { timeout_ms = '9999h' }",
                "limits.maximum",
            ),
            (
                "[limits]\nmaximum = { processes = 9 }\ndefault = { processes = 10 }",
                "limits.default",
            ),
            (
                "[templates.t]\nlimits = { timeout_ms = '2h' }",
                "templates.t",
            ),
            ("[templates.t]\nmax_runs = 'x'", "max_runs"),
            ("[templates.t]\nglobals = { '1x' = 2 }", "globals"),
            ("[templates.t]\nlanguage = 'pyton'", "did you mean python"),
            ("[pool]\npyton = 1", "did you mean python"),
            ("[templates.t]\npreload = ['json']", "pool = 1"),
            (
                "[volumes]\nallowed = ['/srv/data']\n[templates.t]\nvolumes = ['/srv/other:/data']",
                "volumes.allowed",
            ),
            (
                "[images]\nallowed = ['python']\n[templates.t]\nimage = 'ruby'",
                "images.allowed",
            ),
            (
                "[docker]\nimages = ['python']\n[templates.t]\nimage = 'ruby'\nbackend = 'docker'",
                "docker.images",
            ),
            (
                "[tenants.a]\nkeys = ['sha256:0000000000000000000000000000000000000000000000000000000000000001']\n\
                 [tenants.b]\nkeys = ['sha256:0000000000000000000000000000000000000000000000000000000000000001']",
                "a key of tenants.a",
            ),
        ] {
            assert!(message(text).contains(part), "{text}: {}", message(text));
        }
    }
}
