//! Speaking to the daemon: HTTP over its unix socket, or over TCP, with TLS where the URL says so.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
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
        let key = std::env::var("BELLJAR_TOKEN").ok().or_else(kept);
        // The socket's owner needs none.
        let key = key.filter(|_| {
            matches!(place, Place::Tcp { .. }) || std::env::var_os("BELLJAR_TOKEN").is_some()
        });
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
        let stream = connector.connect(name, stream).await.with_context(|| {
            format!("{address} does not prove who it is; SSL_CERT_FILE names a file with the certificates to trust")
        })?;
        Ok(Box::new(stream))
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
        Ok(sender.send_request(request).await?)
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
        let mut text = Vec::new();
        while let Some(frame) = stream.frame().await {
            let Ok(data) = frame?.into_data() else {
                continue;
            };
            text.extend_from_slice(&data);
            if text.len() > MOST_BYTES {
                bail!("the daemon's answer is too large");
            }
            while let Some(end) = text.windows(2).position(|two| two == b"\n\n") {
                let block: Vec<_> = text.drain(..end + 2).collect();
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
    let (address, tls, port) = url
        .strip_prefix("http://")
        .map(|rest| (rest, false, 80))
        .or_else(|| url.strip_prefix("https://").map(|rest| (rest, true, 443)))
        .ok_or_else(|| anyhow!("BELLJAR_URL: give http[s]://HOST:PORT or unix:///PATH"))?;
    let address = address.trim_end_matches('/');
    let has_port = address
        .rsplit(':')
        .next()
        .is_some_and(|port| port.parse::<u16>().is_ok());
    Ok(Place::Tcp {
        address: if has_port {
            address.to_owned()
        } else {
            format!("{address}:{port}")
        },
        tls,
    })
}

/// What the daemon says is wrong.
fn refusal(status: StatusCode, body: &[u8]) -> anyhow::Error {
    match serde_json::from_slice::<ErrorBody>(body) {
        Ok(body) => anyhow!("{}", body.error.message),
        Err(_) => anyhow!("the daemon answered with {status}"),
    }
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
