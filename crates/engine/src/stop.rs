//! What ends one run, and no other.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use belljar_jail::{Outcome, Signal};
use belljar_spec::Error;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::sandbox::Process;

/// How long code that was interrupted has to yield: whoever wants it to stop wants to keep what it has, on a busy machine too.
pub(crate) const GRACE: Duration = Duration::from_secs(2);

/// Ends the run that it was given to, wherever that stands: one that waits for its turn does not begin, one that is going on is
/// interrupted. Clones are the same.
#[derive(Debug, Clone)]
pub struct Stop(watch::Sender<bool>);

impl Default for Stop {
    fn default() -> Self {
        Self(watch::channel(false).0)
    }
}

impl Stop {
    pub fn stop(&self) {
        self.0.send_replace(true);
    }

    pub fn is_stopped(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns when it has been called for, also if that was before.
    pub async fn stopped(&self) {
        let _ = self.0.subscribe().wait_for(|stopped| *stopped).await;
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
        process.signal(Signal::Interrupt)?;
        if let Ok(outcome) = timeout(GRACE, process.ended()).await {
            return outcome;
        }
        process.signal(Signal::Kill)?;
        process.ended().await
    }
}

/// The run that is going on in a session, for as long as the guard is there.
#[derive(Default)]
pub(crate) struct Current(Mutex<Option<Stop>>);

pub(crate) struct Going<'a>(&'a Current);

impl Current {
    pub fn set(&self, stop: &Stop) -> Going<'_> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(stop.clone());
        Going(self)
    }

    pub fn stop(&self) {
        if let Some(stop) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            stop.stop();
        }
    }
}

impl Drop for Going<'_> {
    fn drop(&mut self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
