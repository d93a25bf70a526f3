//! What files take, and their names: counted, bounded, and given back.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::sleep;
use std::time::Duration;

use serde_json::json;

use super::daemon::{Daemon, TOKEN, receive, until};
use super::serve_files::{names, tar};

/// A file on its way whose end is not known.
fn begin_upload(daemon: &Daemon, path: &str) -> TcpStream {
    let mut stream = daemon.connect();
    let head = format!(
        "PUT {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n1\r\nx\r\n",
        daemon.address
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream
}

#[test]
fn what_is_put_into_a_sandbox_fits_into_its_memory() {
    let daemon = Daemon::start();
    let limits = json!({"memory_bytes": "64m", "disk_bytes": "1g"});
    let sandbox = daemon.sandbox(&json!({ "limits": limits }));
    let usage = || {
        let usage = daemon.get(&format!("{sandbox}/usage")).ok();
        ["memory_bytes", "memory_peak_bytes"].map(|field| usage["now"][field].as_u64().unwrap())
    };
    // No more than the most that it was seen with, which is no less afterwards.
    let most = Cell::new(0);
    let used = || {
        let [now, peak] = usage();
        assert!(peak >= now && peak >= most.get(), "{now} {peak} {most:?}");
        most.set(peak);
        now
    };
    let large = vec![b'x'; 40 << 20];
    let before = used();
    let put = |name: &str| daemon.put(&format!("{sandbox}/files/{name}"), &large);
    assert_eq!(put("a").status, 201);
    // The kernel counts it as the daemon's; here it is the sandbox's. A little of what it took to be made goes again.
    assert!(used() >= before / 2 + (40 << 20), "{before} {}", used());
    let archive = tar("add('b', b'x' * (40 << 20))");
    for refused in [
        put("b"),
        daemon.put(&format!("{sandbox}/archive"), &archive),
        daemon.post(
            "/v1/sandboxes",
            &json!({"files": {"a": "x".repeat(20 << 20)}, "limits": {"memory_bytes": "16m"}}),
        ),
        daemon.post(
            "/v1/runs",
            &json!({"code": "1", "files": {"a": "x".repeat(20 << 20)}, "limits": {"memory_bytes": "16m"}}),
        ),
    ] {
        assert_eq!(
            (refused.status, refused.code().as_str()),
            (413, "disk_full")
        );
        assert!(
            refused.text().contains("memory_bytes"),
            "{}",
            refused.text()
        );
    }
    let list = daemon.get(&format!("{sandbox}/files")).ok();
    assert_eq!(names(&list), ["a"]);
    assert_eq!(daemon.delete(&format!("{sandbox}/files/a")).status, 204);
    assert!(used() < before + (20 << 20), "{before} {}", used());
    assert!(most.get() >= 40 << 20, "{most:?}");
    assert_eq!(put("b").status, 201);
    daemon.post(&format!("{sandbox}/reset"), &json!({})).ok();
    let [now, peak] = usage();
    assert!(now <= peak && peak < most.get(), "{now} {peak} {most:?}");
}

/// What is on its way would keep the memory of a sandbox that is no more.
#[test]
fn transfers_end_with_the_sandbox() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let shell = |line: &str| {
        let done = daemon.post(&format!("{sandbox}/commands"), &json!({ "shell": line }));
        done.ok()["stdout"].as_str().unwrap().to_owned()
    };
    let upload = begin_upload(&daemon, &format!("{sandbox}/files/new"));
    until("it has begun", || shell("ls -A").contains(".belljar-"));
    assert_eq!(
        daemon.post(&format!("{sandbox}/reset"), &json!({})).status,
        200
    );
    let answer = receive(upload);
    assert_eq!((answer.status, answer.code().as_str()), (409, "conflict"));
    shell("head -c 60000000 /dev/zero >big");
    let bearer = format!("Bearer {TOKEN}");
    for path in ["files/big", "archive"] {
        let mut reader = daemon.connect();
        let head = format!(
            "GET {sandbox}/{path} HTTP/1.1\r\nHost: {}\r\nAuthorization: {bearer}\r\nConnection: close\r\n\r\n",
            daemon.address
        );
        reader.write_all(head.as_bytes()).unwrap();
        let mut first = [0; 1000];
        reader.read_exact(&mut first).unwrap();
        let done = daemon.post(&format!("{sandbox}/reset"), &json!({}));
        assert_eq!(done.status, 200);
        let mut rest = Vec::new();
        let _ = reader.read_to_end(&mut rest);
        assert!(rest.len() < 50_000_000, "{path}: {} bytes", rest.len());
        shell("head -c 60000000 /dev/zero >big");
    }
}

