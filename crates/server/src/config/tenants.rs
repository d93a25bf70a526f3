//! Who may use the daemon, and presets for what they ask.

use belljar_spec::{Error, HostCapacity, LimitsPatch, RunRequest, shown};
use serde::Deserialize;

use super::units::some_bytes;
use crate::secret::Digest;

/// The tenant of the daemon's own token and of its unix socket.
pub const ADMIN: &str = "admin";

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

impl Tenant {
    pub fn check(&self, name: &str) -> Result<(), String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.is_empty() || name.len() > 64 || !name.chars().all(plain) || name == ADMIN {
            return Err(format!(
                "tenants: the name {} is not accepted; give letters, digits, \".\", \"_\" and \"-\", and not {ADMIN}",
                shown(name)
            ));
        }
        if self.keys.is_empty() {
            return Err(format!(
                "tenants.{name}: it has no keys; make one with: belljar key"
            ));
        }
        Ok(())
    }
}

impl Template {
    /// As a request it would be accepted, on a host with these maxima.
    pub fn check(&self, most: &HostCapacity) -> Result<(), Error> {
        for field in ["code", "template"] {
            if self.request.contains_key(field) {
                return Err(Error::invalid_request(
                    field,
                    "a preset",
                    "leave it out of templates",
                ));
            }
        }
        let mut request = self.request.clone();
        request.insert("code".into(), "pass".into());
        let text =
            serde_json::to_vec(&request).map_err(|error| Error::internal("template", error))?;
        let request = RunRequest::from_json(&text)?;
        request.limits.resolve(&LimitsPatch::default(), most)?;
        Ok(())
    }
}
