//! A daemon's settings, rules that change, and clients that go too far.

use std::time::Instant;

use serde_json::{Value, json};

use super::{code, hello};
use crate::suite::backend;
use crate::suite::daemon::{Daemon, HANG, TOKEN, until};
use crate::suite::harness::{Ended, belljar};
use crate::suite::servers::{Ear, Names, Reply, Web};

pub fn with_network(names: &Names) -> Daemon {
    let settings = format!(
        "[network]\nprivate = ['127.0.0.1']\nresolver = '{}'\n",
        names.address
    );
    Daemon::with(&settings)
}

#[test]
fn rules_change_while_the_sandbox_lives() {
    let (web, names) = (hello(), Names::start(&[("site.test", &["127.0.0.1"])]));
    let ear = Ear::start();
    let (port, quiet) = (web.port, ear.port);
    let daemon = with_network(&names);
    let made = daemon.post("/v1/sandboxes", &json!({"network": []})).ok();
    let path = format!("/v1/sandboxes/{}", made["id"].as_str().unwrap());
    assert_eq!(made["network"], json!([]));
    let run = |text: &str| {
        let body = json!({"code": text});
        daemon.post(&format!("{path}/runs"), &body).ok()
    };
    run(&code(""));
    let page = format!("page('http://site.test:{port}/')");
    assert!(run(&page)["value"].as_str().unwrap().starts_with("403"));
    let open = json!({"network": [format!("site.test:{port}"), format!("site.test:{quiet}"), format!("127.0.0.1:{port}"), format!("127.0.0.1:{quiet}")]});
    let change = |body: &Value| daemon.ask_as(TOKEN, "PATCH", &path, body.to_string().as_bytes());
    assert_eq!(change(&open).ok()["network"], open["network"]);
    let result = run(&page);
    assert_eq!(result["value"], "hello from /", "{result:#}");
    assert_eq!(result["connections"].as_array().unwrap().len(), 1);
    run(&format!(
        "link, status = tunnel('site.test:{quiet}'); link.sendall(b'one'); link.settimeout(20)"
    ));
    change(&json!({"network": []})).ok();
    // What was open is cut, not only what comes after.
    let result = run("attempt(lambda: link.recv(1)) in (b'', 'ConnectionResetError')");
    assert_eq!(result["value"], true, "{result:#}");
    assert!(run(&page)["value"].as_str().unwrap().starts_with("403"));
    let list = daemon.get(&format!("{path}/connections")).ok();
    let list = list["connections"].as_array().unwrap();
    assert_eq!(list[2]["reason"], "the rules were changed", "{list:#?}");
    assert_eq!(list.len(), 4);
    for bad in [
        json!({"network": ["a b"]}),
        json!({"net": 1}),
        json!({"network": {"allow": "all", "bytes": 0}}),
    ] {
        assert_eq!(change(&bad).status, 400, "{bad}");
    }
    let none = daemon.post("/v1/sandboxes", &json!({})).ok();
    let path = format!("/v1/sandboxes/{}", none["id"].as_str().unwrap());
    let refused = daemon.ask_as(TOKEN, "PATCH", &path, open.to_string().as_bytes());
    assert_eq!((refused.status, refused.code().as_str()), (409, "conflict"));
    let metrics = daemon.get("/metrics").text();
    assert!(
        metrics.contains("belljar_egress_connections_total{outcome=\"refused\"} "),
        "{metrics}"
    );
    assert!(
        !metrics.contains("belljar_egress_bytes_total{direction=\"received\"} 0"),
        "{metrics}"
    );
}

#[test]
fn what_was_reached_cannot_be_erased() {
    let (web, names) = (hello(), Names::start(&[("site.test", &["127.0.0.1"])]));
    let port = web.port;
    let daemon = with_network(&names);
    let rules = json!({"allow": [format!("site.test:{port}"), format!("127.0.0.1:{port}")], "connections": 4});
    let made = daemon
        .post("/v1/sandboxes", &json!({"network": rules}))
        .ok();
    let path = format!("/v1/sandboxes/{}", made["id"].as_str().unwrap());
    let flood = format!(
        r#"
page("http://site.test:{port}/taken")
for n in range(1, 1101): tunnel(f"other.test:{{n}}")[0].close()
for n in range(20): tunnel("other.test:1100")[0].close()
link = socket.create_connection(PROXY); link.sendall(b"nonsense\r\n\r\n"); link.recv(100); link.close()
links = [tunnel("site.test:{port}") for _ in range(6)]
"#
    );
    let body = json!({"code": code(&flood)});
    let result = daemon.post(&format!("{path}/runs"), &body).ok();
    let list = daemon.get(&format!("{path}/connections")).ok();
    for told in [&result, &list] {
        let all = told["connections"].as_array().unwrap();
        assert_eq!(
            (&all[0]["allowed"], &all[0]["host"]),
            (&json!(true), &json!("site.test")),
            "{}",
            all[0]
        );
        let of = |word: &str| {
            let fits = |one: &&Value| one["reason"].as_str().is_some_and(|why| why.contains(word));
            let found = all.iter().find(fits);
            found.unwrap_or_else(|| panic!("{word}: {result:#}"))["count"].clone()
        };
        assert_eq!(of("other.test:1100"), 21);
        assert_eq!(of("no request of HTTP"), 1);
        assert_eq!(of("as many connections"), 2);
        assert_eq!(all.len(), 1000 + 5);
        assert_eq!(told["connections_omitted"], 102, "{told:#}");
    }
}

