//! `belljar exec`: what it reads, how it ends, what it says.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use serde_json::json;

use super::daemon::{Daemon, signal, until};
use super::harness::{Ended, belljar, code_of, directory, marker};
use super::host::processes_with;

fn exec(daemon: &Daemon, args: &[&str]) -> Command {
    let mut command = belljar();
    command
        .arg("exec")
        .args(args)
        .env("BELLJAR_STATE_DIR", daemon.state.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn ended(daemon: &Daemon, args: &[&str]) -> Ended {
    exec(daemon, args).output().unwrap().into()
}

fn fed(daemon: &Daemon, args: &[&str], input: &[u8]) -> Ended {
    let mut child = exec(daemon, args).stdin(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    // It may have had enough before the end.
    let _ = pipe.write_all(input);
    drop(pipe);
    child.wait_with_output().unwrap().into()
}

/// Its sandbox's id.
fn id_of(sandbox: &str) -> &str {
    sandbox.rsplit('/').next().unwrap()
}

#[test]
fn standard_input_gets_there() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let id = id_of(&sandbox);
    let cat = [id, "--", "cat"];
    assert_eq!(fed(&daemon, &cat, b"hi\n").parts(), (0, "hi\n", ""));
    let all: Vec<u8> = (0..=255).cycle().take(80_000).collect();
    assert!(fed(&daemon, &cat, &all).bytes == all);
    // Larger as JSON than it may be, if it were sent as text.
    let zeros = fed(&daemon, &[id, "--", "wc", "-c"], &vec![0; 20 << 20]);
    assert_eq!(zeros.parts(), (0, "20971520\n", ""));
    let code = "import sys; sys.stdin.read()";
    assert_eq!(
        fed(&daemon, &[id, "-c", code], b"hi\n").parts(),
        (0, "'hi\\n'\n", "")
    );
    let dir = directory(&[("words", "b\na\n")]);
    let file = File::open(dir.path().join("words")).unwrap();
    let sorted = exec(&daemon, &[id, "--", "sort"]).stdin(file).output();
    assert_eq!(Ended::from(sorted.unwrap()).parts(), (0, "a\nb\n", ""));
    assert_eq!(ended(&daemon, &cat).parts(), (0, "", ""));
    let large = fed(&daemon, &cat, &vec![b'x'; 24 << 20]);
    assert_eq!((large.code, &*large.stdout), (125, ""));
    assert!(large.stderr.contains("belljar cp"), "{}", large.stderr);
}

/// Scripts often leave a pipe behind that nobody writes to.
#[test]
fn a_pipe_on_which_nothing_comes_is_no_input() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let mut child = exec(&daemon, &[id_of(&sandbox), "--", "cat"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let held_open = child.stdin.take();
    let ended: Ended = child.wait_with_output().unwrap().into();
    drop(held_open);
    assert_eq!((ended.code, &*ended.stdout), (0, ""), "{ended:?}");
    assert!(ended.stderr.contains("standard input"), "{ended:?}");
}

/// A command that has begun, and goes on.
fn begun(daemon: &Daemon, args: &[&str]) -> Child {
    let mut child = exec(daemon, args).spawn().unwrap();
    let mut word = [0; 6];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut word)
        .unwrap();
    assert_eq!(&word, b"begun\n");
    child
}

/// `belljar exec … | head -1`
#[test]
fn that_nobody_reads_on_ends_its_command() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({"limits": {"timeout_ms": "10m"}}));
    let word = marker();
    let script = "while echo begun; do sleep 0.05; done";
    let mut child = begun(&daemon, &[id_of(&sandbox), "--", "sh", "-c", script, &word]);
    drop(child.stdout.take());
    let ended: Ended = child.wait_with_output().unwrap().into();
    assert_eq!((ended.code, &*ended.stderr), (128 + 13, ""));
    until("the command has ended", || processes_with(&word).is_empty());
}

#[test]
fn who_ends_it_ends_its_command() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({"limits": {"timeout_ms": "10m"}}));
    let id = id_of(&sandbox);
    for (name, number) in [("TERM", 15), ("INT", 2), ("HUP", 1)] {
        let word = marker();
        // A line of its own for the sleep: the shell stays, with the word among its arguments.
        let script = "echo begun\nsleep 1000\necho over";
        let mut child = begun(&daemon, &[id, "--", "sh", "-c", script, &word]);
        signal(child.id(), name);
        assert_eq!(code_of(child.wait().unwrap()), -number);
        until("nothing runs in it", || {
            daemon.get(&sandbox).ok()["busy"] == false
        });
        until("its processes have gone", || {
            processes_with(&word).is_empty()
        });
    }
    // Code too; what it was given before is still there.
    assert_eq!(ended(&daemon, &[id, "-c", "x = 41"]).code, 0);
    let code = "print('begun', flush=True)\nwhile True: pass";
    let mut child = begun(&daemon, &[id, "-c", code]);
    signal(child.id(), "INT");
    child.wait().unwrap();
    until("nothing runs in it", || {
        daemon.get(&sandbox).ok()["busy"] == false
    });
    assert_eq!(ended(&daemon, &[id, "-c", "x"]).parts(), (0, "41\n", ""));
}

#[test]
fn it_says_which_limit_was_reached() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({"limits": {"memory_bytes": "64m"}}));
    let id = id_of(&sandbox);
    let time = "belljar: the time was up after 300 ms (see --timeout)\n";
    for what in [&["--", "sleep", "100"][..], &["-c", "while True: pass"]] {
        let late = ended(&daemon, &[&[id, "--timeout", "300ms"][..], what].concat());
        assert_eq!(late.code, 124, "{late:?}");
        assert!(late.stderr.ends_with(time), "{late:?}");
    }
    let grows = "x = bytearray(200 << 20)";
    let large = ended(&daemon, &[id, "--", "python3", "-c", grows]);
    assert_eq!(large.code, 137, "{large:?}");
    assert!(
        large.stderr.contains("belljar: out of memory") && large.stderr.contains("64 MiB"),
        "{large:?}"
    );
    let cut = ended(
        &daemon,
        &[id, "--max-output", "1000b", "-c", "print('x' * 5000)"],
    );
    assert_eq!((cut.code, cut.stdout.len()), (0, 1000), "{cut:?}");
    assert_eq!(
        cut.stderr,
        "belljar: stdout was cut off after 1000 bytes (see --max-output)\n"
    );
    let json = ended(
        &daemon,
        &[id, "--json", "--timeout", "300ms", "--", "sleep", "100"],
    );
    assert_eq!((json.code, &*json.stderr), (124, ""), "{json:?}");
}
