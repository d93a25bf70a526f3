//! A child forked ahead of time, as its keeper sees it.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use super::networks::Reusable;
use super::nursery::{Nursery, Seed, Soil};
use super::shared::Shared;
use crate::cgroup::Group;
use crate::channel;
use crate::confine::{Mode, Namespaces, Network};
use crate::control::Control;
use crate::core::Cores;
use crate::error::{Context, Error, Result, Step};
use crate::idmap::IdMaps;
use crate::mould::{Moulds, Serial};
use crate::plan::{Birth, INNER_ID, Owner, Plan};
use crate::protocol::ZygoteId;
use crate::root::Provided;
use crate::seccomp;
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
    /// How many system call filters it will have more than we have.
    pub filters: u32,
    /// The core that it has to itself, if it was born there.
    pub apart: Option<usize>,
    kind: Kind,
    /// The root that it has made ahead, if one was foreseen.
    root: Option<Foreseen>,
}

/// A root for all plans like this one, as long as the mould shows what is there on the host.
struct Foreseen {
    plan: Plan,
    mould: Serial,
}

/// What an embryo is good for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind {
    pub mode: Mode,
    pub namespaces: Namespaces,
    pub with_group: bool,
    /// It is to have a system call filter.
    pub filtered: bool,
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
            Ok(Born {
                pid,
                pidfd,
                control,
                filters,
            }) => {
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
                    filters,
                    apart,
                    kind,
                    root: None,
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

    /// Whether it can become that.
    pub fn suits(&self, kind: Kind, plan: &Plan, moulds: Option<&mut Moulds>) -> bool {
        let fits = |root: &Foreseen| {
            let current = |moulds: &mut Moulds| moulds.still_have(root.mould);
            root.plan.is_like(plan) && moulds.is_some_and(current)
        };
        self.kind == kind && self.root.as_ref().is_none_or(fits) && self.lives()
    }

    fn lives(&self) -> bool {
        let mut ended = [PollFd::new(self.pidfd.as_fd(), PollFlags::POLLIN)];
        matches!(poll(&mut ended, PollTimeout::ZERO), Ok(0))
    }

    /// Has it make its root ahead, if there is a mould for that.
    pub fn foresee(&mut self, plan: &Plan, moulds: &mut Moulds) -> Result<()> {
        if moulds.has_one_for(plan)
            && let Some(mould) = self.make_root(plan, Some(moulds))?
        {
            let plan = plan.clone();
            self.root = Some(Foreseen { plan, mould });
        }
        Ok(())
    }

    /// What it shall become, if it has not foreseen that. What differs comes with its place.
    pub fn tell(&mut self, plan: &Plan, moulds: Option<&mut Moulds>) -> Result<()> {
        if self.root.is_none() {
            self.make_root(plan, moulds)?;
        }
        Ok(())
    }

    /// It makes its root, and waits for its place. Of which mould that is, if it is of one.
    fn make_root(&mut self, plan: &Plan, moulds: Option<&mut Moulds>) -> Result<Option<Serial>> {
        let maps = || IdMaps::for_plan(plan, self.owner);
        let mut mould = None;
        let provided = match self.kind.mode {
            Mode::Root => Provided::IdMaps(maps()?),
            Mode::Enterable { .. } => match moulds.and_then(|all| all.copy_for(plan)) {
                Some((tree, serial)) => {
                    mould = Some(serial);
                    Provided::Mould(tree)
                }
                None => Provided::trees(plan, &maps()?)?,
            },
            Mode::Rootless(_) => Provided::IdMaps(IdMaps::default()),
        };
        let mut birth = Birth {
            plan: plan.clone(),
            owner: self.owner,
            brings: provided.brings(),
        };
        if mould.is_some() {
            birth.plan.entries.clear();
        }
        self.control
            .order(&birth, &provided.fds())
            .during(Step::Init, "plan")?;
        Ok(mould)
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

/// The process, and our end of the socket to it.
struct Born {
    pid: i32,
    pidfd: OwnedFd,
    control: Control,
    filters: u32,
}

fn forked(
    shared: &mut Shared,
    kind: Kind,
    (network, inherited): (Network, Option<&Reusable>),
    group: Option<&Group>,
) -> Result<Born> {
    let (ours, theirs) = channel::pair().during(Step::Init, "control socket")?;
    let seed = Seed {
        mode: kind.mode,
        namespaces: kind.namespaces,
        network,
    };
    let soil = Soil {
        control: &theirs,
        birthplace: group.and_then(Group::birthplace),
        network: inherited.map(|inherited| inherited.network.as_fd()),
    };
    // What is born there has a part of the filter, and cannot go without the rest.
    let borne = kind
        .filtered
        .then(|| Nursery::bear_for(shared, seed, &soil))
        .flatten();
    let (pid, pidfd, filters) = match borne {
        Some(born) => {
            let (pid, pidfd) = born?;
            (pid, pidfd, seccomp::PARTS)
        }
        None => match seed.sow(&soil, &mut shared.networks, 0)? {
            Side::Parent { pid, pidfd } => (pid, pidfd, 1),
            Side::Child => {
                // Whoever holds the keeper's end never learns that the keeper has died.
                drop(ours);
                seed.grow(theirs, shared.cores, false)
            }
        },
    };
    Ok(Born {
        pid,
        pidfd,
        control: Control::new(ours),
        filters,
    })
}
