//! What is mounted into containers: the host's directories, what images declare, and volumes of our own.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::json;

use super::super::backend::image;
use super::super::daemon::{Daemon, until};
use super::super::harness::{Ended, belljar, directory};
use super::{containers, docker, run, settings};

#[test]
fn directories_of_this_host() {
    let place = directory(&[("in/a", "hi"), ("out/old", "x")]);
    let at = |name: &str| place.path().join(name).to_string_lossy().into_owned();
    let everybody = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(at("out"), everybody).unwrap();
    let (read, write) = (
        format!("{}:/in", at("in")),
        format!("{}:/data/out:rw", at("out")),
    );
    let ended = run(&[
        "--volume",
        &read,
        "--volume",
        &write,
        "-c",
        "print(open('/in/a').read()); open('/data/out/new', 'w').write('made')\ntry: open('/in/b', 'w')\nexcept OSError as error: print(error.errno)",
    ]);
    assert_eq!(ended.parts(), (0, "hi\n30\n", ""));
    assert_eq!(std::fs::read_to_string(at("out/new")).unwrap(), "made");
}

/// The image of these tests with files, and with places that it declares as volumes.
fn declaring(tag: &str, volumes: &str) -> String {
    let made = docker(&["create", &image(), "true"]);
    let place = directory(&[("data/kept", "of the image")]);
    let source = place.path().join("data");
    // Not who owns it shall keep code from writing there.
    std::fs::set_permissions(&source, std::fs::Permissions::from_mode(0o777)).unwrap();
    docker(&["cp", source.to_str().unwrap(), &format!("{made}:/data")]);
    let name = format!("belljar-test:{tag}");
    docker(&["commit", "--change", volumes, &made, &name]);
    docker(&["rm", &made]);
    name
}

/// Not only by Landlock, which not every runtime's kernel has: what the engine starts in the container is not held by it.
#[test]
fn places_that_an_image_declares_as_volumes_are_read_only() {
    let name = declaring(
        "volume",
        r#"VOLUME ["/data/", "/var/new", "/workspace/below", "/workspace", "/tmp", "/dev/shm", "/belljar"]"#,
    );
    let daemon = Daemon::with(&settings(""));
    let sandbox = daemon.sandbox(&json!({"backend": "docker", "image": name}));
    let code = r#"
def tries(path):
    try: open(path, "w").write("x"); return "written"
    except OSError as error: return type(error).__name__
[open("/data/kept").read(), *map(tries, ("/data/x", "/var/new/x", "/workspace/below/x", "/workspace/x", "/tmp/x", "/dev/shm/x", "/belljar/x"))]
"#;
    let value = daemon.post(&format!("{sandbox}/runs"), &json!({"code": code}));
    let value = value.ok()["value"].clone();
    let outcomes: Vec<_> = value.as_array().unwrap()[1..].iter().collect();
    assert_eq!(value[0], "of the image", "{value}");
    let written = |outcome: &&serde_json::Value| **outcome == "written";
    let open: Vec<_> = outcomes.iter().copied().map(|o| written(&o)).collect();
    assert_eq!(
        open,
        [false, false, false, true, true, true, false],
        "{value}"
    );
    let ids = containers(daemon.pid());
    assert_eq!(ids.len(), 1, "{ids:?}");
    // Root of the container, which Landlock does not hold, and which owns these places.
    let script = "for place in /data /var/new /workspace/below /belljar; do ( echo > $place/x ) 2>&1; done; df --output=fstype /workspace /tmp /dev/shm";
    let found = docker(&["exec", "--user", "0", &ids[0], "bash", "-c", script]);
    let lines: Vec<_> = found.lines().collect();
    assert_eq!(lines.len(), 8, "{found}");
    assert!(
        lines[..4]
            .iter()
            .all(|line| line.contains("Read-only file system")),
        "{found}"
    );
    assert_eq!(lines[4..], ["Type", "tmpfs", "tmpfs", "tmpfs"], "{found}");
    // Where the whole root can be written, they are a part of it.
    let asked = json!({"backend": "docker", "image": name, "read_only": false});
    let writable = daemon.sandbox(&asked);
    let code = r#"open("/data/new", "w").write("x"); open("/data/new").read() + open("/data/kept").read()"#;
    let result = daemon.post(&format!("{writable}/runs"), &json!({"code": code}));
    assert_eq!(result.ok()["value"], "xof the image");
    // A mount in a place that nothing can be written to, and a workspace there.
    let host = directory(&[("a", "hi")]);
    let volume = format!("{}:/data/deep/in", host.path().to_str().unwrap());
    let mut command = belljar();
    command.args(["run", "--backend", "docker", "--pull", "never"]);
    command.args(["--image", &name, "--volume", &volume]);
    let code = "print(open('/data/deep/in/a').read(), open('/data/kept').read())";
    let ended = Ended::from(command.args(["-c", code]).output().unwrap());
    assert_eq!(ended.parts(), (0, "hi of the image\n", ""));
    let asked = json!({"backend": "docker", "image": name, "workdir": "/data/work"});
    let within = daemon.sandbox(&asked);
    let code = r#"open("x", "w").write("x"); import os; os.getcwd()"#;
    let result = daemon.post(&format!("{within}/runs"), &json!({"code": code}));
    assert_eq!(result.ok()["value"], "/data/work");
    let process = format!("/{}/", daemon.pid());
    drop(daemon);
    let format = "{{.Name}} {{.Label \"belljar.process\"}}";
    until("the end of its volumes", || {
        !docker(&["volume", "ls", "--format", format]).contains(&process)
    });
}

