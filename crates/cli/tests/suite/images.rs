//! Images from files, what is made of them, and running on them.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use serde_json::{Value, json};
use tar::EntryType;

use super::daemon::{Daemon, until};
use super::harness::{Ended, directory, need_root, need_tool};
use super::image_files::{
    PYTHON, Tar, command, counts, gzip, image, import, python_root, read, saved, shared_state, tree,
};

fn run(state: &Path, args: &[&str]) -> Ended {
    let mut all = vec!["--image", PYTHON];
    all.extend_from_slice(args);
    command(state, "run", &all).output().unwrap().into()
}

#[test]
fn code_runs_on_an_image() {
    let state = shared_state();
    let code = "
import os, sys, only_in_the_image as o
print(o.WHERE, sys.executable, os.getcwd(), os.environ['PATH'].split(':')[0])
print(os.getuid(), open('/etc/passwd').readline().split(':')[0], open('/etc/secret-of-root').read().strip())
print(oct(os.stat('/usr/bin/set-user-id').st_mode), sorted(os.listdir('/dev')))
for path in ['/etc/x', '/x', '/usr/lib/x', '/root/x']:
    try: open(path, 'w')
    except OSError as error: print(error.errno in (13, 30), end=' ')
open('mine', 'w'); open('/tmp/mine', 'w')";
    let ended = run(&state, &["-c", code]);
    assert_eq!(
        ended.parts(),
        (
            0,
            "the image /usr/bin/python3.11 /workspace /usr/local/sbin\n1000 sandbox secret\n0o100755 ['fd', 'full', \
             'null', 'random', 'shm', 'stderr', 'stdin', 'stdout', 'urandom', 'zero']\nTrue True True True ",
            ""
        )
    );
    // The host has other programs than the image.
    let ended = run(
        &state,
        &[
            "-l",
            "bash",
            "-c",
            "ls /usr/bin/perl /etc/shadow; cat /etc/os-release",
        ],
    );
    assert_eq!(
        ended.stdout, "PRETTY_NAME=\"a root for tests\"\n",
        "{ended:?}"
    );
    let ended = run(&state, &["-l", "ruby", "-c", "1"]);
    assert!(
        ended.code == 125
            && ended
                .stderr
                .contains("image test/python:latest has none of"),
        "{ended:?}"
    );
    let listed: Ended = command(&state, "runtimes", &["--image", PYTHON, "--json"])
        .output()
        .unwrap()
        .into();
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    let there: Vec<_> = listed
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["ok"] == true)
        .collect();
    let names: Vec<_> = there
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    assert!(
        names.contains(&"python") && names.contains(&"bash") && !names.contains(&"ruby"),
        "{names:?}"
    );
}

#[test]
fn the_report_names_the_image() {
    let state = shared_state();
    let root = |args: &[&str]| {
        let ended = run(&state, args);
        let result: Value =
            serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{ended:?}"));
        (
            result["report"]["root"].as_str().unwrap().to_owned(),
            result["report"]["read_only_root"].clone(),
        )
    };
    let (named, read_only) = root(&["--json", "-c", "1"]);
    assert!(
        named.starts_with("image test/python:latest (sha256:") && read_only == true,
        "{named}"
    );
    let host: Ended = command(&state, "run", &["--json", "-c", "1"])
        .output()
        .unwrap()
        .into();
    assert!(host.stdout.contains("\"root\":\"host\""), "{host:?}");
    let doctor: Ended = command(&state, "doctor", &[]).output().unwrap().into();
    assert!(
        doctor.stdout.contains("image store") && doctor.stdout.contains("1 images"),
        "{doctor:?}"
    );
}

