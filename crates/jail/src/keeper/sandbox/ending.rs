//! How a sandbox ends, whoever wants it to, and what is left then.

use std::os::fd::AsFd;

use belljar_spec::Weakening;

use super::{Phase, Sandbox};
use crate::error::{Error, Result};
use crate::keeper::command::Running;
use crate::keeper::shared::Shared;
use crate::keeper::watch::Watch;
use crate::sys;

impl Sandbox {
    /// There is no sandbox. Its end is awaited.
    pub(super) fn fail(&mut self, error: Error) {
        self.settled = true;
        self.phase = Phase::Dying;
        self.refuse(None, error);
        self.kill();
    }

    /// Removes the parts in which nothing is left. The kernel lets a sandbox have only so many.
    pub(super) fn sweep_parts(&mut self) {
        self.left.retain(|part| !part.try_remove());
    }

    /// Kills init, and with it the whole process namespace; the cgroup too, should that ever not be all.
    pub fn kill(&mut self) {
        self.take_back();
        if self.is_at_rest() {
            let _ = sys::signal_process(self.pidfd.as_fd(), libc::SIGKILL);
            return;
        }
        let stages = self.commands.values().filter_map(Running::groups);
        for group in stages.chain(&self.group) {
            group.unthrottle();
            group.kill();
        }
        let _ = sys::signal_process(self.pidfd.as_fd(), libc::SIGKILL);
    }

    /// Whether init is all that is left in it, and needs nobody's leave to die: it ended everything with the last command, and its share
    /// is enough for one that has used it up to be gone within a tenth of a second.
    fn is_at_rest(&self) -> bool {
        matches!(self.phase, Phase::Ready)
            && self.plan.limits.cpus >= 0.5
            && self.plan.keeps(Weakening::Pidns)
            && self.commands.is_empty()
            && self.ordered.is_none()
            && !self.beside
    }

    /// `told`: somebody waits for the ends of what goes on in it.
    pub fn close(&mut self, told: bool) {
        self.closing = true;
        self.silent = !told;
        if !matches!(self.phase, Phase::Gone) {
            self.kill();
        }
    }

    /// Leaves no trace. Only for a sandbox that is gone.
    pub fn remove(mut self, shared: &mut Result<Shared>, watch: &Watch) {
        watch.remove(&self.pidfd);
        watch.remove(self.control.as_fd());
        let mut all_removed = true;
        for running in std::mem::take(&mut self.commands).into_values() {
            match running.remove() {
                Ok(part) => self.left.extend(part),
                Err(_) => all_removed = false,
            }
        }
        self.sweep_parts();
        let Ok(shared) = shared else { return };
        if !all_removed {
            shared.lease.leave_to_the_next();
        }
        if self.silent {
            shared.give_on(self.group, self.owner, self.reusable);
        } else {
            shared.give_back(self.group, self.owner, self.reusable);
        }
    }
}
