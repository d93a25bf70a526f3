//! Working side by side: a forked child starts on another core than its parent, which goes on at once.
//!
//! The scheduler often leaves a new child on its parent's core until that one sleeps. Both sides of our forks have work to
//! do right away, so the parent pushes the child over, and the child lifts the restriction from itself when it hears from it.

use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;

/// The cores this process may use. Read before the fork, for the child to go back to.
#[derive(Clone, Copy)]
pub struct Cores(Option<CpuSet>);

impl Cores {
    pub fn allowed() -> Self {
        Self(sched_getaffinity(Pid::this()).ok())
    }

    /// The one that this process runs on now.
    pub fn here() -> Option<usize> {
        sched_getcpu().ok()
    }

    /// Parent: moves the child to any other core. Only a matter of speed, so it may fail.
    pub fn push_away(self, child: i32) {
        let (Some(mut cores), Ok(here)) = (self.0, sched_getcpu()) else {
            return;
        };
        let others =
            (0..CpuSet::count()).any(|cpu| cpu != here && cores.is_set(cpu).unwrap_or(false));
        if others && cores.unset(here).is_ok() {
            let _ = sched_setaffinity(Pid::from_raw(child), &cores);
        }
    }

    /// Goes to another core and leaves this one to a child that has more to do. What the child says wakes us there, and not on
    /// the core that it still needs.
    pub fn step_aside(self) {
        self.push_away(0);
    }

    /// The last few of them, so many as a sandbox may fill, but never all. `None`: there are no others.
    pub fn last(self, cpus: f64) -> Option<Self> {
        let cores = self.0?;
        let own = |cpu: &usize| cores.is_set(*cpu).unwrap_or(false);
        let own: Vec<_> = (0..CpuSet::count()).filter(own).collect();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "limits are validated: 0 < cpus ≤ cores"
        )]
        let wanted = cpus.ceil() as usize;
        let count = wanted.min(own.len().checked_sub(1)?);
        let mut last = CpuSet::new();
        for cpu in &own[own.len() - count..] {
            last.set(*cpu).ok()?;
        }
        (count > 0).then_some(Self(Some(last)))
    }

    /// Has a thread use these and no others. It may have ended.
    pub fn confine(self, thread: i32) {
        if let Some(cores) = self.0 {
            let _ = sched_setaffinity(Pid::from_raw(thread), &cores);
        }
    }

    /// Child: back to all cores that the parent had. Only after a message that the parent sent after [`Cores::push_away`]; else
    /// the push could come last, and stay.
    pub fn restore(self) {
        if let Some(cores) = self.0 {
            let _ = sched_setaffinity(Pid::this(), &cores);
        }
    }
}