#[test]
fn a_writable_layer_is_private_and_thrown_away() {
    let state = shared_state();
    let code = "echo x >> /etc/os-release && mv /usr/bin/mawk /usr/bin/other && touch /new /usr/lib/new && cat /etc/os-release";
    for _ in 0..2 {
        let ended = run(&state, &["--writable", "-l", "bash", "-c", code]);
        assert_eq!(
            ended.parts(),
            (0, "PRETTY_NAME=\"a root for tests\"\nx\n", "")
        );
    }
    assert_eq!(
        read(&tree(&state, "test/python:latest").join("etc/os-release")),
        b"PRETTY_NAME=\"a root for tests\"\n"
    );
}

#[test]
fn volumes_and_workspaces_go_where_the_image_has_nothing() {
    let state = shared_state();
    let dir = directory(&[("a", "from the host")]);
    let at = |target: &str| format!("{}:{target}", dir.path().display());
    for target in ["/data", "/srv/deep/er", "/opt/x"] {
        let code = format!("cat {target}/a; ls /usr/lib/python3/dist-packages/only* /usr/bin/id");
        let ended = run(
            &state,
            &["--volume", &at(target), "-l", "bash", "-c", &code],
        );
        assert!(
            ended.code == 0 && ended.stdout.starts_with("from the host/usr/bin/id"),
            "{target}: {ended:?}"
        );
    }
}

