//! A child forked ahead of time, as its keeper sees it.

use std::os::fd::{AsFd, OwnedFd};

use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use super::Shared;
use crate::cgroup::Group;
use crate::channel::{self, Control};
use crate::confine::{Embryo as Child, Namespaces};
use crate::error::{Context, Result, Step};
use crate::sys::{self, Side};

pub(super) struct Embryo {
    pub pid: i32,
    pub pidfd: OwnedFd,
    pub control: Control,
    pub group: Option<Group>,
    namespaces: Namespaces,
}

impl Embryo {
    /// Forks a child into cgroups of its own, unless those are given up. It waits for a plan.
    pub fn fork(shared: &mut Shared, namespaces: Namespaces, with_group: bool) -> Result<Self> {
        let group = if with_group {
            let name = shared.next_name();
            Some(
                shared
                    .cgroups
                    .as_ref()
                    .map_err(Clone::clone)?
                    .create(&name)?,
            )
        } else {
            None
        };
        let forked = || {
            let (ours, theirs) = channel::pair().during(Step::Init, "control socket")?;
            let birthplace = group.as_ref().and_then(Group::birthplace);
            let side = sys::fork(shared.mode.cloned(namespaces), birthplace);
            match side.during(Step::Namespaces, "for the sandbox")? {
                Side::Parent { pid, pidfd } => {
                    shared.cores.push_away(pid);
                    Ok((pid, pidfd, Control::new(ours)))
                }
                Side::Child => {
                    drop(ours);
                    let cgroup_joins = group.as_ref().map_or(&[][..], Group::joins);
                    let control = Control::new(theirs);
                    Child {
                        mode: shared.mode,
                        namespaces,
                        cgroup_joins,
                        init: shared.init.as_fd(),
                        control,
                        cores: shared.cores,
                    }
                    .grow()
                }
            }
        };
        match forked() {
            Ok((pid, pidfd, control)) => Ok(Self {
                pid,
                pidfd,
                control,
                group,
                namespaces,
            }),
            Err(error) => {
                group.map_or(Ok(()), Group::remove)?;
                Err(error)
            }
        }
    }

    pub fn fits(&self, namespaces: Namespaces, with_group: bool) -> bool {
        self.namespaces == namespaces && self.group.is_some() == with_group
    }

    /// Ends a child that nobody needs.
    pub fn discard(self) {
        let _ = sys::signal_process(self.pidfd.as_fd(), libc::SIGKILL);
        let _ = waitpid(Pid::from_raw(self.pid), None);
        let _ = self.group.map(Group::remove);
    }
}
