//! One sandbox as its keeper sees it: being made, ready, ending, gone; and the commands in it.

mod behind;
mod reports;
mod starting;

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use belljar_spec::{Limits, Report, Weakening};

use super::command::{Due, Running};
use super::embryo::{Embryo, Kind};
use super::networks::Reusable;
use super::shared::{FirstNetwork, Shared};
use super::watch::{Watch, Who};
use crate::beneath::Found;
use crate::cgroup::{Group, InForce, Meter, Part};
use crate::confine::{Mode, Namespaces, Network};
use crate::control::Control;
use crate::core::Cores;
use crate::doors;
use crate::error::{Context, Error, Result, Step};
use crate::idmap::IdMaps;
use crate::mould::Moulds;
use crate::plan::{self, Birth, Owner, Plan};
use crate::protocol::{CommandId, Event, Handle, Signal, Start, ZygoteId};
use crate::root::Provided;
use crate::sys;
use crate::verify::Surroundings;

/// Setting up takes a millisecond; a host on which it takes this long is broken.
const SETUP_TIME: Duration = Duration::from_secs(20);

#[expect(
    clippy::struct_excessive_bools,
    reason = "each says one thing that may be so in any phase"
)]
pub(super) struct Sandbox {
    handle: Handle,
    plan: Plan,
    mode: Mode,
    owner: Owner,
    pid: i32,
    pidfd: OwnedFd,
    control: Control,
    control_ended: bool,
    /// The loop waits for it,
    watched: bool,
    /// and for room to tell it more.
    writing: bool,
    group: Option<Group>,
    /// While it is behind all others: the cores that it goes back to.
    behind: Option<Cores>,
    /// Of its cgroups, as the kernel says they are.
    limits_in_force: InForce,
    /// They do not hold at the moment: what was killed was to die at once.
    unthrottled: bool,
    /// How many system call filters its first process shall have more than the keeper has.
    filters: u32,
    network: Network,
    /// The same, where another sandbox may have it after this one.
    reusable: Option<Reusable>,
    /// Whether it has been given its cgroups and network.
    settled: bool,
    /// What its first copy joins these cgroups by; opened for init already.
    joins: Vec<OwnedFd>,
    /// Something has been started in it,
    started: bool,
    /// and something that others could outlive.
    beside: bool,
    commands: BTreeMap<CommandId, Running>,
    /// Parts of commands that have ended, for as long as something they started goes on there.
    left: Vec<Part>,
    /// Of commands whose end is being told.
    meters: Vec<Meter>,
    workspace: Option<(OwnedFd, Vec<Found>)>,
    /// Landlock rules for a kernel that comes from outside.
    rules: Option<OwnedFd>,
    /// Where it was seen to be, while it was made or when it was ready.
    surroundings: Option<Result<Surroundings>>,
    /// What it was seen to be, before it became init.
    inspected: Option<Result<Report>>,
    /// The sockets of its network, until the engine has them.
    doors: Vec<OwnedFd>,
    phase: Phase,
    /// Commands that came before the sandbox was ready, or while a copy was on its way.
    queued: Vec<Queued>,
    /// The copy that is.
    ordered: Option<CommandId>,
    /// A copy that came before it was, too.
    arrived: Option<(CommandId, i32)>,
    /// When it must have locked itself in, and when that is looked at next.
    lone_by: Option<Instant>,
    look_again: Option<Instant>,
    closing: bool,
    /// Nobody asks any more how anything in it has ended.
    silent: bool,
    events: VecDeque<(Event, Vec<OwnedFd>)>,
}

struct Queued {
    start: Start,
    fds: Vec<OwnedFd>,
    /// Why it cannot be a copy.
    cold: Option<Error>,
}

enum Phase {
    SettingUp {
        deadline: Instant,
    },
    /// Verified; takes commands.
    Ready,
    /// Refused and killed; its end is awaited.
    Dying,
    /// Init has been reaped, and with it everything in its process namespace.
    Gone,
}

