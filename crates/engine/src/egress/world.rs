//! What all sandboxes of an engine have in common on the way out: who is asked for names, and what was counted.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use super::resolve::Resolver;

/// How the outside is reached.
#[derive(Debug, Clone, Default)]
pub struct Outside {
    /// Asked for names instead of the host's own name servers.
    pub resolver: Option<SocketAddr>,
}

pub struct World {
    pub resolver: Resolver,
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
            resolver: Resolver::new(outside.resolver),
            totals: Default::default(),
        }
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
