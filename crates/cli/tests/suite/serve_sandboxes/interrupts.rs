//! Whose run an interrupt ends, and what is left then.

use serde_json::json;

use super::begun;
use crate::suite::backend;
use crate::suite::daemon::{Daemon, TOKEN, until};

fn interrupt(daemon: &Daemon, sandbox: &str, query: &str) -> u16 {
    let path = format!("{sandbox}/interrupt{query}");
    daemon.ask_as(TOKEN, "POST", &path, b"").status
}

#[test]
fn an_interrupt_ends_the_run_and_keeps_the_state() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let runs = format!("{sandbox}/runs");
    daemon.post(&runs, &json!({"code": "x = 1"})).ok();
    let endless = json!({"code": "import time\nopen('begun', 'w')\nwhile True: time.sleep(.01)"});
    let ended = std::thread::scope(|scope| {
        let running = scope.spawn(|| daemon.post(&runs, &endless).ok());
        begun(&daemon, &sandbox, "begun");
        assert_eq!(interrupt(&daemon, &sandbox, ""), 204);
        running.join().unwrap()
    });
    assert_eq!(
        (
            &ended["status"],
            &ended["state"],
            &ended["success"],
            &ended["error"]["type"]
        ),
        (
            &json!("killed"),
            &json!("kept"),
            &json!(false),
            &json!("KeyboardInterrupt")
        ),
        "{ended}"
    );
    assert_eq!(daemon.post(&runs, &json!({"code": "x"})).ok()["value"], 1);
    // Without a run it means nothing, now and for the next.
    assert_eq!(interrupt(&daemon, &sandbox, ""), 204);
    assert_eq!(daemon.post(&runs, &json!({"code": "x"})).ok()["value"], 1);
}

#[test]
fn an_interrupt_ends_programs_of_every_kind() {
    let daemon = Daemon::start();
    for (language, code) in [
        ("perl", "open(F, '>begun'); close F; sleep 1000;"),
        // One that does not want to.
        (
            "perl",
            "$SIG{INT} = 'IGNORE'; open(F, '>begun'); close F; sleep 1000;",
        ),
        ("bash", "touch begun; sleep 1000"),
        (
            "javascript",
            "require('fs').writeFileSync('begun', ''); while (true) {}",
        ),
    ] {
        if backend::is_docker() && language != "bash" {
            // The small image has no other.
            continue;
        }
        let sandbox = daemon.sandbox(&json!({ "language": language }));
        let ended = std::thread::scope(|scope| {
            let running = scope.spawn(|| {
                let path = format!("{sandbox}/runs");
                daemon.post(&path, &json!({ "code": code })).ok()
            });
            begun(&daemon, &sandbox, "begun");
            assert_eq!(interrupt(&daemon, &sandbox, ""), 204);
            running.join().unwrap()
        });
        assert_eq!(ended["status"], "killed", "{language}: {ended}");
        assert_eq!(daemon.delete(&sandbox).status, 204);
    }
}

#[test]
fn a_run_that_waits_is_stopped_without_the_one_that_goes_on() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let named = |name: &str| format!("{sandbox}/runs?run={name}");
    let first = json!({"code": "import os, time\nopen('begun', 'w')\nwhile not os.path.exists('go'): time.sleep(.01)\n'whole'"});
    std::thread::scope(|scope| {
        let going = scope.spawn(|| daemon.post(&named("first"), &first).ok());
        begun(&daemon, &sandbox, "begun");
        let waiting = scope.spawn(|| daemon.post(&named("second"), &json!({"code": "y = 2"})));
        until("the second waits", || {
            interrupt(&daemon, &sandbox, "?run=second") == 204
        });
        let stopped = waiting.join().unwrap();
        assert_eq!(
            (stopped.status, stopped.code().as_str()),
            (409, "conflict"),
            "{}",
            stopped.text()
        );
        // A command has a name too.
        let sleeping = scope.spawn(|| {
            let path = format!("{sandbox}/commands?run=third");
            daemon
                .post(&path, &json!({"shell": "touch slept; exec sleep 1000"}))
                .ok()
        });
        begun(&daemon, &sandbox, "slept");
        let taken = daemon.post(&named("third"), &json!({"code": "1"}));
        assert_eq!(taken.status, 409);
        assert_eq!(interrupt(&daemon, &sandbox, "?run=third"), 204);
        assert_eq!(sleeping.join().unwrap()["status"], "killed");
        assert_eq!(interrupt(&daemon, &sandbox, "?run=nobody"), 404);
        assert_eq!(interrupt(&daemon, &sandbox, "?runs=x"), 400);
        assert_eq!(daemon.put(&format!("{sandbox}/files/go"), b"").status, 201);
        let whole = going.join().unwrap();
        assert_eq!(
            (&whole["status"], &whole["value"]),
            (&json!("ok"), &json!("whole")),
            "{whole}"
        );
    });
    let path = format!("{sandbox}/runs");
    let seen = daemon
        .post(&path, &json!({"code": "'y' in globals()"}))
        .ok();
    assert_eq!(seen["value"], false);
}

#[test]
fn an_interrupt_ends_commands_too() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let runs = format!("{sandbox}/runs");
    let commands = format!("{sandbox}/commands");
    daemon.post(&runs, &json!({"code": "x = 1"})).ok();
    let endless = json!({"code": "import time\nopen('begun', 'w')\nwhile True: time.sleep(.01)"});
    let (code, gentle, deaf) = std::thread::scope(|scope| {
        let code = scope.spawn(|| daemon.post(&runs, &endless).ok());
        let command = |line: &'static str| {
            let (daemon, commands) = (&daemon, &commands);
            scope.spawn(move || daemon.post(commands, &json!({ "shell": line })).ok())
        };
        let gentle = command("touch slept; exec sleep 1000");
        // It does not hear, and is ended all the same.
        let deaf = command("trap '' INT; touch ignored; exec sleep 1000");
        for file in ["begun", "slept", "ignored"] {
            begun(&daemon, &sandbox, file);
        }
        assert_eq!(interrupt(&daemon, &sandbox, ""), 204);
        let ended = (code.join(), gentle.join(), deaf.join());
        (ended.0.unwrap(), ended.1.unwrap(), ended.2.unwrap())
    });
    for ended in [&code, &gentle, &deaf] {
        assert_eq!(
            (&ended["status"], &ended["success"]),
            (&json!("killed"), &json!(false)),
            "{ended}"
        );
    }
    // The next ones are not meant.
    let next = daemon.post(&commands, &json!({"shell": "echo on"})).ok();
    assert_eq!(
        (&next["status"], &next["stdout"]),
        (&json!("ok"), &json!("on\n"))
    );
    assert_eq!(daemon.post(&runs, &json!({"code": "x"})).ok()["value"], 1);
}
