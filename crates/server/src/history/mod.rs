//! Every run that ended, in `SQLite`.
//!
//! A run is in the journal before it is answered, and soon after in the tables: one task writes there, and what waits for it is
//! committed together. An answer that was given is in one file or the other, whatever happens to this process next. (Neither is
//! synced: that survives the end of the process at any moment; a power cut may take the last moments.)

mod journal;
mod query;
mod stats;
mod store;

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use belljar_spec::{Error, FileInfo, RunId, RunResult, SandboxId, Status};
use rusqlite::Connection;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::timeout;
use utoipa::ToSchema;

pub use query::{Page, Query};
pub use stats::Stats;
pub use store::status_name;

use crate::answer::json_length;
use crate::config;
use crate::slots::Slots;
use crate::tenants::Tenant;
use journal::Journal;

/// Runs that wait to be written; more wait for their place here.
const WAITING: usize = 256;
/// So long the first of them waits for others. To wake a thread takes as long as a part of a short run: not before its answer has left.
const GATHER: Duration = Duration::from_millis(5);
/// After a commit that failed, until the next attempt.
const PAUSE: Duration = Duration::from_secs(1);
/// Longer than a commit takes on any disk that works.
const PATIENCE: Duration = Duration::from_secs(10);
/// Questions at one time. Each takes a thread, of which others need some too, and as long as there are runs to look at.
const READERS: usize = 2;
/// How long a commit waits for others who use the file. What fails by that is tried again.
const LOCKED: Duration = Duration::from_secs(2);

/// Of the code, and of any other field of a request: whoever sends more has it, and the disk is everybody's.
const CODE_BYTES: usize = 1 << 20;
const FIELD_BYTES: usize = 64 << 10;
/// Names of what a run wrote; no more than a field may have of them.
const FILES: usize = 1000;

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
    /// Absent where the daemon keeps no code. At most a mebibyte of it.
    pub code: Option<String>,
    /// The request without code and contents of files. Fields of more than 64 KiB are not kept, but named in `omitted`.
    #[schema(value_type = Object)]
    pub request: Value,
    /// Absent where nothing is known of its end: it was ended from outside before it began, or nothing was heard of it in time.
    pub result: Option<RunResult>,
    /// Whether the run printed, showed or wrote more than is kept of it here (`history.output_bytes` of the settings).
    #[serde(default)]
    pub shortened: bool,
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
    /// What the error says: its type and message, or the last line that was printed, then more of it.
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
    Add(Box<Record>),
    Trim { older_than_ms: u64, keep: u64 },
}

/// How far the task is.
#[derive(Clone, Copy)]
struct Progress {
    /// How many runs it has written.
    written: u64,
    /// Whether the last thing to be written was.
    works: bool,
}

#[derive(Clone)]
pub struct History {
    writer: mpsc::Sender<Write>,
    journal: Arc<Mutex<Journal>>,
    reader: Arc<Mutex<Connection>>,
    readers: Arc<Slots>,
    progress: watch::Receiver<Progress>,
    /// Somebody wants to read what waits to be written.
    hurry: Arc<Notify>,
    output_bytes: usize,
}

impl History {
    /// `path`: of the tables; the journal is beside it. `shared`: by several tenants. On a runtime, which goes on writing.
    pub fn open(path: &Path, settings: &config::History, shared: bool) -> Result<Self, Error> {
        let unusable = |error: &dyn std::fmt::Display| {
            Error::invalid_file("history", &path.to_string_lossy(), error.to_string())
        };
        // Made here, so that nobody else can read it; what SQLite puts beside it takes after it.
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(|error| unusable(&error))?;
        let mut connection = store::open(path).map_err(|error| unusable(&error))?;
        let reader = store::open(path).map_err(|error| unusable(&error))?;
        let journal = Journal::open(&path.with_extension("journal"));
        let (mut journal, left) = journal.map_err(|error| unusable(&error))?;
        let left = left.into_iter().map(|record| Write::Add(Box::new(record)));
        write(&mut connection, &left.collect::<Vec<_>>()).map_err(|error| unusable(&error))?;
        journal.clear().map_err(|error| unusable(&error))?;
        let _ = connection.busy_timeout(LOCKED);
        let (teller, progress) = watch::channel(Progress {
            written: 0,
            works: true,
        });
        let (writer, waiting) = mpsc::channel(WAITING);
        let history = Self {
            writer,
            journal: Arc::new(Mutex::new(journal)),
            reader: Arc::new(Mutex::new(reader)),
            readers: Arc::new(Slots::new(READERS, shared)),
            progress,
            hurry: Arc::default(),
            output_bytes: usize::try_from(settings.output_bytes).unwrap_or(usize::MAX),
        };
        let writer = Writer {
            waiting,
            journal: Arc::clone(&history.journal),
            teller,
            hurry: Arc::clone(&history.hurry),
        };
        tokio::spawn(writer.keep_writing(connection));
        Ok(history)
    }

