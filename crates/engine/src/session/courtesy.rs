//! A run in a kernel that keeps trying to start more processes than it may is put behind all others while it does. Of runs in
//! kernels the keeper does not know; of other commands it sees to that itself.

use std::time::Instant;

use belljar_jail::Insistence;

use crate::sandbox::Sandbox;

pub(super) struct Courtesy<'a> {
    sandbox: &'a Sandbox,
    insistence: Insistence,
}

impl<'a> Courtesy<'a> {
    pub fn new(sandbox: &'a Sandbox) -> Self {
        Self {
            sandbox,
            insistence: Insistence::new(Instant::now()),
        }
    }

    /// When to look again.
    pub fn next(&self) -> Instant {
        self.insistence.next()
    }

    pub fn look(&mut self, now: Instant) {
        match self.insistence.look(now, self.sandbox.meter()) {
            // Once more each time: code can go back to all cores.
            Some(true) => self.sandbox.put_behind(true),
            Some(false) if self.sandbox.is_behind() => self.sandbox.put_behind(false),
            _ => {}
        }
    }
}

impl Drop for Courtesy<'_> {
    /// What a run has left in the sandbox may go on as before, and then stays where it is until the next has been looked at.
    fn drop(&mut self) {
        let full = || self.sandbox.meter().is_some_and(|meter| meter.crowd().full);
        if self.sandbox.is_behind() && !full() {
            self.sandbox.put_behind(false);
        }
    }
}