#[test]
fn ports_come_with_a_change_of_rules() {
    let web = hello();
    let port = web.port;
    let daemon = Daemon::with("[network]\nprivate = ['127.0.0.1']\n");
    let made = daemon.post("/v1/sandboxes", &json!({"network": []})).ok();
    let path = format!("/v1/sandboxes/{}", made["id"].as_str().unwrap());
    let change = |body: &Value| daemon.ask_as(TOKEN, "PATCH", &path, body.to_string().as_bytes());
    let run = |text: &str| {
        let body = json!({"code": text});
        daemon.post(&format!("{path}/runs"), &body).ok()
    };
    run(&code(""));
    let open = json!({"network": [format!("localhost:{port}"), format!("127.0.0.1:{port}")]});
    for _ in 0..2 {
        change(&open).ok();
        // As ordinary clients do it: `no_proxy` is for this host.
        for host in ["localhost", "127.0.0.1"] {
            let result = run(&format!("page('http://{host}:{port}/')"));
            assert_eq!(result["value"], "hello from /", "{result:#}");
        }
    }
    // As it was when it was new.
    daemon.post(&format!("{path}/reset"), &json!({})).ok();
    assert_eq!(daemon.get(&path).ok()["network"], json!([]));
    let page = code(&format!("page('http://localhost:{port}/')"));
    let result = run(&page);
    assert_eq!(result["status"], "failed", "{result:#}");
    change(&open).ok();
    let result = run(&page);
    assert_eq!(result["value"], "hello from /", "{result:#}");
    let refused = change(&json!({"network": {"allow": ["a.test"], "intercept": true}}));
    assert_eq!(refused.status, 409, "{}", refused.text());
    assert!(refused.text().contains("intercept"), "{}", refused.text());
    assert_eq!(daemon.get(&path).ok()["network"], open["network"]);
}

#[test]
fn variables_come_with_a_change_of_rules() {
    let daemon = Daemon::with("[packages]\npython = 'http://index.test/simple'\n");
    for (language, first, code) in [
        (
            "python",
            "import os; os.environ['MINE'] = 'kept'",
            "print(*[os.environ.get(x) for x in ('MINE', 'LATE', 'PIP_INDEX_URL')])",
        ),
        (
            "javascript",
            "process.env.MINE = 'kept'",
            "console.log(...['MINE', 'LATE', 'PIP_INDEX_URL'].map((x) => process.env[x]))",
        ),
        (
            "bash",
            "export MINE=kept",
            "echo $(printenv MINE LATE PIP_INDEX_URL)",
        ),
    ] {
        // The small image of containers has none of its own.
        if backend::is_docker() && language == "javascript" {
            continue;
        }
        let path = daemon.sandbox(&json!({"language": language, "network": []}));
        let run = |text: &str| {
            let body = json!({"code": text});
            daemon.post(&format!("{path}/runs"), &body).ok()
        };
        run(first);
        let rules =
            json!([{"host": "a.test", "headers": {"X": "hush"}, "env": "LATE"}, "index.test"]);
        let change = json!({"network": rules}).to_string();
        daemon.ask_as(TOKEN, "PATCH", &path, change.as_bytes()).ok();
        let result = run(code);
        let wanted = "kept belljar-placeholder http://index.test/simple\n";
        assert_eq!(result["stdout"], wanted, "{result:#}");
    }
}

#[test]
fn settings_say_which_private_addresses_can_be_named() {
    let (web, names) = (hello(), Names::start(&[]));
    let port = web.port;
    let daemon = Daemon::with(&format!("[network]\nresolver = '{}'\n", names.address));
    let text = code(&format!(
        "print(tunnel('127.0.0.1:{port}')[1], tunnel('localhost:{port}')[1])"
    ));
    let body = json!({"code": text, "network": [format!("127.0.0.1:{port}"), format!("localhost:{port}")]});
    let result = daemon.post("/v1/runs", &body).ok();
    assert_eq!(
        result["stdout"].as_str().unwrap().matches("403").count(),
        2,
        "{result:#}"
    );
    let reason = result["connections"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("network.private"), "{reason}");
}

