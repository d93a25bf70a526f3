//! A sandbox that insists on more than it may have comes behind all others while it does. A courtesy, not a protection: where the
//! kernel cannot, nothing is different.

use std::collections::BTreeSet;
use std::time::Instant;

use super::Sandbox;
use crate::core::Cores;
use crate::error::Result;
use crate::keeper::shared::Shared;

impl Sandbox {
    /// Looks at commands that it is time to look at; of runs in kernels the engine knows more.
    pub(super) fn mind_others(&mut self, now: Instant, shared: &Result<Shared>) {
        let commands = self.commands.values_mut();
        // Of several that have been looked at, one that insists is enough.
        let insists = commands.filter_map(|running| running.insists(now)).max();
        if let (Some(insists), Ok(shared)) = (insists, shared) {
            self.put_behind(insists, shared.cores);
        }
    }

    /// Others come first from now on, or no longer: the scheduler is told, and some cores are left to them alone. The first is not
    /// enough: where nobody wakes up, it gives even such a group its turn, and a core that is in the kernel for it is not free soon.
    pub fn put_behind(&mut self, behind: bool, cores: Cores) {
        if !behind {
            return self.take_back();
        }
        if let (Some(group), false) = (&self.group, self.closing) {
            self.behind = Some(cores);
            group.set_idle(true, &self.plan.limits);
            if let Some(last) = cores.last(self.plan.limits.cpus) {
                let threads = || group.threads().into_iter().collect::<BTreeSet<_>>();
                let before = threads();
                for thread in &before {
                    last.confine(*thread);
                }
                // Those that have been born meanwhile have the cores of their parents.
                let after = threads();
                for thread in &after {
                    last.confine(*thread);
                }
                // The number of one that has ended may be another's by now, who has nothing to do with this.
                for thread in before.difference(&after) {
                    cores.confine(*thread);
                }
            }
        }
    }

    pub(super) fn take_back(&mut self) {
        if let (Some(cores), Some(group)) = (self.behind.take(), &self.group) {
            group.set_idle(false, &self.plan.limits);
            for thread in group.threads() {
                cores.confine(thread);
            }
        }
    }
}
