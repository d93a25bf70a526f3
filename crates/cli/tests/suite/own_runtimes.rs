//! Manifests of the caller's own: what they can do, and what is said of those that cannot be used.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use serde_json::Value;

use super::harness::{Ended, belljar, binary, directory, text};

const SHOUT: &str = r#"
name = "shout"
aliases = ["loud"]
endings = ["shout"]
main = "main.shout"
install = "write it"
limits = { processes = 5 }

[[toolchain]]
programs = ["/bin/sh"]
probe = ["/bin/sh", "-c", "echo version=Shout 1.0"]

[toolchain.run]
argv = ["/usr/bin/tr", "a-z", "A-Z"]
env = { SHOUT = "1" }
"#;

pub fn with_manifest(name: &str, manifest: &str, args: &[&str]) -> Ended {
    let dir = directory(&[(name, manifest)]);
    belljar()
        .args(args)
        .env("BELLJAR_RUNTIMES", dir.path())
        .output()
        .unwrap()
        .into()
}

#[test]
fn a_manifest_of_the_caller() {
    let dir = directory(&[
        ("runtimes/shout.toml", SHOUT),
        ("x.shout", "code"),
        ("in", "quiet words"),
    ]);
    let at = |name: &str| text(dir.path().join(name));
    for args in [
        vec![at("x.shout")],
        vec!["-l".into(), "loud".into(), "-c".into(), "code".into()],
    ] {
        let output = belljar()
            .arg("run")
            .args(["--json", "--stdin", &at("in")])
            .args(args)
            .env("BELLJAR_RUNTIMES", at("runtimes"))
            .output()
            .unwrap();
        let result: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        assert_eq!(result["stdout"], "QUIET WORDS", "{result:#}");
        assert_eq!(result["language"], "shout");
        assert_eq!(result["runtime"], "Shout 1.0");
        assert_eq!(result["limits"]["processes"], 5);
    }
    let ended = with_manifest("shout.toml", SHOUT, &["runtimes"]);
    assert!(
        ended.stdout.contains("shout") && ended.stdout.contains("Shout 1.0"),
        "{ended:?}"
    );
}

#[test]
fn a_manifest_of_the_caller_replaces_a_built_in_one() {
    let manifest = SHOUT.replace("name = \"shout\"", "name = \"lua\"");
    let ended = with_manifest("lua.toml", &manifest, &["run", "-l", "lua", "-c", "x"]);
    assert_eq!(ended.parts(), (0, "", ""), "tr reads an empty stdin");
}

#[test]
fn a_broken_manifest_says_what_is_wrong() {
    let cases: [(&str, String, &[&str]); 6] = [
        (
            "not toml",
            format!("{SHOUT}\nthis is no toml"),
            &["shout.toml", "line 1"],
        ),
        (
            "unknown key",
            format!("colour = \"red\"\n{SHOUT}"),
            &["shout.toml", "colour"],
        ),
        (
            "wrong name",
            SHOUT.replace("\"shout\"\naliases", "\"scream\"\naliases"),
            &["shout.toml", "name", "scream", "shout"],
        ),
        (
            "no toolchain",
            SHOUT.split("[[toolchain]]").next().unwrap().into(),
            &["shout.toml", "toolchain"],
        ),
        (
            "bad limit",
            SHOUT.replace("processes = 5", "processes = 0"),
            &["shout.toml", "processes", "0"],
        ),
        (
            "bad main",
            SHOUT.replace("main.shout", "../main"),
            &["shout.toml", "main", "../main"],
        ),
    ];
    for (name, manifest, words) in cases {
        let ended = with_manifest("shout.toml", &manifest, &["run", "-l", "shout", "-c", "x"]);
        assert_eq!(
            (ended.code, ended.stdout.as_str()),
            (125, ""),
            "{name}: {ended:?}"
        );
        assert_eq!(ended.stderr.lines().count(), 1, "{name}: {ended:?}");
        for word in words {
            assert!(
                ended.stderr.contains(word),
                "{name}: no {word:?} in {ended:?}"
            );
        }
        let other = with_manifest(
            "shout.toml",
            &manifest,
            &["run", "-c", "print('python works')"],
        );
        assert_eq!(
            other.parts(),
            (0, "python works\n", ""),
            "{name}: others are not held up"
        );
    }
}

/// It ran as Python.
#[test]
fn a_file_whose_name_is_no_text_has_an_ending() {
    let dir = directory(&[]);
    let path = dir.path().join(OsStr::from_bytes(b"caf\xe9.rb"));
    fs::write(&path, "puts File.basename(__FILE__)").unwrap();
    let ended: Ended = belljar().arg("run").arg(&path).output().unwrap().into();
    assert_eq!(ended.parts(), (0, "main.rb\n", ""));
}

