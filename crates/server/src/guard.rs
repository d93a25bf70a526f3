//! What every request passes before a handler sees it, and every answer on its way out.
//!
//! A browser on this machine may be made to call us by any page: so the Host must be an address or a name that is ours
//! (a name that was pointed here is not), an Origin must be our own or allowed, and only the latter gets CORS headers.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use belljar_spec::{Error, shown};

use crate::answer;
use crate::app::Shared;
use crate::clock;
use crate::config::Config;
use crate::cors;
use crate::failure::{Failure, complete};
use crate::leftover;
use crate::tenants::Tenant;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// How a browser, which cannot set headers there, sends its key when it opens a WebSocket: as a subprotocol.
pub const KEY_PROTOCOL: &str = "belljar.key.";
/// What needs no key: whether we live, and what can be asked.
const OPEN: [&str; 4] = ["/", "/healthz", "/readyz", "/openapi.json"];

/// Who is at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    Tcp,
    /// The kernel says who: root or the user that we run as.
    Owner,
}

/// The name of a request in logs and errors.
#[derive(Debug, Clone)]
pub struct RequestId(pub String);

/// Whoever is asking, seen by handlers.
#[derive(Debug, Clone)]
pub struct Caller(pub Tenant);

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        let caller = parts.extensions.get::<Self>().cloned();
        caller.ok_or_else(|| Failure(Error::internal("guard", "nobody asked who is asking")))
    }
}

impl<S: Sync> FromRequestParts<S> for RequestId {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        let id = parts.extensions.get::<Self>().cloned();
        id.ok_or_else(|| Failure(Error::internal("guard", "a request without an id")))
    }
}

/// A request that has no answer yet. Its client may go before there is one.
struct Unanswered(Shared);

impl Unanswered {
    fn new(app: &Shared) -> Self {
        app.requests.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(app))
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        let now = clock::now_millis();
        self.0.last_request_ms.store(now, Ordering::Relaxed);
        // A glance at both that finds none open finds the time of the last.
        self.0.requests.fetch_sub(1, Ordering::Release);
    }
}

pub async fn guard(State(app): State<Shared>, mut request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let _unanswered = Unanswered::new(&app);
    let id = match belljar::random_bits() {
        Ok(bits) => format!("req_{bits:032x}"),
        Err(_) => "req_none".into(),
    };
    request.extensions_mut().insert(RequestId(id.clone()));
    let method = request.method().clone();
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or_else(|| "none".to_owned(), |path| path.as_str().to_owned());
    let origin = cors::origin(&app.config, request.headers());
    let mut tenant = String::new();
    let mut request = leftover::lend(request);
    let response = match check(&app, &request) {
        Ok(None) if cors::is_question(&app.config, &request) => cors::answer(),
        Ok(caller) => {
            if let Some(caller) = caller {
                tenant.clone_from(&caller.0.name);
                request.extensions_mut().insert(caller);
            }
            next.run(request).await
        }
        Err(error) => Failure(error).into_response(),
    };
    let response = answer::hold(&app, response).await;
    let mut response = complete(response, &id);
    let status = response.status().as_u16();
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    // For a browser that is made to look at an answer: it is data, not a page.
    response.headers_mut().insert(
        HeaderName::from_static("x-content-type-options"),
        HeaderValue::from_static("nosniff"),
    );
    cors::show(&app.config, origin, response.headers_mut());
    app.metrics.answered(method.as_str(), &route, status);
    let ms = begun.elapsed().as_secs_f64() * 1000.0;
    // Whoever waits for the answer does not wait for this, too.
    tokio::spawn(async move {
        let (request_id, method) = (id, method.as_str());
        tracing::info!(request_id, method, route, status, tenant, ms, "request");
    });
    response
}

