//! What a sandbox that misbehaves costs the others, as it is seen on the host.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belljar::{Engine, Session};
use belljar_spec::{CodeRequest, LimitsPatch, Status};

use super::harness::{open, run, run_request};
use super::tests;

tests!["neighbours":
    a_fork_bomb_is_put_behind_while_it_lasts,
    who_computes_with_all_its_processes_is_not,
    a_flood_is_carried_off_slowly,
];

const PROCESSES: usize = 40;
const BOMB: &str = "
import os, signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
while True:
    try: os.fork()
    except OSError: pass
";
const CROWD: &str = "
import os, time
for _ in range(100):
    try:
        if os.fork() == 0:
            while True: sum(range(100_000))
    except OSError: break
while True: time.sleep(1)
";

fn limits(ms: u64) -> LimitsPatch {
    serde_json::from_value(serde_json::json!({ "timeout_ms": ms })).expect("limits")
}

async fn small(engine: &Engine) -> Session {
    let limits = serde_json::json!({ "limits": { "processes": PROCESSES } });
    open(engine, serde_json::from_value(limits).expect("request")).await
}

/// The scheduler's group of a process.
fn group(pid: u32) -> Option<PathBuf> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let of = |wanted: fn(&str) -> bool| {
        let mut lines = text.lines().map(|line| line.splitn(3, ':'));
        lines.find_map(|mut line| wanted(line.nth(1)?).then(|| line.next())?)
    };
    let old = of(|names| names.split(',').any(|name| name == "cpu"));
    let (root, path) = match old {
        Some(path) => ("/sys/fs/cgroup/cpu", path),
        None => ("/sys/fs/cgroup", of(str::is_empty)?),
    };
    // A command among others is in a part of its sandbox's group, and that has no files of the controller.
    let dir = Path::new(root).join(path.trim_start_matches('/'));
    let mut above = dir.ancestors();
    above
        .find(|dir| dir.join("cpu.idle").exists())
        .map(Path::to_owned)
}

/// The processes that this one has started, and theirs, by group.
fn groups() -> BTreeMap<PathBuf, Vec<u32>> {
    let listed = fs::read_dir("/proc").expect("processes").flatten();
    let pids = listed.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parent = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, rest) = stat.rsplit_once(')')?;
        let parent = rest.split_whitespace().nth(1)?.parse::<u32>().ok()?;
        Some((pid, parent))
    };
    let parents: BTreeMap<u32, u32> = pids.filter_map(parent).collect();
    let is_ours = |pid: u32| {
        let mut above = std::iter::successors(Some(pid), |pid| parents.get(pid).copied());
        above.any(|pid| pid == std::process::id())
    };
    let mut groups: BTreeMap<PathBuf, Vec<u32>> = BTreeMap::new();
    for pid in parents.keys().copied().filter(|pid| is_ours(*pid)) {
        if let Some(group) = group(pid) {
            groups.entry(group).or_default().push(pid);
        }
    }
    groups
}

/// The group in which there are so many processes, as soon as there is one.
async fn fullest() -> PathBuf {
    let until = Instant::now() + Duration::from_secs(20);
    while Instant::now() < until {
        let full = |(_, pids): &(PathBuf, Vec<u32>)| pids.len() >= PROCESSES;
        if let Some((group, _)) = groups().into_iter().find(full) {
            return group;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("no group is full: {:?}", groups());
}

fn is_idle(group: &Path) -> bool {
    let text = fs::read_to_string(group.join("cpu.idle"));
    text.expect("the scheduler's file").trim() == "1"
}

/// Whether the scheduler soon takes it for idle, or no longer.
async fn becomes(group: &Path, idle: bool) -> bool {
    let until = Instant::now() + Duration::from_secs(2);
    while is_idle(group) != idle && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    is_idle(group) == idle
}

/// How many cores each of its processes may use.
fn cores(group: &Path) -> Vec<u32> {
    let of = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let mask = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed:"))?;
        let words = mask.trim().split(',');
        words
            .map(|word| u32::from_str_radix(word, 16).ok().map(u32::count_ones))
            .sum()
    };
    groups()
        .get(group)
        .into_iter()
        .flatten()
        .filter_map(of)
        .collect()
}

/// How many of them have one core.
fn few(cores: &[u32]) -> usize {
    cores.iter().filter(|cores| **cores == 1).count()
}

async fn a_fork_bomb_is_put_behind_while_it_lasts(engine: Engine) {
    let session = small(&engine).await;
    let request = CodeRequest {
        limits: limits(3_000),
        ..CodeRequest::new(BOMB)
    };
    let watching = async {
        let group = fullest().await;
        let idle = becomes(&group, true).await;
        // The scheduler is told first.
        let until = Instant::now() + Duration::from_secs(1);
        while few(&cores(&group)) < PROCESSES - 1 && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        (cores(&group), group, idle)
    };
    let (result, (confined, group, idle)) = tokio::join!(run_request(&session, &request), watching);
    assert_eq!(result.status, Status::TimedOut);
    assert!(idle, "{}", group.display());
    let all = std::thread::available_parallelism().expect("cores").get();
    assert!(all == 1 || few(&confined) >= PROCESSES - 1, "{confined:?}");
    assert!(becomes(&group, false).await, "it is over");
    assert_eq!(run(&session, "6 * 7").await.value, Some(42.into()));
    assert!(!is_idle(&group), "the next run is as any other");
    assert!(cores(&group).iter().all(|cores| *cores as usize == all));
}

async fn who_computes_with_all_its_processes_is_not(engine: Engine) {
    let session = small(&engine).await;
    let request = CodeRequest {
        limits: limits(1_500),
        ..CodeRequest::new(CROWD)
    };
    let watching = async {
        let group = fullest().await;
        // The beginning is that of a bomb, too: its time is the kernel's.
        tokio::time::sleep(Duration::from_millis(700)).await;
        is_idle(&group)
    };
    let (_, idle) = tokio::join!(run_request(&session, &request), watching);
    assert!(!idle);
}

async fn a_flood_is_carried_off_slowly(engine: Engine) {
    let session = small(&engine).await;
    let code = "
import os
written = 0
def flood():
    global written
    piece = b'x' * 65536
    while True: written += os.write(1, piece)
flood()
";
    let request = CodeRequest {
        limits: limits(1_000),
        ..CodeRequest::new(code)
    };
    let result = run_request(&session, &request).await;
    assert_eq!(
        (result.status, result.stdout_truncated),
        (Status::TimedOut, true)
    );
    let written = run(&session, "written").await.value;
    let written = written.and_then(|value| value.as_u64()).expect("a number");
    assert!(((8 << 20)..(120 << 20)).contains(&written), "{written}");
    // What is over the limit by less is not waited for.
    let result = run(&session, "print('x' * (8 << 20))").await;
    assert!(result.usage.wall_ms < 2_000.0, "{:?}", result.usage);
}
