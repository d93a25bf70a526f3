//! Where images and runtimes come from, and who may use which.

use std::net::TcpListener;
use std::process::Command;
use std::time::Instant;

use serde_json::json;

use super::super::backend::image;
use super::super::daemon::{Daemon, until};
use super::super::harness::{Ended, belljar, directory};
use super::super::image_registry::Registry;
use super::super::serve_tenants::{SCHOOL, tenants};
use super::{docker, result, run, settings};

/// By the engine, from a registry on loopback.
#[test]
fn an_image_is_fetched_when_the_policy_says_so() {
    let place = directory(&[]);
    let registry = Registry::start(place.path(), "");
    let name = format!("{}/team/app:1", registry.address);
    docker(&["tag", &image(), &name]);
    docker(&["push", "--quiet", &name]);
    docker(&["rmi", &name]);
    let run = |policy: &str| -> Ended {
        belljar()
            .args([
                "run",
                "--backend",
                "docker",
                "--pull",
                policy,
                "--image",
                &name,
            ])
            .args(["-c", "print(6 * 7)"])
            .output()
            .unwrap()
            .into()
    };
    let never = run("never");
    assert!(
        never.code == 125 && never.stderr.contains("not to fetch it"),
        "{never:?}"
    );
    assert_eq!(run("missing").parts(), (0, "42\n", ""));
    drop(registry);
    // It is there now; only one who asks each time misses the registry.
    assert_eq!(run("missing").parts(), (0, "42\n", ""));
    let always = run("always");
    assert!(
        always.code == 125 && always.stderr.contains("could not be fetched"),
        "{always:?}"
    );
    docker(&["rmi", &name]);
}

#[test]
fn images_and_runtimes_are_the_operators_to_allow() {
    let image = image();
    let daemon = Daemon::with(&format!(
        "[docker]\nimage = \"{image}\"\npull = \"never\"\nimages = [\"good/*\"]\n"
    ));
    let refused = daemon.post(
        "/v1/runs",
        &json!({"code": "1", "backend": "docker", "image": "evil/x"}),
    );
    assert_eq!(
        (refused.status, &*refused.code()),
        (400, "invalid_request"),
        "{}",
        refused.text()
    );
    assert!(refused.text().contains("docker.images"));
    let refused = daemon.post(
        "/v1/runs",
        &json!({"code": "1", "backend": "docker", "container_runtime": "runc2"}),
    );
    assert_eq!(refused.status, 400, "{}", refused.text());
    let ok = daemon.run(&json!({"code": "print(1)", "backend": "docker"}));
    assert_eq!(
        (&ok["stdout"], &ok["backend"]),
        (&json!("1\n"), &json!("docker"))
    );
}

/// What a tenant names does not make the engine ask any host, as it could for whoever runs the daemon.
#[test]
fn a_tenant_does_not_say_whom_the_engine_asks() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let config = format!("[docker]\nimage = \"{}\"\n{}", image(), tenants(""));
    let daemon = Daemon::with(&config);
    let body = json!({"code": "1", "backend": "docker", "image": format!("127.0.0.1:{port}/x:1")});
    let body = body.to_string();
    for route in ["/v1/runs", "/v1/sandboxes"] {
        let body = if route == "/v1/runs" {
            body.clone()
        } else {
            body.replace("\"code\":\"1\",", "")
        };
        let refused = daemon.ask_as(SCHOOL, "POST", route, body.as_bytes());
        assert!(
            refused.status == 400 && refused.text().contains("not to fetch it"),
            "{}",
            refused.text()
        );
    }
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "it was asked");
    // And what is there can be used.
    let here = json!({"code": "print(1)", "backend": "docker", "image": image()});
    let ran = daemon.ask_as(SCHOOL, "POST", "/v1/runs", here.to_string().as_bytes());
    assert_eq!(ran.ok()["stdout"], "1\n");
}