impl Sandbox {
    /// Tells a child what to become. What is wrong before that is the error; what goes wrong in it comes as an event.
    pub fn open(
        handle: Handle,
        plan: Plan,
        zygote: Option<ZygoteId>,
        shared: &mut Shared,
    ) -> Result<Self> {
        let (mode, zygote) = shared.mode_for(zygote, &plan);
        let kind = Kind {
            mode,
            namespaces: Namespaces::of(&plan),
            with_group: plan.keeps(Weakening::Cgroups),
            filtered: plan.keeps(Weakening::Seccomp),
            zygote,
        };
        let mut embryo = shared.embryo(kind)?;
        let zygote = zygote.and_then(|id| shared.zygotes.get_mut(&id));
        let moulds = zygote.map(|zygote| &mut zygote.moulds);
        match send_birth(&mut embryo, &plan, mode, moulds) {
            Ok(()) => {
                let mut sandbox = Self {
                    handle,
                    plan,
                    mode,
                    owner: embryo.owner,
                    pid: embryo.pid,
                    pidfd: embryo.pidfd,
                    control: embryo.control,
                    control_ended: false,
                    watched: false,
                    writing: false,
                    group: embryo.group,
                    behind: None,
                    limits_in_force: Vec::new(),
                    unthrottled: false,
                    filters: embryo.filters,
                    network: embryo.network,
                    // One that is to have a network leaves this one.
                    reusable: embryo.inherited,
                    settled: false,
                    joins: Vec::new(),
                    started: false,
                    beside: false,
                    commands: BTreeMap::new(),
                    left: Vec::new(),
                    meters: Vec::new(),
                    workspace: None,
                    rules: None,
                    surroundings: None,
                    inspected: None,
                    doors: Vec::new(),
                    phase: Phase::SettingUp {
                        deadline: Instant::now() + SETUP_TIME,
                    },
                    queued: Vec::new(),
                    ordered: None,
                    arrived: None,
                    lone_by: None,
                    look_again: None,
                    closing: false,
                    silent: false,
                    events: VecDeque::new(),
                };
                // What follows has time; the child has not. Where others run too, waiting for another core costs more.
                if !sandbox.plan.kept && embryo.apart.is_none() {
                    shared.step_aside();
                }
                let furnished = sandbox.furnish(shared).and_then(|()| {
                    sandbox.settle(shared);
                    sandbox.set_bounds(shared)
                });
                if let Err(error) = furnished {
                    sandbox.fail(error);
                }
                Ok(sandbox)
            }
            Err(error) => {
                embryo.discard(shared);
                Err(error)
            }
        }
    }

    /// Makes what the child needs last, while it makes its root.
    fn furnish(&mut self, shared: &mut Shared) -> Result<()> {
        shared.init()?;
        if let Some(group) = &mut self.group {
            group.complete()?;
        }
        if let Some(group) = &self.group {
            // Before there can be any.
            self.limits_in_force = self.limit_sockets(group, &self.plan.limits)?;
        }
        Ok(())
    }

    /// While the child, which is still ours, goes on with what it has got. Nothing else runs in its groups before they have been read back.
    fn set_bounds(&mut self, shared: &mut Shared) -> Result<()> {
        if let Some(group) = &self.group {
            let in_force = group.apply(&self.plan.limits, self.plan.kept)?;
            self.limits_in_force.extend(in_force);
        }
        shared.settle_in(Some(self.pid));
        shared.look_at_host()
    }

    /// Hands that over, as soon as the network is there too.
    pub fn settle(&mut self, shared: &mut Shared) {
        let given = self.network == Network::Given;
        if self.settled || given && matches!(shared.network, FirstNetwork::Awaited) {
            return;
        }
        self.settled = true;
        let network = match &mut shared.network {
            made @ FirstNetwork::Made(_) if given => std::mem::replace(made, FirstNetwork::None),
            _ => FirstNetwork::None,
        };
        if let Err(error) = self.hand_over(&network, shared) {
            self.fail(error);
        }
    }

    fn hand_over(&mut self, network: &FirstNetwork, shared: &mut Shared) -> Result<()> {
        let joins = self.group.as_ref().map(Group::joins).transpose()?;
        let joins = joins.unwrap_or_default();
        let mut fds = vec![shared.init()?];
        fds.extend(joins.iter().map(AsFd::as_fd));
        if let FirstNetwork::Made(network) = network {
            fds.push(network.as_fd());
        }
        let place = plan::Place {
            cgroup_joins: joins.len(),
            network: matches!(network, FirstNetwork::Made(_)),
        };
        let told = self.control.order(&place, &fds).during(Step::Init, "plan");
        self.joins = joins;
        told
    }

    pub fn signal(&mut self, command: CommandId, signal: Signal) {
        // Whoever lets a sandbox go lets go of its interpreter too, and by then all in it has been killed.
        if self.closing {
            return;
        }
        let Some(running) = self.commands.get_mut(&command) else {
            return;
        };
        if signal == Signal::Kill {
            if let Some(group) = &self.group {
                group.unthrottle();
                self.unthrottled = true;
            }
            running.kill(Instant::now());
            self.take_back();
        }
        let Some(running) = self.commands.get(&command) else {
            return;
        };
        let Some(copy) = &running.copy else {
            let _ = self.control.signal(command, signal);
            return;
        };
        let number = match signal {
            // Its end is seen by us, and then all else is ended too.
            Signal::Kill => libc::SIGKILL,
            Signal::Interrupt => libc::SIGINT,
        };
        if let Some(pidfd) = &copy.pidfd {
            let _ = sys::signal_process(pidfd.as_fd(), number);
        }
    }

