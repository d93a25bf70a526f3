//! Clients that go away, or do not read what they are sent.

use std::io::Read;

use serde_json::json;

use super::daemon::{Daemon, until};
use super::harness::marker;

#[test]
fn a_client_that_goes_ends_its_run() {
    let daemon = Daemon::start();
    for accept in ["application/json", "text/event-stream"] {
        let word = marker();
        let code =
            format!("import os; os.execvp('bash', ['bash', '-c', 'exec -a {word} sleep 1000'])");
        let stream = daemon.begin("/v1/runs", accept, &json!({ "code": code }));
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
        let body = json!({ "code": code, "language": language });
        let mut stream = daemon.begin("/v1/runs", "text/event-stream", &body);
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
pub fn lives(word: &str) -> bool {
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
    let mut stream = daemon.begin("/v1/runs", "text/event-stream", &body);
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
