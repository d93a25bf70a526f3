//! Single runs in interpreters that wait: the same answers as programs that are started.

use std::io::{BufRead, BufReader};
use std::thread;

use serde_json::{Value, json};

use super::daemon::{Daemon, until};
use super::harness::need_root;

const POOL: &str = "[pool]\npython = 2\n";

fn pooled(more: &str) -> Daemon {
    let daemon = Daemon::with(&format!("{more}{POOL}"));
    until("a pool", || {
        daemon.get("/metrics").text().contains("belljar_pool 2")
    });
    daemon
}

/// What a caller can rely on, whichever way the code was run.
fn facts(result: &Value) -> Value {
    // The kind of an error; an interpreter may have more to say about it.
    let last = result["stderr"].as_str().unwrap().lines().last();
    let stderr = last.map(|line| line.split(':').next().unwrap());
    json!({
        "status": result["status"], "exit_code": result["exit_code"], "signal": result["signal"],
        "stdout": result["stdout"], "stderr": stderr, "state": result["state"], "files": result["files"],
        "truncated": result["stdout_truncated"], "limits": result["limits"],
    })
}

#[test]
fn an_interpreter_that_waits_is_as_good_as_a_program_that_starts() {
    let (waiting, starting) = (pooled(""), Daemon::start());
    let bodies = [
        json!({"code": "print(6 * 7)"}),
        json!({"code": "import sys; print(sys.argv, sys.stdin.read()); sys.exit(3)", "args": ["a b", "-c"], "stdin": "ünï"}),
        json!({"code": "import sys; print(sys.stdin.buffer.read())", "stdin": {"base64": "/wD+"}}),
        json!({"code": "print(input())"}),
        json!({"code": "def f(): 1 / 0\nf()"}),
        json!({"code": "if"}),
        json!({"code": "raise SystemExit('sorry')"}),
        json!({"code": "import os; print(os.getcwd(), sorted(os.listdir()), open(__file__).readline(), __name__)", "files": {"a/b.txt": "c"}}),
        json!({"code": "open('out.txt', 'w').write('x' * 10); import os; os.mkdir('d'); open('d/e', 'wb').write(b'\\xff')", "collect": ["**/*.txt", "d/*"]}),
        json!({"code": "import os; print(os.environ['A'], os.environ.get('TERM'), os.environ['HOME'])", "env": {"A": "ä"}}),
        json!({"code": "import atexit, threading, time\natexit.register(print, 'bye')\nthreading.Thread(target=lambda: (time.sleep(.2), print('late'))).start()\nprint('main')"}),
        json!({"code": "import os; os._exit(5)"}),
        json!({"code": "import os; os._exit(0)"}),
        json!({"code": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"}),
        // One that has a number and no name.
        json!({"code": "import os; os.kill(os.getpid(), 40)"}),
        json!({"code": "import os\nif os.fork() == 0:\n    import time; time.sleep(1000)\nprint('parent')"}),
        json!({"code": "import subprocess, sys; print(subprocess.run([sys.executable, '-c', 'print(1)'], capture_output=True, text=True).stdout)"}),
        json!({"code": "import os; os.closerange(3, 4096); print('closed')"}),
        // Whatever it writes to descriptors that it was not given: how it ended is seen from outside.
        json!({"code": "import os, stat\nfor fd in range(3, 64):\n    try: stat.S_ISSOCK(os.fstat(fd).st_mode) and os.write(fd, b'\\x20\\0\\0\\0{\"op\":\"exit\",\"id\":\"\",\"code\":0}')\n    except OSError: pass\nraise SystemExit(9)"}),
        json!({"code": "while True: pass", "limits": {"timeout_ms": 300}}),
        json!({"code": "import time\ntry: time.sleep(1000)\nexcept BaseException: print('no chance')", "limits": {"timeout_ms": "300ms"}}),
        json!({"code": "x = bytearray(200 << 20)", "limits": {"memory_bytes": "64m"}}),
        json!({"code": "print('x' * 1000)", "limits": {"output_bytes": 10}}),
        json!({"code": "print(open('/proc/self/limits').read().split('open files')[1].split()[0])", "limits": {"open_files": 100}}),
        json!({"code": "open('/tmp/x', 'wb').write(b'x' * (3 << 20))", "limits": {"disk_bytes": "2m"}}),
        json!({"code": "import os; print(os.getcwd())", "workdir": "/data/elsewhere"}),
        json!({"code": "print('1')", "language": "bash"}),
    ];
    let mut differ = Vec::new();
    for body in &bodies {
        let (one, other) = (waiting.run(body), starting.run(body));
        if facts(&one) != facts(&other) {
            differ.push(format!("{body}\n{}\n{}", facts(&one), facts(&other)));
        }
        // One filter in two parts, of which it was born with the first, or in one.
        let parts = |run: &Value| run["report"]["seccomp"]["filters"].as_u64();
        let more = parts(&one)
            .zip(parts(&other))
            .map(|(one, other)| one - other);
        assert_eq!(more, Some(1), "{body}");
        for part in ["/report/seccomp/mode", "/report/landlock"] {
            assert_eq!(one.pointer(part), other.pointer(part), "{body}");
        }
    }
    assert!(differ.is_empty(), "{}", differ.join("\n"));
    // Nobody gets what another has used.
    let places: Vec<_> = (0..6)
        .map(|_| {
            let code = "import builtins, os\nprint(hasattr(builtins, 'mine'), os.path.exists('/tmp/mine'))\nbuiltins.mine = 1; open('/tmp/mine', 'w')";
            let result = waiting.run(&json!({"code": code}));
            assert_eq!(result["stdout"], "False False\n");
            result["sandbox"].as_str().unwrap().to_owned()
        })
        .collect();
    let distinct: std::collections::BTreeSet<_> = places.iter().collect();
    assert_eq!(distinct.len(), places.len());
}

#[test]
fn the_groups_of_whoever_started_it_are_not_inside() {
    need_root("to have groups that a root may have");
    let daemon = Daemon::of_groups("0,4,27", POOL);
    until("a pool", || {
        daemon.get("/metrics").text().contains("belljar_pool 2")
    });
    let code = "import os; print([g for g in os.getgroups() if g != 65534])";
    let sandbox = daemon.sandbox(&json!({}));
    let bash = json!({"code": "id -G", "language": "bash"});
    assert_eq!(daemon.run(&json!({"code": code}))["stdout"], "[]\n");
    assert_eq!(daemon.run(&bash)["stdout"], "1000\n");
    let body = json!({"code": code});
    let kept = daemon.post(&format!("{sandbox}/runs"), &body).ok();
    assert_eq!(kept["stdout"], "[]\n", "{kept}");
}

#[test]
fn what_only_an_interpreter_can_do() {
    for daemon in [pooled(""), Daemon::start()] {
        let result =
            daemon.run(&json!({"code": "print(x); x['a'] + 1", "globals": {"x": {"a": 41}}}));
        assert_eq!(
            (&result["value"], &result["state"]),
            (&json!(42), &json!("none")),
            "{result}"
        );
        let result = daemon.run(&json!({"code": "import json\nimport os", "imports": ["json"]}));
        assert_eq!(
            (
                &result["error"]["type"],
                &result["error"]["line"],
                &result["exit_code"]
            ),
            (&json!("ImportError"), &json!(2), &json!(1)),
            "{result}"
        );
        let refused = daemon.post(
            "/v1/runs",
            &json!({"code": "true", "language": "c", "globals": {"x": 1}}),
        );
        assert_eq!(
            (refused.status, refused.code().as_str()),
            (422, "not_supported"),
            "{}",
            refused.text()
        );
        let refused = daemon.post(
            "/v1/runs",
            &json!({"code": "1", "globals": {"not a name": 1}}),
        );
        assert_eq!(refused.status, 400);
    }
}

/// Python reads names in their plainest characters; the others as they are.
#[test]
fn variables_whose_names_have_several_spellings() {
    for daemon in [pooled(""), Daemon::start()] {
        for rules in [
            json!({}),
            json!({"imports": ["json"], "filesystem": "none"}),
        ] {
            let mut body = rules;
            body["code"] = json!("[\u{fb01}, fi, ab]");
            body["globals"] = json!({"\u{fb01}": 1, "\u{aa}b": 2});
            assert_eq!(daemon.run(&body)["value"], json!([1, 1, 2]), "{body}");
        }
        let both = json!({"\u{fb01}": 1, "fi": 2});
        let sandbox = daemon.sandbox(&json!({}));
        for path in ["/v1/runs", &format!("{sandbox}/runs")] {
            let refused = daemon.post(path, &json!({"code": "1", "globals": both}));
            let said = refused.text();
            assert_eq!(
                (refused.status, refused.code().as_str()),
                (400, "invalid_request"),
                "{said}"
            );
            assert!(
                said.contains("globals") && said.contains("same name"),
                "{said}"
            );
        }
        let code = "\u{fb01} * 10 + fi";
        let code = json!({"code": code, "language": "javascript", "globals": both});
        assert_eq!(daemon.run(&code)["value"], 12);
    }
}

#[test]
fn tools_of_a_single_run() {
    let daemon = pooled("");
    let body = json!({"code": "print(add(1, b=2)); add(3)", "tools": [{"name": "add"}]});
    let refused = daemon.post("/v1/runs", &body);
    assert_eq!(refused.status, 400, "{}", refused.text());
    let stream = daemon.begin("/v1/runs", "text/event-stream", &body);
    let mut answered = Vec::new();
    let mut last = Value::Null;
    for line in BufReader::new(stream).lines() {
        let line = line.unwrap();
        let Some(data) = line.strip_prefix("data: ") else {
            continue;
        };
        let data: Value = serde_json::from_str(data).unwrap();
        if data["tool"] == "add" {
            let path = format!("/v1/runs/{}/answers", data["run"].as_str().unwrap());
            let answer = daemon.post(
                &path,
                &json!({"call": data["call"], "value": 30 + answered.len()}),
            );
            assert_eq!(answer.status, 204);
            answered.push(path);
        }
        last = data;
    }
    let result = &last["result"];
    assert_eq!(
        (&result["stdout"], &result["value"]),
        (&json!("30\n"), &json!(31)),
        "{last}"
    );
    let late = daemon.post(&answered[0], &json!({"call": 1, "value": 1}));
    assert_eq!(late.status, 404);
    // Nobody answers, and the deadline holds.
    let hangs =
        json!({"code": "add(1)", "tools": [{"name": "add"}], "limits": {"timeout_ms": 300}});
    let events = daemon.events("/v1/runs", &hangs);
    assert_eq!(events.last().unwrap().1["result"]["status"], "timed_out");
}

#[test]
fn many_at_once_do_not_mix() {
    let daemon = pooled("");
    thread::scope(|scope| {
        for client in 0..8 {
            let daemon = &daemon;
            scope.spawn(move || {
                for turn in 0..10 {
                    let word = format!("{client}-{turn}");
                    let code = format!("import sys; print({word:?}, sys.stdin.read(), sys.argv[1], w)");
                    let result = daemon.run(&json!({"code": code, "stdin": word, "args": [word], "globals": {"w": word}}));
                    assert_eq!(result["stdout"], format!("{word} {word} {word} {word}\n"));
                }
            });
        }
    });
}

/// Groups in which the kernel counts may be used again; what was counted in them may not.
#[test]
fn what_one_has_used_is_not_told_of_the_next() {
    let daemon = pooled("");
    let told = || {
        let run = daemon.run(&json!({"code": "print(1)"}));
        let usage = &run["usage"];
        let number = |name: &str| usage[name].as_u64().expect(name);
        assert_eq!(run["status"], "ok");
        (
            number("processes_peak"),
            number("memory_peak_bytes"),
            usage["cpu_ms"].as_f64().expect("time"),
        )
    };
    let (alone, ..) = told();
    let greedy = [
        "import os, time\nfor _ in range(20):\n    if os.fork() == 0:\n        time.sleep(9)\ntime.sleep(0.1)",
        "x = b'x' * (100 << 20)",
        "x = bytearray(1 << 30)",
        "import os\nif os.fork() == 0:\n    x = bytearray(1 << 30)\nos.wait()",
        "import time\nwhile time.process_time() < 1: pass",
        "open('/tmp/large', 'wb').write(b'x' * (50 << 20))",
    ];
    for code in greedy {
        daemon.run(&json!({ "code": code }));
        for (processes, memory, cpu) in (0..8).map(|_| told()) {
            assert_eq!(processes, alone, "after {code}");
            assert!(memory < 30 << 20, "{memory} after {code}");
            assert!(cpu < 500.0, "{cpu} after {code}");
        }
    }
}