    /// Changes what the sandbox may use from now on, and says so.
    pub fn limit(&mut self, limits: Limits) {
        if self.apply(limits) {
            let sandbox = self.handle;
            self.events
                .push_back((Event::Limited { sandbox }, Vec::new()));
        }
    }

    /// Makes a socket in its network, and hands it over.
    pub fn socket(&mut self, id: u64, listen: Option<u16>) {
        let own = matches!(self.phase, Phase::Ready)
            && self.plan.network
            && self.plan.keeps(Weakening::Netns);
        let made = if own {
            doors::socket_of(self.pid, listen)
        } else {
            let reason = "the sandbox has none of its own";
            Err(Error::because(Step::Network, "a socket", reason))
        };
        let (error, fds) = match made {
            Ok(socket) => (None, vec![socket]),
            Err(error) => (Some(error), Vec::new()),
        };
        let sandbox = self.handle;
        self.events
            .push_back((Event::Socket { sandbox, id, error }, fds));
    }

    /// Only where code can have any: others are spared what that costs the whole host.
    fn limit_sockets(&self, group: &Group, limits: &Limits) -> Result<InForce> {
        let plan = &self.plan;
        if plan.network || !plan.keeps(Weakening::Seccomp) {
            return group.limit_sockets(limits);
        }
        Ok(Vec::new())
    }

    /// `false`: the sandbox has been ended.
    fn apply(&mut self, limits: Limits) -> bool {
        self.take_back();
        self.plan.limits = limits;
        self.unthrottled = false;
        let applied = self.group.as_ref().map_or(Ok(()), |group| {
            group.apply(&limits, self.plan.kept)?;
            self.limit_sockets(group, &limits).map(drop)
        });
        if let Err(error) = applied {
            self.refuse(None, error);
            // Better no sandbox than one with other limits than it was given.
            self.kill();
            return false;
        }
        true
    }

    /// There is no sandbox. Its end is awaited.
    fn fail(&mut self, error: Error) {
        self.settled = true;
        self.phase = Phase::Dying;
        self.refuse(None, error);
        self.kill();
    }

    fn refuse(&mut self, command: Option<CommandId>, error: Error) {
        self.events.push_back((
            Event::Refused {
                sandbox: self.handle,
                command,
                error,
            },
            Vec::new(),
        ));
    }

    /// Has the loop wait for what has come up, and no longer for what has ended.
    pub fn register(&mut self, watch: &Watch) {
        let who = Who::Sandbox(self.handle);
        if !self.watched {
            self.watched = true;
            watch.add(&self.pidfd, who);
            watch.add(self.control.as_fd(), who);
        }
        if self.writing != self.control.is_behind() {
            self.writing = !self.writing;
            watch.set_writing(self.control.as_fd(), who, self.writing);
        }
        if self.control_ended {
            watch.remove(self.control.as_fd());
        }
        if self.is_gone() {
            watch.remove(&self.pidfd);
        }
    }

    pub fn deadline(&self) -> Option<Instant> {
        match &self.phase {
            Phase::SettingUp { deadline } => Some(*deadline),
            Phase::Ready => {
                let commands = self.commands.values().filter_map(Running::deadline);
                commands.chain(self.look_again).min()
            }
            Phase::Dying | Phase::Gone => None,
        }
    }

    /// What was kept until its events had been told.
    pub fn let_go(&mut self) {
        self.meters.clear();
    }

    pub fn take_events(&mut self) -> VecDeque<(Event, Vec<OwnedFd>)> {
        std::mem::take(&mut self.events)
    }

    /// Takes in what has happened: reports of init, its end, a deadline.
    pub fn advance(&mut self, now: Instant, shared: &mut Result<Shared>) {
        if matches!(self.phase, Phase::Gone) {
            return;
        }
        self.catch_up();
        self.read_reports(shared);
        self.reap_copies();
        self.reap();
        self.meet_deadlines(now);
        self.mind_others(now, shared);
    }

    /// Tells init what it had no room for.
    fn catch_up(&mut self) {
        if self.control.is_behind()
            && let Err(error) = self.control.flush()
            && error.kind() != ErrorKind::WouldBlock
        {
            // It hears nothing more, and to try again would be to spin.
            self.control.forget();
            self.kill();
        }
    }

