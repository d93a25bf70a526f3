//! Files of kept sandboxes over HTTP: theirs may be hostile.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::daemon::{Daemon, TOKEN};
use super::harness::need_tool;

pub fn names(listing: &Value) -> Vec<&str> {
    let files = listing["files"].as_array().unwrap();
    files
        .iter()
        .map(|file| file["path"].as_str().unwrap())
        .collect()
}

/// Where code has no files, none are put for it.
#[test]
fn a_sandbox_without_files_takes_none() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({"filesystem": "none"}));
    for path in ["files/a", "files/a?kind=directory", "archive"] {
        let refused = daemon.put(&format!("{sandbox}/{path}"), b"");
        assert_eq!(
            (refused.status, refused.code().as_str()),
            (400, "invalid_request"),
            "{path}"
        );
        let said = refused.text();
        assert!(said.contains("filesystem: none together with"), "{said}");
    }
}

#[test]
fn written_read_listed_deleted() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({"files": {"a/in.txt": "hello"}}));
    let at = |path: &str| format!("{sandbox}/files/{path}");
    let bytes: Vec<u8> = (0..=255).cycle().take(3_000_000).collect();
    let made = daemon.put(&at("b/c/data%20%C3%A9.bin"), &bytes);
    assert_eq!(
        (made.status, &made.json()["bytes"]),
        (201, &json!(3_000_000))
    );
    let read = daemon.get(&at("b/c/data%20%C3%A9.bin"));
    assert_eq!((read.status, read.body == bytes), (200, true));
    assert_eq!(read.headers["content-disposition"], "attachment");
    let code = "import os\ns = os.stat('b/c/data é.bin'); print(s.st_size, s.st_uid == os.getuid()); open('a/in.txt').read()";
    let seen = daemon
        .post(&format!("{sandbox}/runs"), &json!({ "code": code }))
        .ok();
    assert_eq!(
        (&seen["stdout"], &seen["value"]),
        (&json!("3000000 True\n"), &json!("hello"))
    );
    assert_eq!(daemon.put(&at("a/in.txt"), b"other").status, 201);
    assert_eq!(daemon.get(&at("a/in.txt")).text(), "other");
    assert_eq!(
        daemon.put(&at("new/dir?kind=directory"), b"").ok()["kind"],
        "directory"
    );
    let list = |query: &str| daemon.get(&format!("{sandbox}/files?{query}")).ok();
    assert_eq!(names(&list("")), ["a", "b", "new"]);
    assert_eq!(
        names(&list("depth=5")),
        [
            "a",
            "b",
            "new",
            "a/in.txt",
            "b/c",
            "b/c/data é.bin",
            "new/dir"
        ]
    );
    assert_eq!(names(&list("path=a")), ["a/in.txt"]);
    let page = list("depth=5&limit=3");
    assert_eq!(
        (names(&page), &page["next"]),
        (vec!["a", "b", "new"], &json!(3))
    );
    assert_eq!(
        names(&list("depth=5&limit=10&skip=5")),
        ["b/c/data é.bin", "new/dir"]
    );
    assert_eq!(daemon.delete(&at("b")).status, 204);
    for path in [at("b"), at("b/c"), format!("{sandbox}/files?path=b")] {
        assert_eq!(daemon.get(&path).status, 404, "{path}");
    }
    assert_eq!(daemon.delete(&at("b")).status, 404);
    for (path, status) in [("a", 400), ("a/in.txt/x", 400), ("none", 404)] {
        assert_eq!(daemon.get(&at(path)).status, status, "{path}");
    }
    assert_eq!(daemon.put(&at("a"), b"x").status, 400);
    for bad in ["limit=0", "limit=10001", "depth=-1", "x=1"] {
        assert_eq!(
            daemon.get(&format!("{sandbox}/files?{bad}")).status,
            400,
            "{bad}"
        );
    }
}

