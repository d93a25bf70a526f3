//! Where connections from inside arrive: what they want is read, and sent on its way or refused.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::Desk;
use super::http::{self, Bad, Head};
use super::policy::{self, Host};
use super::settle::Rings;
use super::socks;
use super::tunnel::{self, Line, NoWay, Up};

/// For a client to say what it wants.
const HEAD_TIME: Duration = Duration::from_secs(30);
/// For a client that there is no place for to say in which words it wants to hear that.
const TURN_AWAY_TIME: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Door {
    Proxy,
    /// For whoever connects to the address that stands for a host.
    Direct,
}

/// What is left to do once it is clear who is meant: bytes that came already, what is still to come, the connection.
pub type Next = io::Result<Option<(Vec<u8>, Up, Line)>>;

pub async fn serve(desk: Arc<Desk>, listener: TcpListener, door: Door, mut rings: Rings) {
    loop {
        let accepted = tokio::select! {
            biased;
            accepted = listener.accept() => accepted,
            // Nobody waits at the door.
            Some(ring) = rings.recv() => {
                let _ = ring.send(());
                continue;
            }
        };
        let Ok((mut stream, _)) = accepted else {
            // No descriptors left, most likely; others may give some back.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let place = match desk.place() {
            Ok(place) => place,
            Err(reason) => {
                turn_away(&desk, stream, door, reason);
                continue;
            }
        };
        let (desk, upward) = (Arc::clone(&desk), desk.tide.begin());
        tokio::spawn(async move {
            let served = async {
                match door {
                    Door::Proxy => serve_proxy(&desk, &mut stream).await,
                    Door::Direct => serve_direct(&desk, &mut stream).await,
                }
            };
            if let Some(Ok(Some((early, up, line)))) = desk.until_gone(served).await {
                tunnel::carry(&desk, stream, early, up, line, &upward).await;
            }
            drop(place);
        });
    }
}

/// In the words of whoever came, where there are not too many of them.
fn turn_away(desk: &Desk, mut stream: TcpStream, door: Door, reason: &'static str) {
    desk.turned_away(&stream, reason);
    if door == Door::Direct {
        return;
    }
    let Ok(porter) = Arc::clone(&desk.world.porter).try_acquire_owned() else {
        let _ = stream.try_write(&http::answer(503, reason));
        return;
    };
    tokio::spawn(async move {
        let mut first = [0];
        match timeout(TURN_AWAY_TIME, stream.peek(&mut first)).await {
            Ok(Ok(1..)) if first[0] == socks::VERSION => {
                let _ = stream.write_all(&socks::NO_WAY_IN).await;
            }
            Ok(Ok(1..)) => {
                let _ = say(&mut stream, 503, reason).await;
            }
            _ => {}
        }
        drop(porter);
    });
}

async fn serve_direct(desk: &Desk, stream: &mut TcpStream) -> Next {
    let at = stream.local_addr()?;
    let name = match desk.stand.name_of(at.ip()) {
        Some(name) => name,
        // `localhost` is never looked up: it leads here, and where a rule names it, from here to the host's.
        None if policy::may_try(&desk.network(), &localhost(), at.port()).is_ok() => {
            localhost().to_string()
        }
        None => at.ip().to_string(),
    };
    let line = tunnel::connect(desk, &name, at.port()).await.ok();
    Ok(line.map(|line| (Vec::new(), Up::Unknown, line)))
}

fn localhost() -> Host {
    Host::Name("localhost".into())
}

