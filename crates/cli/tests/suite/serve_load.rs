//! Too much of everything: bodies, connections, clients.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use super::daemon::{Daemon, HANG, TOKEN, receive, resident, until};

#[test]
fn bodies_are_bounded() {
    let daemon = Daemon::with("[http]\nbody_bytes = '1m'\n");
    let bearer = format!("Bearer {TOKEN}");
    let before = resident(&daemon);
    let big = vec![b'x'; 3 << 20];
    let answer = daemon.ask_as(TOKEN, "POST", "/v1/runs", &big);
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (413, "body_too_large")
    );
    // Announced as huge, and not announced at all.
    let head = format!(
        "POST /v1/runs HTTP/1.1\r\nHost: {}\r\nAuthorization: {bearer}\r\nContent-Type: application/json\r\n",
        daemon.address
    );
    let mut stream = daemon.connect();
    write!(stream, "{head}Content-Length: 1099511627776\r\n\r\n").unwrap();
    assert_eq!(receive(stream).status, 413);
    let mut stream = daemon.connect();
    write!(stream, "{head}Transfer-Encoding: chunked\r\n\r\n").unwrap();
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(1 << 16));
    for _ in 0..1000 {
        if stream.write_all(chunk.as_bytes()).is_err() {
            break;
        }
    }
    assert_eq!(receive(stream).status, 413);
    assert!(resident(&daemon) < before + (64 << 20));
    // What says it is compressed is not unpacked.
    let headers = [
        ("Authorization", bearer.as_str()),
        ("Content-Type", "application/json"),
        ("Content-Encoding", "gzip"),
    ];
    assert_eq!(
        daemon.raw("POST", "/v1/runs", &headers, b"\x1f\x8b").status,
        415
    );
    let long = format!("/v1/runs?text={}", "x".repeat(100_000));
    assert!([414, 431, 400].contains(&daemon.get(&long).status));
    let headers: Vec<_> = (0..200).map(|_| ("X-Many", "y")).collect();
    assert_eq!(daemon.raw("GET", "/healthz", &headers, b"").status, 431);
}

#[test]
fn answers_that_nobody_takes_count() {
    let daemon = Daemon::with("[budget]\nmemory_bytes = '1g'\nqueue_timeout = '1s'\n");
    let bearer = format!("Bearer {TOKEN}");
    // In JSON it is six times as long.
    let code = "import sys\nsys.stdout.write('\\1' * 25_000_000)";
    let limits = json!({"memory_bytes": "200m", "output_bytes": "25m"});
    let body = json!({"code": code, "limits": limits}).to_string();
    let mut stream = daemon.connect();
    write!(
        stream,
        "POST /v1/runs HTTP/1.1\r\nHost: {}\r\nAuthorization: {bearer}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        daemon.address,
        body.len()
    )
    .unwrap();
    until("the run is over", || {
        daemon.get("/v1/stats").ok()["runs"] == 1 && resident(&daemon) > 150 << 20
    });
    // A run of its own kind would fit beside another, but for what the first has left behind.
    let large = json!({"code": "1", "limits": {"memory_bytes": "950m"}}).to_string();
    let ask = || daemon.ask_as(TOKEN, "POST", "/v1/runs", large.as_bytes());
    assert_eq!(ask().code(), "overloaded");
    assert_eq!(daemon.run(&json!({"code": "print(1)"}))["stdout"], "1\n");
    drop(stream);
    until("there is room again", || ask().status == 200);
    until("it is gone", || resident(&daemon) < 150 << 20);
}

#[test]
fn slow_senders_are_cut_off_and_hold_up_nobody() {
    let daemon = Daemon::with("[http]\nread_timeout = '4s'\n");
    let bearer = format!("Bearer {TOKEN}");
    let half_head = format!("POST /v1/runs HTTP/1.1\r\nHost: {}\r\nAuth", daemon.address);
    let half_body = format!(
        "POST /v1/runs HTTP/1.1\r\nHost: {}\r\nAuthorization: {bearer}\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{{",
        daemon.address
    );
    let mut slow: Vec<_> = (0..300)
        .map(|number| {
            let mut stream = daemon.connect();
            stream
                .write_all([half_head.as_bytes(), half_body.as_bytes(), b""][number % 3])
                .unwrap();
            stream
        })
        .collect();
    let since = Instant::now();
    assert_eq!(daemon.get("/healthz").status, 200);
    assert_eq!(daemon.run(&json!({"code": "print(1)"}))["stdout"], "1\n");
    assert!(since.elapsed() < HANG);
    // A byte now and then does not keep a connection alive.
    let dripping = &mut slow[1];
    for _ in 0..16 {
        std::thread::sleep(Duration::from_millis(300));
        let _ = dripping.write_all(b" ");
    }
    for mut stream in slow {
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text);
        assert!(
            text.is_empty() || text.starts_with(b"HTTP/1.1 408"),
            "{}",
            String::from_utf8_lossy(&text)
        );
    }
}

