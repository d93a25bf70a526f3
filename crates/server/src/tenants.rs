//! Who is asking.

use std::collections::BTreeMap;

use belljar_spec::{Error, Limits};

use crate::config::{self, ADMIN};
use crate::history::Scope;
use crate::secret::Digest;

/// The weight of a sandbox to which none was given.
const USUAL_SHARES: u32 = 1024;

/// What a tenant may have. `None`: no quota of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Quotas {
    pub sandboxes: Option<usize>,
    pub runs_at_once: Option<usize>,
    pub runs_per_minute: Option<u32>,
    pub memory_bytes: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    pub name: String,
    /// Sees what belongs to others, too.
    pub admin: bool,
    pub quotas: Quotas,
}

impl Tenant {
    pub fn admin() -> Self {
        Self {
            name: ADMIN.into(),
            admin: true,
            quotas: Quotas::default(),
        }
    }

    pub fn scope(&self) -> Scope {
        if self.admin {
            Scope::All
        } else {
            Scope::Tenant(self.name.clone())
        }
    }

    /// Whether something of `owner` exists for this tenant.
    pub fn sees(&self, owner: &str) -> bool {
        self.admin || self.name == owner
    }

    /// Nobody takes CPU time from other tenants by a weight above theirs.
    pub fn may_have(&self, limits: &Limits) -> Result<(), Error> {
        match limits.cpu_shares {
            Some(shares) if !self.admin && shares > USUAL_SHARES => Err(Error::InvalidLimit {
                field: "cpu_shares".into(),
                given: shares.to_string(),
                accepted: format!("give at most {USUAL_SHARES}, which is what others have"),
            }),
            _ => Ok(()),
        }
    }

    /// What no waiting helps: more than the quota, with nothing else going on.
    pub fn may_ever_have(&self, memory_bytes: u64) -> Result<(), Error> {
        match self.quotas.memory_bytes {
            Some(most) if memory_bytes > most => Err(Error::InvalidLimit {
                field: "memory_bytes".into(),
                given: format!(
                    "{} MiB with what is kept of the output",
                    memory_bytes.div_ceil(1 << 20)
                ),
                accepted: format!(
                    "your quota memory_bytes is {} MiB for everything at one time; ask for less",
                    most >> 20
                ),
            }),
            _ => Ok(()),
        }
    }

    pub fn must_be_admin(&self) -> Result<(), Error> {
        if self.admin {
            return Ok(());
        }
        Err(Error::Forbidden {
            reason: "this is for the administrator of the daemon".into(),
        })
    }
}

/// Everybody who has a key.
pub struct Tenants(Vec<(Digest, Tenant)>);

impl Tenants {
    pub fn new(admin_token: &str, configured: &BTreeMap<String, config::Tenant>) -> Self {
        let mut keys = vec![(Digest::of(admin_token), Tenant::admin())];
        for (name, settings) in configured {
            let tenant = Tenant {
                name: name.clone(),
                admin: false,
                quotas: Quotas {
                    sandboxes: settings.sandboxes,
                    runs_at_once: settings.runs_at_once,
                    runs_per_minute: settings.runs_per_minute,
                    memory_bytes: settings.memory_bytes,
                },
            };
            keys.extend(
                settings
                    .keys
                    .iter()
                    .map(|key| (key.clone(), tenant.clone())),
            );
        }
        Self(keys)
    }

    /// Whose key it is. Looks at all of them, so that the time tells nothing.
    pub fn find(&self, secret: &str) -> Option<&Tenant> {
        let given = Digest::of(secret);
        let mut found = None;
        for (key, tenant) in &self.0 {
            if key.matches(&given) {
                found = Some(tenant);
            }
        }
        found
    }
}
