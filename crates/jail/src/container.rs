//! Sandboxes that a container engine makes: what runs in them, and what the kernel says of them from outside.

use std::collections::BTreeMap;
use std::fs;

use belljar_spec::{CgroupReport, Report, SeccompReport};

use crate::cgroup::Meter;
use crate::kernel_file;

/// The first process of a container: a static program, so that it runs in any image. See `agent/main.rs`.
pub const AGENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent"));

const NAMESPACES: [&str; 7] = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];
const CAPABILITY_SETS: [&str; 5] = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];

/// What a process's `/proc/PID/status` says of its confinement.
pub fn report(status: &str) -> Report {
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
    };
    let held: Vec<_> = CAPABILITY_SETS
        .iter()
        .filter_map(|set| Some((set, field(set)?)))
        .filter(|(_, bits)| bits.chars().any(|digit| digit != '0'))
        .map(|(set, bits)| format!("{set} {bits}"))
        .collect();
    let all_there = CAPABILITY_SETS.iter().all(|set| field(set).is_some());
    Report {
        uid: field("Uid")
            .and_then(|ids| ids.split_whitespace().next()?.parse().ok())
            .unwrap_or(0),
        no_new_privs: field("NoNewPrivs") == Some("1"),
        capabilities: match (all_there, held.is_empty()) {
            (false, _) => "unknown".into(),
            (true, true) => "none".into(),
            (true, false) => held.join(", "),
        },
        seccomp: SeccompReport {
            mode: match field("Seccomp") {
                Some("2") => "filter",
                Some("1") => "strict",
                _ => "off",
            }
            .into(),
            filters: field("Seccomp_filters")
                .and_then(|count| count.parse().ok())
                .unwrap_or(0),
        },
        ..Report::default()
    }
}

/// A container's first process, where this host runs it and its kernel can be asked.
pub struct Seen {
    pub report: Report,
    pub meter: Meter,
}

/// Looks at the process `pid`, if that is really one of the container `id` and on this host.
pub fn look(pid: i64, id: &str) -> Option<Seen> {
    let meter = Meter::of_process(pid, id)?;
    let status = kernel_file::read(format!("/proc/{pid}/status")).ok()?;
    let mut report = report(&status);
    let link = |of: &str, name: &str| fs::read_link(format!("/proc/{of}/ns/{name}")).ok();
    report.namespaces = NAMESPACES
        .into_iter()
        .filter(|name| {
            let theirs = link(&pid.to_string(), name);
            theirs.is_some() && theirs != link("self", name)
        })
        .map(str::to_owned)
        .collect();
    let controllers: BTreeMap<String, String> = meter.limits_in_force();
    report.cgroup = Some(CgroupReport {
        version: meter.version(),
        controllers,
    });
    Some(Seen { report, meter })
}
