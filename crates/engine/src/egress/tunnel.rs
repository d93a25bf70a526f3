//! One connection outwards: allowed, looked up, pinned, connected; then bytes both ways, until somebody ends it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::Desk;
use super::dns;
use super::entry::{Attempt, Entry};
use super::first::{First, Words};
use super::flow::Flow;
use super::http::Length;
use super::intercept;
use super::meter::Spent;
use super::policy::{self, Host};
use super::settle::{Upward, Watched};

const CONNECT_TIME: Duration = Duration::from_secs(10);
const MAX_ADDRESSES: usize = 4;

/// Why there is no connection.
pub enum NoWay {
    /// The rules are against it.
    Refused(String),
    /// It could not be made.
    Failed(String),
}

/// A connection that was made.
pub struct Line {
    pub stream: TcpStream,
    pub host: Host,
    pub port: u16,
    pub entry: Arc<Entry>,
    address: SocketAddr,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.entry.end(None);
    }
}

/// Connects to a host if the rules allow it, to an address that they allow.
pub async fn connect(desk: &Desk, text: &str, port: u16) -> Result<Line, NoWay> {
    let attempt = Attempt(desk.log.begin(text, port));
    let entry = &attempt.0;
    let made = try_connect(desk, text, port, entry).await;
    match &made {
        Ok(_) => desk.world.count(true),
        Err(NoWay::Refused(reason)) => {
            entry.refuse(reason);
            desk.world.count(false);
        }
        Err(NoWay::Failed(reason)) => {
            entry.end(Some(reason));
            desk.world.count(true);
        }
    }
    made
}

async fn try_connect(
    desk: &Desk,
    text: &str,
    port: u16,
    entry: &Arc<Entry>,
) -> Result<Line, NoWay> {
    let refused = |refusal: policy::Refusal| NoWay::Refused(refusal.0);
    let odd = || NoWay::Refused("that is neither a host name nor a plain address".into());
    let mut host = Host::parse(text).ok_or_else(odd)?;
    if let Host::Address(address) = host
        && let Some(name) = desk.stand.name_of(address)
    {
        host = Host::Name(name);
    }
    policy::may_try(&desk.network(), &host, port).map_err(refused)?;
    let found = match &host {
        Host::Address(address) => vec![*address],
        Host::Name(name) => {
            // Asking tells something too: to whoever answers for the name.
            let asked = desk.meter.admit(dns::query_length(name)).await;
            asked.map_err(|Spent| NoWay::Refused(Spent::REASON.into()))?;
            let found = desk.world.resolver.look_up(name).await;
            found.map_err(|failure| NoWay::Failed(format!("{name}: {failure}")))?
        }
    };
    // By the rules of that moment: they may change while a name is looked up, or while an address does not answer.
    let allowed = |address: &IpAddr| {
        policy::may_reach(&desk.network(), &host, *address, port)?;
        if desk.world.opens(*address, port) {
            return Ok(());
        }
        let reason = "is not public, and not among those that the settings open (network.private)";
        Err(policy::Refusal(format!("{address} {reason}")))
    };
    let fit: Vec<_> = found.iter().filter(|at| allowed(at).is_ok()).collect();
    if fit.is_empty() {
        let none = || policy::Refusal(format!("{host} has no address"));
        let why = found.first().and_then(|address| allowed(address).err());
        return Err(refused(why.unwrap_or_else(none)));
    }
    let mut last = String::new();
    for address in fit.into_iter().take(MAX_ADDRESSES) {
        allowed(address).map_err(refused)?;
        let address = SocketAddr::new(*address, port);
        entry.allow(address);
        match timeout(CONNECT_TIME, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                let _ = stream.set_nodelay(true);
                return Ok(Line {
                    stream,
                    host,
                    port,
                    entry: Arc::clone(entry),
                    address,
                });
            }
            Ok(Err(error)) => last = error.to_string(),
            Err(_) => "it did not answer in time".clone_into(&mut last),
        }
    }
    Err(NoWay::Failed(format!("{host}:{port}: {last}")))
}

