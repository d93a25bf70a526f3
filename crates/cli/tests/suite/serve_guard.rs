//! Who may speak to the daemon, and what the daemon says about itself.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use serde_json::{Value, json};

use super::daemon::{Daemon, TOKEN};
use super::harness::{need_root, need_tool};

#[test]
fn without_a_key_there_is_nothing() {
    let daemon = Daemon::start();
    let api = daemon.get("/openapi.json").ok();
    let open = ["/healthz", "/readyz"];
    for (path, methods) in api["paths"].as_object().unwrap() {
        let real = path
            .replace("{id}", "sbx_aaaqeayeaudaocajbifqydiob4")
            .replace("{path}", "x");
        for method in methods.as_object().unwrap().keys() {
            let method = method.to_uppercase();
            if open.contains(&path.as_str()) {
                assert_eq!(daemon.raw(&method, &real, &[], b"").status, 200, "{path}");
                continue;
            }
            for header in [
                "",
                "Bearer",
                "Bearer x",
                "Bearer ",
                "Basic eDp5",
                TOKEN,
                &format!("Bearer {TOKEN}x"),
            ] {
                let answer = daemon.raw(&method, &real, &[("Authorization", header)], b"");
                assert_eq!(
                    (answer.status, answer.code().as_str()),
                    (401, "unauthorized"),
                    "{method} {path} {header}"
                );
                assert_eq!(answer.headers["www-authenticate"], "Bearer");
            }
        }
    }
    assert_eq!(
        daemon
            .raw("GET", &format!("/v1/runs?token={TOKEN}"), &[], b"")
            .status,
        401
    );
    assert!(!daemon.log().contains(TOKEN));
}

#[test]
fn pages_of_others_and_names_of_others_get_nothing() {
    let daemon = Daemon::start();
    let number = daemon.address.rsplit(':').next().unwrap().to_owned();
    let bearer = format!("Bearer {TOKEN}");
    let run = json!({"code": "print(1)"}).to_string();
    let post = |headers: &[(&str, &str)]| {
        let mut all = vec![("Authorization", bearer.as_str())];
        all.extend_from_slice(headers);
        daemon.raw("POST", "/v1/runs", &all, run.as_bytes()).status
    };
    let json_type = ("Content-Type", "application/json");
    // A browser sends these without asking first.
    for simple in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "",
    ] {
        assert_eq!(post(&[("Content-Type", simple)]), 415, "{simple}");
    }
    for origin in [
        "http://evil.com",
        "null",
        "https://127.0.0.1.evil.com",
        &format!("http://evil.com:{number}"),
    ] {
        assert_eq!(post(&[json_type, ("Origin", origin)]), 403, "{origin}");
    }
    assert_eq!(
        post(&[json_type, ("Origin", &format!("http://{}", daemon.address))]),
        200
    );
    for host in [
        "evil.com",
        &format!("evil.com:{number}"),
        "127.evil.com",
        "127.0.0.1.nip.io",
        "",
    ] {
        assert_eq!(post(&[json_type, ("Host", host)]), 403, "{host}");
    }
    for host in [
        "localhost",
        &format!("localhost:{number}"),
        "127.0.0.1",
        "[::1]:1",
    ] {
        assert_eq!(post(&[json_type, ("Host", host)]), 200, "{host}");
    }
    assert_eq!(
        daemon
            .raw("GET", "/healthz", &[("Host", "evil.com")], b"")
            .status,
        403
    );
    let answer = daemon.raw(
        "OPTIONS",
        "/v1/runs",
        &[
            ("Origin", "http://evil.com"),
            ("Access-Control-Request-Method", "POST"),
        ],
        b"",
    );
    assert!(
        answer
            .headers
            .keys()
            .all(|name| !name.starts_with("access-control")),
        "{answer:?}"
    );
    assert_eq!(answer.status, 403);
}

