//! Names inside: a name server that knows what the rules allow, and nothing else.
//!
//! An allowed name gets an address of the sandbox's own loopback that stands for it. Whoever connects there has named the host,
//! so programs that know no proxy work too, under the same rules.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::Desk;
use super::dns::{self, Answer, MAX_MESSAGE, Question};
use super::entry::{Attempt, Entry};
use super::meter::Spent;
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

/// How a question came.
#[derive(Clone, Copy)]
enum By {
    Datagram,
    Stream,
}

/// Why a name is not looked up that the rules allow.
const TOO_MANY_NAMES: &str = "the sandbox has asked for as many names as it may";

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
            let answered = answer(&desk, &question, By::Datagram);
            if let Some(answer) = desk.until_gone(answered).await {
                let _ = socket.send_to(&answer, from).await;
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
        let answer = answer(desk, &question, By::Stream).await;
        let length = u16::try_from(answer.len()).unwrap_or(0);
        let mut message = length.to_be_bytes().to_vec();
        message.extend(answer);
        stream.write_all(&message).await?;
    }
}

/// The answer to a question, which is listed and counted as a connection would be.
async fn answer(desk: &Desk, question: &Question, by: By) -> Vec<u8> {
    let Some(Host::Name(name)) = Host::parse(&question.name) else {
        return question.answer(&Answer::NoSuchName);
    };
    // Both kinds are asked for each name, and nobody outside is asked for this one: once is enough.
    let attempt = (question.kind != dns::AAAA).then(|| Attempt(desk.log.ask(&name)));
    let entry = attempt.as_ref().map(|attempt| &*attempt.0);
    let (bytes, allowed, reason) = match find(desk, question, &name, entry, by).await {
        Ok((bytes, failure)) => (bytes, true, failure.map(|failure| failure.to_string())),
        Err((answer, reason)) => (question.answer(&answer), false, Some(reason)),
    };
    if let Some(entry) = entry {
        desk.world.count(allowed);
        match reason {
            Some(reason) if !allowed => entry.refuse(&reason),
            reason => entry.answered(reason.as_deref()),
        }
    }
    bytes
}

/// The answer for a name that the rules allow and, if there is none, why; or why it is not asked for.
async fn find(
    desk: &Desk,
    question: &Question,
    name: &str,
    entry: Option<&Entry>,
    by: By,
) -> Result<(Vec<u8>, Option<Failure>), (Answer, String)> {
    let failed = |reason: &str| (Answer::Failed, reason.to_owned());
    policy::may_look_up(&desk.network(), name)
        .map_err(|refusal| (Answer::NoSuchName, refusal.0))?;
    let pass = async |sent: bool, bytes: usize| {
        let admitted = desk.meter.admit(bytes).await;
        admitted.map_err(|Spent| failed(Spent::REASON))?;
        if let Some(entry) = entry {
            let counter = [&entry.received, &entry.sent][usize::from(sent)];
            counter.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        desk.world.passed(sent, bytes);
        Ok(())
    };
    pass(true, question.length()).await?;
    let (answer, failure) = if question.kind == dns::A {
        // Before it is looked up, and whether or not it is found: so there is an end to what can be told by asking.
        let address = desk.stand.address_of(name);
        let address = address.ok_or_else(|| failed(TOO_MANY_NAMES))?;
        let _place = match by {
            By::Datagram => Some(desk.place().map_err(failed)?),
            // It has one, and asks for one name at a time.
            By::Stream => None,
        };
        match desk.world.resolver.look_up(name).await {
            Ok(_) => (Answer::Address(address), None),
            Err(failure @ Failure::NoSuchName) => (Answer::NoSuchName, Some(failure)),
            Err(failure @ Failure::NoAnswer) => (Answer::Failed, Some(failure)),
        }
    } else {
        (Answer::Nothing, None)
    };
    let bytes = question.answer(&answer);
    pass(false, bytes.len()).await?;
    Ok((bytes, failure))
}

#[cfg(test)]
mod tests {
    use super::super::tunnel::tests::desk;
    use super::*;

    #[tokio::test]
    async fn there_is_an_end_to_names() {
        let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let (_rules, desk) = desk("*.test", Some(server.local_addr().unwrap()));
        for n in 0..MAX_NAMES {
            assert!(desk.stand.address_of(&format!("{n}.test")).is_some());
        }
        let asked = dns::query(1, "one-more.test", dns::A).unwrap();
        let question = dns::parse_question(&asked).unwrap();
        answer(&desk, &question, By::Datagram).await;
        // Nobody was asked.
        assert!(server.try_recv(&mut [0; 512]).is_err());
        let (list, _) = desk.log.all();
        assert_eq!(list[0].reason.as_deref(), Some(TOO_MANY_NAMES));
    }
}
