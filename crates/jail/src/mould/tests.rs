//! As root. Where the kernel has no moulds it is seen that there are none.

use std::os::unix::fs::symlink;

use serde_json::{Value, json};

use super::*;
use crate::host;

fn plan(entries: &Value) -> Plan {
    serde_json::from_value(json!({
        "entries": entries, "files": [], "workdir": "/workspace", "writable": false, "kept": true, "network": false, "ports": [],
        "closed": null, "weakened": [], "image": null,
        "limits": {"timeout_ms": 1, "memory_bytes": 1, "cpus": 1.0, "processes": 1, "output_bytes": 1, "disk_bytes": 1, "open_files": 1},
    }))
    .expect("a plan")
}

fn system(path: &Path) -> Value {
    json!({"system": {"path": path}})
}

fn file(path: &str, content: &str) -> Value {
    json!({"file": {"path": path, "content": content}})
}

/// Root, and Linux 6.15.
fn possible() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a kernel");
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next().and_then(|number| number.parse::<u32>().ok());
    host::is_root() && (next(), next()) >= (Some(6), Some(15))
}

/// A copy, where there can be one.
fn copied(moulds: &mut Moulds, plan: &Plan) -> Option<OwnedFd> {
    let copy = moulds.copy_for(plan).map(|(copy, _)| copy);
    assert_eq!(copy.is_some(), possible());
    copy
}

fn within(copy: &OwnedFd, path: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}{path}", copy.as_raw_fd()))
}

fn content(copy: &OwnedFd, path: &str) -> String {
    fs::read_to_string(within(copy, path)).expect(path)
}

#[test]
fn only_for_what_is_the_systems_and_apart_from_private_places() {
    let suits = |entry: &Value| super::suits(&plan(&json!([entry])));
    assert!(suits(&system(Path::new("/usr"))));
    assert!(suits(&file("/etc/hosts", "")));
    assert!(suits(&json!({"link": {"path": "/bin", "to": "usr/bin"}})));
    let volume = json!({"volume": {"source": "/usr", "target": "/data", "writable": false}});
    assert!(!suits(&volume));
    for path in [
        "/tmp/tool",
        "/workspace",
        "/workspace/x",
        "/dev/shm/x",
        "/dev",
        "/",
    ] {
        assert!(!suits(&system(Path::new(path))), "{path}");
    }
    let mut odd = plan(&json!([]));
    assert!(super::suits(&odd));
    odd.workdir = "/home/a b".into();
    assert!(!super::suits(&odd));
    let mut odd = plan(&json!([]));
    odd.writable = true;
    assert!(!super::suits(&odd));
    let mut odd = plan(&json!([]));
    odd.weakened.insert(belljar_spec::Weakening::Seccomp);
    assert!(!super::suits(&odd));
}

#[test]
fn equal_plans_share_what_nobody_can_write() {
    let place = tempfile::tempdir().expect("a directory");
    fs::write(place.path().join("tool"), "tool").expect("a file");
    // Not where it is on the host: there a sandbox has a place of its own.
    let shown = json!({"image": {"source": place.path(), "target": "/opt/tool"}});
    let of = |content: &str| plan(&json!([shown, file("/etc/name", content)]));
    let (one, other) = (of("one"), of("other"));
    let mut moulds = Moulds::default();
    let Some(first) = copied(&mut moulds, &one) else {
        return;
    };
    let second = copied(&mut moulds, &one).expect("a copy");
    let third = copied(&mut moulds, &other).expect("a copy");
    assert_eq!(moulds.kept.len(), 2);
    let root = |copy| identify(&within(copy, "/")).expect("a root");
    let mount = |copy| sys::mount_of(&within(copy, "/")).expect("a mount");
    assert_eq!(root(&first), root(&second));
    assert_ne!(mount(&first), mount(&second));
    assert_ne!(root(&first), root(&third));
    assert_eq!(content(&first, "/etc/name"), "one");
    assert_eq!(content(&third, "/etc/name"), "other");
    assert_eq!(content(&first, "/opt/tool/tool"), "tool");
    let read_only = |path: &str| {
        let error = fs::write(within(&first, path), "mine").expect_err(path);
        assert_eq!(error.kind(), io::ErrorKind::ReadOnlyFilesystem, "{path}");
    };
    for path in [
        "/etc/name",
        "/new",
        "/opt/tool/tool",
        "/tmp/new",
        "/workspace/new",
        "/dev/shm/new",
    ] {
        read_only(path);
    }
    fs::write(within(&first, "/dev/null"), "nothing").expect("a device");
    let modes = ["/", "/etc/name", "/proc", "/opt"].map(|path| {
        let found = fs::metadata(within(&first, path)).expect(path);
        (found.mode() & 0o7777, found.uid())
    });
    assert_eq!(modes, [(0o755, 0), (0o644, 0), (0o555, 0), (0o755, 0)]);
    // The mount alone is not what keeps it so.
    let writable = FileSystem::create(c"tmpfs", &[], 0).expect("a file system");
    let at = |name: &str| within(&writable.mount, name);
    fs::write(at("/before"), "").expect("a file");
    writable.make_read_only().expect("read-only");
    let error = fs::write(at("/after"), "").expect_err("a file");
    assert_eq!(error.kind(), io::ErrorKind::ReadOnlyFilesystem);
}

#[test]
fn what_was_replaced_is_seen_by_the_next() {
    let place = tempfile::tempdir().expect("a directory");
    let packages = place.path().join("packages");
    let fill = |content: &str| {
        fs::create_dir(&packages).expect("a directory");
        fs::write(packages.join("version"), content).expect("a file");
    };
    fill("old");
    let entry = json!({"image": {"source": packages, "target": "/opt/packages"}});
    let plan = plan(&json!([entry]));
    let mut moulds = Moulds::default();
    let Some(old) = copied(&mut moulds, &plan) else {
        return;
    };
    fs::rename(&packages, place.path().join("gone")).expect("renamed");
    fill("new");
    std::thread::sleep(SEEN);
    let new = copied(&mut moulds, &plan).expect("a copy");
    assert_eq!(moulds.kept.len(), 1);
    assert_eq!(content(&old, "/opt/packages/version"), "old");
    assert_eq!(content(&new, "/opt/packages/version"), "new");
}

#[test]
fn what_cannot_be_made_is_left_to_the_other_way() {
    let place = tempfile::tempdir().expect("a directory");
    let (image, outside) = (place.path().join("image"), place.path().join("outside"));
    fs::create_dir(&image).expect("a directory");
    fs::create_dir(&outside).expect("a directory");
    symlink(&outside, image.join("link")).expect("a link");
    let shown = json!({"image": {"source": image, "target": "/opt"}});
    for entries in [
        json!([{"image": {"source": place.path().join("missing"), "target": "/opt"}}]),
        // It would lead out of the root that is being made.
        json!([shown, file("/opt/link/new", "")]),
    ] {
        let mut moulds = Moulds::default();
        assert!(moulds.copy_for(&plan(&entries)).is_none());
        assert!(moulds.given_up);
        assert!(moulds.copy_for(&plan(&json!([]))).is_none());
    }
    assert_eq!(fs::read_dir(outside).expect("a directory").count(), 0);
}

#[test]
fn the_oldest_goes() {
    let mut moulds = Moulds::default();
    for number in 0..MOST + 2 {
        let plan = plan(&json!([file("/etc/number", &number.to_string())]));
        copied(&mut moulds, &plan);
    }
    assert_eq!(moulds.kept.len(), if possible() { MOST } else { 0 });
}
