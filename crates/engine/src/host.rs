//! What this host has.

use std::fs;

use belljar_spec::HostCapacity;

/// Memory and processors that limits may reach up to.
pub fn capacity() -> HostCapacity {
    let cpus = std::thread::available_parallelism()
        .map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX));
    HostCapacity {
        memory_bytes: memory().unwrap_or(u64::MAX),
        cpus,
    }
}

fn memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim()
        .strip_suffix("kB")?
        .trim()
        .parse::<u64>()
        .ok()
        .map(|kib| kib * 1024)
}
