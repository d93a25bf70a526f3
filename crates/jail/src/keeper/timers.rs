//! When something is due, for each sandbox that waits for it. Looking at all of them in every turn would take longer the more
//! there are.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use crate::protocol::Handle;

#[derive(Default)]
pub(super) struct Timers {
    order: BTreeSet<(Instant, Handle)>,
    of: BTreeMap<Handle, Instant>,
}

impl Timers {
    pub fn set(&mut self, handle: Handle, due: Option<Instant>) {
        let before = match due {
            Some(due) => self.of.insert(handle, due),
            None => self.of.remove(&handle),
        };
        if before == due {
            return;
        }
        if let Some(before) = before {
            self.order.remove(&(before, handle));
        }
        self.order.extend(due.map(|due| (due, handle)));
    }

    pub fn next(&self) -> Option<Instant> {
        self.order.first().map(|(due, _)| *due)
    }

    /// Whatever is due by now.
    pub fn due(&self, now: Instant) -> impl Iterator<Item = Handle> {
        let passed = self.order.iter().take_while(move |(due, _)| *due <= now);
        passed.map(|(_, handle)| *handle)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_nearest_comes_first_and_each_has_one() {
        let mut timers = Timers::default();
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        timers.set(1, Some(at(30)));
        timers.set(2, Some(at(20)));
        timers.set(1, Some(at(10)));
        assert_eq!(timers.next(), Some(at(10)));
        assert_eq!(timers.due(at(9)).count(), 0);
        assert_eq!(timers.due(at(25)).collect::<Vec<_>>(), [1, 2]);
        timers.set(1, None);
        assert_eq!(timers.due(at(99)).collect::<Vec<_>>(), [2]);
        timers.set(2, None);
        assert_eq!(timers.next(), None);
    }
}
