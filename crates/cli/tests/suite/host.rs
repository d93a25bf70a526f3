//! What a sandbox could leave on the host: cgroups, leases, processes, mounts.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Long enough for the most loaded machine; only a hang reaches it.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Tries until something holds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Mount points of all cgroup hierarchies.
pub fn cgroup_mounts() -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mount = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let is_cgroup = right.starts_with("cgroup ") || right.starts_with("cgroup2 ");
        is_cgroup.then(|| PathBuf::from(left.split(' ').nth(4).unwrap_or_default()))
    };
    text.lines().filter_map(mount).collect()
}

fn groups_below(dir: &Path, found: &mut BTreeSet<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if token(&entry.file_name().to_string_lossy()).is_some() {
                found.insert(entry.path());
            }
            groups_below(&entry.path(), found);
        }
    }
}

/// The keeper's token in the name of one of its groups.
fn token(name: &str) -> Option<&str> {
    let token = name.strip_prefix("belljar-")?.get(..16)?;
    token
        .bytes()
        .all(|byte| byte.is_ascii_hexdigit())
        .then_some(token)
}

/// Every group of a keeper, whoever's it is.
pub fn groups() -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for mount in cgroup_mounts() {
        groups_below(&mount, &mut found);
    }
    found
}

/// The groups of one sandbox or of a keeper with this token.
pub fn groups_named(part: &str) -> BTreeSet<PathBuf> {
    groups()
        .into_iter()
        .filter(|path| path.to_string_lossy().contains(part))
        .collect()
}

/// Where keepers of this user keep their leases.
pub fn lease_dir() -> PathBuf {
    if super::harness::is_root() {
        return "/run/belljar".into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(dir) if dir.is_dir() => dir.join("belljar"),
        _ => {
            use std::os::unix::fs::MetadataExt;
            let uid = fs::metadata("/proc/self").unwrap().uid();
            format!("/tmp/belljar-{uid}").into()
        }
    }
}

/// A lease that a process holds.
#[derive(Debug, Clone)]
pub struct Lease {
    pub path: PathBuf,
    pub token: String,
}

/// The lease a keeper has open, once it has written it.
pub fn lease_of(keeper: u32) -> Option<Lease> {
    let entries = fs::read_dir(format!("/proc/{keeper}/fd")).ok()?;
    let path = entries
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .find(|path| path.starts_with(lease_dir()))?;
    let token = fs::read_to_string(&path).ok()?.lines().next()?.to_owned();
    (token.len() == 16).then_some(Lease { path, token })
}

/// Children of a process that are there now.
pub fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let lists = tasks
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| {
            list.split_whitespace()
                .filter_map(|word| word.parse().ok())
                .collect::<Vec<u32>>()
        })
        .collect()
}

/// The keeper of a running `belljar run`, when it is ready to work.
pub fn keeper_of(command: u32) -> (u32, Lease) {
    let mut found = None;
    eventually("the keeper takes a lease", || {
        found = children(command)
            .into_iter()
            .find_map(|pid| Some((pid, lease_of(pid)?)));
        found.is_some()
    });
    found.unwrap()
}

/// Processes of which an argument contains this. The process that asks does not count.
pub fn processes_with(word: &str) -> Vec<(u32, String)> {
    let own = std::process::id();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != own)
        .filter_map(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            line.contains(word).then_some((pid, line))
        })
        .collect()
}

/// Everything about a keeper with this lease is gone, and every process with `marker` in its arguments.
pub fn nothing_left(lease: &Lease, marker: &str) {
    eventually("its processes end", || processes_with(marker).is_empty());
    eventually("its cgroups are removed", || {
        groups_named(&lease.token).is_empty()
    });
    eventually("its lease is removed", || !lease.path.exists());
    no_mounts();
}

/// No mount of a sandbox is in this namespace.
pub fn no_mounts() {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let ours: Vec<_> = mounts
        .lines()
        .filter(|line| line.contains(" belljar "))
        .collect();
    assert!(ours.is_empty(), "{ours:?}");
}

/// Sends a signal.
pub fn kill(pid: u32, signal: &str) {
    let done = std::process::Command::new("/bin/sh")
        .args(["-c", &format!("kill -{signal} {pid}")])
        .stderr(std::process::Stdio::null())
        .status();
    done.unwrap();
}