#[test]
fn ranges() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({"files": {"f": "0123456789"}}));
    let bearer = format!("Bearer {TOKEN}");
    let get = |range: &str| {
        let headers = [("Authorization", bearer.as_str()), ("Range", range)];
        daemon.raw("GET", &format!("{sandbox}/files/f"), &headers, b"")
    };
    for (range, status, text, content_range) in [
        ("bytes=2-4", 206, "234", "bytes 2-4/10"),
        ("bytes=-3", 206, "789", "bytes 7-9/10"),
        ("bytes=8-", 206, "89", "bytes 8-9/10"),
        ("bytes=0-1,4-5", 200, "0123456789", ""),
        ("pages=1", 200, "0123456789", ""),
    ] {
        let answer = get(range);
        assert_eq!(
            (answer.status, answer.text().as_str()),
            (status, text),
            "{range}"
        );
        assert_eq!(
            answer
                .headers
                .get("content-range")
                .map_or("", String::as_str),
            content_range
        );
    }
    // Whoever asks for the rest of what a file was gets what it is, all of it.
    let headers = [
        ("Authorization", bearer.as_str()),
        ("Range", "bytes=2-4"),
        ("If-Range", "\"before\""),
    ];
    let whole = daemon.raw("GET", &format!("{sandbox}/files/f"), &headers, b"");
    assert_eq!((whole.status, whole.text().as_str()), (200, "0123456789"));
    let beyond = get("bytes=10-");
    assert_eq!(
        (beyond.status, beyond.code().as_str()),
        (416, "invalid_range")
    );
    assert_eq!(beyond.headers["content-range"], "bytes */10");
}

#[test]
fn long_names_make_shorter_pages() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let code = "import os\nfor _ in range(8): os.mkdir('\\1' * 255); os.chdir('\\1' * 255)\nfor i in range(1000): open(f'{i:04}', 'w').close()";
    daemon
        .post(&format!("{sandbox}/runs"), &json!({ "code": code }))
        .ok();
    let (mut seen, mut skip, mut pages) = (0, 0, 0);
    loop {
        let path = format!("{sandbox}/files?depth=64&limit=10000&skip={skip}");
        let answer = daemon.get(&path);
        assert!(answer.body.len() < 8 << 20, "{}", answer.body.len());
        let page = answer.ok();
        seen += page["files"].as_array().unwrap().len();
        pages += 1;
        match page["next"].as_u64() {
            Some(next) => skip = next,
            None => break,
        }
    }
    assert_eq!(seen, 1008);
    assert!(pages > 1);
}

#[test]
fn paths_do_not_lead_out() {
    let daemon = Daemon::start();
    let outside = tempfile::Builder::new().prefix("bjout-").tempdir().unwrap();
    let canary = outside.path().join("canary");
    std::fs::write(&canary, "outside").unwrap();
    let sandbox = daemon.sandbox(&json!({}));
    let code = format!(
        "import os, socket\nos.symlink('/', 'root'); os.symlink('/etc/passwd', 'link'); os.symlink('{}', 'out'); os.mkfifo('fifo')\ns = socket.socket(socket.AF_UNIX); s.bind('sock'); os.symlink('.', 'here'); open('deep', 'w').write('x')",
        canary.display()
    );
    assert_eq!(
        daemon
            .post(&format!("{sandbox}/runs"), &json!({ "code": code }))
            .ok()["status"],
        "ok"
    );
    for path in [
        "../../etc/passwd",
        "%2e%2e/%2e%2e/etc/passwd",
        "..%2f..%2fetc%2fpasswd",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        "a//b",
        "./deep",
        "a/..%00",
        "..%5c..%5cetc",
        "root/etc/passwd",
        "link",
        "out",
        "fifo",
        "sock",
        "here/deep",
        "root",
        "%00",
        "%ff",
    ] {
        for method in ["GET", "PUT", "DELETE"] {
            let answer = daemon.ask_as(TOKEN, method, &format!("{sandbox}/files/{path}"), b"x");
            let replaced = method != "GET"
                && ["link", "out", "fifo", "sock", "root", "..%5c..%5cetc"].contains(&path);
            if replaced {
                // The name itself may be replaced or removed: it is the workspace's own. What it leads to is not touched.
                assert!(
                    [201, 204, 400, 404].contains(&answer.status),
                    "{method} {path} {}",
                    answer.text()
                );
            } else {
                assert!(
                    [400, 404].contains(&answer.status),
                    "{method} {path} {} {}",
                    answer.status,
                    answer.text()
                );
            }
        }
    }
    assert_eq!(std::fs::read_to_string(&canary).unwrap(), "outside");
    assert!(
        std::fs::read_to_string("/etc/passwd")
            .unwrap()
            .contains("root:")
    );
    for path in ["..", "root", "root/etc", "/etc", "%2e%2e"] {
        let answer = daemon.get(&format!("{sandbox}/files?path={path}"));
        assert!(
            [400, 404].contains(&answer.status),
            "{path} {}",
            answer.text()
        );
        let answer = daemon.get(&format!("{sandbox}/archive?path={path}"));
        assert!(
            [400, 404].contains(&answer.status),
            "{path} {}",
            answer.text()
        );
    }
}

