//! Holes that were found once, each with the way in that was used.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::Instant;

use super::harness::{directory, json, python, run, text};

/// A set-user-id file on a writable volume would belong to the volume's owner on the host.
#[test]
fn no_set_id_file_is_left_on_a_volume() {
    let dir = directory(&[]);
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let code = r"
import os
tries = [
    lambda: os.chmod('/data/x', 0o4755),
    lambda: os.chmod('/data/x', 0o2755),
    lambda: os.fchmod(os.open('/data/x', os.O_RDONLY), 0o6755),
    lambda: os.close(os.open('/data/y', os.O_CREAT | os.O_WRONLY, 0o4755)),
    lambda: os.mknod('/data/z', 0o104755),
]
open('/data/x', 'w').close()
for attempt in tries:
    try:
        attempt()
        print('done')
    except PermissionError:
        print('refused')
os.chmod('/data/x', 0o755)
";
    let volume = format!("{}:/data:rw", dir.path().display());
    let ended = run(&["--volume", &volume, "-c", code]);
    assert_eq!(ended.parts(), (0, "refused\n".repeat(5).as_str(), ""));
    for entry in fs::read_dir(dir.path()).unwrap() {
        let mode = entry.unwrap().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o6000, 0, "{mode:o}");
    }
}

/// A link that an earlier run left in a volume led the making of a mount point out to the host.
#[test]
fn volumes_lie_apart() {
    let dir = directory(&[("a/file", ""), ("b/file", ""), ("host/file", "")]);
    symlink(dir.path().join("host"), dir.path().join("a/sub")).unwrap();
    let volume = |name: &str, place: &str| format!("{}:{place}", text(dir.path().join(name)));
    let inner = volume("b", "/data/sub/x");
    let ended = run(&[
        "--volume",
        &volume("a", "/data:rw"),
        "--volume",
        &inner,
        "-c",
        "1",
    ]);
    assert_eq!((ended.code, ended.stdout.as_str()), (125, ""));
    assert!(
        ended
            .stderr
            .contains("volumes must not lie within each other"),
        "{ended:?}"
    );
    assert!(!dir.path().join("host/x").exists());
    let hiding = run(&["--volume", &volume("a", "/workspace"), "-c", "1"]);
    assert!(hiding.stderr.contains("hide the workspace"), "{hiding:?}");
}

/// A volume where the code is put was what ran, and a file in a volume was refused with an error of the kernel's.
#[test]
fn a_volume_is_not_where_the_code_and_its_files_are() {
    let dir = directory(&[
        ("v.py", "print('volume')"),
        ("d/main.py", "print('volume')"),
    ]);
    let at = |name: &str| text(dir.path().join(name));
    let volume = |name: &str, place: &str| format!("{}:{place}", at(name));
    let code = &["-c", "print('code')"][..];
    let refused = |place: &str, main: &str| {
        format!(
            "belljar: volume: \"{place}\" is not accepted; the code itself is put at \"{main}\"; give another place inside\n"
        )
    };
    let workdir = refused("/workspace/main.py", "/workspace/main.py");
    for more in [
        &[][..],
        // A session for a single program.
        &["--imports", "json"],
    ] {
        let place = volume("v.py", "/workspace/main.py");
        let args = [&["--volume", &place], more, code].concat();
        assert_eq!(run(&args).parts(), (125, "", workdir.as_str()), "{more:?}");
    }
    let place = volume("v.py", "/workspace/main.rb");
    let ended = run(&["--volume", &place, "-l", "ruby", "-c", "puts 'code'"]);
    let ruby = refused("/workspace/main.rb", "/workspace/main.rb");
    assert_eq!(ended.parts(), (125, "", ruby.as_str()));

    let (place, file) = (volume("d", "/workspace/v"), format!("v/x={}", at("v.py")));
    let ended = run(&[&["--volume", &place, "--file", &file], code].concat());
    let said = "belljar: file: the path \"v/x\" is not accepted; the volume at \"/workspace/v\" is in its way; give a path outside of that\n";
    assert_eq!(ended.parts(), (125, "", said));
    let ended = run(&[&["--volume", &place, "--file", &at("v.py")], code].concat());
    assert_eq!(ended.parts(), (0, "code\n", ""));
}

/// A descriptor of the output, parked in the queue of a socket that nobody has any more, outlives every process.
#[test]
fn output_ends_with_the_processes() {
    let code = r"
import os, socket
a, b = socket.socketpair()
socket.send_fds(b, [b'x'], [a.fileno(), b.fileno(), 1, 2])
print('said', flush=True)
os._exit(0)
";
    let began = Instant::now();
    let ended = run(&["--timeout", "20s", "-c", code]);
    assert_eq!(ended.parts(), (0, "said\n", ""));
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
}

/// Files with holes, and many names of one file, made more of the disk than it is.
#[test]
fn what_comes_out_is_no_more_than_the_disk() {
    let dir = directory(&[]);
    let out = text(dir.path().join("out"));
    let code = "for i in range(20): open(f'{i:02}', 'w').truncate(1 << 20)";
    let ended = json(&["--disk", "2m", "--output-dir", &out, "-c", code]);
    assert_eq!(*ended.get("files_truncated"), true);
    let bytes: u64 = fs::read_dir(&out)
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    assert_eq!(bytes, 2 << 20);
}

/// One output that cannot be read, or two whose names become one, are no reason to lose the result.
#[test]
fn what_cannot_come_out_is_left_out() {
    let dir = directory(&[]);
    let out = text(dir.path().join("out"));
    let code = r"
import os
open('good', 'w').write('good')
open('x\n', 'w').write('first')
open('x%0A', 'w').write('second')
os.makedirs('y\n'); open('y\n/f', 'w').write('deep')
open('y%0A', 'w').write('in the way')
";
    let ended = json(&["--output-dir", &out, "-c", code]);
    assert_eq!(
        (ended.code, ended.get("files_truncated")),
        (0, &true.into())
    );
    assert_eq!(fs::read_to_string(format!("{out}/good")).unwrap(), "good");
    assert_eq!(fs::read_to_string(format!("{out}/x%0A")).unwrap(), "first");
}

/// Init counted on two bytes for each argument.
#[test]
fn arguments_may_be_empty() {
    let mut args = vec!["-c", "import sys; print(len(sys.argv))", "--"];
    args.extend(std::iter::repeat_n("", 1000));
    assert_eq!(run(&args).parts(), (0, "1001\n", ""));
}

/// Who was pushed to another core to start with must not stay there.
#[test]
fn a_sandbox_has_every_core() {
    let here = std::thread::available_parallelism()
        .unwrap()
        .get()
        .to_string();
    for _ in 0..20 {
        assert_eq!(
            python("import os; print(len(os.sched_getaffinity(0)), end='')"),
            here
        );
    }
}