/// It ran as Python.
#[test]
fn code_with_the_ending_of_a_broken_manifest_is_not_run_as_another_language() {
    let dir = directory(&[
        (
            "own/shout.toml",
            &SHOUT.replace("processes = 5", "processes = 0"),
        ),
        ("own/torn.toml", "endings = ['torn']\nname = "),
        ("x.shout", "print('python')"),
        ("x.torn", "print('python')"),
        ("x.other", "print('python')"),
    ]);
    let at = |name: &str| text(dir.path().join(name));
    let ran = |file: &str, runtimes: &str| -> Ended {
        let mut command = belljar();
        command.args(["run", &at(file)]);
        let output = command.env("BELLJAR_RUNTIMES", runtimes).output();
        output.unwrap().into()
    };
    for (file, manifest) in [("x.shout", "own/shout.toml"), ("x.torn", "own/torn.toml")] {
        let ended = ran(file, &at("own"));
        assert_eq!((ended.code, ended.stdout.as_str()), (125, ""), "{ended:?}");
        let told = format!("belljar: runtime manifest {}: ", at(manifest));
        assert!(ended.stderr.starts_with(&told), "{ended:?}");
        assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    }
    assert_eq!(ran("x.other", &at("own")).parts(), (0, "python\n", ""));
    assert_eq!(ran("x.other", "").parts(), (0, "python\n", ""));
    for (named, why) in [
        ("nowhere", "No such file or directory (os error 2)"),
        ("x.torn", "Not a directory (os error 20)"),
    ] {
        let ended = ran("x.other", &at(named));
        let told = format!(
            "belljar: env: BELLJAR_RUNTIMES=\"{}\" is not accepted; give a directory with manifests in it ({why})\n",
            at(named)
        );
        assert_eq!(ended.parts(), (125, "", told.as_str()));
    }
}

#[test]
fn the_file_of_a_manifest_has_a_name_in_lower_case() {
    let manifest = SHOUT.replace("name = \"shout\"", "name = \"Shout\"");
    for language in ["Shout", "shout"] {
        let args = ["run", "-l", language, "-c", "x"];
        let ended = with_manifest("Shout.toml", &manifest, &args);
        assert_eq!((ended.code, ended.stdout.as_str()), (125, ""), "{ended:?}");
        let told =
            "Shout.toml: the name of the file: \"Shout\" is not accepted; give a word of a-z";
        let ends = "in lower case\n";
        assert!(
            ended.stderr.contains(told) && ended.stderr.ends_with(ends),
            "{ended:?}"
        );
    }
}

/// To open it waited for somebody to write to it, in every run.
#[test]
fn a_manifest_is_a_regular_file() {
    let dir = directory(&[]);
    let fifo = dir.path().join("x.toml");
    let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    fs::write(dir.path().join("long.toml"), " ".repeat((1 << 20) + 1)).unwrap();
    for (language, told) in [
        ("python", ""),
        ("x", "x.toml: cannot be read: it is no regular file"),
        (
            "long",
            "long.toml: cannot be read: it has more than the 1048576 bytes",
        ),
    ] {
        let mut command = Command::new("timeout");
        command.arg("60").arg(binary());
        command.args(["run", "-l", language, "-c", "print('python')"]);
        for (name, _) in belljar().get_envs() {
            command.env_remove(name);
        }
        let output = command.env("BELLJAR_RUNTIMES", dir.path()).output();
        let ended: Ended = output.unwrap().into();
        let code = if told.is_empty() { 0 } else { 125 };
        assert_eq!(ended.code, code, "{ended:?}");
        assert!(ended.stderr.contains(told), "{ended:?}");
    }
}

#[test]
fn a_probe_that_fails_or_says_nonsense_is_told() {
    for (probe, word) in [
        ("echo it is broken >&2; exit 3", "it is broken"),
        ("echo nonsense", "key=value"),
        ("echo version=", "version"),
    ] {
        let manifest = SHOUT.replace("echo version=Shout 1.0", probe);
        let ended = with_manifest("shout.toml", &manifest, &["run", "-l", "shout", "-c", "x"]);
        assert_eq!(
            (ended.code, ended.stdout.as_str()),
            (125, ""),
            "{probe}: {ended:?}"
        );
        assert!(ended.stderr.contains(word), "{probe}: {ended:?}");
    }
}
