//! Kept sandboxes over HTTP.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use serde_json::json;

use super::backend::is_docker;
use super::daemon::{Daemon, TOKEN, receive, send, until};
use super::harness::directory;

mod crowded;
mod interrupts;
mod requests;

#[test]
fn state_files_and_commands_are_kept() {
    let daemon = Daemon::start();
    let sandbox =
        daemon.sandbox(&json!({"files": {"a.txt": "hello"}, "env": {"K": "v"}, "name": "mine"}));
    let run = |code: &str| {
        daemon
            .post(&format!("{sandbox}/runs"), &json!({ "code": code }))
            .ok()
    };
    run("x = 41");
    let result = run("print(open('a.txt').read()); x + 1");
    assert_eq!(
        (&result["stdout"], &result["value"], &result["state"]),
        (&json!("hello\n"), &json!(42), &json!("kept"))
    );
    let failed = run("1/0");
    assert_eq!(
        (&failed["status"], &failed["error"]["type"]),
        (&json!("failed"), &json!("ZeroDivisionError"))
    );
    let listed = daemon
        .post(
            &format!("{sandbox}/commands"),
            &json!({"shell": "ls; echo $K; exit 3"}),
        )
        .ok();
    assert_eq!(
        (&listed["stdout"], &listed["exit_code"]),
        (&json!("a.txt\nv\n"), &json!(3))
    );
    let words = daemon
        .post(
            &format!("{sandbox}/commands"),
            &json!({"argv": ["cat", "-"], "stdin": "in"}),
        )
        .ok();
    assert_eq!(words["stdout"], "in");
    for bad in [
        json!({}),
        json!({"argv": ["nope"]}),
        json!({"shell": "x", "argv": ["x"]}),
        json!({"shell": "x", "cwd": "y"}),
    ] {
        assert_eq!(
            daemon.post(&format!("{sandbox}/commands"), &bad).status,
            400,
            "{bad}"
        );
    }
    let events = daemon.events(
        &format!("{sandbox}/runs"),
        &json!({"code": "print('e'); x"}),
    );
    assert_eq!(events[0].1["text"], "e\n");
    assert_eq!(events.last().unwrap().1["result"]["value"], 41);
    let info = daemon.get(&sandbox).ok();
    assert_eq!(
        (&info["name"], &info["runs"], &info["keeps_state"]),
        (&json!("mine"), &json!(6), &json!(true))
    );
    assert_eq!(
        daemon
            .get(&format!(
                "/v1/runs?sandbox={}",
                info["id"].as_str().unwrap()
            ))
            .ok()["runs"]
            .as_array()
            .unwrap()
            .len(),
        6
    );
    let reset = daemon.ask_as(TOKEN, "POST", &format!("{sandbox}/reset"), b"");
    assert_eq!(reset.status, 200);
    assert_eq!(run("'x' in globals()")["value"], false);
}

#[test]
fn tools_are_answered_over_http() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let body =
        json!({"code": "add(1, b=2) + 1", "tools": [{"name": "add", "parameters": ["a", "b"]}]});
    let plain = daemon.post(&format!("{sandbox}/runs"), &body);
    assert_eq!(plain.status, 400, "{}", plain.text());
    std::thread::scope(|scope| {
        let running = scope.spawn(|| daemon.events(&format!("{sandbox}/runs"), &body));
        until("it runs", || daemon.get(&sandbox).ok()["busy"] == true);
        while !running.is_finished() {
            let answer = daemon.post(
                &format!("{sandbox}/answers"),
                &json!({"call": 1, "value": 3}),
            );
            assert_eq!(answer.status, 204);
            std::thread::sleep(Duration::from_millis(20));
        }
        let events = running.join().unwrap();
        let call = events.iter().find(|(name, _)| name == "tool_call").unwrap();
        assert_eq!(
            (&call.1["tool"], &call.1["args"], &call.1["kwargs"]),
            (&json!("add"), &json!([1]), &json!({"b": 2}))
        );
        assert_eq!(events.last().unwrap().1["result"]["value"], 4, "{events:?}");
    });
}

/// A run that has begun, by what it leaves in its sandbox.
fn begun(daemon: &Daemon, sandbox: &str, file: &str) {
    let path = format!("{sandbox}/files/{file}");
    until("it has begun", || daemon.get(&path).status == 200);
}

