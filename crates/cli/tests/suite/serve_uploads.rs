//! What is on its way into a workspace: all of it, or nothing, and the reason.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::json;

use super::daemon::{Daemon, TOKEN, receive, until};
use super::serve_files::{names, tar};

#[test]
fn half_of_an_archive_replaces_no_file() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({"files": {"a": "as it was"}}));
    let archive = tar("add('first', b'1')\nadd('a', b'x' * 5000)");
    // In the middle of the second file: two headers, one block, and a part.
    let answer = daemon.put(&format!("{sandbox}/archive"), &archive[..3 * 512 + 700]);
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert!(answer.text().contains("cut off"), "{}", answer.text());
    let file = daemon.get(&format!("{sandbox}/files/a"));
    assert_eq!(file.text(), "as it was");
    let list = daemon.get(&format!("{sandbox}/files")).ok();
    assert_eq!(names(&list), ["a", "first"]);
}

/// Sends all of it before it listens, as many clients do.
fn stubborn(daemon: &Daemon, method: &str, path: &str, head: &str, body: &[u8]) -> (u16, String) {
    let mut stream = daemon.connect();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\n{head}\r\n",
        daemon.address
    );
    stream.write_all(head.as_bytes()).unwrap();
    for piece in body.chunks(64 << 10) {
        stream
            .write_all(piece)
            .unwrap_or_else(|error| panic!("{method} {path}: {error}"));
    }
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    while !text.ends_with(b"}}") {
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&text));
        text.extend_from_slice(&buffer[..count]);
    }
    let text = String::from_utf8(text).unwrap();
    (text[9..12].parse().unwrap(), text)
}

#[test]
fn whoever_is_refused_while_sending_hears_why() {
    let daemon = Daemon::with("[http]\nbody_bytes = '1m'\n");
    let sandbox = daemon.sandbox(&json!({"limits": {"disk_bytes": "4m"}}));
    let bytes = vec![b'x'; 24 << 20];
    let length = format!("Content-Length: {}\r\n", bytes.len());
    let json = format!("Content-Type: application/json\r\n{length}");
    let mut chunked = Vec::new();
    for piece in bytes.chunks(1 << 20) {
        chunked.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        chunked.extend_from_slice(piece);
        chunked.extend_from_slice(b"\r\n");
    }
    chunked.extend_from_slice(b"0\r\n\r\n");
    let of_chunks = "Transfer-Encoding: chunked\r\n";
    let file = format!("{sandbox}/files/a");
    let archive = format!("{sandbox}/archive");
    for (method, path, head, body, status, part) in [
        ("PUT", &file, length.as_str(), &bytes, 413, "body_too_large"),
        ("PUT", &file, of_chunks, &chunked, 413, "disk_full"),
        ("PUT", &archive, length.as_str(), &bytes, 400, "no tar file"),
        ("POST", &"/v1/runs".into(), &json, &bytes, 413, "1048576"),
        ("POST", &"/v1/runs".into(), of_chunks, &chunked, 415, "json"),
        ("PUT", &"/v1/none".into(), of_chunks, &chunked, 404, "none"),
    ] {
        let (got, text) = stubborn(&daemon, method, path, head, body);
        assert!(got == status && text.contains(part), "{path}: {text}");
    }
    // One that asks first is told before it sends anything, and is not made to.
    let mut asking = daemon.connect();
    let head = format!(
        "PUT {file} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\nExpect: 100-continue\r\n{length}\r\n",
        daemon.address
    );
    asking.write_all(head.as_bytes()).unwrap();
    assert_eq!(receive(asking).status, 413);
}

#[test]
fn what_is_on_its_way_is_not_there_yet() {
    let daemon = Daemon::start();
    let theirs = format!(".belljar-{}", "0".repeat(32));
    let sandbox = daemon.sandbox(&json!({"files": {&theirs: "theirs"}}));
    let mut stream: TcpStream = daemon.connect();
    let head = format!(
        "PUT {sandbox}/files/d/new HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 6\r\nConnection: close\r\n\r\nhal",
        daemon.address
    );
    stream.write_all(head.as_bytes()).unwrap();
    let shell = |line: &str| {
        let done = daemon.post(&format!("{sandbox}/commands"), &json!({ "shell": line }));
        done.ok()["stdout"].as_str().unwrap().to_owned()
    };
    until("it has begun", || shell("ls -A d").contains(".belljar-"));
    let list = daemon.get(&format!("{sandbox}/files?depth=3")).ok();
    assert_eq!(names(&list), [theirs.as_str(), "d"]);
    let archive = daemon.get(&format!("{sandbox}/archive"));
    let text = String::from_utf8_lossy(&archive.body).into_owned();
    assert!(text.contains(&theirs) && !text.contains("d/.belljar-"));
    stream.write_all(b"f!!").unwrap();
    assert_eq!(receive(stream).status, 201);
    // A slash at the end says the same directory.
    for path in ["d", "d/"] {
        let list = daemon.get(&format!("{sandbox}/files?path={path}")).ok();
        assert_eq!(names(&list), ["d/new"]);
        let archive = daemon.get(&format!("{sandbox}/archive?path={path}"));
        assert!(archive.body.starts_with(b"d/new"), "{}", archive.text());
    }
    let nothing = daemon.get(&format!("{sandbox}/files?path=/"));
    assert_eq!(nothing.status, 400);
}

#[test]
fn what_is_packed_can_be_read_wherever_it_is_unpacked() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let code = "import os\nos.mkdir('d'); open('d/x', 'w').write('1'); open('d/y', 'w').write('2')\nos.chmod('d/x', 0o500); os.chmod('d/y', 0o600); os.chmod('d', 0o700)";
    daemon
        .post(&format!("{sandbox}/runs"), &json!({ "code": code }))
        .ok();
    let archive = daemon.get(&format!("{sandbox}/archive")).body;
    let mut tar = tar::Archive::new(&archive[..]);
    let mut modes = Vec::new();
    for entry in tar.entries().unwrap() {
        let entry = entry.unwrap();
        let path = entry.path().unwrap().to_string_lossy().into_owned();
        modes.push((path, entry.header().mode().unwrap()));
    }
    let expected = [("d", 0o755), ("d/x", 0o744), ("d/y", 0o644)];
    assert_eq!(
        modes,
        expected.map(|(path, mode)| (path.to_owned(), mode)),
        "{modes:?}"
    );
}