/// Volumes of ours that nobody uses can be removed under a running daemon: `docker volume prune` does that.
#[test]
fn volumes_that_somebody_removed_are_made_again() {
    let daemon = Daemon::with(&settings(""));
    let body = json!({"backend": "docker", "code": "import os; print('BEGIN CERTIFICATE' in open(os.environ['SSL_CERT_FILE']).read())", "network": {"allow": ["site.test"], "intercept": true}});
    let volumes = || docker(&["volume", "ls", "--quiet", "--filter", "name=belljar-file"]);
    let before = volumes();
    let works = || {
        let result = daemon.run(&body);
        assert_eq!(result["stdout"], "True\n", "{result:#}");
    };
    works();
    let made = volumes();
    let ours: Vec<_> = made.lines().filter(|name| !before.contains(name)).collect();
    assert!(!ours.is_empty(), "{made}");
    // Both ways to lose one: it is gone, and it is there but the engine's own.
    for name in &ours {
        until("nobody uses it", || gone(name));
    }
    works();
    for name in &ours {
        until("nobody uses it", || gone(name));
        docker(&["volume", "create", name]);
    }
    works();
    // The agent's volume, with the kernel of a language that no other test of containers keeps for long.
    let session = || {
        let sandbox = daemon.sandbox(&json!({"backend": "docker", "language": "bash"}));
        let result = daemon.post(
            &format!("{sandbox}/runs"),
            &json!({"code": "echo $((6*7))"}),
        );
        assert_eq!(result.ok()["stdout"], "42\n");
        let ids = containers(daemon.pid());
        let mounts = "{{range .Mounts}}{{.Name}} {{end}}";
        let named = docker(&["inspect", "--format", mounts, &ids[0]]);
        assert_eq!(daemon.delete(&sandbox).status, 204);
        named.trim().to_owned()
    };
    let name = session();
    assert!(name.starts_with("belljar-"), "{name}");
    until("nobody uses it", || gone(&name));
    assert_eq!(session(), name);
}

/// Removes a volume, unless a container has it.
fn gone(name: &str) -> bool {
    let removed = Command::new("/usr/bin/docker")
        .args(["volume", "rm", name])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&removed.stderr).into_owned();
    assert!(
        removed.status.success() || text.contains("in use"),
        "{text}"
    );
    removed.status.success()
}

/// Whose image comes first does not matter: what comes into every container from us is made of nothing that an image has.
#[test]
fn an_image_has_no_say_in_what_others_get() {
    let place = directory(&[
        ("whole/belljar/complete", ""),
        ("whole/belljar/evil", "of an image"),
        ("whole/belljar/agent", "of an image"),
        ("link/x", ""),
    ]);
    std::os::unix::fs::symlink("/etc", place.path().join("link/belljar")).unwrap();
    let daemon = Daemon::with(&settings(""));
    let session = |image: &str| {
        let asked = json!({"backend": "docker", "language": "bash", "image": image});
        let made = daemon.post("/v1/sandboxes", &asked);
        let id = made.json()["id"].as_str()?.to_owned();
        let sandbox = format!("/v1/sandboxes/{id}");
        let result = daemon.post(&format!("{sandbox}/runs"), &json!({"code": "echo 42"}));
        let mounts = "{{range .Mounts}}{{.Name}} {{end}}";
        let named = docker(&["inspect", "--format", mounts, &containers(daemon.pid())[0]]);
        assert_eq!(daemon.delete(&sandbox).status, 204);
        let said = result.json()["stdout"].as_str()?.to_owned();
        Some((said, named.trim().to_owned()))
    };
    let (said, name) = session(&image()).unwrap();
    assert_eq!(said, "42\n");
    for kind in ["whole", "link"] {
        let made = docker(&["create", &image(), "true"]);
        let from = place.path().join(kind).join("belljar");
        docker(&["cp", from.to_str().unwrap(), &format!("{made}:/")]);
        let hostile = format!("belljar-test:{kind}");
        docker(&["commit", &made, &hostile]);
        docker(&["rm", &made]);
        until("nobody uses it", || gone(&name));
        let own = session(&hostile);
        let (said, again) = session(&image()).unwrap_or_default();
        assert_eq!((&*said, &again), ("42\n", &name), "{kind}: {own:?}");
        let mount = format!("{name}:/v");
        let list = ["run", "--rm", "--network", "none", "--volume", &mount];
        let listed = docker(&[&list[..], &["--entrypoint", "ls", &image(), "/v"]].concat());
        assert!(!listed.contains("evil"), "{kind}: {listed}");
    }
}