fn check(app: &Shared, request: &Request) -> Result<Option<Caller>, Error> {
    let peer = request.extensions().get::<Peer>().copied();
    let headers = request.headers();
    if peer != Some(Peer::Owner) {
        check_host(
            &app.config,
            headers,
            request
                .uri()
                .authority()
                .map(axum::http::uri::Authority::as_str),
        )?;
    }
    check_origin(&app.config, headers)?;
    if OPEN.contains(&request.uri().path()) || cors::is_question(&app.config, request) {
        return Ok(None);
    }
    if peer == Some(Peer::Owner) && !headers.contains_key(AUTHORIZATION) {
        return Ok(Some(Caller(Tenant::admin())));
    }
    let key = bearer(headers)
        .or_else(|| websocket_key(headers))
        .ok_or_else(|| Error::Unauthorized {
            reason: "send your key in the header Authorization: Bearer".into(),
        })?;
    let tenant = app.tenants.find(key);
    tenant
        .map(|tenant| Some(Caller(tenant.clone())))
        .ok_or_else(|| Error::Unauthorized {
            reason: "this key is not known here".into(),
        })
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, key) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}

/// Only from a page of ours: without an Origin there is no browser, and no reason not to send a header.
fn websocket_key(headers: &HeaderMap) -> Option<&str> {
    if !headers.contains_key(UPGRADE) || !headers.contains_key(ORIGIN) {
        return None;
    }
    let offered = headers.get(SEC_WEBSOCKET_PROTOCOL)?.to_str().ok()?;
    offered
        .split(',')
        .find_map(|protocol| protocol.trim().strip_prefix(KEY_PROTOCOL))
}

fn check_host(config: &Config, headers: &HeaderMap, authority: Option<&str>) -> Result<(), Error> {
    let mut hosts = headers.get_all(HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.to_str().ok(),
        (None, None) => authority,
        _ => None,
    };
    let refused = |given: &str| Error::Forbidden {
        reason: format!(
            "the daemon does not answer to the host {}; call it by address or localhost, or add the name to `hosts` in its settings",
            shown(given)
        ),
    };
    let host = host.ok_or_else(|| refused(""))?;
    if is_ours(config, host_name(host)) {
        Ok(())
    } else {
        Err(refused(host))
    }
}

/// Without the port, and without the brackets of IPv6.
fn host_name(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split_once(']').map_or("", |(name, _)| name);
    }
    host.rsplit_once(':').map_or(host, |(name, _)| name)
}

fn is_ours(config: &Config, name: &str) -> bool {
    name.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || config
            .hosts
            .iter()
            .any(|known| known.eq_ignore_ascii_case(name))
}

fn check_origin(config: &Config, headers: &HeaderMap) -> Result<(), Error> {
    let Some(origin) = headers.get(ORIGIN) else {
        return Ok(());
    };
    let origin = origin.to_str().unwrap_or("");
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let own = origin
        .strip_prefix("http://")
        .or_else(|| origin.strip_prefix("https://"))
        .is_some_and(|rest| host.is_some_and(|host| host.eq_ignore_ascii_case(rest)));
    if own || config.origins.iter().any(|known| known == origin) {
        return Ok(());
    }
    Err(Error::Forbidden {
        reason: format!(
            "pages of {} may not call this daemon; add the origin to `origins` in its settings",
            shown(origin)
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        let config = Config {
            hosts: vec!["jar.example.org".into()],
            ..Config::default()
        };
        for good in [
            "127.0.0.1:7117",
            "localhost",
            "LOCALHOST:1",
            "[::1]:7117",
            "10.0.0.3",
            "jar.example.org:443",
        ] {
            assert!(is_ours(&config, host_name(good)), "{good}");
        }
        for bad in [
            "",
            "evil.com",
            "127.evil.com:7117",
            "127.0.0.1.evil.com",
            "localhost.evil.com",
            "xjar.example.org",
            "[::1",
            "127.1",
            "0x7f000001",
            "localhost@evil.com",
        ] {
            assert!(!is_ours(&config, host_name(bad)), "{bad}");
        }
    }

    #[test]
    fn origins() {
        let config = Config {
            origins: vec!["https://page.example.org".into()],
            ..Config::default()
        };
        let check = |origin: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, HeaderValue::from_static("localhost:7117"));
            headers.insert(ORIGIN, HeaderValue::from_static(origin));
            check_origin(&config, &headers).is_ok()
        };
        assert!(check("http://localhost:7117") && check("https://page.example.org"));
        for bad in [
            "null",
            "",
            "http://localhost",
            "http://localhost:7117.evil.com",
            "file://localhost:7117",
            "http://evil.com",
        ] {
            assert!(!check(bad), "{bad}");
        }
    }
}
