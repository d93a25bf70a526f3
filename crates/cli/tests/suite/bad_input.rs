//! Input that is not accepted: exit 125, one sentence, nothing on stdout.

use std::fs;
use std::os::unix::ffi::OsStrExt;

use serde_json::json;

use super::daemon::Daemon;
use super::harness::{Ended, belljar, directory, run, run_with, text};

/// One line on stderr that has all of these words in it, and nothing on stdout.
fn refused(ended: &Ended, words: &[&str]) {
    assert_eq!((ended.code, ended.stdout.as_str()), (125, ""), "{ended:?}");
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    assert!(
        ended.stderr.starts_with("belljar: ") && ended.stderr.ends_with('\n'),
        "{ended:?}"
    );
    for word in words {
        assert!(
            ended.stderr.contains(word),
            "no {word:?} in {:?}",
            ended.stderr
        );
    }
    assert!(ended.stderr.len() < 700, "too long: {ended:?}");
}

#[test]
fn languages() {
    for (given, nearest) in [
        ("pyton", "python"),
        ("javscript", "javascript"),
        ("rubby", "ruby"),
        ("bsh", "bash"),
    ] {
        refused(
            &run(&["-l", given, "-c", "x"]),
            &["language", given, &format!("did you mean {nearest}?")],
        );
    }
    refused(
        &run(&["-l", "zzzzzzzzzz", "-c", "x"]),
        &["language", "zzzzzzzzzz", "python", "ruby"],
    );
    refused(
        &run(&["-l", "", "-c", "x"]),
        &["language", "\"\"", "python"],
    );
    refused(
        &run(&["-l", "\u{1b}[31mred", "-c", "x"]),
        &["language", "\\u{1b}[31mred"],
    );
}

#[test]
fn files_of_code() {
    let dir = directory(&[
        ("empty.py", ""),
        ("blank.py", " \n\t\n"),
        ("nul.py", "print(1)\0"),
    ]);
    let at = |name: &str| text(dir.path().join(name));
    refused(
        &run(&[&at("missing.py")]),
        &["file", "missing.py", "no such file"],
    );
    refused(&run(&[&text(&dir)]), &["file", "directory", "give a file"]);
    refused(&run(&[&at("empty.py")]), &["code", "empty"]);
    refused(&run(&[&at("blank.py")]), &["code", "empty"]);
    refused(&run(&[&at("nul.py")]), &["code", "NUL", "UTF-8"]);
    refused(&run(&["-c", ""]), &["code", "empty"]);
    refused(&run(&["-"]), &["code", "empty"]);
    refused(&run(&["/dev/null"]), &["code", "empty"]);
    refused(&run(&["/dev/zero"]), &["code"]);
    let garbage: Vec<u8> = (0..=255).rev().cycle().take(4096).collect();
    fs::write(dir.path().join("garbage.py"), &garbage).unwrap();
    refused(&run(&[&at("garbage.py")]), &["code", "UTF-8"]);
    refused(&run_with(&["-"], &garbage), &["code", "UTF-8"]);
    refused(&run(&["/bin/true"]), &["code", "UTF-8"]);
}

#[test]
fn too_much_code() {
    let dir = directory(&[]);
    let path = dir.path().join("large.py");
    fs::write(&path, vec![b'#'; 50 << 20]).unwrap();
    refused(&run(&[&text(&path)]), &["code", "52428800", "16777216"]);
    refused(
        &run_with(&["-"], &vec![b'#'; 50 << 20]),
        &["code", "16777216"],
    );
}

#[test]
fn limits() {
    let nothing = [
        "0",
        "-1",
        "NaN",
        "nan",
        "inf",
        "-inf",
        "",
        " ",
        "x",
        "1e3",
        "0x10",
        "18446744073709551616",
        "1;2",
    ];
    let table: [(&str, &str, &[&str]); 7] = [
        (
            "--timeout",
            "timeout_ms",
            &["30", "0s", "-5s", "0.0001ms", "2h", "99999999999h", "1d"],
        ),
        (
            "--memory",
            "memory_bytes",
            &[
                "512",
                "0m",
                "-512m",
                "1k",
                "99999g",
                "999999999999g",
                "1t",
                "1.5",
            ],
        ),
        (
            "--cpus",
            "cpus",
            &["0.0", "-0.5", "1000000", "1m", "0.0001"],
        ),
        ("--processes", "processes", &["4097", "1.5", "10k", "-128"]),
        (
            "--max-output",
            "output_bytes",
            &["100", "0k", "-1k", "65g", "68mb"],
        ),
        ("--disk", "disk_bytes", &["128", "0m", "-1m", "17g", "1k"]),
        ("--open-files", "open_files", &["65537", "0.5", "3", "1k"]),
    ];
    for (flag, field, values) in table {
        for given in nothing.iter().chain(values) {
            let ended = run(&[flag, given, "-c", "print('must not run')"]);
            refused(
                &ended,
                &["limit", field, flag, &format!("{given:?}"), "from", "to"],
            );
        }
    }
}

