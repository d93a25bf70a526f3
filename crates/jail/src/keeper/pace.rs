//! When the next sandbox's beginning is made.

use std::time::{Duration, Instant};

/// A short run is over by then.
const CALM: Duration = Duration::from_millis(2);
/// As long after a request found no embryo, it is taken that the next one comes soon.
const PRESSED: Duration = Duration::from_millis(200);
/// After an embryo could not be made.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Pace {
    /// When it is made, if one is wanted now,
    next: Option<Instant>,
    /// and when a request found none.
    missed: Option<Instant>,
    /// Since the last one failed. Requests that come meanwhile do not change that.
    not_before: Option<Instant>,
}

impl Pace {
    pub fn miss(&mut self, now: Instant) {
        self.missed = Some(now);
    }

    /// One is wanted, and nobody waits for anything that we do: when it is to be made. Not at once, for what has just begun in the last
    /// sandbox may be short, and somebody waits for that. Unless requests come so fast that one found none.
    pub fn want(&mut self, now: Instant) -> Instant {
        let missed = self.missed.is_some_and(|at| now - at < PRESSED);
        let soon = now + if missed { Duration::ZERO } else { CALM };
        let at = self.not_before.map_or(soon, |at| at.max(soon));
        *self.next.get_or_insert(at)
    }

    /// None is wanted now.
    pub fn leave_off(&mut self) {
        self.next = None;
    }

    /// It was tried.
    pub fn tried(&mut self, made: bool, now: Instant) {
        self.not_before = (!made).then_some(now + RETRY);
        self.next = self.not_before;
    }

    /// When it is to be looked again whether one is to be made.
    pub fn deadline(&self) -> Option<Instant> {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_comes_first() {
        let now = Instant::now();
        let mut pace = Pace::default();
        assert_eq!(pace.want(now), now + CALM);
        assert_eq!(pace.want(now + CALM), now + CALM);
        pace.leave_off();
        assert_eq!(pace.deadline(), None);
        pace.miss(now + CALM);
        assert_eq!(pace.want(now + CALM), now + CALM);
    }

    #[test]
    fn requests_do_not_hasten_what_failed() {
        let now = Instant::now();
        let mut pace = Pace::default();
        pace.tried(false, now);
        assert_eq!(pace.deadline(), Some(now + RETRY));
        let later = now + CALM;
        pace.miss(later);
        pace.leave_off();
        assert_eq!(pace.want(later), now + RETRY);
        pace.tried(true, now + RETRY);
        assert_eq!(pace.deadline(), None);
        assert_eq!(pace.want(now + RETRY), now + RETRY + CALM);
    }
}