#[test]
fn an_upload_by_drips_is_left() {
    let daemon = Daemon::with("[http]\nread_timeout = '1s'\n");
    let sandbox = daemon.sandbox(&json!({}));
    let mut stream = begin_upload(&daemon, &format!("{sandbox}/files/new"));
    let answer = stream.try_clone().unwrap();
    let answer = std::thread::spawn(move || receive(answer).status);
    for _ in 0..40 {
        if answer.is_finished() {
            break;
        }
        let _ = stream.write_all(b"1\r\nx\r\n");
        sleep(Duration::from_millis(200));
    }
    assert!(answer.is_finished(), "it goes on");
    assert_eq!(answer.join().unwrap(), 408);
}

#[test]
fn uploads_are_no_runs() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let uploads: Vec<_> = (0..40)
        .map(|number| begin_upload(&daemon, &format!("{sandbox}/files/{number}")))
        .collect();
    until("they have begun", || {
        let list = daemon
            .post(
                &format!("{sandbox}/commands"),
                &json!({"shell": "ls -A | wc -l"}),
            )
            .ok();
        list["stdout"] == "40\n"
    });
    let done = daemon.post(&format!("{sandbox}/runs"), &json!({"code": "6 * 7"}));
    assert_eq!(done.ok()["value"], 42);
    drop(uploads);
}

/// Longer than the kernel takes as one path (4096 bytes).
#[test]
fn long_paths_are_listed_and_packed() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let run = |code: &str| {
        let code = format!("import os\ntop = os.open('.', 0)\n{code}\nos.fchdir(top)");
        daemon.post(&format!("{sandbox}/runs"), &json!({ "code": code }))
    };
    let deep = "for _ in range(20): os.mkdir('d' * 250); os.chdir('d' * 250)\nopen('f', 'w').write('deep')";
    assert_eq!(run(deep).ok()["status"], "ok");
    let list = daemon.get(&format!("{sandbox}/files?depth=64")).ok();
    assert_eq!(names(&list).len(), 21);
    let archive = daemon.get(&format!("{sandbox}/archive"));
    assert_eq!(archive.status, 200);
    let mut archive = tar::Archive::new(&archive.body[..]);
    let mut found = String::new();
    for entry in archive.entries().unwrap() {
        entry.unwrap().read_to_string(&mut found).unwrap();
    }
    assert_eq!(found, "deep");
    // Many of them are more than one answer has.
    let many = "for _ in range(60): os.mkdir('e' * 250); os.chdir('e' * 250)\nfor i in range(1200): open(str(i), 'w').close()";
    let answer = run(many);
    let result = answer.ok();
    assert_eq!(result["files_truncated"], true);
    assert!(answer.body.len() < 2 << 20, "{}", answer.body.len());
    let archive = daemon.get(&format!("{sandbox}/archive"));
    assert_eq!((archive.status, archive.code().as_str()), (409, "conflict"));
    assert!(archive.text().contains("16 MiB"), "{}", archive.text());
    let list = daemon.get(&format!("{sandbox}/files?depth=64")).ok();
    assert!(list["next"].is_u64());
    // What is kept of them in the history is less.
    let id = result["id"].as_str().unwrap();
    let kept = daemon.get(&format!("/v1/runs/{id}"));
    assert_eq!(kept.ok()["shortened"], true);
    assert!(kept.body.len() < 128 << 10, "{}", kept.body.len());
}
