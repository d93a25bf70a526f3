//! What the kernel counted for a group, read from files that are opened once: a run in a live sandbox reads them twice.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use super::layout::{Hierarchy, Layout};
use crate::kernel_file;

/// What the kernel counted so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    pub cpu_micros: u64,
    pub memory: u64,
    pub memory_peak: u64,
    pub processes: u64,
    pub processes_peak: u64,
    pub oom_kills: u64,
}

/// What tells a fork bomb from a program that computes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Crowd {
    /// There are as many processes as may be.
    pub full: bool,
    pub cpu_micros: u64,
    /// How much of that the kernel took.
    pub system_micros: u64,
}

/// The counters of one sandbox. Can cross a socket; the files are opened by whoever reads them.
#[derive(Debug, Serialize, Deserialize)]
pub struct Meter {
    cpu: Gauge,
    memory: Gauge,
    memory_peak: Gauge,
    processes: Gauge,
    processes_peak: Gauge,
    oom_kills: Gauge,
}

/// One number in one file.
#[derive(Debug, Serialize, Deserialize)]
struct Gauge {
    path: PathBuf,
    /// The number stands after this word, at the beginning of a line; alone in the file if empty.
    key: String,
    #[serde(skip)]
    file: OnceLock<Option<File>>,
}

impl Gauge {
    fn new(dir: &Path, name: &str, key: &str) -> Self {
        Self {
            path: dir.join(name),
            key: key.to_owned(),
            file: OnceLock::new(),
        }
    }

    /// Zero where the file is not there: older kernels lack some. Keeps the file open for the next time.
    fn read(&self) -> u64 {
        let file = self.file.get_or_init(|| File::open(&self.path).ok());
        file.as_ref().map_or(0, |file| self.read_from(file))
    }

    /// Leaves nothing open that was not.
    fn read_once(&self) -> u64 {
        if self.file.get().is_some() {
            return self.read();
        }
        File::open(&self.path).map_or(0, |file| self.read_from(&file))
    }

    fn read_from(&self, file: &File) -> u64 {
        let mut buffer = [0; 1024];
        let read = file.read_at(&mut buffer, 0).unwrap_or(0);
        let text = String::from_utf8_lossy(&buffer[..read]);
        let number = if self.key.is_empty() {
            text.trim().parse().ok()
        } else {
            text.lines().find_map(|line| {
                let rest = line.strip_prefix(self.key.as_str())?;
                rest.strip_prefix(' ')?.trim().parse().ok()
            })
        };
        number.unwrap_or(0)
    }
}

impl Meter {
    pub(super) fn v2(dir: &Path) -> Self {
        Self {
            cpu: Gauge::new(dir, "cpu.stat", "usage_usec"),
            memory: Gauge::new(dir, "memory.current", ""),
            memory_peak: Gauge::new(dir, "memory.peak", ""),
            processes: Gauge::new(dir, "pids.current", ""),
            processes_peak: Gauge::new(dir, "pids.peak", ""),
            oom_kills: Gauge::new(dir, "memory.events", "oom_kill"),
        }
    }

    /// `account` is a group of the version 2 tree beside, or else of `cpuacct`.
    pub(super) fn v1(memory: &Path, pids: &Path, account: &Path, unified: bool) -> Self {
        Self {
            cpu: if unified {
                Gauge::new(account, "cpu.stat", "usage_usec")
            } else {
                Gauge::new(account, "cpuacct.usage", "")
            },
            memory: Gauge::new(memory, "memory.usage_in_bytes", ""),
            memory_peak: Gauge::new(memory, "memory.max_usage_in_bytes", ""),
            processes: Gauge::new(pids, "pids.current", ""),
            processes_peak: Gauge::new(pids, "pids.peak", ""),
            oom_kills: Gauge::new(memory, "memory.oom_control", "oom_kill"),
        }
    }

