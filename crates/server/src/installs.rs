//! Leave to install packages. They are installed before a run or a sandbox takes its place, so that an index which does not answer
//! holds up only those who want something from it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use belljar::runtime::Toolchain;
use belljar_spec::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::admission::{Admission, Room};
use crate::app::App;
use crate::config::Config;
use crate::sandboxes::stopping;
use crate::tenants::Tenant;

/// At one time, of all tenants; each has one of them at most.
const AT_ONCE: usize = 2;

pub struct Installs {
    all: Arc<Semaphore>,
    /// As many as the settings name.
    tenants: Mutex<HashMap<String, Arc<Semaphore>>>,
    patience: Duration,
}

/// Given back when it is dropped.
pub struct Leave {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
    _room: Room,
}

impl Installs {
    pub fn new(config: &Config) -> Self {
        Self {
            all: Arc::new(Semaphore::new(AT_ONCE)),
            tenants: Mutex::default(),
            patience: config.budget.queue_timeout,
        }
    }

    async fn leave(&self, admission: &Admission, tenant: &Tenant) -> Result<Leave, Error> {
        let own = {
            let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
            let own = tenants.entry(tenant.name.clone());
            Arc::clone(own.or_insert_with(|| Arc::new(Semaphore::new(1))))
        };
        // First its own: a tenant stands in the line of all with one alone.
        let turn = async {
            let own = own.acquire_owned().await.ok()?;
            let all = Arc::clone(&self.all).acquire_owned().await.ok()?;
            Some((own, all))
        };
        let turn = tokio::time::timeout(self.patience, turn).await;
        let Ok(Some((own, all))) = turn else {
            return Err(admission.installs_too_much());
        };
        Ok(Leave {
            _own: own,
            _all: all,
            _room: admission.installation(tenant).await?,
        })
    }
}

impl App {
    /// Sees to it that these packages are there, and stay as long as the answer is kept.
    pub async fn install(
        &self,
        tenant: &Tenant,
        toolchain: &Toolchain,
        wanted: &[String],
    ) -> Result<Option<Toolchain>, Error> {
        if wanted.is_empty() {
            return Ok(None);
        }
        let leave = self.installs.leave(&self.admission, tenant);
        tokio::select! {
            with = self.engine.with_packages_after(toolchain, wanted, leave) => with.map(Some),
            () = self.ended() => Err(stopping()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use belljar_spec::HostCapacity;

    #[tokio::test]
    async fn one_for_each_tenant_and_two_for_all() {
        let mut config = Config::default();
        config.budget.queue_timeout = Duration::from_millis(50);
        let host = HostCapacity {
            memory_bytes: 8 << 30,
            ..belljar::capacity()
        };
        let admission = Admission::new(&config, &host, Metrics::new());
        let installs = Installs::new(&config);
        let tenant = |name: &str| Tenant {
            name: name.into(),
            ..Tenant::admin()
        };
        let (a, b, c) = (tenant("a"), tenant("b"), tenant("c"));
        let first = installs.leave(&admission, &a).await.unwrap();
        // Its own second one waits, and is sent away after a while.
        let refused = installs.leave(&admission, &a).await.err().unwrap();
        assert!(matches!(refused, Error::Overloaded { .. }), "{refused}");
        let second = installs.leave(&admission, &b).await.unwrap();
        assert!(installs.leave(&admission, &c).await.is_err());
        drop(first);
        drop((installs.leave(&admission, &c).await.unwrap(), second));
        assert_eq!(installs.all.available_permits(), AT_ONCE);
    }
}
