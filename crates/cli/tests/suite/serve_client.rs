//! The commands that speak to the daemon.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use serde_json::{Value, json};

use super::daemon::{Daemon, TOKEN};
use super::harness::{Ended, belljar, directory, text};

fn command(daemon: &Daemon, args: &[&str]) -> Ended {
    let mut command: Command = belljar();
    command
        .args(args)
        .env("BELLJAR_STATE_DIR", daemon.state.path());
    command.output().unwrap().into()
}

#[test]
fn a_sandbox_from_new_to_rm() {
    let daemon = Daemon::start();
    let run = |args: &[&str]| {
        let ended = command(&daemon, args);
        assert_eq!(ended.code, 0, "{args:?} {ended:?}");
        ended.stdout
    };
    let made = run(&[
        "new", "--name", "mine", "--label", "team=red", "--memory", "256m", "--env", "K=v",
    ]);
    let id = made.trim();
    let listed = run(&["ps"]);
    assert!(
        listed.lines().next().unwrap().starts_with("ID ")
            && listed.contains(id)
            && listed.contains("mine"),
        "{listed}"
    );
    let json: Value = serde_json::from_str(&run(&["ps", "--json", "--label", "team=red"])).unwrap();
    assert_eq!(json[0]["limits"]["memory_bytes"], 256 << 20);
    assert_eq!(run(&["ps", "--json", "--label", "team=blue"]).trim(), "[]");
    assert_eq!(run(&["exec", id, "-c", "x = 41"]), "");
    assert_eq!(run(&["exec", id, "-c", "print('hi'); x + 1"]), "hi\n42\n");
    assert_eq!(
        run(&["exec", id, "--", "sh", "-c", "echo $K; echo err >&2"]),
        "v\n"
    );
    assert!(
        listed.contains("s ago") && listed.contains("team=red"),
        "{listed}"
    );
    let result: Value = serde_json::from_str(&run(&["exec", id, "--json", "-c", "x"])).unwrap();
    assert_eq!(
        (&result["value"], &result["status"]),
        (&json!(41), &json!("ok"))
    );
    let other = run(&[
        "new",
        "--idle-timeout",
        "5m",
        "--lifetime",
        "2h",
        "--imports",
        "math",
        "--json",
    ]);
    let other: Value = serde_json::from_str(&other).unwrap();
    assert_eq!(other["idle_timeout_ms"], 300_000);
    assert!(other["expires_at"].is_string());
    let named: Value = serde_json::from_str(&run(&["ps", "--json", "--name", "mine"])).unwrap();
    assert_eq!(named.as_array().unwrap().len(), 1);
    let failed = command(&daemon, &["exec", id, "--", "sh", "-c", "exit 7"]);
    assert_eq!(failed.code, 7);
    let late = command(
        &daemon,
        &["exec", id, "--timeout", "200ms", "-c", "while True: pass"],
    );
    assert_eq!(late.code, 124, "{late:?}");
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path().join("data file.bin");
    let bytes: Vec<u8> = (0..=255).cycle().take(1_000_000).collect();
    fs::write(&here, &bytes).unwrap();
    run(&["cp", here.to_str().unwrap(), &format!("{id}:in/")]);
    run(&[
        "cp",
        &format!("{id}:in/data file.bin"),
        dir.path().join("back").to_str().unwrap(),
    ]);
    assert_eq!(fs::read(dir.path().join("back")).unwrap(), bytes);
    run(&["exec", id, "-c", "open('small', 'w').write('s')"]);
    assert_eq!(run(&["cp", &format!("{id}:small"), "-"]), "s");
    assert_eq!(run(&["rm", id]), "");
    // One that is gone does not save the others.
    let other = other["id"].as_str().unwrap();
    let removed = command(&daemon, &["rm", "--json", id, "sbx_x", other]);
    assert_eq!(removed.code, 125, "{removed:?}");
    let gone: Value = serde_json::from_str(&removed.stdout).unwrap();
    assert_eq!(gone, json!({"removed": [other]}));
    let told: Vec<_> = removed.stderr.lines().collect();
    assert!(
        told.len() == 2 && told[0].contains(id) && told[1].contains("sbx_x"),
        "{removed:?}"
    );
    assert_eq!(run(&["ps", "--json"]).trim(), "[]");
    for args in [
        &["rm", id][..],
        &["exec", id, "--", "ls"],
        &["cp", &format!("{id}:x"), "-"],
        &["cp", "a", "b"],
    ] {
        let ended = command(&daemon, args);
        assert_eq!(
            (ended.code, ended.stdout.as_str()),
            (125, ""),
            "{args:?} {ended:?}"
        );
    }
}

