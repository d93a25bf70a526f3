//! What is asked of a registry, and how much of its answers is taken.
//!
//! The requests are our own: `oci-client` reads manifests, tokens and refusals as a whole, however long a stranger makes
//! them. Here nothing is read without a bound for its bytes and one for its time.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use oci_client::errors::{OciEnvelope, OciErrorCode};
use reqwest::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, RANGE, WWW_AUTHENTICATE,
};
use reqwest::{Response, StatusCode, Url};
use serde::Deserialize;
use tokio::time::{Instant, timeout, timeout_at};

use super::credentials::{self, Login};
use super::reference::Name;
use crate::cause::innermost;

const ACCEPTED: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, \
     application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.list.v2+json";
const CONNECT_TIME: Duration = Duration::from_secs(15);
/// For an answer to begin, for a description to be there as a whole, and between two pieces of a layer.
const ANSWER_TIME: Duration = Duration::from_mins(1);
/// Of a layer, in that time.
pub(super) const LEAST_BYTES: u64 = 256 << 10;
const MOST_TOKEN: u64 = 1 << 20;
const MOST_REFUSAL: u64 = 64 << 10;
const LOG_IN: &str = "the registry wants to know who asks, or does not let you; log in with `docker login`, or put the \
     credentials into config.json in the directory that DOCKER_CONFIG names";
const NO_TOKENS: &str = "the registry gives no tokens, and an identity token is all that `docker login` has left; log in \
     with a password or an access token";

/// How registries are spoken to.
#[derive(Debug, Clone, Default)]
pub struct Registries {
    /// Those that are spoken to without TLS, besides those on this machine.
    pub insecure: Vec<String>,
}

impl Registries {
    fn is_insecure(&self, registry: &str) -> bool {
        let host = registry.rsplit_once(':').map_or(registry, |(host, _)| host);
        let address = host.trim_start_matches('[').trim_end_matches(']');
        let local = address
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback());
        host == "localhost" || local || self.insecure.iter().any(|known| known == registry)
    }
}

/// Why a pull failed: what the registry did, or our own disk.
#[derive(Debug)]
pub(super) enum Failure {
    Registry(String),
    /// What need not be tried again.
    Lie(String),
    Disk(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}

impl From<reqwest::Error> for Failure {
    fn from(error: reqwest::Error) -> Self {
        let reason = plain(&innermost(&error));
        lie(if error.is_connect() {
            format!("the registry cannot be reached: {reason}")
        } else {
            reason
        })
    }
}

pub(super) fn lie(text: impl Into<String>) -> Failure {
    Failure::Registry(text.into())
}

/// A stranger's words for a line of a terminal.
fn plain(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(300).collect()
}

/// One registry that is being asked for one image.
pub(super) struct Registry {
    http: reqwest::Client,
    /// Of the image's repository.
    base: String,
    scope: String,
    auth: Login,
    /// What the registry wants to be told with each request, once it has said so.
    authorization: Mutex<Option<HeaderValue>>,
}

impl Registry {
    pub async fn open(name: &Name, registries: &Registries) -> Result<Self, Failure> {
        let host = name.registry().to_owned();
        let auth = tokio::task::spawn_blocking(move || credentials::login(&host)).await;
        let auth = auth.map_err(|error| lie(error.to_string()))?.map_err(lie)?;
        let secure = !registries.is_insecure(name.registry());
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIME)
            .read_timeout(ANSWER_TIME)
            .user_agent(concat!("belljar/", env!("CARGO_PKG_VERSION")))
            // Wherever it sends us, for a layer or for a token.
            .https_only(secure);
        let reference = name.reference();
        let repository = reference.repository();
        let scheme = if secure { "https" } else { "http" };
        Ok(Self {
            http: http.build()?,
            base: format!(
                "{scheme}://{}/v2/{repository}",
                reference.resolve_registry()
            ),
            scope: format!("repository:{repository}:pull"),
            auth,
            authorization: Mutex::default(),
        })
    }

    /// A manifest, an index or a configuration: all of it, and the digest that the registry says it has.
    pub async fn description(
        &self,
        path: &str,
        most: u64,
    ) -> Result<(Vec<u8>, Option<String>), Failure> {
        let asked = async {
            let answer = self.get(path, 0).await?;
            let said = answer.headers().get("docker-content-digest");
            let said = said.map(|said| String::from_utf8_lossy(said.as_bytes()).into_owned());
            Ok((text(answer, most).await?, said))
        };
        timeout(ANSWER_TIME, asked)
            .await
            .map_err(|_| lie("the registry did not answer in time"))?
    }

    /// The answer to a request for something of the repository, from a byte on; asked again when it wants to know who asks.
    pub async fn get(&self, path: &str, from: u64) -> Result<Response, Failure> {
        let asked = async {
            let answer = self.ask(path, from).await?;
            if answer.status() != StatusCode::UNAUTHORIZED {
                return Ok(answer);
            }
            let authorization = self.authorize(answer.headers()).await?;
            *self.authorization() = Some(authorization);
            self.ask(path, from).await
        };
        let answer = timeout(ANSWER_TIME, asked)
            .await
            .map_err(|_| lie("the registry did not answer in time"))??;
        if answer.status().is_success() {
            return Ok(answer);
        }
        Err(refusal(answer, path.starts_with("manifests/")).await)
    }

