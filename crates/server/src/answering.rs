//! Single runs that are going on, so that calls of their tools can be answered.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use belljar::Session;
use belljar_spec::{Error, RunId, shown};

use crate::tenants::Tenant;

type Table = HashMap<RunId, (String, Weak<Session>)>;

#[derive(Clone, Default)]
pub struct Answering(Arc<Mutex<Table>>);

/// As long as this is there, the run can be found.
pub struct Entry {
    table: Answering,
    id: RunId,
}

impl Answering {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn enter(&self, id: RunId, tenant: &Tenant, session: &Arc<Session>) -> Entry {
        let run = (tenant.name.clone(), Arc::downgrade(session));
        self.lock().insert(id, run);
        Entry {
            table: self.clone(),
            id,
        }
    }

    /// Another tenant's is as absent as one that has ended.
    pub fn find(&self, tenant: &Tenant, id: &str) -> Result<Arc<Session>, Error> {
        let run: RunId = id.parse()?;
        let found = self.lock().get(&run).cloned();
        let session = found
            .filter(|(owner, _)| tenant.sees(owner))
            .and_then(|(_, session)| session.upgrade());
        session.ok_or_else(|| Error::NotFound {
            what: "run that is going on",
            given: shown(id),
            nearest: None,
        })
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.table.lock().remove(&self.id);
    }
}
