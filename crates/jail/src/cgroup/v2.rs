//! cgroup version 2: one tree, one group per sandbox.

use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use belljar_spec::Limits;
use nix::unistd::geteuid;

use super::layout::{Hierarchy, Layout, is_writable};
use super::{
    InForce, MAX_PARTS, Meter, get, kill_members, make_dir, missing, open_for_writing, open_procs,
    quota, set, set_and_read,
};
use crate::error::{Context, Result, Step};
use crate::plan::Owner;
use crate::sys;

const CONTROLLERS: &str = "+memory +pids +cpu";

pub struct Tree {
    hierarchy: Hierarchy,
    base: PathBuf,
    /// The base was made by us.
    nested: bool,
}

pub struct Group {
    dir: PathBuf,
    handle: OwnedFd,
    membership: String,
}

impl Tree {
    /// Finds the group to work under and turns the controllers on for its children.
    pub fn find(layout: &Layout) -> Result<Self> {
        let hierarchy = layout
            .v2
            .clone()
            .ok_or_else(|| missing("a hierarchy of version 2"))?;
        let base = base(&hierarchy).ok_or_else(|| missing("a delegated subtree of version 2"))?;
        let tree = Self {
            hierarchy,
            base,
            nested: false,
        };
        tree.enable_controllers()?;
        Ok(tree)
    }

    fn enable_controllers(&self) -> Result<()> {
        let enabled = get(&self.base, "cgroup.subtree_control").unwrap_or_default();
        if ["memory", "pids", "cpu"]
            .iter()
            .all(|wanted| enabled.split_whitespace().any(|word| word == *wanted))
        {
            return Ok(());
        }
        if set(&self.base, "cgroup.subtree_control", CONTROLLERS).is_ok() {
            return Ok(());
        }
        // A group that has processes of its own cannot have controlled children: they move one level down.
        let leaf = self.base.join(format!("{}rest", super::PREFIX));
        let _ = fs::create_dir(&leaf);
        for pid in get(&self.base, "cgroup.procs").unwrap_or_default().lines() {
            set(&leaf, "cgroup.procs", pid)?;
        }
        set(&self.base, "cgroup.subtree_control", CONTROLLERS)
    }

    pub fn bases(&self) -> Vec<&Path> {
        vec![&self.base]
    }

    pub fn nested(&self, name: &str, owner: Owner) -> Result<Self> {
        let tree = Self {
            hierarchy: self.hierarchy.clone(),
            base: self.base.join(name),
            nested: true,
        };
        make_dir(&tree.base)?;
        tree.enable_controllers()?;
        open_procs(&tree.base, owner)?;
        Ok(tree)
    }

    pub fn nest(&self) -> Option<&Path> {
        self.nested.then_some(&self.base)
    }

    pub fn create(&self, name: &str) -> Result<Group> {
        let dir = self.base.join(name);
        make_dir(&dir)?;
        let handle = File::open(&dir).during(Step::Cgroup, dir.display())?.into();
        Ok(Group {
            membership: self.hierarchy.membership(&dir),
            dir,
            handle,
        })
    }
}

/// Where to work: in the subtree that systemd has delegated to us; else root at the top, as container engines do, and others
/// in the nearest group that is theirs and has no processes, or their own.
fn base(hierarchy: &Hierarchy) -> Option<PathBuf> {
    let managed = |dir: &&Path| {
        is_writable(&dir.join("cgroup.procs")) && is_writable(&dir.join("cgroup.subtree_control"))
    };
    let above = || {
        hierarchy
            .own
            .ancestors()
            .take_while(|dir| dir.starts_with(&hierarchy.mount))
            .take_while(managed)
    };
    let delegated = above().find(|dir| sys::has_attribute(dir, c"user.delegate"));
    let usual = || {
        if geteuid().is_root() {
            return Some(hierarchy.mount.as_path()).filter(managed);
        }
        let empty =
            |dir: &&Path| get(dir, "cgroup.procs").is_some_and(|members| members.is_empty());
        above().find(empty).or_else(|| above().next())
    };
    delegated.or_else(usual).map(Path::to_owned)
}

impl Group {
    pub fn birthplace(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    pub fn all_joins(&self) -> Result<Vec<OwnedFd>> {
        Ok(vec![open_for_writing(&self.dir.join("cgroup.procs"))?])
    }

    pub fn apply(&self, limits: &Limits, kept: bool) -> Result<InForce> {
        let memory = limits.memory_bytes.to_string();
        let memory = set_and_read(&self.dir, "memory.max", &memory)?;
        // Absent where the kernel was built without swap or it is off: then there is none to limit.
        if self.dir.join("memory.swap.max").exists() {
            set(&self.dir, "memory.swap.max", "0")?;
        }
        set(&self.dir, "memory.oom.group", if kept { "0" } else { "1" })?;
        let members = members(limits).to_string();
        let (quota, period) = quota(limits.cpus);
        let in_force = vec![
            memory,
            set_and_read(&self.dir, "pids.max", &members)?,
            set_and_read(&self.dir, "cpu.max", &format!("{quota} {period}"))?,
        ];
        if let Some(shares) = limits.cpu_shares {
            self.set_shares(shares)?;
        }
        set(&self.dir, "cgroup.max.descendants", &MAX_PARTS.to_string())?;
        Ok(in_force)
    }

    pub fn set_shares(&self, shares: u32) -> Result<()> {
        set(&self.dir, "cpu.weight", &weight(shares).to_string())
    }

    pub fn meter(&self) -> Meter {
        Meter::v2(&self.dir)
    }

    pub fn killable(&self) -> &Path {
        &self.dir
    }

    pub fn memberships(&self) -> Vec<String> {
        vec![self.membership.clone()]
    }

    pub fn unthrottle(&self) {
        let _ = set(&self.dir, "cpu.max", "max");
    }

    pub fn kill(&self) {
        kill_members(&self.dir);
    }

    pub fn dirs(&self) -> Vec<&Path> {
        vec![&self.dir]
    }
}

/// What a group has that nobody gave a weight is 1024 as cgroup v1 and Docker count, and 100 here.
fn weight(shares: u32) -> u64 {
    (u64::from(shares) * 100 / 1024).clamp(1, 10_000)
}

/// Our init is one more member than what the caller's limit counts.
pub(super) fn members(limits: &Limits) -> u64 {
    limits.processes + 1
}
