//! `filesystem: "none"`: no files and no processes, by the system's kernel.

use belljar::{Engine, PoolConfig, Session};
use belljar_spec::{CommandRequest, Filesystem, RunEvent, SandboxRequest, State, Status};
use serde_json::json;

use super::harness::{open, pool, run, run_request, toolchain};
use super::tests;

tests!["closed":
    python_without_files,
    a_copy_without_files,
    javascript_without_files,
    the_filters_are_seen_from_outside,
    others_are_refused,
];

fn closed() -> SandboxRequest {
    SandboxRequest {
        filesystem: Filesystem::None,
        ..SandboxRequest::default()
    }
}

/// What no Python code under this policy can do, and what it still can.
async fn holds_in(session: &Session) {
    let reading = "def error_of(action):\n    try:\n        return repr(action())[:60]\n    except BaseException as error:\n        return type(error).__name__\n\
                   import os, subprocess, ctypes\n\
                   places = ['/etc/passwd', '/etc/hosts', '/workspace/x', '/tmp/x', '/dev/shm/x', '/proc/self/environ', '/proc/self/status', '/usr/bin/env', 'x']\n\
                   {place: error_of(lambda: open(place)) for place in places if error_of(lambda: open(place)) not in ('PermissionError', 'FileNotFoundError')}";
    let result = run(session, reading).await;
    assert_eq!(result.value, Some(json!({})), "{:?}", result.error);
    assert_eq!(result.report.filesystem, "none");
    let result = run(session, "open('/etc/passwd')").await;
    let error = result.error.expect("an error");
    assert_eq!(
        (error.kind.as_str(), error.message.as_str()),
        (
            "PermissionError",
            "[Errno 13] Permission denied: '/etc/passwd'"
        )
    );
    let writing = "[error_of(lambda: open(place, 'w')) for place in ('/workspace/x', '/tmp/x', '/dev/shm/x', 'x', '/usr/lib/x')] + \
                   [error_of(lambda: os.mkdir('/tmp/d')), error_of(lambda: os.listdir('/')), error_of(lambda: os.listdir('.')), error_of(lambda: os.symlink('/', '/tmp/l'))]";
    let result = run(session, writing).await;
    let refused: Vec<_> = std::iter::repeat_n("PermissionError", 9).collect();
    let value = result.value.expect("a value");
    let value = value.as_array().expect("a list");
    // The system is read-only besides.
    assert!(
        value
            .iter()
            .zip(&refused)
            .all(|(got, refused)| got == refused || got == "OSError"),
        "{value:?}"
    );
    let starting = "libc = ctypes.CDLL(None, use_errno=True)\n\
                    def raw(*args):\n    result = libc.syscall(*args)\n    return [result, ctypes.get_errno()]\n\
                    [error_of(lambda: subprocess.run(['/bin/true'])), error_of(os.fork), error_of(lambda: os.system('true')), error_of(lambda: os.posix_spawn('/bin/true', ['true'], {})),\n \
                    error_of(lambda: os.execv('/bin/true', ['true'])), raw(56, 17, 0, 0, 0, 0), raw(56, 0x4000 | 0x100 | 17, 0, 0, 0, 0), raw(435, 0, 0)]";
    let result = run(session, starting).await;
    let expected = json!([
        "PermissionError",
        "PermissionError",
        "32512",
        "PermissionError",
        "PermissionError",
        [-1, 1],
        [-1, 1],
        [-1, 38]
    ]);
    assert_eq!(result.value, Some(expected), "{:?}", result.error);
    assert_eq!(result.state, State::Kept);
    let going_on = "import json, decimal, asyncio, zoneinfo, sqlite3, xml.dom.minidom, email.mime.text, threading\n\
                    heard = []\nthread = threading.Thread(target=lambda: heard.append(1)); thread.start(); thread.join()\n\
                    async def f(): return 3\n[heard, await f(), str(zoneinfo.ZoneInfo('Europe/Berlin'))]";
    let result = run(session, going_on).await;
    assert_eq!(
        result.value,
        Some(json!([[1], 3, "Europe/Berlin"])),
        "{:?}",
        result.error
    );
}

async fn python_without_files(engine: Engine) {
    let session = open(&engine, closed()).await;
    holds_in(&session).await;
    // Also for the one that takes its place.
    let result = run(&session, "import os; os._exit(1)").await;
    assert_eq!(result.state, State::Lost);
    holds_in(&session).await;
}