    /// When it returns, the run will not be lost.
    pub async fn add(&self, mut record: Record) -> Result<(), Error> {
        if let Some(code) = &mut record.code {
            code.truncate(code.floor_char_boundary(CODE_BYTES));
        }
        omit_large(&mut record.request);
        if let Some(result) = &mut record.result {
            record.shortened |= shorten(result, self.output_bytes);
        }
        let place = timeout(PATIENCE, async {
            tokio::select! {
                biased;
                place = self.writer.reserve() => place.ok(),
                () = self.until(|progress| !progress.works) => None,
            }
        });
        let place = place.await.ok().flatten().ok_or_else(unwritable)?;
        let mut journal = lock(&self.journal);
        journal.add(&record).map_err(|error| {
            tracing::error!(%error, "the journal of the history cannot be written");
            unwritable()
        })?;
        // In the same order.
        place.send(Write::Add(Box::new(record)));
        Ok(())
    }

    /// Whether what begins now could be recorded, as far as is known.
    pub fn check(&self) -> Result<(), Error> {
        let has_room = || self.writer.capacity() > 0 && !lock(&self.journal).is_full();
        if self.works() || has_room() {
            return Ok(());
        }
        Err(unwritable())
    }

    async fn until(&self, holds: impl FnMut(&Progress) -> bool) {
        let _ = self.progress.clone().wait_for(holds).await;
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
        self.progress.borrow().works
    }

    pub async fn get(&self, tenant: &Tenant, id: RunId) -> Result<Option<Record>, Error> {
        self.read(tenant, move |connection, scope| {
            store::get(connection, scope, id)
        })
        .await
    }

    pub async fn list(&self, tenant: &Tenant, query: Query) -> Result<Page, Error> {
        self.read(tenant, move |connection, scope| {
            query::list(connection, scope, &query)
        })
        .await
    }

    pub async fn stats(&self, tenant: &Tenant, query: Query) -> Result<Stats, Error> {
        self.read(tenant, move |connection, scope| {
            stats::stats(connection, scope, &query)
        })
        .await
    }

    async fn read<T: Send + 'static>(
        &self,
        tenant: &Tenant,
        question: impl FnOnce(&Connection, &Scope) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        // Whoever has had an answer finds the run, unless nothing can be written: then what is there has to do.
        let added = lock(&self.journal).added();
        if self.progress.borrow().written < added {
            self.hurry.notify_one();
        }
        let met = self.until(|progress| progress.written >= added || !progress.works);
        let _ = timeout(PATIENCE, met).await;
        let turn = self.readers.take(tenant, PATIENCE).await;
        let turn = turn.ok_or_else(unread)?;
        let (reader, scope) = (Arc::clone(&self.reader), tenant.scope());
        let asked = move || {
            let connection = reader.lock().unwrap_or_else(PoisonError::into_inner);
            let answer = question(&connection, &scope);
            // Not before: it goes on, also if nobody waits for it any more.
            drop(turn);
            answer
        };
        match timeout(PATIENCE, tokio::task::spawn_blocking(asked)).await {
            Ok(Ok(answer)) => answer.map_err(|error| Error::internal("history", error)),
            Ok(Err(error)) => Err(Error::internal("history", error)),
            Err(_) => Err(unread()),
        }
    }
}

fn unread() -> Error {
    Error::Unavailable {
        what: "the history",
        reason: "it was not read in time".into(),
    }
}

fn unwritable() -> Error {
    Error::Unavailable {
        what: "the history",
        reason: "runs cannot be recorded now, and no result is given that is not; the daemon's log says why".into(),
    }
}