    fn meet_deadlines(&mut self, now: Instant) {
        if let Phase::SettingUp { deadline } = self.phase {
            if now >= deadline {
                self.phase = Phase::Dying;
                let reason = "setting up the sandbox took too long";
                self.refuse(None, Error::because(Step::Init, "in time", reason));
                self.kill();
            }
            return;
        }
        let mut late = Vec::new();
        let mut never = Vec::new();
        let mut all = false;
        for (id, running) in &mut self.commands {
            match running.due(now) {
                Due::Nothing => {}
                Due::End => late.push(*id),
                Due::EndOfAll => all = true,
                Due::NeverStarted => never.push(*id),
            }
        }
        for id in never {
            let reason = "the sandbox has not started it in time, and was ended: something in it \
                          keeps its first process from going on";
            self.refuse(Some(id), Error::because(Step::Busy, "the command", reason));
            all = true;
        }
        if all {
            return self.kill();
        }
        for id in late {
            self.signal(id, Signal::Kill);
        }
    }

    /// Removes the parts in which nothing is left. The kernel lets a sandbox have only so many.
    fn sweep_parts(&mut self) {
        self.left.retain(|part| !part.try_remove());
    }

    /// Kills init, and with it the whole process namespace; the cgroup too, should that ever not be all.
    pub fn kill(&mut self) {
        self.take_back();
        if self.is_at_rest() {
            let _ = sys::signal_process(self.pidfd.as_fd(), libc::SIGKILL);
            return;
        }
        let stages = self.commands.values().filter_map(Running::groups);
        for group in stages.chain(&self.group) {
            group.unthrottle();
            group.kill();
        }
        let _ = sys::signal_process(self.pidfd.as_fd(), libc::SIGKILL);
    }

    /// Whether init is all that is left in it, and needs nobody's leave to die: it ended everything with the last command, and its share
    /// is enough for one that has used it up to be gone within a tenth of a second.
    fn is_at_rest(&self) -> bool {
        matches!(self.phase, Phase::Ready)
            && self.plan.limits.cpus >= 0.5
            && self.plan.keeps(Weakening::Pidns)
            && self.commands.is_empty()
            && self.ordered.is_none()
            && !self.beside
    }

    /// `told`: somebody waits for the ends of what goes on in it.
    pub fn close(&mut self, told: bool) {
        self.closing = true;
        self.silent = !told;
        if !matches!(self.phase, Phase::Gone) {
            self.kill();
        }
    }

    /// Whether somebody waits for it to be ready.
    pub fn is_coming(&self) -> bool {
        matches!(self.phase, Phase::SettingUp { .. })
    }

    /// Whether a child of the keeper's is one of its processes.
    pub fn is_own(&self, pid: i32) -> bool {
        let arrived = self.arrived.is_some_and(|(_, arrived)| arrived == pid);
        let mut copies = self
            .commands
            .values()
            .filter_map(|running| running.copy.as_ref());
        self.pid == pid || arrived || copies.any(|copy| copy.pid == pid && copy.exit.is_none())
    }

    pub fn is_gone(&self) -> bool {
        matches!(self.phase, Phase::Gone)
    }

    pub fn is_closed(&self) -> bool {
        self.closing && self.is_gone()
    }

    /// Leaves no trace. Only for a sandbox that is gone.
    pub fn remove(mut self, shared: &mut Result<Shared>, watch: &Watch) {
        watch.remove(&self.pidfd);
        watch.remove(self.control.as_fd());
        let mut all_removed = true;
        for running in std::mem::take(&mut self.commands).into_values() {
            match running.remove() {
                Ok(part) => self.left.extend(part),
                Err(_) => all_removed = false,
            }
        }
        self.sweep_parts();
        let Ok(shared) = shared else { return };
        if !all_removed {
            shared.lease.leave_to_the_next();
        }
        if self.silent {
            shared.give_on(self.group, self.owner, self.reusable);
        } else {
            shared.give_back(self.group, self.owner, self.reusable);
        }
    }
}

/// All of the plan to the child.
fn send_birth(
    embryo: &mut Embryo,
    plan: &Plan,
    mode: Mode,
    moulds: Option<&mut Moulds>,
) -> Result<()> {
    let maps = || IdMaps::for_plan(plan, embryo.owner);
    let provided = match mode {
        Mode::Root => Provided::IdMaps(maps()?),
        Mode::Enterable { .. } => match moulds.and_then(|all| all.copy_for(plan)) {
            Some(tree) => Provided::Mould(tree),
            None => Provided::trees(plan, &maps()?)?,
        },
        Mode::Rootless(_) => Provided::IdMaps(IdMaps::default()),
    };
    let mut birth = Birth {
        plan: plan.clone(),
        owner: embryo.owner,
        brings: provided.brings(),
    };
    if provided.mould().is_some() {
        birth.plan.entries.clear();
    }
    embryo
        .control
        .order(&birth, &provided.fds())
        .during(Step::Init, "plan")
}