#[test]
fn lists_filters_and_templates() {
    let daemon = Daemon::with(
        "[templates.small]\nlanguage = 'bash'\nlimits = { memory_bytes = '64m', processes = 20 }\nenv = { A = '1', B = '2' }\n",
    );
    daemon.sandbox(&json!({"labels": {"team": "red"}}));
    let small = daemon.sandbox(&json!({"template": "small", "env": {"B": "3"}, "limits": {"processes": 30}, "labels": {"team": "blue"}}));
    let info = daemon.get(&small).ok();
    assert_eq!(
        (
            &info["language"],
            &info["limits"]["memory_bytes"],
            &info["limits"]["processes"]
        ),
        (&json!("bash"), &json!(64 << 20), &json!(30))
    );
    assert_eq!(
        daemon
            .post(&format!("{small}/runs"), &json!({"code": "echo $A$B"}))
            .ok()["stdout"],
        "13\n"
    );
    assert_eq!(
        daemon.run(&json!({"template": "small", "code": "echo $A$B"}))["stdout"],
        "12\n"
    );
    for (query, wanted) in [
        ("", 2),
        ("label=team%3Dred", 1),
        ("label=team", 2),
        ("language=bash", 1),
        ("language=sh", 1),
        ("name=x", 0),
        ("busy=true", 0),
        ("busy=false", 2),
    ] {
        let list = daemon.get(&format!("/v1/sandboxes?{query}")).ok();
        assert_eq!(
            list["sandboxes"].as_array().unwrap().len(),
            wanted,
            "{query}"
        );
    }
    for bad in ["busy=1", "x=y"] {
        assert_eq!(
            daemon.get(&format!("/v1/sandboxes?{bad}")).status,
            400,
            "{bad}"
        );
    }
    for (body, status) in [
        (json!({"template": "nope"}), 404),
        (json!({"volumes": ["/etc:/data"]}), 400),
        (json!({"limits": {"memory_bytes": "1000g"}}), 400),
        (json!({"idle_timeout_ms": 0}), 400),
        (json!({"unknown": 1}), 400),
        (json!({"language": "bash", "imports": ["os"]}), 422),
        (json!([]), 400),
    ] {
        let answer = daemon.post("/v1/sandboxes", &body);
        assert_eq!(answer.status, status, "{body} {}", answer.text());
    }
}

#[test]
fn what_is_idle_or_too_old_is_deleted() {
    let daemon = Daemon::start();
    let idle = daemon.sandbox(&json!({"idle_timeout_ms": 500}));
    let old = daemon.sandbox(&json!({"lifetime_ms": 10_000}));
    let kept = daemon.sandbox(&json!({"idle_timeout_ms": 12_000}));
    // Less than the old one has: it would have gone before.
    let renewed = daemon.sandbox(&json!({"lifetime_ms": 8_000}));
    assert!(
        daemon
            .post(
                &format!("{renewed}/renew"),
                &json!({"lifetime_ms": 600_000})
            )
            .ok()["expires_at"]
            .is_string()
    );
    assert_eq!(
        daemon
            .post(&format!("{renewed}/renew"), &json!({"lifetime_ms": 0}))
            .status,
        400
    );
    until("the idle one is gone", || daemon.get(&idle).status == 404);
    until("the old one is gone, used as it is", || {
        let _ = daemon.post(&format!("{old}/runs"), &json!({"code": "1"}));
        // This one is used, too, and lives.
        daemon
            .post(&format!("{kept}/runs"), &json!({"code": "1"}))
            .ok();
        daemon.get(&old).status == 404
    });
    assert_eq!(daemon.get(&renewed).status, 200);
    until("the last is idle as well", || {
        daemon.get(&kept).status == 404
    });
}

#[test]
fn deleting_is_once_and_ends_what_runs() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    daemon.post(
                        &format!("{sandbox}/runs"),
                        &json!({"code": "while True: pass"}),
                    )
                })
            })
            .collect();
        until("all of them go or wait", || daemon.going() == 3);
        let deleted: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| daemon.delete(&sandbox).status))
            .collect();
        let mut deleted: Vec<_> = deleted.into_iter().map(|one| one.join().unwrap()).collect();
        deleted.sort_unstable();
        assert_eq!(deleted, [204, 404, 404, 404]);
        for one in running {
            let answer = one.join().unwrap();
            assert_eq!((answer.status, answer.code().as_str()), (409, "conflict"));
        }
    });
    assert_eq!(
        daemon
            .post(&format!("{sandbox}/runs"), &json!({"code": "1"}))
            .status,
        404
    );
    assert_eq!(daemon.get("/v1/sandboxes").ok()["sandboxes"], json!([]));
    assert!(
        daemon
            .get("/metrics")
            .text()
            .contains("belljar_sandboxes 0\n")
    );
}

