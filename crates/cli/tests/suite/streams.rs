//! Stdin, stdout and stderr while the program runs.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use super::harness::{Ended, belljar, binary, directory, json, run, run_with, text};

const ECHO: &str = "import sys; sys.stdout.write(repr(sys.stdin.read()))";

#[test]
fn stdin_from_a_file() {
    let dir = directory(&[("in.txt", "from a file\n")]);
    let ended = run(&["--stdin", &text(dir.path().join("in.txt")), "-c", ECHO]);
    assert_eq!(ended.parts(), (0, "'from a file\\n'", ""));
}

#[test]
fn stdin_from_a_pipe_and_from_a_redirected_file() {
    assert_eq!(run_with(&["-c", ECHO], b"piped").stdout, "'piped'");
    let dir = directory(&[("in.txt", "redirected")]);
    let output = belljar()
        .args(["run", "-c", ECHO])
        .stdin(fs::File::open(dir.path().join("in.txt")).unwrap())
        .output()
        .unwrap();
    assert_eq!(output.stdout, b"'redirected'");
}

#[test]
fn stdin_empty_or_closed_reads_as_the_end() {
    assert_eq!(run(&["-c", ECHO]).parts(), (0, "''", ""));
    let ended: Ended = Command::new("/bin/sh")
        .args(["-c", "exec \"$0\" \"$@\" <&-"])
        .arg(binary())
        .args(["run", "-c", ECHO])
        .output()
        .unwrap()
        .into();
    assert_eq!(ended.parts(), (0, "''", ""), "closed");
}

#[test]
fn closed_stdout_does_not_hang_or_crash() {
    let ended: Ended = Command::new("/bin/sh")
        .args(["-c", "exec \"$0\" \"$@\" >&-"])
        .arg(binary())
        .args(["run", "-c", "print('x' * 100000); raise SystemExit(4)"])
        .output()
        .unwrap()
        .into();
    assert_eq!(ended.code, 4, "{ended:?}");
}

/// The time of code that an interpreter runs is up, whether or not anybody takes what it has printed.
#[test]
fn a_reader_that_does_not_read_gives_no_more_time() {
    let code = "
import time
began = time.monotonic()
print('x' * 94_999, flush=True)
took = open('took', 'w')
while True: time.sleep(0.01); print(time.monotonic() - began, file=took, flush=True)
";
    let dir = directory(&[]);
    let out = text(dir.path().join("out"));
    let child = belljar()
        .args(["run", "--imports", "time", "--timeout", "1s"])
        .args(["--output-dir", &out, "-c", code])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_secs(5));
    let ended: Ended = child.wait_with_output().unwrap().into();
    assert_eq!((ended.code, ended.stdout.len()), (124, 95_000));
    let took = fs::read_to_string(dir.path().join("out/took")).unwrap();
    let took = took.lines().last().unwrap();
    assert!(took.parse::<f64>().unwrap() < 3.0, "{took}");
}

#[test]
fn a_conversation() {
    let code = "
name = input()
print('hello', name, flush=True)
print('bye', input(), flush=True)
";
    let mut child = belljar()
        .args(["run", "-c", code])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    stdin.write_all(b"ann\n").unwrap();
    // Our end of stdin stays open: the answer has to come before the end of the input.
    assert_eq!(lines.next().unwrap().unwrap(), "hello ann");
    stdin.write_all(b"bob\n").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "bye bob");
    assert!(lines.next().is_none());
    assert!(
        child.wait().unwrap().success(),
        "it ends though stdin is open"
    );
    drop(stdin);
}

#[test]
fn output_is_seen_before_the_program_ends() {
    for (language, code) in [
        ("python", "print('first'); input(); print('last')"),
        ("bash", "echo first; read x; echo last"),
        (
            "perl",
            "$| = 1; print \"first\\n\"; <STDIN>; print \"last\\n\"",
        ),
    ] {
        let mut child = belljar()
            .args(["run", "-l", language, "-c", code])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "first", "{language}");
        assert!(
            child.try_wait().unwrap().is_none(),
            "{language}: it waits for us"
        );
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), "last", "{language}");
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn much_input_arrives_whole() {
    let input: Vec<u8> = (0..5_000_000_u32).map(|i| (i % 251) as u8).collect();
    let expected: u64 = input.iter().map(|byte| u64::from(*byte)).sum();
    let code = "import sys; d = sys.stdin.buffer.read(); print(len(d), sum(d))";
    let ended = run_with(&["-c", code], &input);
    assert_eq!(ended.stdout, format!("5000000 {expected}\n"));
}

#[test]
fn input_that_nobody_reads_is_no_trouble() {
    let ended = run(&["--stdin", "/dev/zero", "-c", "print('done')"]);
    assert_eq!(ended.parts(), (0, "done\n", ""));
    let ended = run(&[
        "--stdin",
        "/dev/zero",
        "--timeout",
        "300ms",
        "-c",
        "while True: pass",
    ]);
    assert_eq!(ended.code, 124, "{ended:?}");
}

