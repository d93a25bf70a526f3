//! The files that code in a container can reach: what the engine is told to hide, and the rules that the agent puts around
//! each command.
//!
//! A container sees the kernel's places with far more in them than a jar's. Masks take that away for whoever is inside;
//! the rules (Landlock) are what a native sandbox has, and hold even where a mask or a mount were wrong.

use std::path::Path;

use belljar_jail::{Closed, DEVICES, Entry, Plan};

/// Seen as empty. Of `/proc` what is left is processes, what belongs to a namespace, and what programs need to know of memory,
/// processors and time.
const HIDDEN: [&str; 51] = [
    "/sys",
    "/proc/acpi",
    "/proc/allocinfo",
    "/proc/asound",
    "/proc/bootconfig",
    "/proc/buddyinfo",
    "/proc/bus",
    "/proc/cmdline",
    "/proc/config.gz",
    "/proc/consoles",
    "/proc/crypto",
    "/proc/device-tree",
    "/proc/devices",
    "/proc/diskstats",
    "/proc/dma",
    "/proc/driver",
    "/proc/dynamic_debug",
    "/proc/execdomains",
    "/proc/fb",
    "/proc/fs",
    "/proc/interrupts",
    "/proc/iomem",
    "/proc/ioports",
    "/proc/irq",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/key-users",
    "/proc/keys",
    "/proc/kmsg",
    "/proc/kpagecgroup",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/latency_stats",
    "/proc/locks",
    "/proc/mdstat",
    "/proc/misc",
    "/proc/modules",
    "/proc/mtrr",
    "/proc/pagetypeinfo",
    "/proc/partitions",
    "/proc/sched_debug",
    "/proc/schedstat",
    "/proc/scsi",
    "/proc/slabinfo",
    "/proc/softirqs",
    "/proc/swaps",
    "/proc/sysrq-trigger",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/vmallocinfo",
    "/proc/zoneinfo",
];

/// Seen, and not to be changed.
const READ_ONLY: [&str; 2] = ["/dev", "/proc/sys"];

pub fn hidden() -> Vec<String> {
    HIDDEN.map(str::to_owned).to_vec()
}

pub fn read_only() -> Vec<String> {
    READ_ONLY.map(str::to_owned).to_vec()
}

const TERMINALS: [&str; 2] = ["/dev/tty", "/dev/pts"];

/// The kernel's bits.
const EXECUTE: u32 = 1;
const WRITE: u32 = 1 << 1;
const READ: u32 = 1 << 2;
const LIST: u32 = 1 << 3;
const COMMAND_DEVICE: u32 = 1 << 15;
const ALL: u32 = (1 << 16) - 1;

/// Flags of the frame, and of a rule; `crates/jail/agent/fence.rs` has the same.
const NETWORK: u8 = 1;
const WHOLE_ROOT: u8 = 2;
const AT_TERMINAL: u32 = 1 << 31;

/// The rules in the agent's own form.
pub fn rules(plan: &Plan) -> Vec<u8> {
    let mut rules = Rules(vec![if plan.network { NETWORK } else { 0 }]);
    for device in DEVICES {
        rules.allow(device, READ | WRITE);
    }
    match &plan.closed {
        Some(closed) => rules.close(closed),
        None => rules.open(plan),
    }
    rules.0
}

struct Rules(Vec<u8>);

impl Rules {
    fn allow(&mut self, path: impl AsRef<Path>, rights: u32) {
        let path = path.as_ref().as_os_str().as_encoded_bytes();
        self.0.extend(rights.to_le_bytes());
        // None has a NUL in it: `spec` sees to that.
        self.0.extend_from_slice(path);
        self.0.push(0);
    }

    fn open(&mut self, plan: &Plan) {
        if plan.writable {
            return self.allow("/", ALL);
        }
        self.0[0] |= WHOLE_ROOT;
        self.allow("/proc", READ | LIST);
        for terminal in TERMINALS {
            self.allow(terminal, READ | WRITE | COMMAND_DEVICE | AT_TERMINAL);
        }
        for place in [
            plan.workdir.as_path(),
            Path::new("/tmp"),
            Path::new("/dev/shm"),
        ] {
            self.allow(place, ALL);
        }
        for entry in &plan.entries {
            if let Entry::Volume {
                target,
                writable: true,
                ..
            } = entry
            {
                self.allow(target, ALL);
            }
        }
    }

    /// There is no rule for `/`, so what is not named cannot even be listed.
    fn close(&mut self, closed: &Closed) {
        for path in &closed.readable {
            self.allow(path, READ | LIST);
        }
        for path in &closed.executable {
            self.allow(path, READ | EXECUTE);
        }
        // Modules that Debian keeps there; natively the directory is not there at all.
        for minor in 7..30 {
            self.allow(format!("/etc/python3.{minor}"), READ | LIST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_hidden_is_named_once() {
        let mut names = hidden();
        names.dedup();
        assert_eq!(names.len(), HIDDEN.len());
        for needed in ["/proc/meminfo", "/proc/stat", "/proc/self", "/proc/uptime"] {
            assert!(!names.iter().any(|name| name == needed), "{needed}");
        }
    }

    #[test]
    fn a_rule_is_its_rights_and_a_path() {
        let mut rules = Rules(vec![0]);
        rules.allow("/tmp", READ | AT_TERMINAL);
        assert_eq!(rules.0, [&[0, 4, 0, 0, 0x80][..], b"/tmp\0"].concat());
    }
}
