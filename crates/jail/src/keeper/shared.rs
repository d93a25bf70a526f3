//! What every sandbox of a keeper needs: groups, user ids, beginnings made ahead, warm interpreters.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::unistd::{getegid, geteuid, setgroups};

use super::departed::Departed;
use super::embryo::{Embryo, Kind};
use super::networks::{Networks, Reusable};
use super::nursery::Nursery;
use super::pace::Pace;
use super::watch::{Watch, Who};
use super::zygote::Zygote;
use crate::cgroup::{Group, Tree};
use crate::confine::{self, Mode, Namespaces, Network};
use crate::core::Cores;
use crate::error::{Context, Error, Result, Step};
use crate::host;
use crate::lease::Lease;
use crate::plan::{Command, Owner, Plan};
use crate::protocol::{Laying, ZygoteId};
use crate::sys;
use crate::verify::Host;
use crate::warm;

/// What is killed with its sandbox ends long before.
const STRAY_TIME: Duration = Duration::from_secs(10);
const INIT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/init"));

/// What every sandbox of this keeper needs.
pub(super) struct Shared {
    /// `Err` where this user has no cgroups; a sandbox that does not give them up is then refused.
    pub cgroups: Result<Tree>,
    pub lease: Lease,
    pub mode: Mode,
    /// The program of init. Neither is needed before the first sandbox is under way.
    init: Option<OwnedFd>,
    /// What the keeper is itself, which no sandbox may be.
    pub host: Option<Host>,
    /// Those that the engine may use, and so everyone below it.
    pub cores: Cores,
    /// We are kept off some of them: by the engine until it speaks, and while a child of ours makes haste.
    pub aside: bool,
    /// Made ahead of the next request, which is then served sooner,
    pub embryo: Option<Embryo>,
    /// and of the kind that was asked for last,
    pub wanted: Option<Kind>,
    /// with the root that was.
    foreseen: Option<Plan>,
    /// When the next one is made.
    pub pace: Pace,
    /// As soon as there is a zygote, since whoever has one makes many sandboxes.
    pub nursery: Option<Nursery>,
    pub network: FirstNetwork,
    /// Of sandboxes that have ended.
    pub networks: Networks,
    pub zygotes: BTreeMap<ZygoteId, Zygote>,
    /// Those that have been killed, and may not have ended.
    departed: Vec<Departed>,
    /// What can wait until a sandbox is under way has been done.
    settled_in: bool,
    /// Until when children may end that nobody has told us of.
    pub strays: Option<Instant>,
    /// Places of zygotes that have gone before their sandboxes.
    nests: Vec<Tree>,
    /// The keeper of an ordinary user has gone into a user namespace, so that its zygotes and sandboxes are below one.
    has_own_user_namespace: bool,
    names: u64,
}

/// The network namespace that the engine's process makes for the first sandbox, while everyone else is busy.
pub(super) enum FirstNetwork {
    Awaited,
    Made(OwnedFd),
    None,
}

impl Shared {
    pub fn prepare(cores: Cores) -> Result<Self> {
        let cgroups = Tree::find();
        let lease = Lease::take(&cgroups.as_ref().map(Tree::bases).unwrap_or_default())?;
        let owner = Owner {
            uid: geteuid().as_raw(),
            gid: getegid().as_raw(),
        };
        let mode = if owner.uid == 0 {
            // Those of whoever started us (`sudo` and `su` give root some): a sandbox that a zygote enters is born in a user namespace
            // in which they can no longer be given up.
            setgroups(&[]).during(Step::Identity, "no supplementary groups")?;
            Mode::Root
        } else {
            // For those of its sandboxes that can have none of their own.
            sys::new_session_keyring().during(Step::Keeper, "keyring")?;
            Mode::Rootless(owner)
        };
        let mut shared = Self {
            cgroups,
            lease,
            mode,
            init: None,
            host: None,
            cores,
            aside: true,
            embryo: None,
            wanted: None,
            foreseen: None,
            pace: Pace::default(),
            nursery: None,
            network: FirstNetwork::None,
            networks: Networks::default(),
            zygotes: BTreeMap::new(),
            departed: Vec::new(),
            settled_in: false,
            strays: None,
            nests: Vec::new(),
            has_own_user_namespace: false,
            names: 0,
        };
        let kind = Kind {
            mode,
            namespaces: Namespaces::ALL,
            with_group: shared.cgroups.is_ok(),
            filtered: true,
            zygote: None,
        };
        if mode == Mode::Root {
            shared.network = FirstNetwork::Awaited;
            shared.prepare_embryo(kind, Network::Given);
        } else {
            shared.settle_in(None);
            shared.prepare_embryo(kind, Network::Own);
        }
        Ok(shared)
    }

