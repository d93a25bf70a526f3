//! The caps of one sandbox: connections at one time, bytes in all, bytes per second.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use belljar_spec::NetworkCaps;

pub struct Meter {
    caps: Mutex<NetworkCaps>,
    open: AtomicU64,
    used: AtomicU64,
    pace: Mutex<Pace>,
}

/// When the bytes that were let through so far will have been due.
struct Pace {
    due: Instant,
}

/// What may pass at once before the pace is kept.
const BURST: Duration = Duration::from_millis(50);

/// All bytes have been used.
#[derive(Debug, PartialEq, Eq)]
pub struct Spent;

/// A place among the connections that may be open.
pub struct Place(Arc<Meter>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Meter {
    pub fn new(caps: NetworkCaps) -> Self {
        Self {
            caps: Mutex::new(caps),
            open: AtomicU64::new(0),
            used: AtomicU64::new(0),
            pace: Mutex::new(Pace {
                due: Instant::now(),
            }),
        }
    }

    fn caps(&self) -> NetworkCaps {
        *self.caps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set(&self, caps: NetworkCaps) {
        *self.caps.lock().unwrap_or_else(PoisonError::into_inner) = caps;
    }

    pub fn place(self: &Arc<Self>) -> Option<Place> {
        let place = Place(Arc::clone(self));
        let before = self.open.fetch_add(1, Ordering::Relaxed);
        (before < self.caps().connections).then_some(place)
    }

    /// Counts bytes that are about to pass, and waits for their turn.
    pub async fn admit(&self, bytes: usize) -> Result<(), Spent> {
        let caps = self.caps();
        let bytes = bytes as u64;
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > caps.bytes {
            return Err(Spent);
        }
        let wait = self.pace(bytes, caps.bytes_per_second);
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        Ok(())
    }

    fn pace(&self, bytes: u64, per_second: u64) -> Duration {
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        #[expect(clippy::cast_precision_loss, reason = "a rate need not be exact")]
        let takes = Duration::from_secs_f64(bytes as f64 / per_second as f64);
        pace.due = pace.due.max(now.checked_sub(BURST).unwrap_or(now)) + takes;
        pace.due.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meter(connections: u64, bytes: u64, bytes_per_second: u64) -> Arc<Meter> {
        Arc::new(Meter::new(NetworkCaps {
            connections,
            bytes,
            bytes_per_second,
        }))
    }

    #[test]
    fn places_are_given_back() {
        let meter = meter(2, 1, 1);
        let (one, two) = (meter.place(), meter.place());
        assert!(one.is_some() && two.is_some() && meter.place().is_none());
        drop(one);
        assert!(meter.place().is_some());
    }

    #[tokio::test]
    async fn bytes_end_and_take_their_time() {
        let meter = meter(1, 100_000, 1_000_000);
        let began = Instant::now();
        assert_eq!(meter.admit(90_000).await, Ok(()));
        assert!(began.elapsed() >= Duration::from_millis(30));
        assert_eq!(meter.admit(20_000).await, Err(Spent));
    }
}
