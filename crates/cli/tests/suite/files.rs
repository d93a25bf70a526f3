//! Files that go in, files that come out, and what can be written.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::harness::{directory, is_root, json, marker, python, run, text};

#[test]
fn files_are_copied_into_the_workspace() {
    let dir = directory(&[("data.csv", "1,2\n"), ("other.txt", "other")]);
    let at = |name: &str| text(dir.path().join(name));
    let code = "
import os
print(open('data.csv').read().strip(), open('deep/er/renamed').read())
with open('data.csv', 'a') as f: f.write('more')
os.mkdir('deep/new')
";
    let ended = run(&[
        "--file",
        &at("data.csv"),
        "--file",
        &format!("deep/er/renamed={}", at("other.txt")),
        "-c",
        code,
    ]);
    assert_eq!(ended.parts(), (0, "1,2 other\n", ""));
    assert_eq!(
        fs::read_to_string(at("data.csv")).unwrap(),
        "1,2\n",
        "the caller's file is not touched"
    );
}

#[test]
fn a_large_file_arrives_whole() {
    let dir = directory(&[]);
    let path = dir.path().join("large.bin");
    fs::write(
        &path,
        (0..3_000_000_u32)
            .map(|i| (i % 253) as u8)
            .collect::<Vec<_>>(),
    )
    .unwrap();
    let code = "d = open('large.bin', 'rb').read(); print(len(d), sum(d))";
    let expected: u64 = (0..3_000_000_u64).map(|i| i % 253).sum();
    let ended = run(&["--file", &text(&path), "-c", code]);
    assert_eq!(ended.stdout, format!("3000000 {expected}\n"));
}

const WRITABLE_PLACES: &str = "
import os
def walk(top, depth):
    yield top
    if depth == 0 or os.path.islink(top): return
    try: names = os.listdir(top)
    except OSError: return
    for name in names:
        path = os.path.join(top, name)
        if os.path.isdir(path) and not os.path.islink(path) and path not in ('/proc', '/tmp/build'):
            yield from walk(path, depth - 1)
found = []
for path in walk('/', 3):
    try:
        name = os.path.join(path, '.probe')
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
        os.unlink(name)
        found.append(path)
    except OSError: pass
print(*sorted(found))
";

#[test]
fn only_workspace_and_tmp_are_writable() {
    assert_eq!(python(WRITABLE_PLACES), "/dev/shm /tmp /workspace");
}

#[test]
fn a_compiled_program_finds_no_other_writable_place() {
    let code = r#"
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    return system("for d in / /build /usr /etc /dev /workspace /tmp; do if touch $d/.probe 2>/dev/null; then echo $d; fi; done");
}
"#;
    let ended = run(&["-l", "c", "-c", code]);
    assert_eq!(
        (ended.code, ended.stdout.as_str()),
        (0, "/workspace\n/tmp\n"),
        "{ended:?}"
    );
}

#[test]
fn nothing_stays_for_the_next_run() {
    python(
        "import os\nfor d in ('/tmp', '/workspace', '/dev/shm'): open(d + '/left', 'w').close()",
    );
    assert_eq!(
        python(
            "import os; print([os.path.exists(d + '/left') for d in ('/tmp', '/workspace', '/dev/shm')])"
        ),
        "[False, False, False]"
    );
}

#[test]
fn volumes_are_read_only_unless_said_otherwise() {
    let dir = directory(&[("seen.txt", "seen")]);
    let code = "
import os
print(open('/data/seen.txt').read())
for path in ('/data/new', '/data/seen.txt'):
    try: open(path, 'a').write('x')
    except OSError as e: print(e.strerror)
try: os.unlink('/data/seen.txt')
except OSError as e: print(e.strerror)
";
    let ended = run(&["--volume", &format!("{}:/data", text(&dir)), "-c", code]);
    let expected = "seen\nRead-only file system\nRead-only file system\nRead-only file system\n";
    assert_eq!(ended.parts(), (0, expected, ""));
    assert_eq!(
        fs::read_to_string(dir.path().join("seen.txt")).unwrap(),
        "seen"
    );
}

