//! Speaking to the daemon: HTTP over its unix socket, or over TCP, with TLS where the URL says so.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use belljar::trust;
use belljar_server::ErrorBody;
use belljar_spec::Content;
use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::Error as TlsError;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Error as WebSocketError;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::serve::state_directory;

const DEFAULT_ADDRESS: &str = "127.0.0.1:7117";
/// More than any answer that is read as a whole.
const MOST_BYTES: usize = 256 << 20;

/// Bytes that fit into a request in any case, unless the daemon's settings allow less than usual.
pub const CARRIED_BYTES: usize = 23 << 20;

/// Bytes as a request carries them: as text, where that is not longer for all that has to be escaped in it.
pub fn carried(bytes: Vec<u8>) -> Content {
    let longer = |byte: &&u8| **byte < b' ' || matches!(**byte, b'"' | b'\\');
    if bytes.iter().filter(longer).count() > bytes.len() / 16 {
        return Content::Bytes(bytes);
    }
    bytes.into()
}

/// A connection of either kind.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

pub type Body = BoxBody<Bytes, std::io::Error>;

/// Where the daemon is, and the key to it.
pub struct Client {
    place: Place,
    key: Option<String>,
}

enum Place {
    Unix(PathBuf),
    Tcp { address: String, tls: bool },
}

pub fn whole(bytes: impl Into<Bytes>) -> Body {
    let never = |never: std::convert::Infallible| match never {};
    BoxBody::new(Full::new(bytes.into()).map_err(never))
}