    /// Of the groups that a process of somebody else's making is in, if all of them are named after `name`.
    pub(crate) fn of_process(pid: i64, name: &str) -> Option<Self> {
        let layout = Layout::read().ok()?;
        let memberships = kernel_file::read(format!("/proc/{pid}/cgroup")).ok()?;
        let dir = |hierarchy: &Hierarchy| hierarchy.directory(&memberships, name);
        if layout.has_v2_controllers() {
            return Some(Self::v2(&dir(layout.v2.as_ref()?)?));
        }
        let memory = dir(layout.v1("memory")?)?;
        let (pids, account) = (dir(layout.v1("pids")?)?, dir(layout.v1("cpuacct")?)?);
        Some(Self::v1(&memory, &pids, &account, false))
    }

    pub(crate) fn version(&self) -> u8 {
        if self.oom_kills.path.ends_with("memory.events") {
            2
        } else {
            1
        }
    }

    /// What the kernel has been told to hold the groups to.
    pub(crate) fn limits_in_force(&self) -> BTreeMap<String, String> {
        let files: &[(&Gauge, &str)] = if self.version() == 2 {
            &[
                (&self.memory, "memory.max"),
                (&self.memory, "memory.swap.max"),
                (&self.memory, "cpu.max"),
                (&self.processes, "pids.max"),
            ]
        } else {
            &[
                (&self.memory, "memory.limit_in_bytes"),
                (&self.memory, "memory.memsw.limit_in_bytes"),
                (&self.processes, "pids.max"),
            ]
        };
        files
            .iter()
            .filter_map(|(gauge, name)| {
                let text = kernel_file::read(gauge.path.with_file_name(name)).ok()?;
                Some(((*name).to_owned(), text.trim().to_owned()))
            })
            .collect()
    }

    /// Opens the files, so that reading them takes less time later.
    pub fn prepare(&self) {
        self.read_final();
    }

    /// Just the memory that is held at this moment.
    pub fn memory(&self) -> u64 {
        self.memory.read_once()
    }

    /// Whether one process is all that there is.
    pub(crate) fn has_one_process(&self) -> bool {
        self.processes.read_once() == 1
    }

    /// How crowded the groups are at this moment. Opens everything anew, and leaves nothing open.
    pub fn crowd(&self) -> Crowd {
        let once = |gauge: &Gauge, name: &str, key: &str| {
            let path = gauge.path.with_file_name(name);
            let (key, file) = (key.to_owned(), OnceLock::new());
            Gauge { path, key, file }.read()
        };
        let most = once(&self.processes, "pids.max", "");
        // The user's limit, which counts others than this one does, may be the first to be reached.
        let full = most > 0 && self.processes.read_once() + 1 >= most;
        Crowd {
            full,
            cpu_micros: once(&self.cpu, "cpu.stat", "usage_usec"),
            system_micros: once(&self.cpu, "cpu.stat", "system_usec"),
        }
    }

    /// Everything, at this moment.
    pub fn read(&self) -> Counters {
        let now = Counters {
            memory: self.memory.read_once(),
            processes: others(self.processes.read_once()),
            ..Counters::default()
        };
        self.with_peaks(now)
    }

    /// What is of interest when something has ended: all but what is held at this moment.
    pub fn read_final(&self) -> Counters {
        self.with_peaks(Counters::default())
    }

    fn with_peaks(&self, now: Counters) -> Counters {
        let (mut memory_peak, mut processes_peak) =
            (self.memory_peak.read(), self.processes_peak.read());
        // Linux 5.19 and 6.1; on older kernels what is charged now is the best there is.
        if memory_peak == 0 {
            memory_peak = self.memory.read();
        }
        if processes_peak == 0 {
            processes_peak = self.processes.read();
        }
        Counters {
            memory_peak: memory_peak.max(now.memory),
            processes_peak: others(processes_peak).max(now.processes),
            memory: now.memory,
            processes: now.processes,
            ..self.read_brief()
        }
    }

    /// Just the two that a short run needs: CPU time and kills for want of memory.
    pub fn read_brief(&self) -> Counters {
        let cpu = self.cpu.read();
        Counters {
            cpu_micros: if self.cpu.key.is_empty() {
                cpu / 1000
            } else {
                cpu
            },
            oom_kills: self.oom_kills.read(),
            ..Counters::default()
        }
    }
}

/// Our init is a member that the caller's limit does not count.
fn others(members: u64) -> u64 {
    members.saturating_sub(1)
}