fn lock(journal: &Mutex<Journal>) -> MutexGuard<'_, Journal> {
    journal.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What writes to the tables.
struct Writer {
    waiting: mpsc::Receiver<Write>,
    journal: Arc<Mutex<Journal>>,
    teller: watch::Sender<Progress>,
    hurry: Arc<Notify>,
}

impl Writer {
    async fn keep_writing(mut self, mut connection: Connection) {
        while let Some(first) = self.waiting.recv().await {
            let _ = timeout(GATHER, self.hurry.notified()).await;
            let mut batch = vec![first];
            while batch.len() < WAITING
                && let Ok(next) = self.waiting.try_recv()
            {
                batch.push(next);
            }
            let added = batch.iter().filter(|write| matches!(write, Write::Add(_)));
            let added = added.count() as u64;
            let Some(free) = self.write_all(connection, batch).await else {
                return;
            };
            connection = free;
            self.teller.send_modify(|progress| {
                progress.written += added;
                progress.works = true;
            });
            if let Err(error) = lock(&self.journal).settle(added) {
                tracing::error!(%error, "the journal of the history cannot be emptied");
            }
        }
    }

    /// Until it is written. `None`: the process ends, and the next one finds it in the journal.
    async fn write_all(&self, connection: Connection, batch: Vec<Write>) -> Option<Connection> {
        let mut held = (connection, batch);
        loop {
            let writing = move || {
                let written = write(&mut held.0, &held.1);
                (held, written)
            };
            let (back, written) = tokio::task::spawn_blocking(writing).await.ok()?;
            let Err(error) = written else {
                return Some(back.0);
            };
            held = back;
            tracing::error!(%error, "history cannot be written");
            self.teller.send_modify(|progress| progress.works = false);
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// In one transaction.
fn write(connection: &mut Connection, batch: &[Write]) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    for write in batch {
        match write {
            Write::Add(record) => store::insert(&transaction, record)?,
            Write::Trim {
                older_than_ms,
                keep,
            } => store::trim(&transaction, *older_than_ms, *keep)?,
        }
    }
    transaction.commit()
}

/// What is kept of a request is bounded as well. What is left out is named.
pub fn omit_large(request: &mut Value) {
    if json_length(request) <= FIELD_BYTES {
        return;
    }
    let Some(fields) = request.as_object_mut() else {
        return;
    };
    let mut omitted = Vec::new();
    fields.retain(|name, value| {
        let fits = json_length(value) <= FIELD_BYTES;
        if !fits {
            omitted.push(Value::from(name.as_str()));
        }
        fits
    });
    fields.insert("omitted".into(), omitted.into());
}

/// What is kept of a result is bounded, whatever the limits of the run were. `true`: there was more.
fn shorten(result: &mut RunResult, most: usize) -> bool {
    let mut shortened = false;
    let mut cut = |text: &mut String| {
        let long = text.len() > most;
        text.truncate(text.floor_char_boundary(most));
        shortened |= long;
        long
    };
    for (text, base64) in [
        (&mut result.stdout, &mut result.stdout_base64),
        (&mut result.stderr, &mut result.stderr_base64),
    ] {
        let long = cut(text);
        let too_long = |bytes: &mut String| long || bytes.len() > most * 2;
        base64.take_if(too_long);
    }
    if let Some(compile) = &mut result.compile {
        cut(&mut compile.stdout);
        cut(&mut compile.stderr);
        (compile.stdout_base64, compile.stderr_base64) = (None, None);
    }
    if let Some(text) = &mut result.value_text {
        cut(text);
    }
    for file in &mut result.files {
        file.content = None;
    }
    let mut left = most;
    let shown = result.displays.len();
    result.displays.retain(|display| {
        let fits = display.data.len() <= left;
        left -= if fits { display.data.len() } else { 0 };
        fits
    });
    let too_long = |value: &mut Value| json_length(value) > left;
    let mut paths = FIELD_BYTES;
    let listed = |file: &&FileInfo| {
        let fits = file.path.len() <= paths;
        paths = paths.saturating_sub(file.path.len());
        fits
    };
    let listed = result.files.iter().take(FILES).take_while(listed).count();
    let fewer = result.displays.len() < shown || listed < result.files.len();
    result.files.truncate(listed);
    result.value.take_if(too_long).is_some() | fewer | shortened
}
