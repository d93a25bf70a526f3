//! Containers come from a pool, go with their makers, and are swept when those could not do that.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

use super::super::backend::image;
use super::super::daemon::{Daemon, until};
use super::super::harness::{belljar, binary};
use super::{containers, docker, run, settings};

#[test]
fn a_container_that_does_not_come_up_in_time_is_given_up() {
    let image = image();
    let daemon = Daemon::with(&format!(
        "[docker]\nimage = \"{image}\"\npull = \"never\"\nstart_timeout = \"5ms\"\n"
    ));
    let late = daemon.post("/v1/runs", &json!({"code": "1", "backend": "docker"}));
    assert_eq!(late.status, 500, "{}", late.text());
    assert!(
        daemon.log().contains("did not start within 5 ms"),
        "{}",
        daemon.log()
    );
    let pid = daemon.pid();
    until("the end of what was begun", || ours(pid).is_empty());
}

#[test]
fn a_pooled_interpreter_has_loaded_what_the_template_names() {
    let image = image();
    let daemon = Daemon::with(&settings(&format!(
        "[templates.box]\nbackend = \"docker\"\nimage = \"{image}\"\npreload = [\"colorsys\"]\npool = 1\n"
    )));
    until("the pool", || {
        daemon.get("/metrics").text().contains("belljar_pool 1")
    });
    let sandbox = daemon.sandbox(&json!({"template": "box"}));
    let body = json!({"code": "import sys; 'colorsys' in sys.modules"});
    let result = daemon.post(&format!("{sandbox}/runs"), &body).ok();
    assert_eq!(result["value"], json!(true), "{result:#}");
}

/// The labels of machine and process that the containers of a process of ours have.
fn ours(process: u32) -> Vec<(String, String)> {
    let format = "{{.Label \"belljar.machine\"}} {{.Label \"belljar.process\"}}";
    let listed = docker(&["ps", "--all", "--format", format]);
    let of_process = format!("/{process}/");
    let lines = listed.lines().filter(|line| line.contains(&of_process));
    lines
        .filter_map(|line| line.split_once(' '))
        .map(|(machine, process)| (machine.to_owned(), process.to_owned()))
        .collect()
}

/// A process of ours that has a container, and the labels of that.
fn sleeping(image: &str) -> (Child, (String, String)) {
    let options = ["run", "--backend", "docker", "--image", image];
    let code = "import time; print('up', flush=True); time.sleep(300)";
    let mut child = belljar()
        .args(options)
        .args(["-c", code])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.as_mut().unwrap());
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "up\n");
    let mut first = None;
    until("the container", || {
        first = ours(child.id()).into_iter().next();
        first.is_some()
    });
    (child, first.unwrap())
}

#[test]
fn nothing_outlives_its_maker() {
    let (mut child, _) = sleeping(&image());
    child.kill().unwrap();
    child.wait().unwrap();
    until("its end", || ours(child.id()).is_empty());
}

#[test]
fn what_a_dead_process_left_is_swept_and_nothing_else() {
    let image = image();
    // Learns how this machine's containers are labelled.
    let (mut child, (machine, process)) = sleeping(&image);
    child.kill().unwrap();
    child.wait().unwrap();
    let machine = format!("belljar.machine={machine}");
    let create = |labels: &[&str]| {
        let mut args = vec!["create", "--network", "none"];
        for label in labels {
            args.extend(["--label", label]);
        }
        args.extend([&*image, "/bin/true"]);
        docker(&args)
    };
    let dead = create(&[&machine, &format!("belljar.process={process}")]);
    let own = create(&[&machine, &format!("belljar.process={}", mark())]);
    let elsewhere = create(&[
        "belljar.machine=another",
        &format!("belljar.process={process}"),
    ]);
    let stranger = create(&[]);
    assert_eq!(run(&["-c", "1"]).code, 0);
    let listed = || docker(&["ps", "--all", "--quiet", "--no-trunc"]);
    until("what is left of the dead is swept", || {
        !listed().contains(&dead)
    });
    let left = listed();
    for kept in [own, elsewhere, stranger] {
        assert!(left.contains(&kept), "{left}");
        docker(&["rm", "--force", &kept]);
    }
}

/// This process, as the labels have it.
fn mark() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap();
    let stat = read("/proc/self/stat");
    let born = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .nth(19)
        .unwrap()
        .to_owned();
    let boot = read("/proc/sys/kernel/random/boot_id");
    format!("{}/{}/{born}", boot.trim(), std::process::id())
}

