//! Id-mapped mounts: let the sandbox's user own, inside, what another user owns on the host.
//!
//! Only the real root can make them. Without that privilege the sandbox's user *is* the caller, and none is needed.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::{Context, Result, Step};
use crate::plan::{Entry, Owner, Plan};
use crate::source;
use crate::sys::{self, Side};

/// Maps in the order in which a plan needs them: the system's if it is writable, then one for each volume.
#[derive(Default)]
pub struct IdMaps(Vec<OwnedFd>);

impl IdMaps {
    /// The maps this plan needs when `owner` is the sandbox's user.
    pub fn for_plan(plan: &Plan, owner: Owner) -> Result<Self> {
        let mut maps = Vec::new();
        if plan.writable {
            maps.push(map_between(Owner { uid: 0, gid: 0 }, owner).during(Step::Overlay, "/")?);
        }
        for source in volumes(plan) {
            let found = source::open(source)
                .and_then(|place| place.metadata())
                .during(Step::Volume, source.display())?;
            let map = map_between(
                Owner {
                    uid: found.uid(),
                    gid: found.gid(),
                },
                owner,
            );
            maps.push(map.during(Step::Volume, source.display())?);
        }
        Ok(Self(maps))
    }

    pub fn from_fds(fds: Vec<OwnedFd>) -> Self {
        Self(fds)
    }

    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.0.iter().map(AsFd::as_fd).collect()
    }

    pub fn for_system(&self) -> Option<BorrowedFd<'_>> {
        self.0.first().map(AsFd::as_fd)
    }

    pub fn for_volume(&self, plan: &Plan, source: &Path) -> Option<BorrowedFd<'_>> {
        let index = volumes(plan).position(|path| path == source)?;
        self.0
            .get(index + usize::from(plan.writable))
            .map(AsFd::as_fd)
    }
}

fn volumes(plan: &Plan) -> impl Iterator<Item = &PathBuf> {
    plan.entries.iter().filter_map(|entry| match entry {
        Entry::Volume { source, .. } => Some(source),
        _ => None,
    })
}

/// A user namespace that says: `on_disk` there is `seen` here. It outlives the process it was made with.
fn map_between(on_disk: Owner, seen: Owner) -> io::Result<OwnedFd> {
    match sys::fork(libc::CLONE_NEWUSER, None)? {
        Side::Child if sys::die_with_parent().is_err() => std::process::exit(1),
        Side::Child => loop {
            // Killed below; holds nothing but the namespace.
            std::thread::park();
        },
        Side::Parent { pid, pidfd } => {
            let write = || {
                fs::write(
                    format!("/proc/{pid}/uid_map"),
                    format!("{} {} 1", on_disk.uid, seen.uid),
                )?;
                fs::write(
                    format!("/proc/{pid}/gid_map"),
                    format!("{} {} 1", on_disk.gid, seen.gid),
                )?;
                File::open(format!("/proc/{pid}/ns/user"))
            };
            let namespace = write();
            sys::signal_process(pidfd.as_fd(), libc::SIGKILL)?;
            nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid), None)?;
            namespace.map(Into::into)
        }
    }
}