#[test]
fn more_connections_than_there_may_be_are_closed() {
    let daemon = Daemon::with("[http]\nconnections = 20\n");
    let held: Vec<_> = (0..20).map(|_| daemon.connect()).collect();
    until("the next one is closed", || {
        let mut stream = daemon.connect();
        let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text);
        text.is_empty()
    });
    drop(held);
    until("there is room again", || {
        let mut stream = daemon.connect();
        let _ = stream
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let mut text = String::new();
        let _ = stream.read_to_string(&mut text);
        text.starts_with("HTTP/1.1 200")
    });
}

#[test]
fn five_hundred_clients_at_once() {
    let daemon =
        Daemon::with("[budget]\nmemory_bytes = '600m'\nqueue = 50\nqueue_timeout = '30s'\n");
    daemon.run(&json!({"code": ":", "language": "bash"}));
    let health = || {
        let since = Instant::now();
        assert_eq!(daemon.get("/healthz").status, 200);
        since.elapsed()
    };
    let alone = (0..20).map(|_| health()).max().unwrap();
    let before = resident(&daemon);
    let most = AtomicU64::new(0);
    let (done, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let body = json!({"code": "echo hi", "language": "bash", "limits": {"memory_bytes": "64m", "output_bytes": 1000}}).to_string();
    std::thread::scope(|scope| {
        for _ in 0..500 {
            scope.spawn(|| {
                let answer = daemon.ask_as(TOKEN, "POST", "/v1/runs", body.as_bytes());
                match answer.status {
                    200 => {
                        assert_eq!(answer.json()["stdout"], "hi\n");
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    429 => {
                        assert_eq!(answer.code(), "overloaded");
                        assert!(answer.headers["retry-after"].parse::<u32>().unwrap() > 0);
                        refused.fetch_add(1, Ordering::Relaxed);
                    }
                    status => panic!("{status} {}", answer.text()),
                }
            });
        }
        // It is beside five hundred threads of ours on the same machine; but it does not wait for the runs.
        let mut times: Vec<_> = (0..40)
            .map(|_| {
                most.fetch_max(resident(&daemon), Ordering::Relaxed);
                health()
            })
            .collect();
        times.sort_unstable();
        assert!(
            times[20] < alone * 20 + Duration::from_millis(500),
            "{alone:?} alone, {times:?} beside them"
        );
    });
    let (done, refused) = (done.into_inner(), refused.into_inner());
    assert_eq!(done + refused, 500);
    assert!(done >= 50, "{done}");
    // Exactly those that were answered have run.
    let stats = daemon.get("/v1/stats").ok();
    assert_eq!(stats["runs"], done as u64 + 1);
    let most = most.into_inner().max(resident(&daemon));
    assert!(most < before + (64 << 20), "{before} to {most}");
    let metrics = daemon.get("/metrics").text();
    assert!(metrics.contains("belljar_running 0\n") && metrics.contains("belljar_waiting 0\n"));
}

#[test]
fn what_can_never_fit_is_refused_at_once() {
    let daemon = Daemon::with(
        "[budget]\nmemory_bytes = '100m'\nqueue_timeout = '300ms'\n[limits]\ndefault = { memory_bytes = '64m' }\n",
    );
    let large = json!({"code": "1", "limits": {"memory_bytes": "128m"}});
    let answer = daemon.post("/v1/runs", &large);
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (400, "invalid_limit")
    );
    let sandbox = daemon.sandbox(&json!({"limits": {"memory_bytes": "64m"}}));
    // What is kept counts as a whole while something runs in it.
    let run = || {
        let body = json!({"code": "1", "limits": {"memory_bytes": "64m"}});
        daemon.post("/v1/runs", &body)
    };
    let path = format!("{sandbox}/runs");
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| {
            let body = json!({"code": "import time, os\nopen('begun', 'w')\nwhile not os.path.exists('go'): time.sleep(0.01)\n7"});
            daemon.post(&path, &body).ok()
        });
        let begun = format!("{sandbox}/files/begun");
        until("it runs", || daemon.get(&begun).status == 200);
        let answer = run();
        let got = (answer.status, answer.code());
        assert_eq!(got, (429, "overloaded".into()), "{}", answer.text());
        let went = daemon.ask_as(TOKEN, "PUT", &format!("{sandbox}/files/go"), b"");
        assert!(went.status < 300, "{}", went.text());
        assert_eq!(busy.join().unwrap()["value"], 7);
    });
    assert_eq!(run().ok()["status"], "ok");
}

