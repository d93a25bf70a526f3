//! What this host has.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use belljar_spec::{HostCapacity, Maxima};

/// A machine grows and shrinks, but not between two runs; to ask takes a fifth of a run's time.
const HOLDS: Duration = Duration::from_secs(5);

static MAXIMA: OnceLock<Maxima> = OnceLock::new();

/// Limits of runs and sandboxes of this process may reach up to these from now on. Once: they are the operator's.
pub fn set_maxima(maxima: Maxima) {
    let _ = MAXIMA.set(maxima);
}

/// What limits that callers ask for may reach up to.
pub fn capacity() -> HostCapacity {
    HostCapacity {
        maxima: *MAXIMA.get().unwrap_or(&Maxima::NONE),
        ..machine()
    }
}

/// Memory, processors and files, whatever callers may have of them: compilers have limits of their own.
pub fn machine() -> HostCapacity {
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
        memory_bytes: belljar_jail::host::memory().unwrap_or(u64::MAX),
        cpus,
        open_files: belljar_jail::host::most_open_files(),
        maxima: Maxima::NONE,
    }
}