#[test]
fn limits_above_the_host_say_what_it_has() {
    refused(
        &run(&["--memory", "900g", "-c", "x"]),
        &["memory_bytes", "\"900g\"", "this host has"],
    );
    refused(
        &run(&["--cpus", "4096", "-c", "x"]),
        &["cpus", "\"4096\"", "this host has"],
    );
}

#[test]
fn limits_of_the_environment() {
    let ended: Ended = belljar()
        .args(["run", "-c", "x"])
        .env("BELLJAR_MEMORY", "lots")
        .output()
        .unwrap()
        .into();
    refused(&ended, &["memory_bytes (BELLJAR_MEMORY)", "\"lots\""]);
}

#[test]
fn destinations_that_leave_the_workspace() {
    let dir = directory(&[("a.txt", "a")]);
    let source = text(dir.path().join("a.txt"));
    for destination in [
        "../x",
        "/etc/passwd",
        "a/../../x",
        "..",
        ".",
        "",
        "a//../..",
        "x/",
        "./../y",
        "a\\..\\b/../..",
    ] {
        let ended = run(&[
            "--file",
            &format!("{destination}={source}"),
            "-c",
            "print(1)",
        ]);
        refused(&ended, &["file: the path ", "is not accepted; give"]);
    }
}

#[test]
fn input_files() {
    let dir = directory(&[("a.txt", "a"), ("b.txt", "b")]);
    let at = |name: &str| text(dir.path().join(name));
    refused(
        &run(&["--file", &at("missing.txt"), "-c", "x"]),
        &["file", "missing.txt", "no such file"],
    );
    refused(
        &run(&["--file", &text(&dir), "-c", "x"]),
        &["file", "directory"],
    );
    refused(
        &run(&["--stdin", &at("missing.txt"), "-c", "x"]),
        &["stdin", "missing.txt", "no such file"],
    );
    refused(
        &run(&["--stdin", &text(&dir), "-c", "x"]),
        &["stdin", "directory"],
    );
    let twice = [
        format!("same={}", at("a.txt")),
        format!("same={}", at("b.txt")),
    ];
    refused(
        &run(&["--file", &twice[0], "--file", &twice[1], "-c", "x"]),
        &["file", "same"],
    );
    let over_code = format!("main.py={}", at("a.txt"));
    refused(
        &run(&["--file", &over_code, "-c", "x"]),
        &["file", "main.py"],
    );
    fs::write(dir.path().join("large"), vec![b'x'; 2 << 20]).unwrap();
    refused(
        &run(&["--disk", "1m", "--file", &at("large"), "-c", "x"]),
        &["file", "large", "--disk"],
    );
}

#[test]
fn environment_variables() {
    for given in ["NOVALUE", "=x", "", "=", "A B=1", "1=\n"] {
        let ended = run(&["--env", given, "-c", "print(1)"]);
        // A name with a space is odd but the kernel takes it: refused or run, never half of it.
        if given != "A B=1" && given != "1=\n" {
            refused(&ended, &["env", "NAME=VALUE"]);
        }
    }
    let mut command = belljar();
    command
        .args(["run", "--env"])
        .arg(std::ffi::OsStr::from_bytes(b"A=\xff"))
        .args(["-c", "print(1)"]);
    refused(&command.output().unwrap().into(), &["A=", "UTF-8"]);
    // One string may be as long as the kernel takes it, all together may not.
    let long = format!("={}", "x".repeat(120_000));
    let many: Vec<_> = (0..10).map(|i| format!("A{i}{long}")).collect();
    let args: Vec<_> = many
        .iter()
        .flat_map(|pair| ["--env", pair])
        .chain(["-c", "x"])
        .collect();
    refused(&run(&args), &["env", "bytes", "at most"]);
}

#[test]
fn volumes() {
    let dir = directory(&[]);
    let source = text(&dir);
    for given in [
        "",
        "nothing",
        "/only-source",
        ":/data",
        &format!("{source}:"),
        &format!("{source}:relative"),
        &format!("{source}:/data:rwx"),
        &format!("{source}:/"),
        &format!("{source}:/proc"),
        &format!("{source}:/dev/x"),
        &format!("{source}:/a/../../b"),
        "/does/not/exist:/data",
    ] {
        refused(&run(&["--volume", given, "-c", "print(1)"]), &["volume"]);
    }
    // What is named instead is accepted.
    let elsewhere = run(&["--volume", &format!("{source}:/proc"), "-c", "print(1)"]);
    refused(&elsewhere, &["/proc", "like /data"]);
    let there = format!("{source}:/data");
    assert_eq!(run(&["--volume", &there, "-c", "print(1)"]).stdout, "1\n");
}

