//! Landlock: a second fence around files, and around abstract sockets and signals where the kernel has it.
//!
//! The mount namespace already hides the host and makes the system read-only. These rules hold even if a mount were wrong.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use belljar_spec::Weakening;
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, Scope,
};

use crate::error::{Error, Result, Step};
use crate::plan::{Closed, Entry, Plan};
use crate::sys;

/// Kernels before 5.19 cannot allow a rename between directories, which too much software needs.
pub const FLOOR: u32 = 2;

/// Nothing can be kept in these.
pub const DEVICES: [&str; 5] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
];

/// The version whose every right this jail asks for on this kernel.
pub fn enforced_abi() -> Option<u32> {
    sys::landlock_abi()
        .filter(|abi| *abi >= FLOOR)
        .map(|abi| abi.min(6))
}

fn abi(version: u32) -> ABI {
    match version {
        0 | 1 => ABI::V1,
        2 => ABI::V2,
        3 => ABI::V3,
        4 => ABI::V4,
        5 => ABI::V5,
        _ => ABI::V6,
    }
}

/// Who is bound by rules.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// Init and what it starts.
    Init,
    /// A kernel that enters from outside. Its domain is beside init's, not within.
    Kernel,
}

/// Confines this process. Every right the kernel knows is handled; a rule that cannot be had is an error, never a gap.
pub fn restrict(plan: &Plan) -> Result<()> {
    let failed = |error: Failure| Error::because(Step::Landlock, "rules", error);
    let rules = rules(plan, Bound::Init).map_err(failed)?;
    rules
        .restrict_self()
        .map(drop)
        .map_err(|error| failed(error.into()))
}

/// The rules for a kernel that enters the sandbox, to be locked by whoever holds them.
pub fn rules_for_kernel(plan: &Plan) -> Result<OwnedFd> {
    let failed = |error: Failure| Error::because(Step::Landlock, "rules", error);
    let rules: Option<OwnedFd> = rules(plan, Bound::Kernel).map_err(failed)?.into();
    rules.ok_or_else(|| failed("this kernel has none".into()))
}

type Failure = Box<dyn std::error::Error>;

fn rules(plan: &Plan, bound: Bound) -> std::result::Result<RulesetCreated, Failure> {
    let version =
        enforced_abi().ok_or_else(|| format!("Landlock version {FLOOR} or later is needed"))?;
    let abi = abi(version);
    let all = AccessFs::from_all(abi);
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(all)?;
    let net = AccessNet::from_all(abi);
    // Version 4 on. With network the only place to reach is the sandbox's own empty network namespace.
    if !net.is_empty() && !plan.network {
        ruleset = ruleset.handle_access(net)?;
    }
    let mut scope = Scope::from_all(abi);
    if plan.kept && bound == Bound::Init {
        // A kernel's domain is not within init's, and init must be able to end it.
        scope.remove(Scope::Signal);
    }
    if !scope.is_empty() {
        ruleset = ruleset.scope(scope)?;
    }
    let rules = ruleset.create()?;
    if let Some(closed) = &plan.closed {
        return closed_rules(rules, closed, bound);
    }
    let rules = allow(rules, "/", AccessFs::from_read(abi))?;
    let rules = writable_places(plan)
        .into_iter()
        .try_fold(rules, |rules, place| allow(rules, place, all))?;
    let file = AccessFs::ReadFile | AccessFs::WriteFile;
    // There is nothing but devices and links, and what has a rule of its own.
    allow(rules, "/dev", file)
}

/// There is no rule for `/`, so what is not named cannot even be listed. What is not there needs none.
fn closed_rules(
    rules: RulesetCreated,
    closed: &Closed,
    bound: Bound,
) -> std::result::Result<RulesetCreated, Failure> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let there = |path: &&PathBuf| path.exists();
    let rules = closed
        .readable
        .iter()
        .filter(there)
        .try_fold(rules, |rules, path| allow(rules, path, read))?;
    let rules = DEVICES
        .iter()
        .map(Path::new)
        .filter(|device| device.exists())
        .try_fold(rules, |rules, device| {
            allow(rules, device, AccessFs::ReadFile | AccessFs::WriteFile)
        })?;
    if bound == Bound::Kernel {
        return Ok(rules);
    }
    let execute = AccessFs::ReadFile | AccessFs::Execute;
    closed
        .executable
        .iter()
        .filter(there)
        .try_fold(rules, |rules, program| allow(rules, program, execute))
}

fn writable_places(plan: &Plan) -> Vec<&Path> {
    if plan.writable || !plan.keeps(Weakening::Mounts) {
        return vec![Path::new("/")];
    }
    let mut places = vec![
        plan.workdir.as_path(),
        Path::new("/tmp"),
        Path::new("/dev/shm"),
    ];
    for entry in &plan.entries {
        if let Entry::Volume {
            target,
            writable: true,
            ..
        } = entry
        {
            places.push(target);
        }
    }
    places
}

fn allow(
    rules: RulesetCreated,
    path: impl AsRef<Path>,
    access: BitFlags<AccessFs>,
) -> std::result::Result<RulesetCreated, Failure> {
    let path = path.as_ref();
    // Rights that only make sense for directories are an error on files.
    let access = if path.is_dir() {
        access
    } else {
        access & AccessFs::from_file(ABI::V6)
    };
    Ok(rules.add_rule(PathBeneath::new(PathFd::new(path)?, access))?)
}
