//! Packages: a small index on loopback with wheels that are built here; pip and npm run in jars.

use std::collections::HashMap;
use std::fs::{self, DirEntry};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::daemon::{Daemon, HANG};
use super::harness::{Ended, belljar, directory, need_tool};
use super::host::eventually;
use super::servers::{Asked, Reply, Web};

/// Builds `bjdemo-1.0`, `bjmore-1.0`, which needs the other, and `bjbusy-1.0`, which starts a thread, `bjtrace-1.0`, which has its hands in the
/// allocators, and `bjtalk-1.0`, which talks to the keeper, as wheels, and `bjnode-1.0.0` as npm has it.
const BUILD: &str = r#"
import base64, hashlib, io, json, sys, tarfile, zipfile
def wheel(name, needs, more=""):
    info = f"{name}-1.0.dist-info"
    files = {f"{name}.py": f"VALUE = '{name} is here'\n{more}", f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
             f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n" + "".join(f"Requires-Dist: {one}\n" for one in needs)}
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in files) + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(f"{name}-1.0-py3-none-any.whl", "w") as out:
        for path, text in files.items(): out.writestr(path, text)
    data = open(f"{name}-1.0-py3-none-any.whl", "rb").read()
    open(f"{name}.sha256", "w").write(hashlib.sha256(data).hexdigest())
wheel("bjdemo", [])
wheel("bjmore", ["bjdemo"])
wheel("bjbusy", [], "import threading, time\nthreading.Thread(target=time.sleep, args=[600], daemon=True).start()\n")
wheel("bjtrace", [], "import tracemalloc\ntracemalloc.start()\n")
wheel("bjtalk", [], "import os, sys\nwhile '/belljar/zygote.py' in sys.orig_argv: os.write(3, bytes(65536))\n")
GREEDY = "import os, time\nfor n in range(12):\n    with open(os.path.join(os.environ['TMPDIR'], str(n)), 'wb') as out: os.posix_fallocate(out.fileno(), 0, 8 << 20)\ntime.sleep(20)\nraise SystemExit('it was given 96 MiB')\n"
with tarfile.open("bjgreedy-1.0.tar.gz", "w:gz") as out:
    for path, text in {"pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = 'greedy'\nbackend-path = ['.']\n", "greedy.py": GREEDY, "PKG-INFO": "Metadata-Version: 2.1\nName: bjgreedy\nVersion: 1.0\n"}.items():
        entry = tarfile.TarInfo("bjgreedy-1.0/" + path); entry.size = len(text); entry.mode = 0o644
        out.addfile(entry, io.BytesIO(text.encode()))
with tarfile.open("bjnode-1.0.0.tgz", "w:gz") as out:
    for path, text in {"package/package.json": json.dumps({"name": "bjnode", "version": "1.0.0", "main": "index.js"}), "package/index.js": "module.exports = 'bjnode is here';\n"}.items():
        entry = tarfile.TarInfo(path); entry.size = len(text); entry.mode = 0o644
        out.addfile(entry, io.BytesIO(text.encode()))