/// Why bytes stopped.
pub enum Cut {
    /// As connections do.
    Broken,
    /// It was allowed so far, and why it went no further.
    Ended(&'static str),
    Refused(String),
}

impl From<io::Error> for Cut {
    fn from(_: io::Error) -> Self {
        Self::Broken
    }
}

/// What the client still has to send.
pub enum Up {
    /// It is looked at first.
    Unknown,
    /// A request, its head of so many bytes ready to be sent.
    Request {
        head: u64,
        length: Length,
        upgrade: bool,
    },
}

/// Bytes both ways until both sides have ended, the rules change, or the caps are reached. `early` came with the request.
pub async fn carry(
    desk: &Desk,
    client: TcpStream,
    early: Vec<u8>,
    up: Up,
    mut line: Line,
    upward: &Upward,
) {
    let entry = Arc::clone(&line.entry);
    let (host, address) = (line.host.clone(), line.address);
    let opened = match up {
        Up::Unknown => intercept::wanted(desk, &host, line.port),
        Up::Request { .. } => None,
    };
    let carried = async {
        if let Some(authority) = &opened {
            return intercept::carry(desk, authority, client, early, &mut line, upward).await;
        }
        let first = First {
            desk,
            host: &host,
            port: line.port,
        };
        let inside = client.into_split();
        let outside = line.stream.split();
        exchange(&first, &entry, inside, outside, early, up, upward).await
    };
    // What it holds is closed after the end has been recorded, for whoever sees that end to find it.
    let mut carried = std::pin::pin!(carried);
    // The rules come first: nothing passes once they have changed.
    let ended = tokio::select! {
        biased;
        cut = forbidden(desk, &host, address) => Err(cut),
        ended = &mut carried => ended,
    };
    match ended {
        Ok(()) | Err(Cut::Broken) => entry.end(None),
        Err(Cut::Ended(reason)) => entry.end(Some(reason)),
        Err(Cut::Refused(reason)) => {
            entry.refuse(&reason);
            desk.world.count(false);
        }
    }
}

/// Both directions between what is inside and what is outside.
pub async fn exchange(
    first: &First<'_>,
    entry: &Entry,
    (from_client, mut to_client): (impl AsyncRead + Unpin, impl AsyncWrite + Unpin),
    (mut from_server, mut to_server): (impl AsyncRead + Unpin, impl AsyncWrite + Unpin),
    early: Vec<u8>,
    up: Up,
    upward: &Upward,
) -> Result<(), Cut> {
    let upwards = Flow {
        desk: first.desk,
        counter: &entry.sent,
        sent: true,
    };
    let downwards = Flow {
        desk: first.desk,
        counter: &entry.received,
        sent: false,
    };
    let (verdict, switched) = oneshot::channel();
    let asked = AtomicBool::new(false);
    let to_server = &mut to_server;
    let sent = async {
        let mut from = Watched {
            from: from_client,
            upward,
        };
        let told = (&asked, switched);
        let sent = send(&upwards, first, &mut from, to_server, (early, up), told).await;
        upward.end();
        sent
    };
    let received = downwards.answers(&mut from_server, &mut to_client, &asked, verdict);
    let ended = tokio::try_join!(sent, received).map(drop);
    if let Err(Cut::Refused(reason)) = &ended {
        entry.refuse(reason);
    }
    ended
}

/// Returns when the rules, as they are by then, would not have let this connection be.
async fn forbidden(desk: &Desk, host: &Host, address: SocketAddr) -> Cut {
    let mut rules = desk.rules.clone();
    loop {
        let network = Arc::clone(&rules.borrow_and_update());
        if policy::may_reach(&network, host, address.ip(), address.port()).is_err() {
            return Cut::Refused("the rules were changed".into());
        }
        if rules.changed().await.is_err() {
            return Cut::Ended("the sandbox has ended");
        }
    }
}

/// Everything from the client. What the server says is an answer once it has been `asked`; `switched` is whether it has changed to
/// another protocol, as it was asked to.
async fn send(
    flow: &Flow<'_>,
    first: &First<'_>,
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    (mut early, up): (Vec<u8>, Up),
    (asked, switched): (&AtomicBool, oneshot::Receiver<bool>),
) -> Result<(), Cut> {
    let (length, upgrade) = match up {
        Up::Request {
            head,
            length,
            upgrade,
        } => {
            asked.store(true, Ordering::Release);
            flow.exactly(from, to, &mut early, head).await?;
            (length, upgrade)
        }
        Up::Unknown => match first.words(flow, from, to, &mut early).await? {
            Words::Any => return flow.all(from, to, early).await,
            Words::Request(head, passed) => {
                let length = head.body().map_err(|_| Cut::Broken)?;
                asked.store(true, Ordering::Release);
                flow.pass(to, &head.to_bytes()[passed..]).await?;
                (length, head.upgrades())
            }
        },
    };
    match length {
        Length::Known(count) => flow.exactly(from, to, &mut early, count).await?,
        Length::Chunked => flow.chunks(from, to, &mut early).await?,
    }
    to.flush().await?;
    // Until the server has agreed, what comes is another request to it.
    if upgrade && switched.await == Ok(true) {
        return flow.all(from, to, early).await;
    }
    // One request for each connection: another one could be for another host.
    if early.is_empty() && from.read_buf(&mut early).await? == 0 {
        return Ok(());
    }
    Err(Cut::Ended(
        "another request came on a connection that carries one, as the answer to the first says",
    ))
}

#[cfg(test)]
pub mod tests;
