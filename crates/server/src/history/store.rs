//! The tables, and one run in and out of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use belljar_spec::{RunId, RunResult, Status};
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};

use super::{Record, Scope};
use crate::clock;

const VERSION: u32 = 2;
const TABLES: &str = "
    CREATE TABLE runs (
        seq INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        tenant TEXT NOT NULL,
        sandbox TEXT,
        language TEXT NOT NULL,
        status TEXT NOT NULL,
        started_ms INTEGER NOT NULL,
        queue_ms REAL NOT NULL,
        start_ms REAL,
        wall_ms REAL,
        cpu_ms REAL,
        memory_peak INTEGER,
        exit_code INTEGER,
        error TEXT,
        digest TEXT NOT NULL,
        labels TEXT NOT NULL,
        code TEXT,
        request TEXT NOT NULL,
        result TEXT,
        shortened INTEGER NOT NULL DEFAULT 0
    );
    CREATE INDEX runs_by_time ON runs (started_ms);
    CREATE INDEX runs_by_tenant ON runs (tenant, started_ms);
";

/// From each version to the next.
const CHANGES: [&str; 1] = ["ALTER TABLE runs ADD COLUMN shortened INTEGER NOT NULL DEFAULT 0;"];

pub fn open(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(10))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "journal_size_limit", 64 << 20)?;
    let version: u32 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let change = match version {
        0 => TABLES.to_owned(),
        _ => CHANGES.iter().skip(version as usize - 1).copied().collect(),
    };
    if version < VERSION {
        connection.execute_batch(&format!(
            "BEGIN IMMEDIATE; {change} PRAGMA user_version = {VERSION}; COMMIT;"
        ))?;
    }
    Ok(connection)
}

/// What a search for text in errors looks at. Its first line says most: the type and message, or the last that was printed.
fn error_text(result: &RunResult) -> Option<String> {
    const MOST: usize = 4096;
    if result.success {
        return None;
    }
    let (headline, printed) = match (&result.error, &result.compile) {
        (Some(error), _) => {
            let message: String = error.message.chars().take(MOST / 8).collect();
            (format!("{}: {message}", error.kind), &error.traceback)
        }
        (None, Some(compile)) if result.status == Status::CompileFailed => {
            let silent = compile.stderr.is_empty();
            let printed = [&compile.stderr, &compile.stdout][usize::from(silent)];
            (last_line(printed), printed)
        }
        _ => (last_line(&result.stderr), &result.stderr),
    };
    let start = printed.ceil_char_boundary(printed.len().saturating_sub(MOST / 2));
    let text = format!("{headline}\n{}", printed[start..].trim_end());
    let text = text[..text.floor_char_boundary(MOST)].trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn last_line(text: &str) -> String {
    let last = text.lines().rev().find(|line| !line.trim().is_empty());
    last.unwrap_or_default().chars().take(400).collect()
}

/// One that is there already stays as it is.
pub fn insert(transaction: &Transaction<'_>, record: &Record) -> rusqlite::Result<()> {
    let to_sql = |error: serde_json::Error| rusqlite::Error::ToSqlConversionFailure(error.into());
    let result = record.result.as_ref();
    let usage = result.map(|result| result.usage);
    let mut statement = transaction.prepare_cached(
        "INSERT OR IGNORE INTO runs (id, tenant, sandbox, language, status, started_ms, queue_ms, start_ms, wall_ms, cpu_ms,
            memory_peak, exit_code, error, digest, labels, code, request, result, shortened)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)",
    )?;
    statement.execute(params![
        record.id.to_string(),
        record.tenant,
        record.sandbox.map(|id| id.to_string()),
        record.language,
        status_name(record.status),
        signed(clock::parse(&record.started_at).unwrap_or(0)),
        record.queue_ms,
        usage.map(|usage| usage.start_ms),
        usage.map(|usage| usage.wall_ms),
        usage.and_then(|usage| usage.cpu_ms),
        usage.and_then(|usage| usage.memory_peak_bytes).map(signed),
        result.and_then(|result| result.exit_code),
        result.and_then(error_text),
        record.digest,
        serde_json::to_string(&record.labels).map_err(to_sql)?,
        record.code,
        record.request.to_string(),
        result
            .map(serde_json::to_string)
            .transpose()
            .map_err(to_sql)?,
        record.shortened,
    ])?;
    Ok(())
}

/// `SQLite` has no unsigned numbers.
pub fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

pub fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

pub fn status_name(status: Status) -> String {
    serde_json::to_value(status)
        .ok()
        .and_then(|value| Some(value.as_str()?.to_owned()))
        .unwrap_or_default()
}

/// A column that holds JSON.
pub fn json<T: serde::de::DeserializeOwned>(row: &Row<'_>, name: &str) -> rusqlite::Result<T> {
    parsed(&row.get::<_, String>(name)?)
}

fn parsed<T: serde::de::DeserializeOwned>(text: &str) -> rusqlite::Result<T> {
    serde_json::from_str(text)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(0, Type::Text, error.into()))
}

/// A column that holds the name of something: what JSON has as plain text.
pub fn name<T: serde::de::DeserializeOwned>(row: &Row<'_>, name: &str) -> rusqlite::Result<T> {
    let text: Option<String> = row.get(name)?;
    serde_json::from_value(text.into())
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(0, Type::Text, error.into()))
}

pub fn get(connection: &Connection, scope: &Scope, id: RunId) -> rusqlite::Result<Option<Record>> {
    let mut statement = connection.prepare_cached("SELECT * FROM runs WHERE id = ?1")?;
    let found = statement
        .query_row([id.to_string()], |row| {
            let result: Option<String> = row.get("result")?;
            Ok(Record {
                id: name(row, "id")?,
                tenant: row.get("tenant")?,
                sandbox: name(row, "sandbox")?,
                language: row.get("language")?,
                status: name(row, "status")?,
                started_at: time(row)?,
                queue_ms: row.get("queue_ms")?,
                digest: row.get("digest")?,
                labels: json::<BTreeMap<_, _>>(row, "labels")?,
                code: row.get("code")?,
                request: json(row, "request")?,
                result: result.as_deref().map(parsed).transpose()?,
                shortened: row.get("shortened")?,
            })
        })
        .optional()?;
    Ok(found.filter(|record| match scope {
        Scope::All => true,
        Scope::Tenant(tenant) => record.tenant == *tenant,
    }))
}

pub fn time(row: &Row<'_>) -> rusqlite::Result<String> {
    let millis: i64 = row.get("started_ms")?;
    Ok(clock::format(unsigned(millis)))
}

pub fn trim(transaction: &Transaction<'_>, older_than_ms: u64, keep: u64) -> rusqlite::Result<()> {
    transaction.execute(
        "DELETE FROM runs WHERE started_ms < ?1",
        [signed(older_than_ms)],
    )?;
    transaction.execute(
        "DELETE FROM runs WHERE seq <= (SELECT seq FROM runs ORDER BY seq DESC LIMIT 1 OFFSET ?1)",
        [signed(keep)],
    )?;
    Ok(())
}
