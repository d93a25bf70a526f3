//! All routes, and their description.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::MatchedPath;
use axum::http::{Method, Uri};
use axum::routing::get;
use axum::{Extension, Json, Router, middleware};
use belljar_spec::{Error, shown};
use serde_json::{Value, json};
use utoipa::openapi::header::Header;
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{Object, Type};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{InfoBuilder, OpenApi, OpenApiBuilder, RefOr, SecurityRequirement};
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

/// The statuses that matter to clients one by one, where a route just says that it may refuse.
fn name_refusals(operation: &mut Operation, named: bool) {
    let takes_body = operation.request_body.is_some();
    let answers = &mut operation.responses.responses;
    let Some(RefOr::T(refused)) = answers.get("4XX").cloned() else {
        return;
    };
    for (status, there, meaning) in [
        ("400", true, "Something in the request is not accepted"),
        ("401", true, "There is no key, or it is not known"),
        ("404", named || takes_body, "It is not there"),
        (
            "409",
            named || takes_body,
            "Something else went on meanwhile",
        ),
        ("413", takes_body, "It is too large"),
        ("422", takes_body, "What was asked for cannot be done here"),
        ("429", named || takes_body, "There is no room now"),
    ] {
        if !there {
            continue;
        }
        let mut answer = refused.clone();
        meaning.clone_into(&mut answer.description);
        if status == "429" {
            let mut seconds = Header::new(Object::with_type(Type::Integer));
            seconds.description = Some("In how many seconds to try again".into());
            answer.headers.insert("Retry-After".into(), seconds.into());
        }
        answers.insert(status.into(), answer.into());
    }
}

/// What may be left out of a request may be null as well. Requests are told by this: they have no fields but those described.
fn allow_null(schema: &mut Value) {
    match schema {
        Value::Object(parts) => {
            if parts.get("additionalProperties") == Some(&Value::Bool(false)) {
                let required = parts.get("required").cloned().unwrap_or(json!([]));
                let properties = parts.get_mut("properties").and_then(Value::as_object_mut);
                for (name, property) in properties.into_iter().flatten() {
                    let needed = required
                        .as_array()
                        .is_some_and(|all| all.contains(&json!(name)));
                    if !needed {
                        or_null(property);
                    }
                }
            }
            parts.values_mut().for_each(allow_null);
        }
        Value::Array(parts) => parts.iter_mut().for_each(allow_null),
        _ => {}
    }
}

fn or_null(property: &mut Value) {
    let nothing = json!({"type": "null"});
    let choices = property["oneOf"].as_array();
    if let Some(name) = property["type"].as_str() {
        property["type"] = json!([name, "null"]);
    } else if property.get("$ref").is_some() || choices.is_some_and(|all| !all.contains(&nothing)) {
        *property = json!({"oneOf": [nothing, property.take()]});
    }
}

/// The description, with paths as `OpenAPI` writes them.
pub fn document() -> Value {
    let mut api = described().to_openapi();
    let paths = std::mem::take(&mut api.paths.paths);
    api.paths.paths = paths
        .into_iter()
        .map(|(path, mut item)| {
            let named = path.contains('{');
            let methods = [&mut item.get, &mut item.post, &mut item.put];
            let others = [&mut item.patch, &mut item.delete];
            let operations = methods.into_iter().chain(others).flatten();
            operations.for_each(|operation| name_refusals(operation, named));
            (path.replace("{*", "{"), item)
        })
        .collect();
    let mut document = json!(api);
    allow_null(&mut document["components"]["schemas"]);
    document
}

