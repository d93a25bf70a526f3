//! What all handlers share.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use belljar::Engine;
use belljar::doctor::Examination;
use belljar::image::{Bounds, Store, Supply};
use belljar_spec::{Backend, Error};
use tokio::sync::watch;

use crate::admission::Admission;
use crate::answering::Answering;
use crate::clock;
use crate::config::Config;
use crate::failure::CONTAINERS;
use crate::history::History;
use crate::installs::Installs;
use crate::kept::Sandboxes;
use crate::languages::{Found, Languages, Venue};
use crate::metrics::Metrics;
use crate::pools::Pools;
use crate::secret;
use crate::slots::Slots;
use crate::tenants::Tenants;

/// Archives at one time: each holds a thread.
const ARCHIVES: usize = 16;
/// Directories that are listed or removed at one time: each holds a thread, and the names of what is in it.
const LISTINGS: usize = 4;

pub type Shared = Arc<App>;

pub struct App {
    pub config: Config,
    pub engine: Engine,
    pub languages: Languages,
    pub history: History,
    pub admission: Admission,
    pub installs: Installs,
    pub tenants: Tenants,
    pub sandboxes: Sandboxes,
    pub pools: Pools,
    pub images: Supply,
    pub answering: Answering,
    pub metrics: Metrics,
    pub large_bodies: Slots,
    pub archives: Slots,
    pub listings: Slots,
    /// What this host can enforce, as it was when the daemon started.
    pub examination: Examination,
    /// When the last request came or went, in milliseconds since 1970, and how many have no answer yet.
    pub last_request_ms: AtomicU64,
    pub requests: AtomicUsize,
    /// Turns true when everything that still goes on has to end.
    pub ending: watch::Sender<bool>,
    /// The keeper of the lock that says this directory is taken.
    _state: State,
}

/// Who wrote its number into the file, if somebody has.
fn process_in(lock: &File) -> Option<u32> {
    let mut text = String::new();
    lock.take(10).read_to_string(&mut text).ok()?;
    text.parse().ok()
}

/// The directory in which the daemon keeps what outlives it. One daemon at a time.
pub struct State {
    pub path: PathBuf,
    lock: Arc<File>,
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
        // What is in it is whoever holds it.
        let mut lock = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path.join("lock"))
            .map_err(failed)?;
        lock.try_lock().map_err(|error| match error {
            fs::TryLockError::WouldBlock => {
                let process = process_in(&lock).map_or_else(String::new, |id| format!(" (process {id})"));
                Error::invalid_file(
                    "state directory",
                    &path.to_string_lossy(),
                    format!("another daemon uses it{process}; stop that one, or name another directory in BELLJAR_STATE_DIR"),
                )
            }
            fs::TryLockError::Error(error) => failed(error),
        })?;
        lock.set_len(0)
            .and_then(|()| write!(lock, "{}", std::process::id()))
            .map_err(failed)?;
        Ok(Self {
            path: path.to_owned(),
            lock: Arc::new(lock),
        })
    }

    /// As long as this is there no other daemon uses the directory, even after the application has ended.
    pub fn hold(&self) -> Arc<File> {
        Arc::clone(&self.lock)
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
        let limits = config.limits.check();
        let limits = limits.map_err(|reason| Error::invalid_file("config", "settings", &reason))?;
        belljar::set_maxima(limits.maxima);
        let token = secret::admin_token(&state.path)?;
        let metrics = Metrics::new();
        let shared = !config.tenants.is_empty();
        let history = History::open(&state.path.join("history.sqlite"), &config.history, shared)?;
        let images = Store::open(&state.path)?.with_bounds(Bounds {
            bytes: config.images.bytes,
            ..Bounds::default()
        });
        examination.look_at_images(&state.path);
        engine.set_docker(config.docker.settings());
        examination.open_sandbox(&engine).await;
        examination.ask_docker(&engine.docker_settings()).await;
        examination.add_way_around(|_| CONTAINERS.into());
        // It serves all the same: containers may do without.
        for check in examination.refusals() {
            let fix = check.fix.as_deref().unwrap_or_default();
            tracing::error!(missing = check.name, fix, "native runs will be refused");
        }
        let app = Self {
            languages: Languages::load()?,
            history,
            admission: Admission::new(&config, &belljar::capacity(), metrics.clone()),
            installs: Installs::new(&config),
            tenants: Tenants::new(&token, &config.tenants),
            sandboxes: Sandboxes::new(&config, metrics.clone()),
            pools: Pools::default(),
            images: Supply::new(images, config.images.policy()?),
            answering: Answering::default(),
            metrics,
            archives: Slots::new(ARCHIVES, shared),
            listings: Slots::new(LISTINGS, shared),
            large_bodies: Slots::new(config.http.large_bodies, shared),
            examination,
            last_request_ms: AtomicU64::new(clock::now_millis()),
            requests: AtomicUsize::new(0),
            ending: watch::channel(false).0,
            _state: state,
            engine,
            config,
        };
        Ok((Arc::new(app), token))
    }

    /// A language of the host, or of an image.
    pub async fn language(
        &self,
        language: Option<&str>,
        venue: &Venue<'_>,
    ) -> Result<Found, Error> {
        venue.check()?;
        match (venue.backend, venue.image) {
            (Some(Backend::Docker), _) | (_, None) => {
                self.languages.find_for(&self.engine, language, venue).await
            }
            (_, Some(given)) => {
                let image = Arc::new(self.images.get(given).await?);
                self.languages.find_in(&self.engine, &image, language).await
            }
        }
    }

    /// Returns when nobody has needed this daemon for as long as the settings say.
    pub async fn idle(&self) {
        let most = self.config.idle_exit;
        if most.is_zero() {
            return std::future::pending().await;
        }
        let most = u64::try_from(most.as_millis()).unwrap_or(u64::MAX);
        loop {
            tokio::time::sleep(Duration::from_millis(most.clamp(10, 1000))).await;
            let asked = self.requests.load(Ordering::Acquire) > 0;
            let since = self.last_request_ms.load(Ordering::Relaxed);
            let busy = asked || self.metrics.running.get() > 0 || !self.sandboxes.is_empty();
            if !busy && clock::now_millis().saturating_sub(since) >= most {
                return;
            }
        }
    }

    /// Returns when everything has to end.
    pub async fn ended(&self) {
        let _ = self.ending.subscribe().wait_for(|ending| *ending).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_second_is_told_who_was_first() {
        let place = tempfile::tempdir().unwrap();
        let first = State::open(place.path()).unwrap();
        let refused = State::open(place.path()).err().unwrap().to_string();
        let process = format!("another daemon uses it (process {});", std::process::id());
        assert!(refused.contains(&process), "{refused}");
        drop(first);
        State::open(place.path()).unwrap();
    }
}
