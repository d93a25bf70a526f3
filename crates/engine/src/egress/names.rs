//! Names inside: a name server that knows what the rules allow, and nothing else.
//!
//! An allowed name gets an address of the sandbox's own loopback that stands for it. Whoever connects there has named the host,
//! so programs that know no proxy work too, under the same rules.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::Desk;
use super::dns::{self, Answer, MAX_MESSAGE, Question};
use super::policy::{self, Host};
use super::resolve::Failure;

/// From here on, one for each name.
const FIRST: u32 = u32::from_be_bytes([127, 128, 0, 1]);
const MAX_NAMES: u32 = 10_000;
/// Questions that are being looked up at one time.
const AT_ONCE: usize = 32;
const STREAM_TIME: Duration = Duration::from_secs(10);

/// Which address stands for which name.
#[derive(Default)]
pub struct Stand(Mutex<Table>);

#[derive(Default)]
struct Table {
    by_name: HashMap<String, Ipv4Addr>,
    names: Vec<String>,
}

impl Stand {
    fn address_of(&self, name: &str) -> Option<Ipv4Addr> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(address) = table.by_name.get(name) {
            return Some(*address);
        }
        let index = u32::try_from(table.names.len()).ok()?;
        if index >= MAX_NAMES {
            return None;
        }
        let address = Ipv4Addr::from(FIRST + index);
        table.names.push(name.to_owned());
        table.by_name.insert(name.to_owned(), address);
        Some(address)
    }

    pub fn name_of(&self, address: IpAddr) -> Option<String> {
        let IpAddr::V4(address) = address else {
            return None;
        };
        let index = u32::from(address).checked_sub(FIRST)?;
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.names.get(usize::try_from(index).ok()?).cloned()
    }
}

pub async fn serve_datagrams(desk: Arc<Desk>, socket: UdpSocket) {
    let socket = Arc::new(socket);
    let busy = Arc::new(Semaphore::new(AT_ONCE));
    let mut bytes = [0; 512];
    loop {
        let Ok((length, from)) = socket.recv_from(&mut bytes).await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let Some(question) = dns::parse_question(&bytes[..length]) else {
            continue;
        };
        // Whoever floods is not answered; names that are known cost nothing.
        let Ok(permit) = Arc::clone(&busy).try_acquire_owned() else {
            continue;
        };
        let (desk, socket) = (Arc::clone(&desk), Arc::clone(&socket));
        tokio::spawn(async move {
            let answer = desk.until_gone(answer(&desk, &question)).await;
            if let Some(answer) = answer {
                let _ = socket.send_to(&question.answer(&answer), from).await;
            }
            drop(permit);
        });
    }
}

pub async fn serve_streams(desk: Arc<Desk>, listener: TcpListener) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // No descriptors left, most likely; others may give some back.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let place = match desk.place() {
            Ok(place) => place,
            Err(reason) => {
                desk.turned_away(&stream, reason);
                continue;
            }
        };
        let desk = Arc::clone(&desk);
        tokio::spawn(async move {
            let served = timeout(STREAM_TIME, serve_stream(&desk, stream));
            let _ = desk.until_gone(served).await;
            drop(place);
        });
    }
}

async fn serve_stream(desk: &Desk, mut stream: TcpStream) -> std::io::Result<()> {
    loop {
        let length = usize::from(stream.read_u16().await?);
        if length > MAX_MESSAGE {
            return Ok(());
        }
        let mut bytes = vec![0; length];
        stream.read_exact(&mut bytes).await?;
        let Some(question) = dns::parse_question(&bytes) else {
            return Ok(());
        };
        let answer = question.answer(&answer(desk, &question).await);
        let length = u16::try_from(answer.len()).unwrap_or(0);
        let mut message = length.to_be_bytes().to_vec();
        message.extend(answer);
        stream.write_all(&message).await?;
    }
}

async fn answer(desk: &Desk, question: &Question) -> Answer {
    let Some(Host::Name(name)) = Host::parse(&question.name) else {
        return Answer::NoSuchName;
    };
    let network = desk.network();
    if let Err(refusal) = policy::may_look_up(&network, &name) {
        // Both kinds are asked for each name; once is enough.
        if question.kind != dns::AAAA {
            desk.log.begin(&name, 53).refuse(&refusal.0);
            desk.world.count(false);
        }
        return Answer::NoSuchName;
    }
    if question.kind != dns::A {
        return Answer::Nothing;
    }
    match desk.world.resolver.look_up(&name).await {
        Ok(_) => desk
            .stand
            .address_of(&name)
            .map_or(Answer::Failed, Answer::Address),
        Err(Failure::NoSuchName) => Answer::NoSuchName,
        Err(Failure::NoAnswer) => Answer::Failed,
    }
}
