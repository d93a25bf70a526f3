//! What this host has.

use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use belljar_spec::HostCapacity;

/// A machine grows and shrinks, but not between two runs; to ask takes a fifth of a run's time.
const HOLDS: Duration = Duration::from_secs(5);

/// Memory and processors that limits may reach up to.
pub fn capacity() -> HostCapacity {
    static KNOWN: Mutex<Option<(Instant, HostCapacity)>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    match *known {
        Some((since, capacity)) if since.elapsed() < HOLDS => capacity,
        _ => known.insert((Instant::now(), look())).1,
    }
}

fn look() -> HostCapacity {
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
