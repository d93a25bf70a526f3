//! Leave for pages of the origins that the settings list. All others have none: for them a browser finds no header here.

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, ORIGIN,
    VARY,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::Response;

use crate::config::Config;

const METHODS: &str = "GET, POST, PUT, PATCH, DELETE";
/// What clients of ours send that browsers ask about.
const HEADERS: &str = "authorization, content-type, range";
/// What they look at in answers that browsers would keep from them.
const EXPOSED: &str = "x-request-id, retry-after, content-range";
/// Browsers ask again after so many seconds.
const ASKED_FOR: &str = "3600";

/// The origin of a page that has leave.
pub fn origin(config: &Config, headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(ORIGIN)?;
    let listed = |known: &String| known.as_bytes() == origin.as_bytes();
    config.origins.iter().any(listed).then(|| origin.clone())
}

/// A browser asks whether such a page may send what it wants to. It has no key to ask with.
pub fn is_question(config: &Config, request: &Request) -> bool {
    request.method() == Method::OPTIONS
        && request
            .headers()
            .contains_key(ACCESS_CONTROL_REQUEST_METHOD)
        && origin(config, request.headers()).is_some()
}

/// It may.
pub fn answer() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    for (name, value) in [
        (ACCESS_CONTROL_ALLOW_METHODS, METHODS),
        (ACCESS_CONTROL_ALLOW_HEADERS, HEADERS),
        (ACCESS_CONTROL_MAX_AGE, ASKED_FOR),
    ] {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
}

/// Lets the page see an answer. With origins listed, answers differ by who asks, which caches have to know.
pub fn show(config: &Config, origin: Option<HeaderValue>, headers: &mut HeaderMap) {
    if config.origins.is_empty() {
        return;
    }
    headers.append(VARY, HeaderValue::from_static("Origin"));
    if let Some(origin) = origin {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        let exposed = HeaderValue::from_static(EXPOSED);
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    }
}
