//! The roots that copies have: made from a mould, or ahead of the request.

use std::fs;
use std::time::{Duration, Instant};

use belljar::{Engine, PoolConfig};
use belljar_spec::{LimitsPatch, Mode, SandboxRequest};

use super::harness::{pool, python, run};
use super::pool::{children_of_keeper, taken};
use super::tests;

tests!["pool::roots":
    copies_see_the_root_that_others_see,
    what_copies_share_none_of_them_can_change,
    a_root_made_ahead_is_what_was_asked_for,
];

/// What code can see of its root, but for who owns it.
const ROOT: &str = r"
import os
def seen(path):
    found = os.lstat(path)
    link = os.readlink(path) if os.path.islink(path) else None
    return [path, oct(found.st_mode), found.st_rdev, link]
mounts = [line.split() for line in open('/proc/self/mountinfo')]
files = ['passwd', 'group', 'hosts', 'nsswitch.conf']
[
    sorted(seen(os.path.join(at, name)) for at in ['/', '/etc', '/dev', '/usr', '/usr/local'] for name in os.listdir(at)),
    sorted([at, options, fields[fields.index('-') + 1]] for _, _, _, _, at, options, *fields in mounts),
    [open('/etc/' + name).read() for name in files],
]";

/// A copy's may come from a mould.
async fn copies_see_the_root_that_others_see(engine: Engine) {
    let (_pool, copy) = taken(&engine).await;
    let other = python(&engine).await;
    let (copy, other) = (run(&copy, ROOT).await, run(&other, ROOT).await);
    assert!(copy.value.is_some(), "{:?}", copy.error);
    assert_eq!(copy.value, other.value);
}

/// From Linux 6.15 on. Before, and for an ordinary user, each sandbox makes its root by itself.
fn have_moulds(mode: Mode) -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a kernel");
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next().and_then(|number| number.parse::<u32>().ok());
    let is_new = (next(), next()) >= (Some(6), Some(15));
    is_new && mode == Mode::Root
}

async fn what_copies_share_none_of_them_can_change(engine: Engine) {
    let (pool, first) = taken(&engine).await;
    let second = pool.take(SandboxRequest::default()).await.expect("session");
    let root = "import os; os.stat('/').st_dev";
    let (one, other) = (run(&first, root).await, run(&second, root).await);
    let shared = have_moulds(one.report.mode);
    assert_eq!(one.value == other.value, shared, "{:?}", one.error);
    let change = r"
import os, fcntl
def refused(what, *args):
    try:
        what(*args)
    except OSError:
        return True
attempts = [refused(open, path, 'w') for path in ['/etc/passwd', '/etc/new', '/new', '/dev/new', '/proc/new', '/usr/new', '/belljar/new']]
for path in ['/', '/etc', '/etc/passwd', '/dev', '/usr', '/bin']:
    attempts += [
        refused(os.chmod, path, 0o777), refused(os.chown, path, 1000, 1000), refused(os.utime, path), refused(os.rename, path, '/moved'),
        refused(os.setxattr, path, 'user.a', b'1'), refused(os.open, path, os.O_RDONLY | os.O_NOATIME) if shared else True,
    ]
attempts += [refused(os.remove, '/etc/hosts'), refused(os.symlink, 'a', '/etc/link'), refused(os.mkdir, '/tmp/../new')]
for path in ['/tmp/mine', '/dev/shm/mine', '/workspace/mine']:
    open(path, 'w').write('mine')
attempts";
    let change = change.replace("shared", if shared { "True" } else { "False" });
    let changed = run(&first, &change).await;
    let attempts = changed.value.expect("attempts");
    let attempts = attempts.as_array().expect("a list");
    assert!(
        attempts.iter().all(|refused| *refused == true),
        "{attempts:?}"
    );
    let look = "[os.path.exists(at + '/mine') for at in ('/tmp', '/dev/shm', '/workspace')]";
    let found = |value: bool| Some(serde_json::json!([value, value, value]));
    assert_eq!(run(&first, look).await.value, found(true));
    assert_eq!(run(&second, look).await.value, found(false));
    // Nor one that comes after.
    let third = pool.take(SandboxRequest::default()).await.expect("session");
    let look = format!("import os; {look}");
    assert_eq!(run(&third, &look).await.value, found(false));
}

/// Children of the keeper that are in a root of their own.
fn roots() -> usize {
    let is_in = |pid: &String| {
        let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
        mounts.contains(" /workspace ")
    };
    children_of_keeper().iter().filter(|pid| is_in(pid)).count()
}

/// What comes after a sandbox is taken to be like it, and so its root is there already.
async fn a_root_made_ahead_is_what_was_asked_for(engine: Engine) {
    const FILL: &str = r"
import os
def fill(path, chunks):
    try:
        with open(path, 'wb', 0) as file:
            for _ in range(chunks):
                file.write(bytes(1 << 16))
    except OSError as error:
        return error.strerror
def files(at):
    made = 0
    try:
        while made < 9000:
            open(f'{at}/{made}', 'x').close()
            made += 1
    except OSError as error:
        pass
    return made
status = os.statvfs('/workspace')
size = status.f_blocks * status.f_frsize
chunks = size >> 16
filled = [size, fill('/tmp/most', chunks - 8), fill('/workspace/rest', 16), os.path.getsize('/workspace/rest') <= 8 << 16]
os.remove('/tmp/most')
filled + [files('/dev/shm') in range(4000, 4096)]";
    let none_wait = PoolConfig {
        ready: 0,
        ..PoolConfig::default()
    };
    let pool = pool(&engine, none_wait).await;
    let with_disk = |bytes: u64| SandboxRequest {
        limits: LimitsPatch {
            disk_bytes: Some(bytes.into()),
            ..LimitsPatch::default()
        },
        ..SandboxRequest::default()
    };
    let mut kept = vec![
        pool.take(SandboxRequest::default()).await.expect("session"),
        pool.take(SandboxRequest::default()).await.expect("session"),
    ];
    let foreseen = have_moulds(run(&kept[0], "1").await.report.mode);
    let until = Instant::now() + Duration::from_mins(1);
    for bytes in [3 << 20, 16 << 20, 5 << 20] {
        while foreseen && roots() <= kept.len() {
            assert!(Instant::now() < until, "no root was made ahead");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let session = pool.take(with_disk(bytes)).await.expect("session");
        let filled = run(&session, FILL).await;
        let expected = serde_json::json!([bytes, null, "No space left on device", true, true]);
        assert_eq!(filled.value, Some(expected), "{:?}", filled.error);
        kept.push(session);
    }
    // And one that is unlike it is not made of it.
    for _ in 0..2 {
        let request = SandboxRequest {
            workdir: Some("/elsewhere".into()),
            ..with_disk(5 << 20)
        };
        let session = pool.take(request).await.expect("session");
        let look = "import os; [os.getcwd(), os.path.exists('/workspace')]";
        let expected = serde_json::json!(["/elsewhere", false]);
        let seen = run(&session, look).await;
        assert_eq!(seen.value, Some(expected), "{:?}", seen.error);
    }
}
