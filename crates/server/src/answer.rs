//! Answers on their way to clients: large ones count in the budget until they have left our memory.

use axum::body::{Body, HttpBody};
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use belljar_spec::{Error, RunResult};
use bytes::Bytes;
use http_body_util::BodyExt;
use serde::Serialize;
use serde_json::json;
use tokio::task::spawn_blocking;

use crate::admission::{SMALL, Ticket};
use crate::app::App;
use crate::events::Outbox;
use crate::failure::{ErrorBody, Failure};

/// Of output, that is: a few milliseconds' work.
const LARGE: usize = 1 << 20;

/// A run that is over, and the room that it was given.
pub type Done = (RunResult, Ticket);

/// Bytes that count until the last of them is gone: whoever writes them to a socket lets go of them only then.
struct Counted<T, Room> {
    bytes: T,
    _room: Room,
}

impl<T: AsRef<[u8]>, Room> AsRef<[u8]> for Counted<T, Room> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

/// With the room that they take, where that is worth counting.
pub fn counted<T: AsRef<[u8]> + Into<Bytes> + Send + 'static, Room: Send + 'static>(
    bytes: T,
    room: Option<Room>,
) -> Bytes {
    match room {
        None => bytes.into(),
        Some(room) => Bytes::from_owner(Counted { bytes, _room: room }),
    }
}

/// Said of an answer that counts as what is left of a run.
#[derive(Clone)]
struct OfARun;

/// Any other answer in one piece counts, too, or gives way to an error if there is too much on its way.
pub async fn hold(app: &App, response: Response) -> Response {
    let bytes = response.body().size_hint().exact().unwrap_or(0);
    if bytes < SMALL as u64 || response.extensions().get::<OfARun>().is_some() {
        return response;
    }
    let held = match app.admission.hold(bytes) {
        Ok(held) => held,
        Err(error) => return Failure(error).into_response(),
    };
    let (parts, body) = response.into_parts();
    match body.collect().await {
        Ok(body) => {
            let body = Body::from(counted(body.to_bytes(), Some(held)));
            Response::from_parts(parts, body)
        }
        Err(error) => Failure(Error::internal("answer", error)).into_response(),
    }
}

/// In one piece.
pub async fn whole((result, ticket): Done) -> Result<Response, Error> {
    let text = apart(result, |result| serde_json::to_vec(&result)).await?;
    let text = text.map_err(|error| Error::internal("answer", error))?;
    let ticket = ticket.into_answer(text.len());
    let mut response = Response::new(Body::from(counted(text, ticket)));
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response.extensions_mut().insert(OfARun);
    Ok(response)
}

/// As the last event, behind those that wait.
pub async fn last(outbox: &Outbox, done: Result<Done, Error>, request_id: &str) {
    let made = match done {
        Ok((result, ticket)) => {
            let made = |result| (json_length(&result), json!({ "result": result }));
            apart(result, made).await.map(|made| (made, ticket))
        }
        Err(error) => Err(error),
    };
    match made {
        Ok(((length, body), ticket)) => {
            let ticket = ticket.into_answer(length.saturating_add(outbox.waiting_bytes()));
            outbox.end("result", body, ticket);
        }
        Err(error) => outbox.end("error", json!(ErrorBody::new(&error, request_id)), None),
    }
}

/// What takes long with a large result holds up nobody else.
async fn apart<T: Send + 'static>(
    result: RunResult,
    work: impl FnOnce(RunResult) -> T + Send + 'static,
) -> Result<T, Error> {
    if result.stdout.len() + result.stderr.len() < LARGE {
        return Ok(work(result));
    }
    let done = spawn_blocking(move || work(result)).await;
    done.map_err(|error| Error::internal("answer", error))
}

/// How long something is as text.
pub fn json_length(value: &impl Serialize) -> usize {
    struct Length(usize);

    impl std::io::Write for Length {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let mut length = Length(0);
    match serde_json::to_writer(&mut length, value) {
        Ok(()) => length.0,
        Err(_) => usize::MAX,
    }
}
