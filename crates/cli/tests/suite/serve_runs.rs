//! `/v1/runs` of the daemon: results, events, history.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use super::daemon::{Daemon, TOKEN, send, until};
use super::harness::{directory, marker};

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
fn a_client_that_goes_ends_its_run() {
    let daemon = Daemon::start();
    for accept in ["application/json", "text/event-stream"] {
        let word = marker();
        let code =
            format!("import os; os.execvp('bash', ['bash', '-c', 'exec -a {word} sleep 1000'])");
        let mut stream = daemon.connect();
        let bearer = format!("Bearer {TOKEN}");
        let headers = [
            ("Authorization", bearer.as_str()),
            ("Content-Type", "application/json"),
            ("Accept", accept),
        ];
        send(
            &mut stream,
            "POST",
            "/v1/runs",
            &daemon.address,
            &headers,
            json!({ "code": code }).to_string().as_bytes(),
        );
        until("the run has started", || lives(&word));
        drop(stream);
        until("the run has ended", || !lives(&word));
    }
    until("both are recorded", || {
        daemon.get("/v1/runs?status=killed").ok()["runs"]
            .as_array()
            .unwrap()
            .len()
            == 2
    });
    // How it ended and what it used is known all the same.
    let killed = daemon.get("/v1/runs?status=killed").ok();
    for run in killed["runs"].as_array().unwrap() {
        assert!(run["wall_ms"].as_f64().unwrap() > 0.0, "{run}");
        assert!(run["memory_peak_bytes"].as_u64().unwrap() > 0, "{run}");
        let path = format!("/v1/runs/{}", run["id"].as_str().unwrap());
        let result = &daemon.get(&path).ok()["result"];
        assert_eq!(
            (&result["status"], &result["success"], &result["id"]),
            (&json!("killed"), &json!(false), &run["id"])
        );
        let debug = daemon.get(&format!("{path}/debug")).ok();
        assert!(debug["summary"].as_str().unwrap().contains("client"));
    }
}

#[test]
fn large_requests_do_not_fill_the_disk() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let code = format!("# {}\nlen(x)", "é".repeat(1 << 20));
    let body = json!({"code": code, "args": ["a"], "globals": {"x": "y".repeat(1 << 20)}});
    for path in ["/v1/runs".to_owned(), format!("{sandbox}/runs")] {
        let result = daemon.post(&path, &body).ok();
        assert_eq!(result["value"], 1 << 20);
        let record = daemon.get(&format!("/v1/runs/{}", result["id"].as_str().unwrap()));
        assert!(record.body.len() < 2 << 20, "{}", record.body.len());
        let record = record.ok();
        assert!(record["code"].as_str().unwrap().len() > 1_000_000);
        assert_eq!(
            (&record["request"]["args"], &record["request"]["omitted"]),
            (&json!(["a"]), &json!(["globals"]))
        );
    }
}

#[test]
fn what_a_program_printed_before_its_client_went_is_kept() {
    let daemon = Daemon::start();
    for (language, code) in [
        (
            "python",
            "print('so far', flush=True)\nimport time; time.sleep(1000)",
        ),
        ("bash", "echo so far; trap '' INT TERM; sleep 1000"),
        (
            "c",
            "#include <stdio.h>\n#include <unistd.h>\nint main(void) { puts(\"so far\"); fflush(stdout); sleep(1000); }",
        ),
    ] {
        // The image of the tests has no compiler.
        if language == "c" && super::backend::is_docker() {
            continue;
        }
        let mut stream = daemon.connect();
        let bearer = format!("Bearer {TOKEN}");
        let headers = [
            ("Authorization", bearer.as_str()),
            ("Content-Type", "application/json"),
            ("Accept", "text/event-stream"),
        ];
        let body = json!({ "code": code, "language": language }).to_string();
        let address = &daemon.address;
        send(
            &mut stream,
            "POST",
            "/v1/runs",
            address,
            &headers,
            body.as_bytes(),
        );
        let mut seen = Vec::new();
        while !String::from_utf8_lossy(&seen).contains("so far") {
            let mut piece = [0; 1024];
            let count = stream.read(&mut piece).unwrap();
            assert!(count > 0);
            seen.extend_from_slice(&piece[..count]);
        }
        drop(stream);
        let query = format!("/v1/runs?language={language}");
        let list = || daemon.get(&query).ok()["runs"].clone();
        until("it is recorded", || !list().as_array().unwrap().is_empty());
        let path = format!("/v1/runs/{}", list()[0]["id"].as_str().unwrap());
        let result = daemon.get(&path).ok()["result"].clone();
        assert_eq!(
            (
                &result["status"],
                &result["stdout"],
                &result["error"]["category"]
            ),
            (&json!("killed"), &json!("so far\n"), &json!("killed")),
            "{language}: {result}"
        );
    }
}

