//! `/v1/runs`: code in a sandbox of its own, and what became of runs.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use belljar_spec::{Error, RunId, RunRequest, RunResult, from_json, shown};
use bytes::Bytes;
use futures_util::stream;
use tokio::sync::oneshot;

use crate::answer;
use crate::app::Shared;
use crate::body;
use crate::debug::{self, Debug};
use crate::events::Outbox;
use crate::failure::{ErrorBody, Failure, Id};
use crate::guard::{Caller, RequestId};
use crate::history::{Page, Query, Record, Stats};
use crate::job::{self, Job};
use crate::params::Params;
use crate::sessions::Answer;

/// So that a proxy does not take a silent run for a dead one.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Run code in a sandbox of its own
///
/// Answers with the result. With `Accept: text/event-stream`, answers with events: `stdout` and `stderr` with `text` (and
/// `base64` where that is no UTF-8), `display`, `tool_call`, then `result` with the `result`, or `error` with the `error`. Each
/// has `seq` and `time`. A call of a tool is answered with `POST /v1/runs/{id}/answers`. A client that disconnects ends the run.
#[utoipa::path(post, path = "/v1/runs", tag = "runs", request_body = RunRequest,
    responses((status = 200, content((RunResult = "application/json"), (String = "text/event-stream"))),
        (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)))]
pub async fn create(
    State(app): State<Shared>,
    Caller(tenant): Caller,
    RequestId(request_id): RequestId,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let received = Instant::now();
    let arrived = body::json(&app, &tenant, &headers, body).await?;
    let request = job::parse(&app.config, &arrived.bytes)?;
    if !request.tools.is_empty() && !wants_events(&headers) {
        return Err(Failure(unanswerable()));
    }
    let mut job = Job::new(&app, tenant, request, received).await?;
    // The place of a large body is kept until there is room for it to run.
    let ticket = job.admitted(&app).await?;
    drop(arrived);
    let (here, gone) = oneshot::channel();
    if !wants_events(&headers) {
        // A task of its own: what has been run is recorded even if the client leaves then.
        let running = tokio::spawn(job.carry_out(app, ticket, None, gone));
        let done = running
            .await
            .map_err(|error| Error::internal("run", error))??;
        drop(here);
        return Ok(answer::whole(done).await?);
    }
    let outbox = Outbox::default();
    let events = outbox.clone();
    tokio::spawn(async move {
        let done = Box::pin(job.carry_out(app, ticket, Some(events.clone()), gone)).await;
        answer::last(&events, done, &request_id).await;
    });
    Ok(event_stream(outbox, Some(here)))
}

/// Calls of tools are events.
pub fn unanswerable() -> Error {
    Error::InvalidRequest {
        field: "tools".into(),
        given: "a list, with an answer in one piece,".into(),
        accepted: "ask for text/event-stream or use the channel, so that calls can be answered"
            .into(),
    }
}

/// Answer a call of a run
///
/// The run is the one that the event `tool_call` names.
#[utoipa::path(post, path = "/v1/runs/{id}/answers", tag = "runs", params(("id" = RunId, Path)), request_body = Answer,
    responses((status = 204), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)))]
pub async fn answer(
    State(app): State<Shared>,
    Caller(tenant): Caller,
    Id(id): Id,
    headers: HeaderMap,
    body: Body,
) -> Result<StatusCode, Failure> {
    let session = app.answering.find(&tenant, &id)?;
    let arrived = body::json(&app, &tenant, &headers, body).await?;
    let answer: Answer = from_json(&arrived.bytes)?;
    answer.give(&session);
    Ok(StatusCode::NO_CONTENT)
}

pub fn wants_events(headers: &HeaderMap) -> bool {
    let given = headers.get_all(ACCEPT).iter();
    let ranges = given.filter_map(|accept| accept.to_str().ok());
    let (mut events, mut json) = (0.0, 0.0_f32);
    for range in ranges.flat_map(|accept| accept.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default();
        let quality = parts.find_map(|part| part.strip_prefix("q=").or(part.strip_prefix("Q=")));
        let quality = quality.map_or(1.0, |text| text.parse().unwrap_or(0.0));
        if kind.eq_ignore_ascii_case("text/event-stream") {
            events = quality;
        } else if kind.eq_ignore_ascii_case("application/json") {
            json = quality;
        }
    }
    events > 0.0 && events >= json
}

