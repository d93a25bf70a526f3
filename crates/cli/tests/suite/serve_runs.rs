//! `/v1/runs` of the daemon: results, refusals, events, reports, and what becomes of them when it stops.

use std::time::Instant;

use serde_json::json;

use super::daemon::{Daemon, TOKEN, send, until};
use super::harness::{directory, marker};
use super::serve_readers::lives;

#[test]
fn a_run_has_a_result_like_the_commands() {
    let daemon = Daemon::start();
    let result = daemon.run(&json!({
        "code": "import sys, os\nprint(sys.argv[1], sys.stdin.read(), os.environ['K'], open('in.txt').read())\nopen('out.txt','w').write('x')",
        "args": ["one"], "stdin": "two", "env": {"K": "three"}, "files": {"in.txt": {"base64": "Zm91cg=="}},
    }));
    assert_eq!(result["stdout"], "one two three four\n");
    assert_eq!(result["status"], "ok");
    assert_eq!(result["files"][0]["path"], "out.txt");
    assert_eq!(result["report"]["no_new_privs"], true);
    // A program that fails is a result, not an error.
    let failed = daemon.run(&json!({"code": "exit 3", "language": "bash"}));
    assert_eq!(
        (&failed["status"], &failed["exit_code"]),
        (&json!("failed"), &json!(3))
    );
    let late = daemon.run(&json!({"code": "while True: pass", "limits": {"timeout_ms": 200}}));
    assert_eq!(late["status"], "timed_out");
}

/// What an interpreter keeps for itself is nothing that the code wrote.
#[test]
fn modules_of_the_code_leave_no_files() {
    let daemon = Daemon::start();
    let files = json!({"lib.py": "x = 41\n"});
    let result = daemon.run(&json!({"code": "import lib; lib.x + 1", "files": files}));
    assert_eq!(
        (&result["value"], &result["files"]),
        (&json!(42), &json!([]))
    );
    let sandbox = daemon.sandbox(&json!({"files": files}));
    let runs = format!("{sandbox}/runs");
    let result = daemon
        .post(&runs, &json!({"code": "import lib; lib.x + 1"}))
        .ok();
    assert_eq!(
        (&result["value"], &result["files"]),
        (&json!(42), &json!([]))
    );
}

#[test]
fn what_is_wrong_with_a_request_is_said_before_anything_starts() {
    let daemon = Daemon::with(
        "[volumes]\nallowed = ['/usr/share']\n[limits]\nmaximum = { memory_bytes = '256m' }\n",
    );
    for (body, status, code) in [
        (json!({"code": ""}), 400, "empty_code"),
        (json!({"code": "1", "languag": "c"}), 400, "invalid_request"),
        (json!([]), 400, "invalid_request"),
        (
            json!({"code": "1", "language": "pyton"}),
            400,
            "unknown_language",
        ),
        (
            json!({"code": "1", "limits": {"timeout_ms": 0}}),
            400,
            "invalid_limit",
        ),
        (
            json!({"code": "1", "limits": {"memory_bytes": "1g"}}),
            400,
            "invalid_limit",
        ),
        (
            json!({"code": "1", "limits": {"cpus": 1e308}}),
            400,
            "invalid_limit",
        ),
        (
            json!({"code": "1", "files": {"../x": ""}}),
            400,
            "invalid_path",
        ),
        (
            json!({"code": "1", "image": "--privileged"}),
            400,
            "invalid_request",
        ),
        (json!({"code": "1", "template": "none"}), 404, "not_found"),
        (
            json!({"code": "1", "volumes": ["/etc:/data"]}),
            400,
            "invalid_volume",
        ),
        (
            json!({"code": "1", "volumes": ["/usr/share/../../etc:/data"]}),
            400,
            "invalid_volume",
        ),
        (
            json!({"code": "1", "volumes": ["/:/data"]}),
            400,
            "invalid_volume",
        ),
        (
            json!({"code": "1", "weaken": ["seccomp"]}),
            400,
            "invalid_request",
        ),
        (
            json!({"code": "1", "labels": {"a b": "c"}}),
            400,
            "invalid_request",
        ),
    ] {
        let answer = daemon.post("/v1/runs", &body);
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (status, code),
            "{body} {}",
            answer.text()
        );
        let id = answer.json()["error"]["request_id"]
            .as_str()
            .unwrap()
            .to_owned();
        assert_eq!(answer.headers["x-request-id"], id);
    }
    for body in [
        "",
        "{",
        "{\"code\": \"1\"} x",
        "\u{1}",
        &"[".repeat(100_000),
        "{\"code\": 1e999}",
    ] {
        let answer = daemon.ask_as(TOKEN, "POST", "/v1/runs", body.as_bytes());
        assert_eq!(answer.status, 400, "{}", answer.text());
    }
    assert_eq!(daemon.get("/v1/runs").ok()["runs"], json!([]));
    let allowed = daemon.run(&json!({"code": "import os; print(len(os.listdir('/data')) > 0)", "volumes": ["/usr/share:/data"], "limits": {"memory_bytes": "200m"}}));
    assert_eq!(allowed["stdout"], "True\n");
}

