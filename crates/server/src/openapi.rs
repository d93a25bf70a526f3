//! All routes, and their description.

use axum::http::{Method, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router, middleware};
use belljar_spec::{Error, shown};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{InfoBuilder, OpenApi, OpenApiBuilder, SecurityRequirement};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::Shared;
use crate::failure::Failure;
use crate::guard::guard;
use crate::{archive, channel, files, runs, sandboxes, sessions, status, terminal};

fn described() -> OpenApiRouter<Shared> {
    OpenApiRouter::with_openapi(about())
        .routes(routes!(runs::create, runs::list))
        .routes(routes!(runs::show))
        .routes(routes!(runs::examine))
        .routes(routes!(runs::answer))
        .routes(routes!(runs::stats))
        .routes(routes!(sandboxes::create, sandboxes::list))
        .routes(routes!(
            sandboxes::show,
            sandboxes::change,
            sandboxes::delete
        ))
        .routes(routes!(sandboxes::interrupt))
        .routes(routes!(sandboxes::reset))
        .routes(routes!(sandboxes::renew))
        .routes(routes!(sandboxes::usage))
        .routes(routes!(sandboxes::connections))
        .routes(routes!(sessions::run))
        .routes(routes!(sessions::command))
        .routes(routes!(sessions::answer))
        .routes(routes!(channel::open))
        .routes(routes!(terminal::open))
        .routes(routes!(files::list))
        .routes(routes!(files::read, files::write, files::delete))
        .routes(routes!(archive::read, archive::write))
        .routes(routes!(status::runtimes))
        .routes(routes!(status::doctor))
        .routes(routes!(status::healthz))
        .routes(routes!(status::readyz))
        .routes(routes!(status::metrics))
}

fn about() -> OpenApi {
    let info = InfoBuilder::new()
        .title("Belljar")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some("Runs code you do not trust, fully isolated."))
        .build();
    let mut api = OpenApiBuilder::new()
        .info(info)
        .security(Some([SecurityRequirement::new("key", [""; 0])]))
        .build();
    let key = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    api.components
        .get_or_insert_default()
        .add_security_scheme("key", key);
    api
}

/// The description, with paths as `OpenAPI` writes them.
pub fn document() -> OpenApi {
    let mut api = described().to_openapi();
    let paths = std::mem::take(&mut api.paths.paths);
    api.paths.paths = paths
        .into_iter()
        .map(|(path, item)| (path.replace("{*", "{"), item))
        .collect();
    api
}

pub fn router(app: Shared) -> Router {
    let (routes, _) = described().split_for_parts();
    let document = Json(document());
    routes
        .route("/", get(status::welcome))
        .route("/openapi.json", get(|| async { document }))
        .fallback(nowhere)
        .method_not_allowed_fallback(no_such_method)
        .layer(middleware::from_fn_with_state(app.clone(), guard))
        .with_state(app)
}

async fn nowhere(uri: Uri) -> Failure {
    Failure(Error::NotFound {
        what: "path",
        given: shown(uri.path()),
        nearest: None,
    })
}

async fn no_such_method(method: Method) -> Response {
    Failure(Error::MethodNotAllowed {
        method: shown(method.as_str()),
        allowed: "another method; /openapi.json lists them".into(),
    })
    .into_response()
}