#[test]
fn a_writable_volume_is_written_as_its_owner() {
    let dir = directory(&[("seen.txt", "seen")]);
    let code = "
import os
open('/data/new', 'w').write('made inside')
open('/data/seen.txt', 'a').write(', changed')
os.mkdir('/data/dir')
print(os.stat('/data/new').st_uid, os.stat('/data/seen.txt').st_uid)
";
    let ended = run(&["--volume", &format!("{}:/data:rw", text(&dir)), "-c", code]);
    assert_eq!(ended.parts(), (0, "1000 1000\n", ""));
    let owner = fs::metadata(&dir).unwrap().uid();
    for (name, content) in [("new", "made inside"), ("seen.txt", "seen, changed")] {
        let path = dir.path().join(name);
        assert_eq!(fs::read_to_string(&path).unwrap(), content);
        assert_eq!(fs::metadata(&path).unwrap().uid(), owner, "{name}");
    }
    assert!(dir.path().join("dir").is_dir());
}

#[test]
fn a_set_user_id_bit_from_a_volume_means_nothing() {
    let dir = directory(&[]);
    let program = dir.path().join("id");
    fs::copy("/usr/bin/id", &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o6755)).unwrap();
    let code = "
import subprocess
print(subprocess.run(['/data/id', '-u'], capture_output=True, text=True).stdout.strip())
";
    let ended = run(&["--volume", &format!("{}:/data:rw", text(&dir)), "-c", code]);
    assert_eq!(ended.stdout, "1000\n", "{ended:?}");
}

#[test]
fn a_file_can_be_a_volume() {
    let dir = directory(&[("one.txt", "one")]);
    let volume = format!("{}:/data/one.txt", text(dir.path().join("one.txt")));
    let ended = run(&[
        "--volume",
        &volume,
        "-c",
        "print(open('/data/one.txt').read())",
    ]);
    assert_eq!(ended.parts(), (0, "one\n", ""));
}

/// Read-only or not: who listens there would serve the code.
#[test]
fn a_socket_can_be_no_volume() {
    let dir = directory(&[]);
    let at = dir.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&at).unwrap();
    let volume = format!("{}:/data/socket", text(&at));
    let ended = run(&["--volume", &volume, "-c", "print(1)"]);
    assert_eq!(ended.code, 125, "{ended:?}");
    assert!(ended.stderr.contains("file or directory"), "{ended:?}");
}

/// Everything below a directory, as text.
fn tree(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(at) = pending.pop() {
        for entry in fs::read_dir(dir.join(&at)).unwrap().flatten() {
            let path = at.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                pending.push(path);
            } else {
                assert!(
                    entry.file_type().unwrap().is_file(),
                    "{} is no plain file",
                    path.display()
                );
                found.push(path.to_string_lossy().into_owned());
            }
        }
    }
    found.sort();
    found
}