#[test]
fn the_host_listens_for_a_port_inside() {
    use std::io::{Read, Write};
    let daemon = Daemon::with("[network]\npublish = ['127.0.0.1']\n");
    let refused = |body: &Value, word: &str| {
        let answer = daemon.post("/v1/sandboxes", body);
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(answer.text().contains(word), "{}", answer.text());
    };
    refused(
        &json!({"publish": ["0.0.0.0:0:8000"], "network": []}),
        "network.publish",
    );
    refused(
        &json!({"publish": ["127.0.0.1:0:8000"]}),
        "without a network",
    );
    let made = daemon
        .post(
            "/v1/sandboxes",
            &json!({"publish": ["127.0.0.1:0:8000"], "network": []}),
        )
        .ok();
    let path = format!("/v1/sandboxes/{}", made["id"].as_str().unwrap());
    let published = made["published"][0].as_str().unwrap().to_owned();
    let address = published.strip_suffix(":8000").unwrap().to_owned();
    let server = "import socket, threading\nlistener = socket.create_server(('127.0.0.1', 8000))\ndef serve():\n  while True:\n    link, _ = listener.accept()\n    link.sendall(link.recv(100).upper()); link.close()\nthreading.Thread(target=serve, daemon=True).start()";
    let asked = || {
        let mut link = std::net::TcpStream::connect(&address).unwrap();
        link.set_read_timeout(Some(HANG)).unwrap();
        link.write_all(b"hello").unwrap();
        let mut answer = String::new();
        let _ = link.read_to_string(&mut answer);
        answer
    };
    assert_eq!(asked(), "", "nobody listens yet");
    let run = || {
        daemon
            .post(&format!("{path}/runs"), &json!({"code": server}))
            .ok()
    };
    run();
    assert_eq!(asked(), "HELLO");
    // The same port leads to what takes the sandbox's place.
    daemon.post(&format!("{path}/reset"), &json!({})).ok();
    assert_eq!(asked(), "");
    run();
    assert_eq!(asked(), "HELLO");
    daemon.delete(&path);
    until("the end of the port", || {
        std::net::TcpStream::connect(&address).is_err()
    });
}

#[test]
fn caps_hold() {
    let names = Names::start(&[("site.test", &["127.0.0.1"])]);
    let web = Web::start(|_| Reply::ok(vec![b'x'; 400_000]));
    let ear = Ear::start();
    let daemon = with_network(&names);
    let rules = json!([
        format!("site.test:{}", web.port),
        format!("site.test:{}", ear.port),
        format!("127.0.0.1:{}", web.port),
        format!("127.0.0.1:{}", ear.port)
    ]);
    let run = |caps: &Value, text: &str| {
        let mut network = caps.clone();
        network["allow"] = rules.clone();
        let body = json!({"code": code(text), "network": network});
        daemon.post("/v1/runs", &body).ok()
    };
    let many = format!(
        "links = [tunnel('site.test:{}') for _ in range(6)]; print([status.split()[1] for _, status in links])",
        ear.port
    );
    let result = run(&json!({"connections": 4}), &many);
    assert_eq!(
        result["stdout"], "['200', '200', '200', '200', '503', '503']\n",
        "{result:#}"
    );
    let load = format!(
        "print(len(attempt(lambda: page('http://site.test:{}/')) or ''))",
        web.port
    );
    let time = |result: &Value| result["connections"][0]["duration_ms"].as_f64().unwrap();
    // The machine may be busy with other things, but hardly thrice.
    let fast = (0..3).map(|_| {
        let whole = run(&json!({"bytes": 1_000_000}), &load);
        assert_eq!(whole["stdout"], "400000\n", "{whole:#}");
        time(&whole)
    });
    let fast = fast.fold(f64::INFINITY, f64::min);
    let cut = run(&json!({"bytes": 100_000}), &load);
    assert_ne!(cut["stdout"], "400000\n", "{cut:#}");
    let reason = cut["connections"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("all the bytes"), "{reason}");
    let slow = run(&json!({"bytes_per_second": 400_000}), &load);
    assert_eq!(slow["stdout"], "400000\n", "{slow:#}");
    assert!(time(&slow) > 700.0 && time(&slow) > fast, "{fast} {slow:#}");
}