data = open("bjnode-1.0.0.tgz", "rb").read()
open("bjnode.integrity", "w").write("sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode())
"#;

fn built() -> TempDir {
    need_tool("python3", "python3");
    assert!(
        Path::new("/usr/lib/python3/dist-packages/pip").is_dir(),
        "this test needs pip: apt-get install python3-pip"
    );
    let place = directory(&[]);
    let done = Command::new("/usr/bin/python3")
        .args(["-c", BUILD])
        .current_dir(place.path())
        .status()
        .unwrap();
    assert!(done.success());
    place
}

pub fn index() -> Web {
    serve(&built())
}

/// By their names.
type Files = HashMap<String, Vec<u8>>;

fn serve(place: &TempDir) -> Web {
    let read = |entry: io::Result<DirEntry>| {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        (name, fs::read(entry.path()).unwrap())
    };
    // In memory: a server has no end at which its directory would go.
    let files: Files = fs::read_dir(place.path()).unwrap().map(read).collect();
    Web::start(move |asked| page(&files, asked))
}

fn page(files: &Files, asked: &Asked) -> Reply {
    let path = asked.path().trim_matches('/').to_owned();
    let read = |name: &str| String::from_utf8(files[name].clone()).unwrap();
    let host = asked.headers.get("host").cloned().unwrap_or_default();
    match path.split('/').collect::<Vec<_>>()[..] {
        [
            "simple",
            name @ ("bjdemo" | "bjmore" | "bjbusy" | "bjtrace" | "bjtalk"),
        ] => {
            let (file, hash) = (
                format!("{name}-1.0-py3-none-any.whl"),
                read(&format!("{name}.sha256")),
            );
            let link = format!("<a href=\"/files/{file}#sha256={hash}\">{file}</a>");
            Reply(
                "200 OK\r\nContent-Type: text/html".into(),
                link.into_bytes(),
            )
        }
        ["simple", "bjgreedy"] => Reply(
            "200 OK\r\nContent-Type: text/html".into(),
            b"<a href=\"/files/bjgreedy-1.0.tar.gz\">bjgreedy-1.0.tar.gz</a>".to_vec(),
        ),
        ["simple", "bjforged"] => {
            let hash = "0".repeat(64);
            let link = format!(
                "<a href=\"/files/bjforged-1.0-py3-none-any.whl#sha256={hash}\">bjforged-1.0-py3-none-any.whl</a>"
            );
            Reply(
                "200 OK\r\nContent-Type: text/html".into(),
                link.into_bytes(),
            )
        }
        // Its files are with somebody else.
        ["simple", "bjaway"] => Reply(
            "302 Found\r\nLocation: http://files.test/bjaway".into(),
            Vec::new(),
        ),
        ["files", "bjforged-1.0-py3-none-any.whl"] => {
            Reply::ok(files["bjdemo-1.0-py3-none-any.whl"].clone())
        }
        ["files", file] => Reply::ok(files[file].clone()),
        ["bjnode"] => {
            let version = json!({"name": "bjnode", "version": "1.0.0", "dist": {
                "tarball": format!("http://{host}/files/bjnode-1.0.0.tgz"), "integrity": read("bjnode.integrity")}});
            let about = json!({"name": "bjnode", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}});
            Reply(
                "200 OK\r\nContent-Type: application/json".into(),
                about.to_string().into_bytes(),
            )
        }
        _ => Reply("404 Not Found".into(), b"no such package".to_vec()),
    }
}

fn fetched(web: &Web, file: &str) -> usize {
    let asked = web.asked();
    asked.iter().filter(|one| one.path().contains(file)).count()
}

fn settings(port: u16) -> String {
    format!(
        "[network]\nprivate = ['127.0.0.1']\n[packages]\npython = 'http://127.0.0.1:{port}/simple'\n\
         javascript = 'http://127.0.0.1:{port}/'\ntimeout = '1m'\n"
    )
}

pub const IMPORT: &str = "import bjdemo, bjmore; [bjdemo.VALUE, bjmore.VALUE]";

fn session(daemon: &Daemon, body: &Value) -> String {
    let made = daemon.post("/v1/sandboxes", body).ok();
    format!("/v1/sandboxes/{}", made["id"].as_str().unwrap())
}

/// The directories of servers, which nobody ends, would be left on the host.
#[test]
fn an_index_needs_its_directory_no_more() {
    let place = built();
    let path = place.path().to_owned();
    let web = serve(&place);
    drop(place);
    assert!(!path.exists());
    let mut stream = TcpStream::connect(("127.0.0.1", web.port)).unwrap();
    stream
        .write_all(b"GET /files/bjnode-1.0.0.tgz HTTP/1.1\r\n\r\n")
        .unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200 OK"));
}

#[test]
fn installed_once_shared_and_verified() {
    let web = index();
    let daemon = Arc::new(Daemon::with(&settings(web.port)));
    let wanted = json!({"packages": ["bjmore==1.*"]});
    let all: Vec<_> = (0..3)
        .map(|_| {
            let (daemon, wanted) = (Arc::clone(&daemon), wanted.clone());
            thread::spawn(move || {
                let path = session(&daemon, &wanted);
                daemon
                    .post(&format!("{path}/runs"), &json!({"code": IMPORT}))
                    .ok()
            })
        })
        .collect();
    for one in all {
        let result = one.join().unwrap();
        assert_eq!(
            result["value"],
            json!(["bjdemo is here", "bjmore is here"]),
            "{result:#}"
        );
        // There was a network while it was installed; there is none now.
        assert_eq!(result["report"]["network"], "none");
    }
    // Three asked, one installed, with what it needs.
    assert_eq!(
        (fetched(&web, "bjmore-1.0"), fetched(&web, "bjdemo-1.0")),
        (1, 1)
    );
    let body = json!({"code": "import bjmore, os; print(bjmore.VALUE, os.access('/packages', os.W_OK))", "packages": ["bjmore==1.*"]});
    let result = daemon.post("/v1/runs", &body).ok();
    assert_eq!(result["stdout"], "bjmore is here False\n", "{result:#}");
    assert_eq!(fetched(&web, "bjmore-1.0"), 1);
    // Another process looks at what is there, and does not use what is not what it was.
    let layers = daemon.state.path().join("packages/layers");
    let layer = fs::read_dir(&layers)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    fs::write(layer.join("bjmore.py"), "VALUE = 'forged'").unwrap();
    let state = daemon.state.path().to_owned();
    let ended: Ended = belljar()
        .args([
            "run",
            "--package",
            "bjmore==1.*",
            "-c",
            "import bjmore; print(bjmore.VALUE)",
        ])
        .env("BELLJAR_STATE_DIR", &state)
        .env(
            "PIP_INDEX_URL",
            format!("http://127.0.0.1:{}/simple", web.port),
        )
        .output()
        .unwrap()
        .into();
    assert_eq!(ended.parts(), (0, "bjmore is here\n", ""));
    assert_eq!(fetched(&web, "bjmore-1.0"), 2);
}

