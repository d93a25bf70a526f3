//! The history: what is kept of a run, how it is found again, and that nothing of it is lost.

use std::io::{BufRead, BufReader, Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::daemon::{Daemon, TOKEN, signal, until};
use super::harness::marker;

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
    // The run printed all of it: it is the history that has less.
    assert_eq!(kept["result"]["stdout_truncated"], false);
    assert_eq!(kept["shortened"], true);
    let id = kept["id"].as_str().unwrap();
    let debug = daemon.get(&format!("/v1/runs/{id}/debug")).ok();
    let summary = debug["summary"].as_str().unwrap();
    assert!(
        summary.contains("history.output_bytes") && !summary.contains("printed more"),
        "{summary}"
    );
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
            signal(daemon.pid(), "KILL");
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

/// A run without end that has printed `so far`, by language and where it is asked for; it makes the file `begun`.
fn endless(language: &str) -> (&str, Value) {
    match language {
        "python" => (
            "runs",
            json!({"code": "print('so far')\nopen('begun', 'w')\nwhile True: pass"}),
        ),
        "perl" => (
            "runs",
            json!({"code": "$| = 1; print \"so far\\n\"; open(F, '>begun'); close F; while (1) {}"}),
        ),
        _ => (
            "commands",
            json!({"shell": "echo so far; touch begun; while :; do :; done"}),
        ),
    }
}

/// What is kept of the latest run that was ended from outside.
fn ended_from_outside(daemon: &Daemon, query: &str) -> Value {
    let newest = daemon.get(&format!("/v1/runs?limit=1&{query}")).ok()["runs"][0].clone();
    assert_eq!(newest["status"], "killed", "{newest}");
    assert!(newest["wall_ms"].as_f64() > Some(0.0), "{newest}");
    let id = newest["id"].as_str().unwrap();
    let kept = daemon.get(&format!("/v1/runs/{id}")).ok();
    let result = &kept["result"];
    assert_eq!(result["stdout"], "so far\n", "{kept}");
    assert_eq!(result["status"], "killed", "{kept}");
    assert!(result["usage"]["cpu_ms"].as_f64() > Some(0.0), "{kept}");
    let debug = daemon.get(&format!("/v1/runs/{id}/debug")).ok();
    assert_eq!(debug["stdout"], "so far\n", "{debug}");
    kept
}

#[test]
fn what_ends_with_its_sandbox_keeps_what_it_printed_and_used() {
    let daemon = Daemon::start();
    // The small image for containers has no perl.
    let others = (!super::backend::is_docker()).then_some("perl");
    for language in ["python", "command"].into_iter().chain(others) {
        let made = if language == "perl" { "perl" } else { "python" };
        let sandbox = daemon.sandbox(&json!({ "language": made }));
        let (route, body) = endless(language);
        let path = format!("{sandbox}/{route}");
        let answer = std::thread::scope(|scope| {
            let running = scope.spawn(|| daemon.post(&path, &body));
            let begun = format!("{sandbox}/files/begun");
            until("it has begun", || daemon.get(&begun).status == 200);
            assert_eq!(daemon.delete(&sandbox).status, 204);
            running.join().unwrap()
        });
        assert_eq!(answer.code(), "conflict", "{language}: {}", answer.text());
        ended_from_outside(&daemon, &format!("language={language}"));
    }
}

#[test]
fn what_ends_with_the_daemon_keeps_what_it_printed_and_used() {
    let mut daemon = Daemon::with("[http]\nshutdown_timeout = '100ms'\n");
    let sandbox = daemon.sandbox(&json!({}));
    let alone = json!({"code": "echo so far; while :; do :; done", "language": "bash"});
    let (route, body) = endless("python");
    let path = format!("{sandbox}/{route}");
    std::thread::scope(|scope| {
        let kept = scope.spawn(|| daemon.post(&path, &body));
        let begun = format!("{sandbox}/files/begun");
        until("it has begun", || daemon.get(&begun).status == 200);
        let mut alone = BufReader::new(daemon.begin("/v1/runs", "text/event-stream", &alone));
        let mut events = String::new();
        while !events.contains("so far") {
            assert!(alone.read_line(&mut events).unwrap() > 0, "{events}");
        }
        signal(daemon.pid(), "TERM");
        let answer = kept.join().unwrap();
        assert_eq!(answer.code(), "conflict", "{}", answer.text());
        alone.read_to_string(&mut events).unwrap();
        assert!(events.contains("the daemon stops"), "{events}");
    });
    assert!(daemon.stop_waiting().success());
    let daemon = Daemon::at(daemon.kill(), "");
    for language in ["python", "bash"] {
        ended_from_outside(&daemon, &format!("language={language}"));
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
    let result: Value = serde_json::from_str(body).ok()?;
    Some(result["id"].as_str()?.to_owned())
}
