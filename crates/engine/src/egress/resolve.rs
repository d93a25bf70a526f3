//! Looking names up outside, once: what was found is what is connected to.
//!
//! By our own few lines rather than the C library's: that one blocks a thread for as long as a server likes to.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::dns::{self, A, AAAA, MAX_MESSAGE, Reply};

/// For one server to answer.
const PATIENCE: Duration = Duration::from_secs(5);
const ATTEMPTS: usize = 2;
const MAX_SERVERS: usize = 3;
/// How long an answer holds. Within it, every connection goes where the first one went.
const HOLDS: Duration = Duration::from_mins(1);
const MAX_HELD: usize = 4096;

#[derive(Debug)]
pub enum Failure {
    NoSuchName,
    NoAnswer,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NoSuchName => "there is no such name",
            Self::NoAnswer => "no name server answered",
        })
    }
}

/// Asks the host's name servers, or one that was given.
pub struct Resolver {
    given: Option<SocketAddr>,
    held: Mutex<HashMap<String, (Instant, Vec<IpAddr>)>>,
}

impl Resolver {
    pub fn new(given: Option<SocketAddr>) -> Self {
        Self {
            given,
            held: Mutex::default(),
        }
    }

    pub async fn look_up(&self, name: &str) -> Result<Vec<IpAddr>, Failure> {
        if let Some(found) = self.remembered(name) {
            return Ok(found);
        }
        if name == "localhost" || name.ends_with(".localhost") {
            return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
        }
        let known = if self.given.is_none() {
            in_hosts_file(name)
        } else {
            Vec::new()
        };
        if !known.is_empty() {
            return Ok(known);
        }
        let found = self.ask(name).await?;
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.len() >= MAX_HELD {
            held.retain(|_, (since, _)| since.elapsed() < HOLDS);
        }
        if held.len() < MAX_HELD {
            held.insert(name.to_owned(), (Instant::now(), found.clone()));
        }
        Ok(found)
    }

    fn remembered(&self, name: &str) -> Option<Vec<IpAddr>> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, found) = held.get(name)?;
        (since.elapsed() < HOLDS).then(|| found.clone())
    }

    async fn ask(&self, name: &str) -> Result<Vec<IpAddr>, Failure> {
        let servers = self.given.map_or_else(name_servers, |given| vec![given]);
        for _ in 0..ATTEMPTS {
            for server in &servers {
                let (four, six) =
                    tokio::join!(ask_one(*server, name, A), ask_one(*server, name, AAAA));
                match (four, six) {
                    (Some(Reply::NoSuchName), _) | (_, Some(Reply::NoSuchName)) => {
                        return Err(Failure::NoSuchName);
                    }
                    (Some(four), six) => {
                        let mut all = addresses(four);
                        all.extend(six.map(addresses).unwrap_or_default());
                        if all.is_empty() {
                            return Err(Failure::NoSuchName);
                        }
                        return Ok(all);
                    }
                    (None, _) => {}
                }
            }
        }
        Err(Failure::NoAnswer)
    }
}

fn addresses(reply: Reply) -> Vec<IpAddr> {
    match reply {
        Reply::Addresses(all) => all,
        Reply::NoSuchName | Reply::Cut => Vec::new(),
    }
}

async fn ask_one(server: SocketAddr, name: &str, kind: u16) -> Option<Reply> {
    let bits = belljar_jail::random_bits().ok()?;
    let id = u16::try_from(bits & 0xffff).unwrap_or(0);
    let query = dns::query(id, name, kind)?;
    let reply = timeout(PATIENCE, by_datagram(server, &query)).await;
    match reply.ok()?.ok()? {
        Reply::Cut => timeout(PATIENCE, by_stream(server, &query))
            .await
            .ok()?
            .ok(),
        reply => Some(reply),
    }
}

/// The port is a fresh one each time, and only this server's answers arrive.
async fn by_datagram(server: SocketAddr, query: &[u8]) -> io::Result<Reply> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(query).await?;
    let mut bytes = vec![0; MAX_MESSAGE];
    loop {
        let length = socket.recv(&mut bytes).await?;
        if let Some(reply) = dns::parse_reply(&bytes[..length], query) {
            return Ok(reply);
        }
        // A server that says it failed has answered; a message that is not about our question has not.
        if bytes.get(..2) == query.get(..2) && length >= 12 && bytes[3] & 15 != 0 {
            return Err(io::ErrorKind::Other.into());
        }
    }
}

async fn by_stream(server: SocketAddr, query: &[u8]) -> io::Result<Reply> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(query.len()).map_err(io::Error::other)?;
    let mut message = length.to_be_bytes().to_vec();
    message.extend(query);
    stream.write_all(&message).await?;
    let mut bytes = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut bytes).await?;
    dns::parse_reply(&bytes, query).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn name_servers() -> Vec<SocketAddr> {
    let text = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let mut servers: Vec<_> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("nameserver"))
        .filter_map(|rest| rest.trim().parse::<IpAddr>().ok())
        .map(|address| SocketAddr::new(address, 53))
        .take(MAX_SERVERS)
        .collect();
    if servers.is_empty() {
        servers.push((Ipv4Addr::LOCALHOST, 53).into());
    }
    servers
}

fn in_hosts_file(name: &str) -> Vec<IpAddr> {
    let text = fs::read_to_string("/etc/hosts").unwrap_or_default();
    let mut found = Vec::new();
    for line in text.lines() {
        let mut words = line.split('#').next().unwrap_or("").split_whitespace();
        let Some(Ok(address)) = words.next().map(str::parse::<IpAddr>) else {
            continue;
        };
        if words.any(|word| word.eq_ignore_ascii_case(name)) {
            found.push(address);
        }
    }
    found
}
