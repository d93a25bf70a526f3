//! A child forked ahead of time, as its keeper sees it.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use super::networks::Reusable;
use super::shared::Shared;
use crate::cgroup::Group;
use crate::channel;
use crate::confine::{Embryo as Child, Mode, Namespaces, Network};
use crate::control::Control;
use crate::core::Cores;
use crate::error::{Context, Error, Result, Step};
use crate::plan::{INNER_ID, Owner};
use crate::protocol::ZygoteId;
use crate::sys::{self, Side};

pub(super) struct Embryo {
    pub pid: i32,
    pub pidfd: OwnedFd,
    pub control: Control,
    pub group: Option<Group>,
    pub owner: Owner,
    pub network: Network,
    /// The one it was born in.
    pub inherited: Option<Reusable>,
    /// The core that it has to itself, if it was born there.
    pub apart: Option<usize>,
    kind: Kind,
}

/// What an embryo is good for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind {
    pub mode: Mode,
    pub namespaces: Namespaces,
    pub with_group: bool,
    /// Which one can enter it.
    pub zygote: Option<ZygoteId>,
}

impl Embryo {
    /// Forks a child into the first of its cgroups, unless those are given up. It waits for a plan, and then for the others.
    pub fn fork(shared: &mut Shared, kind: Kind, network: Network) -> Result<Self> {
        let owner = take_owner(shared, kind.mode)?;
        let group = if kind.with_group {
            let name = shared.next_name();
            let tree = shared.cgroups.as_ref().map_err(Clone::clone)?;
            let nest = kind.zygote.and_then(|id| shared.zygotes.get(&id));
            let nest = nest.and_then(|zygote| Some((zygote.tree.as_ref()?, zygote.owner)));
            let group = nest.map_or(tree, |(tree, _)| tree).begin(&name)?;
            if let Some((_, zygote)) = nest {
                group.open_to(zygote)?;
            }
            Some(group)
        } else {
            None
        };
        let inherited = match (network, kind.mode) {
            (Network::Inherited, Mode::Enterable { by }) => shared.networks.take(by),
            _ => None,
        };
        let network = match network {
            Network::Inherited if inherited.is_none() => Network::Own,
            network => network,
        };
        match forked(shared, kind, (network, inherited.as_ref()), group.as_ref()) {
            Ok((pid, pidfd, control)) => {
                // It stays on the core that we were kept to, and goes on there as soon as we sleep. See `make_room`.
                let apart = shared.aside.then(Cores::here).flatten();
                shared.come_back();
                let mut embryo = Self {
                    pid,
                    pidfd,
                    control,
                    group,
                    owner,
                    network,
                    inherited,
                    apart,
                    kind,
                };
                match embryo.map_user() {
                    Ok(()) => Ok(embryo),
                    Err(error) => {
                        embryo.discard(shared);
                        Err(error)
                    }
                }
            }
            Err(error) => {
                group.map_or(Ok(()), Group::remove)?;
                Err(error)
            }
        }
    }

    /// A child in a user namespace of somebody else cannot map itself.
    fn map_user(&mut self) -> Result<()> {
        let Mode::Enterable { .. } = self.kind.mode else {
            return Ok(());
        };
        let write = |file: &str, text: String| {
            let path = format!("/proc/{}/{file}", self.pid);
            fs::write(&path, text).during(Step::UserNamespace, path)
        };
        write("setgroups", "deny".into())?;
        write("uid_map", format!("{INNER_ID} {} 1", self.owner.uid))?;
        write("gid_map", format!("{INNER_ID} {} 1", self.owner.gid))?;
        self.control
            .order(&"mapped", &[])
            .during(Step::UserNamespace, "maps")
    }

    pub fn is_for_a_zygote(&self) -> bool {
        self.kind.zygote.is_some()
    }

    pub fn is(&self, kind: Kind) -> bool {
        self.kind == kind
    }

    /// Ends a child that nobody needs.
    pub fn discard(self, shared: &mut Shared) {
        let _ = sys::signal_process(self.pidfd.as_fd(), libc::SIGKILL);
        let _ = waitpid(Pid::from_raw(self.pid), None);
        shared.give_back(self.group, self.owner, self.inherited);
    }
}

/// Whom a sandbox shall be on the host.
fn take_owner(shared: &mut Shared, mode: Mode) -> Result<Owner> {
    if let Mode::Rootless(owner) = mode {
        return Ok(owner);
    }
    let uid = shared
        .lease
        .take_uid()
        .ok_or_else(|| Error::because(Step::Identity, "a free user id", "all are in use"))?;
    Ok(Owner { uid, gid: uid })
}

