//! How the daemon serves: sockets, room, how long things are kept.

use std::path::PathBuf;
use std::time::Duration;

use belljar_spec::{Error, HostCapacity, Limits, LimitsPatch, Maxima};
use serde::Deserialize;

use crate::admission::Need;
use crate::tenants::Tenant;

use super::units::{bytes, bytes_or_auto, cores_or_auto, time};

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

impl Sandboxes {
    /// Whether a tenant may have a sandbox that is idle for so long.
    pub fn allow_idle(&self, tenant: &Tenant, millis: Option<u64>) -> Result<(), Error> {
        allow(tenant, "idle_timeout_ms", millis, self.idle_timeout)
    }

    /// Whether a tenant may ask for one that lives so long.
    pub fn allow_life(&self, tenant: &Tenant, millis: Option<u64>) -> Result<(), Error> {
        match self.longest(tenant) {
            Some(life) => allow(tenant, "lifetime_ms", millis, life),
            None => Ok(()),
        }
    }

    /// The age at which those of a tenant end at the latest.
    pub fn longest(&self, tenant: &Tenant) -> Option<Duration> {
        (!tenant.admin && !self.life.is_zero()).then_some(self.life)
    }
}

fn allow(
    tenant: &Tenant,
    field: &'static str,
    millis: Option<u64>,
    most: Duration,
) -> Result<(), Error> {
    match millis {
        Some(millis) if !tenant.admin && Duration::from_millis(millis) > most => {
            Err(Error::invalid_request(
                field,
                &millis.to_string(),
                format!("this daemon allows at most {} ms", most.as_millis()),
            ))
        }
        _ => Ok(()),
    }
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

impl LimitRules {
    /// This host with the maxima that are set here.
    pub fn check(&self) -> Result<HostCapacity, String> {
        let machine = belljar::machine();
        let maxima = Maxima::new(&self.maximum, &machine);
        let most = HostCapacity {
            maxima: maxima.map_err(|error| format!("limits.maximum: {error}"))?,
            ..machine
        };
        self.usual(&most)?;
        Ok(most)
    }

    /// What a run has that asks for nothing.
    pub fn usual(&self, most: &HostCapacity) -> Result<Limits, String> {
        let usual = self.default.resolve(&LimitsPatch::default(), most);
        usual.map_err(|error| format!("limits.default: {error}"))
    }
}

impl Budget {
    /// What is given here has to do for one run that asks for nothing: else the daemon would start, and refuse all of them.
    pub fn check(&self, usual: &Limits) -> Result<(), String> {
        let need = Need::of(usual);
        let total = Need {
            memory_bytes: self.memory_bytes.unwrap_or(u64::MAX),
            cpus: self.cpus.unwrap_or(u64::MAX),
        };
        if need.fits(total) {
            return Ok(());
        }
        Err(format!(
            "budget: one run with the default limits counts as {need}; give at least as much, or smaller limits in limits.default"
        ))
    }

    /// Memory in bytes and CPU in thousandths of a core for all sandboxes together.
    pub fn on(&self, host: &HostCapacity) -> (u64, u64) {
        let memory = self.memory_bytes.unwrap_or(host.memory_bytes / 5 * 4);
        let cpus = self.cpus.unwrap_or(u64::from(host.cpus) * 4000);
        (memory, cpus)
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