#[test]
fn events_come_as_they_happen_and_end_with_the_result() {
    let daemon = Daemon::start();
    let code = "import sys, time\nprint('a', flush=True)\ntime.sleep(.3)\nprint('b', file=sys.stderr, flush=True)\ntime.sleep(.3)\nsys.stdout.buffer.write(b'\\xff'); sys.exit(5)";
    let events = daemon.events("/v1/runs", &json!({ "code": code }));
    let names: Vec<_> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names.first(), Some(&"stdout"));
    assert_eq!(names.last(), Some(&"result"));
    let text = |wanted: &str| {
        let of = events.iter().filter(|(name, _)| name == wanted);
        of.map(|(_, data)| data["text"].as_str().unwrap())
            .collect::<String>()
    };
    assert_eq!(
        (text("stdout").as_str(), text("stderr").as_str()),
        ("a\n\u{fffd}", "b\n")
    );
    assert!(events.iter().any(|(_, data)| data["base64"] == "/w=="));
    let seq: Vec<_> = events
        .iter()
        .map(|(_, data)| data["seq"].as_u64().unwrap())
        .collect();
    assert_eq!(seq, (1..=events.len() as u64).collect::<Vec<_>>());
    let result = &events.last().unwrap().1["result"];
    assert_eq!(result["exit_code"], 5);
    assert_eq!(
        daemon
            .get(&format!("/v1/runs/{}", result["id"].as_str().unwrap()))
            .ok()["status"],
        "failed"
    );
    assert_eq!(daemon.post("/v1/runs", &json!({})).status, 400);
}

#[test]
fn debug_reports_say_what_went_wrong() {
    let daemon = Daemon::start();
    let report = |body: &serde_json::Value| {
        let id = daemon.run(body)["id"].as_str().unwrap().to_owned();
        daemon.get(&format!("/v1/runs/{id}/debug")).ok()
    };
    let debug = report(&json!({"code": "total = 1\n\ndef f():\n    return totl\n\nf()\n"}));
    assert_eq!(debug["error"]["type"], "NameError");
    assert_eq!(debug["error"]["category"], "name");
    assert_eq!(debug["error"]["line"], 4);
    assert!(
        debug["error"]["hint"].as_str().unwrap().contains("total"),
        "{debug}"
    );
    let failing: Vec<_> = debug["source"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|line| line["failing"] == true)
        .collect();
    assert_eq!(failing[0]["text"], "    return totl");
    assert!(
        debug["text"]
            .as_str()
            .unwrap()
            .contains(">    4 |     return totl")
    );
    for (body, category) in [
        (json!({"code": "import cv2"}), "import"),
        (json!({"code": "if x"}), "syntax"),
        (json!({"code": "open('nope')"}), "file"),
        (json!({"code": "def f(): f()\nf()"}), "recursion"),
        (json!({"code": "assert 1 == 2"}), "assertion"),
        (json!({"code": "{}['a']"}), "index"),
        (json!({"code": "open('/etc/x', 'w')"}), "permission"),
        (
            json!({"code": "import socket; socket.create_connection(('127.0.0.1', 1))"}),
            "network",
        ),
        (
            json!({"code": "while True: pass", "limits": {"timeout_ms": 200}}),
            "timeout",
        ),
        (
            json!({"code": "x = 'x' * (1 << 30)", "limits": {"memory_bytes": "64m"}}),
            "memory",
        ),
        (
            json!({"code": "int main(){return x;}", "language": "c"}),
            "compile",
        ),
        (
            json!({"code": "int main(){return *(volatile int*)0;}", "language": "c"}),
            "signal",
        ),
        (json!({"code": "nope", "language": "bash"}), "name"),
        (json!({"code": "foo()", "language": "javascript"}), "name"),
        (
            json!({"code": "null.x", "language": "javascript"}),
            "attribute",
        ),
        (
            json!({"code": "raise ArgumentError, 'x'", "language": "ruby"}),
            "type",
        ),
        (
            json!({"code": "die 'no such file or directory';", "language": "perl"}),
            "file",
        ),
    ] {
        let debug = report(&body);
        assert_eq!(debug["error"]["category"], category, "{body}: {debug}");
    }
    let fine = report(&json!({"code": "print(1)"}));
    assert_eq!(fine["error"], json!(null));
}

#[test]
fn a_daemon_that_is_told_to_stop_finishes_or_ends_what_runs() {
    let shared = directory(&[]);
    let mut daemon = Daemon::with(&format!(
        "[http]\nshutdown_timeout = '8s'\n[volumes]\nallowed = ['{}']\n",
        shared.path().display()
    ));
    let address = daemon.address.clone();
    let (first, word) = (marker(), marker());
    // Ends when it is told to, which is after the daemon was.
    let waits = format!("while [ ! -e /data/go ]; do (exec -a {first} sleep .2); done; echo done");
    let volume = format!("{}:/data", shared.path().display());
    let waits = json!({"code": waits, "language": "bash", "volumes": [volume]});
    let (quick, endless) = std::thread::scope(|scope| {
        let quick = scope.spawn(|| daemon.run(&waits));
        let body = json!({"code": format!("exec -a {word} sleep 1000"), "language": "bash"});
        let endless = scope.spawn(move || {
            let mut stream = std::net::TcpStream::connect(&address).unwrap();
            let bearer = format!("Bearer {TOKEN}");
            let headers = [
                ("Authorization", bearer.as_str()),
                ("Content-Type", "application/json"),
            ];
            send(
                &mut stream,
                "POST",
                "/v1/runs",
                &address,
                &headers,
                body.to_string().as_bytes(),
            );
            super::daemon::receive(stream)
        });
        until("both runs have started", || lives(&first) && lives(&word));
        super::daemon::signal(daemon.pid(), "TERM");
        until("it takes no more", || {
            std::net::TcpStream::connect(&daemon.address).is_err()
        });
        std::fs::write(shared.path().join("go"), "").unwrap();
        (quick.join().unwrap(), endless.join().unwrap())
    });
    assert_eq!(quick["stdout"], "done\n");
    assert_eq!(endless.status, 409, "{}", endless.text());
    let since = Instant::now();
    assert!(daemon.stop_waiting().success());
    assert!(since.elapsed() < super::daemon::HANG);
    assert!(!lives(&word));
}
