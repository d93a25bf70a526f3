//! What clients and code can make the daemon hold, in memory and in threads: no more than counts.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::thread::{scope, sleep};
use std::time::Duration;

use serde_json::{Value, json};

use super::daemon::{Daemon, TOKEN, receive, resident, until};

const MIB: u64 = 1 << 20;

fn threads(daemon: &Daemon) -> usize {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    tasks.count()
}

/// A request without a body, whose answer is left to whoever has the connection.
fn ask(daemon: &Daemon, method: &str, path: &str) -> TcpStream {
    let mut stream = daemon.connect();
    let host = &daemon.address;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    )
    .unwrap();
    stream
}

/// As a value each digit takes forty times what it takes in the request, and several times over.
#[test]
fn a_request_has_only_so_many_parts() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    daemon.run(&json!({"code": "1"}));
    let before = resident(&daemon);
    let digits = |count: usize| vec!["1"; count].join(",");
    let many = digits(5_000_000);
    for (path, body) in [
        (
            "/v1/runs".to_owned(),
            format!(r#"{{"code":"1","globals":{{"a":[{many}]}}}}"#),
        ),
        (
            format!("{sandbox}/runs"),
            format!(r#"{{"code":"1","globals":{{"a":[{many}]}}}}"#),
        ),
        (
            format!("{sandbox}/answers"),
            format!(r#"{{"call":1,"value":[{many}]}}"#),
        ),
    ] {
        let answer = daemon.ask_as(TOKEN, "POST", &path, body.as_bytes());
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (400, "invalid_request"),
            "{path}"
        );
        assert!(answer.text().contains("parts"), "{}", answer.text());
    }
    let grown = resident(&daemon).saturating_sub(before);
    assert!(grown < 128 * MIB, "{} MiB", grown / MIB);
    // Text has no parts, whatever is in it.
    let body = json!({"code": "len(t) + len(a)", "globals": {"t": digits(1_000_000), "a": vec![1; 100_000]}});
    assert_eq!(daemon.run(&body)["value"], 2_099_999);
}

/// They are in memory as long as the code runs, so they count as its own.
#[test]
fn globals_count_among_the_quotas() {
    let tenants = super::serve_tenants::tenants("memory_bytes = '600m'");
    let daemon = Daemon::with(&tenants);
    let ask = |count: usize| {
        let globals = json!({"a": vec![1; count]});
        let limits = json!({"memory_bytes": "580m"});
        let body = json!({"code": "len(a)", "globals": globals, "limits": limits}).to_string();
        let key = super::serve_tenants::SCHOOL;
        daemon.ask_as(key, "POST", "/v1/runs", body.as_bytes())
    };
    assert_eq!(ask(1000).ok()["value"], 1000);
    assert_eq!(ask(500_000).code(), "invalid_limit");
}

/// Calls of tools that a client does not read: as text, and no more than there is room for.
#[test]
fn calls_that_nobody_reads_count() {
    let daemon = Daemon::with("[budget]\nmemory_bytes = '1g'\n");
    // Without waiting for an answer, as nothing that is honest does.
    let code = "import time
tools = [c.cell_contents for c in t.__closure__ if hasattr(c.cell_contents, '_channel')][0]
run, _ = tools._answers.expect(type(tools)._call.__globals__['Waiter']())
args = '[[' + ','.join(['1'] * 500_000) + ']]'
for call in range(1000, 1024):
    tools._channel.send('{\"op\":\"call\",\"id\":\"%s\",\"call\":%d,\"tool\":\"t\",\"args\":%s,\"kwargs\":{}}' % (run, call, args), run)
print('all', flush=True)
open('all', 'w')
time.sleep(100)";
    let sandbox = daemon.sandbox(&json!({"limits": {"memory_bytes": "64m"}}));
    let body = json!({"code": code, "tools": [{"name": "t"}]});
    let stream = daemon.begin(&format!("{sandbox}/runs"), "text/event-stream", &body);
    let before = resident(&daemon);
    let mut most = 0;
    until("all are sent", || {
        most = most.max(resident(&daemon));
        daemon.get(&format!("{sandbox}/files/all")).status == 200
    });
    sleep(Duration::from_millis(500));
    most = most.max(resident(&daemon));
    let grown = most.saturating_sub(before);
    assert!(grown < 400 * MIB, "{} MiB", grown / MIB);
    assert_eq!(daemon.run(&json!({"code": "print(1)"}))["stdout"], "1\n");
    drop(stream);
}

/// Small sandboxes can show more than they could hold. Where there is no room, it is not kept.
#[test]
fn displays_count_before_they_are_kept() {
    let daemon = Daemon::with("[budget]\nmemory_bytes = '640m'\ncpus = 16\n");
    let code = "class Page:
    def _repr_html_(self): return 'x' * 250_000
for _ in range(100): display(Page())
import time; time.sleep(3)";
    let body = json!({"code": code, "limits": {"memory_bytes": "32m", "output_bytes": 1000}});
    let before = resident(&daemon);
    let results: Vec<Value> = scope(|scope| {
        let runs: Vec<_> = (0..8).map(|_| scope.spawn(|| daemon.run(&body))).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    let shown: usize = results
        .iter()
        .map(|result| result["displays"].as_array().unwrap().len())
        .sum();
    // An eighth of the budget is for what is shown, and each counts twice.
    assert!((100..=170).contains(&shown), "{shown}");
    assert!(results.iter().all(|result| result["status"] == "ok"));
    let grown = resident(&daemon).saturating_sub(before);
    assert!(grown < 300 * MIB, "{} MiB", grown / MIB);
    // It is given back.
    let again = daemon.run(&body);
    assert_eq!(again["displays"].as_array().unwrap().len(), 100);
}

/// A kernel cannot have more to say than it has memory.
#[test]
fn what_code_does_not_finish_saying_is_bounded_by_its_memory() {
    let daemon = Daemon::start();
    let limits = json!({"memory_bytes": "8m", "timeout_ms": 3000});
    let sandbox = daemon.sandbox(&json!({ "limits": limits }));
    let code = "import os, stat, time
for fd in range(3, 64):
    try: is_channel = stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError: continue
    if is_channel: os.write(fd, (12_000_000).to_bytes(4, 'little'))
time.sleep(100)";
    // As soon as it is said how much it would be, which as such is not too much for anybody.
    let result = daemon.post(&format!("{sandbox}/runs"), &json!({ "code": code }));
    let result = result.ok();
    assert_eq!(result["error"]["type"], "ProtocolViolation", "{result}");
}

const MANY_NAMES: &str = "import os
os.mkdir('d')
for number in range(30_000): os.close(os.open(f'd/{number:0>200}', os.O_CREAT))";

/// Each holds a thread and all names of a directory. A client that leaves does not end it.
#[test]
fn directories_are_looked_at_in_turn() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let made = daemon.post(&format!("{sandbox}/runs"), &json!({"code": MANY_NAMES}));
    assert_eq!(made.ok()["status"], "ok");
    let before = threads(&daemon);
    for (path, at_once) in [("files?path=d&limit=1", 4), ("archive?path=d", 16)] {
        let mut most = 0;
        let mut waiting = Vec::new();
        for number in 0..60 {
            let stream = ask(&daemon, "GET", &format!("{sandbox}/{path}"));
            sleep(Duration::from_millis(5));
            if number % 10 == 0 {
                waiting.push(stream);
            }
            most = most.max(threads(&daemon));
        }
        for stream in waiting {
            assert_eq!(receive(stream).status, 200, "{path}");
            most = most.max(threads(&daemon));
        }
        // And whatever else it does.
        assert!(most <= before + at_once + 6, "{path}: {before} {most}");
    }
}

/// Whoever asks for something that goes away has an answer, if none of it has been sent.
#[test]
fn what_goes_before_its_first_byte_is_an_error() {
    let daemon = Daemon::start();
    // Not enough for a first piece of an archive, but they have to be looked at before.
    let files: BTreeMap<_, _> = (0..200).map(|number| (number.to_string(), "x")).collect();
    for number in 0..60 {
        let sandbox = daemon.sandbox(&json!({"files": files, "language": "bash"}));
        let path = ["archive", "archive", "files/0"][number % 3];
        let stream = ask(&daemon, "GET", &format!("{sandbox}/{path}"));
        sleep(Duration::from_micros(30 * (number as u64)));
        assert_eq!(daemon.delete(&sandbox).status, 204);
        let status = receive(stream).status;
        assert!([200, 404, 409].contains(&status), "{status}");
    }
}
