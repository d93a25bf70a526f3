//! What all handlers share.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use belljar::Engine;
use belljar::doctor::Examination;
use belljar_spec::Error;
use tokio::sync::{Semaphore, watch};

use crate::admission::Admission;
use crate::config::Config;
use crate::history::History;
use crate::kept::Sandboxes;
use crate::languages::Languages;
use crate::metrics::Metrics;
use crate::pools::Pools;
use crate::secret;
use crate::tenants::Tenants;

/// Archives at one time: each holds a thread.
const ARCHIVES: usize = 16;

pub type Shared = Arc<App>;

pub struct App {
    pub config: Config,
    pub engine: Engine,
    pub languages: Languages,
    pub history: History,
    pub admission: Admission,
    pub tenants: Tenants,
    pub sandboxes: Sandboxes,
    pub pools: Pools,
    pub metrics: Metrics,
    pub large_bodies: Arc<Semaphore>,
    pub archives: Arc<Semaphore>,
    /// What this host can enforce, as it was when the daemon started.
    pub examination: Examination,
    /// Turns true when everything that still goes on has to end.
    pub ending: watch::Sender<bool>,
    /// The keeper of the lock that says this directory is taken.
    _state: State,
}

/// The directory in which the daemon keeps what outlives it. One daemon at a time.
pub struct State {
    pub path: PathBuf,
    _lock: File,
}

impl State {
    /// Makes the directory if it is not there, readable by this user alone.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let failed = |error: io::Error| {
            Error::invalid_file(
                "state directory",
                &path.to_string_lossy(),
                error.to_string(),
            )
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(failed)?;
        let lock = File::create(path.join("lock")).map_err(failed)?;
        lock.try_lock().map_err(|error| match error {
            fs::TryLockError::WouldBlock => Error::invalid_file(
                "state directory",
                &path.to_string_lossy(),
                "another daemon uses it; stop that one, or name another directory in BELLJAR_STATE_DIR",
            ),
            fs::TryLockError::Error(error) => failed(error),
        })?;
        Ok(Self {
            path: path.to_owned(),
            _lock: lock,
        })
    }

    /// Where the unix socket is, if there is one.
    pub fn socket(&self, config: &Config) -> Option<PathBuf> {
        match config.unix.as_str() {
            "" => None,
            "auto" => Some(self.path.join("belljar.sock")),
            path => Some(path.into()),
        }
    }
}

impl App {
    /// The second part of the answer is the administrator's token.
    pub async fn open(
        config: Config,
        state: State,
        engine: Engine,
        mut examination: Examination,
    ) -> Result<(Shared, String), Error> {
        let token = secret::admin_token(&state.path)?;
        let metrics = Metrics::new();
        let history = History::open(&state.path.join("history.sqlite"), &config.history)?;
        examination.open_sandbox(&engine).await;
        let app = Self {
            languages: Languages::load(),
            history,
            admission: Admission::new(&config, &belljar::capacity(), metrics.clone()),
            tenants: Tenants::new(&token, &config.tenants),
            sandboxes: Sandboxes::new(&config, metrics.clone()),
            pools: Pools::default(),
            metrics,
            archives: Arc::new(Semaphore::new(ARCHIVES)),
            large_bodies: Arc::new(Semaphore::new(config.http.large_bodies)),
            examination,
            ending: watch::channel(false).0,
            _state: state,
            engine,
            config,
        };
        Ok((Arc::new(app), token))
    }

    /// Returns when everything has to end.
    pub async fn ended(&self) {
        let _ = self.ending.subscribe().wait_for(|ending| *ending).await;
    }
}
