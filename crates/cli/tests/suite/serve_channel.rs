//! The channel of a kept sandbox: a WebSocket.

use std::net::TcpStream;
use std::time::Instant;

use serde_json::{Value, json};
use tungstenite::client::IntoClientRequest;
use tungstenite::{Message, WebSocket, client};

use super::daemon::{Daemon, HANG, TOKEN, resident, until};

pub type Socket = WebSocket<TcpStream>;

fn open(
    daemon: &Daemon,
    sandbox: &str,
    query: &str,
    headers: &[(&'static str, String)],
) -> Result<Socket, u16> {
    let url = format!("ws://{}{sandbox}/channel{query}", daemon.address);
    let mut request = url.into_client_request().unwrap();
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    match client(request, daemon.connect()) {
        Ok((socket, _)) => Ok(socket),
        Err(tungstenite::HandshakeError::Failure(tungstenite::Error::Http(answer))) => {
            Err(answer.status().as_u16())
        }
        Err(error) => panic!("{error}"),
    }
}

pub fn connect(daemon: &Daemon, sandbox: &str, query: &str) -> Socket {
    let mut socket = open(
        daemon,
        sandbox,
        query,
        &[("authorization", format!("Bearer {TOKEN}"))],
    )
    .unwrap();
    let ready = next(&mut socket);
    assert_eq!(ready["event"], "ready");
    socket
}

/// Why it was closed.
pub fn closed(socket: &mut Socket) -> String {
    loop {
        match socket.read() {
            Ok(Message::Close(close)) => return close.unwrap().reason.to_string(),
            Ok(_) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

pub fn say(socket: &mut Socket, message: &Value) {
    socket.send(Message::text(message.to_string())).unwrap();
}

pub fn next(socket: &mut Socket) -> Value {
    let since = Instant::now();
    loop {
        // Pings keep the connection from looking dead.
        assert!(since.elapsed() < HANG, "nothing came");
        match socket.read().unwrap() {
            Message::Text(text) => return serde_json::from_str(&text).unwrap(),
            Message::Ping(_) | Message::Pong(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Everything up to an event of this name.
pub fn until_event(socket: &mut Socket, name: &str) -> Vec<Value> {
    let mut seen = Vec::new();
    loop {
        let event = next(socket);
        let done = event["event"] == name;
        seen.push(event);
        if done {
            return seen;
        }
    }
}

#[test]
fn runs_with_several_tools_at_once() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let mut socket = connect(&daemon, &sandbox, "");
    let tools = json!([{"name": "one"}, {"name": "two"}]);
    let code = "from concurrent.futures import ThreadPoolExecutor as T\nwith T() as t: r = [f.result() for f in (t.submit(one), t.submit(two))]\nr";
    say(
        &mut socket,
        &json!({"op": "run", "run": "a", "request": {"code": code, "tools": tools}}),
    );
    let calls = [next(&mut socket), next(&mut socket)];
    // Both wait at the same time, and are answered the other way round.
    for call in calls.iter().rev() {
        assert_eq!(
            (&call["event"], &call["run"]),
            (&json!("tool_call"), &json!("a")),
            "{call}"
        );
        say(
            &mut socket,
            &json!({"op": "answer", "run": "a", "call": call["call"], "value": call["tool"]}),
        );
    }
    let events = until_event(&mut socket, "result");
    assert_eq!(
        events.last().unwrap()["result"]["value"],
        json!(["one", "two"]),
        "{events:?}"
    );
    say(
        &mut socket,
        &json!({"op": "run", "run": "b", "request": {"tools": tools, "code": "try: one()\nexcept KeyError as e: print(repr(e))"}}),
    );
    let call = next(&mut socket);
    say(
        &mut socket,
        &json!({"op": "answer", "run": "b", "call": call["call"], "error": {"type": "KeyError", "message": "no"}}),
    );
    let events = until_event(&mut socket, "result");
    assert_eq!(
        events.last().unwrap()["result"]["stdout"],
        "KeyError('no')\n",
        "{events:?}"
    );
    say(
        &mut socket,
        &json!({"op": "answer", "run": "b", "call": 1, "value": 1}),
    );
    assert_eq!(next(&mut socket)["error"]["code"], "not_found");
}

#[test]
fn input_comes_while_the_code_runs() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let mut socket = connect(&daemon, &sandbox, "");
    let code = "import sys\nfor line in sys.stdin: print('got', line.strip(), flush=True)";
    say(
        &mut socket,
        &json!({"op": "run", "run": "a", "live_stdin": true, "request": {"code": code}}),
    );
    for word in ["one", "two"] {
        say(
            &mut socket,
            &json!({"op": "stdin", "run": "a", "data": format!("{word}\n")}),
        );
        assert_eq!(next(&mut socket)["text"], format!("got {word}\n"));
    }
    say(
        &mut socket,
        &json!({"op": "stdin", "run": "a", "end": true}),
    );
    assert_eq!(
        until_event(&mut socket, "result").last().unwrap()["result"]["status"],
        "ok"
    );
    say(
        &mut socket,
        &json!({"op": "run", "run": "b", "request": {"code": "print('go', flush=True)\nwhile True: pass"}}),
    );
    assert_eq!(next(&mut socket)["text"], "go\n");
    say(
        &mut socket,
        &json!({"op": "command", "run": "c", "request": {"shell": "echo beside"}}),
    );
    assert_eq!(next(&mut socket)["text"], "beside\n");
    assert_eq!(next(&mut socket)["run"], "c");
    say(&mut socket, &json!({"op": "interrupt"}));
    let last = until_event(&mut socket, "result");
    assert_eq!(last.last().unwrap()["result"]["status"], "killed");
}

#[test]
fn a_connection_that_broke_comes_back_to_its_run() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let mut socket = connect(&daemon, &sandbox, "");
    let code = "print('before', flush=True)\nx = ask()\nprint('after', x)\nx";
    say(
        &mut socket,
        &json!({"op": "run", "run": "a", "request": {"code": code, "tools": [{"name": "ask"}]}}),
    );
    // Output and calls come by different ways, so either may be first.
    let seen = next(&mut socket);
    drop(socket);
    let mut socket = connect(&daemon, &sandbox, &format!("?after={}", seen["seq"]));
    let second = next(&mut socket);
    assert_eq!(
        second["seq"].as_u64(),
        seen["seq"].as_u64().map(|seq| seq + 1)
    );
    let (output, call) = if seen["event"] == "stdout" {
        (seen, second)
    } else {
        (second, seen)
    };
    assert_eq!(
        (&output["text"], &call["event"]),
        (&json!("before\n"), &json!("tool_call"))
    );
    say(
        &mut socket,
        &json!({"op": "answer", "run": "a", "call": call["call"], "value": 7}),
    );
    assert_eq!(
        until_event(&mut socket, "result").last().unwrap()["result"]["value"],
        7
    );
    // Another one takes over; the first is told so.
    let mut other = connect(&daemon, &sandbox, "");
    let close = loop {
        match socket.read() {
            Ok(Message::Close(close)) => break close.unwrap(),
            Ok(_) => {}
            Err(error) => panic!("{error}"),
        }
    };
    assert!(close.reason.contains("took over"));
    say(
        &mut other,
        &json!({"op": "run", "run": "z", "request": {"code": "1"}}),
    );
    assert_eq!(
        until_event(&mut other, "result").last().unwrap()["run"],
        "z"
    );
}

#[test]
fn a_run_that_nobody_comes_back_to_is_ended() {
    let daemon = Daemon::with("[sandboxes]\nreconnect = '300ms'\n");
    let sandbox = daemon.sandbox(&json!({}));
    let mut socket = connect(&daemon, &sandbox, "");
    say(
        &mut socket,
        &json!({"op": "run", "run": "a", "request": {"code": "print('x', flush=True)\nimport time\nwhile True: time.sleep(.01)"}}),
    );
    next(&mut socket);
    drop(socket);
    until("it has been ended", || {
        daemon.get("/v1/runs?status=killed").ok()["runs"]
            .as_array()
            .unwrap()
            .len()
            == 1
    });
    until("it is at rest", || {
        daemon.get(&sandbox).ok()["busy"] == false
    });
}

#[test]
fn nonsense_is_answered_and_floods_are_bounded() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let mut socket = connect(&daemon, &sandbox, "");
    for text in [
        "",
        "{",
        "[]",
        "{\"op\": \"dance\"}",
        "{\"op\": \"run\"}",
        "[\"run\", \"r\", {\"code\": \"1\"}]",
        "{\"op\": \"run\", \"run\": \"r\", \"request\": [\"1\"]}",
        "{\"op\": \"run\", \"run\": \"\", \"request\": {\"code\": \"1\"}}",
        "{\"op\": \"run\", \"run\": \"r\", \"request\": {\"code\": \"\"}}",
        "{\"op\": \"stdin\", \"run\": \"none\"}",
        "{\"op\": \"interrupt\", \"run\": \"none\"}",
    ] {
        socket.send(Message::text(text)).unwrap();
        let told = next(&mut socket);
        let refused = text.contains("none");
        let event = if refused { "refused" } else { "error" };
        assert_eq!(told["event"], event, "{text}");
        assert!(told["time"].is_string(), "{told}");
        assert!(told["error"].get("request_id").is_none(), "{told}");
    }
    // More than is kept for a slow reader; all of it arrives in the end, in order.
    let code = "for i in range(8): print(str(i) * 1_000_000)";
    let sandbox = daemon.sandbox(&json!({"limits": {"output_bytes": "20m"}}));
    let mut socket = connect(&daemon, &sandbox, "");
    say(
        &mut socket,
        &json!({"op": "run", "run": "f", "request": {"code": code}}),
    );
    std::thread::sleep(std::time::Duration::from_millis(500));
    let events = until_event(&mut socket, "result");
    let total: usize = events
        .iter()
        .filter_map(|event| event["text"].as_str())
        .map(str::len)
        .sum();
    assert_eq!(total, 8 * 1_000_001);
    let seq: Vec<_> = events
        .iter()
        .map(|event| event["seq"].as_u64().unwrap())
        .collect();
    assert!(seq.windows(2).all(|two| two[1] == two[0] + 1));
}

#[test]
fn input_that_nobody_reads_is_bounded() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let mut socket = connect(&daemon, &sandbox, "");
    let code = "print('go', flush=True)\nask()\nimport sys\nprint(len(sys.stdin.read()))";
    let request = json!({"code": code, "tools": [{"name": "ask"}]});
    say(
        &mut socket,
        &json!({"op": "run", "run": "a", "live_stdin": true, "request": request}),
    );
    let call = until_event(&mut socket, "tool_call").pop().unwrap();
    let before = resident(&daemon);
    // Far more than there is room for: what does not fit is refused, and the rest is not lost.
    let piece = "x".repeat(4 << 20);
    let mut refused = 0;
    for _ in 0..40 {
        say(
            &mut socket,
            &json!({"op": "stdin", "run": "a", "data": piece}),
        );
    }
    say(
        &mut socket,
        &json!({"op": "stdin", "run": "a", "end": true}),
    );
    say(
        &mut socket,
        &json!({"op": "stdin", "run": "a", "data": "too late"}),
    );
    loop {
        let event = next(&mut socket);
        match event["error"]["code"].as_str() {
            Some("overloaded") => refused += 1,
            Some("invalid_request") => break,
            _ => assert_eq!(event["event"], "stdout", "{event}"),
        }
    }
    assert!(refused >= 37, "{refused}");
    let grown = resident(&daemon).saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes more");
    say(
        &mut socket,
        &json!({"op": "answer", "run": "a", "call": call["call"], "value": null}),
    );
    let result = until_event(&mut socket, "result").pop().unwrap();
    let taken = (40 - refused) * piece.len();
    let all: String = result["result"]["stdout"].as_str().unwrap().into();
    assert_eq!(all, format!("go\n{taken}\n"), "{result}");
}

#[test]
fn only_for_those_with_a_key_and_no_foreign_page() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let key = ("authorization", format!("Bearer {TOKEN}"));
    let protocol = (
        "sec-websocket-protocol",
        format!("belljar, belljar.key.{TOKEN}"),
    );
    let own = ("origin", format!("http://{}", daemon.address));
    let foreign = ("origin", "http://evil.com".to_owned());
    let status = |headers: &[(&'static str, String)]| {
        open(&daemon, &sandbox, "", headers).map_or_else(|status| status, |_| 101)
    };
    assert_eq!(status(&[]), 401);
    assert_eq!(status(std::slice::from_ref(&own)), 401);
    assert_eq!(status(&[key.clone(), foreign.clone()]), 403);
    assert_eq!(status(&[protocol.clone(), foreign]), 403);
    assert_eq!(status(std::slice::from_ref(&protocol)), 401);
    assert_eq!(status(&[protocol, own]), 101);
    assert_eq!(status(std::slice::from_ref(&key)), 101);
    let absent = "/v1/sandboxes/sbx_aaaqeayeaudaocajbifqydiob4";
    assert_eq!(open(&daemon, absent, "", &[key]).err(), Some(404));
    assert_eq!(daemon.get(&format!("{sandbox}/channel")).status, 400);
    // Deleted under it.
    let mut socket = connect(&daemon, &sandbox, "");
    daemon.delete(&sandbox);
    let reason = closed(&mut socket);
    assert!(reason.contains("deleted"), "{reason}");
}

/// A client that was on another channel, or before another daemon, has seen numbers that are yet to come here.
#[test]
fn a_number_that_is_yet_to_come_hides_nothing() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    for after in [1000, u64::MAX] {
        let mut socket = open(
            &daemon,
            &sandbox,
            &format!("?after={after}"),
            &[("authorization", format!("Bearer {TOKEN}"))],
        )
        .unwrap();
        let ready = next(&mut socket);
        assert_eq!(ready["complete"], false, "{ready}");
        assert!(ready["seq"].as_u64() < Some(after), "{ready}");
        say(
            &mut socket,
            &json!({"op": "run", "run": "a", "request": {"code": "6 * 7"}}),
        );
        let seen = until_event(&mut socket, "result");
        assert_eq!(seen.last().unwrap()["result"]["value"], 42, "{seen:?}");
    }
}

/// Whoever asked for a run waits for its end under its name.
#[test]
fn a_run_that_is_not_understood_is_refused_by_its_name() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let mut socket = connect(&daemon, &sandbox, "");
    for (message, name) in [
        (json!({"op": "run", "run": "a"}), "a"),
        (
            json!({"op": "run", "run": "b", "request": {"code": "1", "tools": ["add"]}}),
            "b",
        ),
        (
            json!({"op": "command", "run": "c", "request": {"shel": "ls"}}),
            "c",
        ),
        // No end of that run.
        (json!({"op": "answer", "run": "d", "call": -1}), ""),
        (json!({"op": "run", "run": 1}), ""),
    ] {
        say(&mut socket, &message);
        let refused = next(&mut socket);
        assert_eq!(
            (&refused["event"], &refused["run"]),
            (&json!("error"), &json!(name)),
            "{refused}"
        );
    }
}
