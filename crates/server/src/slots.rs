//! Slots for what there can be little of at one time. One tenant alone never has all of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::tenants::Tenant;

pub struct Slots {
    all: Arc<Semaphore>,
    /// What a tenant may have of them.
    part: usize,
    tenants: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// Given back when it is dropped.
#[must_use]
pub struct Slot {
    _own: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Slots {
    /// With others to think of, a tenant has half of them at most.
    pub fn new(count: usize, shared: bool) -> Self {
        Self {
            all: Arc::new(Semaphore::new(count)),
            part: if shared { count.div_ceil(2) } else { count },
            tenants: Mutex::default(),
        }
    }

    /// Who has its part already waits behind its own, not behind others. `None`: there was none in time.
    pub async fn take(&self, tenant: &Tenant, patience: Duration) -> Option<Slot> {
        let own = self.of(tenant);
        let taken = async {
            Some(Slot {
                _own: own.acquire_owned().await.ok()?,
                _of_all: Arc::clone(&self.all).acquire_owned().await.ok()?,
            })
        };
        tokio::time::timeout(patience, taken).await.ok()?
    }

    fn of(&self, tenant: &Tenant) -> Arc<Semaphore> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        let own = tenants.entry(tenant.name.clone());
        Arc::clone(own.or_insert_with(|| Arc::new(Semaphore::new(self.part))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> Tenant {
        Tenant {
            name: name.into(),
            ..Tenant::admin()
        }
    }

    #[tokio::test]
    async fn one_tenant_leaves_some_to_others() {
        let soon = Duration::from_millis(20);
        let (one, other) = (tenant("one"), tenant("other"));
        let slots = Slots::new(3, true);
        let first = slots.take(&one, soon).await;
        let second = slots.take(&one, soon).await;
        assert!(first.is_some() && second.is_some());
        assert!(slots.take(&one, soon).await.is_none());
        let others = slots.take(&other, soon).await;
        assert!(others.is_some() && slots.take(&other, soon).await.is_none());
        drop(first);
        assert!(slots.take(&one, soon).await.is_some());
        let alone = Slots::new(2, false);
        let taken = (alone.take(&one, soon).await, alone.take(&one, soon).await);
        assert!(taken.0.is_some() && taken.1.is_some());
    }
}
