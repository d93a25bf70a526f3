//! Tenants: what each may have, and that none sees another.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use super::daemon::{Daemon, TOKEN};
use super::harness::need_tool;

pub const SCHOOL: &str = "bj_school_key_0123456789";
const LAB: &str = "bj_lab_key_0123456789";

fn digest(secret: &str) -> String {
    need_tool("sha256sum", "coreutils");
    let command = format!("printf %s '{secret}' | sha256sum | cut -d' ' -f1");
    let output = Command::new("sh").args(["-c", &command]).output().unwrap();
    format!(
        "sha256:{}",
        String::from_utf8(output.stdout).unwrap().trim()
    )
}

pub fn tenants(more: &str) -> String {
    format!(
        "[tenants.school]\nkeys = ['{}']\n{more}\n[tenants.lab]\nkeys = ['{}']\n",
        digest(SCHOOL),
        digest(LAB)
    )
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table of all routes")]
fn tenants_do_not_see_each_other() {
    let daemon = Daemon::with(&tenants(""));
    let ask = |key: &str, method: &str, path: &str, body: &Value| {
        daemon.ask_as(key, method, path, body.to_string().as_bytes())
    };
    let run = ask(SCHOOL, "POST", "/v1/runs", &json!({"code": "print(1)"})).ok();
    let sandbox = ask(
        SCHOOL,
        "POST",
        "/v1/sandboxes",
        &json!({"files": {"f": "secret"}}),
    )
    .ok();
    let (run, sandbox) = (run["id"].as_str().unwrap(), sandbox["id"].as_str().unwrap());
    let absent_run = "run_aaaqeayeaudaocajbifqydiob4";
    let absent = "sbx_aaaqeayeaudaocajbifqydiob4";
    let code = json!({"code": "1"});
    let shell = json!({"shell": "ls"});
    let nothing = json!({});
    for (method, path, body) in [
        ("GET", "/v1/runs/RUN", &nothing),
        ("GET", "/v1/runs/RUN/debug", &nothing),
        ("GET", "/v1/sandboxes/ID", &nothing),
        ("POST", "/v1/sandboxes/ID/runs", &code),
        ("POST", "/v1/sandboxes/ID/commands", &shell),
        ("POST", "/v1/sandboxes/ID/answers", &json!({"call": 1})),
        ("POST", "/v1/sandboxes/ID/interrupt", &nothing),
        ("POST", "/v1/sandboxes/ID/reset", &nothing),
        ("POST", "/v1/sandboxes/ID/renew", &nothing),
        ("GET", "/v1/sandboxes/ID/usage", &nothing),
        ("GET", "/v1/sandboxes/ID/files", &nothing),
        ("GET", "/v1/sandboxes/ID/files/f", &nothing),
        ("PUT", "/v1/sandboxes/ID/files/f", &nothing),
        ("DELETE", "/v1/sandboxes/ID/files/f", &nothing),
        ("GET", "/v1/sandboxes/ID/archive", &nothing),
        ("PUT", "/v1/sandboxes/ID/archive", &nothing),
        ("DELETE", "/v1/sandboxes/ID", &nothing),
    ] {
        let foreign = ask(
            LAB,
            method,
            &path.replace("RUN", run).replace("ID", sandbox),
            body,
        );
        let missing = ask(
            LAB,
            method,
            &path.replace("RUN", absent_run).replace("ID", absent),
            body,
        );
        assert_eq!(
            (foreign.status, missing.status),
            (404, 404),
            "{method} {path}"
        );
        let words = |answer: &super::daemon::Answer, ids: [&str; 2]| {
            let text = answer.json()["error"]["message"]
                .as_str()
                .unwrap()
                .to_owned();
            text.replace(ids[0], "").replace(ids[1], "")
        };
        assert_eq!(
            words(&foreign, [run, sandbox]),
            words(&missing, [absent_run, absent]),
            "{method} {path}"
        );
    }
    assert_eq!(
        ask(LAB, "GET", "/v1/runs", &nothing).ok()["runs"],
        json!([])
    );
    assert_eq!(
        ask(LAB, "GET", "/v1/runs?tenant=school", &nothing).ok()["runs"],
        json!([])
    );
    assert_eq!(ask(LAB, "GET", "/v1/stats", &nothing).ok()["runs"], 0);
    assert_eq!(
        ask(LAB, "GET", "/v1/sandboxes", &nothing).ok()["sandboxes"],
        json!([])
    );
    assert_eq!(ask(LAB, "GET", "/metrics", &nothing).status, 403);
    // Its owner and the administrator do.
    assert_eq!(
        ask(
            SCHOOL,
            "GET",
            &format!("/v1/sandboxes/{sandbox}/files/f"),
            &nothing
        )
        .text(),
        "secret"
    );
    assert_eq!(
        daemon.get(&format!("/v1/sandboxes/{sandbox}")).ok()["tenant"],
        "school"
    );
    assert_eq!(
        daemon.get("/v1/runs?tenant=school").ok()["runs"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert!(!daemon.log().contains(SCHOOL) && !daemon.log().contains("secret"));
}

#[test]
fn quotas_hold() {
    let daemon = Daemon::with(&tenants(
        "sandboxes = 1\nruns_per_minute = 3\nmemory_bytes = '700m'",
    ));
    let ask =
        |path: &str, body: &Value| daemon.ask_as(SCHOOL, "POST", path, body.to_string().as_bytes());
    ask("/v1/sandboxes", &json!({"limits": {"memory_bytes": "64m"}})).ok();
    let more = ask("/v1/sandboxes", &json!({"limits": {"memory_bytes": "64m"}}));
    assert_eq!((more.status, more.code().as_str()), (429, "overloaded"));
    assert!(more.headers["retry-after"].parse::<u32>().unwrap() > 0);
    let large = ask(
        "/v1/runs",
        &json!({"code": "1", "limits": {"memory_bytes": "650m"}}),
    );
    assert_eq!(large.status, 429, "{}", large.text());
    // What can never be is not to be tried again: with what is kept of its output, 700m is more than that.
    for (path, body) in [
        (
            "/v1/runs",
            json!({"code": "1", "limits": {"memory_bytes": "800m"}}),
        ),
        (
            "/v1/runs",
            json!({"code": "1", "limits": {"memory_bytes": "700m"}}),
        ),
        ("/v1/sandboxes", json!({"limits": {"memory_bytes": "800m"}})),
    ] {
        let never = ask(path, &body);
        assert_eq!(
            (never.status, never.code().as_str()),
            (400, "invalid_limit"),
            "{}",
            never.text()
        );
        assert!(never.text().contains("your quota memory_bytes is 700 MiB"));
        assert!(!never.headers.contains_key("retry-after"));
    }
    for _ in 0..3 {
        ask("/v1/runs", &json!({"code": ":", "language": "bash"})).ok();
    }
    let fourth = ask("/v1/runs", &json!({"code": ":", "language": "bash"}));
    assert_eq!(fourth.status, 429);
    assert!(fourth.text().contains("3 runs in a minute"));
    // Others have their own.
    assert_eq!(
        daemon
            .ask_as(LAB, "POST", "/v1/runs", br#"{"code": "1"}"#)
            .status,
        200
    );
}

#[test]
fn no_tenant_outweighs_others() {
    let daemon = Daemon::with(&tenants(""));
    for (path, mut body) in [
        ("/v1/runs", json!({"code": "1"})),
        ("/v1/sandboxes", json!({"language": "bash"})),
    ] {
        for (key, shares, status) in [(LAB, 2048, 400), (LAB, 512, 200), (TOKEN, 2048, 200)] {
            body["limits"] = json!({"cpu_shares": shares});
            let answer = daemon.ask_as(key, "POST", path, body.to_string().as_bytes());
            assert_eq!(answer.status / 100 * 100, status, "{}", answer.text());
        }
    }
}

/// What the settings say of how long sandboxes live holds against tenants.
#[test]
fn no_tenant_keeps_a_sandbox_longer_than_the_settings_allow() {
    let settings = "[sandboxes]\nlife = '1h'\nidle_timeout = '10m'\n";
    let daemon = Daemon::with(&(settings.to_owned() + &tenants("")));
    let ask = |key: &str, path: &str, body: &Value| {
        daemon.ask_as(key, "POST", path, body.to_string().as_bytes())
    };
    let long = [
        json!({"lifetime_ms": "30d"}),
        json!({"idle_timeout_ms": "11m"}),
    ];
    let made = ask(SCHOOL, "/v1/sandboxes", &json!({})).ok();
    let renew = format!("/v1/sandboxes/{}/renew", made["id"].as_str().unwrap());
    for body in &long {
        for path in ["/v1/sandboxes", &renew] {
            let refused = ask(SCHOOL, path, body);
            assert_eq!(refused.status, 400, "{}", refused.text());
            assert!(
                refused.text().contains("allows at most"),
                "{}",
                refused.text()
            );
        }
        assert_eq!(ask(TOKEN, "/v1/sandboxes", body).status, 201);
    }
    // Not by small steps either.
    sleep(Duration::from_secs(1));
    let renewed = ask(
        SCHOOL,
        &renew,
        &json!({"lifetime_ms": "1h", "idle_timeout_ms": "9m"}),
    )
    .ok();
    assert_eq!(renewed["expires_at"], made["expires_at"]);
    assert_eq!(renewed["idle_timeout_ms"], 540_000);
}

/// They are in the workspace, and once more in the daemon, for when it is made anew.
#[test]
fn files_of_a_sandbox_count_among_the_quotas() {
    let daemon = Daemon::with(&tenants("memory_bytes = '200m'"));
    let make = |bytes: usize| {
        let limits = json!({"memory_bytes": "128m", "output_bytes": "1k"});
        let body = json!({"files": {"a": "x".repeat(bytes)}, "limits": limits});
        daemon.ask_as(SCHOOL, "POST", "/v1/sandboxes", body.to_string().as_bytes())
    };
    assert_eq!(make(30 << 20).status, 201);
    let other = json!({"limits": {"memory_bytes": "32m", "output_bytes": "1k"}});
    let other = daemon.ask_as(
        SCHOOL,
        "POST",
        "/v1/sandboxes",
        other.to_string().as_bytes(),
    );
    assert_eq!(other.status, 429, "{}", other.text());
}