    /// What the first sandbox needs besides, whatever it shall be, while the engine finds that out. Where something is in the way, the
    /// request says what.
    pub fn prepare_rest(&mut self) {
        self.settle_in(None);
        let group = self
            .embryo
            .as_mut()
            .and_then(|embryo| embryo.group.as_mut());
        let completed = group.is_none_or(|group| group.complete().is_ok());
        if let Some(embryo) = self.embryo.take_if(|_| !completed) {
            embryo.discard(self);
        }
        let _ = self.init();
    }

    /// What needs to be done once, but need not be done before the first child is forked.
    pub fn settle_in(&mut self, child: Option<i32>) {
        if std::mem::replace(&mut self.settled_in, true) {
            return;
        }
        host::go_first(nix::unistd::getpid().as_raw());
        // What is forked from here on inherits it.
        let embryo = self.embryo.as_ref().map(|embryo| embryo.pid);
        embryo.into_iter().chain(child).for_each(host::go_first);
        self.lease.sweep_others();
    }

    /// Leaves this core to a child, until it is ready.
    pub fn step_aside(&mut self) {
        self.cores.step_aside();
        self.aside = true;
    }

    /// Only after the engine has spoken: it has pushed us away before that.
    pub fn come_back(&mut self) {
        if std::mem::take(&mut self.aside) {
            self.cores.restore();
        }
    }

    /// A copy, or who carried it, may have been left to us by a zygote without a word.
    pub fn expect_strays(&mut self) {
        self.strays = Some(Instant::now() + STRAY_TIME);
    }

    /// Whether a child of ours is one of those that are for all sandboxes.
    pub fn is_own(&self, pid: i32) -> bool {
        let embryo = self.embryo.as_ref();
        embryo.is_some_and(|embryo| embryo.pid == pid)
            || self.zygotes.values().any(|zygote| zygote.is(pid))
            || self.departed.iter().any(|zygote| zygote.is(pid))
    }

    /// What it had is others' when it has gone. An embryo may lie in its place, and nobody will enter that.
    pub fn see_off(&mut self, departed: Departed) {
        if let Some(embryo) = self.embryo.take_if(|embryo| embryo.is_for_a_zygote()) {
            embryo.discard(self);
        }
        self.departed.push(departed);
    }

    /// Clears away what has gone. Whether there is still one that has not.
    pub fn clear_after_zygotes(&mut self) -> bool {
        let gone = self.departed.extract_if(.., Departed::has_gone);
        for departed in gone.collect::<Vec<_>>() {
            departed.clear_away(self);
        }
        self.awaits_departure()
    }

    pub fn awaits_departure(&self) -> bool {
        !self.departed.is_empty()
    }