#[test]
fn usage_is_counted_over_time() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    daemon.post(&format!("{sandbox}/runs"), &json!({"code": "x = b'x' * 50_000_000\nopen('f', 'wb').write(x[:10_000_000])\nsum(range(10**6))"})).ok();
    let usage = daemon.get(&format!("{sandbox}/usage")).ok();
    let now = &usage["now"];
    assert!(
        now["memory_bytes"].as_u64().unwrap() > 50_000_000,
        "{usage}"
    );
    assert!(now["disk_bytes"].as_u64().unwrap() >= 10_000_000, "{usage}");
    assert!(
        now["cpu_ms"].as_f64().unwrap() > 0.0 && now["processes"] == 1,
        "{usage}"
    );
    until("there are samples", || {
        daemon.get(&format!("{sandbox}/usage")).ok()["samples"]
            .as_array()
            .unwrap()
            .len()
            > 1
    });
}

#[test]
fn a_client_that_goes_does_not_end_a_run_in_a_session() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let path = format!("{sandbox}/runs");
    let bearer = format!("Bearer {TOKEN}");
    let headers = [
        ("Authorization", bearer.as_str()),
        ("Content-Type", "application/json"),
    ];
    let body = json!({"code": "import os, time\nopen('begun', 'w')\nwhile not os.path.exists('go'): time.sleep(.01)\nx = 5"})
        .to_string();
    let mut stream = daemon.connect();
    send(
        &mut stream,
        "POST",
        &path,
        &daemon.address,
        &headers,
        body.as_bytes(),
    );
    begun(&daemon, &sandbox, "begun");
    drop(stream);
    // The one that asks is a connection too.
    until("the daemon has seen it go", || {
        daemon.metric("belljar_connections") == 1
    });
    assert_eq!(daemon.going(), 1);
    assert_eq!(daemon.put(&format!("{sandbox}/files/go"), b"").status, 201);
    assert_eq!(daemon.post(&path, &json!({"code": "x"})).ok()["value"], 5);
    let mut stream = daemon.connect();
    send(&mut stream, "GET", &sandbox, &daemon.address, &headers, b"");
    assert_eq!(receive(stream).json()["runs"], 2);
}

#[test]
fn a_client_that_attends_and_goes_ends_its_run_and_no_other() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let bearer = format!("Bearer {TOKEN}");
    let headers = [
        ("Authorization", bearer.as_str()),
        ("Content-Type", "application/json"),
    ];
    let ask = |route: &str, body: &serde_json::Value| {
        let mut stream = daemon.connect();
        let path = format!("{sandbox}/{route}?attended=true");
        let body = body.to_string();
        send(
            &mut stream,
            "POST",
            &path,
            &daemon.address,
            &headers,
            body.as_bytes(),
        );
        stream
    };
    let first = json!({"code": "import os, time\nopen('begun', 'w')\nwhile not os.path.exists('go'): time.sleep(.01)\n'whole'"});
    let going = ask("runs", &first);
    begun(&daemon, &sandbox, "begun");
    let waiting = ask("runs", &json!({"code": "y = 2"}));
    let sleeping = ask(
        "commands",
        &json!({"shell": "touch slept; exec sleep 1000"}),
    );
    begun(&daemon, &sandbox, "slept");
    until("all of them go or wait", || daemon.going() == 3);
    drop((waiting, sleeping));
    until("two of them have ended", || daemon.going() == 1);
    until("the command has gone", || {
        let path = format!("{sandbox}/usage");
        daemon.get(&path).ok()["now"]["processes"] == 1
    });
    assert_eq!(daemon.put(&format!("{sandbox}/files/go"), b"").status, 201);
    assert_eq!(receive(going).json()["value"], "whole");
    let path = format!("{sandbox}/runs");
    let seen = daemon
        .post(&path, &json!({"code": "z = 3; 'y' in globals()"}))
        .ok();
    assert_eq!(seen["value"], false);
    // And the one that goes on is interrupted, with its state kept.
    let endless = ask(
        "runs",
        &json!({"code": "import time\nopen('again', 'w')\nwhile True: time.sleep(.01)"}),
    );
    begun(&daemon, &sandbox, "again");
    drop(endless);
    assert_eq!(daemon.post(&path, &json!({"code": "z"})).ok()["value"], 3);
}

