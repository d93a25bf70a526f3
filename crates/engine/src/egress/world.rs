//! What all sandboxes of an engine have in common on the way out: who is asked for names, and what was counted.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use belljar_jail::host::open_files;
use belljar_spec::HostRule;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::address::closed;
use super::authority::Authority;
use super::resolve::Resolver;

/// How the outside is reached.
#[derive(Debug, Clone, Default)]
pub struct Outside {
    /// Asked for names instead of the host's own name servers.
    pub resolver: Option<SocketAddr>,
    /// Addresses that are not public and that rules may name, any port where none is given; all of them if `None`.
    pub private: Option<Vec<HostRule>>,
}

/// Of the files that this process may have open, one in so many may be a connection, of two files each: the others are for everything else that it does.
const SHARE: u64 = 8;
/// Connections that are told, at one time, that there is no place for them.
const TURNED_AWAY: usize = 64;

pub struct World {
    /// For the connections of all sandboxes. As many as there can be by the time of the first.
    places: OnceLock<Arc<Semaphore>>,
    pub porter: Arc<Semaphore>,
    pub resolver: Resolver,
    private: Option<Vec<HostRule>>,
    authority: OnceLock<Arc<Authority>>,
    totals: [AtomicU64; 4],
}

/// Counted since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    pub allowed: u64,
    pub refused: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
}

impl World {
    pub fn new(outside: &Outside) -> Self {
        Self {
            places: OnceLock::new(),
            porter: Arc::new(Semaphore::new(TURNED_AWAY)),
            resolver: Resolver::new(outside.resolver),
            private: outside.private.clone(),
            authority: OnceLock::new(),
            totals: Default::default(),
        }
    }

    /// A place for one more connection of somebody who then has `held`. Nobody gets more than are left for all others.
    pub fn place(&self, held: u64) -> Option<OwnedSemaphorePermit> {
        let places = self.places.get_or_init(|| {
            let count = usize::try_from(open_files() / SHARE).unwrap_or(usize::MAX);
            Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS)))
        });
        if (places.available_permits() as u64) < held {
            return None;
        }
        Arc::clone(places).try_acquire_owned().ok()
    }

    /// Whether an address that is not public may be reached by anyone.
    pub fn opens(&self, address: IpAddr, port: u16) -> bool {
        let fits =
            |rule: &HostRule| rule.target.holds(address) && rule.port.is_none_or(|own| own == port);
        let private = self.private.as_ref();
        private.is_none_or(|open| open.iter().any(fits)) || closed(address).is_none()
    }

    /// Made when the first sandbox needs it.
    pub fn authority(&self) -> io::Result<Arc<Authority>> {
        if let Some(known) = self.authority.get() {
            return Ok(Arc::clone(known));
        }
        let made = Arc::new(Authority::new()?);
        Ok(Arc::clone(self.authority.get_or_init(|| made)))
    }

    pub fn count(&self, allowed: bool) {
        self.totals[usize::from(!allowed)].fetch_add(1, Ordering::Relaxed);
    }

    pub fn passed(&self, sent: bool, bytes: usize) {
        self.totals[if sent { 2 } else { 3 }].fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub fn totals(&self) -> Totals {
        let [allowed, refused, bytes_sent, bytes_received] =
            [0, 1, 2, 3].map(|index: usize| self.totals[index].load(Ordering::Relaxed));
        Totals {
            allowed,
            refused,
            bytes_sent,
            bytes_received,
        }
    }
}