#[test]
fn what_goes_wrong_is_told_in_the_installers_words() {
    let web = index();
    let daemon = Daemon::with(&settings(web.port));
    let ask = |package: &str| daemon.post("/v1/runs", &json!({"code": "1", "packages": [package]}));
    let missing = ask("bjnothere");
    assert_eq!(
        (missing.status, missing.code().as_str()),
        (422, "packages_failed")
    );
    assert!(
        missing
            .text()
            .contains("No matching distribution found for bjnothere"),
        "{}",
        missing.text()
    );
    let forged = ask("bjforged");
    assert!(
        forged.text().contains("DO NOT MATCH THE HASHES"),
        "{}",
        forged.text()
    );
    // Who was not reached is told, where the installer does not say so.
    let away = ask("bjaway");
    let refused = "refused: no rule allows files.test:80 (packages.hosts)";
    assert!(away.text().contains(refused), "{}", away.text());
    let fits = ask("bjdemo==9.*");
    assert!(fits.text().contains("bjdemo"), "{}", fits.text());
    for bad in [
        "--index-url=http://x/",
        "-e.",
        "./here",
        "a @ http://x/y",
        "a\nb",
        "",
    ] {
        let refused = ask(bad);
        assert_eq!(refused.status, 400, "{bad} {}", refused.text());
    }
    let ruby = daemon.post(
        "/v1/runs",
        &json!({"code": "1", "language": "bash", "packages": ["a"]}),
    );
    assert_eq!((ruby.status, ruby.code().as_str()), (422, "not_supported"));
    // Nothing of all that is kept.
    let left = fs::read_dir(daemon.state.path().join("packages/making"))
        .unwrap()
        .count();
    assert_eq!(left, 0);
}

#[test]
fn an_index_that_hangs_is_given_up() {
    let hangs = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = hangs.local_addr().unwrap().port();
    let daemon = Daemon::with(&settings(port).replace("'1m'", "'3s'"));
    let began = Instant::now();
    let refused = daemon.post("/v1/runs", &json!({"code": "1", "packages": ["bjdemo"]}));
    assert_eq!(refused.code(), "packages_failed", "{}", refused.text());
    assert!(
        refused.text().contains("did not finish within 3 s"),
        "{}",
        refused.text()
    );
    assert!(began.elapsed() < HANG);
    // Others are not held up, nor are templates that come later.
    assert_eq!(daemon.run(&json!({"code": "print(1)"}))["stdout"], "1\n");
    let daemon = Daemon::with(&format!(
        "{}[templates.a]\npackages = ['bjdemo']\npool = 1\n[templates.b]\npool = 1\n[pool]\npython = 0\n",
        settings(port)
    ));
    eventually("the other template is ready", || {
        daemon.get("/metrics").text().contains("belljar_pool 1")
    });
    drop(hangs);
}

/// What is installed runs code, which writes to the host's disk.
#[test]
fn what_takes_too_much_of_the_disk_is_ended() {
    let web = index();
    let daemon = Daemon::with(&format!("{}bytes = '64m'\n", settings(web.port)));
    let refused = daemon.post("/v1/runs", &json!({"code": "1", "packages": ["bjgreedy"]}));
    assert_eq!(refused.code(), "packages_failed", "{}", refused.text());
    assert!(
        refused.text().contains("more than 64 MiB"),
        "{}",
        refused.text()
    );
    let place = daemon.state.path().join("packages");
    assert_eq!(fs::read_dir(place.join("making")).unwrap().count(), 0);
    let body = json!({"code": "import bjdemo; print(bjdemo.VALUE)", "packages": ["bjdemo"]});
    assert_eq!(daemon.run(&body)["stdout"], "bjdemo is here\n");
}