#[test]
fn there_are_only_so_many() {
    let daemon = Daemon::with("[sandboxes]\nmaximum = 2\n");
    let first = daemon.sandbox(&json!({"language": "bash"}));
    daemon.sandbox(&json!({"language": "bash"}));
    let third = daemon.post("/v1/sandboxes", &json!({"language": "bash"}));
    assert_eq!((third.status, third.code().as_str()), (429, "overloaded"));
    daemon.delete(&first);
    daemon.sandbox(&json!({"language": "bash"}));
}

#[test]
fn sandboxes_of_the_pool_are_like_others() {
    let daemon = Daemon::with(
        "[pool]\npython = 2\n[templates.data]\npool = 1\npreload = ['json']\nlimits = { processes = 50 }\n",
    );
    until("there are some", || {
        daemon.get("/metrics").text().contains("belljar_pool 3\n")
    });
    let metrics = daemon.get("/metrics").text();
    for depth in ["{pool=\"python\"} 2\n", "{pool=\"template:data\"} 1\n"] {
        assert!(metrics.contains(&format!("belljar_pool_depth{depth}")));
    }
    for template in [json!(null), json!("data")] {
        let body = json!({"files": {"in.txt": "hello"}, "env": {"K": "v"}, "template": template, "limits": {"memory_bytes": "100m"}});
        let sandbox = daemon.sandbox(&body);
        assert_eq!(
            daemon.put(&format!("{sandbox}/files/d/f"), b"put").status,
            201
        );
        let code = "import os; [open('in.txt').read(), open('d/f').read(), os.environ['K'], os.stat('d/f').st_uid == os.getuid()]";
        let result = daemon
            .post(&format!("{sandbox}/runs"), &json!({ "code": code }))
            .ok();
        assert_eq!(
            result["value"],
            json!(["hello", "put", "v", true]),
            "{result}"
        );
        assert_eq!(result["limits"]["memory_bytes"], 100 << 20);
        assert_eq!(result["report"]["no_new_privs"], true);
        // What one tenant did is nowhere in the next sandbox.
        daemon
            .post(
                &format!("{sandbox}/runs"),
                &json!({"code": "import json; json.mark = 1"}),
            )
            .ok();
        let next = daemon.sandbox(&body);
        let seen = daemon
            .post(
                &format!("{next}/runs"),
                &json!({"code": "import json; hasattr(json, 'mark')"}),
            )
            .ok();
        assert_eq!(seen["value"], false);
    }
}

/// Whoever may write to a volume can put a link in place of what another volume is made of. It leads nowhere: neither when that
/// sandbox is made anew, nor for one that is asked for while it changes.
#[test]
fn links_that_code_puts_in_place_of_a_volume() {
    let place = directory(&[("allowed/work/x/own", "mine"), ("outside/canary", "secret")]);
    let place = place.path().canonicalize().unwrap();
    for name in ["allowed/work", "outside"] {
        // In a container nobody owns what is mounted.
        fs::set_permissions(place.join(name), Permissions::from_mode(0o777)).unwrap();
    }
    let (work, outside) = (place.join("allowed/work"), place.join("outside"));
    let (work, outside) = (work.to_str().unwrap(), outside.to_str().unwrap());
    let daemon = Daemon::with(&format!(
        "[volumes]\nallowed = ['{}']\n",
        place.join("allowed").display()
    ));
    let one = daemon.sandbox(&json!({"volumes": [format!("{work}:/v:rw")]}));
    let other = daemon.sandbox(&json!({"volumes": [format!("{work}/x:/y:rw")]}));
    let run = |sandbox: &str, code: &str| {
        let body = json!({"code": code});
        daemon.post(&format!("{sandbox}/runs"), &body)
    };
    let read = "import os\n[os.listdir('/y'), open('/y/own').read()]";
    assert_eq!(run(&other, read).ok()["value"], json!([["own"], "mine"]));
    let swap = format!("import os\nos.rename('/v/x', '/v/away')\nos.symlink({outside:?}, '/v/x')");
    assert_eq!(run(&one, &swap).ok()["status"], "ok");
    let reset = daemon.post(&format!("{other}/reset"), &json!({}));
    assert_eq!(
        (reset.status, reset.code().as_str()),
        (400, "invalid_volume"),
        "{}",
        reset.text()
    );
    let after = run(&other, "import os\nos.listdir('/y')");
    assert!(!after.text().contains("canary"), "{}", after.text());
    // As fast as it can, while runs ask for it.
    let change = "import os, threading\ndef change():\n  while True:\n    try:\n      os.rename('/v/x', '/v/link'); os.rename('/v/away', '/v/x'); os.rename('/v/x', '/v/away'); os.rename('/v/link', '/v/x')\n    except OSError: pass\nthreading.Thread(target=change, daemon=True).start()";
    assert_eq!(run(&one, change).ok()["status"], "ok");
    for _ in 0..if is_docker() { 20 } else { 100 } {
        let body = json!({"code": "import os\nprint(os.listdir('/y'))", "volumes": [format!("{work}/x:/y")]});
        let answer = daemon.post("/v1/runs", &body);
        // An engine may find that there is nothing at all at that moment, in words of its own.
        let expected = is_docker() || [200, 400].contains(&answer.status);
        let text = answer.text();
        assert!(expected && !text.contains("canary"), "{text}");
    }
}

