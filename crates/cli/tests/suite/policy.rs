//! `--imports` and `--no-files`.

use serde_json::json;

use super::harness::{directory, json, run, run_with, text};

#[test]
fn only_listed_modules_can_be_imported() {
    let ended = run(&[
        "--imports",
        "json,math",
        "-c",
        "import json, math; print(json.dumps(math.floor(2.5)))",
    ]);
    assert_eq!(ended.parts(), (0, "2\n", ""));
    let ended = run(&["--imports", "json,math", "-c", "import os"]);
    assert_eq!(ended.code, 1, "{ended:?}");
    let last = ended.stderr.lines().last();
    assert_eq!(
        last,
        Some("ImportError: Import 'os' not allowed"),
        "{ended:?}"
    );
    let result = json(&[
        "--imports",
        "safe",
        "-c",
        "import statistics, asyncio\nimport subprocess",
    ]);
    assert_eq!(result.get("status"), "failed");
    assert_eq!(result.get("error.type"), "ImportError");
    assert_eq!(
        result.get("error.message"),
        "Import 'subprocess' not allowed"
    );
    assert_eq!(result.get("error.line"), 2);
    assert_eq!(result.get("state"), "none");
}

/// A list of modules changes nothing else about a program.
#[test]
fn a_program_with_a_list_ends_like_any_other() {
    for (code, exit) in [
        ("raise SystemExit(3)", 3),
        ("1/0", 1),
        ("import os; os._exit(5)", 5),
        ("import os; os.kill(os.getpid(), 9)", 137),
        ("import atexit; atexit.register(print, 'bye')", 0),
    ] {
        let ended = run(&["--imports", "os,atexit", "-c", code]);
        assert_eq!(ended.code, exit, "{code}: {ended:?}");
        assert_eq!(ended.stdout, if exit == 0 { "bye\n" } else { "" });
    }
    let code = "import threading, time\nthreading.Thread(target=lambda: (time.sleep(.2), print('late'))).start()";
    assert_eq!(
        run(&["--imports", "threading,time", "-c", code]).parts(),
        (0, "late\n", "")
    );
    let code = "import threading, time\nthreading.Thread(target=lambda: time.sleep(60)).start()";
    let ended = run(&[
        "--imports",
        "threading,time",
        "--timeout",
        "500ms",
        "-c",
        code,
    ]);
    assert_eq!(ended.code, 124, "{ended:?}");
    let ended = run(&[
        "--imports",
        "safe",
        "--timeout",
        "500ms",
        "-c",
        "while True: pass",
    ]);
    assert_eq!(ended.code, 124, "{ended:?}");
    let ended = run(&[
        "--imports",
        "safe",
        "--memory",
        "64m",
        "-c",
        "x = 'x' * (1 << 30)",
    ]);
    assert_eq!(ended.code, 137, "{ended:?}");
}

#[test]
fn input_arguments_and_files_are_there_as_always() {
    let dir = directory(&[
        ("in.txt", "a file"),
        (
            "prog.py",
            "import sys\nopen('out.txt', 'w').write(input() + open('in.txt').read() + sys.argv[1] + __file__ + __name__)",
        ),
    ]);
    let out = dir.path().join("out");
    let ended = run_with(
        &[
            &text(dir.path().join("prog.py")),
            "--imports",
            "sys",
            "--file",
            &text(dir.path().join("in.txt")),
            "--output-dir",
            &text(&out),
            "--",
            "word",
        ],
        b"typed\n",
    );
    assert_eq!(ended.parts(), (0, "", ""));
    let written = std::fs::read_to_string(out.join("out.txt")).unwrap();
    assert_eq!(written, "typeda fileword/workspace/prog.py__main__");
}

#[test]
fn no_files_means_none() {
    let ended = run(&[
        "--no-files",
        "-c",
        "import json, decimal, email.mime.text; print('imported'); open('/etc/passwd')",
    ]);
    assert_eq!(
        (ended.code, ended.stdout.as_str()),
        (1, "imported\n"),
        "{ended:?}"
    );
    let last = ended.stderr.lines().last();
    assert_eq!(
        last,
        Some("PermissionError: [Errno 13] Permission denied: '/etc/passwd'")
    );
    let result = json(&[
        "--no-files",
        "-c",
        "import subprocess; subprocess.run(['/bin/true'])",
    ]);
    assert_eq!(result.get("error.type"), "PermissionError");
    assert_eq!(result.get("report.filesystem"), "none");
    assert_eq!(json(&["-c", "pass"]).get("report.filesystem"), "workspace");
    let result = json(&[
        "-l",
        "javascript",
        "--no-files",
        "-c",
        "require('fs').readFileSync('/etc/passwd')",
    ]);
    assert_eq!(
        result.get("error.message"),
        &json!("EACCES: permission denied, open '/etc/passwd'")
    );
}

#[test]
fn what_cannot_be_kept_is_refused() {
    let dir = directory(&[("in.txt", "")]);
    let file = text(dir.path().join("in.txt"));
    for (args, about) in [
        (
            &["-l", "bash", "--no-files", "-c", "true"][..],
            "filesystem none is not supported: bash",
        ),
        (
            &["-l", "perl", "--no-files", "-c", "1"],
            "filesystem none is not supported: perl",
        ),
        (
            &["-l", "bash", "--imports", "os", "-c", "true"],
            "imports is not supported: bash",
        ),
        (
            &["--no-files", "--file", &file, "-c", "1"],
            "none together with files",
        ),
        (
            &["--no-files", "--writable", "-c", "1"],
            "none together with a writable root",
        ),
        (
            &["--no-files", "--weaken", "landlock", "-c", "1"],
            "none together with weaken landlock",
        ),
        (&["--imports", "os;sys", "-c", "1"], "give names of modules"),
    ] {
        let ended = run(args);
        assert_eq!(
            (ended.code, ended.stdout.as_str()),
            (125, ""),
            "{args:?}: {ended:?}"
        );
        assert!(ended.stderr.contains(about), "{args:?}: {}", ended.stderr);
    }
}