#[test]
fn the_output_directory_has_what_the_code_wrote_and_nothing_else() {
    let dir = directory(&[
        ("same.txt", "same"),
        ("changed.txt", "before"),
        ("gone.txt", "gone"),
    ]);
    let at = |name: &str| text(dir.path().join(name));
    let out = dir.path().join("not/yet/there");
    let code = "
import os
open('changed.txt', 'w').write('after')
os.unlink('gone.txt')
os.makedirs('a/b')
open('a/b/deep.txt', 'w').write('deep')
open('empty', 'w').close()
os.mkdir('empty-directory')
open('/tmp/elsewhere', 'w').write('x')
os.chmod('a/b/deep.txt', 0o777)
";
    let mut args = vec!["--output-dir".to_owned(), text(&out)];
    for name in ["same.txt", "changed.txt", "gone.txt"] {
        args.extend(["--file".to_owned(), at(name)]);
    }
    args.extend(["-c".to_owned(), code.to_owned()]);
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let result = json(&args);
    assert_eq!(result.code, 0, "{:#}", result.value);
    assert_eq!(tree(&out), ["a/b/deep.txt", "changed.txt", "empty"]);
    assert_eq!(
        fs::read_to_string(out.join("a/b/deep.txt")).unwrap(),
        "deep"
    );
    assert_eq!(
        fs::read_to_string(out.join("changed.txt")).unwrap(),
        "after"
    );
    assert_eq!(
        fs::metadata(out.join("a/b/deep.txt")).unwrap().mode() & 0o7000,
        0,
        "no set-user-id bit comes out"
    );
    let files = result.get("files").as_array().unwrap();
    let listed: Vec<_> = files
        .iter()
        .map(|file| {
            (
                file["path"].as_str().unwrap(),
                file["bytes"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        listed,
        [("a/b/deep.txt", 4), ("changed.txt", 5), ("empty", 0)]
    );
}

#[test]
fn links_pipes_and_sockets_do_not_come_out() {
    let dir = directory(&[]);
    let out = dir.path().join("out");
    let code = "
import os, socket
os.symlink('/etc/passwd', 'link')
os.symlink('/', 'root')
os.symlink('../../../..', 'up')
os.mkfifo('fifo')
s = socket.socket(socket.AF_UNIX); s.bind('socket')
open('plain', 'w').write('x')
os.link('plain', 'hard')
";
    let ended = run(&["--output-dir", &text(&out), "-c", code]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(tree(&out), ["hard", "plain"]);
}

#[test]
fn odd_names_come_out_harmless() {
    let dir = directory(&[]);
    let out = dir.path().join("out");
    let code = r"
for name in [b'-rf', b'new\nline', b'\xff\xfe', b'..x', b'a b', b'\x1b[31m', b'x' * 255, b'\n' * 255]:
    open(name, 'wb').write(name)
";
    let ended = run(&["--output-dir", &text(&out), "-c", code]);
    assert_eq!(ended.code, 0, "{ended:?}");
    let mut names: Vec<_> = fs::read_dir(&out)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().as_bytes().to_vec())
        .collect();
    names.sort();
    let mut expected: Vec<Vec<u8>> = [
        &b"-rf"[..],
        b"new%0Aline",
        b"%FF%FE",
        b"..x",
        b"a b",
        b"%1B[31m",
        &[b'x'; 255],
        &b"%0A".repeat(85),
    ]
    .map(<[u8]>::to_vec)
    .to_vec();
    expected.sort();
    assert_eq!(names, expected);
}

#[test]
fn a_link_in_the_output_directory_is_replaced_not_followed() {
    let dir = directory(&[("precious", "precious")]);
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    symlink(dir.path().join("precious"), out.join("result.txt")).unwrap();
    fs::write(out.join("old.txt"), "old").unwrap();
    let ended = run(&[
        "--output-dir",
        &text(&out),
        "-c",
        "open('result.txt', 'w').write('new'); open('old.txt', 'w').write('replaced')",
    ]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(
        fs::read_to_string(dir.path().join("precious")).unwrap(),
        "precious"
    );
    assert_eq!(fs::read_to_string(out.join("result.txt")).unwrap(), "new");
    assert_eq!(fs::read_to_string(out.join("old.txt")).unwrap(), "replaced");
}

#[test]
fn a_linked_directory_in_the_output_directory_is_not_entered() {
    let dir = directory(&[("precious/keep", "keep")]);
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    symlink(dir.path().join("precious"), out.join("sub")).unwrap();
    run(&[
        "--output-dir",
        &text(&out),
        "-c",
        "import os; os.mkdir('sub'); open('sub/keep', 'w').write('overwritten')",
    ]);
    assert_eq!(
        fs::read_to_string(dir.path().join("precious/keep")).unwrap(),
        "keep"
    );
}

#[test]
fn an_output_directory_in_a_writable_volume_stays_what_it_was() {
    let dir = directory(&[("precious/keep", "keep"), ("volume/out/old", "old")]);
    let at = |name: &str| dir.path().join(name);
    let volume = format!("{}:/data:rw", at("volume").display());
    let precious = at("precious");
    let code = format!(
        "import os\nos.rename('/data/out', '/data/moved'); os.symlink('{}', '/data/out')\n\
         open('keep', 'w').write('evil'); open('new', 'w').write('evil')",
        precious.display()
    );
    let started = |out: &str| {
        let out = text(at(out));
        run(&["--volume", &volume, "--output-dir", &out, "-c", &code])
    };
    // The link is made while the code runs; a second run finds it.
    assert_eq!(started("volume/out").code, 0);
    for out in ["volume/out", "volume/out/deeper"] {
        let ended = started(out);
        assert_eq!((ended.code, ended.stdout.as_str()), (125, ""), "{ended:?}");
        let told = "a link that code may have made";
        assert!(ended.stderr.contains(told), "{ended:?}");
    }
    assert_eq!(fs::read_to_string(at("precious/keep")).unwrap(), "keep");
    assert_eq!(fs::read_dir(&precious).unwrap().count(), 1);
    assert_eq!(fs::read_to_string(at("volume/moved/new")).unwrap(), "evil");
}

#[test]
fn files_come_out_of_a_run_that_failed_or_timed_out() {
    for (limits, code, exit) in [
        (
            &[][..],
            "open('made', 'w').write('x'); raise SystemExit(9)",
            9,
        ),
        (
            &["--timeout", "1s"][..],
            "open('made', 'w').write('x')\nwhile True: pass",
            124,
        ),
    ] {
        let dir = directory(&[]);
        let out = text(dir.path().join("out"));
        let ended = run(&[&["--output-dir", &out][..], limits, &["-c", code]].concat());
        assert_eq!(ended.code, exit, "{ended:?}");
        assert_eq!(tree(Path::new(&out)), ["made"]);
    }
}

/// Also where an interpreter ran it, whose end nobody has waited for: what the code has left running writes no more.
#[test]
fn files_are_collected_when_everything_has_ended() {
    let code = "
import os, time
if os.fork() == 0:
    for i in range(200): open(f'{i}-0', 'w').close()
    open('made', 'w').close()
    turn = 0
    while True:
        for i in range(200): os.rename(f'{i}-{turn}', f'{i}-{turn + 1}')
        turn += 1
while not os.path.exists('made'): time.sleep(0.01)
";
    for _ in 0..3 {
        let dir = directory(&[]);
        let out = text(dir.path().join("out"));
        let ended = json(&["--imports", "os,time", "--output-dir", &out, "-c", code]);
        assert_eq!(ended.code, 0, "{ended:?}");
        assert_eq!(ended.get("files_truncated"), false);
        assert_eq!(tree(Path::new(&out)).len(), 201);
    }
}

#[test]
fn a_very_deep_tree_is_bounded() {
    let dir = directory(&[]);
    let out = text(dir.path().join("out"));
    let code = "
import os
open('top', 'w').close()
for _ in range(3000):
    os.mkdir('d'); os.chdir('d')
open('bottom', 'w').close()
";
    let ended = run(&["--output-dir", &out, "-c", code]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(Path::new(&out).join("top").is_file());
}

#[test]
fn a_writable_root_is_private_and_thrown_away() {
    let name = marker();
    let code = format!(
        "
import os
for d in ('/usr', '/usr/bin', '/usr/lib', '/etc', '/'):
    path = os.path.join(d, '{name}')
    open(path, 'w').write('x')
    print(open(path).read(), end='')
open('/etc/passwd', 'a').write('added')
print(open('/etc/passwd').read().endswith('added'))
"
    );
    let ended = run(&["--writable", "-c", &code]);
    assert_eq!(ended.parts(), (0, "xxxxxTrue\n", ""));
    for place in ["/usr", "/usr/bin", "/usr/lib", "/etc", "/"] {
        assert!(
            !Path::new(place).join(&name).exists(),
            "{place} of the host was written to"
        );
    }
    assert_eq!(
        python(&format!("import os; print(os.path.exists('/usr/{name}'))")),
        "False"
    );
}

#[test]
fn a_writable_root_may_be_changed() {
    let code = "
import os
os.unlink('/usr/bin/env')
print(os.path.exists('/usr/bin/env'))
try: os.rename('/usr/bin/id', '/usr/bin/moved')
except OSError: pass
print(os.path.exists('/usr/bin/moved'))
";
    let ended = run(&["--writable", "-c", code]);
    // An ordinary user's layer cannot hold a copy of what belongs to root.
    let expected = if is_root() {
        "False\nTrue\n"
    } else {
        "False\nFalse\n"
    };
    assert_eq!(ended.parts(), (0, expected, ""));
    assert!(Path::new("/usr/bin/env").exists());
    assert!(Path::new("/usr/bin/id").exists());
}

#[test]
fn a_writable_root_may_be_emptied() {
    let code = "import os, shutil; shutil.rmtree('/usr/share', ignore_errors=True); print(os.path.exists('/usr/share/doc'))";
    let ended = run(&["--writable", "-c", code]);
    // An ordinary user has one user id to give away, so the system's files are nobody's inside.
    let expected = if is_root() { "False\n" } else { "True\n" };
    assert_eq!(ended.parts(), (0, expected, ""));
    assert!(Path::new("/usr/share").is_dir());
}

#[test]
fn a_writable_root_counts_as_disk() {
    let ended = run(&[
        "--writable",
        "--disk",
        "8m",
        "-c",
        "open('/usr/big', 'wb').write(bytes(20 << 20))",
    ]);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains("No space left"), "{ended:?}");
}