#[test]
fn a_link_that_moves_under_us_leads_nowhere() {
    let daemon = Daemon::start();
    let outside = tempfile::Builder::new().prefix("bjout-").tempdir().unwrap();
    std::fs::write(outside.path().join("f"), "outside").unwrap();
    let sandbox = daemon.sandbox(&json!({"limits": {"timeout_ms": 60_000}}));
    let swap = format!(
        "import os\nos.mkdir('d'); open('d/f', 'w').write('inside'); os.symlink('{}', 'l')\nwhile True:\n  os.rename('d', 't'); os.rename('l', 'd'); os.rename('d', 'l'); os.rename('t', 'd')",
        outside.path().display()
    );
    std::thread::scope(|scope| {
        scope.spawn(|| daemon.post(&format!("{sandbox}/runs"), &json!({ "code": swap })));
        std::thread::sleep(Duration::from_millis(300));
        for round in 0..300 {
            let answer = daemon.get(&format!("{sandbox}/files/d/f"));
            assert_ne!(answer.text(), "outside");
            let _ = daemon.put(&format!("{sandbox}/files/d/new{round}"), b"x");
        }
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
        daemon.delete(&sandbox);
    });
}

#[test]
fn files_that_grow_or_are_too_large() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({"limits": {"disk_bytes": "8m", "timeout_ms": 60_000}}));
    let runs = format!("{sandbox}/runs");
    daemon
        .post(
            &runs,
            &json!({"code": "f = open('log', 'ab')\nf.write(b'x' * 100_000); f.flush()"}),
        )
        .ok();
    std::thread::scope(|scope| {
        scope.spawn(|| daemon.post(&runs, &json!({"code": "import time\nwhile True:\n  f.write(b'x'); f.flush(); f.truncate(100_000) if f.tell() > 200_000 else None"})));
        for _ in 0..20 {
            let answer = daemon.get(&format!("{sandbox}/files/log"));
            let promised: usize = answer.headers["content-length"].parse().unwrap();
            assert!(answer.body.len() <= promised);
        }
        let full = daemon.put(&format!("{sandbox}/files/big"), &vec![0; 8 << 20]);
        assert_eq!(
            (full.status, full.code().as_str()),
            (413, "disk_full"),
            "{}",
            full.text()
        );
        let over = daemon.put(&format!("{sandbox}/files/big"), &vec![0; 9 << 20]);
        assert_eq!((over.status, over.code().as_str()), (413, "body_too_large"));
        assert_eq!(daemon.get(&format!("{sandbox}/files/big")).status, 404);
        // Nothing is left of what did not fit.
        assert_eq!(
            names(&daemon.get(&format!("{sandbox}/files")).ok()),
            ["log"]
        );
        daemon.delete(&sandbox);
    });
}

/// An archive as Python's `tarfile` makes it; `body` adds to `t`.
pub fn tar(body: &str) -> Vec<u8> {
    let script = format!(
        "import tarfile, io, sys\nt = tarfile.open(fileobj=sys.stdout.buffer, mode='w|')\ndef add(name, data=b'', **k):\n  i = tarfile.TarInfo(name); i.size = len(data)\n  for a, v in k.items(): setattr(i, a, v)\n  t.addfile(i, io.BytesIO(data))\n{body}\nt.close()"
    );
    let output = Command::new("/usr/bin/python3")
        .args(["-c", &script])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    output.stdout
}