async fn a_copy_without_files(engine: Engine) {
    let pool = pool(&engine, PoolConfig::default()).await;
    assert_eq!(pool.trouble(), None);
    let session = pool.take(closed()).await.expect("session");
    // A copy comes from outside; what init has executed is a child of it.
    let result = run(&session, "import os; os.getppid()").await;
    assert_eq!(result.value, Some(0.into()), "{:?}", result.error);
    holds_in(&session).await;
    // Nor does it become another program, not even one that it brings along.
    let code = "import os\nbody = os.memfd_create('x')\nos.write(body, b'#!/bin/true')\n\
                [error_of(lambda: os.execve(body, ['x'], {})), raw(322, body, b'', 0, 0, 0x1000), raw(59, b'/usr/bin/python3', 0, 0)]";
    let result = run(&session, code).await;
    let expected = json!(["PermissionError", [-1, 1], [-1, 1]]);
    assert_eq!(result.value, Some(expected), "{:?}", result.error);
    // What waits in the pool for others is not closed.
    let other = pool.take(SandboxRequest::default()).await.expect("session");
    let result = run(
        &other,
        "open('x', 'w').close(); len(open('/etc/passwd').read()) > 0",
    )
    .await;
    assert_eq!(result.value, Some(true.into()), "{:?}", result.error);
    assert_eq!(result.report.filesystem, "workspace");
}

async fn javascript_without_files(engine: Engine) {
    let request = SandboxRequest {
        language: Some("javascript".into()),
        ..closed()
    };
    let session = open(&engine, request).await;
    let code = "const fs = require('fs'); const child = require('child_process');\n\
                const of = (f) => { try { return String(f()) } catch (e) { return e.code } };\n\
                [of(() => fs.readFileSync('/etc/passwd')), of(() => fs.writeFileSync('/tmp/x', '')), of(() => fs.readdirSync('/')),\n\
                of(() => child.execFileSync('/bin/true')), require('util').format('%d', 6 * 7)]";
    let result = run(&session, code).await;
    let expected = json!(["EACCES", "EACCES", "EACCES", "EPERM", "42"]);
    assert_eq!(result.value, Some(expected), "{:?}", result.error);
    let result = run(
        &session,
        "await new Promise(done => setTimeout(done, 5)); 1",
    )
    .await;
    assert_eq!((result.status, result.value), (Status::Ok, Some(1.into())));
}

/// The kernel counts them, and so does whoever can look.
async fn the_filters_are_seen_from_outside(engine: Engine) {
    let filters = async |request: SandboxRequest, which: u8| {
        let session = open(&engine, request).await;
        // It cannot read its own /proc, so it is found by a name that it gives itself. The one before may be there still.
        let name = format!("lone{which}-{}", std::process::id());
        let code = format!("import ctypes; ctypes.CDLL(None).prctl(15, b'{name}', 0, 0, 0)");
        let result = run_request(&session, &belljar_spec::CodeRequest::new(code)).await;
        assert_eq!(result.status, Status::Ok, "{:?}", result.error);
        let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
        let statuses =
            processes.filter_map(|entry| std::fs::read_to_string(entry.path().join("status")).ok());
        let status = statuses
            .into_iter()
            .find(|status| status.starts_with(&format!("Name:\t{name}\n")));
        let status = status.expect("the interpreter");
        let line = status
            .lines()
            .find(|line| line.starts_with("Seccomp_filters"));
        let count = line.expect("a count").split_whitespace().nth(1);
        count.expect("a number").parse::<u32>().expect("a number")
    };
    let open = filters(SandboxRequest::default(), 0).await;
    assert_eq!(filters(closed(), 1).await, open + 1);
}

async fn others_are_refused(engine: Engine) {
    for language in ["bash", "perl"] {
        let request = SandboxRequest {
            language: Some(language.into()),
            ..closed()
        };
        let opened = Session::open(&engine, toolchain(Some(language)), request).await;
        let error = opened.err().expect("refused").to_string();
        assert!(
            error.contains("filesystem none") && error.contains(language),
            "{error}"
        );
    }
    let request: SandboxRequest =
        serde_json::from_value(json!({ "filesystem": "none", "files": { "a": "b" } }))
            .expect("request");
    let opened = Session::open(&engine, toolchain(None), request).await;
    let error = opened.err().expect("refused").to_string();
    assert!(error.contains("files"), "{error}");
    let session = open(&engine, closed()).await;
    let command = CommandRequest {
        shell: Some("id".into()),
        ..CommandRequest::default()
    };
    let mut silent = |_: RunEvent| {};
    let ran = session.command(&command, &mut silent).await;
    assert!(
        ran.expect_err("refused")
            .to_string()
            .contains("filesystem none")
    );
}
