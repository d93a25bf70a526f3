//! Every run that ended, in `SQLite`.
//!
//! One thread writes. What waits is committed together, and each writer hears of it after the commit: an answer that was
//! given is in the file, whatever happens to this process next. (Write-ahead log without a sync per commit: it survives the
//! end of the process at any moment; a power cut may take the last moments.)

mod query;
mod stats;
mod store;

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use belljar_spec::{Error, RunId, RunResult, SandboxId, Status};
use rusqlite::Connection;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use utoipa::ToSchema;

pub use query::{Page, Query};
pub use stats::Stats;
pub use store::status_name;

use crate::config;

/// Writers that wait for the thread; more wait for their place here.
const WAITING: usize = 256;

/// A run that ended, as it is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Record {
    pub id: RunId,
    pub tenant: String,
    pub sandbox: Option<SandboxId>,
    pub language: String,
    pub status: Status,
    /// RFC 3339.
    pub started_at: String,
    /// Milliseconds it waited for room.
    pub queue_ms: f64,
    /// SHA-256 of the request: the same for the same request.
    pub digest: String,
    pub labels: BTreeMap<String, String>,
    /// Absent where the daemon keeps no code.
    pub code: Option<String>,
    /// The request without code and contents of files.
    #[schema(value_type = Object)]
    pub request: serde_json::Value,
    /// Output may be shortened. Absent if nobody was there to take it: the client had gone.
    pub result: Option<RunResult>,
}

/// One line of the list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Summary {
    pub id: RunId,
    pub tenant: String,
    pub sandbox: Option<SandboxId>,
    pub language: String,
    pub status: Status,
    pub started_at: String,
    pub exit_code: Option<i32>,
    pub queue_ms: f64,
    pub start_ms: Option<f64>,
    pub wall_ms: Option<f64>,
    pub cpu_ms: Option<f64>,
    pub memory_peak_bytes: Option<u64>,
    /// The end of what the error says.
    pub error: Option<String>,
    pub digest: String,
    pub labels: BTreeMap<String, String>,
}

/// Whose runs are seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    All,
    Tenant(String),
}

enum Write {
    Add(Box<Record>, oneshot::Sender<Result<(), String>>),
    Trim { older_than_ms: u64, keep: u64 },
}

#[derive(Clone)]
pub struct History {
    writer: mpsc::Sender<Write>,
    reader: Arc<Mutex<Connection>>,
    works: Arc<AtomicBool>,
    output_bytes: usize,
}

impl History {
    pub fn open(path: &Path, settings: &config::History) -> Result<Self, Error> {
        let failed = |error: rusqlite::Error| {
            Error::invalid_file("history", &path.to_string_lossy(), error.to_string())
        };
        // Made here, so that nobody else can read it; what SQLite puts beside it takes after it.
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(|error| {
                Error::invalid_file("history", &path.to_string_lossy(), error.to_string())
            })?;
        let mut connection = store::open(path).map_err(failed)?;
        let reader = store::open(path).map_err(failed)?;
        let works = Arc::new(AtomicBool::new(true));
        let (writer, mut waiting) = mpsc::channel(WAITING);
        let state = Arc::clone(&works);
        std::thread::Builder::new()
            .name("history".into())
            .spawn(move || {
                while let Some(first) = waiting.blocking_recv() {
                    let mut batch = vec![first];
                    while batch.len() < WAITING
                        && let Ok(next) = waiting.try_recv()
                    {
                        batch.push(next);
                    }
                    let done = write(&mut connection, batch);
                    state.store(done, Ordering::Relaxed);
                }
            })
            .map_err(|error| Error::internal("history", error))?;
        Ok(Self {
            writer,
            reader: Arc::new(Mutex::new(reader)),
            works,
            output_bytes: usize::try_from(settings.output_bytes).unwrap_or(usize::MAX),
        })
    }

