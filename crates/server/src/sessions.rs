//! `/v1/sandboxes/{id}/runs`, `/commands` and `/answers`: what is done in a kept sandbox.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use belljar::Session;
use belljar_spec::{
    CodeRequest, CommandRequest, Error, RunResult, SandboxId, ToolAnswer, from_json, some_object,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::oneshot;
use utoipa::ToSchema;

use crate::answer;
use crate::app::Shared;
use crate::asked::{Asked, Manner};
use crate::body;
use crate::events::Outbox;
use crate::failure::{ErrorBody, Failure, Id};
use crate::guard::{Caller, RequestId};
use crate::params::Params;
use crate::runs::{event_stream, unanswerable, wants_events};
use crate::turn::{Turn, Work};

/// Run code in a sandbox, after what runs in it already
///
/// Answers like `POST /v1/runs`, with the events `display` and `tool_call` besides. A call of a tool is answered with
/// `POST …/answers`, or over the channel; of a run that is answered in one piece, calls fail inside. A client that disconnects does not end the run, unless it is `attended`;
/// `POST …/interrupt` with its name does, also before it has begun.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/runs", tag = "sandboxes", params(("id" = SandboxId, Path), Manner), request_body = CodeRequest,
    responses((status = 200, content((RunResult = "application/json"), (String = "text/event-stream"))),
        (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)))]
pub async fn run(
    State(app): State<Shared>,
    Caller(tenant): Caller,
    request_id: RequestId,
    Id(id): Id,
    manner: Result<Params<Manner>, Failure>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let Params(Manner { run, attended }) = manner?;
    let asked = Asked::new(app.sandboxes.find(&tenant, &id)?, run)?;
    let arrived = body::json(&app, &tenant, &headers, body).await?;
    let code: CodeRequest = from_json(&arrived.bytes)?;
    let with_tools = code.tools.as_ref().is_some_and(|tools| !tools.is_empty());
    if with_tools && !wants_events(&headers) {
        return Err(Failure(unanswerable()));
    }
    let turn = Turn::new(&app, &tenant, asked, Work::Code(code)).await?;
    drop(arrived);
    Ok(carry_out(app, turn, attended, &headers, request_id).await?)
}

/// Run a command in a sandbox, beside what runs in it
#[utoipa::path(post, path = "/v1/sandboxes/{id}/commands", tag = "sandboxes", params(("id" = SandboxId, Path), Manner), request_body = CommandRequest,
    responses((status = 200, content((RunResult = "application/json"), (String = "text/event-stream"))),
        (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)))]
pub async fn command(
    State(app): State<Shared>,
    Caller(tenant): Caller,
    request_id: RequestId,
    Id(id): Id,
    manner: Result<Params<Manner>, Failure>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let Params(Manner { run, attended }) = manner?;
    let asked = Asked::new(app.sandboxes.find(&tenant, &id)?, run)?;
    let arrived = body::json(&app, &tenant, &headers, body).await?;
    let command: CommandRequest = from_json(&arrived.bytes)?;
    let turn = Turn::new(&app, &tenant, asked, Work::Command(command)).await?;
    drop(arrived);
    Ok(carry_out(app, turn, attended, &headers, request_id).await?)
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
        let done = running
            .await
            .map_err(|error| Error::internal("run", error))??;
        drop(here);
        return answer::whole(done).await;
    }
    let outbox = Outbox::default();
    let events = outbox.clone();
    tokio::spawn(async move {
        let done = Box::pin(turn.carry_out(app, None, Some(events.clone()), gone)).await;
        answer::last(&events, done, &request_id).await;
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
    #[serde(default, deserialize_with = "some_object")]
    pub error: Option<ToolError>,
}

/// Raised inside, where the tool was called.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolError {
    /// `RuntimeError` if absent.
    #[serde(rename = "type", default)]
    pub kind: Option<String>,
    pub message: String,
}

impl Answer {
    pub fn give(self, session: &Session) {
        let answer = match self.error {
            Some(ToolError { kind, message }) => ToolAnswer::Error {
                kind: kind.unwrap_or_else(|| "RuntimeError".into()),
                message,
            },
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
    Id(id): Id,
    headers: HeaderMap,
    body: Body,
) -> Result<StatusCode, Failure> {
    let kept = app.sandboxes.find(&tenant, &id)?;
    let arrived = body::json(&app, &tenant, &headers, body).await?;
    let answer: Answer = from_json(&arrived.bytes)?;
    answer.give(&kept.session);
    Ok(StatusCode::NO_CONTENT)
}
