//! Id-mapped mounts: let the sandbox's user own, inside, what another user owns on the host.
//!
//! Only the real root can make them. Without that privilege the sandbox's user *is* the caller, and none is needed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::{Context, Result, Step};
use crate::plan::{Entry, Plan};
use crate::root::Owner;
use crate::sys::{self, Side};

pub struct IdMaps {
    system: Option<OwnedFd>,
    volumes: BTreeMap<PathBuf, OwnedFd>,
}

impl IdMaps {
    pub fn none() -> Self {
        Self { system: None, volumes: BTreeMap::new() }
    }

    /// The maps this plan needs when `owner` is the sandbox's user.
    pub fn for_plan(plan: &Plan, owner: Owner) -> Result<Self> {
        let system = if plan.writable {
            Some(map_between(Owner { uid: 0, gid: 0 }, owner).during(Step::Overlay, "/")?)
        } else {
            None
        };
        let mut volumes = BTreeMap::new();
        for entry in &plan.entries {
            if let Entry::Volume { source, .. } = entry {
                let found = fs::metadata(source).during(Step::Volume, source.display())?;
                let map = map_between(Owner { uid: found.uid(), gid: found.gid() }, owner);
                volumes.insert(source.clone(), map.during(Step::Volume, source.display())?);
            }
        }
        Ok(Self { system, volumes })
    }

    pub fn for_system(&self) -> Option<BorrowedFd<'_>> {
        self.system.as_ref().map(AsFd::as_fd)
    }

    pub fn for_volume(&self, source: &Path) -> Option<BorrowedFd<'_>> {
        self.volumes.get(source).map(AsFd::as_fd)
    }
}

/// A user namespace that says: `on_disk` there is `seen` here. It outlives the process it was made with.
fn map_between(on_disk: Owner, seen: Owner) -> io::Result<OwnedFd> {
    match sys::fork(libc::CLONE_NEWUSER, None)? {
        Side::Child => loop {
            // Killed below; holds nothing but the namespace.
            std::thread::park();
        },
        Side::Parent { pid, pidfd } => {
            let write = || {
                fs::write(format!("/proc/{pid}/uid_map"), format!("{} {} 1", on_disk.uid, seen.uid))?;
                fs::write(format!("/proc/{pid}/gid_map"), format!("{} {} 1", on_disk.gid, seen.gid))?;
                File::open(format!("/proc/{pid}/ns/user"))
            };
            let namespace = write();
            sys::signal_process(pidfd.as_fd(), libc::SIGKILL)?;
            nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid), None)?;
            namespace.map(Into::into)
        }
    }
}