pub fn router(app: Shared) -> Router {
    let (routes, api) = described().split_for_parts();
    let allowed = Arc::new(allowed(&api));
    let other_method = move |method: Method, path: Option<Extension<MatchedPath>>| {
        let path = path.map(|Extension(path)| path);
        let failure = no_such_method(&method, path.as_ref(), &allowed);
        std::future::ready(failure)
    };
    let document = Json(document());
    routes
        .route("/", get(status::welcome))
        .route("/openapi.json", get(|| async { document }))
        .fallback(nowhere)
        .method_not_allowed_fallback(other_method)
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

/// What each path takes, as the header `Allow` says it.
fn allowed(api: &OpenApi) -> HashMap<String, String> {
    let paths = api.paths.paths.iter();
    let methods = paths.map(|(path, item)| {
        let methods = [
            (item.get.is_some(), "GET, HEAD"),
            (item.post.is_some(), "POST"),
            (item.put.is_some(), "PUT"),
            (item.patch.is_some(), "PATCH"),
            (item.delete.is_some(), "DELETE"),
        ];
        let there: Vec<_> = methods.iter().filter(|(there, _)| *there).collect();
        let names: Vec<_> = there.iter().map(|(_, name)| *name).collect();
        (path.clone(), names.join(", "))
    });
    methods.collect()
}

fn no_such_method(
    method: &Method,
    path: Option<&MatchedPath>,
    allowed: &HashMap<String, String>,
) -> Failure {
    let known = path.and_then(|path| allowed.get(path.as_str()));
    Failure(Error::MethodNotAllowed {
        method: shown(method.as_str()),
        // The others are not described: they are to be looked at.
        allowed: known.map_or_else(|| "GET, HEAD".into(), Clone::clone),
    })
}

#[cfg(test)]
mod tests {
    use belljar_spec::{CodeRequest, CommandRequest, RunRequest, SandboxRequest, from_json};
    use serde::de::DeserializeOwned;

    use super::*;
    use crate::sandboxes::{Renewal, SandboxPatch};
    use crate::sessions::Answer;

    /// As it is read with a field that is null, and without it.
    fn check<T: DeserializeOwned + std::fmt::Debug>(
        fields: &Value,
        name: &str,
        least: &Value,
        place: &dyn Fn(Value) -> Value,
    ) {
        let schema = &fields[name];
        assert_eq!(schema["additionalProperties"], false, "{name}: {schema}");
        let read = |fields: Value| {
            from_json::<T>(place(fields).to_string().as_bytes()).map(|read| format!("{read:?}"))
        };
        let without = read(least.clone()).unwrap();
        for (field, about) in schema["properties"].as_object().unwrap() {
            let mut given = least.clone();
            given[field] = Value::Null;
            let required = schema["required"].as_array();
            if required.is_some_and(|all| all.contains(&json!(field))) {
                read(given).unwrap_err();
                continue;
            }
            let with = read(given).unwrap_or_else(|error| panic!("{name}.{field}: {error}"));
            assert_eq!(with, without, "{name}.{field}");
            let text = about.to_string();
            let anything = about.get("type").or(about.get("oneOf")).is_none();
            assert!(
                anything || text.contains(r#""null""#),
                "{name}.{field}: {text}"
            );
        }
    }

    #[test]
    fn what_may_be_left_out_may_be_null() {
        let api = document();
        let all = &api["components"]["schemas"];
        let itself = |fields| fields;
        check::<RunRequest>(all, "RunRequest", &json!({"code": "1"}), &itself);
        check::<SandboxRequest>(all, "SandboxRequest", &json!({}), &itself);
        check::<CodeRequest>(all, "CodeRequest", &json!({"code": "1"}), &itself);
        check::<CommandRequest>(all, "CommandRequest", &json!({}), &itself);
        check::<SandboxPatch>(all, "SandboxPatch", &json!({}), &itself);
        check::<Renewal>(all, "Renewal", &json!({}), &itself);
        check::<Answer>(all, "Answer", &json!({"call": 1}), &itself);
        let error = |error| json!({"call": 1, "error": error});
        check::<Answer>(all, "ToolError", &json!({"message": "m"}), &error);
        let limits = |limits| json!({"code": "1", "limits": limits});
        check::<RunRequest>(all, "LimitsPatch", &json!({}), &limits);
        let tools = |tool| json!({"code": "1", "tools": [tool]});
        check::<RunRequest>(all, "Tool", &json!({"name": "f"}), &tools);
        let forms = &all["Network"]["oneOf"];
        let caps = json!({"caps": forms[2], "rule": forms[1]["items"]["oneOf"][1]});
        let network = |network| json!({"code": "1", "network": network});
        check::<RunRequest>(&caps, "caps", &json!({"allow": "all"}), &network);
        let rules = |rule| json!({"code": "1", "network": [rule]});
        check::<RunRequest>(&caps, "rule", &json!({"host": "example.org"}), &rules);
    }
}
