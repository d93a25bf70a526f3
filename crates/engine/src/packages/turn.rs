//! One at a time for each name, with nothing left of names that nobody waits for. Who waits while it fails for another has failed too.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use belljar_spec::Error;
use tokio::sync::Mutex as Turn;
use tokio::sync::MutexGuard as TurnGuard;

/// When it failed last, and how.
type Failed = Option<(Instant, Error)>;

#[derive(Default)]
pub struct Turns(Mutex<HashMap<String, Arc<Turn<Failed>>>>);

/// A place in the line for one name.
pub struct Place<'a> {
    turns: &'a Turns,
    name: String,
    came: Instant,
    /// `None` only while it is dropped.
    turn: Option<Arc<Turn<Failed>>>,
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Turn<Failed>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn of(&self, name: &str) -> Place<'_> {
        let turn = Arc::clone(self.lock().entry(name.to_owned()).or_default());
        Place {
            turns: self,
            name: name.to_owned(),
            came: Instant::now(),
            turn: Some(turn),
        }
    }
}

impl Place<'_> {
    /// Waits until nobody else has it. An error: it has failed since this place was taken.
    pub async fn come(&self) -> Result<Held<'_>, Error> {
        let Some(turn) = &self.turn else {
            return Ok(Held(None));
        };
        let held = turn.lock().await;
        match &*held {
            Some((at, error)) if *at > self.came => Err(error.clone()),
            _ => Ok(Held(Some(held))),
        }
    }
}

/// The turn itself.
pub struct Held<'a>(Option<TurnGuard<'a, Failed>>);

impl Held<'_> {
    /// For those who wait. What is not about the packages may be otherwise for the next one.
    pub fn failed(&mut self, error: &Error) {
        if let (Some(held), Error::PackagesFailed { .. }) = (&mut self.0, error) {
            **held = Some((Instant::now(), error.clone()));
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut turns = self.turns.lock();
        self.turn = None;
        // Only the map has it then: whoever comes does so under the same lock.
        let unused = |turn: &Arc<Turn<Failed>>| Arc::strong_count(turn) == 1;
        if turns.get(&self.name).is_some_and(unused) {
            turns.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nothing_is_left_of_those_who_have_gone() {
        let turns = Turns::default();
        let (first, second, other) = (turns.of("a"), turns.of("a"), turns.of("b"));
        let held = first.come().await.unwrap();
        assert!(futures_util::poll!(Box::pin(second.come())).is_pending());
        drop(other.come().await.unwrap());
        drop(held);
        drop((first, other));
        assert_eq!(turns.lock().len(), 1);
        drop(second.come().await.unwrap());
        drop(second);
        assert!(turns.lock().is_empty());
    }

    #[tokio::test]
    async fn those_who_waited_get_the_same_error_and_those_who_come_try_again() {
        let turns = Turns::default();
        let (first, second) = (turns.of("a"), turns.of("a"));
        let mut held = first.come().await.unwrap();
        let error = Error::PackagesFailed {
            reason: "pip says no".into(),
        };
        held.failed(&error);
        drop(held);
        let third = turns.of("a");
        assert_eq!(second.come().await.err(), Some(error));
        assert!(third.come().await.is_ok());
        let mut held = third.come().await.unwrap();
        let fourth = turns.of("a");
        held.failed(&Error::internal("packages", "gone"));
        drop(held);
        assert!(fourth.come().await.is_ok());
    }
}
