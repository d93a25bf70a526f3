//! The one table of limits, and the way from what was asked to what holds.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::{Amount, Error, Unit};

/// Which limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitKind {
    Timeout,
    Memory,
    Cpus,
    Processes,
    Output,
    Disk,
    OpenFiles,
}

/// A row of the table. Values are in the unit's base: milliseconds, bytes, thousandths of a core, things.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    pub kind: LimitKind,
    /// Name in JSON, TOML and Python.
    pub json: &'static str,
    pub flag: &'static str,
    /// Environment variable of the CLI.
    pub env: &'static str,
    pub unit: Unit,
    pub default: u64,
    pub minimum: u64,
    /// `None`: what the host has.
    pub maximum: Option<u64>,
    /// How far an operator may raise that; what the host has goes no further.
    pub ceiling: Option<u64>,
    pub doc: &'static str,
}

pub const LIMITS: [Limit; 7] = [
    Limit {
        kind: LimitKind::Timeout,
        json: "timeout_ms",
        flag: "--timeout",
        env: "BELLJAR_TIMEOUT",
        unit: Unit::Milliseconds,
        default: 30_000,
        minimum: 1,
        maximum: Some(3_600_000),
        ceiling: Some(30 * 24 * 3_600_000),
        doc: "Wall-clock time; when it is over everything in the sandbox is killed",
    },
    Limit {
        kind: LimitKind::Memory,
        json: "memory_bytes",
        flag: "--memory",
        env: "BELLJAR_MEMORY",
        unit: Unit::BinaryBytes,
        default: 512 << 20,
        minimum: 4 << 20,
        maximum: None,
        ceiling: None,
        doc: "Memory of all processes together, files in /tmp and the workspace included; there is no swap",
    },
    Limit {
        kind: LimitKind::Cpus,
        json: "cpus",
        flag: "--cpus",
        env: "BELLJAR_CPUS",
        unit: Unit::Cores,
        default: 1000,
        minimum: 10,
        maximum: None,
        ceiling: None,
        doc: "CPU time per second of wall-clock time, in cores",
    },
    Limit {
        kind: LimitKind::Processes,
        json: "processes",
        flag: "--processes",
        env: "BELLJAR_PROCESSES",
        unit: Unit::Count,
        default: 128,
        minimum: 1,
        maximum: Some(4096),
        ceiling: Some(4 << 20),
        doc: "Processes and threads at one time",
    },
    Limit {
        kind: LimitKind::Output,
        json: "output_bytes",
        flag: "--max-output",
        env: "BELLJAR_MAX_OUTPUT",
        unit: Unit::DecimalBytes,
        default: 100_000,
        minimum: 1,
        maximum: Some(64 << 20),
        ceiling: Some(1 << 30),
        doc: "Bytes kept of each of stdout and stderr; the rest is dropped and the program goes on",
    },
    Limit {
        kind: LimitKind::Disk,
        json: "disk_bytes",
        flag: "--disk",
        env: "BELLJAR_DISK",
        unit: Unit::BinaryBytes,
        default: 128 << 20,
        minimum: 64 << 10,
        maximum: Some(16 << 30),
        ceiling: Some(64 << 40),
        doc: "Bytes of the workspace and /tmp together",
    },
    Limit {
        kind: LimitKind::OpenFiles,
        json: "open_files",
        flag: "--open-files",
        env: "BELLJAR_OPEN_FILES",
        unit: Unit::Count,
        default: 1024,
        minimum: 16,
        maximum: Some(65_536),
        ceiling: Some(1 << 20),
        doc: "Open files of each process",
    },
];

const OF_HOST: &str = ", which is what this host has";

/// More than any machine has.
const LARGEST: HostCapacity = HostCapacity {
    memory_bytes: 1 << 50,
    cpus: 65_536,
    open_files: u64::MAX,
    maxima: Maxima::NONE,
};

/// What this machine has to give.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HostCapacity {
    pub memory_bytes: u64,
    pub cpus: u32,
    /// That a process may have: nobody can have more than was inherited.
    pub open_files: u64,
    pub maxima: Maxima,
}