#[test]
fn pages_that_are_listed_may_call_it() {
    let page = "https://page.example.org";
    let daemon = Daemon::with(&format!("origins = ['{page}']\n"));
    let asks = |origin: &str, path: &str| {
        let headers = [
            ("Origin", origin),
            ("Access-Control-Request-Method", "PUT"),
            (
                "Access-Control-Request-Headers",
                "authorization,content-type",
            ),
        ];
        daemon.raw("OPTIONS", path, &headers, b"")
    };
    for path in [
        "/v1/runs",
        "/healthz",
        "/v1/sandboxes/sbx_aaaqeayeaudaocajbifqydiob4/files/a",
    ] {
        let answer = asks(page, path);
        assert_eq!(answer.status, 204, "{path} {}", answer.text());
        for (name, value) in [
            ("access-control-allow-origin", page),
            (
                "access-control-allow-methods",
                "GET, POST, PUT, PATCH, DELETE",
            ),
            (
                "access-control-allow-headers",
                "authorization, content-type, range",
            ),
            ("access-control-max-age", "3600"),
            ("vary", "Origin"),
        ] {
            assert_eq!(answer.headers[name], value, "{path} {name}");
        }
    }
    let others = asks("https://other.example.org", "/v1/runs");
    assert_eq!(others.status, 403);
    let bearer = format!("Bearer {TOKEN}");
    let run = |key: &str, origin: &str| {
        let headers = [
            ("Authorization", key),
            ("Content-Type", "application/json"),
            ("Origin", origin),
        ];
        daemon.raw("POST", "/v1/runs", &headers, br#"{"code": "1"}"#)
    };
    // A key is needed all the same, and the page may know that it is.
    for (answer, status) in [
        (run(&bearer, page), 200),
        (run("", page), 401),
        (run(&bearer, "https://other.example.org"), 403),
    ] {
        assert_eq!(answer.status, status);
        let seen = answer.headers.get("access-control-allow-origin");
        assert_eq!(seen.map(String::as_str), (status != 403).then_some(page));
        let exposed = answer.headers.get("access-control-expose-headers");
        let exposed = exposed.map(String::as_str);
        let all = "x-request-id, retry-after, content-range";
        assert_eq!(exposed, (status != 403).then_some(all));
        assert_eq!(answer.headers["vary"], "Origin");
    }
    // Who asks by another name than ours is not answered.
    let headers = [
        ("Host", "evil.com"),
        ("Origin", page),
        ("Access-Control-Request-Method", "POST"),
    ];
    let answer = daemon.raw("OPTIONS", "/v1/runs", &headers, b"");
    assert_eq!(answer.status, 403);
}

#[test]
fn the_unix_socket_is_for_its_owner() {
    need_root("to become somebody else");
    need_tool("setpriv", "util-linux");
    let daemon = Daemon::start();
    assert_eq!(fs::metadata(daemon.socket()).unwrap().mode() & 0o777, 0o600);
    for file in ["history.sqlite", "history.sqlite-wal"] {
        let path = daemon.state.path().join(file);
        assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o600, "{file}");
    }
    assert_eq!(daemon.over_unix("GET", "/v1/runs", b"").status, 200);
    let made = daemon.over_unix("POST", "/v1/runs", br#"{"code": "print(2)"}"#);
    assert_eq!(made.ok()["stdout"], "2\n");
    // Even if somebody opens the door, the kernel says who comes in.
    for path in [daemon.state.path().to_owned(), daemon.socket()] {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    }
    let script = format!(
        "import socket; s = socket.socket(socket.AF_UNIX); s.connect('{}'); s.sendall(b'GET /healthz HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n'); print(s.recv(100))",
        daemon.socket().display()
    );
    let output = Command::new("setpriv")
        .args([
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
            "/usr/bin/python3",
            "-c",
            &script,
        ])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("b''") || said.contains("BrokenPipe") || said.contains("ConnectionReset"),
        "{said}"
    );
}