/// A part of a path, with what is not plain written as `%XX`. Slashes stay.
pub fn encoded(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    path.bytes()
        .map(|byte| {
            if plain(byte) {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}

impl Client {
    /// As `BELLJAR_URL` says, else this user's own daemon.
    pub fn from_env() -> Result<Self> {
        let state = state_directory().ok();
        let socket = state.as_ref().map(|state| state.join("belljar.sock"));
        let place = match (std::env::var("BELLJAR_URL"), socket) {
            (Ok(url), _) => place(&url)?,
            (Err(_), Some(path)) if path.exists() => Place::Unix(path),
            _ => Place::Tcp {
                address: DEFAULT_ADDRESS.into(),
                tls: false,
            },
        };
        let kept = || std::fs::read_to_string(state?.join("token")).ok();
        let given = std::env::var("BELLJAR_TOKEN").ok();
        // An empty one is none.
        let given = given.filter(|token| !token.trim().is_empty());
        let key = match place {
            // Its owner needs none.
            Place::Unix(_) => given,
            Place::Tcp { .. } => given.or_else(kept),
        };
        Ok(Self {
            place,
            key: key.map(|key| key.trim().to_owned()),
        })
    }

    /// As requests name it.
    fn host(&self) -> &str {
        match &self.place {
            Place::Unix(_) => "localhost",
            Place::Tcp { address, .. } => address,
        }
    }

    async fn connect(&self) -> Result<Box<dyn Stream>> {
        let (address, tls) = match &self.place {
            Place::Unix(path) => {
                let stream = UnixStream::connect(path).await;
                let stream = stream.map_err(|error| nobody(&path.display().to_string(), &error))?;
                return Ok(Box::new(stream));
            }
            Place::Tcp { address, tls } => (address, *tls),
        };
        let stream = TcpStream::connect(address).await;
        let stream = stream.map_err(|error| nobody(address, &error))?;
        if !tls {
            return Ok(Box::new(stream));
        }
        let connector = TlsConnector::from(Arc::new(trust::client(&trust::certificates())?));
        let host = address
            .rsplit_once(':')
            .map_or(&**address, |(host, _)| host);
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())?;
        let stream = connector.connect(name, stream).await.map_err(|error| {
            if is_no_tls(&error) {
                return anyhow!("{address} does not speak TLS; if it speaks plain HTTP, set BELLJAR_URL=http://{address}");
            }
            let reason = format!("{address} does not prove who it is; SSL_CERT_FILE names a file with the certificates to trust");
            anyhow::Error::new(error).context(reason)
        })?;
        Ok(Box::new(stream))
    }

    /// What is said of an answer that makes no sense as one.
    fn no_http(&self) -> Option<anyhow::Error> {
        match &self.place {
            Place::Tcp {
                address,
                tls: false,
            } => Some(anyhow!(
                "{address} does not speak plain HTTP; if it speaks TLS, set BELLJAR_URL=https://{address}"
            )),
            _ => None,
        }
    }

    /// The answer, whatever it says.
    async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(hyper::header::HeaderName, &str)],
        body: Body,
    ) -> Result<Response<Incoming>> {
        let mut request = Request::builder().method(method).uri(path);
        request = request.header(HOST, self.host());
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, format!("Bearer {key}"));
        }
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        let request = request.body(body)?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(self.connect().await?)).await?;
        tokio::spawn(connection);
        match sender.send_request(request).await {
            Err(error) if error.is_parse() => Err(self.no_http().unwrap_or_else(|| error.into())),
            answer => Ok(answer?),
        }
    }

    /// A WebSocket.
    pub async fn socket(&self, path: &str) -> Result<WebSocketStream<Box<dyn Stream>>> {
        let stream = self.connect().await?;
        let host = self.host();
        let mut request = format!("ws://{host}{path}").into_client_request()?;
        if let Some(key) = &self.key {
            let value = format!("Bearer {key}").parse()?;
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        match tokio_tungstenite::client_async(request, stream).await {
            Ok((socket, _)) => Ok(socket),
            Err(WebSocketError::Http(answer)) => {
                let status = answer.status();
                let body = answer.into_body().unwrap_or_default();
                Err(refusal(status, &body))
            }
            Err(error @ (WebSocketError::Protocol(_) | WebSocketError::HttpFormat(_))) => {
                Err(self.no_http().unwrap_or_else(|| error.into()))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The answer, if it is a success; else what the daemon says is wrong.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(hyper::header::HeaderName, &str)],
        body: Body,
    ) -> Result<Response<Incoming>> {
        let answer = self.send(method, path, headers, body).await?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status();
        let bytes = read(answer.into_body()).await.unwrap_or_default();
        Err(refusal(status, &bytes))
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let answer = self.ask(Method::GET, path, &[], whole("")).await?;
        Ok(serde_json::from_slice(&read(answer.into_body()).await?)?)
    }

    pub async fn post<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T> {
        let headers = [(CONTENT_TYPE, "application/json")];
        let body = whole(body.to_string());
        let answer = self.ask(Method::POST, path, &headers, body).await?;
        Ok(serde_json::from_slice(&read(answer.into_body()).await?)?)
    }

    pub async fn delete(&self, path: &str) -> Result<()> {
        self.ask(Method::DELETE, path, &[], whole(""))
            .await
            .map(drop)
    }

    /// Each event with its data, as they come.
    pub async fn events(
        &self,
        path: &str,
        body: &Value,
        mut each: impl FnMut(&str, Value) -> Result<()>,
    ) -> Result<()> {
        let headers = [
            (CONTENT_TYPE, "application/json"),
            (ACCEPT, "text/event-stream"),
        ];
        let body = whole(body.to_string());
        let answer = self.ask(Method::POST, path, &headers, body).await?;
        let mut stream = answer.into_body();
        let mut blocks = Blocks::default();
        while let Some(frame) = stream.frame().await {
            let Ok(data) = frame?.into_data() else {
                continue;
            };
            blocks.text.extend_from_slice(&data);
            if blocks.text.len() > MOST_BYTES {
                bail!("the daemon's answer is too large");
            }
            while let Some(block) = blocks.take() {
                let block = String::from_utf8_lossy(&block);
                let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name));
                if let (Some(name), Some(data)) = (field("event: "), field("data: ")) {
                    each(name, serde_json::from_str(data)?)?;
                }
            }
        }
        Ok(())
    }
}

fn place(url: &str) -> Result<Place> {
    if let Some(path) = url.strip_prefix("unix://") {
        return Ok(Place::Unix(path.into()));
    }
    let accepted = "BELLJAR_URL: give http[s]://HOST:PORT or unix:///PATH";
    let (address, tls, usual) = url
        .strip_prefix("http://")
        .map(|rest| (rest, false, 80))
        .or_else(|| url.strip_prefix("https://").map(|rest| (rest, true, 443)))
        .ok_or_else(|| anyhow!(accepted))?;
    let address = address.trim_end_matches('/');
    // Not shown: what follows may be a token, as in the address that a browser is given.
    if address.contains(['/', '?', '#', '@']) {
        bail!("{accepted}, without a path or anything else after the port or before the host");
    }
    // An address of IPv6 stands in brackets.
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()),
        _ => (address, Some(usual)),
    };
    let is_bare = host.contains(':') && !(host.starts_with('[') && host.ends_with(']'));
    let port: u16 = port
        .filter(|_| !host.is_empty() && !is_bare)
        .ok_or_else(|| anyhow!(accepted))?;
    Ok(Place::Tcp {
        address: format!("{host}:{port}"),
        tls,
    })
}

