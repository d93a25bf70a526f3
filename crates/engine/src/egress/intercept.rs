//! TLS that is opened on the way, to a host whose rule has headers, for a sandbox that was given our certificate.

use std::io::Cursor;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, join, split};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::rustls::pki_types::ServerName;

use super::Desk;
use super::authority::Authority;
use super::first::{First, server_name};
use super::hello;
use super::http;
use super::policy::{self, Host};
use super::settle::Upward;
use super::tunnel::{Cut, Line, Up, exchange};

const HANDSHAKE_TIME: Duration = Duration::from_secs(20);

/// The authority, if this connection is to be opened.
pub fn wanted(desk: &Desk, host: &Host, port: u16) -> Option<Arc<Authority>> {
    let network = desk.network();
    let opened = network.intercept && policy::with_headers(&network, host, port).is_some();
    opened.then(|| desk.world.authority().ok()).flatten()
}

/// Bytes both ways, in the clear in between. What is not TLS goes on as it is.
pub async fn carry(
    desk: &Desk,
    authority: &Authority,
    mut client: TcpStream,
    mut early: Vec<u8>,
    line: &mut Line,
    upward: &Upward,
) -> Result<(), Cut> {
    let entry = Arc::clone(&line.entry);
    let host = line.host.clone();
    let first = First {
        desk,
        host: &host,
        port: line.port,
    };
    early.reserve(16 << 10);
    if early.is_empty() && client.read_buf(&mut early).await? == 0 {
        return Err(Cut::Broken);
    }
    if early.first() != Some(&hello::HANDSHAKE) {
        let (from, to) = client.into_split();
        let (from_server, to_server) = line.stream.split();
        return exchange(
            &first,
            &entry,
            (from, to),
            (from_server, to_server),
            early,
            Up::Unknown,
            upward,
        )
        .await;
    }
    let late = |_| Cut::Refused("the TLS handshake took too long".into());
    let name = timeout(HANDSHAKE_TIME, server_name(&mut client, &mut early)).await;
    first.check_server_name(name.map_err(late)??.as_deref())?;
    let acceptor = authority.acceptor(&host.to_string())?;
    let (from_client, to_client) = client.into_split();
    let inside = join(Cursor::new(early).chain(from_client), to_client);
    let inside = timeout(HANDSHAKE_TIME, acceptor.accept(inside)).await;
    let mut inside = inside.map_err(late)??;
    let name = ServerName::try_from(host.to_string()).map_err(|_| Cut::Broken)?;
    let outside = authority.connector().connect(name, &mut line.stream);
    let outside = match timeout(HANDSHAKE_TIME, outside).await {
        Ok(Ok(outside)) => outside,
        failed => {
            let reason = match failed {
                Ok(Err(error)) => format!("no TLS with {host}: {error}"),
                _ => format!("no TLS with {host}: it did not answer in time"),
            };
            entry.end(Some(&reason));
            inside.write_all(&http::answer(502, &reason)).await?;
            let _ = inside.shutdown().await;
            return Err(Cut::Broken);
        }
    };
    let (from, to) = split(inside);
    let (from_server, to_server) = split(outside);
    exchange(
        &first,
        &entry,
        (from, to),
        (from_server, to_server),
        Vec::new(),
        Up::Unknown,
        upward,
    )
    .await
}