#[test]
fn whole_workspaces_as_archives() {
    need_tool("tar", "tar");
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let long = format!("{}/x", "long".repeat(30));
    let archive = tar(&format!(
        "add('./', type=tarfile.DIRTYPE)\nadd('./d/', type=tarfile.DIRTYPE)\nadd('d/f', b'one', mtime=1.5)\nadd('{long}', b'two')\nadd('é', b'three')"
    ));
    let unpacked = daemon.put(&format!("{sandbox}/archive"), &archive).ok();
    assert_eq!(
        (&unpacked["files"], &unpacked["bytes"]),
        (&json!(3), &json!(11))
    );
    let inside = "import os\nos.mkdir(b'\\xff'); open(b'\\xff/\\xfe', 'w').write('four')\nos.symlink('/etc/passwd', 'link'); os.mkfifo('fifo'); open('set', 'w').close(); open('e\\x1b[2J', 'w').close(); sorted(os.listdir())";
    let seen = daemon
        .post(&format!("{sandbox}/runs"), &json!({ "code": inside }))
        .ok();
    assert_eq!(seen["status"], "ok", "{seen}");
    let packed = daemon.get(&format!("{sandbox}/archive"));
    assert_eq!(
        (packed.status, packed.headers["content-type"].as_str()),
        (200, "application/x-tar")
    );
    let place = tempfile::tempdir().unwrap();
    let mut child = Command::new("tar")
        .args(["-x", "-p", "-C"])
        .arg(place.path())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&packed.body).unwrap();
    assert!(child.wait().unwrap().success());
    let read = |path: &str| std::fs::read_to_string(place.path().join(path)).unwrap();
    assert_eq!(
        (
            read("d/f").as_str(),
            read("é").as_str(),
            read(&format!("{}/x", "long".repeat(30))).as_str(),
            read("%FF/%FE").as_str()
        ),
        ("one", "three", "two", "four")
    );
    for absent in ["link", "fifo"] {
        assert!(
            std::fs::symlink_metadata(place.path().join(absent)).is_err(),
            "{absent}"
        );
    }
    assert!(std::fs::read_dir(place.path()).unwrap().all(|entry| {
        !entry
            .unwrap()
            .file_name()
            .to_string_lossy()
            .contains('\u{1b}')
    }));
    let part = daemon.get(&format!("{sandbox}/archive?path=d"));
    assert!(
        part.body.windows(3).any(|three| three == b"one")
            && !part.body.windows(5).any(|five| five == b"three")
    );
}

#[test]
fn archives_that_mean_harm_are_refused() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({"limits": {"disk_bytes": "8m"}}));
    for body in [
        "add('../x', b'x')",
        "add('/tmp/x', b'x')",
        "add('a/../../x', b'x')",
        "add('l', type=tarfile.SYMTYPE, linkname='/tmp')\nadd('l/x', b'x')",
        "add('h', type=tarfile.LNKTYPE, linkname='/etc/passwd')",
        "add('d', type=tarfile.CHRTYPE, devmajor=1, devminor=5)",
        "add('f', type=tarfile.FIFOTYPE)",
        "add('n' * 2000, b'x')",
        "add('p', b'x', pax_headers={'comment': 'x' * 1000000})",
        "add('p', b'x', pax_headers={'size': '99999999999'})",
        "add('a/' * 65 + 'x', b'x')",
        "add('big', b'x' * (9 << 20))",
    ] {
        let answer = daemon.put(&format!("{sandbox}/archive"), &tar(body));
        assert!(
            [400, 413].contains(&answer.status),
            "{body} {} {}",
            answer.status,
            answer.text()
        );
    }
    let many = daemon.put(
        &format!("{sandbox}/archive"),
        &tar("for i in range(100_001): add('d/', type=tarfile.DIRTYPE)"),
    );
    assert_eq!(many.status, 400, "{}", many.text());
    for junk in [&b"x"[..], &[0xff; 2000], b""] {
        let answer = daemon.put(&format!("{sandbox}/archive"), junk);
        assert!([200, 400].contains(&answer.status), "{}", answer.text());
    }
    // What it says about them is short, and plays no tricks on a terminal.
    let answer = daemon.put(&format!("{sandbox}/archive"), &b"\x1b[2Jx".repeat(300));
    let message = answer.json()["error"]["message"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        answer.status == 400 && message.contains("no tar file") && message.len() < 300,
        "{message}"
    );
    assert!(!message.contains(char::is_control), "{message:?}");
    // Bits that would lend rights are not taken; that it can be executed is.
    let bits = tar("add('d/suid', b'x', mode=0o6755)\nadd('d/plain', b'x', mode=0o4644)");
    let answer = daemon.put(&format!("{sandbox}/archive"), &bits);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let modes = "import os; [os.stat('d/' + name).st_mode & 0o7777 for name in ('suid', 'plain')]";
    let seen = daemon
        .post(&format!("{sandbox}/runs"), &json!({ "code": modes }))
        .ok();
    let executable = if super::backend::is_docker() {
        0o644
    } else {
        0o755
    };
    assert_eq!(seen["value"], json!([executable, 0o644]), "{seen}");
    assert_eq!(daemon.delete(&format!("{sandbox}/files/d")).status, 204);
    let left = daemon.get(&format!("{sandbox}/files?depth=9")).ok();
    assert!(
        names(&left).iter().all(|name| *name == "d" || *name == "l"),
        "{left}"
    );
}