    async fn ask(&self, path: &str, from: u64) -> Result<Response, Failure> {
        let url = format!("{}/{path}", self.base);
        let mut request = self.http.get(url).header(ACCEPT, ACCEPTED);
        if from > 0 {
            request = request.header(RANGE, format!("bytes={from}-"));
        }
        let authorization = self.authorization().clone();
        if let Some(authorization) = authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        Ok(request.send().await?)
    }

    fn authorization(&self) -> std::sync::MutexGuard<'_, Option<HeaderValue>> {
        let held = self.authorization.lock();
        held.unwrap_or_else(PoisonError::into_inner)
    }

    /// What to say after an answer that asks for it.
    async fn authorize(&self, headers: &HeaderMap) -> Result<HeaderValue, Failure> {
        let asked = headers.get_all(WWW_AUTHENTICATE).iter();
        let asked: Vec<_> = asked.filter_map(|value| value.to_str().ok()).collect();
        let with = |scheme: &str| {
            asked.iter().find_map(|value| {
                let (name, rest) = value.split_once(' ').unwrap_or((value, ""));
                name.eq_ignore_ascii_case(scheme).then_some(rest)
            })
        };
        let said = match (&self.auth, with("bearer"), with("basic")) {
            (_, Some(challenge), _) => format!("Bearer {}", self.token(challenge).await?),
            (Login::Password(name, password), None, Some(_)) => {
                use base64::Engine as _;
                let both = format!("{name}:{password}");
                let engine = base64::engine::general_purpose::STANDARD;
                format!("Basic {}", engine.encode(both))
            }
            (Login::Identity(_), None, Some(_)) => return Err(lie(NO_TOKENS)),
            _ => return Err(lie(LOG_IN)),
        };
        let mut value = HeaderValue::from_str(&said)
            .map_err(|_| lie("the registry gave a token that is none"))?;
        value.set_sensitive(true);
        Ok(value)
    }

    /// From where the registry says that one gets it.
    async fn token(&self, challenge: &str) -> Result<String, Failure> {
        #[derive(Deserialize)]
        struct Answer {
            token: Option<String>,
            access_token: Option<String>,
        }
        let broken =
            || lie("the registry asks for a token, but does not say properly where to get it");
        let realm = parameter(challenge, "realm").ok_or_else(broken)?;
        let mut url = Url::parse(&realm).map_err(|_| broken())?;
        let bare = url.clone();
        if let Some(service) = parameter(challenge, "service") {
            url.query_pairs_mut().append_pair("service", &service);
        }
        url.query_pairs_mut().append_pair("scope", &self.scope);
        let request = match &self.auth {
            Login::Nobody => self.http.get(url),
            Login::Password(name, password) => self.http.get(url).basic_auth(name, Some(password)),
            Login::Identity(identity) => {
                // The same parameters, but in a form: this one is secret.
                url.query_pairs_mut()
                    .append_pair("grant_type", "refresh_token")
                    .append_pair("client_id", "belljar")
                    .append_pair("refresh_token", identity);
                let form = url.query().unwrap_or_default().to_owned();
                let kind = "application/x-www-form-urlencoded";
                self.http.post(bare).header(CONTENT_TYPE, kind).body(form)
            }
        };
        let answer = request.send().await?;
        if !answer.status().is_success() {
            return Err(refusal(answer, false).await);
        }
        let text = text(answer, MOST_TOKEN).await?;
        let none = || lie("the registry gave a token that is none");
        let answer: Answer = serde_json::from_slice(&text).map_err(|_| none())?;
        answer.token.or(answer.access_token).ok_or_else(none)
    }
}

/// One parameter of a challenge: `realm="https://…",service="…"`.
fn parameter(challenge: &str, wanted: &str) -> Option<String> {
    let mut rest = challenge;
    loop {
        let (name, after) = rest.split_once('=')?;
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => after.split_once(',').unwrap_or((after, "")),
        };
        if name.trim_matches([' ', ',']).eq_ignore_ascii_case(wanted) {
            return Some(value.trim().to_owned());
        }
        rest = after;
    }
}

/// All of an answer.
async fn text(answer: Response, most: u64) -> Result<Vec<u8>, Failure> {
    let large = || {
        lie(format!(
            "the registry's answer is too large: more than {most} bytes"
        ))
    };
    if answer.content_length().is_some_and(|bytes| bytes > most) {
        return Err(large());
    }
    let mut text = Vec::new();
    let mut pieces = answer.bytes_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| broken(&error))?;
        if (text.len() + piece.len()) as u64 > most {
            return Err(large());
        }
        text.extend_from_slice(&piece);
    }
    Ok(text)
}

