//! cgroup version 1: a group per controller, and one in the version 2 tree beside them where there is one.
//!
//! That tree has no controllers then, but it can kill a group at once and counts its CPU time.

use std::cell::Cell;
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use belljar_spec::Limits;

use super::layout::{Hierarchy, Layout, is_writable};
use super::spare::{Controllers, Spares};
use super::v2::members;
use super::{
    InForce, Meter, kill_members, make_dir, missing, open_for_writing, open_procs, quota, set,
    set_and_read,
};
use crate::error::{Context, Result, Step};
use crate::plan::Owner;

/// Not on every kernel. Without the controller of version 1 it is not needed: version 2 counts sockets like all else.
const SOCKETS: &str = "memory.kmem.tcp.limit_in_bytes";
/// Of the memory limit, besides it.
const SHARE_OF_SOCKETS: u64 = 4;

pub struct Tree {
    memory: Hierarchy,
    pids: Hierarchy,
    cpu: Hierarchy,
    /// Counts CPU time and kills: the version 2 tree, or else `cpuacct`.
    account: Hierarchy,
    unified: bool,
    nested: bool,
    spares: Spares,
}

pub struct Group {
    controllers: Controllers,
    account: PathBuf,
    unified: bool,
    /// Whether `account` is another group's, which this one is a stage of.
    within: bool,
    birthplace: Option<OwnedFd>,
    /// All but the birthplace have been made.
    complete: bool,
    memberships: Vec<String>,
    /// Where its controllers go, if others may have them after it,
    spares: Option<Spares>,
    /// unless something has been changed in them that the next would not change back.
    changed: Cell<bool>,
}

impl Tree {
    pub fn find(layout: &Layout) -> Result<Self> {
        let need = |controller: &str| {
            layout
                .v1(controller)
                .filter(|hierarchy| is_writable(&hierarchy.own))
                .cloned()
                .ok_or_else(|| missing(&format!("the {controller} controller of version 1")))
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
            spares: Spares::default(),
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
            account.own.push(name);
            make_dir(&account.own)?;
            open_procs(&account.own, owner)?;
        }
        Ok(Self {
            memory: self.memory.clone(),
            pids: self.pids.clone(),
            cpu: self.cpu.clone(),
            account,
            unified: self.unified,
            nested: self.unified,
            spares: self.spares.clone(),
        })
    }

    pub fn remove_spares(&self) -> bool {
        self.spares.remove()
    }

    pub fn nest(&self) -> Option<&Path> {
        self.nested.then_some(&self.account.own)
    }

    /// Only what a child can be born into; [`Group::complete`] makes the rest.
    pub fn begin(&self, name: &str) -> Result<Group> {
        // Only a zygote's sandboxes come one after another.
        let spares = self.nested.then(|| self.spares.clone());
        let ready = spares.as_ref().and_then(Spares::take);
        let complete = ready.is_some();
        let mut group = Group {
            controllers: ready.unwrap_or_else(|| self.controllers(name)),
            account: self.account.own.join(name),
            unified: self.unified,
            within: false,
            birthplace: None,
            complete,
            memberships: Vec::new(),
            spares,
            changed: Cell::new(false),
        };
        group.memberships = self
            .hierarchies()
            .iter()
            .zip(group.all_dirs())
            .map(|(hierarchy, dir)| hierarchy.membership(dir))
            .collect();
        if self.unified {
            make_dir(&group.account)?;
            let opened = File::open(&group.account)
                .inspect_err(|_| drop(fs::remove_dir(&group.account)))
                .during(Step::Cgroup, group.account.display())?;
            group.birthplace = Some(opened.into());
        }
        Ok(group)
    }

    /// For a stage of what is in `whole`: limited and counted apart.
    ///
    /// In the version 2 tree it stays in the group of the whole, which counts its CPU time well enough: to move there takes a
    /// lock of the whole host, some ten milliseconds.
    pub fn begin_stage(&self, name: &str, whole: &Group) -> Result<Group> {
        if !self.unified {
            return self.begin(name);
        }
        Ok(Group {
            controllers: self.controllers(name),
            account: whole.account.clone(),
            unified: true,
            within: true,
            birthplace: None,
            complete: false,
            memberships: Vec::new(),
            spares: None,
            changed: Cell::new(false),
        })
    }

    /// Those that would be new.
    fn controllers(&self, name: &str) -> Controllers {
        Controllers {
            memory: self.memory.own.join(name),
            pids: self.pids.own.join(name),
            cpu: self.cpu.own.join(name),
        }
    }
}

impl Group {
    pub fn complete(&mut self) -> Result<()> {
        if self.complete {
            return Ok(());
        }
        for dir in self.joinable() {
            make_dir(dir)?;
        }
        self.complete = true;
        Ok(())
    }

