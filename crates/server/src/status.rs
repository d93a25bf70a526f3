//! How the daemon and its host are.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{Html, IntoResponse, Response};
use belljar::runtime::Listed;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::app::Shared;
use crate::failure::{ErrorBody, Failure};
use crate::guard::Caller;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Whether something holds, and what does not.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Health {
    pub ok: bool,
    /// The daemon's.
    pub version: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

/// Whether the daemon answers
#[utoipa::path(get, path = "/healthz", tag = "status", security(()),
    responses((status = 200, body = Health), (status = "4XX", body = ErrorBody)))]
pub async fn healthz() -> Json<Health> {
    Json(Health {
        ok: true,
        version: VERSION.into(),
        problems: Vec::new(),
    })
}

/// Whether the daemon can run code now
#[utoipa::path(get, path = "/readyz", tag = "status", security(()),
    responses((status = 200, body = Health), (status = 503, body = Health), (status = "4XX", body = ErrorBody)))]
pub async fn readyz(State(app): State<Shared>) -> Response {
    let checks = [
        (
            app.engine.is_alive(),
            "the keeper of the sandboxes has ended",
        ),
        (
            app.examination.ok,
            "this host cannot isolate; see /v1/doctor",
        ),
        (app.history.works(), "the history cannot be written"),
        (!*app.ending.borrow(), "the daemon is stopping"),
    ];
    let problems: Vec<_> = checks
        .iter()
        .filter(|(ok, _)| !ok)
        .map(|(_, problem)| (*problem).to_owned())
        .collect();
    let ok = problems.is_empty();
    let status = if ok {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let health = Health {
        ok,
        version: VERSION.into(),
        problems,
    };
    (status, Json(health)).into_response()
}

/// Numbers for Prometheus
#[utoipa::path(get, path = "/metrics", tag = "status",
    responses((status = 200, body = String, content_type = "application/openmetrics-text"), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)))]
pub async fn metrics(
    State(app): State<Shared>,
    Caller(tenant): Caller,
) -> Result<Response, Failure> {
    tenant.must_be_admin()?;
    let waiting = i64::try_from(app.admission.waiting()).unwrap_or(i64::MAX);
    app.metrics.waiting.set(waiting);
    app.metrics.set_pools(app.pools.ready());
    app.metrics.set_traffic(app.engine.traffic());
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(CONTENT_TYPE, kind)], app.metrics.text()?).into_response())
}

/// Languages, and what this host has of them
#[utoipa::path(get, path = "/v1/runtimes", tag = "status",
    responses((status = 200, body = Vec<Object>), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)))]
pub async fn runtimes(State(app): State<Shared>, _: Caller) -> Result<Json<Vec<Listed>>, Failure> {
    Ok(Json(app.languages.list().await?))
}

/// What this host can enforce, and how to turn on what it cannot
#[utoipa::path(get, path = "/v1/doctor", tag = "status",
    responses((status = 200, body = Object), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)))]
pub async fn doctor(State(app): State<Shared>, _: Caller) -> Response {
    Json(&app.examination).into_response()
}

/// What a browser sees that opens the printed address.
pub async fn welcome() -> Html<&'static str> {
    Html(
        "<!doctype html><meta charset=utf-8><title>Belljar</title><h1>Belljar</h1><p>The daemon runs. What it can do: <a href=/openapi.json>/openapi.json</a>.",
    )
}
