//! Small servers on loopback for tests of the network: web pages, names, and whatever arrives.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;

type Pages = Box<dyn Fn(&Asked) -> Reply + Send + Sync>;

/// A request that arrived.
#[derive(Debug, Clone)]
pub struct Asked {
    pub line: String,
    /// Names in lower case.
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
}

impl Asked {
    pub fn path(&self) -> &str {
        self.line.split(' ').nth(1).unwrap_or("")
    }
}

/// Status line and headers without their end, and the body.
pub struct Reply(pub String, pub Vec<u8>);

impl Reply {
    pub fn ok(body: impl Into<Vec<u8>>) -> Self {
        Self("200 OK\r\nX-Server: test".into(), body.into())
    }
}

/// A web server for one connection a request, as our requests ask for.
pub struct Web {
    pub port: u16,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Web {
    pub fn start(pages: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        Self::at(Ipv4Addr::LOCALHOST.into(), pages)
    }

    /// At another address of this machine.
    pub fn at(address: IpAddr, pages: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((address, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (seen, pages) = (Arc::clone(&asked), Arc::new(Box::new(pages) as Pages));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, pages) = (Arc::clone(&seen), Arc::clone(&pages));
                thread::spawn(move || answer(stream, &seen, &pages));
            }
        });
        Self { port, asked }
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

pub fn read_request(reader: &mut impl BufRead) -> Option<Asked> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
    let mut headers = HashMap::new();
    loop {
        let mut field = String::new();
        reader.read_line(&mut field).ok().filter(|n| *n > 0)?;
        match field.trim_end().split_once(':') {
            Some((name, value)) => {
                headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
            }
            None => break,
        }
    }
    let length = headers.get("content-length").and_then(|n| n.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    let line = line.trim_end().to_owned();
    Some(Asked {
        line,
        headers,
        body,
    })
}

fn answer(stream: TcpStream, seen: &Mutex<Vec<Asked>>, pages: &Pages) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let Some(asked) = read_request(&mut reader) else {
        return;
    };
    seen.lock().unwrap().push(asked.clone());
    let Reply(head, body) = pages(&asked);
    let mut stream = stream;
    let head = format!(
        "HTTP/1.1 {head}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(&body);
}

/// Keeps what it is sent, and says nothing.
pub struct Ear {
    pub port: u16,
    heard: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Ear {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let heard: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let seen = Arc::clone(&heard);
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let seen = Arc::clone(&seen);
                thread::spawn(move || {
                    let index = {
                        let mut all = seen.lock().unwrap();
                        all.push(Vec::new());
                        all.len() - 1
                    };
                    let mut bytes = [0; 4096];
                    while let Ok(n @ 1..) = stream.read(&mut bytes) {
                        seen.lock().unwrap()[index].extend(&bytes[..n]);
                    }
                });
            }
        });
        Self { port, heard }
    }

    /// What came on each connection so far.
    pub fn heard(&self) -> Vec<Vec<u8>> {
        self.heard.lock().unwrap().clone()
    }
}

/// A name server. The n-th question for a name's IPv4 address gets the n-th of its answers, the last one over and over.
pub struct Names {
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Names {
    pub fn start(answers: &[(&str, &[&str])]) -> Self {
        Self::at(SocketAddr::from(([127, 0, 0, 1], 0)), answers)
    }

    pub fn at(address: SocketAddr, answers: &[(&str, &[&str])]) -> Self {
        let socket = UdpSocket::bind(address).unwrap();
        let address = socket.local_addr().unwrap();
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = Arc::clone(&asked);
        let answers: HashMap<String, Vec<Ipv4Addr>> = answers
            .iter()
            .map(|(name, all)| {
                let all = all.iter().map(|text| text.parse().unwrap()).collect();
                ((*name).to_owned(), all)
            })
            .collect();
        thread::spawn(move || {
            let mut bytes = [0; 512];
            while let Ok((n, from)) = socket.recv_from(&mut bytes) {
                let reply = reply(&bytes[..n], &answers, &seen);
                let _ = socket.send_to(&reply, from);
            }
        });
        Self { address, asked }
    }

    /// Names whose IPv4 address was asked for, in order.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn reply(
    query: &[u8],
    answers: &HashMap<String, Vec<Ipv4Addr>>,
    seen: &Mutex<Vec<String>>,
) -> Vec<u8> {
    let mut labels = Vec::new();
    let mut at = 12;
    while query[at] != 0 {
        let length = usize::from(query[at]);
        labels.push(String::from_utf8_lossy(&query[at + 1..=at + length]).into_owned());
        at += 1 + length;
    }
    let name = labels.join(".");
    let is_four = query[at + 1..at + 3] == [0, 1];
    let mut all = seen.lock().unwrap();
    let before = all.iter().filter(|one| **one == name).count();
    if is_four {
        all.push(name.clone());
    }
    let known = answers.get(&name);
    let address = known.and_then(|list| list.get(before.min(list.len() - 1)));
    let code = if known.is_some() { 0 } else { 3 };
    let mut reply = query[..2].to_vec();
    let count = u8::from(is_four && address.is_some());
    reply.extend([0x81, 0x80 | code, 0, 1, 0, count, 0, 0, 0, 0]);
    reply.extend(&query[12..at + 5]);
    if let (true, Some(address)) = (is_four, address) {
        reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
        reply.extend(
            IpAddr::from(*address)
                .to_string()
                .split('.')
                .map(|n| n.parse::<u8>().unwrap()),
        );
    }
    reply
}