#[test]
fn the_rest() {
    refused(
        &run(&["--weaken", "everything", "-c", "x"]),
        &["weaken", "everything", "cgroups"],
    );
    refused(
        &run(&["--weaken", "secomp", "-c", "x"]),
        &["weaken", "did you mean seccomp?"],
    );
    refused(
        &run(&["--backend", "dokcer", "-c", "x"]),
        &["backend", "dokcer", "native"],
    );
    refused(
        &run(&["--network", "exa mple", "-c", "x"]),
        &["network", "exa mple"],
    );
    refused(
        &run(&["--pull", "sometimes", "-c", "x"]),
        &["pull", "sometimes"],
    );
    let dir = directory(&[("file", "x")]);
    let in_the_way = text(dir.path().join("file"));
    // Before the program begins, which would print something.
    for place in [&in_the_way, &format!("{in_the_way}/out"), "/proc/self"] {
        let code = "print(1); open('x', 'w')";
        let ended = run(&["--output-dir", place, "-c", code]);
        refused(&ended, &["--output-dir", place]);
    }
}

#[test]
fn mistyped_commands() {
    for (args, words) in [
        (&["run", "--no-such-flag"][..], &["--no-such-flag"][..]),
        (
            &["run", "--memry", "1g"],
            &["--memry", "did you mean --memory?", "belljar run --help"],
        ),
        (&["nonsense"], &["command", "nonsense", "run, repl"]),
        (&["run", "-c"], &["-c", "<CODE>"]),
        (&["run", "-c", "1", "file.py"], &["-c", "FILE"]),
        (&["run", "a.py", "b.py"], &["b.py", "after --"]),
        (&["run", "two\nlines", "a\nb"], &["a\\nb"]),
        (
            &["history", "--limit", "x"],
            &["--limit", "\"x\"", "whole number"],
        ),
        (&["exec", "sbx_x"], &["CMD", "belljar exec <ID> -- <CMD>"]),
        (&["image", "rm"], &["REF"]),
        (&["image"], &["command", "pull"]),
        (&[], &["command", "run", "belljar --help"]),
    ] {
        let ended: Ended = belljar().args(args).output().unwrap().into();
        refused(&ended, words);
    }
    let nothing: Ended = belljar().arg("run").output().unwrap().into();
    refused(&nothing, &["FILE", "-c CODE"]);
    // What was asked for is no mistake.
    for args in [&["--help"][..], &["run", "--help"], &["--version"]] {
        let ended: Ended = belljar().args(args).output().unwrap().into();
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{args:?}");
        assert!(ended.stdout.contains("belljar"), "{ended:?}");
    }
}

/// One was left out in silence, the other said that a flag was wrong that nobody had typed.
#[test]
fn limits_of_the_environment_that_are_none() {
    for (given, shown) in [
        (&b"\xff"[..], "\"\u{fffd}\""),
        (b"", "\"\""),
        (b"soon", "\"soon\""),
    ] {
        let mut command = belljar();
        command.env("BELLJAR_TIMEOUT", std::ffi::OsStr::from_bytes(given));
        let ended: Ended = command.args(["run", "-c", "1"]).output().unwrap().into();
        let told =
            format!("limit timeout_ms (BELLJAR_TIMEOUT): {shown} is not accepted; give a time");
        refused(&ended, &[&told]);
        assert!(!ended.stderr.contains("--timeout"), "{ended:?}");
        // What is typed is stronger, and then nothing else is looked at.
        let typed = command.args(["--timeout", "10s"]).output().unwrap();
        assert!(typed.status.success(), "{typed:?}");
    }
}

/// They were left out in silence.
#[test]
fn what_means_nothing_without_something_else() {
    for flag in ["--container-runtime", "--container-network"] {
        let ended = run(&[flag, "bridge", "-c", "1"]);
        refused(&ended, &[&flag[2..], "give --backend docker as well"]);
    }
    let nobody = "say whom the code may reach as well";
    refused(&run(&["--intercept", "-c", "1"]), &["network", nobody]);
    let daemon = Daemon::start();
    for (body, told) in [
        (
            json!({"code": "1", "backend": "native", "container_runtime": "runc"}),
            "as well, or leave it out",
        ),
        (
            json!({"code": "1", "network": {"allow": "none", "intercept": true}}),
            nobody,
        ),
    ] {
        let answer = daemon.post("/v1/runs", &body);
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(answer.text().contains(told), "{}", answer.text());
    }
}

#[test]
fn what_was_meant_is_said() {
    let ended = run(&["--", "-c"]);
    let told = "belljar: FILE: nothing was given; give a file, - for standard input, or -c CODE\n";
    assert_eq!(ended.parts(), (125, "", told));
    let dir = directory(&[("a=b.py", "x = 1")]);
    let mut command = belljar();
    command.current_dir(dir.path()).args(["run", "--file"]);
    let ended: Ended = command.args(["a=b.py", "-c", "1"]).output().unwrap().into();
    refused(&ended, &["file: cannot use \"a=b.py\"", "DEST=SRC"]);
    let given = format!("b.py={}", text(dir.path().join("a=b.py")));
    let ended = run(&["--file", &given, "-c", "import b; print(b.x)"]);
    assert_eq!(ended.parts(), (0, "1\n", ""));
}