/// Layers over one another: whiteouts, opaque directories, links, what only stands above something.
#[test]
fn layers_become_one_root() {
    let state = directory(&[]);
    let state = state.path();
    let below = Tar::new()
        .dir("usr")
        .dir("usr/lib")
        .symlink("lib", "usr/lib")
        .symlink("abs", "/usr/lib")
        .file("gone", "1")
        .file("changed", "1")
        .dir("emptied")
        .file("emptied/old", "1")
        .dir("kept")
        .file("kept/old", "1")
        .file("usr/lib/one", "one")
        .hard_link("usr/lib/two", "usr/lib/one")
        .entry(EntryType::Char, "dev/null", "", 0o666, b"")
        .entry(EntryType::Fifo, "pipe", "", 0o666, b"")
        .entry(EntryType::Regular, "suid", "", 0o6755, b"x")
        .dir("to-file")
        .file("to-file/x", "")
        .file("to-dir", "")
        .bytes();
    let above = Tar::new()
        .file(".wh.gone", "")
        .file("changed", "2")
        .file("emptied/.wh..wh..opq", "")
        .file("emptied/new", "2")
        .file("kept/new", "2")
        .file("kept/.wh.nothing", "")
        // No entry for `lib` itself: it stays the link that it is.
        .file("lib/three", "three")
        .file("abs/four", "four")
        .hard_link("five", "usr/lib/one")
        .file("to-file", "now a file")
        .file("to-dir/x", "now a directory")
        .bytes();
    let layers = [below, above];
    let ended = import(state, &saved("team/app:1", &layers, &json!({})), &[]);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{ended:?}");
    let root = tree(state, "team/app:1");
    let text = |path: &str| {
        fs::read_to_string(root.join(path)).unwrap_or_else(|error| error.kind().to_string())
    };
    let missing = "entity not found";
    for (path, expected) in [
        ("gone", missing),
        ("changed", "2"),
        ("emptied/old", missing),
        ("emptied/new", "2"),
        ("kept/old", "1"),
        ("kept/new", "2"),
        ("usr/lib/three", "three"),
        ("usr/lib/four", "four"),
        ("five", "one"),
        ("to-file", "now a file"),
        ("to-dir/x", "now a directory"),
        (".wh.gone", missing),
        ("dev/null", missing),
        ("pipe", missing),
    ] {
        assert_eq!(text(path), expected, "{path}");
    }
    assert!(root.join("lib").is_symlink());
    let at = |path: &str| fs::metadata(root.join(path)).unwrap();
    assert_eq!(at("usr/lib/one").ino(), at("usr/lib/two").ino());
    assert_eq!(at("usr/lib/one").ino(), at("five").ino());
    assert_eq!(at("suid").permissions().mode() & 0o7777, 0o755);
    assert_eq!(at("suid").mtime(), 1_600_000_000);

    // Another image of the same layer shares its files; what only one needs goes with it.
    let ended = import(state, &saved("team/other:1", &layers[..1], &json!({})), &[]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(counts(state), [2, 2, 2, 0]);
    assert_eq!(
        fs::metadata(tree(state, "team/other:1").join("usr/lib/one"))
            .unwrap()
            .ino(),
        at("usr/lib/one").ino()
    );
    assert_eq!(image(state, &["rm", "team/app:1"]).code, 0);
    assert_eq!(counts(state), [1, 1, 1, 0]);
    assert_eq!(image(state, &["rm", "team/other:1"]).code, 0);
    assert_eq!(counts(state), [0, 0, 0, 0]);
    let again = image(state, &["rm", "team/other:1"]);
    assert!(
        again.code == 125 && again.stderr.contains("was not found"),
        "{again:?}"
    );
}

#[test]
fn what_the_image_says_about_itself() {
    let state = directory(&[]);
    let state = state.path();
    let settings = json!({
        "Env": ["PATH=/opt/bin:/usr/bin:/bin", "GREETING=hello", "PYTHONPATH=/opt/lib"],
        "User": "app", "WorkingDir": "/srv/app",
    });
    let extra = Tar::new()
        .dir("opt/lib")
        .file("opt/lib/of_the_path.py", "X = 7")
        .dir("srv/app")
        .symlink("linked", "/etc")
        .entry(EntryType::Regular, "opt/of-root", "", 0o600, b"secret")
        .bytes();
    let layers = [read(&python_root()), extra];
    let ended = import(state, &saved("app", &layers, &settings), &[]);
    assert_eq!(ended.code, 0, "{ended:?}");
    let code = "
import os, pwd, of_the_path
print(os.environ['GREETING'], os.environ['USER'], pwd.getpwuid(os.getuid()).pw_name, os.getcwd(), of_the_path.X)
open('writable', 'w')
try: open('/opt/of-root')
except PermissionError: print('private')";
    let ended: Ended = command(state, "run", &["--image", "app", "-c", code])
        .output()
        .unwrap()
        .into();
    need_root(
        "because what only an image's root may read is hidden from others by the owner of the files",
    );
    assert_eq!(
        ended.parts(),
        (0, "hello app app /srv/app 7\nprivate\n", "")
    );
    let input = b"import of_the_path as o; o.X + 1\n";
    let ended = repl(state, input);
    assert_eq!(ended.parts(), (0, "8\n", ""));
    // A link of the image is no place to mount something on: it could lead anywhere.
    let dir = directory(&[("a", "from the host")]);
    let volume = format!("{}:/linked/x", dir.path().display());
    let args = ["--image", "app", "--volume", &volume, "-c", "1"];
    let ended: Ended = command(state, "run", &args).output().unwrap().into();
    assert!(
        ended.code == 125 && ended.stderr.contains("no directory in the image"),
        "{ended:?}"
    );
    // What a caller says goes before what the image does.
    let args = [
        "--image",
        "app",
        "--env",
        "GREETING=mine",
        "-l",
        "bash",
        "-c",
        "echo $GREETING",
    ];
    let ended: Ended = command(state, "run", &args).output().unwrap().into();
    assert_eq!(ended.parts(), (0, "mine\n", ""));
}

fn repl(state: &Path, input: &[u8]) -> Ended {
    use std::io::Write;
    let mut child = command(state, "repl", &["--image", "app"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap().into()
}

/// Each is refused with a sentence, leaves nothing in the store, and touches nothing outside.
#[test]
#[expect(clippy::too_many_lines, reason = "a list of archives")]
fn hostile_archives() {
    let outside = directory(&[("canary", "untouched")]);
    let canary = outside.path().join("canary");
    let canary = canary.to_str().unwrap();
    let state = directory(&[]);
    let state = state.path();
    let up = format!("{}{}", "../".repeat(20), &canary[1..]);
    let deep = "d/".repeat(45);
    let large = gzip(&vec![0; 64 << 20]);
    let refused: Vec<(&str, Vec<u8>, &[&str], &str)> = vec![
        (
            "a path that leaves",
            Tar::new().file(&up, "x").bytes(),
            &[],
            "leads out",
        ),
        (
            "a hard link that leaves",
            Tar::new().hard_link("x", "../../etc/passwd").bytes(),
            &[],
            "leads out",
        ),
        (
            "a hard link to nothing",
            Tar::new().hard_link("x", "etc/passwd").bytes(),
            &[],
            "hard link to what is not there",
        ),
        (
            "a hard link to a directory",
            Tar::new().dir("d").hard_link("x", "d").bytes(),
            &[],
            "hard link to a directory",
        ),
        (
            "a file above a file",
            Tar::new().file("f", "").file("f/x", "").bytes(),
            &[],
            "where a directory should",
        ),
        (
            "a loop of links",
            Tar::new()
                .symlink("a", "b")
                .symlink("b", "a")
                .file("a/x", "")
                .bytes(),
            &[],
            "symbolic links",
        ),
        (
            "a link to nowhere",
            Tar::new().symlink("a", "").bytes(),
            &[],
            "leads nowhere",
        ),
        (
            "too deep",
            Tar::new()
                .entry(
                    EntryType::GNULongName,
                    "L",
                    "",
                    0,
                    deep.repeat(8).as_bytes(),
                )
                .file("x", "")
                .bytes(),
            &[],
            "too deep",
        ),
        (
            "a long name",
            Tar::new()
                .entry(EntryType::GNULongName, "L", "", 0, &vec![b'n'; 100_000])
                .file("x", "")
                .bytes(),
            &[],
            "too long",
        ),
        (
            "a file with holes",
            Tar::new()
                .entry(EntryType::XHeader, "x", "", 0, b"22 GNU.sparse.major=1\n")
                .file("x", "")
                .bytes(),
            &[],
            "holes",
        ),
        (
            "a broken header",
            Tar::new()
                .entry(EntryType::XHeader, "x", "", 0, b"99 path=x\n")
                .file("x", "")
                .bytes(),
            &[],
            "broken",
        ),
        (
            "an unknown kind",
            Tar::new()
                .entry(EntryType::new(b'Z'), "x", "", 0, b"")
                .bytes(),
            &[],
            "unknown kind",
        ),
        (
            "cut off",
            Tar::new().file("x", &"y".repeat(5000)).bytes()[..3000].to_vec(),
            &[],
            "middle",
        ),
        (
            "no archive",
            b"hello, this is no archive".repeat(100),
            &[],
            "tar",
        ),
        ("nothing", Vec::new(), &[], "empty"),
        ("a bomb of bytes", large, &["--max-size", "1m"], "larger"),
        (
            "a large file",
            Tar::new().file("x", &"y".repeat(9 << 20)).bytes(),
            &["--max-size", "8m"],
            "larger",
        ),
        (
            "a name that is none",
            saved("x", &[Tar::new().bytes()], &json!({})),
            &["--name", "x y"],
            "name of an image",
        ),
    ];
    for (what, bytes, args, sentence) in refused {
        let mut all = vec!["--name", "evil"];
        if args.contains(&"--name") {
            all.clear();
        }
        all.extend_from_slice(args);
        let ended = import(state, &bytes, &all);
        assert!(
            ended.code == 125 && ended.stderr.contains(sentence),
            "{what}: {ended:?}"
        );
        assert_eq!(counts(state), [0, 0, 0, 0], "{what}");
    }
    // Links out of the root are kept as what they are, and lead nowhere while it is unpacked.
    let links = Tar::new()
        .symlink("out", outside.path().to_str().unwrap())
        .file("out/canary", "changed")
        .symlink("up", &"../".repeat(20))
        .file("up/tmp/made-by-an-image", "x")
        .dir("out/made")
        .bytes();
    let ended = import(state, &links, &["--name", "links"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(fs::read_to_string(canary).unwrap(), "untouched");
    assert!(!outside.path().join("made").exists() && !Path::new("/tmp/made-by-an-image").exists());
    let root = tree(state, "links:latest");
    let inside = root.join(&canary[1..]);
    assert_eq!(fs::read_to_string(inside).unwrap(), "changed");
}

/// What is hidden from an image's user is hidden inside, wherever a link of a later layer leads.
#[test]
fn links_over_private_directories() {
    let outside = directory(&[("x/file", "")]);
    let place = outside.path().join("x");
    let state = directory(&[]);
    let below = Tar::new()
        .file("etc/passwd", "app:x:77:77::/:\n")
        .dir("d")
        .entry(EntryType::Directory, "d/x", "", 0o700, b"")
        .entry(EntryType::Regular, "d/x/file", "", 0o600, b"")
        .bytes();
    let above = Tar::new()
        .file(".wh.d", "")
        .symlink("d", outside.path().to_str().unwrap())
        .bytes();
    let settings = json!({"User": "app"});
    let ended = import(state.path(), &saved("app", &[below, above], &settings), &[]);
    assert_eq!(ended.code, 0, "{ended:?}");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&place), mode(&place.join("file"))), (0o755, 0o644));
}

#[test]
fn a_changed_layer_is_not_taken() {
    let state = directory(&[]);
    let state = state.path();
    let layer = Tar::new().file("x", "right").bytes();
    let bytes = saved("app", &[layer], &json!({}));
    let at = bytes.windows(5).position(|word| word == b"right").unwrap();
    let mut wrong = bytes.clone();
    wrong[at..at + 5].copy_from_slice(b"wrong");
    let ended = import(state, &wrong, &[]);
    assert!(
        ended.code == 125 && ended.stderr.contains("digest"),
        "{ended:?}"
    );
    assert_eq!(counts(state), [0, 0, 0, 0]);
    assert_eq!(import(state, &gzip(&bytes), &[]).code, 0);
    assert_eq!(counts(state), [1, 1, 1, 0]);
}

#[test]
fn a_full_disk() {
    need_root("to mount a small file system in a mount namespace of its own");
    need_tool("unshare", "util-linux");
    let dir = directory(&[]);
    let file = dir.path().join("big.tar");
    fs::write(&file, Tar::new().file("x", &"y".repeat(4 << 20)).bytes()).unwrap();
    let state = dir.path().join("state");
    fs::create_dir(&state).unwrap();
    let script = "mount -t tmpfs -o size=2m small \"$1\" && shift && \"$@\"; code=$?; find \"$BELLJAR_STATE_DIR/images\" -type f; exit $code";
    let file = file.to_str().unwrap();
    let inner = command(&state, "image", &["import", file, "--name", "big"]);
    let mut outer = std::process::Command::new("unshare");
    outer.args(["-m", "sh", "-c", script, "sh"]).arg(&state);
    outer.arg(inner.get_program()).args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    let ended: Ended = outer.output().unwrap().into();
    assert!(
        ended.code == 125 && ended.stderr.contains("the disk is full at"),
        "{ended:?}"
    );
    let left: Vec<_> = ended
        .stdout
        .lines()
        .filter(|line| !line.ends_with("/lock"))
        .collect();
    assert!(left.is_empty(), "{ended:?}");
}

/// What a crash leaves is swept by the next who adds something, and what is in use is not removed.
#[test]
fn leftovers_and_images_in_use() {
    let state = directory(&[]);
    let state = state.path();
    let root = python_root();
    assert_eq!(
        image(state, &["import", root.to_str().unwrap(), "--name", "app"]).code,
        0
    );
    fs::create_dir_all(state.join("images/tmp/dead/layer")).unwrap();
    fs::write(state.join("images/partial/half"), "x").unwrap();
    let mut child = command(
        state,
        "run",
        &[
            "--image",
            "app",
            "-c",
            "print('up', flush=True); input(); import json.tool; print('fine')",
        ],
    )
    .stdin(std::process::Stdio::piped())
    .stdout(std::process::Stdio::piped())
    .spawn()
    .unwrap();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    let removed = image(state, &["rm", "app", "--json"]);
    assert!(removed.stdout.contains("\"in_use\": 1"), "{removed:?}");
    assert_eq!(counts(state), [0, 1, 1, 0]);
    drop(child.stdin.take());
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut out, &mut rest).unwrap();
    child.wait().unwrap();
    assert_eq!(image(state, &["prune"]).code, 0);
    assert_eq!(counts(state), [0, 0, 0, 0]);
    assert_eq!(
        fs::read_dir(state.join("images/partial")).unwrap().count(),
        0
    );
}

#[test]
fn a_daemon_has_sessions_from_images() {
    let state = tempfile::Builder::new().prefix("bjd-").tempdir().unwrap();
    let root = python_root();
    let ended = image(
        state.path(),
        &["import", root.to_str().unwrap(), "--name", PYTHON],
    );
    assert_eq!(ended.code, 0, "{ended:?}");
    let other = import(
        state.path(),
        &saved("secret/app", &[Tar::new().bytes()], &json!({})),
        &[],
    );
    assert_eq!(other.code, 0, "{other:?}");
    let daemon = Daemon::at(
        state,
        "[images]\nallowed = [\"test/*\"]\n[templates.img]\nimage = \"test/python\"\npool = 1\npreload = [\"json\"]\n",
    );
    let result = daemon
        .run(&json!({"code": "import only_in_the_image as o; print(o.WHERE)", "image": PYTHON}));
    assert_eq!(result["stdout"], "the image\n");
    // The warm interpreter is the image's, and so are its copies.
    until("the pool is warm", || {
        daemon
            .get("/metrics")
            .text()
            .lines()
            .any(|line| line.starts_with("belljar_pool ") && line.ends_with(" 1"))
            || daemon.log().contains("start cold")
    });
    assert!(!daemon.log().contains("start cold"), "{}", daemon.log());
    for body in [
        json!({"template": "img"}),
        json!({"image": PYTHON}),
        json!({"image": PYTHON}),
    ] {
        let sandbox = daemon.sandbox(&body);
        let runs = format!("{sandbox}/runs");
        daemon
            .post(
                &runs,
                &json!({"code": "import only_in_the_image as o; x = 41"}),
            )
            .ok();
        let result = daemon.post(&runs, &json!({"code": "o.WHERE, x + 1"})).ok();
        assert_eq!(result["value"], json!(["the image", 42]), "{result}");
        let named = result["report"]["root"].as_str().unwrap();
        assert!(named.starts_with("image test/python:latest"), "{named}");
        let shell = daemon
            .post(
                &format!("{sandbox}/commands"),
                &json!({"shell": "cat /etc/os-release"}),
            )
            .ok();
        assert_eq!(shell["stdout"], "PRETTY_NAME=\"a root for tests\"\n");
    }
    // From the host, beside them.
    let sandbox = daemon.sandbox(&json!({}));
    let result = daemon
        .post(
            &format!("{sandbox}/runs"),
            &json!({"code": "import only_in_the_image"}),
        )
        .ok();
    assert_eq!(result["error"]["type"], "ModuleNotFoundError");
    let refused = |image: &str| {
        let answer = daemon.post("/v1/sandboxes", &json!({"image": image}));
        (answer.status, answer.code())
    };
    assert_eq!(refused("secret/app"), (403, "forbidden".into()));
    assert_eq!(refused("test/nothing"), (404, "not_found".into()));
    assert_eq!(refused("127.0.0.1:1/x"), (403, "forbidden".into()));
    assert_eq!(refused("a b"), (400, "invalid_request".into()));
}
