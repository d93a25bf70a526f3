//! One tenant does not keep others from being served.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::json;

use super::daemon::{Daemon, receive};

const GREEDY: &str = "key-of-the-greedy-0123456789";
const MODEST: &str = "key-of-the-modest-0123456789";

fn daemon(settings: &str) -> Daemon {
    let [greedy, modest] = [GREEDY, MODEST].map(belljar_server::Digest::of);
    Daemon::with(&format!(
        "{settings}[tenants.greedy]\nkeys = ['{greedy}']\n[tenants.modest]\nkeys = ['{modest}']\n"
    ))
}

/// Begins a run whose body is larger than what comes of it.
fn begin(daemon: &Daemon, sent: usize) -> TcpStream {
    let mut stream = daemon.connect();
    let head = format!(
        "POST /v1/runs HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {GREEDY}\r\nContent-Type: application/json\r\nContent-Length: 20000000\r\n\r\n",
        daemon.address
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&vec![b' '; sent]).unwrap();
    stream
}

#[test]
fn large_requests_that_never_come_are_their_tenants_own_problem() {
    let daemon = daemon("[http]\nread_timeout = '30s'\n");
    let silent: Vec<_> = (0..24).map(|_| begin(&daemon, 100_000)).collect();
    std::thread::sleep(Duration::from_secs(1));
    let since = Instant::now();
    let large = json!({"code": "1", "stdin": "x".repeat(200_000)}).to_string();
    let answer = daemon.ask_as(MODEST, "POST", "/v1/runs", large.as_bytes());
    assert_eq!(answer.ok()["status"], "ok");
    assert!(since.elapsed() < Duration::from_secs(25));
    // None of them has gone yet.
    for mut stream in silent {
        stream.set_nonblocking(true).unwrap();
        let waits = stream.read(&mut [0]).unwrap_err();
        assert_eq!(waits.kind(), std::io::ErrorKind::WouldBlock);
    }
}

#[test]
fn what_has_sent_much_is_not_waited_for_longer() {
    let daemon = daemon("[http]\nread_timeout = '2s'\n");
    let stream = begin(&daemon, 10 << 20);
    let since = Instant::now();
    assert_eq!(receive(stream).status, 408);
    assert!(since.elapsed() < Duration::from_secs(15));
}

#[test]
fn a_large_request_takes_no_place_while_it_runs() {
    let daemon = daemon("[http]\nlarge_bodies = 1\n");
    let made = daemon.ask_as(GREEDY, "POST", "/v1/sandboxes", b"{}").ok();
    let sandbox = format!("/v1/sandboxes/{}", made["id"].as_str().unwrap());
    let large = "x".repeat(200_000);
    let waits = json!({"code": "import os, time\nopen('begun', 'w')\nwhile not os.path.exists('go'): time.sleep(0.01)", "stdin": large});
    let runs = format!("{sandbox}/runs");
    std::thread::scope(|scope| {
        let running =
            scope.spawn(|| daemon.ask_as(GREEDY, "POST", &runs, waits.to_string().as_bytes()));
        let begun = format!("{sandbox}/files/begun");
        super::daemon::until("it runs", || daemon.get(&begun).status == 200);
        let other = json!({"code": "1", "stdin": large}).to_string();
        let other = daemon.ask_as(GREEDY, "POST", "/v1/runs", other.as_bytes());
        assert_eq!(other.ok()["status"], "ok");
        assert_eq!(daemon.put(&format!("{sandbox}/files/go"), b"").status, 201);
        running.join().unwrap().ok();
    });
}

#[test]
fn archives_that_nobody_reads_are_their_tenants_own_problem() {
    let daemon = daemon("[http]\nwrite_timeout = '60s'\n");
    let sandbox = |key| {
        let made = daemon.ask_as(key, "POST", "/v1/sandboxes", b"{}").ok();
        format!("/v1/sandboxes/{}", made["id"].as_str().unwrap())
    };
    let (large, small) = (sandbox(GREEDY), sandbox(MODEST));
    // More than sockets take.
    let put = daemon.put(&format!("{large}/files/large"), &vec![0; 32 << 20]);
    assert_eq!(put.status, 201);
    assert_eq!(daemon.put(&format!("{small}/files/a"), b"one").status, 201);
    let unread: Vec<_> = (0..20)
        .map(|_| {
            let mut stream = daemon.connect();
            let head = format!(
                "GET {large}/archive HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {GREEDY}\r\n\r\n",
                daemon.address
            );
            stream.write_all(head.as_bytes()).unwrap();
            stream
        })
        .collect();
    std::thread::sleep(Duration::from_secs(1));
    let archive = daemon.ask_as(MODEST, "GET", &format!("{small}/archive"), b"");
    assert_eq!(archive.status, 200, "{}", archive.text());
    assert!(archive.body.windows(3).any(|three| three == b"one"));
    drop(unread);
}
