//! Runs and commands that clients asked a kept sandbox for, from the moment they did.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar::Stop;
use belljar_spec::{Error, shown};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::kept::Kept;

const NAME_BYTES: usize = 128;

/// Whether a run can have this name at all.
pub fn check_name(name: &str) -> Result<(), Error> {
    if (1..=NAME_BYTES).contains(&name.len()) {
        return Ok(());
    }
    Err(Error::invalid_request("run", name, "give 1 to 128 bytes"))
}

/// By the names that clients gave them. What has no name can only be interrupted while it is going on.
#[derive(Default)]
pub struct Names(Mutex<HashMap<String, Stop>>);

impl Names {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Stop>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is going on or waits.
    pub fn has(&self, name: &str) -> bool {
        self.lock().contains_key(name)
    }

    /// Ends just this one: if it waits for its turn, it does not begin.
    pub fn stop(&self, name: &str) -> Result<(), Error> {
        match self.lock().get(name) {
            Some(stop) => stop.stop(),
            None => return Err(no_such_run(name)),
        }
        Ok(())
    }
}

pub fn no_such_run(name: &str) -> Error {
    Error::NotFound {
        what: "run",
        given: shown(name),
        nearest: None,
    }
}

pub fn name_taken() -> Error {
    Error::Conflict {
        reason: "a run of this name is going on; give each another".into(),
    }
}

/// How a run is asked for.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct Manner {
    /// A name that the client gives it, by which it can be interrupted: 1 to 128 bytes, another for each that is going on or waits.
    pub run: Option<String>,
    /// If true, a client that disconnects ends what it asked for, whether that goes on or waits for its turn, and nothing else.
    pub attended: bool,
}

/// Which run.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct Name {
    /// The name that a client gave it; whatever is going on if absent.
    pub run: Option<String>,
}

/// A run or a command that has been asked for. It has its name until this is dropped.
pub struct Asked {
    pub kept: Arc<Kept>,
    pub stop: Stop,
    name: Option<String>,
}

impl Asked {
    pub fn new(kept: Arc<Kept>, name: Option<String>) -> Result<Self, Error> {
        let stop = Stop::default();
        if let Some(name) = &name {
            check_name(name)?;
            let mut names = kept.names.lock();
            if names.contains_key(name) {
                return Err(name_taken());
            }
            names.insert(name.clone(), stop.clone());
        }
        Ok(Self { kept, stop, name })
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            self.kept.names.lock().remove(name);
        }
    }
}
