//! The warm interpreter behind a pool, and the scout that finds out how the next ones are best laid out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_jail::{Event, Layout, Plan, Request, ZygoteId};
use belljar_spec::Error;
use tokio::sync::mpsc;

use crate::engine::{Engine, Message, keeper_gone};

/// Where the interpreter's own life is decided.
pub(super) const WARM_UP_TIME: Duration = Duration::from_mins(1);
/// After one that would not come up.
pub(super) const RETRY: Duration = Duration::from_secs(30);
/// It may be for want of something that is there again later. After as many it is given up.
const MOST_FAILURES: u32 = 3;

/// An interpreter that was asked for. Whoever lets go of this ends it, warm or not; its copies live on.
pub(super) struct Asked {
    engine: Engine,
    pub id: ZygoteId,
    _counted: Arc<()>,
}

impl Asked {
    /// One that is about to be asked for.
    pub fn new(engine: &Engine, counted: &Arc<()>) -> Result<(Self, Events), Error> {
        let (id, events) = engine.register()?;
        let asked = Self {
            engine: engine.clone(),
            id,
            _counted: Arc::clone(counted),
        };
        Ok((asked, events))
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        // One that has ended too: its keeper may not know that yet.
        let _ = self.engine.ask(&Request::Cool { zygote: self.id }, &[]);
        self.engine.forget((self.id, None));
    }
}

/// What the keeper says of an interpreter.
pub(super) type Events = mpsc::UnboundedReceiver<Message>;

/// The warm interpreter that copies are made of.
pub(super) struct Warm {
    pub asked: Asked,
    /// Says when it has ended.
    pub events: Events,
    /// Of what it sees, which its copies see too: the host need not be looked at for each.
    pub plan: Plan,
    pub forks: u64,
    pub since: Instant,
    /// Whether it is laid out as a scout has found.
    pub laid: bool,
}

impl Warm {
    /// Returns when it is warm.
    pub async fn come_up(mut self) -> Result<Self, Cold> {
        match tokio::time::timeout(WARM_UP_TIME, self.events.recv()).await {
            Ok(Some((Event::Warmed { .. }, _))) => Ok(self),
            Ok(Some((Event::Cooled { error, .. }, _))) => {
                Err(Cold::Failed(Error::internal("warm interpreter", error)))
            }
            Ok(_) => Err(Cold::Failed(keeper_gone())),
            Err(_) => Err(Cold::Silent),
        }
    }
}

/// Why there is no warm interpreter.
pub(super) enum Cold {
    Failed(Error),
    /// It took too long.
    Silent,
}

/// What is known of how an interpreter is best laid out.
#[derive(Default)]
pub(super) struct Scouting {
    pub found: Found,
    /// How many scouts have found nothing, or interpreters have not come up as one has found, one after the other.
    failures: u32,
    /// When another one is sent at the earliest.
    not_before: Option<Instant>,
}

#[derive(Default)]
pub(super) enum Found {
    #[default]
    Nothing,
    /// A scout looks.
    Begun {
        _scout: Asked,
    },
    Layout(Layout),
    /// Another attempt would not come to more.
    InVain,
}

impl Scouting {
    /// Nobody need be sent where it is known already.
    pub fn knowing(layout: Option<Layout>) -> Self {
        Self {
            found: layout.map_or(Found::Nothing, Found::Layout),
            ..Self::default()
        }
    }

    /// Whether that was the last attempt.
    pub fn fail(&mut self) -> bool {
        self.failures += 1;
        self.not_before = Some(Instant::now() + RETRY);
        if self.failures >= MOST_FAILURES {
            self.found = Found::InVain;
        } else if let Found::Begun { .. } = self.found {
            self.found = Found::Nothing;
        }
        self.failures >= MOST_FAILURES
    }

    /// One has come up as a scout has found.
    pub fn succeed(&mut self) {
        self.failures = 0;
    }

    /// Whether a scout may be sent now.
    pub fn is_due(&self) -> bool {
        matches!(self.found, Found::Nothing)
            && self.not_before.is_none_or(|at| at <= Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_once_is_tried_again() {
        let mut scouting = Scouting::default();
        assert!(scouting.is_due());
        assert!(!scouting.fail());
        // Not at once.
        assert!(!scouting.is_due());
        scouting.not_before = Some(Instant::now());
        assert!(scouting.is_due());
        scouting.found = Found::Layout(vec![1]);
        assert!(!scouting.fail());
        assert!(matches!(scouting.found, Found::Layout(_)));
        assert!(scouting.fail());
        assert!(matches!(scouting.found, Found::InVain));
    }
}
