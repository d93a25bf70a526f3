use super::super::dns::{Answer, parse_question};
use super::super::flow::MANY;
use super::super::meter::Meter;
use super::super::names::Stand;
use super::super::record::Log;
use super::super::{Outside, World};
use super::*;
use belljar_spec::Network;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::{Semaphore, watch};

fn network(text: &str) -> Arc<Network> {
    Arc::new(text.parse().unwrap())
}

fn nothing() -> Arc<Network> {
    Arc::new(serde_json::from_str("[]").unwrap())
}

pub fn desk(rules: &str, resolver: Option<SocketAddr>) -> (watch::Sender<Arc<Network>>, Arc<Desk>) {
    let (changed, rules) = watch::channel(network(rules));
    let caps = rules.borrow().caps;
    let outside = Outside {
        resolver,
        private: None,
    };
    let desk = Desk {
        world: Arc::new(World::new(&outside)),
        rules,
        stand: Stand::default(),
        log: Log::default(),
        meter: Arc::new(Meter::new(caps)),
        tide: Arc::default(),
        bulk: Semaphore::new(MANY),
    };
    (changed, Arc::new(desk))
}

async fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

#[tokio::test]
async fn rules_that_change_during_a_look_up_hold_for_it() {
    let (_listener, port) = listener().await;
    let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let rules = format!("a.test:{port},127.0.0.1:{port}");
    let (changed, desk) = desk(&rules, Some(server.local_addr().unwrap()));
    let answering = async {
        let mut bytes = [0; 512];
        loop {
            let (length, from) = server.recv_from(&mut bytes).await.unwrap();
            changed.send_replace(nothing());
            let question = parse_question(&bytes[..length]).unwrap();
            let address = Answer::Address([127, 0, 0, 1].into());
            let answer = question.answer(&address);
            server.send_to(&answer, from).await.unwrap();
        }
    };
    let made = tokio::select! {
        made = connect(&desk, "a.test", port) => made,
        () = answering => unreachable!(),
    };
    assert!(matches!(made, Err(NoWay::Refused(_))));
    let (list, _) = desk.log.all();
    assert!(!list[0].allowed && list[0].address.is_none(), "{list:?}");
}

#[tokio::test]
async fn nothing_is_sent_after_the_rules_have_changed() {
    let (listener, port) = listener().await;
    let rules = format!("127.0.0.1:{port}");
    for _ in 0..30 {
        let (changed, desk) = desk(&rules, None);
        let line = connect(&desk, "127.0.0.1", port).await.ok().unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        let client = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let _other_end = listener.accept().await.unwrap();
        changed.send_replace(nothing());
        let up = Up::Request {
            head: 5,
            length: Length::Known(0),
            upgrade: false,
        };
        let upward = desk.tide.begin();
        carry(&desk, client, b"hello".to_vec(), up, line, &upward).await;
        let mut got = Vec::new();
        let _ = server.read_to_end(&mut got).await;
        assert_eq!(got, b"");
    }
}

