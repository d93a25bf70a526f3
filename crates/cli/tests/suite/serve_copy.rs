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
fn what_is_left_out_is_told() {
    let copies = Copies::start();
    let dir = directory(&[]);
    let here = |path: &str| text(dir.path().join(path));
    copies.said("mkdir d; echo a >d/a; ln -s / d/link; mkfifo d/pipe; ln -s x d/with\\ näme");
    let told = "belljar: left out d/link: it is a symbolic link\n\
        belljar: left out d/pipe: it is neither a file nor a directory\n\
        belljar: left out d/with näme: it is a symbolic link\n";
    for to in [&here("out"), "-"] {
        let ended = copies.cp(&copies.there("d"), to);
        assert_eq!((ended.code, ended.stderr.as_str()), (0, told), "{ended:?}");
    }
    assert_eq!(fs::read(here("out/a")).unwrap(), b"a\n");
    let place = copies.there("d");
    let ended: Ended = copies
        .command(&["cp", "--json", &place, &here("out2")])
        .output()
        .unwrap()
        .into();
    let told: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(told, json!({"files": 1, "bytes": 2, "left_out": 3}));
    // Nobody reads a thousand lines.
    copies.said("rm -r d; mkdir d; cd d; for i in $(seq 1000); do ln -s x $i; done");
    let many = copies.cp(&place, &here("out3"));
    assert!(
        many.code == 0 && many.stderr.lines().count() == 11 && many.stderr.contains("990 more"),
        "{many:?}"
    );
    copies.said("rm -r d; echo a >a");
    let ended = copies.cp(&copies.there(""), &here("out4"));
    assert_eq!(ended.parts(), (0, "", ""));
}

/// What comes out goes in again, and what lies deeper than that is told of.
#[test]
fn as_deep_in_as_out() {
    let copies = Copies::start();
    let dir = directory(&[]);
    let out = text(dir.path().join("out"));
    copies
        .said("mkdir -p $(printf 'd/%.0s' $(seq 64)) && echo deep >$(printf 'd/%.0s' $(seq 64))f");
    let ended = copies.cp(&copies.there(""), &out);
    assert_eq!(ended.parts(), (0, "", ""));
    let deep = "d/".repeat(64) + "f";
    assert_eq!(fs::read(format!("{out}/{deep}")).unwrap(), b"deep\n");
    copies.said("rm -r d");
    copies.copied(&format!("{out}/."), &copies.there(""));
    assert_eq!(copies.said(&format!("cat {deep}")), "deep");
    assert_eq!(copies.cp(&copies.there(&deep), "-").stdout, "deep\n");
    // Empty, nothing is missing without what is in it.
    let deeper = "d/".repeat(65);
    copies.said(&format!("mkdir -p {deeper}"));
    let ended = copies.cp(&copies.there(""), &out);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    copies.said(&format!("echo x >{deeper}x"));
    let ended = copies.cp(&copies.there(""), &out);
    let told = "what is in it lies more than 64 directories deep";
    assert!(
        ended.code == 0 && ended.stderr.contains(told) && ended.stderr.lines().count() == 1,
        "{ended:?}"
    );
}

#[test]
fn what_is_wrong_is_said_as_it_is() {
    let copies = Copies::start();
    let (no_id, gone) = ("sbx_a:", "sbx_aaaqeayeaudaocajbifqydiob4");
    for (from, to, told) in [
        (no_id, "x", "\"sbx_a\" is not an id"),
        (&format!("{gone}:"), "x", "was not found"),
        (&format!("{gone}:file"), "x", "was not found"),
        ("/etc/hostname", &format!("{gone}:x"), "was not found"),
    ] {
        let ended = copies.cp(from, to);
        assert_eq!(ended.code, 125, "{ended:?}");
        assert!(
            ended.stderr.contains(told) && !ended.stderr.contains("/v1/"),
            "{from} {to} {ended:?}"
        );
    }
    let place = copies.there("file");
    copies.said("echo x >file");
    let ended: Ended = copies
        .command(&["cp", "--json", &place, "-"])
        .output()
        .unwrap()
        .into();
    assert_eq!((ended.code, ended.stdout.as_str()), (125, ""), "{ended:?}");
    assert!(ended.stderr.contains("--json"), "{ended:?}");
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