/// Whether a process has this word in its arguments.
fn lives(word: &str) -> bool {
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(word)
            && !String::from_utf8_lossy(&line).contains("cargo")
    })
}

#[test]
fn a_reader_that_stands_still_is_cut_off_and_holds_up_nobody() {
    let daemon = Daemon::with("[http]\nwrite_timeout = '1s'\n");
    let code = "import sys\nfor i in range(20): sys.stdout.write('x' * 1000000)\nwhile True: pass";
    let body = json!({"code": code, "limits": {"output_bytes": 20_000_000, "timeout_ms": 60_000}});
    let mut stream = daemon.connect();
    let bearer = format!("Bearer {TOKEN}");
    let headers = [
        ("Authorization", bearer.as_str()),
        ("Content-Type", "application/json"),
        ("Accept", "text/event-stream"),
    ];
    send(
        &mut stream,
        "POST",
        "/v1/runs",
        &daemon.address,
        &headers,
        body.to_string().as_bytes(),
    );
    let mut first = [0; 16];
    stream.read_exact(&mut first).unwrap();
    assert!(first.starts_with(b"HTTP/1.1 200"));
    assert_eq!(daemon.run(&json!({"code": "print(1)"}))["stdout"], "1\n");
    until("the run has been ended", || {
        daemon.get("/v1/runs?status=killed").ok()["runs"]
            .as_array()
            .unwrap()
            .len()
            == 1
    });
}

#[test]
fn history_finds_runs_again() {
    let daemon = Daemon::start();
    for (code, label) in [("print(1)", "red"), ("1/0", "red"), ("import nope", "blue")] {
        daemon.run(&json!({"code": code, "labels": {"colour": label}}));
    }
    daemon.run(&json!({"code": "exit 1", "language": "bash"}));
    let count = |query: &str| {
        let answer = daemon.get(&format!("/v1/runs?{query}"));
        answer.ok()["runs"].as_array().unwrap().len()
    };
    for (query, wanted) in [
        ("", 4),
        ("limit=2", 2),
        ("status=failed", 3),
        ("status=ok&language=python", 1),
        ("language=bash", 1),
        ("language=sh", 1),
        ("label=colour%3Dred", 2),
        ("label=colour", 3),
        ("label=colour%3Dgreen", 0),
        ("text=division+by", 1),
        ("text=%25", 0),
        ("since=1h", 4),
        ("until=1h", 0),
        (
            "since=2001-01-01T00:00:00Z&until=2001-01-02T00:00:00%2B01:00",
            0,
        ),
        ("tenant=nobody", 0),
    ] {
        assert_eq!(count(query), wanted, "{query}");
    }
    for bad in [
        "limit=0",
        "limit=1001",
        "limit=x",
        "status=fine",
        "since=yesterday",
        "colour=red",
        "before=-1",
        "text=",
    ] {
        assert_eq!(daemon.get(&format!("/v1/runs?{bad}")).status, 400, "{bad}");
    }
    // Page by page, none twice and none left out.
    let (mut seen, mut next) = (Vec::new(), String::new());
    loop {
        let page = daemon.get(&format!("/v1/runs?limit=3{next}")).ok();
        seen.extend(
            page["runs"]
                .as_array()
                .unwrap()
                .iter()
                .map(|run| run["id"].clone()),
        );
        match page["next"].as_u64() {
            Some(before) => next = format!("&before={before}"),
            None => break,
        }
    }
    seen.dedup();
    assert_eq!(seen.len(), 4);
    let stats = daemon.get("/v1/stats?language=python").ok();
    assert_eq!(
        (&stats["runs"], &stats["by_status"]["failed"]),
        (&json!(3), &json!(2))
    );
    assert!(stats["wall_ms"]["p50"].as_f64().unwrap() <= stats["wall_ms"]["p99"].as_f64().unwrap());
    // The most telling words come first, however long the rest is.
    let deep = "def f(n):\n    if n: f(n - 1)\n    else: raise ValueError('the deepest')\nf(40)";
    let program =
        "for i in $(seq 200); do echo some words of it >&2; done; echo the last >&2; exit 3";
    for (body, first) in [
        (json!({"code": deep}), "ValueError: the deepest"),
        (json!({"code": program, "language": "bash"}), "the last"),
    ] {
        daemon.run(&body);
        let newest = daemon.get("/v1/runs?limit=1").ok()["runs"][0]["error"].clone();
        let newest = newest.as_str().unwrap();
        assert_eq!(newest.lines().next(), Some(first), "{newest}");
        assert!(newest.len() <= 400);
    }
    let same = |code: &str| {
        daemon
            .get(&format!(
                "/v1/runs/{}",
                daemon.run(&json!({"code": code}))["id"].as_str().unwrap()
            ))
            .ok()["digest"]
            .clone()
    };
    assert!(same("2") == same("2") && same("2") != same("3"));
}