/// A shell knows nothing more of a run once it is another program: how that ends is seen from outside.
#[test]
fn a_shell_that_becomes_another_program_ends_as_that_does() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({"language": "bash"}));
    let none = json!(null);
    // Longer than an interpreter may take to be gone whose channel has ended.
    for (code, status, exit_code, signal) in [
        ("exec sh -c 'sleep 3; echo out'", "ok", json!(0), &none),
        ("echo out; exec true", "ok", json!(0), &none),
        ("echo out; exec sh -c 'exit 3'", "failed", json!(3), &none),
        (
            "echo out; exec sh -c 'exit 137'",
            "failed",
            json!(137),
            &none,
        ),
        ("echo out; kill -9 $$", "failed", json!(null), &json!(9)),
        (
            "echo out; exec sh -c 'kill -15 $$'",
            "failed",
            json!(null),
            &json!(15),
        ),
    ] {
        daemon
            .post(&format!("{sandbox}/runs"), &json!({"code": "x=1"}))
            .ok();
        let result = daemon
            .post(&format!("{sandbox}/runs"), &json!({ "code": code }))
            .ok();
        let ended = (&result["status"], &result["exit_code"], &result["signal"]);
        assert_eq!(
            ended,
            (&json!(status), &exit_code, signal),
            "{code}: {result:#}"
        );
        let rest = (&result["stdout"], &result["state"]);
        assert_eq!(rest, (&json!("out\n"), &json!("lost")), "{code}");
        assert_eq!(
            result["error"].is_null(),
            status == "ok",
            "{code}: {result:#}"
        );
        let once = json!({"language": "bash", "code": code});
        let once = daemon.post("/v1/runs", &once).ok();
        let ended = (&once["status"], &once["exit_code"], &once["signal"]);
        assert_eq!(
            ended,
            (&json!(status), &exit_code, signal),
            "{code}: {once:#}"
        );
    }
    let next = daemon.post(
        &format!("{sandbox}/runs"),
        &json!({"code": "echo ${x-gone}"}),
    );
    assert_eq!(next.ok()["stdout"], "gone\n");
    let limits = json!({"timeout_ms": 500});
    let late = json!({"code": "exec sleep 100", "limits": limits});
    let late = daemon.post(&format!("{sandbox}/runs"), &late).ok();
    assert_eq!(late["status"], "timed_out", "{late:#}");
}

#[test]
fn what_is_no_id_is_not_there_either() {
    let daemon = Daemon::start();
    for path in [
        "/v1/sandboxes/nope",
        "/v1/sandboxes/sbx_nope/files",
        "/v1/runs/nope",
        "/v1/runs/run_nope/debug",
    ] {
        let answer = daemon.get(path);
        assert_eq!(answer.status, 404, "{path}: {}", answer.text());
        assert_eq!(answer.json()["error"]["code"], "invalid_id", "{path}");
    }
}

#[test]
fn who_comes_too_late_is_told_why() {
    let daemon = Daemon::start();
    let deleted = daemon.sandbox(&json!({}));
    assert_eq!(daemon.delete(&deleted).status, 204);
    let idle = daemon.sandbox(&json!({"idle_timeout_ms": 500}));
    let old = daemon.sandbox(&json!({"lifetime_ms": 700}));
    for (path, told) in [
        (&deleted, "it was deleted"),
        (&idle, "after 0.5 s in which nobody used it"),
        (&old, "after 0.7 s (lifetime_ms)"),
    ] {
        until("it is gone", || daemon.get(path).status == 404);
        let answer = daemon.post(&format!("{path}/runs"), &json!({"code": "1"}));
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["code"]), (404, &json!("not_found")));
        let message = error["message"].as_str().unwrap();
        assert!(
            message.contains("was not found: ") && message.contains(told),
            "{message}"
        );
    }
}
