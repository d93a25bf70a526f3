//! One at a time for each name, with nothing left of names that nobody waits for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Mutex as Turn;

#[derive(Default)]
pub struct Turns(Mutex<HashMap<String, Arc<Turn<()>>>>);

/// A place in the line for one name.
pub struct Place<'a> {
    turns: &'a Turns,
    name: String,
    /// `None` only while it is dropped.
    turn: Option<Arc<Turn<()>>>,
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Turn<()>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn of(&self, name: &str) -> Place<'_> {
        let turn = Arc::clone(self.lock().entry(name.to_owned()).or_default());
        Place {
            turns: self,
            name: name.to_owned(),
            turn: Some(turn),
        }
    }
}

impl Place<'_> {
    /// Waits until nobody else has it.
    pub async fn come(&self) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        match &self.turn {
            Some(turn) => Some(turn.lock().await),
            None => None,
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut turns = self.turns.lock();
        self.turn = None;
        // Only the map has it then: whoever comes does so under the same lock.
        let unused = |turn: &Arc<Turn<()>>| Arc::strong_count(turn) == 1;
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
        let held = first.come().await;
        assert!(futures_util::poll!(Box::pin(second.come())).is_pending());
        drop(other.come().await);
        drop(held);
        drop((first, other));
        assert_eq!(turns.lock().len(), 1);
        drop(second.come().await);
        drop(second);
        assert!(turns.lock().is_empty());
    }
}