/// What an operator has put in place of the table's maxima, by row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Maxima([Option<u64>; LIMITS.len()]);

impl Maxima {
    /// The table's.
    pub const NONE: Self = Self([None; LIMITS.len()]);

    /// Lower than the table says, or higher, but not higher than the host can do.
    pub fn new(patch: &LimitsPatch, host: &HostCapacity) -> Result<Self, Error> {
        let bare = HostCapacity {
            maxima: Self::NONE,
            ..*host
        };
        let mut maxima = Self::NONE;
        for row in &LIMITS {
            let most = row.ceiling.unwrap_or_else(|| row.maximum_on(&bare));
            let whose = if row.ceiling.is_none() { OF_HOST } else { "" };
            let given = patch.get(row.kind);
            let within = given.map(|given| row.within(given, most, whose));
            maxima.0[row.kind as usize] = within.transpose()?;
        }
        Ok(maxima)
    }
}

/// Limits as asked for, unchecked: flags, request bodies, manifests and configuration all become one of these.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct LimitsPatch {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<Amount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<Amount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Amount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<Amount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<Amount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<Amount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_files: Option<Amount>,
    /// A weight and no limit: how CPU time is divided among sandboxes when there is too little for all. 1024 is usual.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_shares: Option<u32>,
}

/// What the kernel accepts as a weight of CPU time.
const CPU_SHARES: RangeInclusive<u32> = 2..=262_144;

/// Limits that hold.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Limits {
    pub timeout_ms: u64,
    pub memory_bytes: u64,
    pub cpus: f64,
    pub processes: u64,
    pub output_bytes: u64,
    pub disk_bytes: u64,
    pub open_files: u64,
    /// If it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_shares: Option<u32>,
}

impl LimitKind {
    pub fn row(self) -> &'static Limit {
        const {
            let mut i = 0;
            while i < LIMITS.len() {
                assert!(
                    LIMITS[i].kind as usize == i,
                    "rows are in the order of the enum"
                );
                i += 1;
            }
        }
        &LIMITS[self as usize]
    }
}

impl Limit {
    /// The largest value accepted on this host.
    pub fn maximum_on(&self, host: &HostCapacity) -> u64 {
        let set = host.maxima.0[self.kind as usize];
        let allowed = set.or(self.maximum).unwrap_or(u64::MAX);
        allowed.min(self.of_host(host))
    }

    fn of_host(&self, host: &HostCapacity) -> u64 {
        match self.kind {
            LimitKind::Cpus => u64::from(host.cpus) * 1000,
            LimitKind::Memory => host.memory_bytes,
            LimitKind::OpenFiles => host.open_files,
            _ => u64::MAX,
        }
    }

    /// The value of `given`, or what is wrong with it.
    pub fn check(&self, given: &Amount, host: &HostCapacity) -> Result<u64, Error> {
        let maximum = self.maximum_on(host);
        let whose = if maximum == self.of_host(host) {
            OF_HOST
        } else if host.maxima.0[self.kind as usize].is_some() {
            ", which is what this daemon allows"
        } else {
            ""
        };
        self.within(given, maximum, whose)
    }

    fn within(&self, given: &Amount, maximum: u64, whose: &str) -> Result<u64, Error> {
        self.value(given, maximum)
            .ok_or_else(|| Error::InvalidLimit {
                field: format!("{} ({})", self.json, self.flag),
                given: given.to_string(),
                accepted: self.accepted(maximum) + whose,
            })
    }

    fn value(&self, given: &Amount, maximum: u64) -> Option<u64> {
        let value = given.value(self.unit)?;
        (self.minimum..=maximum).contains(&value).then_some(value)
    }

    fn accepted(&self, maximum: u64) -> String {
        format!(
            "give {} from {} to {}",
            self.unit.accepted(),
            self.unit.text(self.minimum),
            self.unit.text(maximum),
        )
    }
}