async fn serve_proxy(desk: &Desk, stream: &mut TcpStream) -> Next {
    let mut buffer = Vec::with_capacity(4096);
    let first = timeout(HEAD_TIME, stream.read_buf(&mut buffer)).await;
    match (first, buffer.first()) {
        (Ok(Ok(1..)), Some(&socks::VERSION)) => {
            let asked = timeout(HEAD_TIME, socks::request(stream, &mut buffer)).await;
            if let Some((host, port)) = asked.map_err(|_| io::ErrorKind::TimedOut)?? {
                return socks::connect(desk, stream, buffer, &host, port).await;
            }
            desk.turned_away(stream, "that is no request of SOCKS5 that can be served");
            Ok(None)
        }
        (Ok(Ok(1..)), _) => {
            let head = timeout(HEAD_TIME, http::read_head(stream, &mut buffer)).await;
            let head = match head {
                Ok(head) => head?,
                Err(_) => Err(Bad(408, "the request did not come in time")),
            };
            match head {
                Ok(Some(head)) => serve_http(desk, stream, head, buffer).await,
                Ok(None) => Ok(None),
                Err(bad) => refuse(desk, stream, &bad).await,
            }
        }
        _ => Ok(None),
    }
}

/// Told, too: what is no request could be an attempt to be taken for another one.
async fn refuse(desk: &Desk, stream: &mut TcpStream, bad: &Bad) -> Next {
    desk.turned_away(stream, bad.1);
    say(stream, bad.0, bad.1).await
}

/// Answers, and lets the client read that before it sees the end.
async fn say(stream: &mut TcpStream, status: u16, reason: &str) -> Next {
    stream.write_all(&http::answer(status, reason)).await?;
    stream.shutdown().await?;
    let drained = async {
        let mut rest = vec![0; 4096];
        // A client that goes on sending would otherwise be reset before it has read why.
        for _ in 0..256 {
            if !matches!(stream.read(&mut rest).await, Ok(1..)) {
                break;
            }
        }
    };
    let _ = timeout(Duration::from_secs(1), drained).await;
    Ok(None)
}

async fn serve_http(desk: &Desk, stream: &mut TcpStream, mut head: Head, early: Vec<u8>) -> Next {
    if !head.is_request() {
        return refuse(desk, stream, &Bad(400, "that is no request of HTTP/1")).await;
    }
    let [method, target, _] = &head.first;
    if method == "CONNECT" {
        let Some((host, port)) = http::authority(target, None) else {
            return refuse(desk, stream, &Bad(400, "CONNECT wants a host and a port")).await;
        };
        return match tunnel::connect(desk, host, port).await {
            Ok(line) => {
                let yes = b"HTTP/1.1 200 Connection established\r\n\r\n";
                stream.write_all(yes).await?;
                Ok(Some((early, Up::Unknown, line)))
            }
            Err(no_way) => say_no(stream, &no_way).await,
        };
    }
    let Some((authority, path)) = http::absolute(target) else {
        let reason = "this is a proxy: it wants http://host/path, or CONNECT";
        return refuse(desk, stream, &Bad(400, reason)).await;
    };
    let Some((host, port)) = http::authority(&authority, Some(80)) else {
        return refuse(desk, stream, &Bad(400, "that is no host")).await;
    };
    let length = match head.body() {
        Ok(length) => length,
        Err(bad) => return refuse(desk, stream, &bad).await,
    };
    let line = match tunnel::connect(desk, host, port).await {
        Ok(line) => line,
        Err(no_way) => return say_no(stream, &no_way).await,
    };
    head.first[1] = path;
    head.fields
        .retain(|(name, _)| !name.eq_ignore_ascii_case("host"));
    head.fields.insert(0, ("Host".into(), authority));
    let upgrade = head.upgrades();
    head.drop_hop_fields(upgrade);
    if let Some(rule) = policy::with_headers(&desk.network(), &line.host, line.port) {
        if head.first[0] == "TRACE" {
            line.entry.refuse("TRACE to a host with headers of its own");
            return say(stream, 403, "TRACE to a host with headers of its own").await;
        }
        head.add_headers(rule);
    }
    let mut all = head.to_bytes();
    // The head is the first thing that is sent.
    let up = Up::Request {
        head: all.len() as u64,
        length,
        upgrade,
    };
    all.extend(early);
    Ok(Some((all, up, line)))
}

async fn say_no(stream: &mut TcpStream, no_way: &NoWay) -> Next {
    match no_way {
        NoWay::Refused(reason) => say(stream, 403, reason).await,
        NoWay::Failed(reason) => say(stream, 502, reason).await,
    }
}