#[test]
fn a_flood_of_half_open_tunnels_harms_nobody() {
    let (web, names) = (hello(), Names::start(&[("site.test", &["127.0.0.1"])]));
    let port = web.port;
    let daemon = with_network(&names);
    let made = |network: Value| {
        let body = json!({"network": network, "limits": {"open_files": 12_000}});
        let id = daemon.post("/v1/sandboxes", &body).ok()["id"].clone();
        format!("/v1/sandboxes/{}/runs", id.as_str().unwrap())
    };
    let rules = json!([format!("site.test:{port}"), format!("127.0.0.1:{port}")]);
    let (hostile, neighbour) = (made(rules.clone()), made(rules));
    let flood = r#"
import time
links, end = [], time.monotonic() + 15
for n in range(10000):
    if time.monotonic() > end: break  # on a machine that is busy with other things
    link = socket.socket(); link.settimeout(5)
    try: link.connect(PROXY)
    except OSError: continue
    if n % 2: link.send(b"CONNECT site.test")
    links.append(link)
len(links) > 300
"#;
    let result = daemon.post(&hostile, &json!({"code": code(flood)})).ok();
    assert_eq!(result["value"], true, "{result:#}");
    let began = Instant::now();
    let page = code(&format!("print(page('http://site.test:{port}/'))"));
    let result = daemon.post(&neighbour, &json!({"code": page})).ok();
    assert_eq!(result["stdout"], "hello from /\n", "{result:#}");
    assert!(began.elapsed() < HANG);
    let open = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid()))
        .unwrap()
        .count();
    assert!(open < 1500, "{open} descriptors");
}

#[test]
fn nobody_takes_the_files_of_the_daemon() {
    let (web, names) = (hello(), Names::start(&[("site.test", &["127.0.0.1"])]));
    let ear = Ear::start();
    let daemon = with_network(&names);
    let pid = daemon.pid().to_string();
    let bound = std::process::Command::new("prlimit")
        .args(["--pid", &pid, "--nofile=1024:1024"])
        .status();
    assert!(
        bound.expect("prlimit: install util-linux").success(),
        "prlimit"
    );
    let rules = [web.port, ear.port].map(|port| format!("site.test:{port} 127.0.0.1:{port}"));
    let rules: Vec<_> = rules.iter().flat_map(|pair| pair.split(' ')).collect();
    let made = || {
        let network = json!({"allow": rules, "connections": 4096});
        let id = daemon
            .post("/v1/sandboxes", &json!({"network": network}))
            .ok()["id"]
            .clone();
        format!("/v1/sandboxes/{}/runs", id.as_str().unwrap())
    };
    let flood = code(&format!(
        r#"
links = [tunnel("site.test:{port}") for _ in range(200)]
import time; time.sleep(3)  # until those before have been told
refused = socket.create_connection(PROXY); refused.sendall(b"\5\1\0")
[sum(" 200 " in status for _, status in links), sum(" 503 " in status for _, status in links), refused.recv(2).hex()]
"#,
        port = ear.port
    ));
    let hostile = [made(), made(), made()];
    for one in &hostile {
        let result = daemon.post(one, &json!({"code": flood})).ok();
        let count = |index: usize| result["value"][index].as_u64().unwrap();
        // A half of what is there, then a half of what is left.
        assert!((15..=64).contains(&count(0)), "{result:#}");
        assert_eq!(count(0) + count(1), 200, "{result:#}");
        assert_eq!(result["value"][2], "05ff");
        let tried = result["connections"].as_array().unwrap();
        let told = tried.iter().find(|one| one["port"] == 3128).unwrap();
        assert!(
            told["reason"].as_str().unwrap().contains("together"),
            "{told}"
        );
        assert!(told["count"].as_u64().unwrap() > 100, "{told}");
    }
    let page = code(&format!("print(page('http://site.test:{}/'))", web.port));
    let result = daemon.post(&made(), &json!({"code": page})).ok();
    assert_eq!(result["stdout"], "hello from /\n", "{result:#}");
}

#[test]
fn what_cannot_be_had_together() {
    let ended: Ended = belljar()
        .args(["run", "--network", "all", "--weaken", "netns", "-c", "1"])
        .output()
        .unwrap()
        .into();
    assert_eq!(ended.code, 125, "{ended:?}");
    assert!(ended.stderr.contains("network namespace"), "{ended:?}");
    for bad in ["http://site.test", "site.test:0", "10.0.0.1/8", "*", "a,,b"] {
        let ended: Ended = belljar()
            .args(["run", "--network", bad, "-c", "1"])
            .output()
            .unwrap()
            .into();
        assert_eq!(ended.code, 125, "{bad} {ended:?}");
        assert!(
            ended.stderr.contains("network") && ended.stdout.is_empty(),
            "{bad} {ended:?}"
        );
    }
}
