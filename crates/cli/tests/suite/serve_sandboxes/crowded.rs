//! Code that leaves no room in its own sandbox: what the next command there is told, and that nobody else notices.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::suite::backend::is_docker;
use crate::suite::daemon::{Answer, Daemon, TOKEN, send};
use crate::suite::harness::marker;
use crate::suite::host::{eventually, groups_named, keeper_of, processes_with};

/// Leaves a process behind that does this, with nothing of the command's own.
fn in_background(what: &str) -> Value {
    let code = format!(
        "import os, time\nif os.fork() == 0:\n    null = os.open('/dev/null', 2)\n    \
         for fd in range(3): os.dup2(null, fd)\n    os.setsid()\n    {what}"
    );
    json!({"argv": ["python3", "-c", code]})
}

/// Stops whatever there is, and so what init has forked and not executed yet, for which it waits.
const STOPS_ALL: &str = "time.sleep(.5)\n    while True:\n        try: os.kill(-1, 19)\n        \
                         except OSError: pass";

/// Commands that init does not get to: some small ones, and more than a socket holds.
fn commands_that_wait() -> Vec<Value> {
    let large: serde_json::Map<_, _> = (0..8)
        .map(|number| (format!("V{number}"), json!("x".repeat(100_000))))
        .collect();
    let limits = json!({"timeout_ms": 60_000});
    let small = json!({"argv": ["true"], "limits": limits});
    let large = json!({"argv": ["true"], "env": large, "limits": limits});
    vec![small.clone(), small.clone(), small, large.clone(), large]
}

#[test]
fn who_stops_its_own_commands_holds_up_nobody_else() {
    if is_docker() {
        return;
    }
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let commands = format!("{sandbox}/commands");
    daemon.post(&commands, &in_background(STOPS_ALL)).ok();
    std::thread::sleep(Duration::from_secs(1));
    let answers: Vec<Answer> = std::thread::scope(|scope| {
        let waiting: Vec<_> = commands_that_wait()
            .into_iter()
            .map(|body| {
                std::thread::sleep(Duration::from_millis(200));
                let (daemon, commands) = (&daemon, &commands);
                scope.spawn(move || daemon.post(commands, &body))
            })
            .collect();
        for _ in 0..3 {
            let since = Instant::now();
            let limits = json!({"timeout_ms": 3000});
            let other = daemon.run(&json!({"code": "print(1)", "limits": limits}));
            assert_eq!(other["status"], "ok", "{other}");
            assert!(since.elapsed() < Duration::from_secs(5));
        }
        waiting.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let refused = answers.iter().filter(|answer| answer.status == 409);
    let told = refused.map(|answer| answer.json()["error"]["message"].to_string());
    let told: Vec<_> = told.collect();
    assert!(
        told.iter()
            .any(|text| text.contains("has not started it in time")),
        "{told:?} {:?}",
        answers.iter().map(Answer::text).collect::<Vec<_>>()
    );
}

#[test]
fn a_sandbox_that_does_not_listen_ends_with_the_daemon() {
    if is_docker() {
        return;
    }
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let commands = format!("{sandbox}/commands");
    let marker = marker();
    let stops = format!("marker = '{marker}'\n    {STOPS_ALL}");
    daemon.post(&commands, &in_background(&stops)).ok();
    std::thread::sleep(Duration::from_secs(1));
    let mut open = Vec::new();
    for body in commands_that_wait() {
        let mut stream = daemon.connect();
        let bearer = format!("Bearer {TOKEN}");
        let headers = [
            ("Authorization", bearer.as_str()),
            ("Content-Type", "application/json"),
        ];
        let body = body.to_string();
        send(
            &mut stream,
            "POST",
            &commands,
            &daemon.address,
            &headers,
            body.as_bytes(),
        );
        open.push(stream);
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_ne!(processes_with(&marker).len(), 0);
    let _state = daemon.kill();
    eventually("nothing of it is left", || {
        processes_with(&marker).is_empty()
    });
}

#[test]
fn a_command_for_which_there_is_no_process_is_refused_at_once() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({"limits": {"processes": 8}}));
    let (runs, commands) = (format!("{sandbox}/runs"), format!("{sandbox}/commands"));
    daemon.post(&runs, &json!({"code": "x = 41"})).ok();
    let fills = "while True:\n        try:\n            if os.fork() == 0: time.sleep(1000)\n        \
                 except OSError: time.sleep(.005)";
    daemon.post(&commands, &in_background(fills)).ok();
    std::thread::sleep(Duration::from_millis(500));
    let since = Instant::now();
    let refused = daemon.post(&commands, &json!({"argv": ["true"]}));
    assert_eq!(refused.status, 409, "{}", refused.text());
    assert!(refused.text().contains("limit `processes`"));
    assert!(since.elapsed() < Duration::from_secs(2));
    let kept = daemon.post(&runs, &json!({"code": "x + 1"})).ok();
    assert_eq!(kept["value"], 42, "{kept}");
}

#[test]
fn groups_of_what_commands_left_behind_go_when_it_has_ended() {
    if is_docker() {
        return;
    }
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let commands = format!("{sandbox}/commands");
    let (_, lease) = keeper_of(daemon.pid());
    let parts = || {
        let groups = groups_named(&lease.token);
        let entries = groups
            .iter()
            .flat_map(std::fs::read_dir)
            .flatten()
            .flatten();
        let is_part =
            |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with("command-");
        entries.filter(is_part).count()
    };
    for _ in 0..70 {
        let left = json!({"shell": "sleep .2 >/dev/null 2>&1 &"});
        assert_eq!(daemon.post(&commands, &left).ok()["status"], "ok");
    }
    let going = json!({"shell": "sleep 1000 >/dev/null 2>&1 &"});
    daemon.post(&commands, &going).ok();
    std::thread::sleep(Duration::from_millis(500));
    daemon.post(&commands, &json!({"shell": "true"})).ok();
    daemon.post(&commands, &json!({"shell": "true"})).ok();
    let left = parts();
    assert!((1..=2).contains(&left), "{left}");
}

#[test]
fn one_sandbox_does_not_have_all_inotify_instances() {
    if is_docker() {
        return;
    }
    let daemon = Daemon::with("[pool]\npython = 1\n");
    let takes = |sandbox: &str, most: u32| {
        let code = format!(
            "import ctypes\nlibc = ctypes.CDLL(None)\nfds = []\nwhile len(fds) < {most}:\n    \
             fd = libc.inotify_init()\n    if fd < 0: break\n    fds.append(fd)\nlen(fds)"
        );
        daemon
            .post(&format!("{sandbox}/runs"), &json!({"code": code}))
            .ok()["value"]
            .clone()
    };
    let (one, other) = (daemon.sandbox(&json!({})), daemon.sandbox(&json!({})));
    assert_eq!(takes(&one, 1000), 16);
    assert_eq!(takes(&other, 4), 4);
}