#[test]
fn history_keeps_what_it_may_and_no_more() {
    let daemon = Daemon::with("[history]\ncode = false\noutput_bytes = '1k'\nruns = 2\n");
    let secret = marker();
    let result = daemon.run(&json!({
        "code": format!("print('{secret}'[:0] + 'x' * 5000)"), "args": [secret], "env": {"NAME": secret}, "files": {"f": secret},
        "stdin": secret,
    }));
    assert_eq!(result["stdout"].as_str().unwrap().len(), 5001);
    let kept = daemon
        .get(&format!("/v1/runs/{}", result["id"].as_str().unwrap()))
        .ok();
    assert_eq!(kept["code"], json!(null));
    assert_eq!(kept["result"]["stdout"].as_str().unwrap().len(), 1024);
    assert_eq!(kept["result"]["stdout_truncated"], true);
    assert_eq!(kept["request"]["files"]["f"], secret.len());
    let state = daemon.state.path();
    for file in ["history.sqlite", "history.sqlite-wal", "log"] {
        let bytes = std::fs::read(state.join(file)).unwrap();
        let found = bytes
            .windows(secret.len())
            .any(|part| part == secret.as_bytes());
        assert!(!found, "{file} has what the client sent");
    }
}

#[test]
fn finished_runs_survive_the_daemons_death() {
    let mut state = None;
    let mut known = Vec::new();
    for round in 0..3 {
        let daemon = match state.take() {
            Some(state) => Daemon::at(state, ""),
            None => Daemon::start(),
        };
        let count = AtomicUsize::new(0);
        let answered: Vec<_> = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let mut answered = Vec::new();
                        // Ends when the daemon does.
                        while let Some(id) = one_run(&daemon.address) {
                            answered.push(id);
                            count.fetch_add(1, Ordering::Relaxed);
                        }
                        answered
                    })
                })
                .collect();
            until("one is answered", || count.load(Ordering::Relaxed) > 0);
            // A container takes its time.
            let slow = if super::backend::is_docker() { 4 } else { 1 };
            std::thread::sleep(Duration::from_millis((400 + 170 * round) * slow));
            super::daemon::signal(daemon.pid(), "KILL");
            clients
                .into_iter()
                .flat_map(|client| client.join().unwrap())
                .collect()
        });
        assert!(!answered.is_empty());
        known.extend(answered);
        state = Some(daemon.kill());
    }
    let daemon = Daemon::at(state.unwrap(), "");
    for id in &known {
        assert_eq!(
            daemon.get(&format!("/v1/runs/{id}")).status,
            200,
            "{id} was lost"
        );
    }
}

/// The id of a run whose whole answer came.
fn one_run(address: &str) -> Option<String> {
    let mut stream = std::net::TcpStream::connect(address).ok()?;
    let body = r#"{"code": "echo hi", "language": "bash"}"#;
    write!(stream, "POST /v1/runs HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (_, body) = text.split_once("\r\n\r\n")?;
    let result: serde_json::Value = serde_json::from_str(body).ok()?;
    Some(result["id"].as_str()?.to_owned())
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