impl LimitsPatch {
    pub fn get(&self, kind: LimitKind) -> Option<&Amount> {
        match kind {
            LimitKind::Timeout => self.timeout_ms.as_ref(),
            LimitKind::Memory => self.memory_bytes.as_ref(),
            LimitKind::Cpus => self.cpus.as_ref(),
            LimitKind::Processes => self.processes.as_ref(),
            LimitKind::Output => self.output_bytes.as_ref(),
            LimitKind::Disk => self.disk_bytes.as_ref(),
            LimitKind::OpenFiles => self.open_files.as_ref(),
        }
    }

    pub fn get_mut(&mut self, kind: LimitKind) -> &mut Option<Amount> {
        match kind {
            LimitKind::Timeout => &mut self.timeout_ms,
            LimitKind::Memory => &mut self.memory_bytes,
            LimitKind::Cpus => &mut self.cpus,
            LimitKind::Processes => &mut self.processes,
            LimitKind::Output => &mut self.output_bytes,
            LimitKind::Disk => &mut self.disk_bytes,
            LimitKind::OpenFiles => &mut self.open_files,
        }
    }

    /// This patch, with what it leaves open taken from `weaker`: `flags.or(&env).or(&file)`.
    #[must_use]
    pub fn or(mut self, weaker: &Self) -> Self {
        for row in &LIMITS {
            let value = self.get_mut(row.kind);
            if value.is_none() {
                *value = weaker.get(row.kind).cloned();
            }
        }
        self.cpu_shares = self.cpu_shares.or(weaker.cpu_shares);
        self
    }

    /// Of what a file says for every host: too large for this one is no mistake in it. Fields are called as they are there.
    pub fn check_for_any_host(&self) -> Result<(), Error> {
        for row in &LIMITS {
            let maximum = row.maximum_on(&LARGEST);
            match self.get(row.kind) {
                Some(given) if row.value(given, maximum).is_none() => {
                    return Err(Error::InvalidRequest {
                        field: row.json.into(),
                        given: given.to_string(),
                        accepted: row.accepted(maximum),
                    });
                }
                _ => {}
            }
        }
        match self.cpu_shares.map(checked_shares).transpose() {
            Err(Error::InvalidLimit {
                field,
                given,
                accepted,
            }) => Err(Error::InvalidRequest {
                field,
                given,
                accepted,
            }),
            checked => checked.map(drop),
        }
    }

    /// The limits that hold: what was asked, else what the runtime wants, else the default. What was asked for must be
    /// within the host; a default that the host is too small for is lowered to fit.
    pub fn resolve(&self, runtime_defaults: &Self, host: &HostCapacity) -> Result<Limits, Error> {
        let value = |kind: LimitKind| {
            let row = kind.row();
            let maximum = row.maximum_on(host);
            if let Some(given) = self.get(kind) {
                return row.check(given, host);
            }
            match runtime_defaults.get(kind) {
                Some(wanted) => match wanted.value(row.unit) {
                    Some(value) if value >= row.minimum => Ok(value.min(maximum)),
                    _ => row.check(wanted, host),
                },
                None => Ok(row.default.min(maximum)),
            }
        };
        let cores = u32::try_from(value(LimitKind::Cpus)?).unwrap_or(u32::MAX);
        Ok(Limits {
            timeout_ms: value(LimitKind::Timeout)?,
            memory_bytes: value(LimitKind::Memory)?,
            cpus: f64::from(cores) / 1000.0,
            processes: value(LimitKind::Processes)?,
            output_bytes: value(LimitKind::Output)?,
            disk_bytes: value(LimitKind::Disk)?,
            open_files: value(LimitKind::OpenFiles)?,
            cpu_shares: self.cpu_shares.map(checked_shares).transpose()?,
        })
    }
}

fn checked_shares(given: u32) -> Result<u32, Error> {
    let (least, most) = CPU_SHARES.into_inner();
    if CPU_SHARES.contains(&given) {
        return Ok(given);
    }
    Err(Error::InvalidLimit {
        field: "cpu_shares".into(),
        given: given.to_string(),
        accepted: format!("give a number from {least} to {most}; 1024 is usual"),
    })
}

#[cfg(test)]
mod tests;
