//! What the channel refuses, and what it says at the end.

use serde_json::json;
use tungstenite::Message;

use super::daemon::{Daemon, TOKEN, receive, signal, until};
use super::serve_channel::{closed, connect, next, say, until_event};

/// What is refused is no end of the run that it was said to.
#[test]
fn a_message_that_is_refused_ends_no_run() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let mut socket = connect(&daemon, &sandbox, "");
    let request = json!({"code": "ask()", "tools": [{"name": "ask"}]});
    let begin = json!({"op": "run", "run": "a", "request": request});
    say(&mut socket, &begin);
    let call = until_event(&mut socket, "tool_call").pop().unwrap();
    for message in [
        begin,
        json!({"op": "run", "run": "a", "request": {"cod": "1"}}),
        json!({"op": "stdin", "run": "a", "data": "x"}),
    ] {
        say(&mut socket, &message);
        let told = next(&mut socket);
        assert_eq!(
            (&told["event"], &told["run"]),
            (&json!("refused"), &json!("a"))
        );
    }
    let answer = json!({"op": "answer", "run": "a", "call": call["call"], "value": null});
    say(&mut socket, &answer);
    let seen = until_event(&mut socket, "result");
    assert_eq!(seen.last().unwrap()["result"]["status"], "ok", "{seen:?}");
}

/// What comes back, and is kept for who comes back, is short, however long a name is.
#[test]
fn a_name_that_is_too_long_is_not_repeated() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let mut socket = connect(&daemon, &sandbox, "");
    let name = "x".repeat(8 << 20);
    for message in [
        json!({"op": "stdin", "run": name}),
        json!({"op": "run", "run": name, "request": {"code": "1"}}),
        json!({"op": "run", "run": name}),
    ] {
        say(&mut socket, &message);
        let told = next(&mut socket).to_string();
        assert!(
            told.len() < 1000 && told.contains("invalid_request"),
            "{told:.1000}"
        );
    }
}

#[test]
fn a_daemon_that_stops_tells_how_runs_ended() {
    let mut daemon = Daemon::with("[http]\nshutdown_timeout = '1s'\n");
    let sandbox = daemon.sandbox(&json!({}));
    let mut socket = connect(&daemon, &sandbox, "");
    let code = "print('go', flush=True)\nimport time; time.sleep(600)";
    let request = json!({"code": code, "limits": {"timeout_ms": "10m"}});
    say(
        &mut socket,
        &json!({"op": "run", "run": "a", "request": request}),
    );
    until_event(&mut socket, "stdout");
    let once = daemon.begin("/v1/runs", "application/json", &request);
    until("both go on", || daemon.going() == 2);
    signal(daemon.pid(), "TERM");
    let told = next(&mut socket);
    assert_eq!(
        (&told["event"], &told["run"]),
        (&json!("error"), &json!("a")),
        "{told}"
    );
    assert_eq!(told["error"]["message"], "conflict: the daemon stops");
    assert_eq!(closed(&mut socket), "the daemon stops");
    let answer = receive(once);
    assert_eq!(answer.status, 409);
    assert!(
        answer.text().contains("conflict: the daemon stops"),
        "{}",
        answer.text()
    );
    daemon.stop_waiting();
}

/// A number that would become another one is said to be wrong to the run that it was for.
#[test]
fn integers_of_more_than_64_bits_are_refused() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let body = r#"{"code": "x", "globals": {"x": 18446744073709551616}}"#;
    for path in ["/v1/runs", &format!("{sandbox}/runs")] {
        let answer = daemon.ask_as(TOKEN, "POST", path, body.as_bytes());
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(answer.text().contains("$int"), "{}", answer.text());
    }
    let mut socket = connect(&daemon, &sandbox, "");
    let message = format!(r#"{{"op": "run", "run": "a", "request": {body}}}"#);
    socket.send(Message::text(message)).unwrap();
    let told = next(&mut socket);
    let (event, run) = (&told["event"], &told["run"]);
    assert_eq!((event, run), (&json!("error"), &json!("a")), "{told}");
    let given = json!({"code": "x", "globals": {"x": {"$int": "18446744073709551616"}}});
    assert_eq!(daemon.run(&given)["value_text"], "18446744073709551616");
}