/// `here` is dropped with the answer's body: when the client has gone, or has everything.
pub fn event_stream(outbox: Outbox, here: Option<oneshot::Sender<()>>) -> Response {
    let chunks = stream::unfold((outbox, here), |(outbox, here)| async move {
        let chunk = match tokio::time::timeout(HEARTBEAT, outbox.next()).await {
            Ok(Some(event)) => event.sse(),
            Ok(None) => return None,
            Err(_) => Bytes::from_static(b": still running\n\n"),
        };
        Some((Ok::<_, Infallible>(chunk), (outbox, here)))
    });
    let mut response = Response::new(Body::from_stream(chunks));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Runs that ended, newest first
#[utoipa::path(get, path = "/v1/runs", tag = "runs", params(Query),
    responses((status = 200, body = Page), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)))]
pub async fn list(
    State(app): State<Shared>,
    Caller(tenant): Caller,
    query: Result<Params<Query>, Failure>,
) -> Result<Json<Page>, Failure> {
    let Params(mut query) = query?;
    query.language = query.language.map(|given| app.languages.name(given));
    query.check()?;
    Ok(Json(app.history.list(&tenant, query).await?))
}

/// Totals and percentiles of the runs that a query finds
#[utoipa::path(get, path = "/v1/stats", tag = "runs", params(Query),
    responses((status = 200, body = Stats), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)))]
pub async fn stats(
    State(app): State<Shared>,
    Caller(tenant): Caller,
    query: Result<Params<Query>, Failure>,
) -> Result<Json<Stats>, Failure> {
    let Params(mut query) = query?;
    query.language = query.language.map(|given| app.languages.name(given));
    query.check()?;
    Ok(Json(app.history.stats(&tenant, query).await?))
}

async fn record(app: &Shared, caller: Caller, id: &str) -> Result<Record, Error> {
    let run: RunId = id.parse()?;
    let found = app.history.get(&caller.0, run).await?;
    found.ok_or_else(|| Error::NotFound {
        what: "run",
        given: shown(id),
        nearest: None,
    })
}

/// One run that ended
#[utoipa::path(get, path = "/v1/runs/{id}", tag = "runs", params(("id" = RunId, Path)),
    responses((status = 200, body = Record), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)))]
pub async fn show(
    State(app): State<Shared>,
    caller: Caller,
    Id(id): Id,
) -> Result<Json<Record>, Failure> {
    Ok(Json(record(&app, caller, &id).await?))
}

/// What went wrong in a run, made to be read by a person or a model
#[utoipa::path(get, path = "/v1/runs/{id}/debug", tag = "runs", params(("id" = RunId, Path)),
    responses((status = 200, body = Debug), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)))]
pub async fn examine(
    State(app): State<Shared>,
    caller: Caller,
    Id(id): Id,
) -> Result<Json<Debug>, Failure> {
    let record = record(&app, caller, &id).await?;
    Ok(Json(debug::report(&record)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn events_are_for_those_who_want_them_most() {
        let wants = |accept: &[&'static str]| {
            let each = accept.iter().map(|text| (ACCEPT, text.parse().unwrap()));
            wants_events(&each.collect())
        };
        let events = [
            &["text/event-stream"][..],
            &["TEXT/Event-Stream"],
            &["application/json;q=0.5, text/event-stream"],
            &["text/event-stream, application/json"],
            &[
                "application/json; q=0.1",
                "text/event-stream; charset=utf-8; q=0.2",
            ],
        ];
        for accept in events {
            assert!(wants(accept), "{accept:?}");
        }
        let json = [
            &[][..],
            &["*/*"],
            &["text/*"],
            &["application/json"],
            &["text/event-stream;q=0"],
            &["application/json, text/event-stream;q=0.1"],
            &["text/event-stream; q=none"],
            &["x-text/event-stream"],
        ];
        for accept in json {
            assert!(!wants(accept), "{accept:?}");
        }
    }
}