#[test]
fn those_who_wait_for_an_index_take_no_room_of_others() {
    let hangs = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = hangs.local_addr().unwrap().port();
    let settings = settings(port).replace("'1m'", "'15s'");
    let budget = "[budget]\nmemory_bytes = '1g'\nqueue_timeout = '3s'\n[pool]\npython = 0\n";
    let daemon = Arc::new(Daemon::with(&format!("{settings}{budget}")));
    let all: Vec<_> = (0..6)
        .map(|number| {
            let daemon = Arc::clone(&daemon);
            let body = json!({"code": "1", "packages": [format!("bjslow{number}")], "limits": {"memory_bytes": "300m"}});
            thread::spawn(move || {
                let answer = daemon.post("/v1/runs", &body);
                (answer.status, answer.code())
            })
        })
        .collect();
    let making = daemon.state.path().join("packages/making");
    eventually("one of them is being installed", || {
        fs::read_dir(&making).is_ok_and(|listing| listing.count() > 0)
    });
    let body = json!({"code": "print(1)", "limits": {"memory_bytes": "300m"}});
    assert_eq!(daemon.run(&body)["stdout"], "1\n");
    assert!(
        all.iter().any(|one| !one.is_finished()),
        "the index answered"
    );
    let answers: Vec<_> = all.into_iter().map(|one| one.join().unwrap()).collect();
    let count = |status, code: &str| {
        let same = |one: &&(u16, String)| one.0 == status && one.1 == code;
        answers.iter().filter(same).count()
    };
    assert_eq!(
        (count(422, "packages_failed"), count(429, "overloaded")),
        (1, 5),
        "{answers:?}"
    );
    drop(hangs);
}

#[test]
fn pip_in_a_session_whose_rules_allow_the_index() {
    let web = index();
    let daemon = Daemon::with(&settings(web.port));
    let path = session(
        &daemon,
        &json!({"network": [format!("127.0.0.1:{}", web.port)]}),
    );
    let install = json!({"shell": "python3 -m pip install --quiet bjmore 2>&1"});
    let done = daemon.post(&format!("{path}/commands"), &install).ok();
    assert_eq!(done["exit_code"], 0, "{done:#}");
    assert!(
        done["connections"].as_array().unwrap().len() >= 2,
        "{done:#}"
    );
    let run = |code: &str| {
        daemon
            .post(&format!("{path}/runs"), &json!({"code": code}))
            .ok()
    };
    assert_eq!(
        run(IMPORT)["value"],
        json!(["bjdemo is here", "bjmore is here"])
    );
    let closed = session(&daemon, &json!({"network": []}));
    let done = daemon.post(&format!("{closed}/commands"), &install).ok();
    assert_ne!(done["exit_code"], 0, "{done:#}");
}

#[test]
fn the_pool_of_a_template_has_them_loaded() {
    let web = index();
    let template = "[templates.data]\npackages = ['bjmore']\npreload = ['bjmore']\npool = 1\n[pool]\npython = 0\n";
    let daemon = Daemon::with(&format!("{}{template}", settings(web.port)));
    eventually("a sandbox is ready", || {
        daemon.get("/metrics").text().contains("belljar_pool 1")
    });
    // Whoever takes one that waits does not look for them again.
    fs::remove_dir_all(daemon.state.path().join("packages/sets")).unwrap();
    let path = session(&daemon, &json!({"template": "data"}));
    assert_eq!(fetched(&web, "bjmore-1.0"), 1);
    let body = json!({"code": "import sys; loaded = 'bjmore' in sys.modules; import bjmore; [loaded, bjmore.VALUE]"});
    let result = daemon.post(&format!("{path}/runs"), &body).ok();
    assert_eq!(
        result["value"],
        json!([true, "bjmore is here"]),
        "{result:#} {}",
        daemon.log()
    );
}

/// A daemon with one sandbox that waits, whose interpreter has loaded this package ahead, and a session of that kind.
fn preloaded(web: &Web, package: &str) -> (Daemon, String) {
    let template = format!(
        "[templates.data]\npackages = ['{package}']\npreload = ['{package}']\npool = 1\n[pool]\npython = 0\n"
    );
    let daemon = Daemon::with(&format!("{}{template}", settings(web.port)));
    eventually("a sandbox is ready", || {
        daemon.get("/metrics").text().contains("belljar_pool 1")
    });
    let path = session(&daemon, &json!({"template": "data"}));
    (daemon, path)
}

/// A process with threads cannot be copied: each interpreter is started then, and whoever runs the daemon is told why.
#[test]
fn one_that_starts_a_thread_when_loaded_ahead_costs_time_only() {
    let web = index();
    let (daemon, path) = preloaded(&web, "bjbusy");
    let body = json!({"code": "import bjbusy; bjbusy.VALUE"});
    let result = daemon.post(&format!("{path}/runs"), &body).ok();
    assert_eq!(result["value"], "bjbusy is here", "{result:#}");
    let log = daemon.log();
    assert!(
        log.contains("interpreters start cold") && log.contains("starts threads"),
        "{log}"
    );
}

