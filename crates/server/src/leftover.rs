//! What a handler leaves of a request's body.
//!
//! A client that still sends when the connection is closed sees that it broke, and not the answer that says why. So the rest is
//! read and dropped for a while, beside the answer.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::header::EXPECT;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::runtime::Handle;
use tokio::time::timeout;

/// How long, and how much. Whoever has more to send has to see it break.
const PATIENCE: Duration = Duration::from_secs(2);
const MOST: usize = 64 << 20;

/// A body whose rest does not count.
struct Lent {
    body: Body,
    /// A client that asked whether to send at all does not, unless somebody has begun to read.
    sent: bool,
    ended: bool,
}

/// The request with a body that may be left at any time.
pub fn lend(request: Request) -> Request {
    if request.body().is_end_stream() {
        return request;
    }
    let sent = !request.headers().contains_key(EXPECT);
    request.map(|body| {
        Body::new(Lent {
            body,
            sent,
            ended: false,
        })
    })
}

impl HttpBody for Lent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.sent = true;
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        self.ended = !matches!(frame, Some(Ok(_)));
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if self.ended || !self.sent || self.body.is_end_stream() {
            return;
        }
        if let Ok(runtime) = Handle::try_current() {
            let rest = std::mem::take(&mut self.body);
            runtime.spawn(timeout(PATIENCE, read_out(rest)));
        }
    }
}

async fn read_out(mut body: Body) {
    let mut read = 0;
    while let Some(Ok(frame)) = body.frame().await {
        read += frame.data_ref().map_or(0, Bytes::len);
        if read > MOST {
            return;
        }
    }
}
