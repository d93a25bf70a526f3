//! Errors as answers. The status is `spec`'s table's; the body is made where the request's id is known.

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path};
use axum::http::header::{ALLOW, CONTENT_RANGE, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use belljar_spec::Error;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// After how to provide what the host lacks for native runs: how a daemon does without.
pub const CONTAINERS: &str =
    "; or have containers run the code, with `backend = \"docker\"` in the daemon's settings";

/// What a handler returns when it cannot do what was asked.
#[derive(Debug)]
pub struct Failure(pub Error);

/// Every answer that is no success.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    pub error: ErrorDetail,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ErrorDetail {
    /// A stable name.
    pub code: String,
    /// A sentence for people.
    pub message: String,
    /// What to quote when asking the operator. Only messages of a WebSocket have none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(required = true)]
    pub request_id: String,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl From<PathRejection> for Failure {
    fn from(rejection: PathRejection) -> Self {
        Self(Error::MalformedRequest {
            reason: rejection.body_text(),
        })
    }
}

/// The only parameter of a path. One that is no text is refused like everything else, in one shape.
pub struct Id(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let Path(id) = Path::from_request_parts(parts, state).await?;
        Ok(Self(id))
    }
}

/// Travels with the answer to [`complete`].
#[derive(Clone)]
struct Cause(Error);

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        response.extensions_mut().insert(Cause(self.0));
        response
    }
}

impl ErrorBody {
    /// What clients are told: of what failed inside only that it did.
    pub fn new(error: &Error, request_id: &str) -> Self {
        let message = match error {
            Error::Internal { .. } => {
                "something failed inside the daemon; its log has more under this request's id"
                    .into()
            }
            Error::UnsupportedHost {
                missing,
                reason,
                fix,
                weaken: Some(_),
            } => {
                format!(
                    "this host cannot give {missing}: {reason}; to provide it: {fix}{CONTAINERS}"
                )
            }
            _ => error.to_string(),
        };
        Self {
            error: ErrorDetail {
                code: error.code().into(),
                message,
                request_id: request_id.into(),
            },
        }
    }
}

/// Turns a failure into its answer, and logs what is ours to mend. Other answers pass.
pub fn complete(mut response: Response, request_id: &str) -> Response {
    let Some(Cause(error)) = response.extensions_mut().remove::<Cause>() else {
        return response;
    };
    if let Error::Internal { step, reason } = &error {
        tracing::error!(request_id, step, reason, "internal");
    }
    let body = ErrorBody::new(&error, request_id);
    let body = serde_json::to_vec(&body).unwrap_or_default();
    let mut response = Response::new(Body::from(body));
    *response.status_mut() =
        StatusCode::from_u16(error.info().http_status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    match &error {
        Error::Overloaded { retry_after_s, .. } => {
            headers.insert(RETRY_AFTER, HeaderValue::from(*retry_after_s));
        }
        Error::Unauthorized { .. } => {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        Error::MethodNotAllowed { allowed, .. } => {
            if let Ok(allowed) = HeaderValue::from_str(allowed) {
                headers.insert(ALLOW, allowed);
            }
        }
        // So that a client can ask again (RFC 9110, 15.5.17).
        Error::InvalidRange { bytes, .. } => {
            if let Ok(whole) = HeaderValue::from_str(&format!("bytes */{bytes}")) {
                headers.insert(CONTENT_RANGE, whole);
            }
        }
        _ => {}
    }
    response
}

#[cfg(test)]
mod tests {
    use belljar_spec::Weakening;

    use super::*;

    /// Nobody can give a daemon flags of the command line.
    #[test]
    fn a_daemon_names_its_own_way_around() {
        let error = |weaken| Error::UnsupportedHost {
            missing: "limits".into(),
            reason: "no cgroup".into(),
            fix: "run it as root".into(),
            weaken,
        };
        let told = |error: &Error| ErrorBody::new(error, "").error.message;
        let around = told(&error(Some(Weakening::Cgroups)));
        assert_eq!(
            around,
            "this host cannot give limits: no cgroup; to provide it: run it as root; or have containers run the code, with \
             `backend = \"docker\"` in the daemon's settings"
        );
        let none = told(&error(None));
        assert!(none.ends_with("to provide it: run it as root"), "{none}");
        let command = error(Some(Weakening::Cgroups)).to_string();
        assert!(
            command.ends_with("; or give it up with `--weaken cgroups`"),
            "{command}"
        );
    }
}
