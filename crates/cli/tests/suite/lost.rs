//! What does not get where it was to go is told, and what was written nowhere is no success.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use super::daemon::Daemon;
use super::harness::{Ended, belljar, binary, directory, json, need_root, run, text};

/// `belljar ARGS` with its streams as the shell is told, with the state directory of a daemon.
fn redirected(to: &str, args: &[&str], state: &Path) -> Ended {
    let mut shell = Command::new("bash");
    shell
        .args(["-c", &format!("\"$0\" \"$@\" {to}")])
        .arg(binary())
        .args(args);
    for (name, _) in belljar().get_envs() {
        shell.env_remove(name);
    }
    shell.env("BELLJAR_STATE_DIR", state);
    shell.output().unwrap().into()
}

#[test]
fn output_that_cannot_be_written_is_no_success() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let id = sandbox.rsplit('/').next().unwrap();
    let state = daemon.state.path();
    let put = daemon.put(&format!("{sandbox}/files/file"), b"content");
    assert_eq!(put.status, 201);
    let file = format!("{id}:file");
    for args in [
        &["run", "-c", "print(1)"][..],
        &["run", "--json", "-c", "print(1)"],
        &["run", "--imports", "math", "-c", "print(1)"],
        &["exec", id, "-c", "print(1)"],
        &["exec", id, "-c", "1"],
        &["exec", id, "--", "echo", "1"],
        &["exec", id, "--json", "-c", "1"],
        &["cp", &file, "-"],
        &["ps"],
    ] {
        let ended = redirected(">/dev/full </dev/null", args, state);
        assert_eq!(ended.code, 125, "{args:?} {ended:?}");
        assert!(ended.stderr.contains("No space left"), "{args:?} {ended:?}");
    }
    for args in [&["repl"][..], &["repl", "--sandbox", id]] {
        for input in ["print(1)", "1"] {
            let ended = redirected(&format!(">/dev/full <<<'{input}'"), args, state);
            assert_eq!(ended.code, 125, "{args:?} {ended:?}");
        }
    }
    let help = redirected(">/dev/full", &["--help"], state);
    assert_eq!(help.code, 125, "{help:?}");
    let code = "import sys; print(1, file=sys.stderr)";
    let ended = redirected("2>/dev/full </dev/null", &["run", "-c", code], state);
    assert_eq!(ended.code, 125, "{ended:?}");
}

/// Whoever reads has had enough, as under `| head`: that is theirs to decide.
#[test]
fn a_reader_that_leaves_is_no_failure() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let id = sandbox.rsplit('/').next().unwrap();
    let put = daemon.put(&format!("{sandbox}/files/file"), &vec![b'x'; 4 << 20]);
    assert_eq!(put.status, 201);
    let file = format!("{id}:file");
    for (args, code) in [
        (&["exec", id, "-c", "'x' * 1_000_000"][..], 0),
        // It may have more to say, and ends as whoever writes to nobody does.
        (&["exec", id, "-c", "print('x' * 1_000_000)"], 128 + 13),
        (&["cp", &file, "-"], 0),
    ] {
        let to = "</dev/null | head -c 3; exit ${PIPESTATUS[0]}";
        let ended = redirected(to, args, daemon.state.path());
        assert_eq!((ended.code, ended.stdout.len()), (code, 3), "{args:?}");
        let said = ended.stderr.replace("belljar: stdout was cut off", "");
        assert!(!said.contains("belljar:"), "{args:?} {ended:?}");
    }
}

/// Nobody can read what is to be said: how it ended is said all the same.
#[test]
fn a_message_that_cannot_be_written_ends_nothing() {
    let state = directory(&[]);
    for (to, args, code) in [
        ("2>/dev/full", &["run", "no-such-file"][..], 125),
        (
            "2>/dev/full",
            &["run", "--timeout", "200ms", "-c", "while True: pass"],
            124,
        ),
        (
            "2>&1 >/dev/null | true; exit ${PIPESTATUS[0]}",
            &["run", "--timeout", "500ms", "-c", "while True: pass"],
            124,
        ),
    ] {
        let ended = redirected(&format!("</dev/null {to}"), args, state.path());
        assert_eq!(ended.code, code, "{to} {args:?} {ended:?}");
    }
}

/// A disk that its log has filled is no reason for a daemon to end.
#[test]
fn a_daemon_whose_log_is_full_goes_on() {
    let state = tempfile::Builder::new().prefix("bjd-").tempdir().unwrap();
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "exec \"$0\" \"$@\" 2>/dev/full"])
        .arg(binary());
    let daemon = Daemon::started_by(shell, state, "");
    for _ in 0..3 {
        assert_eq!(daemon.get("/v1/sandboxes").status, 200);
    }
}