/// The engine of these tests has another name for runc, and one for a program that is not there.
#[test]
fn another_runtime_is_the_one_that_runs() {
    let engine = |args: &[&str]| {
        let result = result(&[args, &["-c", "print(6 * 7)"]].concat());
        assert_eq!(result["stdout"], "42\n", "{result:#}");
        result["report"]["engine"].as_str().unwrap().to_owned()
    };
    assert!(engine(&[]).ends_with(", runc"));
    assert!(engine(&["--container-runtime", "other"]).ends_with(", other"));
    let broken = run(&["--container-runtime", "broken", "-c", "1"]);
    assert!(
        broken.code == 125 && broken.stdout.is_empty() && broken.stderr.contains("nonesuch-runsc"),
        "{broken:?}"
    );
    let daemon = Daemon::with(&format!(
        "{}runtime = \"other\"\nruntimes = [\"runc\", \"broken\"]\n",
        settings("")
    ));
    for (asked, expected) in [
        (None, "other"),
        (Some("other"), "other"),
        (Some("runc"), "runc"),
    ] {
        let body = json!({"code": "1", "backend": "docker", "container_runtime": asked});
        let result = daemon.run(&body);
        let engine = result["report"]["engine"].as_str().unwrap();
        assert!(engine.ends_with(&format!(", {expected}")), "{engine}");
    }
    let refused = |runtime: &str| {
        let body = json!({"code": "1", "backend": "docker", "container_runtime": runtime});
        daemon.post("/v1/runs", &body)
    };
    let unknown = refused("runsc");
    assert_eq!((unknown.status, &*unknown.code()), (400, "invalid_request"));
    assert!(
        unknown.text().contains("docker.runtimes"),
        "{}",
        unknown.text()
    );
    assert_eq!(refused("broken").status, 500);
    let doctor: Ended = belljar().arg("doctor").output().unwrap().into();
    assert!(
        doctor.stdout.contains("broken") && doctor.stdout.contains("other, runc (usually runc)"),
        "{doctor:?}"
    );
}

/// Removed under a running daemon: whoever asks next is told, and once it is there again it is used.
#[test]
fn an_image_that_somebody_removed_is_looked_for_again() {
    let name = "belljar-test:removed";
    // An image of its own: another name would keep it.
    let made = docker(&["create", &image(), "true"]);
    let commit = || docker(&["commit", "--message", "removed", &made, name]);
    commit();
    let daemon = Daemon::with(&settings(""));
    let body = json!({"code": "print(1)", "backend": "docker", "image": name});
    assert_eq!(daemon.run(&body)["stdout"], "1\n");
    // The container of that run may still be going.
    until("nobody uses it", || {
        let removed = Command::new("/usr/bin/docker").args(["rmi", name]).output();
        removed.unwrap().status.success()
    });
    let absent = daemon.post("/v1/runs", &body);
    assert_eq!((absent.status, &*absent.code()), (400, "invalid_request"));
    assert!(absent.text().contains("docker pull"), "{}", absent.text());
    commit();
    assert_eq!(daemon.run(&body)["stdout"], "1\n");
    docker(&["rm", &made]);
}

/// One that takes connections and says nothing is given up as soon as a container would be.
#[test]
fn an_engine_that_hangs_is_given_up() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = format!("tcp://{}", silent.local_addr().unwrap());
    let daemon = Daemon::with(&format!(
        "[docker]\nimage = \"x\"\nhost = \"{host}\"\nstart_timeout = \"300ms\"\n"
    ));
    let since = Instant::now();
    let refused = daemon.post("/v1/runs", &json!({"code": "1", "backend": "docker"}));
    assert_eq!(refused.status, 503, "{}", refused.text());
    let said = refused.text().contains("nothing within 1000 ms");
    assert!(
        said && refused.text().contains("systemctl start docker"),
        "{}",
        refused.text()
    );
    assert!(since.elapsed().as_secs() < 20, "{:?}", since.elapsed());
    // Others do not wait for it.
    assert_eq!(
        daemon.run(&json!({"code": "print(1)", "backend": "native"}))["stdout"],
        "1\n"
    );
}