#[test]
fn ids_are_ids() {
    let daemon = Daemon::start();
    for id in [
        "..%2f..%2fx",
        "a%2fb",
        "%00",
        "-rf",
        "sbx_",
        &"x".repeat(300),
        "sbx_%C3%A9",
        "%ff",
        "sbx_AAAQEAYEAUDAOCAJBIFQYDIOB4",
    ] {
        for path in [
            format!("/v1/sandboxes/{id}"),
            format!("/v1/runs/{id}"),
            format!("/v1/sandboxes/{id}/files/x"),
        ] {
            let answer = daemon.get(&path);
            // What is no text is no address either; all else is not there.
            let status = if id == "%ff" { 400 } else { 404 };
            assert_eq!(answer.status, status, "{path} {}", answer.text());
        }
    }
    for (method, path) in [
        ("GET", "/v1/none"),
        ("GET", "/v2/runs"),
        ("GET", "//v1/runs"),
        ("GET", "/v1/sandboxes//files"),
    ] {
        let answer = daemon.ask_as(TOKEN, method, path, b"");
        assert!(
            [400, 404].contains(&answer.status),
            "{path} {}",
            answer.status
        );
        assert!(!answer.code().is_empty());
    }
    let answer = daemon.ask_as(TOKEN, "PATCH", "/v1/runs", b"");
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (405, "method_not_allowed")
    );
    assert_eq!(answer.headers["allow"].replace(' ', ""), "GET,HEAD,POST");
    let message = answer.json()["error"]["message"].to_string();
    assert!(message.contains("use GET, HEAD, POST"), "{message}");
}

#[test]
fn it_says_how_it_is() {
    let daemon = Daemon::start();
    assert_eq!(daemon.get("/readyz").ok()["ok"], true);
    daemon.run(&json!({"code": "print(1)"}));
    let metrics = daemon.get("/metrics");
    assert!(metrics.headers["content-type"].starts_with("application/openmetrics-text"));
    for line in [
        "belljar_runs_total{status=\"ok\",language=\"python\"} 1",
        "belljar_stage_seconds_count{stage=\"queue\"} 1",
        "belljar_stage_seconds_count{stage=\"start\"} 1",
        "belljar_stage_seconds_count{stage=\"run\"} 1",
        "belljar_requests_total{method=\"POST\",route=\"/v1/runs\",status=\"200\"} 1",
        "belljar_running 0",
    ] {
        assert!(metrics.text().contains(line), "{line}\n{}", metrics.text());
    }
    let runtimes = daemon.get("/v1/runtimes").ok();
    assert!(
        runtimes
            .as_array()
            .unwrap()
            .iter()
            .any(|row| row["name"] == "python" && row["ok"] == true)
    );
    assert_eq!(daemon.get("/v1/doctor").ok()["ok"], true);
    let lines: Vec<Value> = daemon
        .log()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(lines.iter().any(|line| line["route"] == "/v1/runs"
        && line["status"] == 200
        && line["request_id"].is_string()));
}