#[test]
fn files_that_stay_behind_are_named() {
    let dir = directory(&[("out/taken/by", "a directory")]);
    let out = text(dir.path().join("out"));
    let ended = run(&[
        "--output-dir",
        &out,
        "-c",
        "for name in ('taken', 'other'): open(name, 'w').write('x')",
    ]);
    let said = format!(
        "belljar: not all files were copied to {out}: taken (a directory has this name there)\n"
    );
    assert_eq!(ended.parts(), (0, "", said.as_str()));
    assert_eq!(fs::read(format!("{out}/other")).unwrap(), b"x");
    // By interpreters of sessions too, and no more names than somebody reads.
    let ended = run(&[
        "--output-dir",
        &out,
        "--disk",
        "1m",
        "--imports",
        "math",
        "-c",
        "for i in range(20): open(f'{i:02}', 'w').truncate(1 << 20)",
    ]);
    let told = "01 (more than the limit disk_bytes would come out)";
    assert!(
        ended.code == 0 && ended.stderr.contains(told) && ended.stderr.ends_with(", 14 more\n"),
        "{ended:?}"
    );
    let many = "for i in range(10_050): open(str(i), 'w').close()";
    let ended = run(&["--output-dir", &out, "-c", many]);
    let told = "what is beyond 10000 names, or more than 64 directories deep";
    assert!(ended.code == 0 && ended.stderr.contains(told), "{ended:?}");
    let deep = "import os; os.makedirs('d/' * 65); open('d/' * 65 + 'f', 'w').close()";
    let ended = run(&["--output-dir", &out, "-c", deep]);
    assert!(ended.stderr.contains(told), "{ended:?}");
    let less = "import os; os.makedirs('d/' * 64); open('d/' * 64 + 'f', 'w').close()";
    let ended = run(&["--output-dir", &out, "-c", less]);
    assert_eq!(ended.parts(), (0, "", ""));
}

/// On a full disk half a file took the place of the one that was there, and that was success.
#[test]
fn output_that_does_not_fit_leaves_the_earlier_file_and_is_no_success() {
    need_root("which may mount a small disk");
    let dir = directory(&[]);
    let out = text(dir.path().join("out"));
    let script = r#"
mkdir "$1"
mount -t tmpfs -o size=256k bjtest "$1"
echo earlier >"$1/large"
"$0" run --output-dir "$1" -c "$2" 2>&1
echo "$? $(ls -A "$1" | tr '\n' ' ')$(cat "$1/large")"
"#;
    let ran = |code: &str| {
        let mut shell = Command::new("unshare");
        shell.args(["-m", "sh", "-c", script]);
        shell.arg(binary()).args([&out, code]);
        for (name, _) in belljar().get_envs() {
            shell.env_remove(name);
        }
        let _ = fs::remove_dir(&out);
        Ended::from(shell.output().unwrap())
    };
    let told = format!("belljar: not all files were copied to {out}: large (the disk is full)\n");
    let writes = "open('large', 'w').write('x' * (1 << 20)); open('small', 'w').write('x')";
    let kept = format!("{told}125 large small earlier\n");
    assert_eq!(ran(writes).parts(), (0, kept.as_str(), ""));
    // What the program says itself comes first.
    let failing = format!("{writes}; raise SystemExit(3)");
    let kept = format!("{told}3 large small earlier\n");
    assert_eq!(ran(&failing).parts(), (0, kept.as_str(), ""));
    let fits = ran("open('large', 'w').write('later')");
    assert_eq!(fits.parts(), (0, "0 large later\n", ""));
}

/// The code did not write it: nothing is missing without it.
#[test]
fn a_volume_in_the_workspace_is_no_file_that_stays_behind() {
    let dir = directory(&[("volume/file", "x"), ("single", "x")]);
    let out = text(dir.path().join("out"));
    let volume = format!("{}:/workspace/in", text(dir.path().join("volume")));
    let single = format!("{}:/workspace/one", text(dir.path().join("single")));
    let args = [
        "--volume",
        &volume,
        "--volume",
        &single,
        "--output-dir",
        &out,
        "-c",
        "open('a', 'w').close()",
    ];
    assert_eq!(run(&args).parts(), (0, "", ""));
    assert_eq!(json(&args).get("files_truncated"), false);
}
