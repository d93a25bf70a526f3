//! The daemon's settings. `belljar.toml` beside this crate lists each with its default; a test keeps the two the same.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use belljar::docker::Pull;
use belljar::image::{Pattern, Policy, Registries};
use belljar::{Outside, PackageSettings};
use belljar_spec::{
    Amount, Backend, Error, HostCapacity, HostRule, LimitsPatch, RunRequest, Target, Unit, shown,
};
use serde::{Deserialize, Deserializer};

use crate::secret::Digest;

/// The documented settings with their defaults.
pub const REFERENCE: &str = include_str!("../belljar.toml");

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

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tls {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    pub connections: usize,
    #[serde(deserialize_with = "bytes")]
    pub body_bytes: u64,
    pub large_bodies: usize,
    #[serde(deserialize_with = "time")]
    pub read_timeout: Duration,
    #[serde(deserialize_with = "time")]
    pub write_timeout: Duration,
    #[serde(deserialize_with = "time")]
    pub shutdown_timeout: Duration,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Budget {
    /// `None`: most of what the host has.
    #[serde(deserialize_with = "bytes_or_auto")]
    pub memory_bytes: Option<u64>,
    /// In thousandths of a core.
    #[serde(deserialize_with = "cores_or_auto")]
    pub cpus: Option<u64>,
    pub queue: usize,
    #[serde(deserialize_with = "time")]
    pub queue_timeout: Duration,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sandboxes {
    pub maximum: usize,
    #[serde(deserialize_with = "time")]
    pub idle_timeout: Duration,
    /// Zero: no end.
    #[serde(deserialize_with = "time")]
    pub life: Duration,
    #[serde(deserialize_with = "time")]
    pub reconnect: Duration,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitRules {
    pub default: LimitsPatch,
    pub maximum: LimitsPatch,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct History {
    #[serde(deserialize_with = "time")]
    pub age: Duration,
    pub runs: u64,
    pub code: bool,
    #[serde(deserialize_with = "bytes")]
    pub output_bytes: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Volumes {
    pub allowed: Vec<PathBuf>,
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
            start_timeout: self.start_timeout,
        }
    }

    /// Whether requests may name this image: a `*` in the settings stands for anything.
    pub fn allows(&self, image: &str) -> bool {
        image == self.image || self.images.iter().any(|pattern| fits(pattern, image))
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
}

impl Default for PackageRules {
    fn default() -> Self {
        Self {
            python: String::new(),
            javascript: String::new(),
            hosts: Vec::new(),
            timeout: Duration::from_mins(10),
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
        }
    }
}

/// Who may use the daemon, and how much of it. What is `None` does not hold.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tenant {
    pub keys: Vec<Digest>,
    pub sandboxes: Option<usize>,
    pub runs_at_once: Option<usize>,
    pub runs_per_minute: Option<u32>,
    #[serde(deserialize_with = "some_bytes")]
    pub memory_bytes: Option<u64>,
}

/// Fields of a request, and how sandboxes of this kind are held ready.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Template {
    pub pool: usize,
    pub preload: Vec<String>,
    #[serde(flatten)]
    pub request: serde_json::Map<String, serde_json::Value>,
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

impl Default for Http {
    fn default() -> Self {
        Self {
            connections: 8192,
            body_bytes: 32 << 20,
            large_bodies: 16,
            read_timeout: Duration::from_secs(15),
            write_timeout: Duration::from_secs(30),
            shutdown_timeout: Duration::from_secs(10),
        }
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            memory_bytes: None,
            cpus: None,
            queue: 1024,
            queue_timeout: Duration::from_secs(20),
        }
    }
}

impl Default for Sandboxes {
    fn default() -> Self {
        Self {
            maximum: 4096,
            idle_timeout: Duration::from_hours(1),
            life: Duration::ZERO,
            reconnect: Duration::from_secs(30),
        }
    }
}

impl Default for Docker {
    fn default() -> Self {
        Self {
            host: String::new(),
            image: String::new(),
            images: vec!["*".into()],
            pull: Pull::Missing,
            runtime: String::new(),
            runtimes: Vec::new(),
            start_timeout: Duration::from_mins(1),
        }
    }
}

impl Default for History {
    fn default() -> Self {
        Self {
            age: Duration::from_hours(720),
            runs: 100_000,
            code: true,
            output_bytes: 256 << 10,
        }
    }
}

impl Config {
    /// From the text of a file called `name`.
    pub fn parse(text: &str, name: &str) -> Result<Self, Error> {
        let config: Self =
            toml::from_str(text).map_err(|error| invalid(name, error.to_string().trim_end()))?;
        config.check().map_err(|reason| invalid(name, &reason))?;
        Ok(config)
    }

    /// What types alone do not say.
    fn check(&self) -> Result<(), String> {
        self.address()?;
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
        for path in &self.volumes.allowed {
            if !path.is_absolute() {
                return Err(format!(
                    "volumes.allowed: {} is not an absolute path",
                    path.display()
                ));
            }
        }
        self.images
            .policy()
            .map_err(|error| format!("images: {error}"))?;
        self.network.outside()?;
        for (name, tenant) in &self.tenants {
            let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            if name.is_empty() || name.len() > 64 || !name.chars().all(plain) || name == ADMIN {
                return Err(format!(
                    "tenants: the name {} is not accepted; give letters, digits, \".\", \"_\" and \"-\", and not {ADMIN}",
                    shown(name)
                ));
            }
            if tenant.keys.is_empty() {
                return Err(format!(
                    "tenants.{name}: it has no keys; make one with: belljar key"
                ));
            }
        }
        for (name, template) in &self.templates {
            check_template(&template.request)
                .map_err(|error| format!("templates.{name}: {error}"))?;
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

    /// Memory in bytes and CPU in thousandths of a core for all sandboxes together.
    pub fn budget_on(&self, host: &HostCapacity) -> (u64, u64) {
        let memory = self
            .budget
            .memory_bytes
            .unwrap_or(host.memory_bytes / 5 * 4);
        let cpus = self.budget.cpus.unwrap_or(u64::from(host.cpus) * 4000);
        (memory, cpus)
    }
}

/// The tenant of the daemon's own token and of its unix socket.
pub const ADMIN: &str = "admin";

fn check_template(template: &serde_json::Map<String, serde_json::Value>) -> Result<(), Error> {
    for field in ["code", "template"] {
        if template.contains_key(field) {
            return Err(Error::invalid_request(
                field,
                "a preset",
                "leave it out of templates",
            ));
        }
    }
    let mut request = template.clone();
    request.insert("code".into(), "pass".into());
    let text = serde_json::to_vec(&request).map_err(|error| Error::internal("template", error))?;
    RunRequest::from_json(&text).map(drop)
}

fn invalid(name: &str, reason: &str) -> Error {
    Error::invalid_file("config", name, reason)
}

fn value<'de, D: Deserializer<'de>>(
    deserializer: D,
    unit: Unit,
    zero: &str,
) -> Result<u64, D::Error> {
    let amount = Amount::deserialize(deserializer)?;
    if matches!(&amount, Amount::Text(text) if text == zero) {
        return Ok(0);
    }
    amount.value(unit).ok_or_else(|| {
        let example = match unit {
            Unit::Milliseconds => "a time like \"30s\"",
            Unit::Cores => "a number of cores",
            _ => "a size like \"64m\"",
        };
        serde::de::Error::custom(format!("{amount} is not accepted; give {example}"))
    })
}

fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    value(deserializer, Unit::Milliseconds, "0s").map(Duration::from_millis)
}

fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    value(deserializer, Unit::BinaryBytes, "0b")
}

fn some_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    bytes(deserializer).map(Some)
}

fn bytes_or_auto<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    or_auto(deserializer, Unit::BinaryBytes)
}