#[test]
fn whole_directories_are_copied() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let id = sandbox.rsplit('/').next().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path().join("tree");
    fs::create_dir_all(here.join("deep/empty")).unwrap();
    fs::write(here.join("deep/a file"), "a").unwrap();
    fs::write(here.join("run.sh"), "#!/bin/sh\necho ran\n").unwrap();
    fs::set_permissions(here.join("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("/etc/passwd", here.join("link")).unwrap();
    let run = |args: &[&str]| {
        let ended = command(&daemon, args);
        assert_eq!(ended.code, 0, "{args:?} {ended:?}");
        ended.stdout
    };
    let into = format!("{id}:in/");
    let ended = command(&daemon, &["cp", "--json", here.to_str().unwrap(), &into]);
    assert_eq!(
        (ended.code, ended.stderr.as_str()),
        (0, "belljar: left out link: it is a symbolic link\n"),
        "{ended:?}"
    );
    let copied: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(copied, json!({"files": 2, "bytes": 20, "left_out": 1}));
    let found = run(&[
        "exec",
        id,
        "--",
        "sh",
        "-c",
        "find in | sort; in/tree/run.sh",
    ]);
    let expected =
        "in\nin/tree\nin/tree/deep\nin/tree/deep/a file\nin/tree/deep/empty\nin/tree/run.sh\nran\n";
    assert_eq!(found, expected);

    // The workspace itself, however it is written.
    for (number, path) in ["", ".", "./", "./in/.."].into_iter().enumerate() {
        let out = dir.path().join(number.to_string());
        let ended = command(
            &daemon,
            &["cp", &format!("{id}:{path}"), out.to_str().unwrap()],
        );
        let fine = !path.contains("..");
        assert_eq!(ended.code == 0, fine, "{path} {ended:?}");
        assert_eq!(out.join("in/tree/run.sh").exists(), fine, "{path}");
    }
    let one = dir.path().join("one");
    run(&[
        "cp",
        &format!("{id}:./in/tree/deep/"),
        one.to_str().unwrap(),
    ]);
    assert_eq!(fs::read_to_string(one.join("a file")).unwrap(), "a");

    // Out of it again: what the code put there is a file or a directory, or stays there.
    run(&[
        "exec",
        id,
        "--",
        "sh",
        "-c",
        "cd in/tree; ln -s / out; mkfifo pipe",
    ]);
    let back = dir.path().join("back");
    run(&["cp", &format!("{id}:in/tree"), back.to_str().unwrap()]);
    assert_eq!(fs::read_to_string(back.join("deep/a file")).unwrap(), "a");
    assert!(back.join("deep/empty").is_dir());
    assert!(!back.join("out").exists() && !back.join("pipe").exists());
    let mode = fs::metadata(back.join("run.sh"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o7100, 0o100);
    // Into a directory that is there, under its own name; and the whole workspace.
    run(&["cp", &format!("{id}:in/tree"), dir.path().to_str().unwrap()]);
    assert!(here.join("deep/empty").is_dir());
    let all = dir.path().join("all");
    run(&["cp", &format!("{id}:"), all.to_str().unwrap()]);
    assert!(all.join("in/tree/run.sh").is_file());
    // Not one line for each of many.
    let links = dir.path().join("links");
    fs::create_dir(&links).unwrap();
    for number in 0..50 {
        symlink("/nowhere", links.join(number.to_string())).unwrap();
    }
    let many = command(&daemon, &["cp", links.to_str().unwrap(), &into]);
    assert!(
        many.code == 0 && many.stderr.lines().count() == 11 && many.stderr.contains("40 more"),
        "{many:?}"
    );
    let removed = run(&["rm", "--json", id]);
    let removed: Value = serde_json::from_str(&removed).unwrap();
    assert_eq!(removed, json!({"removed": [id]}));
}

#[test]
fn a_new_sandbox_is_as_it_was_asked_for() {
    let daemon = Daemon::start();
    let run = |args: &[&str]| {
        let ended = command(&daemon, args);
        assert_eq!(ended.code, 0, "{args:?} {ended:?}");
        ended.stdout.trim().to_owned()
    };
    let dir = directory(&[("a.txt", "text")]);
    let (text_file, bytes_file) = (dir.path().join("a.txt"), dir.path().join("b"));
    fs::write(&bytes_file, [0, 255, 10]).unwrap();
    let renamed = format!("in/b.bin={}", text(&bytes_file));
    let mut args = vec![
        "new",
        "--writable",
        "--max-runs",
        "2",
        "--backend",
        "native",
    ];
    let text_file = text(&text_file);
    args.extend(["--file", &text_file, "--file", &renamed]);
    let id = &run(&args);
    let script = "cat a.txt; od -An -tu1 in/b.bin; touch /usr/here && echo writable";
    assert_eq!(
        run(&["exec", id, "--", "sh", "-c", script]),
        "text   0 255  10\nwritable"
    );
    run(&["exec", id, "-c", "x = 1"]);
    assert_eq!(run(&["exec", id, "-c", "x"]), "1");
    let fresh = command(&daemon, &["exec", id, "-c", "x"]);
    assert!(fresh.stderr.contains("NameError"), "{fresh:?}");
    let id = &run(&["new", "--no-files"]);
    let denied = command(&daemon, &["exec", id, "-c", "open('/etc/passwd')"]);
    assert!(denied.stderr.contains("PermissionError"), "{denied:?}");
    let read_only = command(
        &daemon,
        &["exec", &run(&["new"]), "--", "touch", "/usr/here"],
    );
    assert_ne!(read_only.code, 0, "{read_only:?}");
    for (args, word) in [
        (["new", "--backend", "dokcer"], "native or docker"),
        (["new", "--max-runs", "0"], "max_runs"),
        (["new", "--file", "/nowhere/x"], "no such file"),
    ] {
        let ended = command(&daemon, &args);
        assert_eq!((ended.code, &*ended.stdout), (125, ""), "{ended:?}");
        assert!(ended.stderr.contains(word), "{ended:?}");
    }
}

#[test]
fn what_is_wrong_is_said_with_its_flag() {
    let daemon = Daemon::start();
    for (flags, said) in [
        (
            ["--label", "x"],
            "--label: \"x\" is not accepted; give NAME=VALUE",
        ),
        (
            ["--idle-timeout", "5"],
            "--idle-timeout: \"5\" is not accepted",
        ),
        (["--lifetime", "x"], "--lifetime: \"x\" is not accepted"),
        (["--language", "pyton"], "did you mean python"),
    ] {
        let refused = command(&daemon, &[&["new"][..], &flags].concat());
        assert!(
            refused.code == 125 && refused.stdout.is_empty() && refused.stderr.contains(said),
            "{refused:?}"
        );
    }
}

#[test]
fn history_and_show() {
    let daemon = Daemon::start();
    daemon.run(&json!({"code": "print(1)"}));
    let failed = daemon.run(&json!({"code": "totl = 1\nprint(total)"}));
    let id = failed["id"].as_str().unwrap();
    let listed = command(&daemon, &["history"]);
    assert!(
        listed.stdout.contains(id) && listed.stdout.contains("NameError"),
        "{listed:?}"
    );
    let only: Value = serde_json::from_str(
        &command(&daemon, &["history", "--status", "failed", "--json"]).stdout,
    )
    .unwrap();
    assert_eq!(only.as_array().unwrap().len(), 1);
    for (flags, count) in [
        (&["--until", "1h"][..], 0),
        (&["--since", "1h", "--tenant", "admin"], 2),
        (&["--tenant", "nobody"], 0),
    ] {
        let found = command(&daemon, &[&["history", "--json"], flags].concat());
        let found: Value = serde_json::from_str(&found.stdout).unwrap();
        assert_eq!(found.as_array().unwrap().len(), count, "{flags:?}");
    }
    let first = command(&daemon, &["history", "--limit", "1"]);
    assert!(
        first.stdout.lines().count() == 2 && first.stderr.contains("there are more"),
        "{first:?}"
    );
    let first = command(&daemon, &["history", "--limit", "1", "--json"]);
    assert!(first.stderr.contains("there are more"), "{first:?}");
    let shown = command(&daemon, &["show", id]);
    assert!(
        shown.stdout.contains(">    2 | print(total)")
            && shown.stdout.contains("did you mean totl"),
        "{shown:?}"
    );
    let all: Value =
        serde_json::from_str(&command(&daemon, &["show", "--json", id]).stdout).unwrap();
    assert_eq!(all["result"]["exit_code"], 1);
    // For programs and files: no colour, and one line for each.
    let ps = command(&daemon, &["ps"]);
    for text in [&ps.stdout, &listed.stdout, &shown.stdout] {
        assert!(!text.contains('\x1b'), "{text:?}");
    }
    assert_eq!(listed.stdout.lines().count(), 3, "{listed:?}");
    let absent = command(&daemon, &["show", "run_aaaqeayeaudaocajbifqydiob4"]);
    assert!(
        absent.code == 125 && absent.stderr.contains("not found"),
        "{absent:?}"
    );
    // By address and key, as from elsewhere.
    let mut over_tcp = belljar();
    over_tcp
        .arg("ps")
        .env("BELLJAR_URL", format!("http://{}", daemon.address))
        .env("BELLJAR_TOKEN", TOKEN);
    assert!(over_tcp.output().unwrap().status.success());
    let mut wrong = belljar();
    wrong
        .arg("ps")
        .env("BELLJAR_URL", format!("http://{}", daemon.address))
        .env("BELLJAR_TOKEN", "not-the-right-token");
    let ended: Ended = wrong.output().unwrap().into();
    assert!(
        ended.code == 125 && ended.stderr.contains("not known"),
        "{ended:?}"
    );
    // As it is where a variable that it is made from is not set: the socket's owner needs none.
    for empty in ["", " "] {
        let mut own = belljar();
        own.arg("ps")
            .env("BELLJAR_STATE_DIR", daemon.state.path())
            .env("BELLJAR_TOKEN", empty);
        let ended: Ended = own.output().unwrap().into();
        assert_eq!(ended.code, 0, "{ended:?}");
    }
    let mut nobody = belljar();
    nobody
        .arg("ps")
        .env("BELLJAR_URL", "unix:///nowhere/belljar.sock");
    let ended: Ended = nobody.output().unwrap().into();
    assert!(
        ended.code == 125 && ended.stderr.contains("belljar serve"),
        "{ended:?}"
    );
}

#[test]
fn keys_are_made_for_the_settings() {
    let output: Ended = belljar().arg("key").output().unwrap().into();
    let mut lines = output.stdout.lines();
    let (key, line) = (lines.next().unwrap(), lines.next().unwrap());
    let daemon = Daemon::with(&format!("[tenants.school]\n{line}\n"));
    assert_eq!(daemon.ask_as(key, "GET", "/v1/runs", b"").status, 200);
}

#[test]
fn a_sandbox_answers_to_its_name() {
    let daemon = Daemon::start();
    let run = |args: &[&str]| command(&daemon, args);
    let id = run(&["new", "--name", "my box"]).stdout;
    assert_eq!(run(&["exec", "my box", "-c", "x = 41"]).code, 0);
    assert_eq!(run(&["exec", id.trim(), "-c", "x + 1"]).stdout, "42\n");
    run(&["new", "--name", "my box"]);
    for args in [&["exec", "my box", "-c", "x"][..], &["rm", "my box"]] {
        let ended = run(args);
        assert_eq!(ended.code, 125, "{ended:?}");
        assert!(ended.stderr.contains("2 sandboxes are called"), "{ended:?}");
    }
    run(&["rm", id.trim()]);
    assert_eq!(run(&["rm", "my box"]).code, 0);
    for args in [&["rm", "my box"][..], &["exec", "my box", "-c", "x"]] {
        let ended = run(args);
        let told = "no sandbox has the id or the name \"my box\"; belljar ps lists";
        assert!(
            ended.code == 125 && ended.stderr.contains(told),
            "{ended:?}"
        );
    }
}