#[test]
fn every_route_is_described_and_every_description_is_a_route() {
    let daemon = Daemon::start();
    let api = daemon.get("/openapi.json").ok();
    let contract = [
        ("/v1/runs", &["get", "post"][..]),
        ("/v1/runs/{id}", &["get"]),
        ("/v1/runs/{id}/debug", &["get"]),
        ("/v1/stats", &["get"]),
        ("/v1/sandboxes", &["get", "post"]),
        ("/v1/sandboxes/{id}", &["delete", "get", "patch"]),
        ("/v1/sandboxes/{id}/runs", &["post"]),
        ("/v1/sandboxes/{id}/commands", &["post"]),
        ("/v1/sandboxes/{id}/interrupt", &["post"]),
        ("/v1/sandboxes/{id}/reset", &["post"]),
        ("/v1/sandboxes/{id}/files/{path}", &["delete", "get", "put"]),
        ("/v1/sandboxes/{id}/files", &["get"]),
        ("/v1/sandboxes/{id}/archive", &["get", "put"]),
        ("/v1/sandboxes/{id}/usage", &["get"]),
        ("/v1/sandboxes/{id}/channel", &["get"]),
        ("/v1/sandboxes/{id}/terminal", &["get"]),
        ("/v1/runtimes", &["get"]),
        ("/v1/doctor", &["get"]),
        ("/healthz", &["get"]),
        ("/readyz", &["get"]),
        ("/metrics", &["get"]),
    ];
    for (path, methods) in contract {
        let mut described: Vec<_> = api["paths"][path]
            .as_object()
            .unwrap_or_else(|| panic!("{path}"))
            .keys()
            .collect();
        described.sort();
        assert_eq!(described, methods, "{path}");
    }
    for (path, methods) in api["paths"].as_object().unwrap() {
        let real = path
            .replace("{id}", "sbx_aaaqeayeaudaocajbifqydiob4")
            .replace("{path}", "x");
        for method in methods.as_object().unwrap().keys() {
            let answer = daemon.ask_as(TOKEN, &method.to_uppercase(), &real, b"");
            assert!(
                answer.status != 405
                    && (answer.status != 404
                        || answer.text().contains("sandbox")
                        || answer.code() == "invalid_id"),
                "{method} {path} {}",
                answer.text()
            );
        }
    }
    for (name, schema) in api["components"]["schemas"].as_object().unwrap() {
        if ["RunRequest", "CodeRequest"].contains(&name.as_str()) {
            assert_eq!(schema["required"], json!(["code"]), "{name}");
        }
    }
    let answers = &api["paths"]["/v1/sandboxes/{id}/runs"]["post"]["responses"];
    for status in ["400", "401", "404", "409", "413", "422", "429"] {
        assert!(
            answers[status]["content"].is_object(),
            "{status}: {answers}"
        );
    }
    assert!(answers["429"]["headers"]["Retry-After"].is_object());
    let text = api.to_string();
    for reference in text.split("\"#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(
            api["components"]["schemas"][name].is_object(),
            "{name} is not described"
        );
    }
}

/// What is wrong with a path, an encoding or a time is said in the shape that all errors have.
#[test]
fn odd_requests_are_refused_in_one_shape() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let bearer = format!("Bearer {TOKEN}");
    let ask = |method: &str, path: &str, more: (&str, &str)| {
        let headers = [("Authorization", bearer.as_str()), more];
        daemon.raw(method, path, &headers, b"{}")
    };
    let json_type = ("Content-Type", "application/json");
    for (method, path) in [
        ("GET", "/v1/sandboxes/%FF"),
        ("DELETE", "/v1/sandboxes/%FF"),
        ("POST", "/v1/sandboxes/%FF/runs"),
        ("GET", "/v1/sandboxes/%FF/files"),
        ("GET", "/v1/sandboxes/%FF/files/a"),
        ("GET", "/v1/sandboxes/%FF/archive"),
        ("GET", "/v1/runs/%FF"),
        ("GET", "/v1/runs?since=2026-02-31T00:00:00Z"),
    ] {
        let answer = ask(method, path, json_type);
        assert_eq!(answer.status, 400, "{path}: {}", answer.text());
        assert_eq!(answer.code(), "invalid_request", "{path}");
    }
    let gzip = ("Content-Encoding", "gzip");
    for path in ["files/a", "archive"] {
        let answer = ask("PUT", &format!("{sandbox}/{path}"), gzip);
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (415, "unsupported_media")
        );
    }
    for part in [
        ("Content-Range", "bytes 0-2/10"),
        ("If-None-Match", "*"),
        ("If-Match", "\"a\""),
    ] {
        let answer = ask("PUT", &format!("{sandbox}/files/a"), part);
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (400, "invalid_request"),
            "{part:?}"
        );
    }
    let plain = ("Content-Encoding", "identity");
    assert_eq!(ask("PUT", &format!("{sandbox}/files/a"), plain).status, 201);
    let code = json!({"code": "import os\nos.utime('a', (2**40, 2**40))"});
    daemon.post(&format!("{sandbox}/runs"), &code).ok();
    let list = daemon.get(&format!("{sandbox}/files")).ok();
    assert_eq!(list["files"][0]["modified_at"], "9999-12-31T23:59:59.000Z");
}