/// Why there is nothing, as far as the registry says so in few words.
async fn refusal(answer: Response, is_manifest: bool) -> Failure {
    let status = answer.status();
    let said = timeout(CONNECT_TIME, text(answer, MOST_REFUSAL)).await;
    let said = said.ok().and_then(Result::ok);
    let said: Option<OciEnvelope> = said.and_then(|text| serde_json::from_slice(&text).ok());
    let errors = said.map_or_else(Vec::new, |said| said.errors);
    let has = |codes: &[OciErrorCode]| errors.iter().any(|error| codes.contains(&error.code));
    if has(&[OciErrorCode::ManifestUnknown, OciErrorCode::NameUnknown])
        || (is_manifest && status == StatusCode::NOT_FOUND)
    {
        return lie("the registry has no such image");
    }
    if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
        || has(&[OciErrorCode::Unauthorized, OciErrorCode::Denied])
    {
        return lie(LOG_IN);
    }
    let message = errors.first().map_or("", |error| error.message.as_str());
    lie(plain(&format!("the registry answered {status} {message}")))
}

fn broken(error: &(dyn std::error::Error + 'static)) -> Failure {
    lie(plain(&format!(
        "the download broke off: {}",
        innermost(error)
    )))
}

/// How fast something has to come: so much of it in each stretch of time.
pub(super) struct Pace {
    stretch: Duration,
    least: u64,
    until: Instant,
    came: u64,
}

impl Pace {
    /// Of a layer.
    pub fn new() -> Self {
        Self::of(ANSWER_TIME, LEAST_BYTES)
    }

    fn of(stretch: Duration, least: u64) -> Self {
        Self {
            stretch,
            least,
            until: Instant::now() + stretch,
            came: 0,
        }
    }

    /// The next piece, or none at the end.
    pub async fn next<E: std::error::Error + 'static>(
        &mut self,
        pieces: &mut (impl Stream<Item = Result<Bytes, E>> + Unpin),
    ) -> Result<Option<Bytes>, Failure> {
        loop {
            let piece = if Instant::now() < self.until {
                timeout_at(self.until, pieces.next()).await.ok()
            } else {
                None
            };
            if let Some(piece) = piece {
                let piece = piece.transpose().map_err(|error| broken(&error))?;
                self.came += piece.as_ref().map_or(0, |piece| piece.len() as u64);
                return Ok(piece);
            }
            if self.came < self.least {
                let reason =
                    "the registry sends too slowly; pull it again later, and it goes on from here";
                return Err(lie(reason));
            }
            *self = Self::of(self.stretch, self.least);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_spoken_to_in_the_clear() {
        let registries = Registries {
            insecure: vec!["r.example:5000".into()],
        };
        for clear in [
            "localhost:5000",
            "localhost",
            "127.0.0.1:1",
            "[::1]:5000",
            "r.example:5000",
        ] {
            assert!(registries.is_insecure(clear), "{clear}");
        }
        for other in [
            "docker.io",
            "r.example",
            "127.0.0.1.example:5",
            "localhost.example",
            "10.0.0.1:5000",
        ] {
            assert!(!registries.is_insecure(other), "{other}");
        }
    }

    #[test]
    fn challenges() {
        let text = r#"realm="https://a.example/token?x=1",service="r.example, Inc", scope=repository:a:pull,error="no""#;
        let of = |name| parameter(text, name);
        assert_eq!(of("realm").as_deref(), Some("https://a.example/token?x=1"));
        assert_eq!(of("service").as_deref(), Some("r.example, Inc"));
        assert_eq!(of("scope").as_deref(), Some("repository:a:pull"));
        assert_eq!(of("nothing"), None);
        for broken in ["", "realm", "realm=\"x", "=,=,"] {
            assert_eq!(parameter(broken, "realm"), None, "{broken}");
        }
    }

    #[tokio::test]
    async fn what_drips_is_given_up() {
        let drops = |count: u32| {
            let drops = futures_util::stream::iter(0..count).then(|_| async {
                tokio::time::sleep(Duration::from_millis(5)).await;
                Ok::<_, io::Error>(Bytes::from_static(b"x"))
            });
            Box::pin(drops)
        };
        let mut pace = Pace::of(Duration::from_millis(100), 1000);
        let mut endless = drops(u32::MAX);
        let mut came = 0;
        let failure = loop {
            match pace.next(&mut endless).await {
                Ok(piece) => came += piece.map_or(0, |piece| piece.len()),
                Err(failure) => break failure,
            }
        };
        assert!(came < 1000, "{came}");
        let slowly = |text: &str| text.contains("too slowly");
        assert!(
            matches!(&failure, Failure::Registry(text) if slowly(text)),
            "{failure:?}"
        );
        // What is enough goes on for as long as it takes.
        let mut pace = Pace::of(Duration::from_millis(20), 0);
        let mut some = drops(60);
        let mut came = 0;
        while let Some(piece) = pace.next(&mut some).await.unwrap() {
            came += piece.len();
        }
        assert_eq!(came, 60);
    }
}