fn forked(
    shared: &mut Shared,
    kind: Kind,
    (network, inherited): (Network, Option<&Reusable>),
    group: Option<&Group>,
) -> Result<(i32, OwnedFd, Control)> {
    let (ours, theirs) = channel::pair().during(Step::Init, "control socket")?;
    let birthplace = group.and_then(Group::birthplace);
    let mut flags = kind.mode.cloned(kind.namespaces);
    if let Some(inherited) = inherited {
        // Last, so that nothing else fails while we are there; the socket above is no socket of that network.
        shared
            .networks
            .enter(inherited)
            .during(Step::Namespaces, "of a network")?;
    }
    let hatch = shared.hatch.as_ref().filter(|_| shared.is_crowded());
    let put = hatch.map_or(Ok(()), |hatch| hatch.put(&theirs));
    if hatch.is_some() {
        flags |= libc::CLONE_FILES;
    }
    let side = put.and_then(|()| {
        let side = match kind.mode {
            Mode::Enterable { by } => sys::fork_as(by.uid, flags, birthplace),
            _ => sys::fork(flags, birthplace),
        };
        side.during(Step::Namespaces, "for the sandbox")
    });
    if inherited.is_some() && !matches!(side, Ok(Side::Child)) {
        shared.networks.leave();
    }
    match side {
        Err(error) => hatch.map_or(Ok(()), Hatch::clear).and(Err(error)),
        Ok(Side::Parent { pid, pidfd }) => {
            if let Some(hatch) = hatch {
                hatch.wait(&ours, &pidfd)?;
            }
            Ok((pid, pidfd, Control::new(ours)))
        }
        Ok(Side::Child) => {
            // Whoever holds the keeper's end never learns that the keeper has died.
            let theirs = match hatch {
                None => {
                    drop(ours);
                    theirs
                }
                Some(hatch) => hatch.leave_through([ours, theirs]),
            };
            Child {
                mode: kind.mode,
                namespaces: kind.namespaces,
                network,
                control: Control::new(theirs),
                cores: shared.cores,
            }
            .grow()
        }
    }
}

/// A descriptor with a low number, through which a child takes its end of a socket with it and leaves all else behind.
///
/// A keeper of a thousand sandboxes has many thousand descriptors. To copy them for a child, which then closes them one by
/// one, takes longer than all else that it does. So the child shares them at first, and keeps only those with low numbers.
pub(super) struct Hatch {
    number: OwnedFd,
    nothing: OwnedFd,
}

/// What is below this is inherited.
const LOW: i32 = 64;

impl Hatch {
    /// `None` if it is too late: the low numbers are taken.
    pub fn new() -> Option<Self> {
        let nothing = OwnedFd::from(fs::File::open("/dev/null").ok()?);
        let number = nothing.try_clone().ok()?;
        (number.as_raw_fd() < LOW).then_some(Self { number, nothing })
    }

    fn put(&self, end: &OwnedFd) -> Result<()> {
        sys::replace_descriptor(end, &self.number).during(Step::Init, "control socket")
    }

    fn clear(&self) -> Result<()> {
        self.put(&self.nothing)
    }

    /// Until the child has gone through, or has ended.
    fn wait(&self, ours: &OwnedFd, child: &OwnedFd) -> Result<()> {
        let wanted = PollFlags::POLLIN;
        let mut fds = [
            PollFd::new(ours.as_fd(), wanted),
            PollFd::new(child.as_fd(), wanted),
        ];
        let polled = poll(&mut fds, PollTimeout::NONE).map_err(std::io::Error::from);
        self.clear()?;
        polled.during(Step::Init, "a child")?;
        // If it has ended this reads nothing, and whoever looks next sees it.
        nix::unistd::read(ours, &mut [0]).during(Step::Init, "a child")?;
        Ok(())
    }

    /// In the child, with both ends of the socket as they are numbered outside.
    fn leave_through(&self, ends: [OwnedFd; 2]) -> OwnedFd {
        let left = sys::leave_descriptors_from(LOW).and_then(|()| {
            let end = self.number.try_clone()?;
            nix::unistd::write(&end, &[0])?;
            Ok(end)
        });
        // It cannot go on with the keeper's own descriptors.
        let end = left.unwrap_or_else(|_| std::process::abort());
        for end in ends {
            // A high number is not ours any more, and by now perhaps nobody's.
            if end.as_raw_fd() >= LOW {
                std::mem::forget(end);
            }
        }
        end
    }
}
