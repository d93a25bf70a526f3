//! What is told of what was tried: names that were looked up, and what happens between two runs.

use std::time::Duration;

use serde_json::{Value, json};

use super::served::with_network;
use super::{code, hello, json_of, with_names};
use crate::suite::backend;
use crate::suite::daemon::{Daemon, until};
use crate::suite::servers::{Ear, Names};

fn list(result: &Value) -> Vec<Value> {
    result["connections"].as_array().unwrap().clone()
}

fn count(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap()
}

#[test]
fn names_that_were_looked_up_are_listed() {
    let names = Names::start(&[("a.site.test", &["127.0.0.1"])]);
    let text = r#"
for _ in range(5): print(attempt(lambda: socket.gethostbyname("a.site.test")))
for secret in ("hush", "hush", "quiet"): print(attempt(lambda: socket.gethostbyname(f"{secret}.site.test")))
"#;
    let result = json_of(&mut with_names(&names), "*.site.test", text);
    let told = list(&result);
    let told: Vec<_> = told
        .iter()
        .map(|one| {
            assert_eq!((&one["port"], &one["address"]), (&json!(53), &Value::Null));
            assert!(
                count(one, "bytes_sent") >= count(one, "count") * 29,
                "{one}"
            );
            assert!(count(one, "bytes_received") >= count(one, "count") * 29);
            (
                one["host"].as_str().unwrap(),
                count(one, "count"),
                one["allowed"] == true,
                one["reason"].as_str(),
            )
        })
        .collect();
    let none = Some("there is no such name");
    assert_eq!(
        told,
        [
            ("a.site.test", 5, true, None),
            ("hush.site.test", 2, true, none),
            ("quiet.site.test", 1, true, none)
        ],
        "{result:#}"
    );
}

#[test]
fn caps_hold_for_names() {
    let (names, ear) = (Names::start(&[("site.test", &["127.0.0.1"])]), Ear::start());
    let port = ear.port;
    let daemon = with_network(&names);
    let run = |caps: &Value, text: &str| {
        let mut network = caps.clone();
        network["allow"] = json!([
            "*.site.test",
            format!("site.test:{port}"),
            format!("127.0.0.1:{port}")
        ]);
        let body = json!({"code": code(text), "network": network});
        daemon.post("/v1/runs", &body).ok()
    };
    let reasons = |result: &Value| {
        let all = list(result);
        let reasons = all.iter().filter_map(|one| one["reason"].as_str());
        reasons.map(str::to_owned).collect::<Vec<_>>()
    };
    // What is told to whoever answers for the name, by asking or by naming it to the proxy.
    let ask = "for n in range(60): attempt(lambda: socket.gethostbyname(f'{n}.site.test'))";
    let name = "for n in range(60): tunnel(f'{n}.site.test:443')";
    for text in [ask, name] {
        let before = names.asked().len();
        let result = run(&json!({"bytes": 1000}), text);
        let asked = names.asked().len() - before;
        assert!((5..40).contains(&asked), "{asked} {result:#}");
        let spent = |reason: &String| reason.contains("all the bytes");
        assert!(reasons(&result).iter().any(spent), "{result:#}");
    }
    // A question is a connection for as long as it is open.
    let text = format!(
        "link, status = tunnel('site.test:{port}'); print(status.split()[1], attempt(lambda: socket.gethostbyname('b.site.test')))\n\
         link.close(); import time; time.sleep(1); print(attempt(lambda: socket.gethostbyname('site.test')))"
    );
    let result = run(&json!({"connections": 1}), &text);
    let stdout = result["stdout"].as_str().unwrap();
    assert!(stdout.starts_with("200 gaierror\n127."), "{result:#}");
    let reason = "the sandbox has as many connections as it may";
    assert_eq!(reasons(&result), [reason], "{result:#}");
}

