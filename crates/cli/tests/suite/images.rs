//! Images from files, what is made of them, and running on them.

use std::path::Path;

use serde_json::{Value, json};
use tar::EntryType;

use super::daemon::{Daemon, until};
use super::harness::{Ended, directory, need_root};
use super::image_files::{
    PYTHON, Tar, command, image, import, python_root, read, saved, shared_state, tree,
};
use super::packages::{IMPORT, index};

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
    // The warm interpreter is the image's, and so are its copies. The run above may have warmed one of its own.
    until("the pool is warm", || {
        let depth = "belljar_pool_depth{pool=\"template:img\"} 1\n";
        daemon.get("/metrics").text().contains(depth) || daemon.log().contains("start cold")
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

/// A template's image may come after the daemon has started.
#[test]
fn a_pool_that_could_not_be_filled_is_tried_again() {
    let daemon = Daemon::at(
        directory(&[]),
        "[templates.late]\nimage = \"test/python\"\npool = 1\n",
    );
    until("it was tried in vain", || {
        daemon.log().contains("cannot be filled")
    });
    let root = python_root();
    let imported = image(
        daemon.state(),
        &["import", root.to_str().unwrap(), "--name", PYTHON],
    );
    assert_eq!(imported.code, 0, "{imported:?}");
    until("a sandbox waits", || {
        let depth = "belljar_pool_depth{pool=\"template:late\"} 1\n";
        daemon.get("/metrics").text().contains(depth)
    });
}

/// Everything that has to do with the network, with the image's own interpreter and installer.
#[test]
fn networks_and_packages_on_an_image() {
    let web = index();
    let daemon = Daemon::at(
        directory(&[]),
        &format!(
            "[images]\nallowed = ['test/*']\n[network]\nprivate = ['127.0.0.1']\n[packages]\npython = 'http://127.0.0.1:{}/simple'\n",
            web.port
        ),
    );
    let root = python_root();
    let imported = image(
        daemon.state(),
        &["import", root.to_str().unwrap(), "--name", PYTHON],
    );
    assert_eq!(imported.code, 0, "{imported:?}");
    let made = json!({"image": PYTHON, "packages": ["bjmore"], "network": {"allow": [format!("127.0.0.1:{}", web.port)], "intercept": true}});
    let path = daemon.sandbox(&made);
    let run = |code: &str| {
        let body = json!({"code": code});
        daemon.post(&format!("{path}/runs"), &body).ok()
    };
    let value = run(&format!(
        "{IMPORT} + [__import__('only_in_the_image').WHERE]"
    ))["value"]
        .clone();
    assert_eq!(
        value,
        json!(["bjdemo is here", "bjmore is here", "the image"])
    );
    let inside = "open('/etc/resolv.conf').read().split()[1], 'BEGIN CERT' in open(__import__('os').environ['SSL_CERT_FILE']).read()";
    assert_eq!(run(inside)["value"], json!(["127.0.0.1", true]));
    let install = json!({"shell": "python3 -m pip install --quiet --target /tmp/more bjdemo 2>&1; ls /tmp/more"});
    let done = daemon.post(&format!("{path}/commands"), &install).ok();
    assert!(
        done["stdout"].as_str().unwrap().contains("bjdemo.py"),
        "{done:#}"
    );
    // And with no network at all, from the layer.
    let body = json!({"image": PYTHON, "packages": ["bjmore"], "code": format!("{IMPORT}; print(bjmore.VALUE)")});
    assert_eq!(daemon.run(&body)["stdout"], "bjmore is here\n");
}