#[test]
fn a_pool_of_containers() {
    let image = image();
    let daemon = Daemon::with(&settings(&format!(
        "[templates.box]\nbackend = \"docker\"\nimage = \"{image}\"\nlanguage = \"python\"\npool = 2\n"
    )));
    // The machine may be busy with other things, but hardly thrice.
    let took = (0..3).map(|_| {
        until("the pool", || daemon.metric("belljar_pool") == 2);
        let began = Instant::now();
        let sandbox =
            daemon.sandbox(&json!({"template": "box", "env": {"K": "v"}, "files": {"a": "hi"}}));
        let result = daemon
            .post(
                &format!("{sandbox}/runs"),
                &json!({"code": "import os\nprint(open('a').read(), os.environ['K'])\n6*7"}),
            )
            .ok();
        let took = began.elapsed();
        assert_eq!(
            (&result["stdout"], &result["value"]),
            (&json!("hi v\n"), &json!(42))
        );
        assert_eq!(result["backend"], "docker");
        took
    });
    let took = took.min().unwrap();
    // A container takes far longer to make, on any machine.
    let made = Instant::now();
    daemon.sandbox(&json!({"backend": "docker", "workdir": "/elsewhere"}));
    assert!(took < made.elapsed(), "{took:?} {:?}", made.elapsed());
    let native = daemon.sandbox(&json!({"backend": "native"}));
    let native = daemon
        .post(&format!("{native}/runs"), &json!({"code": "1"}))
        .ok();
    assert_eq!(
        (&native["backend"], &native["report"]["backend"]),
        (&json!("native"), &json!("native"))
    );
    let pid = daemon.pid();
    drop(daemon);
    until("the end of its containers", || ours(pid).is_empty());
}

/// Whoever runs the engine may end a container at any time: what was running in it was killed, and the session goes on with another.
#[test]
fn a_container_that_somebody_ends_is_told_as_killed() {
    let image = image();
    // The one in which the code has begun: another may have been asked for its languages, and goes.
    let going = |id: &String| {
        let listed = Command::new("/usr/bin/docker").args(["top", id]).output();
        String::from_utf8_lossy(&listed.unwrap().stdout).contains("mark-of-a-run")
    };
    let end = |process| {
        let mut found = None;
        until("the run", || {
            found = containers(process).into_iter().find(going);
            found.is_some()
        });
        docker(&["kill", &found.unwrap()]);
    };
    let code = "import subprocess; subprocess.run(['bash', '-c', 'sleep 300; : mark-of-a-run'])";
    let child = belljar()
        .args(["run", "--json", "--backend", "docker", "--image", &image])
        .args(["-c", code])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    end(child.id());
    let output = child.wait_with_output().unwrap();
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&result["status"], &result["files_truncated"]),
        (&json!("killed"), &json!(true)),
        "{result:#}"
    );
    let daemon = Daemon::with(&settings(""));
    let sandbox = daemon.sandbox(&json!({"backend": "docker"}));
    let run = |code: &str| daemon.post(&format!("{sandbox}/runs"), &json!({"code": code}));
    assert_eq!(run("x = 41").ok()["state"], "kept");
    let killed = std::thread::scope(|scope| {
        let killed = scope.spawn(|| run(code).ok());
        end(daemon.pid());
        killed.join().unwrap()
    });
    assert_eq!(
        (&killed["status"], &killed["state"]),
        (&json!("killed"), &json!("lost")),
        "{killed:#}"
    );
    assert_eq!(run("6 * 7").ok()["value"], 42);
    // Between two runs.
    for id in containers(daemon.pid()) {
        docker(&["rm", "--force", &id]);
    }
    let after = run("'x' in globals()").ok();
    assert_eq!(
        (&after["value"], &after["state"]),
        (&json!(false), &json!("lost")),
        "{after:#}"
    );
}

/// A daemon that is killed leaves what cannot end by itself; the next one sweeps it unasked.
#[test]
fn what_a_killed_daemon_left_is_swept_by_the_next() {
    // On a machine of another name, as far as they know: no other test here sweeps for them.
    let mark = format!("sweep-{}", std::process::id());
    let start = |state| {
        let mut command = Command::new("unshare");
        command.args(["--uts", "sh", "-c", "hostname \"$0\" && exec \"$@\"", &mark]);
        command.arg(binary());
        Daemon::started_by(command, state, &settings(""))
    };
    let daemon = start(tempfile::tempdir().unwrap());
    for _ in 0..2 {
        daemon.sandbox(&json!({"backend": "docker"}));
    }
    let pid = daemon.pid();
    let process = ours(pid)[0].1.clone();
    let label = format!("label=belljar.process={process}");
    let left = || docker(&["ps", "--all", "--quiet", "--filter", &label]);
    let ids = left();
    let ids: Vec<_> = ids.lines().collect();
    assert_eq!(ids.len(), 2, "{ids:?}");
    // The agent sees the end of its input; one that stands still does not.
    for id in &ids {
        docker(&["pause", id]);
    }
    let state = daemon.kill();
    assert_eq!(left().lines().count(), 2);
    let next = start(state);
    until("the end of what was left", || left().is_empty());
    drop(next);
}
