//! What is run, with what arguments and environment, and what comes of it.

use serde_json::{Value, json as value};

use super::harness::{belljar, directory, json, need_root, python, run, run_with, text};

#[test]
fn code_on_the_command_line() {
    assert_eq!(
        run(&["-c", "print(6 * 7)"]).parts(),
        (0, "42\n", ""),
        "nothing but the program's output"
    );
    assert_eq!(run(&["-c", "-1"]).parts(), (0, "", ""));
}

#[test]
fn language_by_ending_by_name_and_by_default() {
    let dir = directory(&[
        ("a.py", "print('python')"),
        ("b.sh", "echo bash"),
        ("c.pl", "print \"perl\\n\""),
        ("noending", "print('python')"),
        ("odd.unknown", "print('python')"),
        ("UPPER.SH", "echo bash"),
    ]);
    for (file, expected) in [
        ("a.py", "python\n"),
        ("b.sh", "bash\n"),
        ("c.pl", "perl\n"),
        ("noending", "python\n"),
        ("odd.unknown", "python\n"),
        ("UPPER.SH", "bash\n"),
    ] {
        let ended = run(&[&text(dir.path().join(file))]);
        assert_eq!(ended.parts(), (0, expected, ""), "{file}");
    }
    let ended = run(&["-l", "bash", &text(dir.path().join("a.py"))]);
    assert_ne!(ended.code, 0, "-l is stronger than the ending");
    for name in ["bash", "sh", "shell", "BASH"] {
        let ended = run(&["-l", name, "-c", "echo $BASH_VERSION | cut -c1"]);
        assert_eq!(ended.code, 0, "{name}: {ended:?}");
    }
}

#[test]
fn code_from_stdin() {
    let ended = run_with(
        &["-"],
        b"import sys\nprint('read', repr(sys.stdin.read()))\n",
    );
    assert_eq!(ended.parts(), (0, "read ''\n", ""));
    let ended = run_with(&["-l", "perl", "-"], b"print 'x' x 3");
    assert_eq!(ended.parts(), (0, "xxx", ""));
}

#[test]
fn arguments_arrive_as_given() {
    let args = [
        "plain",
        "",
        "two words",
        "--json",
        "-c",
        "--",
        "$HOME;`id`",
        "ünï",
        "a\nb",
        "*",
    ];
    let code = "import sys, json; print(json.dumps(sys.argv[1:]))";
    let given = [&["-c", code, "--"][..], &args].concat();
    let ended = run(&given);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(
        serde_json::from_str::<Value>(&ended.stdout).unwrap(),
        value!(args)
    );
}

