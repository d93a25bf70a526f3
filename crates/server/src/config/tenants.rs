//! Who may use the daemon, and presets for what they ask.

use belljar::runtime::{LanguageHint, Registry};
use belljar_spec::{
    Error, HostCapacity, LimitsPatch, RunRequest, SandboxRequest, from_deserializer, shown,
};
use serde::Deserialize;
use serde_json::{Map, Value};

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
    pub request: Map<String, Value>,
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
        for (field, none) in [
            ("runs_at_once", self.runs_at_once == Some(0)),
            ("runs_per_minute", self.runs_per_minute == Some(0)),
            ("memory_bytes", self.memory_bytes == Some(0)),
        ] {
            if none {
                return Err(format!(
                    "tenants.{name}: {field}: with 0 it could run nothing; give at least 1, or leave it out"
                ));
            }
        }
        Ok(())
    }
}

/// Fields that only a sandbox which is kept has, and those that only a run has.
const OF_SANDBOXES: [&str; 6] = [
    "publish",
    "name",
    "idle_timeout_ms",
    "lifetime_ms",
    "max_runs",
    "max_tool_calls",
];
const OF_RUNS: [&str; 4] = ["args", "stdin", "globals", "collect"];

impl Template {
    /// What it says about a single run.
    pub fn of_run(&self) -> Map<String, Value> {
        self.without(&OF_SANDBOXES)
    }

    /// What it says about a sandbox that is kept.
    pub fn of_sandbox(&self) -> Map<String, Value> {
        self.without(&OF_RUNS)
    }

    fn without(&self, fields: &[&str]) -> Map<String, Value> {
        let mut rest = self.request.clone();
        rest.retain(|name, _| !fields.contains(&name.as_str()));
        rest
    }

    /// As a request it would be accepted, for a run and for a sandbox, on a host with these maxima.
    pub fn check(&self, most: &HostCapacity, languages: &Registry) -> Result<RunRequest, Error> {
        for field in ["code", "template"] {
            if self.request.contains_key(field) {
                return Err(Error::invalid_request(
                    field,
                    "a preset",
                    "leave it out of templates",
                ));
            }
        }
        if self.pool == 0
            && let Some(module) = self.preload.first()
        {
            return Err(Error::invalid_request(
                "preload",
                module,
                "modules are loaded in the template's pool; give it one with pool = 1 or more",
            ));
        }
        let mut run = self.of_run();
        run.insert("code".into(), "pass".into());
        let run: RunRequest = from_deserializer(Value::Object(run))?;
        run.check()?;
        run.limits.resolve(&LimitsPatch::default(), most)?;
        let sandbox: SandboxRequest = from_deserializer(Value::Object(self.of_sandbox()))?;
        sandbox.check()?;
        known(languages, sandbox.language.as_deref())?;
        Ok(run)
    }
}

/// A language that there is, on this host or not.
pub fn known(languages: &Registry, language: Option<&str>) -> Result<(), Error> {
    let hint = LanguageHint {
        language,
        file_name: None,
    };
    languages.find(&hint).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_a_sandbox_is_one_of_a_run_or_its_own() {
        let fields = |value: Value| {
            let names = value.as_object().unwrap().keys().cloned();
            names.collect::<std::collections::BTreeSet<_>>()
        };
        let run = fields(serde_json::to_value(RunRequest::default()).unwrap());
        let sandbox = fields(serde_json::to_value(SandboxRequest::default()).unwrap());
        let own: Vec<_> = sandbox.difference(&run).map(String::as_str).collect();
        let mut listed = OF_SANDBOXES.to_vec();
        listed.sort_unstable();
        assert_eq!(own, listed);
        let own: Vec<_> = run.difference(&sandbox).map(String::as_str).collect();
        let mut listed = [&OF_RUNS[..], &["code"]].concat();
        listed.sort_unstable();
        assert_eq!(own, listed);
    }
}