#[test]
fn sandboxes_at_rest_take_what_they_use() {
    let daemon = Daemon::with("[budget]\nmemory_bytes = '1g'\n");
    // Their limits together are twenty times as much.
    let all: Vec<_> = (0..40).map(|_| daemon.sandbox(&json!({}))).collect();
    for (number, sandbox) in all.iter().enumerate() {
        let body = json!({"code": format!("number = {number}")});
        daemon.post(&format!("{sandbox}/runs"), &body).ok();
    }
    for (number, sandbox) in all.iter().enumerate() {
        let value = daemon.post(&format!("{sandbox}/runs"), &json!({"code": "number"}));
        assert_eq!(value.ok()["value"], number);
    }
}

#[test]
fn those_that_grow_with_nothing_running_are_ended_when_there_is_too_little() {
    let daemon = Daemon::with(
        "[budget]\nmemory_bytes = '300m'\n[limits]\ndefault = { memory_bytes = '200m' }\n",
    );
    let limits = json!({"limits": {"memory_bytes": "200m"}});
    let (first, second) = (daemon.sandbox(&limits), daemon.sandbox(&limits));
    let modest = daemon.sandbox(&limits);
    daemon
        .post(
            &format!("{modest}/runs"),
            &json!({"code": "kept = bytearray(20 << 20)"}),
        )
        .ok();
    let grows = json!({"code": "import os, threading, time\ndef grow():\n    while not os.path.exists('go'): time.sleep(0.01)\n    global data\n    data = b'x' * (170 << 20)\nthreading.Thread(target=grow).start()"});
    for sandbox in [&first, &second] {
        assert_eq!(
            daemon.post(&format!("{sandbox}/runs"), &grows).ok()["status"],
            "ok"
        );
    }
    for sandbox in [&first, &second] {
        assert_eq!(daemon.put(&format!("{sandbox}/files/go"), b"").status, 201);
    }
    let is_there = |sandbox: &String| daemon.get(sandbox).status == 200;
    until("one of them is ended", || {
        !is_there(&first) || !is_there(&second)
    });
    // That is enough.
    std::thread::sleep(Duration::from_secs(3));
    let left = [first, second].into_iter().find(is_there).unwrap();
    assert_eq!(daemon.delete(&left).status, 204);
    let body = json!({"code": "len(kept)"});
    let kept = daemon.post(&format!("{modest}/runs"), &body).ok();
    assert_eq!(kept["value"], 20 << 20);
    assert!(
        daemon
            .get("/metrics")
            .text()
            .contains("belljar_evictions_total 1\n")
    );
}

#[test]
fn an_operator_lowers_and_raises_what_may_be_asked_for() {
    let daemon = Daemon::with(
        "[limits]\nmaximum = { timeout_ms = '5h', processes = 6000, output_bytes = '80m', disk_bytes = '20g', memory_bytes = '256m' }\ndefault = { timeout_ms = '2h' }\n",
    );
    let run = |limits: serde_json::Value| {
        daemon.post("/v1/runs", &json!({"code": "print(1)", "limits": limits}))
    };
    let result = run(json!({})).ok();
    assert_eq!(
        (
            &result["limits"]["timeout_ms"],
            &result["limits"]["memory_bytes"]
        ),
        (&json!(2 * 3_600_000), &json!(256 << 20))
    );
    let raised = json!({"timeout_ms": "4h", "processes": 5000, "output_bytes": 70_000_000, "disk_bytes": "17g", "memory_bytes": "128m"});
    let result = run(raised.clone()).ok();
    assert_eq!(
        (
            &result["status"],
            &result["limits"]["timeout_ms"],
            &result["limits"]["processes"]
        ),
        (&json!("ok"), &json!(4 * 3_600_000), &json!(5000)),
        "{result}"
    );
    let sandbox = daemon.sandbox(&json!({ "limits": raised }));
    let path = format!("{sandbox}/runs");
    let kept = daemon.post(&path, &json!({"code": "1 + 1"})).ok();
    assert_eq!(
        (&kept["value"], &kept["limits"]["timeout_ms"]),
        (&json!(2), &json!(4 * 3_600_000))
    );
    for (limits, most) in [
        (json!({"timeout_ms": "6h"}), "5h"),
        (json!({"processes": 6001}), "6000"),
        (json!({"memory_bytes": "257m"}), "256m"),
        (json!({"disk_bytes": "21g"}), "20g"),
    ] {
        let answer = run(limits);
        assert_eq!(answer.code(), "invalid_limit");
        assert!(answer.text().contains(most), "{}", answer.text());
    }
}