#[test]
fn what_happens_between_two_runs_is_told_by_the_next() {
    let (web, names) = (hello(), Names::start(&[("site.test", &["127.0.0.1"])]));
    let ear = Ear::start();
    let daemon = with_network(&names);
    let both = [web.port, ear.port];
    let rules = both.map(|port| [format!("site.test:{port}"), format!("127.0.0.1:{port}")]);
    let path = daemon.sandbox(&json!({"network": rules.concat()}));
    let post = |what: &str, body: Value| daemon.post(&format!("{path}/{what}"), &body).ok();
    let run = |text: &str| list(&post("runs", json!({"code": text})));
    assert!(run(&code("import threading, time")).is_empty());
    let (page, quiet) = (web.port, ear.port);
    // A thread that outlives its run, and a connection that is kept.
    let told = run(&format!(
        "go = threading.Event()\n\
         def later():\n  while go.wait(): go.clear(); page('http://site.test:{page}/later')\n\
         threading.Thread(target=later, daemon=True).start()\n\
         link, status = tunnel('site.test:{quiet}'); link.sendall(b'one')"
    ));
    assert_eq!(told.len(), 1, "{told:#?}");
    until("what was sent is counted", || {
        let all = daemon.get(&format!("{path}/connections")).ok();
        count(&all["connections"][0], "bytes_sent") == 3
    });
    run("1");
    let told = run("threading.Timer(0.3, go.set).start()");
    assert!(told.is_empty(), "{told:#?}");
    until("the thread has asked", || web.asked().len() == 1);
    until("all of it is over", || {
        let all = daemon.get(&format!("{path}/connections")).ok();
        count(&all["connections"][1], "bytes_received") > 0
    });
    let told = run("link.sendall(b'more'); time.sleep(0.3)");
    let told: Vec<_> = told
        .iter()
        .map(|one| (count(one, "port"), count(one, "bytes_sent")))
        .collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!(told[0], (u64::from(quiet), 4));
    assert_eq!(told[1].0, u64::from(page));
    // Told once, by whatever comes next.
    assert!(run("1").is_empty());
    run("threading.Timer(0.3, go.set).start()");
    until("the thread has asked again", || web.asked().len() == 2);
    std::thread::sleep(Duration::from_millis(300));
    let told = list(&post("commands", json!({"argv": ["true"]})));
    assert_eq!(told.len(), 1, "{told:#?}");
    // A reset cuts what is open, unless its program ends it first; and what was before is still there.
    post("reset", json!({}));
    for one in run("1") {
        assert_eq!(one["reason"], "the sandbox has ended");
        assert_eq!(one["allowed"], true);
    }
    let all = daemon.get(&format!("{path}/connections")).ok();
    assert_eq!(list(&all).len(), 3, "{all:#}");
    // What nobody is told is in the log of the daemon.
    run(&code(&format!(
        "import threading\nthreading.Timer(0.3, lambda: page('http://site.test:{page}/last')).start()"
    )));
    until("the last one", || web.asked().len() == 3);
    std::thread::sleep(Duration::from_millis(300));
    daemon.delete(&path);
    let id = path.rsplit('/').next().unwrap();
    until("the log has it", || {
        let log = daemon.log();
        log.lines()
            .any(|line| line.contains(id) && line.contains("none") && line.contains("site.test"))
    });
}

#[test]
fn what_was_sent_before_the_end_arrives_and_is_told() {
    const BYTES: usize = 300_000;
    let ear = Ear::start();
    let port = ear.port;
    let rule = format!("localhost:{port}");
    let daemon = Daemon::with("[network]\nprivate = ['127.0.0.1']\n[pool]\npython = 1\n");
    // Left open or closed: the program is gone before anyone has read.
    for (round, end) in ["link.close()", "pass", "import os; os._exit(0)"]
        .iter()
        .enumerate()
    {
        let text = code(&format!(
            "link = socket.create_connection(('localhost', {port}))\nlink.sendall(bytes({BYTES}))\n{end}"
        ));
        let body = json!({"code": text, "network": [rule]});
        let results = [
            json_of(
                &mut backend::run(),
                &rule,
                &format!(
                    "link = socket.create_connection(('localhost', {port}))\nlink.sendall(bytes({BYTES}))\n{end}"
                ),
            ),
            daemon.post("/v1/runs", &body).ok(),
        ];
        for result in &results {
            let told = list(result);
            assert_eq!(told.len(), 1, "{result:#}");
            assert_eq!(count(&told[0], "bytes_sent"), BYTES as u64, "{result:#}");
        }
        until("all of it has arrived", || {
            let heard = ear.heard();
            let whole = heard.iter().filter(|heard| heard.len() == BYTES);
            whole.count() == 2 * (round + 1)
        });
    }
}
