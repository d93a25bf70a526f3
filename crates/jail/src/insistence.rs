//! Whether a run goes on and on trying to start more processes than it may, as fork bombs do.
//!
//! Then it has all that it may have, and its time is the kernel's, which refuses: time in which a core serves nobody else. How
//! often a limit was reached is not counted wherever it can be. Looked at for the first time when short runs are over, and ever
//! more seldom after that.

use std::time::{Duration, Instant};

use crate::cgroup::{Crowd, Meter};

const FIRST: Duration = Duration::from_millis(60);
const SPAN: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_mins(1);

pub struct Insistence {
    next: Instant,
    span: Duration,
    /// When it was last looked, and what was seen.
    before: Option<(Instant, Crowd)>,
    /// What was found then. One that has been put behind others may get little time.
    insists: bool,
}

impl Insistence {
    /// Of a run that begins now.
    pub fn new(now: Instant) -> Self {
        Self {
            next: now + FIRST,
            span: SPAN,
            before: None,
            insists: false,
        }
    }

    /// When to look again.
    pub fn next(&self) -> Instant {
        self.next
    }

    /// Whether it insists; `None`: that is not known yet, or it is not time to look.
    pub fn look(&mut self, now: Instant, meter: Option<&Meter>) -> Option<bool> {
        if now < self.next {
            return None;
        }
        self.judge(now, meter.map(Meter::crowd).unwrap_or_default())
    }

    fn judge(&mut self, now: Instant, crowd: Crowd) -> Option<bool> {
        let before = self.before.replace((now, crowd));
        self.next = now + self.span;
        self.span = (self.span * 2).min(LONGEST);
        let (then, before) = before?;
        let micros = now.duration_since(then).as_micros();
        let cpu = crowd.cpu_micros.saturating_sub(before.cpu_micros);
        let system = crowd.system_micros.saturating_sub(before.system_micros);
        // A quarter of a core at least, and most of it in the kernel.
        let busy = u128::from(cpu) * 4 > micros || self.insists;
        self.insists = crowd.full && busy && system * 2 >= cpu;
        Some(self.insists)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crowd(full: bool, cpu_micros: u64, system_micros: u64) -> Crowd {
        Crowd {
            full,
            cpu_micros,
            system_micros,
        }
    }

    #[test]
    fn who_has_all_and_keeps_the_kernel_busy_insists() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut insistence = Insistence::new(start);
        assert_eq!(insistence.next(), at(60));
        assert_eq!(insistence.look(at(59), None), None);
        assert_eq!(insistence.judge(at(60), crowd(true, 50_000, 40_000)), None);
        assert_eq!(insistence.next(), at(80));
        let bomb = crowd(true, 70_000, 55_000);
        assert_eq!(insistence.judge(at(80), bomb), Some(true));
        assert_eq!(insistence.next(), at(120));
        let starved = crowd(true, 70_500, 55_400);
        assert_eq!(insistence.judge(at(120), starved), Some(true));
        let computes = crowd(true, 110_000, 56_000);
        assert_eq!(insistence.judge(at(160), computes), Some(false));
        let waits = crowd(true, 112_000, 58_000);
        assert_eq!(insistence.judge(at(200), waits), Some(false));
        let alone = crowd(false, 272_000, 218_000);
        assert_eq!(insistence.judge(at(360), alone), Some(false));
    }
}
