//! What was tried: one entry for each connection, kept in order, the oldest given up first.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use belljar_spec::Connection;

use crate::clock;

const MAX_ENTRIES: usize = 1000;
/// Names are at most this long; what is longer is no name.
const MAX_HOST: usize = 255;

#[derive(Default)]
pub struct Log(Mutex<Ring>);

#[derive(Default)]
struct Ring {
    /// The number of the oldest entry that is still there.
    first: u64,
    entries: VecDeque<Arc<Entry>>,
}

/// A connection that was tried.
pub struct Entry {
    host: String,
    port: u16,
    started: Instant,
    started_at: String,
    pub sent: AtomicU64,
    pub received: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    address: Option<SocketAddr>,
    allowed: bool,
    reason: Option<String>,
    ended: Option<Instant>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Log {
    pub fn begin(&self, host: &str, port: u16) -> Arc<Entry> {
        let entry = Arc::new(Entry {
            host: host
                .chars()
                .filter(|c| !c.is_control())
                .take(MAX_HOST)
                .collect(),
            port,
            started: Instant::now(),
            started_at: clock::now(),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            state: Mutex::default(),
        });
        let mut ring = lock(&self.0);
        if ring.entries.len() == MAX_ENTRIES {
            ring.entries.pop_front();
            ring.first += 1;
        }
        ring.entries.push_back(Arc::clone(&entry));
        entry
    }

    /// The number that the next entry will have.
    pub fn next(&self) -> u64 {
        let ring = lock(&self.0);
        ring.first + ring.entries.len() as u64
    }

    /// Everything from that number on which is still there.
    pub fn since(&self, number: u64) -> Vec<Connection> {
        let ring = lock(&self.0);
        let skip = number.saturating_sub(ring.first);
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        ring.entries
            .iter()
            .skip(skip)
            .map(|entry| entry.shown())
            .collect()
    }
}

impl Entry {
    pub fn allow(&self, address: SocketAddr) {
        let mut state = lock(&self.state);
        state.allowed = true;
        state.address = Some(address);
    }

    /// It is over. The first reason is the one that counts.
    pub fn end(&self, reason: Option<&str>) {
        let mut state = lock(&self.state);
        state.ended.get_or_insert_with(Instant::now);
        if let (None, Some(reason)) = (&state.reason, reason) {
            state.reason = Some(reason.to_owned());
        }
    }

    /// It was refused after all.
    pub fn refuse(&self, reason: &str) {
        lock(&self.state).allowed = false;
        self.end(Some(reason));
    }

    fn shown(&self) -> Connection {
        let state = lock(&self.state);
        let until = state.ended.unwrap_or_else(Instant::now);
        Connection {
            host: self.host.clone(),
            port: self.port,
            address: state.address.map(|at| at.ip().to_string()),
            allowed: state.allowed,
            reason: state.reason.clone(),
            bytes_sent: self.sent.load(Ordering::Relaxed),
            bytes_received: self.received.load(Ordering::Relaxed),
            started_at: self.started_at.clone(),
            duration_ms: until.duration_since(self.started).as_secs_f64() * 1000.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_bounded_and_counts_on() {
        let log = Log::default();
        for port in 0..1500 {
            log.begin("a", port).refuse("no");
        }
        assert_eq!(log.next(), 1500);
        assert_eq!(log.since(0).len(), MAX_ENTRIES);
        assert_eq!(log.since(1498).len(), 2);
        assert_eq!(log.since(1498)[0].port, 1498);
        assert!(log.since(1500).is_empty());
    }
}