/// What a server gets of what a client says in pieces.
async fn passed(pieces: &[&[u8]]) -> Vec<u8> {
    let (listener, port) = listener().await;
    let (_rules, desk) = desk(&format!("127.0.0.1:{port}"), None);
    let line = connect(&desk, "127.0.0.1", port).await.ok().unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    let mut client = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let (inside, _) = listener.accept().await.unwrap();
    let saying = async {
        for piece in pieces {
            let _ = client.write_all(piece).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let _ = client.shutdown().await;
    };
    let hearing = async {
        let mut got = Vec::new();
        let _ = server.read_to_end(&mut got).await;
        let _ = server.shutdown().await;
        got
    };
    let upward = desk.tide.begin();
    let carried = carry(&desk, inside, Vec::new(), Up::Unknown, line, &upward);
    tokio::join!(carried, saying, hearing).2
}

#[tokio::test]
async fn what_a_server_may_take_for_a_request_is_no_way_around() {
    for first in [
        b" GET /x HTTP/1.1".as_slice(),
        b"GET\x1c/x HTTP/1.1",
        b"GET\xa0/x HTTP/1.1",
        b"GET /x\x85HTTP/1.1",
        b"\0GET /x HTTP/1.1",
        b"(GET /x HTTP/1.1",
    ] {
        let rest = b"\r\nHost: other.test\r\n\r\n";
        let whole = [first, rest].concat();
        assert_eq!(passed(&[&whole]).await, b"", "{first:?}");
        let got = passed(&[first, rest]).await;
        assert!(!got.contains(&b'\n'), "{first:?}: {got:?}");
    }
    // Nor is it in any number of pieces.
    let whole = b"PROPFIND /x HTTP/1.1\r\nHost: other.test\r\n\r\n";
    let pieces: Vec<_> = whole.chunks(5).collect();
    let got = passed(&pieces).await;
    assert!(b"PROPFIND /x HTTP/1.1\r".starts_with(&got[..]), "{got:?}");
    let got = passed(&[b"GET /x HTTP/1.1\r", b"Host: other.test\r\r"]).await;
    assert_eq!(got, b"GET /x HTTP/1.1\r");
    // Whatever else there is passes, and does not wait for the end of a line.
    for other in [b"\0\0\0\x08".as_slice(), b"{\"a\": 1}\n", b"*1\r\n"] {
        assert_eq!(passed(&[other, b"more"]).await, [other, b"more"].concat());
    }
}

#[tokio::test]
async fn less_than_a_line_is_passed_on_at_once() {
    let (listener, port) = listener().await;
    let request = format!("PROPFIND /x HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n");
    let (head, tail) = request.split_at(14);
    // What a client may say and wait for an answer to, though a request could begin so.
    for pieces in [
        ["P", "UT", " me through"],
        ["hello", "\n", "GET"],
        ["GET", " ", "key\n"],
    ] {
        let got = in_turn(&listener, port, &pieces).await;
        assert_eq!(got, pieces.concat());
    }
    let got = in_turn(&listener, port, &[head, tail]).await;
    assert!(got.starts_with(request.trim_end()), "{got:?}");
}

/// What a server has got of a client that says one piece after the other, each when the one before has arrived.
async fn in_turn(listener: &TcpListener, port: u16, pieces: &[&str]) -> String {
    let (_rules, desk) = desk(&format!("127.0.0.1:{port}"), None);
    let line = connect(&desk, "127.0.0.1", port).await.ok().unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    let mut client = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let (inside, _) = listener.accept().await.unwrap();
    let mut got = Vec::new();
    let saying = async {
        let mut said = 0;
        for piece in pieces {
            client.write_all(piece.as_bytes()).await.unwrap();
            said += piece.len();
            while got.len() < said && server.read_buf(&mut got).await.unwrap() > 0 {}
        }
        drop((client, server));
    };
    let upward = desk.tide.begin();
    let carried = carry(&desk, inside, Vec::new(), Up::Unknown, line, &upward);
    let both = async { tokio::join!(carried, saying) };
    timeout(Duration::from_secs(15), both).await.unwrap();
    String::from_utf8(got).unwrap()
}

/// What a client gets for a request where the server says this, and the reason that is listed if it goes on then.
async fn answered(answer: &[&[u8]], more: &[u8]) -> (Vec<u8>, Option<String>) {
    let (listener, port) = listener().await;
    let (_rules, desk) = desk(&format!("127.0.0.1:{port}"), None);
    let line = connect(&desk, "127.0.0.1", port).await.ok().unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    let mut client = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let (inside, _) = listener.accept().await.unwrap();
    let request = format!("GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n");
    let asking = async {
        client.write_all(request.as_bytes()).await.unwrap();
        let mut got = Vec::new();
        let last = answer.last().unwrap();
        while !got.ends_with(last) && client.read_buf(&mut got).await.unwrap() > 0 {}
        if more.is_empty() {
            client.shutdown().await.unwrap();
        } else {
            client.write_all(more).await.unwrap();
        }
        let _ = client.read_to_end(&mut got).await;
        got
    };
    let answering = async {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            server.read_buf(&mut head).await.unwrap();
        }
        for part in answer {
            server.write_all(part).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        if !more.is_empty() {
            let _ = server.read_buf(&mut head).await;
        }
        drop(server);
    };
    let upward = desk.tide.begin();
    let carried = carry(&desk, inside, Vec::new(), Up::Unknown, line, &upward);
    let all = async { tokio::join!(asking, answering, carried) };
    let (got, (), ()) = timeout(Duration::from_secs(30), all).await.unwrap();
    let (list, _) = desk.log.all();
    assert!(list[0].allowed);
    (got, list[0].reason.clone())
}

#[tokio::test]
async fn clients_are_told_that_a_connection_carries_one_request() {
    let interim = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n";
    let (head, body) = (
        b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Len",
        b"gth: 2\r\n\r\nab",
    );
    let (got, reason) = answered(&[interim, head, body], b"").await;
    let told = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nab";
    assert_eq!(got, [interim.as_slice(), told].concat());
    assert_eq!(reason, None);
    let (_, reason) = answered(&[head, body], b"GET / HTTP/1.1\r\n").await;
    assert!(reason.unwrap().contains("another request"));
    let (got, _) = answered(&[b"what is that?"], b"").await;
    assert_eq!(got, b"what is that?");
}

#[tokio::test]
async fn chunks_end_in_one_way_only() {
    let (_rules, desk) = desk("all", None);
    let counter = std::sync::atomic::AtomicU64::new(0);
    let flow = Flow {
        desk: &desk,
        counter: &counter,
        sent: true,
    };
    for (body, fits) in [
        ("2;a=b\r\nab\r\n0\r\nA: b\r\n\r\n", true),
        ("2;\nx\r\nab\r\n0\r\n\r\n", false),
        ("2\r\nabXX0\r\n\r\n", false),
        ("0\r\nA: b\nC\r\n\r\n", false),
    ] {
        let (mut from, mut sent) = (body.as_bytes(), Vec::new());
        let passed = flow.chunks(&mut from, &mut sent, &mut Vec::new()).await;
        assert_eq!(passed.is_ok(), fits, "{body:?}");
        assert_eq!(sent == body.as_bytes(), fits, "{body:?}");
    }
}

#[tokio::test]
async fn what_was_sent_is_waited_for_and_nothing_else() {
    let (listener, port) = listener().await;
    let (_rules, desk) = desk(&format!("127.0.0.1:{port}"), None);
    let line = connect(&desk, "127.0.0.1", port).await.ok().unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    let mut client = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let (inside, _) = listener.accept().await.unwrap();
    let upward = desk.tide.begin();
    let carried = carry(&desk, inside, Vec::new(), Up::Unknown, line, &upward);
    let said = vec![b'\0'; 1 << 20];
    let ended = async {
        // Alive and silent: not for long.
        client.write_all(b"\0").await.unwrap();
        desk.tide.ebb(|| desk.meter.used()).await;
        // All of it has gone, and the server, which does not end, is not waited for.
        client.write_all(&said).await.unwrap();
        drop(client);
        desk.tide.ebb(|| desk.meter.used()).await;
        assert_eq!(desk.meter.used(), 1 + said.len() as u64);
        std::future::pending::<()>().await;
    };
    let heard = async {
        let mut got = Vec::new();
        while got.len() <= said.len() {
            server.read_buf(&mut got).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let all = async {
        tokio::select! {
            () = carried => panic!("it has ended"),
            () = ended => {}
            () = heard => {}
        }
    };
    timeout(Duration::from_secs(30), all).await.unwrap();
}

/// Fills whatever it is given, for a while, and keeps how much that was at most.
struct Spring {
    left: usize,
    most: usize,
}

impl AsyncRead for Spring {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        let given = buffer.remaining();
        self.most = self.most.max(given);
        let now = given.min(self.left);
        self.left -= now;
        buffer.put_slice(&vec![0; now]);
        std::task::Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn few_of_many_have_large_buffers() {
    let (_rules, desk) = desk("all", None);
    let counter = std::sync::atomic::AtomicU64::new(0);
    let flow = Flow {
        desk: &desk,
        counter: &counter,
        sent: true,
    };
    let most = async || {
        let left = 4 << 20;
        let mut spring = Spring { left, most: 0 };
        let mut got = Vec::new();
        let passed = flow.all(&mut spring, &mut got, Vec::new()).await;
        assert!(passed.is_ok() && got.len() == left);
        spring.most
    };
    assert_eq!(most().await, 256 << 10);
    let all = desk.bulk.acquire_many(u32::try_from(MANY).unwrap()).await;
    assert_eq!(most().await, 16 << 10);
    drop(all);
    assert_eq!(most().await, 256 << 10);
}