#[test]
fn bytes_that_are_not_text() {
    let code = r"import os; os.write(1, bytes(range(256))); os.write(2, b'\xff')";
    let ended = run(&["-c", code]);
    assert_eq!(ended.bytes, (0..=255).collect::<Vec<u8>>(), "as they are");
    let result = json(&["-c", code]);
    assert!(result.text("stdout").contains('\u{fffd}'));
    assert!(result.text("stdout_base64").starts_with("AAECAwQFBgcI"));
    assert_eq!(result.text("stderr_base64"), "/w==");
    let plain = json(&["-c", "print('text')"]);
    assert!(plain.value.get("stdout_base64").is_none());
}

#[test]
fn truncation_keeps_the_beginning_and_the_program_runs_on() {
    let code = "
import sys
sys.stdout.write('0123456789' * 100_000)
sys.stderr.write('e')
open('reached', 'w').close()
raise SystemExit(7)
";
    let ended = run(&["--max-output", "25b", "-c", code]);
    assert_eq!(
        (ended.code, ended.stdout.as_str()),
        (7, "0123456789012345678901234")
    );
    assert!(ended.stderr.contains("--max-output"), "{ended:?}");
    let result = json(&["--max-output", "25b", "-c", code]);
    assert_eq!(result.text("stdout"), "0123456789012345678901234");
    assert_eq!(result.get("stdout_truncated"), true);
    assert_eq!(result.get("stderr_truncated"), false);
    assert_eq!(result.text("stderr"), "e");
    assert_eq!(result.get("exit_code"), 7);
    assert_eq!(result.get("files")[0]["path"], "reached");
}

#[test]
fn truncation_counts_each_stream_for_itself() {
    let code = "import sys; sys.stdout.write('o' * 10); sys.stderr.write('e' * 11)";
    let result = json(&["--max-output", "10b", "-c", code]);
    assert_eq!(result.get("stdout_truncated"), false);
    assert_eq!(result.get("stderr_truncated"), true);
    assert_eq!(result.text("stderr"), "eeeeeeeeee");
}

#[test]
fn endless_output_ends_at_the_deadline_in_little_memory() {
    let code = "import os\nwhile True: os.write(1, b'x' * 65536)";
    let ended = run(&["--timeout", "700ms", "-c", code]);
    assert_eq!((ended.code, ended.bytes.len()), (124, 100_000));
}

#[test]
fn output_held_open_by_a_child_does_not_keep_the_run_alive() {
    let code = "
import os, time
if os.fork() == 0:
    os.setsid()
    time.sleep(600)
print('parent done', flush=True)
os._exit(5)
";
    let ended = run(&["-c", code]);
    assert_eq!(ended.parts(), (5, "parent done\n", ""));
}

#[test]
fn standard_streams_can_be_opened_by_name() {
    let ended = run_with(
        &[
            "-l",
            "bash",
            "-c",
            "cat /dev/stdin > /dev/stdout; echo e > /dev/stderr",
        ],
        b"through",
    );
    assert_eq!(ended.parts(), (0, "through", "e\n"));
}

/// `belljar run … | head -1`: the program finds its pipe closed, as it would without a jar around it.
#[test]
fn a_program_learns_that_nobody_reads_on() {
    let programs = [
        ("bash", "while echo x; do sleep 0.01; done", 128 + 13),
        ("bash", "yes x", 128 + 13),
        (
            "bash",
            "echo x; read -t 1 </dev/zero; echo y >&2; exit 3",
            3,
        ),
        ("python", "while True: print('x', flush=True)", 1),
    ];
    for (language, code, expected) in programs {
        let mut child = belljar()
            .args(["run", "--timeout", "60s", "-l", language, "-c", code])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = [0; 2];
        let mut reader = child.stdout.take().unwrap();
        reader.read_exact(&mut first).unwrap();
        drop(reader);
        let ended: Ended = child.wait_with_output().unwrap().into();
        assert_eq!(
            (ended.code, &first),
            (expected, b"x\n"),
            "{code}: {ended:?}"
        );
        let broken = ended.stderr.contains("BrokenPipeError");
        assert_eq!(broken, language == "python", "{code}: {ended:?}");
    }
}

/// `belljar doctor | head -1`.
#[test]
fn nobody_has_to_read_to_the_end() {
    let said = [
        &["runtimes"][..],
        &["runtimes", "--json"],
        &["doctor"],
        &["key"],
        &["serve", "--check-config"],
        &["run", "--json", "-c", "print(1)"],
    ];
    for args in said {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ended = belljar().args(args).stdout(writer).output().unwrap();
        let complaint = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(
            (ended.status.code(), &*complaint),
            (Some(0), ""),
            "{args:?}"
        );
        // But what could not be written is said.
        let full = std::fs::File::options().write(true).open("/dev/full");
        let ended = belljar().args(args).stdout(full.unwrap()).output().unwrap();
        let complaint = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(125), "{args:?}");
        assert!(complaint.contains("No space left"), "{args:?}: {complaint}");
    }
}
