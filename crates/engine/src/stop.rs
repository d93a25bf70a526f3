//! What ends one run, and no other.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use belljar_jail::{Outcome, Signal};
use belljar_spec::{Error, RunResult, Status};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::process::Process;

/// How long code that was interrupted has to yield: whoever wants it to stop wants to keep what it has, on a busy machine too.
pub(crate) const GRACE: Duration = Duration::from_secs(2);

/// Ends the run that it was given to, wherever that stands: one that waits for its turn does not begin, one that is going on is
/// interrupted. Clones are the same.
#[derive(Debug, Clone)]
pub struct Stop(watch::Sender<Wish>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Wish {
    GoOn,
    Stop,
    Kill,
}

impl Default for Stop {
    fn default() -> Self {
        Self(watch::channel(Wish::GoOn).0)
    }
}

impl Stop {
    pub fn stop(&self) {
        self.wish(Wish::Stop);
    }

    /// A program gets no time to leave by itself: nobody waits for what it would still say.
    pub fn kill(&self) {
        self.wish(Wish::Kill);
    }

    fn wish(&self, wish: Wish) {
        self.0.send_modify(|current| *current = wish.max(*current));
    }

    pub fn is_stopped(&self) -> bool {
        *self.0.borrow() != Wish::GoOn
    }

    pub(crate) fn is_killed(&self) -> bool {
        *self.0.borrow() == Wish::Kill
    }

    /// A program that was stopped did not fail by itself.
    pub(crate) fn tell(&self, result: &mut RunResult) {
        if self.is_stopped() && matches!(result.status, Status::Failed | Status::CompileFailed) {
            result.status = Status::Killed;
        }
    }

    /// Returns when it has been called for, also if that was before.
    pub async fn stopped(&self) {
        self.wished(Wish::Stop).await;
    }

    async fn wished(&self, least: Wish) {
        let _ = self.0.subscribe().wait_for(|wish| *wish >= least).await;
    }

    /// What becomes of a run that was stopped before it began.
    pub fn before_it_began() -> Error {
        Error::Conflict {
            reason: "the run was stopped before it began".into(),
        }
    }

    /// Waits for a program's end, and brings it about if it is stopped, gently first.
    pub(crate) async fn end_of(&self, process: &mut Process) -> Result<Outcome, Error> {
        tokio::select! {
            outcome = process.ended() => return outcome,
            () = self.stopped() => {}
        }
        if !self.is_killed() {
            process.signal(Signal::Interrupt)?;
            tokio::select! {
                outcome = process.ended() => return outcome,
                () = sleep(GRACE) => {}
                () = self.wished(Wish::Kill) => {}
            }
        }
        process.signal(Signal::Kill)?;
        process.ended().await
    }
}

/// The run and the commands that are going on in a session, each for as long as its guard is there.
#[derive(Default)]
pub(crate) struct Current(Mutex<Vec<Stop>>);

pub(crate) struct Going<'a> {
    current: &'a Current,
    stop: Stop,
}

impl Current {
    fn lock(&self) -> MutexGuard<'_, Vec<Stop>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn enter(&self, stop: &Stop) -> Going<'_> {
        self.lock().push(stop.clone());
        Going {
            current: self,
            stop: stop.clone(),
        }
    }

    pub fn stop(&self) {
        for stop in &*self.lock() {
            stop.stop();
        }
    }
}

impl Drop for Going<'_> {
    fn drop(&mut self) {
        let mut all = self.current.lock();
        let own = all.iter().position(|one| one.0.same_channel(&self.stop.0));
        if let Some(own) = own {
            all.swap_remove(own);
        }
    }
}