    pub fn init(&mut self) -> Result<BorrowedFd<'_>> {
        let image = match self.init.take() {
            Some(made) => made,
            None => sys::sealed_file(c"belljar-init", INIT).during(Step::Keeper, "init image")?,
        };
        let image: &OwnedFd = self.init.insert(image);
        Ok(image.as_fd())
    }

    /// Has the keeper know its own namespaces.
    pub fn look_at_host(&mut self) -> Result<()> {
        if self.host.is_none() {
            self.host = Some(Host::of_keeper()?);
        }
        Ok(())
    }

    pub fn known_host(&self) -> Result<&Host> {
        let unknown = || Error::because(Step::Verify, "namespaces", "the host's are not known");
        self.host.as_ref().ok_or_else(unknown)
    }

    /// Makes the next sandbox's beginning ahead of time. Without one the next request says what is wrong.
    pub fn prepare_embryo(&mut self, kind: Kind, network: Network) {
        if self.embryo.is_none() {
            self.embryo = Embryo::fork(self, kind, network).ok();
        }
    }

    /// The same with its root, if that can be foreseen: where the next plan is like the last one, all but its limits is there already.
    pub fn prepare_with_root(&mut self, kind: Kind) {
        self.prepare_embryo(kind, Network::Own);
        let zygote = kind.zygote.and_then(|id| self.zygotes.get_mut(&id));
        let moulds = zygote.map(|zygote| &mut zygote.moulds);
        if let (Some(plan), Some(embryo), Some(moulds)) = (&self.foreseen, &mut self.embryo, moulds)
            && embryo.foresee(plan, moulds).is_err()
            && let Some(embryo) = self.embryo.take()
        {
            embryo.discard(self);
        }
    }

    /// The one that was made ahead, if it is of that kind, or another.
    pub fn embryo(&mut self, kind: Kind, plan: &Plan) -> Result<Embryo> {
        self.wanted = Some(kind);
        if !self
            .foreseen
            .as_ref()
            .is_some_and(|last| last.is_like(plan))
        {
            // What is in these is somebody's.
            self.foreseen = plan.files.is_empty().then(|| plan.clone());
        }
        let zygote = kind.zygote.and_then(|id| self.zygotes.get_mut(&id));
        let moulds = zygote.map(|zygote| &mut zygote.moulds);
        match self.embryo.take() {
            Some(ready) if ready.suits(kind, plan, moulds) => Ok(ready),
            unfit => {
                if let Some(unfit) = unfit {
                    unfit.discard(self);
                    // It was for that one.
                    self.network = FirstNetwork::None;
                }
                self.pace.miss(Instant::now());
                // None was made ahead, so there is much to do, and what costs less comes before what would be quicker for this one.
                Embryo::fork(self, kind, Network::Inherited)
            }
        }
    }

    /// Removes a group that is empty, and lets the user id and the network be used again. What could not be removed is left to whoever
    /// starts next, and so is the id.
    pub fn give_back(&mut self, group: Option<Group>, owner: Owner, network: Option<Reusable>) {
        let removed = group.map_or(Ok(()), Group::remove);
        self.clear_after(removed.is_ok(), owner, network);
    }

    /// The same after a sandbox that nobody looks at any more.
    pub fn give_on(&mut self, group: Option<Group>, owner: Owner, network: Option<Reusable>) {
        let removed = group.map_or(Ok(()), Group::hand_on);
        self.clear_after(removed.is_ok(), owner, network);
    }

    fn clear_after(&mut self, removed: bool, owner: Owner, network: Option<Reusable>) {
        if !removed {
            self.lease.leave_to_the_next();
        } else if self.mode == Mode::Root {
            self.lease.release_uid(owner.uid);
            if let Some(network) = network {
                self.networks.keep(network);
            }
        }
        self.sweep_nests();
    }

    /// What was kept for sandboxes to come: there will be none.
    pub fn remove_spares(&mut self) {
        if let Ok(tree) = &self.cgroups
            && !tree.remove_spares()
        {
            self.lease.leave_to_the_next();
        }
    }

    /// Starts a zygote, which is heard of when it is warm.
    pub fn warm(
        &mut self,
        id: ZygoteId,
        plan: &Plan,
        command: &Command,
        laying: &Laying,
        watch: &Watch,
    ) -> Result<()> {
        if *laying == Laying::Scout {
            warm::may_scout(self.mode, &command.env)?;
        }
        self.settle_in(None);
        // All its copies will have the cores that it is born with.
        self.come_back();
        let started = Zygote::start(self, plan, command, laying)?;
        if self.nursery.is_none() {
            sys::gather_code();
            // After the zygote, for which a keeper of an ordinary user may have gone into another namespace.
            self.nursery = Nursery::open(self.cores).ok();
        }
        watch.add(started.control(), Who::Zygote(id));
        self.zygotes.insert(id, started);
        Ok(())
    }

    /// The old one has ended. Without another, sandboxes are forked here.
    pub fn replace_nursery(&mut self) {
        self.nursery = None;
        self.nursery = Nursery::open(self.cores).ok();
    }

    /// Removes a zygote's place, now or when its last sandbox has gone.
    pub fn leave_nest(&mut self, nest: Tree) {
        self.nests.push(nest);
        self.sweep_nests();
    }

    fn sweep_nests(&mut self) {
        self.nests.retain(|nest| !nest.try_remove());
    }

    /// Only a zygote in the namespace right above can enter what an ordinary user's sandbox is.
    pub fn enter_own_user_namespace(&mut self, owner: Owner) -> Result<()> {
        if self.has_own_user_namespace {
            return Ok(());
        }
        confine::enter_user_namespace(owner)?;
        sys::mind_parent().during(Step::Keeper, "parent-death signal")?;
        self.has_own_user_namespace = true;
        self.host = None;
        Ok(())
    }

    /// The mode of a sandbox that this zygote can enter, where the plan lets it.
    pub fn mode_for(&self, zygote: Option<ZygoteId>, plan: &Plan) -> (Mode, Option<ZygoteId>) {
        let entering = zygote.and_then(|id| self.zygotes.get(&id));
        let is_plain = plan.weakened.is_empty() && !plan.writable;
        match (self.mode, entering) {
            (Mode::Root, Some(entering)) if is_plain => {
                (Mode::Enterable { by: entering.owner }, zygote)
            }
            (mode, Some(_)) if is_plain => (mode, zygote),
            (mode, _) => (mode, None),
        }
    }

    /// A cgroup name that nobody has had.
    pub fn next_name(&mut self) -> String {
        self.names += 1;
        format!("{}-{}", self.lease.token, self.names)
    }
}
