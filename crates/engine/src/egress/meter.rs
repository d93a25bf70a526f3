//! The caps of one sandbox: connections at one time, bytes in all, bytes per second.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use belljar_spec::NetworkCaps;
use tokio::sync::Notify;
use tokio::time::timeout;

pub struct Meter {
    caps: Mutex<NetworkCaps>,
    open: AtomicU64,
    used: AtomicU64,
    pace: Mutex<Pace>,
    changed: Notify,
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

impl Spent {
    pub const REASON: &str = "the sandbox has used all the bytes it may";
}

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
            changed: Notify::new(),
        }
    }

    fn caps(&self) -> NetworkCaps {
        *self.caps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds at once, for those too that wait by what was before.
    pub fn set(&self, caps: NetworkCaps) {
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        *self.caps.lock().unwrap_or_else(PoisonError::into_inner) = caps;
        pace.due = Instant::now();
        self.changed.notify_waiters();
    }

    pub fn place(self: &Arc<Self>) -> Option<Place> {
        let place = Place(Arc::clone(self));
        let before = self.open.fetch_add(1, Ordering::Relaxed);
        (before < self.caps().connections).then_some(place)
    }

    /// How many connections there are.
    pub fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    /// How many bytes have passed.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Counts bytes that are about to pass, and waits for their turn.
    pub async fn admit(&self, bytes: usize) -> Result<(), Spent> {
        let caps = self.caps();
        let bytes = bytes as u64;
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > caps.bytes {
            return Err(Spent);
        }
        loop {
            let changed = self.changed.notified();
            let wait = self.pace(bytes);
            if wait.is_zero() || timeout(wait, changed).await.is_err() {
                return Ok(());
            }
        }
    }

    fn pace(&self, bytes: u64) -> Duration {
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        let per_second = self.caps().bytes_per_second;
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

    #[tokio::test]
    async fn whoever_waits_goes_on_at_the_new_pace() {
        let meter = meter(1, 1 << 40, 1);
        let waiting = Arc::clone(&meter);
        let waiting = tokio::spawn(async move { waiting.admit(1_000_000).await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        let caps = NetworkCaps {
            bytes_per_second: 1 << 40,
            ..meter.caps()
        };
        meter.set(caps);
        let hang = Duration::from_mins(1);
        assert_eq!(timeout(hang, waiting).await.unwrap().unwrap(), Ok(()));
        // Nothing is owed from before.
        assert_eq!(timeout(hang, meter.admit(1_000_000)).await, Ok(Ok(())));
    }
}
