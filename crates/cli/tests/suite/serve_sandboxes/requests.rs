//! What a sandbox and its runs are asked for, and what is told about what they wrote.

use serde_json::{Value, json};

use crate::suite::backend;
use crate::suite::daemon::{Daemon, until};

fn names(result: &Value) -> Vec<&str> {
    let files = result["files"].as_array().unwrap().iter();
    files.map(|file| file["path"].as_str().unwrap()).collect()
}

#[test]
fn files_are_those_that_this_run_wrote() {
    let daemon = Daemon::start();
    // The small image for containers has no perl.
    let others = if backend::is_docker() {
        None
    } else {
        Some("perl")
    };
    for language in ["python", "bash"].into_iter().chain(others) {
        let sandbox = daemon.sandbox(&json!({"language": language, "files": {"first": "1"}}));
        let write = |path: &str| match language {
            "python" => format!("open('{path}', 'w').write('x')"),
            "bash" => format!("echo x >{path}"),
            _ => format!("open(F, '>{path}'); print F 'x'; close F;"),
        };
        let run = |code: &str| {
            let path = format!("{sandbox}/runs");
            daemon.post(&path, &json!({ "code": code })).ok()
        };
        let command = |line: &str| {
            let path = format!("{sandbox}/commands");
            daemon.post(&path, &json!({ "shell": line })).ok()
        };
        assert_eq!(names(&run(&write("own"))), ["own"], "{language}");
        daemon.put(&format!("{sandbox}/files/put"), b"x");
        assert_eq!(names(&run(&write("other"))), ["other"], "{language}");
        let by_command = command("echo x >by-command; mkdir d; echo y >d/deep");
        let mut listed = names(&by_command);
        listed.sort_unstable();
        assert_eq!(listed, ["by-command", "d/deep"], "{language}");
        assert_eq!(names(&run(&write("last"))), ["last"], "{language}");
        assert_eq!(names(&command("true")), [""; 0], "{language}");
        assert_eq!(names(&command("echo longer >>own")), ["own"], "{language}");
    }
}

#[test]
fn tools_of_a_sandbox_are_there_in_its_runs() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({"tools": [{"name": "add", "parameters": ["a", "b"]}]}));
    let runs = format!("{sandbox}/runs");
    let answered = |code: &Value| {
        std::thread::scope(|scope| {
            let running = scope.spawn(|| daemon.events(&runs, code));
            until("it ends", || {
                let answers = format!("{sandbox}/answers");
                daemon.post(&answers, &json!({"call": 1, "value": 3}));
                running.is_finished()
            });
            let events = running.join().unwrap();
            events.last().unwrap().1["result"].clone()
        })
    };
    let result = answered(&json!({"code": "add(1, b=2) + 1"}));
    assert_eq!(result["value"], 4, "{result}");
    // Nobody hears its calls, but it need not make any.
    let plain = |code: &str| daemon.post(&runs, &json!({ "code": code })).ok();
    assert_eq!(plain("1 + 1")["value"], 2);
    let failed = plain("add(1, 2)");
    let message = failed["error"]["message"].as_str().unwrap();
    assert!(message.contains("nobody is there to answer"), "{failed}");
    // A run that names others has those, and they stay until the sandbox is as it was.
    let result = answered(&json!({"code": "sub() + 1", "tools": [{"name": "sub"}]}));
    assert_eq!(result["value"], 4, "{result}");
    let failed = answered(&json!({"code": "add(1, 2)"}));
    assert_eq!(failed["status"], "failed", "{failed}");
    // A variable does not take the place of a tool, which may be of the run before.
    let refused = daemon.post(
        &format!("{sandbox}/runs"),
        &json!({"code": "1", "globals": {"sub": 1}}),
    );
    let said = refused.text();
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (400, "invalid_request"),
        "{said}"
    );
    assert!(said.contains("globals: "), "{said}");
    daemon.post(&format!("{sandbox}/reset"), &json!({})).ok();
    let result = answered(&json!({"code": "add(1, 2)"}));
    assert_eq!(result["value"], 3, "{result}");
    for (body, status) in [
        (json!({"language": "bash", "tools": [{"name": "f"}]}), 422),
        (json!({"tools": [{"name": "1f"}]}), 400),
        (json!({"tools": [["f"]]}), 400),
        (json!({"tools": [{"name": "f"}, {"name": "f"}]}), 400),
        (
            json!({"tools": [{"name": "fi"}, {"name": "\u{fb01}"}]}),
            400,
        ),
    ] {
        let refused = daemon.post("/v1/sandboxes", &body);
        assert_eq!(refused.status, status, "{body} {}", refused.text());
    }
}

