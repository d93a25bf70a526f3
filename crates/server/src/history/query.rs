//! Finding runs again.

use std::fmt::Write as _;

use belljar_spec::{Error, Status};
use rusqlite::types::Value;
use rusqlite::{Connection, Row, params_from_iter};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::store::{json, name, signed, status_name, time, unsigned};
use super::{Scope, Summary};
use crate::clock;

const DEFAULT_LIMIT: u32 = 50;
const MOST: u32 = 1000;

/// Which runs. Everything given must hold.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct Query {
    /// How many, newest first: 1 to 1000, by default 50.
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
    /// How they ended.
    pub status: Option<Status>,
    /// The runtime's name, or an alias of it.
    pub language: Option<String>,
    /// Not before: RFC 3339, or how long ago, like `1h` or `2d`.
    pub since: Option<String>,
    /// Before: RFC 3339, or how long ago.
    pub until: Option<String>,
    /// A label, as `name=value` or `name`.
    pub label: Option<String>,
    /// Text that occurs in the error.
    pub text: Option<String>,
    /// The sandbox they ran in.
    pub sandbox: Option<String>,
    /// Whose runs; only the administrator sees others'.
    pub tenant: Option<String>,
    /// Go on where a page ended: its `next`.
    #[param(minimum = 1)]
    pub before: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Page {
    /// Newest first.
    pub runs: Vec<super::Summary>,
    /// Where to go on, if there are more.
    pub next: Option<u64>,
}

impl Query {
    pub fn check(&self) -> Result<(), Error> {
        if let Some(limit) = self.limit
            && !(1..=MOST).contains(&limit)
        {
            return Err(Error::invalid_request(
                "limit",
                &limit.to_string(),
                format!("give a number from 1 to {MOST}"),
            ));
        }
        for (field, value) in [("since", &self.since), ("until", &self.until)] {
            if let Some(value) = value
                && moment(value).is_none()
            {
                return Err(Error::invalid_request(
                    field,
                    value,
                    "give a time like 2026-01-31T12:00:00Z, or how long ago, like 90s, 15m, 1h or 2d",
                ));
            }
        }
        if let Some(text) = &self.text
            && (text.is_empty() || text.len() > 200 || text.contains('\0'))
        {
            return Err(Error::invalid_request(
                "text",
                text,
                "give 1 to 200 bytes of text without NUL",
            ));
        }
        Ok(())
    }

    /// The condition and what it compares with.
    pub fn condition(&self, scope: &Scope) -> (String, Vec<Value>) {
        let mut parts = vec!["1".to_owned()];
        let mut values = Vec::new();
        let mut add = |part: &str, value: Value| {
            values.push(value);
            parts.push(part.replace('?', &format!("?{}", values.len())));
        };
        if let Scope::Tenant(tenant) = scope {
            add("tenant = ?", tenant.clone().into());
        }
        for (column, value) in [
            ("tenant", self.tenant.clone()),
            ("language", self.language.clone()),
            ("sandbox", self.sandbox.clone()),
            ("status", self.status.map(status_name)),
        ] {
            if let Some(value) = value {
                add(&format!("{column} = ?"), value.into());
            }
        }
        if let Some(since) = self.since.as_deref().and_then(moment) {
            add("started_ms >= ?", signed(since).into());
        }
        if let Some(until) = self.until.as_deref().and_then(moment) {
            add("started_ms < ?", signed(until).into());
        }
        if let Some(text) = &self.text {
            let escaped = text
                .replace('\\', "\\\\")
                .replace('%', "\\%")
                .replace('_', "\\_");
            add("error LIKE ? ESCAPE '\\'", format!("%{escaped}%").into());
        }
        if let Some(label) = &self.label {
            match label.split_once('=') {
                Some((name, value)) => {
                    add(
                        "EXISTS (SELECT 1 FROM json_each(labels) WHERE key = ? AND value = ",
                        name.to_owned().into(),
                    );
                    let last = values.len() + 1;
                    values.push(value.to_owned().into());
                    if let Some(part) = parts.last_mut() {
                        let _ = write!(part, "?{last})");
                    }
                }
                None => add(
                    "EXISTS (SELECT 1 FROM json_each(labels) WHERE key = ?)",
                    label.clone().into(),
                ),
            }
        }
        if let Some(before) = self.before {
            values.push(signed(before).into());
            parts.push(format!("seq < ?{}", values.len()));
        }
        (parts.join(" AND "), values)
    }
}

/// Milliseconds since 1970.
fn moment(text: &str) -> Option<u64> {
    if let Some(moment) = clock::parse(text) {
        return Some(moment);
    }
    let ago = belljar_spec::Amount::from(text).value(belljar_spec::Unit::Milliseconds)?;
    Some(clock::now_millis().saturating_sub(ago))
}

pub fn list(connection: &Connection, scope: &Scope, query: &Query) -> rusqlite::Result<Page> {
    let (condition, values) = query.condition(scope);
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT).min(MOST);
    let mut statement = connection.prepare_cached(&format!(
        "SELECT seq, id, tenant, sandbox, language, status, started_ms, queue_ms, start_ms, wall_ms, cpu_ms, memory_peak,
            exit_code, substr(error, 1, 400) AS error, digest, labels
         FROM runs WHERE {condition} ORDER BY seq DESC LIMIT {}",
        limit + 1
    ))?;
    let rows = statement.query_map(params_from_iter(values), |row| {
        Ok((unsigned(row.get("seq")?), summary(row)?))
    })?;
    let mut found: Vec<_> = rows.collect::<rusqlite::Result<_>>()?;
    let more = found.len() > limit as usize;
    found.truncate(limit as usize);
    let next = found.last().map(|(seq, _)| *seq).filter(|_| more);
    Ok(Page {
        runs: found.into_iter().map(|(_, summary)| summary).collect(),
        next,
    })
}

fn summary(row: &Row<'_>) -> rusqlite::Result<Summary> {
    Ok(Summary {
        id: name(row, "id")?,
        tenant: row.get("tenant")?,
        sandbox: name(row, "sandbox")?,
        language: row.get("language")?,
        status: name(row, "status")?,
        started_at: time(row)?,
        exit_code: row.get("exit_code")?,
        queue_ms: row.get("queue_ms")?,
        start_ms: row.get("start_ms")?,
        wall_ms: row.get("wall_ms")?,
        cpu_ms: row.get("cpu_ms")?,
        memory_peak_bytes: row.get::<_, Option<i64>>("memory_peak")?.map(unsigned),
        error: row.get("error")?,
        digest: row.get("digest")?,
        labels: json(row, "labels")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_has_a_meaning() {
        let since = |text: &str| Query {
            since: Some(text.into()),
            ..Query::default()
        };
        for ago in ["90s", "1h", "1d", "2w", "2026-01-31T12:00:00Z"] {
            assert!(since(ago).check().is_ok(), "{ago}");
        }
        for bad in ["", "1", "1y", "yesterday"] {
            assert!(since(bad).check().is_err(), "{bad}");
        }
        let text = |text: &str| Query {
            text: Some(text.into()),
            ..Query::default()
        };
        assert!(text("100%").check().is_ok());
        // To SQLite a text ends there: it would be part of every error.
        for bad in ["", "\0", "a\0b", &"x".repeat(201)] {
            assert!(text(bad).check().is_err(), "{bad:?}");
        }
    }
}