    /// Those of controllers, into which nobody is born.
    fn joinable(&self) -> impl Iterator<Item = &Path> {
        let controllers = |dir: &&Path| !self.unified || *dir != self.account;
        self.dirs().into_iter().filter(controllers)
    }

    pub fn birthplace(&self) -> Option<BorrowedFd<'_>> {
        self.birthplace.as_ref().map(AsFd::as_fd)
    }

    /// Opened each time: a thousand sandboxes would hold thousands of files.
    pub fn joins(&self) -> Result<Vec<OwnedFd>> {
        // `tasks`, not `cgroup.procs`: moving oneself there takes no global lock.
        let open = |dir: &Path| open_for_writing(&dir.join("tasks"));
        let dirs = self.joinable().filter(|_| self.complete);
        dirs.map(open).collect()
    }

    /// With the version 2 group, unless that is the whole's.
    pub fn all_joins(&self) -> Result<Vec<OwnedFd>> {
        let mut files = self.joins()?;
        if self.unified && !self.within {
            files.push(open_for_writing(&self.account.join("cgroup.procs"))?);
        }
        Ok(files)
    }

    pub fn apply(&self, limits: &Limits) -> Result<InForce> {
        let bytes = limits.memory_bytes.to_string();
        let Controllers { memory, pids, cpu } = &self.controllers;
        let plain = || set_and_read(memory, "memory.limit_in_bytes", &bytes);
        let with_swap = || set_and_read(memory, "memory.memsw.limit_in_bytes", &bytes).map(drop);
        // The plain limit may never be above the one with swap: order depends on which way it moves.
        let limited = if let Ok(limited) = plain() {
            match with_swap() {
                Err(error) if error.errno == Some(libc::ENOENT) => {
                    set(memory, "memory.swappiness", "0")?;
                }
                done => done?,
            }
            limited
        } else {
            with_swap()?;
            plain()?
        };
        let members = members(limits).to_string();
        // The period is what the kernel begins with. To set it, or the quota, the kernel looks at all groups that there are.
        let (quota, _) = quota(limits.cpus);
        let in_force = vec![
            limited,
            set_and_read(pids, "pids.max", &members)?,
            set_and_read(cpu, "cpu.cfs_quota_us", &quota.to_string())?,
        ];
        if let Some(shares) = limits.cpu_shares {
            self.set_shares(shares)?;
        }
        Ok(in_force)
    }

    pub fn set_shares(&self, shares: u32) -> Result<()> {
        self.changed.set(true);
        set(&self.controllers.cpu, "cpu.shares", &shares.to_string())
    }

    /// The group that the scheduler looks at.
    pub fn scheduled(&self) -> &Path {
        &self.controllers.cpu
    }

    /// Something else is about to be changed there.
    pub fn note_change(&self) {
        self.changed.set(true);
    }

    /// Leaves its controllers to the next sandbox, if they are as good as new. What is left to remove.
    pub fn hand_on(&self) -> Vec<&Path> {
        let fit = self.complete && !self.changed.get();
        let spares = self.spares.as_ref().filter(|_| fit);
        if spares.is_some_and(|spares| spares.keep(self.controllers.clone())) {
            return vec![&self.account];
        }
        self.dirs()
    }

    /// What sockets hold is counted apart here, UDP's too, and only where there is a limit. The kernel takes it for sockets that are
    /// made after that.
    pub fn limit_sockets(&self, limits: &Limits) -> Result<InForce> {
        if !self.controllers.memory.join(SOCKETS).exists() {
            return Ok(Vec::new());
        }
        self.changed.set(true);
        let bytes = limits.memory_bytes / SHARE_OF_SOCKETS;
        Ok(vec![set_and_read(
            &self.controllers.memory,
            SOCKETS,
            &bytes.to_string(),
        )?])
    }

    pub fn meter(&self) -> Meter {
        let Controllers { memory, pids, .. } = &self.controllers;
        Meter::v1(memory, pids, &self.account, self.unified)
    }

    pub fn killable(&self) -> Option<&Path> {
        (self.unified && !self.within).then_some(self.account.as_path())
    }

    pub fn memberships(&self) -> Vec<String> {
        self.memberships.clone()
    }

    pub fn unthrottle(&self) {
        let _ = set(&self.controllers.cpu, "cpu.cfs_quota_us", "-1");
    }

    pub fn kill(&self) {
        kill_members(if self.within {
            &self.controllers.memory
        } else {
            &self.account
        });
    }

    fn all_dirs(&self) -> [&Path; 4] {
        let Controllers { memory, pids, cpu } = &self.controllers;
        [memory, pids, cpu, &self.account]
    }

    pub fn dirs(&self) -> Vec<&Path> {
        let mut dirs = self.all_dirs().to_vec();
        if self.within {
            dirs.pop();
        }
        // `cpu` and `cpuacct` may be one hierarchy under two names, in which one group serves both.
        dirs.dedup();
        dirs
    }
}
