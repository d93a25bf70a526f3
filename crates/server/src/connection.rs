//! Sockets: who may connect, how long a connection may stand still, how all of them end.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use belljar_spec::Error;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use crate::app::Shared;
use crate::guard::Peer;

/// A request's line and headers.
const HEAD_BYTES: usize = 64 << 10;
const MAX_HEADERS: usize = 64;

/// How often it is looked whether all has ended.
const LOOK: Duration = Duration::from_millis(20);
/// For those who were ended to be counted and recorded, and to hear of it.
pub const LAST_WORDS: Duration = Duration::from_secs(2);

/// Where to listen. The caller makes the sockets.
#[derive(Default)]
pub struct Listeners {
    pub tcp: Option<(TcpListener, Option<TlsAcceptor>)>,
    pub unix: Option<UnixListener>,
}

impl Listeners {
    /// Into the log, for those who see nothing else.
    pub fn tell(&self) {
        if let Some((listener, tls)) = &self.tcp
            && let Ok(address) = listener.local_addr()
        {
            tracing::info!(%address, tls = tls.is_some(), "listening");
        }
        let path = self.unix.as_ref().and_then(|unix| unix.local_addr().ok());
        if let Some(path) = path.as_ref().and_then(|address| address.as_pathname()) {
            tracing::info!(path = %path.display(), "listening");
        }
    }
}

/// Many may come at once: with a short queue, connections that seem made are lost.
const QUEUE: u32 = 4096;

pub fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(QUEUE)
}

/// A socket for this user alone. One that a dead daemon left is replaced.
pub fn bind_unix(path: &Path) -> Result<UnixListener, Error> {
    let failed =
        |error: io::Error| Error::invalid_file("unix", &path.to_string_lossy(), error.to_string());
    if let Ok(there) = std::fs::symlink_metadata(path) {
        if !there.file_type().is_socket() {
            return Err(Error::invalid_file(
                "unix",
                &path.to_string_lossy(),
                "something else is there",
            ));
        }
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(Error::invalid_file(
                "unix",
                &path.to_string_lossy(),
                "another daemon listens there",
            ));
        }
        std::fs::remove_file(path).map_err(failed)?;
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    // Nobody else could connect before: the peer's user is checked as well.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(path, mode).map_err(failed)?;
    Ok(listener)
}

/// Serves until `shutdown`, then lets what goes on finish for a while, then ends it.
pub async fn serve(
    app: Shared,
    router: Router,
    listeners: Listeners,
    shutdown: impl Future<Output = ()>,
) {
    let Listeners { tcp, unix } = listeners;
    let places = Arc::new(Semaphore::new(app.config.http.connections));
    let owner = std::fs::metadata("/proc/self").map_or(u32::MAX, |own| own.uid());
    let (closing, _) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let (stream, tls, peer) = tokio::select! {
            () = &mut shutdown => break,
            accepted = accept_tcp(tcp.as_ref()) => accepted,
            accepted = accept_unix(unix.as_ref(), owner) => accepted,
            Some(_) = connections.join_next() => continue,
        };
        // One place for each; who finds none is not kept waiting.
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            app.metrics.rejected("connections");
            continue;
        };
        let (app, router, closing) = (Arc::clone(&app), router.clone(), closing.subscribe());
        connections.spawn(async move {
            app.metrics.connections.inc();
            connection(&app, router, stream, tls, peer, closing).await;
            app.metrics.connections.dec();
            drop(place);
        });
    }
    drop((tcp, unix));
    closing.send_replace(true);
    // Also those whose client is at a channel, or has gone.
    let all = async {
        while connections.join_next().await.is_some() {}
        while app.metrics.running.get() > 0 {
            sleep(LOOK).await;
        }
    };
    if tokio::time::timeout(app.config.http.shutdown_timeout, all)
        .await
        .is_err()
    {
        tracing::warn!("ending what did not finish in time");
    }
    app.ending.send_replace(true);
    // Those that end now are still told so, and recorded.
    let rest = async {
        while connections.join_next().await.is_some() {}
        while app.metrics.running.get() + app.metrics.terminals.get() > 0 {
            sleep(LOOK).await;
        }
    };
    let _ = tokio::time::timeout(LAST_WORDS, rest).await;
    connections.shutdown().await;
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

type Accepted = (Box<dyn Stream>, Option<TlsAcceptor>, Peer);

/// Out of descriptors, most likely: wait for some to be closed instead of trying at full speed.
async fn pause(error: &io::Error) {
    tracing::warn!(%error, "cannot accept a connection");
    sleep(Duration::from_millis(50)).await;
}

async fn accept_tcp(listener: Option<&(TcpListener, Option<TlsAcceptor>)>) -> Accepted {
    let Some((listener, tls)) = listener else {
        return std::future::pending().await;
    };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let _ = stream.set_nodelay(true);
                return (Box::new(stream), tls.clone(), Peer::Tcp);
            }
            Err(error) => pause(&error).await,
        }
    }
}

async fn accept_unix(listener: Option<&UnixListener>, owner: u32) -> Accepted {
    let Some(listener) = listener else {
        return std::future::pending().await;
    };
    loop {
        match listener.accept().await {
            Ok((stream, _)) if is_owner(&stream, owner) => {
                return (Box::new(stream), None, Peer::Owner);
            }
            Ok(_) => tracing::warn!("another user tried the unix socket"),
            Err(error) => pause(&error).await,
        }
    }
}

fn is_owner(stream: &UnixStream, owner: u32) -> bool {
    stream
        .peer_cred()
        .is_ok_and(|peer| peer.uid() == owner || peer.uid() == 0)
}

async fn connection(
    app: &Shared,
    router: Router,
    stream: Box<dyn Stream>,
    tls: Option<TlsAcceptor>,
    peer: Peer,
    mut closing: watch::Receiver<bool>,
) {
    let settings = &app.config.http;
    let stream = Unstuck::new(stream, settings.write_timeout);
    let stream: Box<dyn Stream> = match tls {
        None => Box::new(stream),
        Some(tls) => match tokio::time::timeout(settings.read_timeout, tls.accept(stream)).await {
            Ok(Ok(stream)) => Box::new(stream),
            _ => return,
        },
    };
    let service = router.map_request(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        request.map(axum::body::Body::new)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(settings.read_timeout)
        .max_buf_size(HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service))
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        done = connection.as_mut() => {
            if let Err(error) = done {
                tracing::debug!(%error, "a connection broke off");
            }
            return;
        }
        _ = closing.wait_for(|closing| *closing) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

/// Fails a write that waits too long for its reader.
struct Unstuck {
    stream: Box<dyn Stream>,
    patience: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl Unstuck {
    fn new(stream: Box<dyn Stream>, patience: Duration) -> Self {
        Self {
            stream,
            patience,
            waiting: None,
        }
    }

    fn watch<T>(
        &mut self,
        cx: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.waiting = None;
            return polled;
        }
        let patience = self.patience;
        let waiting = self
            .waiting
            .get_or_insert_with(|| Box::pin(sleep(patience)));
        match waiting.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Unstuck {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Unstuck {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch(cx, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.watch(cx, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.watch(cx, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.watch(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