/// What it says without end keeps nobody, and it is not copied.
#[test]
fn one_that_talks_to_the_keeper_costs_time_only() {
    let web = index();
    let (daemon, path) = preloaded(&web, "bjtalk");
    let body = json!({"code": "import bjtalk, os; [bjtalk.VALUE, os.getppid()]"});
    let result = daemon.post(&format!("{path}/runs"), &body).ok();
    // Nobody inside is a copy's parent; whatever started cold is a child of the sandbox's init.
    assert_eq!(result["value"], json!(["bjtalk is here", 1]), "{result:#}");
    eventually("whoever runs the daemon is told", || {
        daemon.log().contains("interpreters start cold")
    });
}

/// What the interpreter has given while it was traced can be given back when it no longer is.
#[test]
fn one_that_traces_memory_when_loaded_ahead_can_stop() {
    let web = index();
    let (daemon, path) = preloaded(&web, "bjtrace");
    let code = "import gc, tracemalloc
traced = tracemalloc.is_tracing()
kept = [[number] for number in range(500)]
tracemalloc.stop()
del kept
gc.collect()
kept = [[number] for number in range(5000)]
[traced, len(kept)]";
    let result = daemon
        .post(&format!("{path}/runs"), &json!({"code": code}))
        .ok();
    assert_eq!(result["value"], json!([true, 5000]), "{result:#}");
}

#[test]
fn what_nobody_has_used_for_long_goes() {
    let web = index();
    let state = tempfile::Builder::new().prefix("bjd-").tempdir().unwrap();
    let daemon = Daemon::at(state, &settings(web.port));
    let run = |daemon: &Daemon, package: &str| {
        let module = package.split("==").next().unwrap();
        let body = json!({"code": format!("import {module}"), "packages": [package]});
        assert_eq!(daemon.run(&body)["status"], "ok");
    };
    run(&daemon, "bjdemo");
    let place = daemon.state().join("packages");
    let layers = || -> Vec<_> {
        let listing = fs::read_dir(place.join("layers")).unwrap().flatten();
        listing.map(|entry| entry.path()).collect()
    };
    let old = layers();
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_hours(24 * 40);
    let age = || {
        fs::File::open(&old[0])
            .unwrap()
            .set_modified(long_ago)
            .unwrap();
    };
    age();
    // It is old, but this daemon uses it.
    run(&daemon, "bjmore");
    assert_eq!(layers().len(), 2);
    let daemon = Daemon::at(daemon.kill(), &settings(web.port));
    age();
    run(&daemon, "bjmore==1.0");
    eventually("the old layer goes", || !old[0].exists());
    // And comes back when it is asked for.
    run(&daemon, "bjdemo");
}

#[test]
fn npm_too() {
    need_tool("npm", "npm");
    let web = index();
    let daemon = Daemon::with(&settings(web.port));
    let body = json!({"language": "javascript", "packages": ["bjnode@1"], "code": "console.log(require('bjnode'))"});
    let answer = daemon.post("/v1/runs", &body);
    assert_eq!(
        answer.ok()["stdout"],
        "bjnode is here\n",
        "{}",
        answer.text()
    );
    let again = daemon.post("/v1/runs", &body).ok();
    assert_eq!(again["stdout"], "bjnode is here\n");
    assert_eq!(fetched(&web, "bjnode-1.0.0.tgz"), 1);
}

#[test]
fn npm_in_a_session_whose_rules_allow_the_registry() {
    need_tool("npm", "npm");
    let web = index();
    let daemon = Daemon::with(&settings(web.port));
    let install = json!({"shell": "npm install --silent bjnode 2>&1"});
    let body = json!({"language": "javascript", "network": [format!("127.0.0.1:{}", web.port)]});
    let path = session(&daemon, &body);
    let done = daemon.post(&format!("{path}/commands"), &install).ok();
    assert_eq!(done["exit_code"], 0, "{done:#}");
    let body = json!({"code": "require('bjnode')"});
    let result = daemon.post(&format!("{path}/runs"), &body).ok();
    assert_eq!(result["value"], "bjnode is here", "{result:#}");
    let closed = session(&daemon, &json!({"language": "javascript", "network": []}));
    let done = daemon.post(&format!("{closed}/commands"), &install).ok();
    assert_ne!(done["exit_code"], 0, "{done:#}");
}
