//! `belljar cp`: one rule both ways, and what is no file.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;

use super::daemon::Daemon;
use super::harness::{Ended, belljar, binary, directory, text};

struct Copies {
    daemon: Daemon,
    sandbox: String,
}

impl Copies {
    fn start() -> Self {
        let daemon = Daemon::start();
        let sandbox = daemon.sandbox(&json!({}));
        Self { daemon, sandbox }
    }

    fn there(&self, path: &str) -> String {
        format!("{}:{path}", self.sandbox.rsplit('/').next().unwrap())
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = belljar();
        command
            .args(args)
            .env("BELLJAR_STATE_DIR", self.daemon.state.path());
        command
    }

    fn cp(&self, from: &str, to: &str) -> Ended {
        self.command(&["cp", from, to]).output().unwrap().into()
    }

    fn copied(&self, from: &str, to: &str) {
        let ended = self.cp(from, to);
        assert_eq!(ended.code, 0, "{from} {to} {ended:?}");
    }

    /// What a shell in the sandbox prints.
    fn said(&self, shell: &str) -> String {
        let command = json!({"shell": shell});
        let result = self
            .daemon
            .post(&format!("{}/commands", self.sandbox), &command);
        result.ok()["stdout"].as_str().unwrap().trim().to_owned()
    }

    /// The same of a shell here, where `$1` is the program and `$2` the place.
    fn piped(&self, script: &str, place: &str) -> Ended {
        let mut shell = Command::new("bash");
        shell.args(["-c", script, "bash"]).arg(binary()).arg(place);
        for (name, value) in self.command(&[]).get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        shell.output().unwrap().into()
    }
}

#[test]
fn in_and_out_follow_one_rule() {
    let copies = Copies::start();
    let dir = directory(&[("d/f", "f"), ("a.txt", "a")]);
    let here = |path: &str| text(dir.path().join(path));
    let there = |path: &str| copies.there(path);
    // A directory under a new name, then into what is there now.
    copies.copied(&here("d"), &there("e"));
    copies.copied(&here("d"), &there("e"));
    assert_eq!(copies.said("find e -type f | sort"), "e/d/f\ne/f");
    copies.copied(&there("e/d"), &here("out"));
    copies.copied(&there("e/d"), &here("out"));
    assert_eq!(fs::read(here("out/f")).unwrap(), b"f");
    assert_eq!(fs::read(here("out/d/f")).unwrap(), b"f");
    // What is in it.
    copies.copied(&here("d/."), &there("e"));
    copies.copied(&there("e/d/."), &here("out"));
    assert_eq!(copies.said("find e -type f | sort"), "e/d/f\ne/f");
    assert!(!fs::exists(here("out/d/d")).unwrap());
    // Files: into a directory that is there, into one that is made, and below one that is made.
    for to in ["e", "new/", "", "deep/er/b.txt"] {
        copies.copied(&here("a.txt"), &there(to));
    }
    let found = copies.said("find . -name '[ab].txt' | sort");
    assert_eq!(found, "./a.txt\n./deep/er/b.txt\n./e/a.txt\n./new/a.txt");
    for (to, made) in [
        ("out", "out/a.txt"),
        ("new/", "new/a.txt"),
        ("deep/er/b.txt", "deep/er/b.txt"),
    ] {
        copies.copied(&there("a.txt"), &format!("{}/{to}", text(dir.path())));
        assert_eq!(fs::read(here(made)).unwrap(), b"a", "{to}");
    }
    // As the code calls it.
    copies.copied(&here("a.txt"), &there("/workspace/abs/c.txt"));
    copies.copied(&there("/workspace/abs/c.txt"), &here("c.txt"));
    assert_eq!(fs::read(here("c.txt")).unwrap(), b"a");
    assert_eq!(copies.cp(&here("a.txt"), &there("/etc/c.txt")).code, 125);
    assert_eq!(copies.cp(&there("a.txt"), "").code, 125);
}

#[test]
fn what_is_no_file_is_read_to_its_end() {
    let copies = Copies::start();
    let (x, y, z) = (copies.there("x"), copies.there("y"), copies.there("z"));
    for (script, place) in [
        ("seq 100000 | \"$1\" cp - \"$2\"", &x),
        ("\"$1\" cp <(seq 100000) \"$2\"", &y),
        (
            "f=$(mktemp); seq 100000 > $f; \"$1\" cp - \"$2\" < $f; s=$?; rm $f; exit $s",
            &z,
        ),
    ] {
        let ended = copies.piped(script, place);
        assert_eq!(ended.code, 0, "{script} {ended:?}");
    }
    let sums = copies.said("seq 100000 | cmp - x && cmp x y && cmp x z && echo same");
    assert_eq!(sums, "same");
    // It has no name of its own.
    for place in ["", "new/"] {
        let ended = copies.piped("seq 3 | \"$1\" cp - \"$2\"", &copies.there(place));
        assert!(
            ended.code == 125 && ended.stderr.contains("give the copy a name"),
            "{ended:?}"
        );
    }
    let ended = copies.cp("/dev/null", &x);
    assert!(ended.stderr.contains("neither a file nor"), "{ended:?}");
}

#[test]
fn a_pipe_that_nobody_writes_to_is_told_of() {
    let copies = Copies::start();
    let dir = directory(&[]);
    let pipe = text(dir.path().join("pipe"));
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    let place = copies.there("from pipe");
    let mut waiting = copies.command(&["cp", &pipe, &place]);
    let waiting = waiting.stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(3));
    fs::write(&pipe, "late").unwrap();
    let ended = Ended::from(waiting.wait_with_output().unwrap());
    let said = format!("belljar: waiting for something to be written to {pipe}\n");
    assert_eq!((ended.code, ended.stderr.as_str()), (0, said.as_str()));
    assert_eq!(copies.said("cat 'from pipe'"), "late");
}
