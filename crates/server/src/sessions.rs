//! `/v1/sandboxes/{id}/runs`, `/commands` and `/answers`: what is done in a kept sandbox.

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query as UrlQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use belljar::Session;
use belljar_spec::{CodeRequest, CommandRequest, Error, RunResult, SandboxId, ToolAnswer};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use utoipa::{IntoParams, ToSchema};

use crate::app::Shared;
use crate::body;
use crate::events::Outbox;
use crate::failure::{ErrorBody, Failure};
use crate::guard::{Caller, RequestId};
use crate::runs::{event_stream, unanswerable, wants_events};
use crate::sandboxes::parse;
use crate::turn::{Turn, Work};

/// Run code in a sandbox, after what runs in it already
///
/// Answers like `POST /v1/runs`, with the events `display` and `tool_call` besides. A call of a tool is answered with
/// `POST …/answers`, or over the channel. A client that disconnects does not end the run, unless it is `attended`.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/runs", tag = "sandboxes", params(("id" = SandboxId, Path), Attendance), request_body = CodeRequest,
    responses((status = 200, content((RunResult = "application/json"), (String = "text/event-stream"))),
        (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)))]
pub async fn run(
    State(app): State<Shared>,
    Caller(tenant): Caller,
    request_id: RequestId,
    Path(id): Path<String>,
    attendance: Result<UrlQuery<Attendance>, QueryRejection>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let UrlQuery(Attendance { attended }) = attendance?;
    let kept = app.sandboxes.find(&tenant, &id)?;
    let arrived = body::json(&app, &headers, body).await?;
    let code: CodeRequest = parse(&app, &arrived.bytes)?;
    let with_tools = code.tools.as_ref().is_some_and(|tools| !tools.is_empty());
    if with_tools && !wants_events(&headers) {
        return Err(Failure(unanswerable()));
    }
    let turn = Turn::new(&app, &tenant, kept, Work::Code(code)).await?;
    Ok(carry_out(app, turn, attended, &headers, request_id).await?)
}

/// Run a command in a sandbox, beside what runs in it
#[utoipa::path(post, path = "/v1/sandboxes/{id}/commands", tag = "sandboxes", params(("id" = SandboxId, Path), Attendance), request_body = CommandRequest,
    responses((status = 200, content((RunResult = "application/json"), (String = "text/event-stream"))),
        (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)))]
pub async fn command(
    State(app): State<Shared>,
    Caller(tenant): Caller,
    request_id: RequestId,
    Path(id): Path<String>,
    attendance: Result<UrlQuery<Attendance>, QueryRejection>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let UrlQuery(Attendance { attended }) = attendance?;
    let kept = app.sandboxes.find(&tenant, &id)?;
    let arrived = body::json(&app, &headers, body).await?;
    let command: CommandRequest = parse(&app, &arrived.bytes)?;
    let turn = Turn::new(&app, &tenant, kept, Work::Command(command)).await?;
    Ok(carry_out(app, turn, attended, &headers, request_id).await?)
}

/// Whether somebody waits for it.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct Attendance {
    /// If true, a client that disconnects ends what it asked for, whether that goes on or waits for its turn, and nothing else.
    pub attended: bool,
}

async fn carry_out(
    app: Shared,
    turn: Turn,
    attended: bool,
    headers: &HeaderMap,
    RequestId(request_id): RequestId,
) -> Result<Response, Error> {
    let (here, gone) = oneshot::channel();
    let gone = attended.then_some(gone);
    if !wants_events(headers) {
        // A task of its own: the session outlives this client, and so does what it does there.
        let running = tokio::spawn(turn.carry_out(app, None, None, gone));
        let result = running
            .await
            .map_err(|error| Error::internal("run", error))??;
        drop(here);
        return Ok(Json(result).into_response());
    }
    let outbox = Outbox::default();
    let events = outbox.clone();
    tokio::spawn(async move {
        match turn.carry_out(app, None, Some(events.clone()), gone).await {
            Ok(result) => events.push("result", json!({ "result": result })),
            Err(error) => events.push("error", json!(ErrorBody::new(&error, &request_id))),
        }
        events.close();
    });
    Ok(event_stream(outbox, Some(here)))
}

/// What became of a call: a `value`, or an `error`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// The number of the call.
    pub call: u64,
    #[serde(default)]
    pub value: Value,
    #[serde(default)]
    pub error: Option<ToolError>,
}

/// Raised inside, where the tool was called.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolError {
    #[serde(rename = "type", default = "runtime_error")]
    pub kind: String,
    pub message: String,
}

fn runtime_error() -> String {
    "RuntimeError".into()
}

impl Answer {
    pub fn give(self, session: &Session) {
        let answer = match self.error {
            Some(ToolError { kind, message }) => ToolAnswer::Error { kind, message },
            None => ToolAnswer::Value(self.value),
        };
        session.answer(self.call, answer);
    }
}

/// Answer a call of the run that is going on
#[utoipa::path(post, path = "/v1/sandboxes/{id}/answers", tag = "sandboxes", params(("id" = SandboxId, Path)), request_body = Answer,
    responses((status = 204), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)))]
pub async fn answer(
    State(app): State<Shared>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<StatusCode, Failure> {
    let kept = app.sandboxes.find(&tenant, &id)?;
    let arrived = body::json(&app, &headers, body).await?;
    let answer: Answer = parse(&app, &arrived.bytes)?;
    answer.give(&kept.session);
    Ok(StatusCode::NO_CONTENT)
}