fn cores_or_auto<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    or_auto(deserializer, Unit::Cores)
}

fn or_auto<'de, D: Deserializer<'de>>(
    deserializer: D,
    unit: Unit,
) -> Result<Option<u64>, D::Error> {
    value(deserializer, unit, "auto").map(|value| (value > 0).then_some(value))
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
            ("docker", 7),
            ("network", 3),
            ("packages", 4),
        ] {
            assert_eq!(
                written[section].as_table().unwrap().len(),
                count,
                "{section}"
            );
        }
    }

    #[test]
    fn images_are_named_by_patterns() {
        let docker = Docker {
            image: "mine".into(),
            images: vec!["python:3.*".into(), "registry.test/*/app".into()],
            ..Docker::default()
        };
        for (image, allowed) in [
            ("mine", true),
            ("python:3.12-slim", true),
            ("python:2.7", false),
            ("registry.test/team/app", true),
            ("registry.test/team/app2", false),
            ("other", false),
        ] {
            assert_eq!(docker.allows(image), allowed, "{image}");
        }
        assert!(Docker::default().allows("anything"));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let message = |text: &str| Config::parse(text, "x.toml").unwrap_err().to_string();
        for (text, part) in [
            ("liste = 1", "unknown field `liste`"),
            ("listen = 'here'", "127.0.0.1:7117"),
            ("[http]\nread_timeout = '5'", "\"5\" is not accepted"),
            ("[http]\nread_timeout = '0s'", "more than 0"),
            ("[tls]\nkey = '/k'", "both"),
            ("[tenants.a]\n", "belljar key"),
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
        ] {
            assert!(message(text).contains(part), "{text}: {}", message(text));
        }
    }
}
