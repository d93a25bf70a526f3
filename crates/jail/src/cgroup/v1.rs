//! cgroup version 1: a group per controller, and one in the version 2 tree beside them where there is one.
//!
//! That tree has no controllers then, but it can kill a group at once and counts its CPU time.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use belljar_spec::Limits;

use super::layout::{Hierarchy, Layout, is_writable};
use super::v2::members;
use super::{
    Meter, get, kill_members, make_dir, missing, open_for_writing, open_procs, quota, set,
};
use crate::error::{Context, Result, Step};
use crate::plan::Owner;

pub struct Tree {
    memory: Hierarchy,
    pids: Hierarchy,
    cpu: Hierarchy,
    /// Counts CPU time and kills: the version 2 tree, or else `cpuacct`.
    account: Hierarchy,
    unified: bool,
    nested: bool,
}

pub struct Group {
    memory: PathBuf,
    pids: PathBuf,
    cpu: PathBuf,
    account: PathBuf,
    unified: Option<OwnedFd>,
    joins: Vec<OwnedFd>,
    memberships: Vec<String>,
}

impl Tree {
    pub fn find(layout: &Layout) -> Result<Self> {
        let need = |controller: &str| {
            layout
                .v1(controller)
                .filter(|hierarchy| is_writable(&hierarchy.own))
                .cloned()
                .ok_or_else(|| missing(&format!("the {controller} controller (cgroup v1)")))
        };
        let unified = layout
            .v2
            .clone()
            .filter(|hierarchy| is_writable(&hierarchy.own));
        let is_unified = unified.is_some();
        let account = unified.map_or_else(|| need("cpuacct"), Ok)?;
        Ok(Self {
            memory: need("memory")?,
            pids: need("pids")?,
            cpu: need("cpu")?,
            account,
            unified: is_unified,
            nested: false,
        })
    }

    fn hierarchies(&self) -> [&Hierarchy; 4] {
        [&self.memory, &self.pids, &self.cpu, &self.account]
    }

    pub fn bases(&self) -> Vec<&Path> {
        self.hierarchies()
            .map(|hierarchy| hierarchy.own.as_path())
            .to_vec()
    }

    /// Only the version 2 tree can be born into; the others are joined without a lock.
    pub fn nested(&self, name: &str, owner: Owner) -> Result<Self> {
        let mut account = self.account.clone();
        if self.unified {
            account.own = make_dir(&account.own, name)?;
            open_procs(&account.own, owner)?;
        }
        Ok(Self {
            memory: self.memory.clone(),
            pids: self.pids.clone(),
            cpu: self.cpu.clone(),
            account,
            unified: self.unified,
            nested: self.unified,
        })
    }

    pub fn nest(&self) -> Option<&Path> {
        self.nested.then_some(&self.account.own)
    }

    pub fn create(&self, name: &str) -> Result<Group> {
        let [memory, pids, cpu, account] = self.hierarchies();
        // `cpu` and `cpuacct` may be one hierarchy under two names, in which one group serves both.
        let shared = !self.unified && cpu.own == account.own;
        let make = |hierarchy: &Hierarchy| make_dir(&hierarchy.own, name);
        let dirs = [make(memory)?, make(pids)?, make(cpu)?];
        let account_dir = if shared {
            dirs[2].clone()
        } else {
            make(account)?
        };
        let mut memberships: Vec<_> = [memory, pids, cpu]
            .iter()
            .zip(&dirs)
            .map(|(h, dir)| h.membership(dir))
            .collect();
        memberships.push(account.membership(&account_dir));
        // `tasks`, not `cgroup.procs`: moving oneself there takes no global lock.
        let open_tasks = |dir: &PathBuf| open_for_writing(&dir.join("tasks"));
        let mut joins = dirs.iter().map(open_tasks).collect::<Result<Vec<_>>>()?;
        let unified = if self.unified {
            Some(
                File::open(&account_dir)
                    .during(Step::Cgroup, account_dir.display())?
                    .into(),
            )
        } else {
            if !shared {
                joins.push(open_tasks(&account_dir)?);
            }
            None
        };
        let [memory, pids, cpu] = dirs;
        Ok(Group {
            memory,
            pids,
            cpu,
            account: account_dir,
            unified,
            joins,
            memberships,
        })
    }
}

impl Group {
    pub fn birthplace(&self) -> Option<BorrowedFd<'_>> {
        self.unified.as_ref().map(AsFd::as_fd)
    }

    pub fn joins(&self) -> &[OwnedFd] {
        &self.joins
    }

    pub fn all_joins(&self) -> Result<Vec<OwnedFd>> {
        let mut files = self
            .joins
            .iter()
            .map(OwnedFd::try_clone)
            .collect::<std::io::Result<Vec<_>>>();
        if let (Ok(files), Some(_)) = (&mut files, &self.unified) {
            files.push(open_for_writing(&self.account.join("cgroup.procs"))?);
        }
        files.during(Step::Cgroup, self.memory.display())
    }

    pub fn apply(&self, limits: &Limits) -> Result<()> {
        let bytes = limits.memory_bytes.to_string();
        // The plain limit may never be above the one with swap: order depends on which way it moves.
        let memory = |file| set(&self.memory, file, &bytes);
        if memory("memory.limit_in_bytes").is_err() {
            memory("memory.memsw.limit_in_bytes")?;
            memory("memory.limit_in_bytes")?;
        } else if self.memory.join("memory.memsw.limit_in_bytes").exists() {
            memory("memory.memsw.limit_in_bytes")?;
        } else {
            set(&self.memory, "memory.swappiness", "0")?;
        }
        set(&self.pids, "pids.max", &members(limits).to_string())?;
        let (quota, period) = quota(limits.cpus);
        set(&self.cpu, "cpu.cfs_period_us", &period.to_string())?;
        set(&self.cpu, "cpu.cfs_quota_us", &quota.to_string())
    }

    pub fn limits_in_force(&self) -> Result<Vec<(&'static str, String)>> {
        let files = [
            (&self.memory, "memory.limit_in_bytes"),
            (&self.pids, "pids.max"),
            (&self.cpu, "cpu.cfs_quota_us"),
        ];
        let read = |(dir, file): (&PathBuf, &'static str)| {
            get(dir, file)
                .map(|value| (file, value))
                .ok_or_else(|| missing(file))
        };
        files.into_iter().map(read).collect()
    }

    pub fn meter(&self) -> Meter {
        Meter::v1(
            &self.memory,
            &self.pids,
            &self.account,
            self.unified.is_some(),
        )
    }

    pub fn killable(&self) -> Option<&Path> {
        self.unified.as_ref().map(|_| self.account.as_path())
    }

    pub fn memberships(&self) -> Vec<String> {
        self.memberships.clone()
    }

    pub fn unthrottle(&self) {
        let _ = set(&self.cpu, "cpu.cfs_quota_us", "-1");
    }

    pub fn kill(&self) {
        kill_members(&self.account);
    }

    pub fn dirs(&self) -> Vec<&Path> {
        let mut dirs: Vec<&Path> = vec![&self.memory, &self.pids, &self.cpu, &self.account];
        dirs.dedup();
        dirs
    }
}