/// What has come of the events, each of which ends with an empty line.
#[derive(Default)]
struct Blocks {
    text: Vec<u8>,
    /// So much of it has been searched for an end. An event can be as large as all of the output, and comes in small pieces.
    searched: usize,
}

impl Blocks {
    /// The next that is complete.
    fn take(&mut self) -> Option<Vec<u8>> {
        let mut rest = self.text[self.searched..].windows(2);
        let Some(end) = rest.position(|two| two == b"\n\n") else {
            // The last byte may be the first of two.
            self.searched = self.text.len().saturating_sub(1);
            return None;
        };
        let block = self.text.drain(..self.searched + end + 2).collect();
        self.searched = 0;
        Some(block)
    }
}

/// What the daemon says is wrong.
#[derive(Debug)]
pub struct Refusal {
    /// Its stable name.
    pub code: String,
    message: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Refusal {}

fn refusal(status: StatusCode, body: &[u8]) -> anyhow::Error {
    match serde_json::from_slice::<ErrorBody>(body) {
        Ok(body) => Refusal {
            code: body.error.code,
            message: body.error.message,
        }
        .into(),
        Err(_) => anyhow!("the daemon answered with {status}"),
    }
}

/// Whoever is there answered with something else than TLS has.
fn is_no_tls(error: &std::io::Error) -> bool {
    let told = error.get_ref();
    let told = told.and_then(|told| told.downcast_ref::<TlsError>());
    matches!(told, Some(TlsError::InvalidMessage(_)))
}

fn nobody(place: &str, error: &std::io::Error) -> anyhow::Error {
    anyhow!("no daemon answers at {place} ({error}); start one with: belljar serve")
}

pub async fn read(mut body: Incoming) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            bytes.extend_from_slice(&data);
        }
        if bytes.len() > MOST_BYTES {
            bail!("the daemon's answer is too large");
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn where_the_daemon_is() {
        for (url, found, over_tls) in [
            ("http://localhost", "localhost:80", false),
            ("http://localhost:7117/", "localhost:7117", false),
            ("https://example.org", "example.org:443", true),
            ("https://[::1]", "[::1]:443", true),
            ("http://[::1]:7117", "[::1]:7117", false),
        ] {
            let Ok(Place::Tcp { address, tls }) = place(url) else {
                panic!("{url}");
            };
            assert_eq!((address.as_str(), tls), (found, over_tls), "{url}");
        }
        for url in [
            "",
            "localhost:7117",
            "http://",
            "http://:7117",
            "http://localhost:99999",
            "http://::1:7117",
            "http://localhost:7117/api",
            "http://localhost:7117/#token=bj_secret",
            "http://bj_secret@localhost:7117",
        ] {
            let error = place(url).err().expect(url).to_string();
            assert!(error.contains("HOST:PORT") && !error.contains("secret"));
        }
    }

    #[test]
    fn events_are_told_apart_however_they_come() {
        let text = b"event: a\ndata: 1\n\nevent: b\ndata: 2\n\nevent";
        for piece in 1..text.len() {
            let mut blocks = Blocks::default();
            let mut found = Vec::new();
            for piece in text.chunks(piece) {
                blocks.text.extend_from_slice(piece);
                found.extend(std::iter::from_fn(|| blocks.take()));
            }
            let expected = [&text[..18], &text[18..36]];
            assert_eq!(found, expected);
            assert_eq!(blocks.text, b"event");
        }
    }

    /// To search all of it anew for every piece would take minutes.
    #[test]
    fn a_large_event_takes_no_longer_for_its_pieces() {
        let began = Instant::now();
        let mut blocks = Blocks::default();
        for _ in 0..16_384 {
            blocks.text.extend_from_slice(&[b'x'; 4096]);
            assert!(blocks.take().is_none());
        }
        blocks.text.extend_from_slice(b"\n\n");
        assert_eq!(blocks.take().map(|block| block.len()), Some((64 << 20) + 2));
        assert!(began.elapsed() < Duration::from_secs(30));
    }
}