#[test]
fn the_environment_is_made_from_nothing() {
    let ended = belljar()
        .args(["run", "--env", "A=1", "--env", "B=x=y", "--env", "EMPTY="])
        .args(["-c", "import os, json; print(json.dumps(dict(os.environ)))"])
        .env("SECRET_OF_THE_CALLER", "do-not-tell")
        .output()
        .unwrap();
    let seen: serde_json::Map<String, Value> = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(seen["A"], "1");
    assert_eq!(seen["B"], "x=y");
    assert_eq!(seen["EMPTY"], "");
    assert_eq!(seen["HOME"], "/tmp");
    let known = [
        "A", "B", "EMPTY", "HOME", "LANG", "PATH", "TMPDIR", "USER", "LC_CTYPE", "PWD",
    ];
    let unknown: Vec<_> = seen
        .keys()
        .filter(|name| !known.contains(&name.as_str()) && !name.starts_with("PYTHON"))
        .collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn the_caller_may_override_what_is_set() {
    let ended = run(&[
        "--env",
        "HOME=/workspace",
        "--env",
        "PATH=/bin",
        "-l",
        "bash",
        "-c",
        "echo $HOME $PATH",
    ]);
    assert_eq!(ended.parts(), (0, "/workspace /bin\n", ""));
}

#[test]
fn exit_codes() {
    let raise = |signal: u8| format!("import os; os.kill(os.getpid(), {signal})");
    let cases = [
        ("pass".to_owned(), 0),
        ("raise SystemExit(3)".to_owned(), 3),
        ("raise SystemExit(255)".to_owned(), 255),
        ("raise SystemExit(125)".to_owned(), 125),
        ("1/0".to_owned(), 1),
        (raise(15), 143),
        (raise(11), 139),
        (raise(9), 137),
        ("import os; os.abort()".to_owned(), 134),
    ];
    for (code, expected) in &cases {
        let ended = run(&["-c", code]);
        assert_eq!(ended.code, *expected, "{code}: {ended:?}");
        assert_eq!(ended.stdout, "", "{code}");
    }
}

#[test]
fn exit_codes_of_broken_limits() {
    let ended = run(&["--timeout", "300ms", "-c", "while True: pass"]);
    assert_eq!(ended.code, 124, "{ended:?}");
    assert!(
        ended.stderr.contains("300 ms") && ended.stderr.contains("--timeout"),
        "{ended:?}"
    );
    let ended = run(&["--memory", "64m", "-c", "x = bytearray(200 << 20)"]);
    assert_eq!(ended.code, 137, "{ended:?}");
    assert!(
        ended.stderr.contains("64 MiB") && ended.stderr.contains("--memory"),
        "{ended:?}"
    );
}

#[test]
fn exit_codes_are_the_same_with_json() {
    for (code, status, exit, signal, expected) in [
        ("pass", "ok", value!(0), Value::Null, 0),
        ("raise SystemExit(3)", "failed", value!(3), Value::Null, 3),
        (
            "import os; os.kill(os.getpid(), 15)",
            "failed",
            Value::Null,
            value!(15),
            143,
        ),
    ] {
        let result = json(&["-c", code]);
        assert_eq!(result.status(), status, "{code}");
        assert_eq!(result.value["exit_code"], exit, "{code}");
        assert_eq!(result.value["signal"], signal, "{code}");
        assert_eq!(result.value["success"], value!(status == "ok"), "{code}");
        assert_eq!(result.code, expected, "{code}");
    }
    assert_eq!(
        json(&["--timeout", "200ms", "-c", "while True: pass"]).code,
        124
    );
    assert_eq!(
        json(&["--memory", "64m", "-c", "x = bytearray(200 << 20)"]).code,
        137
    );
}

#[test]
fn the_shape_of_the_result() {
    let code =
        "import sys; print('out'); print('err', file=sys.stderr); open('made', 'w').write('12345')";
    let mut result = json(&["-c", code]).value;
    for (path, looks_right) in [
        (
            "/id",
            Box::new(|v: &Value| v.as_str().is_some_and(|t| t.starts_with("run_")))
                as Box<dyn Fn(&Value) -> bool>,
        ),
        (
            "/sandbox",
            Box::new(|v| v.as_str().is_some_and(|t| t.starts_with("sbx_"))),
        ),
        (
            "/runtime",
            Box::new(|v| v.as_str().is_some_and(|t| t.starts_with("Python 3."))),
        ),
        (
            "/started_at",
            Box::new(|v| {
                v.as_str()
                    .is_some_and(|t| t.ends_with('Z') && t.len() == 24)
            }),
        ),
        ("/usage/wall_ms", Box::new(|v| v.as_f64() > Some(0.0))),
        ("/usage/cpu_ms", Box::new(|v| v.as_f64() > Some(0.0))),
        ("/usage/start_ms", Box::new(|v| v.as_f64() > Some(0.0))),
        (
            "/usage/memory_peak_bytes",
            Box::new(|v| v.as_u64() > Some(1 << 20)),
        ),
        ("/report", Box::new(Value::is_object)),
    ] {
        let found = result
            .pointer_mut(path)
            .unwrap_or_else(|| panic!("no {path}"));
        assert!(looks_right(found), "{path} is {found}");
        *found = value!(format!("[{}]", path.rsplit('/').next().unwrap()));
    }
    insta::assert_snapshot!(serde_json::to_string_pretty(&result).unwrap(), @r#"
    {
      "id": "[id]",
      "sandbox": "[sandbox]",
      "language": "python",
      "runtime": "[runtime]",
      "backend": "native",
      "status": "ok",
      "success": true,
      "exit_code": 0,
      "signal": null,
      "stdout": "out\n",
      "stderr": "err\n",
      "stdout_truncated": false,
      "stderr_truncated": false,
      "compile": null,
      "value": null,
      "value_text": null,
      "displays": [],
      "error": null,
      "state": "none",
      "usage": {
        "wall_ms": "[wall_ms]",
        "cpu_ms": "[cpu_ms]",
        "memory_peak_bytes": "[memory_peak_bytes]",
        "processes_peak": 1,
        "start_ms": "[start_ms]"
      },
      "limits": {
        "timeout_ms": 30000,
        "memory_bytes": 536870912,
        "cpus": 1.0,
        "processes": 128,
        "output_bytes": 100000,
        "disk_bytes": 134217728,
        "open_files": 1024
      },
      "report": "[report]",
      "files": [
        {
          "path": "made",
          "bytes": 5
        }
      ],
      "files_truncated": false,
      "connections": [],
      "started_at": "[started_at]"
    }
    "#);
}

#[test]
fn output_of_the_program_is_not_mixed_into_json() {
    let ended = belljar()
        .args([
            "run",
            "--json",
            "-c",
            "import sys; print('a'); print('b', file=sys.stderr)",
        ])
        .output()
        .unwrap();
    assert_eq!(ended.stderr, b"", "stderr is in the object only");
    let stdout = String::from_utf8(ended.stdout).unwrap();
    assert_eq!(
        stdout.lines().count(),
        1,
        "one object on one line: {stdout}"
    );
}

#[test]
fn who_the_code_thinks_it_is() {
    let code = "import os, pwd; print(os.getuid(), os.geteuid(), os.getgid(), pwd.getpwuid(os.getuid()).pw_name, os.getcwd())";
    assert_eq!(python(code), "1000 1000 1000 sandbox /workspace");
}

#[test]
fn help_and_version() {
    for args in [&["--help"][..], &["run", "--help"], &["--version"]] {
        let ended: super::harness::Ended = belljar().args(args).output().unwrap().into();
        assert_eq!(ended.code, 0, "{args:?}: {ended:?}");
        assert!(ended.stdout.contains("belljar"), "{args:?}: {ended:?}");
        assert_eq!(ended.stderr, "", "{args:?}");
    }
}

#[test]
fn limits_from_the_environment_are_weaker_than_flags() {
    let limit = |flags: &[&str]| {
        let output = belljar()
            .args(["run", "--json", "-c", "pass"])
            .args(flags)
            .env("BELLJAR_TIMEOUT", "7s")
            .output()
            .unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["limits"]["timeout_ms"].clone()
    };
    assert_eq!(limit(&[]), 7000);
    assert_eq!(limit(&["--timeout", "9s"]), 9000);
}

#[test]
fn root_gives_each_sandbox_a_user_id_of_its_own() {
    need_root("which has user ids to give");
    let uid = || json(&["-c", "pass"]).get("report.uid").as_u64().unwrap();
    let ids: std::collections::BTreeSet<_> = (0..4).map(|_| uid()).collect();
    assert!(
        ids.len() >= 3 && ids.iter().all(|id| *id >= 0x7000_0000),
        "{ids:?}"
    );
}

/// Larger than any message between the engine and its keeper.
#[test]
fn a_large_program_runs() {
    let dir = directory(&[]);
    let path = dir.path().join("large.py");
    let padding = "# padding\n".repeat(1 << 20);
    std::fs::write(&path, format!("{padding}print('end')\n")).unwrap();
    let ended = run(&["--memory", "1g", &text(&path)]);
    assert_eq!(
        (ended.code, ended.stdout.as_str()),
        (0, "end\n"),
        "{ended:?}"
    );
}

#[test]
fn json_says_why_it_failed() {
    let error = |args: &[&str]| json(args).value["error"].clone();
    let python = error(&["-c", "x = 1\n\nx / 0"]);
    assert_eq!(
        (&python["type"], &python["message"], &python["line"]),
        (
            &value!("ZeroDivisionError"),
            &value!("division by zero"),
            &value!(3)
        )
    );
    assert_eq!(python["category"], "value");
    assert!(
        python["traceback"]
            .as_str()
            .unwrap()
            .starts_with("Traceback")
    );
    let c = error(&["-l", "c", "-c", "int main(void) { return totl; }"]);
    assert_eq!(
        (&c["type"], &c["line"]),
        (&value!("CompileError"), &value!(1))
    );
    let crash = error(&[
        "-l",
        "c",
        "-c",
        "int main(void) { return *(volatile int *)0; }",
    ]);
    assert_eq!(
        (&crash["type"], &crash["category"]),
        (&value!("SIGSEGV"), &value!("signal"))
    );
    let ended = error(&["-l", "bash", "-c", "kill -HUP $$"]);
    assert_eq!(
        (&ended["type"], &ended["message"], &ended["category"]),
        (
            &value!("SIGHUP"),
            &value!("it was told that its terminal had gone"),
            &value!("signal")
        )
    );
    // As sessions call it.
    let syntax = error(&["-l", "bash", "-c", "if true; then echo )"]);
    assert_eq!(
        (&syntax["type"], &syntax["category"]),
        (&value!("SyntaxError"), &value!("syntax"))
    );
    // A last word is no error's name.
    let said = "import sys; print('bye', file=sys.stderr); sys.exit(3)";
    assert_eq!(error(&["-c", said]), Value::Null);
    assert_eq!(error(&["-c", "raise SystemExit('bye')"]), Value::Null);
    assert_eq!(error(&["-c", "print(1)"]), Value::Null);
}

#[test]
fn standard_input_is_the_program_if_there_is_no_other() {
    let ended = run_with(&[], b"print(6 * 7)");
    assert_eq!(
        (ended.code, ended.stdout.as_str()),
        (0, "42\n"),
        "{ended:?}"
    );
    let ended = run_with(&["-l", "bash", "--", "a b"], b"echo \"[$1]\"; cat");
    assert_eq!(
        (ended.code, ended.stdout.as_str()),
        (0, "[a b]\n"),
        "{ended:?}"
    );
    let ended = run(&[]);
    assert_eq!((ended.code, ended.stdout.as_str()), (125, ""), "{ended:?}");
    assert!(ended.stderr.contains("-c CODE"), "{ended:?}");
}

#[test]
fn a_dash_is_our_own_standard_input() {
    let ended = run_with(&["--stdin", "-", "-c", "print(input())"], b"hello\n");
    assert_eq!(
        (ended.code, ended.stdout.as_str()),
        (0, "hello\n"),
        "{ended:?}"
    );
}
