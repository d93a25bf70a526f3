//! Why sandboxes are not there any more, for those who still ask for them.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use belljar_spec::SandboxId;

/// The oldest is forgotten first.
const REMEMBERED: usize = 4096;

/// What ended a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    Deleted,
    Idle(Duration),
    Old(Duration),
    Grown,
    Stopped,
}

impl Why {
    pub fn told(self) -> String {
        match self {
            Self::Deleted => "it was deleted".into(),
            Self::Idle(time) => format!(
                "it was deleted after {} s in which nobody used it (idle_timeout_ms)",
                time.as_secs_f64()
            ),
            Self::Old(time) => {
                format!(
                    "it was deleted after {} s (lifetime_ms)",
                    time.as_secs_f64()
                )
            }
            Self::Grown => {
                "it was ended: it grew with nothing running in it, and there was no memory left"
                    .into()
            }
            Self::Stopped => "the daemon stops".into(),
        }
    }
}

#[derive(Default)]
pub struct Ended(Mutex<VecDeque<(SandboxId, String, Why)>>);

impl Ended {
    pub fn remember(&self, id: SandboxId, tenant: &str, why: Why) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() == REMEMBERED {
            all.pop_front();
        }
        all.push_back((id, tenant.to_owned(), why));
    }

    /// Of those that this one may see.
    pub fn why(&self, id: SandboxId, sees: impl Fn(&str) -> bool) -> Option<Why> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut last_first = all.iter().rev();
        let found = last_first.find(|(ended, tenant, _)| *ended == id && sees(tenant));
        found.map(|(_, _, why)| *why)
    }
}