#[test]
fn a_template_is_of_runs_and_of_sandboxes() {
    let daemon = Daemon::with(
        "[templates.both]\ncollect = ['*.txt']\nglobals = { x = 41 }\nargs = ['a']\nstdin = 'in'\ntools = [{ name = 'f' }]\n\
         idle_timeout_ms = '10m'\nlifetime_ms = 7200000\nmax_runs = 1\n",
    );
    let sandbox = daemon.sandbox(&json!({"template": "both"}));
    let info = daemon.get(&sandbox).ok();
    assert_eq!(info["idle_timeout_ms"], 600_000);
    assert!(info["expires_at"].is_string(), "{info}");
    let run = |code: &str| {
        let path = format!("{sandbox}/runs");
        daemon.post(&path, &json!({ "code": code })).ok()
    };
    // One run for each interpreter.
    run("y = 1");
    assert_eq!(
        run("'y' in globals(), callable(f)")["value"],
        json!([false, true])
    );
    let body =
        json!({"template": "both", "code": "open('o.txt', 'w').write('hi'); x + 1", "tools": []});
    let result = daemon.run(&body);
    assert_eq!(
        (&result["value"], &result["files"][0]["content"]),
        (&json!(42), &json!("hi")),
        "{result}"
    );
}

#[test]
fn times_may_have_units() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({"idle_timeout_ms": "10m", "lifetime_ms": "2h"}));
    assert_eq!(daemon.get(&sandbox).ok()["idle_timeout_ms"], 600_000);
    let renewed = daemon.post(
        &format!("{sandbox}/renew"),
        &json!({"idle_timeout_ms": "20m"}),
    );
    assert_eq!(renewed.ok()["idle_timeout_ms"], 1_200_000);
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let (runs, commands) = (format!("{sandbox}/runs"), format!("{sandbox}/commands"));
    let renew = format!("{sandbox}/renew");
    for (path, body, code, words) in [
        (
            "/v1/sandboxes",
            json!({"limits": []}),
            "invalid_limit",
            "limits: ",
        ),
        (
            "/v1/sandboxes",
            json!({"limits": [5]}),
            "invalid_limit",
            "limits: ",
        ),
        (
            &*runs,
            json!({"code": "1", "limits": [5]}),
            "invalid_limit",
            "limits: ",
        ),
        (
            &*commands,
            json!({"shell": "ls", "limits": []}),
            "invalid_limit",
            "limits: ",
        ),
        (
            &*runs,
            json!(["1"]),
            "invalid_request",
            "expected an object",
        ),
        (
            &*commands,
            json!(["ls"]),
            "invalid_request",
            "expected an object",
        ),
        (
            &*renew,
            json!({"lifetime_ms": "5 weeks"}),
            "invalid_request",
            "lifetime_ms: ",
        ),
        (
            "/v1/sandboxes",
            json!({"max_runs": "10m"}),
            "invalid_request",
            "max_runs: invalid type",
        ),
        (
            "/v1/sandboxes",
            json!({"network": ["no host"]}),
            "invalid_network",
            "\"no host\"",
        ),
        (
            "/v1/runs",
            json!({"code": "1", "network": "some"}),
            "invalid_network",
            "network: ",
        ),
        (
            &*commands,
            json!({"shell": "ls", "cwd": "/nowhere"}),
            "invalid_file",
            "cwd: cannot use \"/nowhere\"",
        ),
        (
            &*commands,
            json!({"argv": ["/nowhere"]}),
            "invalid_file",
            "command: cannot use \"/nowhere\"",
        ),
    ] {
        let refused = daemon.post(path, &body);
        assert_eq!(
            (refused.status, refused.code().as_str()),
            (400, code),
            "{path} {body} {}",
            refused.text()
        );
        let message = refused.json()["error"]["message"].to_string();
        let message = message.replace("\\\"", "\"");
        assert!(message.contains(words), "{path} {body} {message}");
    }
}

#[test]
fn what_a_language_cannot_do_is_the_callers_mistake() {
    let daemon = Daemon::start();
    let mut asked = vec![
        (
            "/v1/sandboxes",
            json!({"language": "bash", "filesystem": "none"}),
        ),
        (
            "/v1/runs",
            json!({"code": "true", "language": "bash", "imports": ["json"]}),
        ),
    ];
    if !backend::is_docker() {
        asked.extend([
            (
                "/v1/runs",
                json!({"code": "1", "language": "perl", "globals": {"x": 1}}),
            ),
            (
                "/v1/sandboxes",
                json!({"language": "perl", "tools": [{"name": "f"}]}),
            ),
        ]);
    }
    for (path, body) in asked {
        let refused = daemon.post(path, &body);
        assert_eq!(
            (refused.status, refused.code().as_str()),
            (422, "not_supported"),
            "{}",
            refused.text()
        );
    }
}
