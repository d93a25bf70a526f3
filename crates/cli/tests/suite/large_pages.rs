//! Where the code is of processes that last.

use std::fs;
use std::path::Path;

use serde_json::json;

use super::daemon::Daemon;

/// How many KiB of a process's code are in large pages.
fn large_code(process: u32) -> u64 {
    let mut is_code = false;
    let mut large = 0;
    for line in fs::read_to_string(format!("/proc/{process}/smaps"))
        .unwrap()
        .lines()
    {
        if let Some(size) = line.strip_prefix("AnonHugePages:") {
            let size: u64 = size.trim().trim_end_matches(" kB").parse().unwrap();
            large += if is_code { size } else { 0 };
        } else if line.contains('-') {
            is_code = line.contains(" r-xp ");
        }
    }
    large
}

/// Of the daemon and of its keeper, which are the only ones to last.
#[test]
fn code_that_runs_all_the_time_is_in_large_pages() {
    let daemon = Daemon::with("[pool]\npython = 1\n");
    daemon.run(&json!({"code": "1"}));
    let children = format!("/proc/{0}/task/{0}/children", daemon.pid());
    let children = fs::read_to_string(children).unwrap();
    let keeper = children.trim().parse().expect("one child");
    let possible = Path::new("/sys/kernel/mm/transparent_hugepage").exists();
    for process in [daemon.pid(), keeper] {
        let large = large_code(process);
        let expected = cfg!(target_arch = "x86_64") && possible;
        assert_eq!(large >= 2048, expected, "{large} KiB");
    }
}