    /// Returns when the run is in the file.
    pub async fn add(&self, mut record: Record) -> Result<(), Error> {
        if let Some(result) = &mut record.result {
            shorten(result, self.output_bytes);
        }
        let failed = |reason: &str| Error::internal("history", reason);
        let (sender, done) = oneshot::channel();
        self.writer
            .send(Write::Add(Box::new(record), sender))
            .await
            .map_err(|_| failed("its thread has ended"))?;
        match done.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(reason)) => Err(failed(&reason)),
            Err(_) => Err(failed("its thread has ended")),
        }
    }

    /// Forgets what is older, and the oldest of what is too many. Does not wait for it.
    pub fn trim(&self, older_than_ms: u64, keep: u64) {
        let _ = self.writer.try_send(Write::Trim {
            older_than_ms,
            keep,
        });
    }

    /// Whether the last thing written was.
    pub fn works(&self) -> bool {
        self.works.load(Ordering::Relaxed)
    }

    pub async fn get(&self, scope: Scope, id: RunId) -> Result<Option<Record>, Error> {
        self.read(move |connection| store::get(connection, &scope, id))
            .await
    }

    pub async fn list(&self, scope: Scope, query: Query) -> Result<Page, Error> {
        self.read(move |connection| query::list(connection, &scope, &query))
            .await
    }

    pub async fn stats(&self, scope: Scope, query: Query) -> Result<Stats, Error> {
        self.read(move |connection| stats::stats(connection, &scope, &query))
            .await
    }

    async fn read<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let reader = Arc::clone(&self.reader);
        let asked = move || question(&reader.lock().unwrap_or_else(PoisonError::into_inner));
        match tokio::task::spawn_blocking(asked).await {
            Ok(answer) => answer.map_err(|error| Error::internal("history", error)),
            Err(error) => Err(Error::internal("history", error)),
        }
    }
}

/// One transaction; `false` if it failed.
fn write(connection: &mut Connection, batch: Vec<Write>) -> bool {
    let mut told = Vec::new();
    let done = connection.transaction().and_then(|transaction| {
        for write in batch {
            match write {
                Write::Add(record, sender) => {
                    told.push(sender);
                    store::insert(&transaction, &record)?;
                }
                Write::Trim {
                    older_than_ms,
                    keep,
                } => store::trim(&transaction, older_than_ms, keep)?,
            }
        }
        transaction.commit()
    });
    if let Err(error) = &done {
        tracing::error!(%error, "history cannot be written");
    }
    for sender in told {
        let _ = sender.send(done.as_ref().copied().map_err(ToString::to_string));
    }
    done.is_ok()
}

/// What is kept of a result is bounded, whatever the limits of the run were.
fn shorten(result: &mut RunResult, most: usize) {
    for (text, base64, truncated) in [
        (
            &mut result.stdout,
            &mut result.stdout_base64,
            &mut result.stdout_truncated,
        ),
        (
            &mut result.stderr,
            &mut result.stderr_base64,
            &mut result.stderr_truncated,
        ),
    ] {
        let long = text.len() > most;
        if long {
            text.truncate(text.floor_char_boundary(most));
            *truncated = true;
        }
        if base64
            .as_ref()
            .is_some_and(|bytes| long || bytes.len() > most * 2)
        {
            *base64 = None;
        }
    }
    for file in &mut result.files {
        file.content = None;
    }
    if let Some(compile) = &mut result.compile {
        for text in [&mut compile.stdout, &mut compile.stderr] {
            text.truncate(text.floor_char_boundary(most));
        }
        (compile.stdout_base64, compile.stderr_base64) = (None, None);
    }
    let mut left = most;
    result.displays.retain(|display| {
        let fits = display.data.len() <= left;
        left -= if fits { display.data.len() } else { 0 };
        fits
    });
    let value_bytes = result
        .value
        .as_ref()
        .map_or(0, |value| value.to_string().len());
    if value_bytes > left {
        result.value = None;
    }
    if let Some(text) = &mut result.value_text {
        text.truncate(text.floor_char_boundary(most));
    }
    result.files.truncate(1000);
}
