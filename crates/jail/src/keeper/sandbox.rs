//! One sandbox as its keeper sees it: being made, ready, ending, gone; and the commands in it.

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::fchown;
use std::time::{Duration, Instant};

use belljar_spec::{Limits, Weakening};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::command::{Copy, Due, Place, Running, exit_of};
use super::embryo::{Embryo, Kind};
use super::shared::{FirstNetwork, Shared};
use super::watch::{Watch, Who};
use super::zygote::{Order, Waiting};
use crate::beneath::Found;
use crate::cgroup::Group;
use crate::channel::{Control, Report};
use crate::confine::{Mode, Namespaces, Network};
use crate::error::{Context, Error, Result, Step};
use crate::idmap::IdMaps;
use crate::plan::{self, Birth, Owner, Plan};
use crate::protocol::{
    CommandId, Event, Exit, Handle, Opened, Role, Signal, Stage, Start, ZygoteId,
};
use crate::root::Provided;
use crate::sys;
use crate::verify::{self, Subject};

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
    /// and for these until it is told otherwise.
    ended_copies: Vec<OwnedFd>,
    group: Option<Group>,
    /// Of its cgroups, as the kernel says they are.
    limits_in_force: Vec<(&'static str, String)>,
    network: Network,
    /// Whether it has been given its cgroups and network.
    settled: bool,
    commands: BTreeMap<CommandId, Running>,
    workspace: Option<(OwnedFd, Vec<Found>)>,
    /// Landlock rules for a kernel that comes from outside.
    rules: Option<OwnedFd>,
    /// The sockets of its network, until the engine has them.
    doors: Vec<OwnedFd>,
    phase: Phase,
    /// Commands that came before the sandbox was ready.
    queued: Vec<(Start, Vec<OwnedFd>)>,
    closing: bool,
    events: VecDeque<(Event, Vec<OwnedFd>)>,
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
            zygote,
        };
        let embryo = shared.embryo(kind)?;
        match send_birth(&embryo, &plan, mode) {
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
                    ended_copies: Vec::new(),
                    group: embryo.group,
                    limits_in_force: Vec::new(),
                    network: embryo.network,
                    settled: false,
                    commands: BTreeMap::new(),
                    workspace: None,
                    rules: None,
                    doors: Vec::new(),
                    phase: Phase::SettingUp {
                        deadline: Instant::now() + SETUP_TIME,
                    },
                    queued: Vec::new(),
                    closing: false,
                    events: VecDeque::new(),
                };
                // What follows has time; the child has not. Where others run too, waiting for another core costs more.
                if !sandbox.plan.kept {
                    shared.cores.step_aside();
                }
                match sandbox.furnish(shared) {
                    Ok(()) => sandbox.settle(shared),
                    Err(error) => sandbox.fail(error),
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
        shared.constants()?;
        if let Some(group) = &mut self.group {
            group.complete()?;
            group.apply(&self.plan.limits, self.plan.kept)?;
            self.limits_in_force = group.limits_in_force()?;
        }
        Ok(())
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

    fn hand_over(&self, network: &FirstNetwork, shared: &mut Shared) -> Result<()> {
        let joins = self.group.as_ref().map(Group::joins).transpose()?;
        let joins = joins.unwrap_or_default();
        let mut fds = vec![shared.constants()?.init.as_fd()];
        fds.extend(joins.iter().map(AsFd::as_fd));
        if let FirstNetwork::Made(network) = network {
            fds.push(network.as_fd());
        }
        let place = plan::Place {
            cgroup_joins: joins.len(),
            network: matches!(network, FirstNetwork::Made(_)),
        };
        self.control.order(&place, &fds).during(Step::Init, "plan")
    }

    /// Starts a command, or keeps it until the sandbox has been verified.
    pub fn start(&mut self, start: Start, fds: Vec<OwnedFd>, shared: &mut Shared) {
        if matches!(self.phase, Phase::SettingUp { .. }) {
            return self.queued.push((start, fds));
        }
        let id = start.id;
        if let Err(error) = self.check_start(&start, &fds) {
            return self.refuse(Some(id), error);
        }
        if let Err(cold) = self.order_copy(start, fds, shared) {
            let wanted = cold.start.zygote.is_some();
            let reason = "it has ended, or has more threads than one, or is of another kind";
            let reason =
                wanted.then(|| Error::because(Step::Zygote, "the warm interpreter", reason));
            self.start_cold(&cold.start, &cold.fds, reason, shared);
        }
    }

    /// Has the command executed by init.
    pub fn start_cold(
        &mut self,
        start: &Start,
        fds: &[OwnedFd],
        cold: Option<Error>,
        shared: &Shared,
    ) {
        self.commands.remove(&start.id);
        if let Err(error) = self.try_start(start, fds, cold, shared) {
            self.refuse(Some(start.id), error);
        }
    }

    fn check_start(&self, start: &Start, fds: &[OwnedFd]) -> Result<()> {
        let refused = |reason: &str| {
            Err(Error::because(
                Step::Command,
                start.command.argv.join(" "),
                reason,
            ))
        };
        if !matches!(self.phase, Phase::Ready) {
            return refused("the sandbox is not ready");
        }
        if fds.len() != 3 + usize::from(start.role == Role::Kernel) {
            return refused("it came with a wrong number of descriptors");
        }
        if self.commands.contains_key(&start.id) {
            return refused("another command has its number");
        }
        if !self.mode.is_rootless() {
            // Otherwise code could not reopen its own output as /dev/stdout.
            for fd in &fds[..3] {
                // /dev/null is nobody's, and a terminal cannot be opened by its name.
                let device = nix::sys::stat::fstat(fd).is_ok_and(|at| at.st_rdev != 0);
                if device {
                    continue;
                }
                fchown(fd, Some(self.owner.uid), Some(self.owner.gid))
                    .during(Step::Command, "standard descriptors")?;
            }
        }
        Ok(())
    }

    /// Asks a zygote for a copy of itself in this sandbox. Gives the command back where that cannot be.
    fn order_copy(
        &mut self,
        start: Start,
        fds: Vec<OwnedFd>,
        shared: &mut Shared,
    ) -> std::result::Result<(), Box<Waiting>> {
        let zygote = start.zygote.and_then(|id| shared.zygotes.get_mut(&id));
        let waiting = Box::new(Waiting {
            sandbox: self.handle,
            start,
            fds,
            since: Instant::now(),
        });
        let (Some(zygote), Some(rules), Some(group)) = (zygote, &self.rules, &self.group) else {
            return Err(waiting);
        };
        if !zygote.is_usable() || self.mode == Mode::Root {
            return Err(waiting);
        }
        let Ok(joins) = group.joins() else {
            return Err(waiting);
        };
        let place = Place {
            group: None,
            part: None,
            meter: Some(group.meter()),
        };
        let running = Running::new(&waiting.start, place);
        let id = waiting.start.id;
        let order = Order {
            plan: &self.plan,
            init: self.pidfd.as_fd(),
            rules: rules.as_fd(),
            birthplace: group.birthplace(),
            joins: &joins,
        };
        match zygote.order(waiting, &order) {
            Ok(()) => {
                self.commands.insert(id, running);
                Ok(())
            }
            Err(waiting) => Err(waiting),
        }
    }

    /// A zygote has forked itself into this sandbox. Nothing is said about it before it has been looked at.
    pub fn take_copy(&mut self, id: CommandId, pid: i32, shared: &Shared) {
        let seen = sys::open_process(pid)
            .during(Step::Zygote, "its copy")
            .and_then(|pidfd| {
                self.inspect(pid, shared)?;
                verify::same_namespaces(pid, self.pid)?;
                if self.plan.closed.is_some() {
                    verify::is_lone(pid, self.pid)?;
                }
                Ok(pidfd)
            });
        match (seen, self.commands.get_mut(&id)) {
            (Ok(pidfd), Some(running)) => {
                let exit = None;
                let watched = false;
                running.copy = Some(Copy {
                    pid,
                    pidfd,
                    exit,
                    watched,
                });
                self.say_started(id, None);
            }
            (seen, _) => {
                // As long as it waits to be reaped, init cannot end.
                sys::end_child(pid);
                self.commands.remove(&id);
                if let Err(error) = seen {
                    self.refuse(Some(id), error);
                }
                self.kill();
            }
        }
    }

    fn say_started(&mut self, command: CommandId, cold: Option<Error>) {
        let started = Event::Started {
            sandbox: self.handle,
            command,
            cold,
        };
        self.events.push_back((started, Vec::new()));
    }

    fn try_start(
        &mut self,
        start: &Start,
        fds: &[OwnedFd],
        cold: Option<Error>,
        shared: &Shared,
    ) -> Result<()> {
        let (place, joins) = self.place(start, shared)?;
        let all: Vec<BorrowedFd<'_>> = fds.iter().chain(&joins).map(AsFd::as_fd).collect();
        let mut running = Running::new(start, place);
        running.cold = cold;
        let sent = self
            .control
            .start(start, self.plan.closed.is_some(), &all)
            .during(Step::Command, start.command.argv.join(" "));
        match sent {
            Ok(()) => {
                self.commands.insert(start.id, running);
                Ok(())
            }
            Err(error) => running.remove().and(Err(error)),
        }
    }

    /// The groups in which a command is counted and can be killed, and how it joins them.
    fn place(&self, start: &Start, shared: &Shared) -> Result<(Place, Vec<OwnedFd>)> {
        let mut place = Place {
            group: None,
            part: None,
            meter: self.group.as_ref().map(Group::meter),
        };
        let mut joins = Vec::new();
        let Some(own) = &self.group else {
            return Ok((place, joins));
        };
        if let (Stage::Compile, Ok(tree)) = (start.stage, &shared.cgroups) {
            let (token, handle, id) = (&shared.lease.token, self.handle, start.id);
            let group = tree.create_stage(&format!("{token}-compile-{handle}-{id}"), own)?;
            let joined = group
                .apply(&start.command.limits, false)
                .and_then(|()| group.all_joins());
            match joined {
                Ok(files) => joins = files,
                Err(error) => return group.remove().and(Err(error)),
            }
            place.meter = Some(group.meter());
            place.group = Some(group);
        } else if matches!(start.role, Role::Beside | Role::Terminal)
            && let Some(part) = own.part(&format!("command-{}", start.id))?
        {
            match part.join() {
                Ok(file) => joins.push(file),
                Err(error) => return part.remove().and(Err(error)),
            }
            place.part = Some(part);
        }
        Ok((place, joins))
    }

    pub fn signal(&mut self, command: CommandId, signal: Signal) {
        let Some(running) = self.commands.get_mut(&command) else {
            return;
        };
        if signal == Signal::Kill {
            if let Some(group) = &self.group {
                group.unthrottle();
            }
            running.kill(Instant::now());
        }
        let _ = match (&running.copy, signal) {
            (None, _) => self.control.signal(command, signal),
            // Its end is seen by us, and then all else is ended too.
            (Some(copy), Signal::Kill) => sys::signal_process(copy.pidfd.as_fd(), libc::SIGKILL),
            (Some(copy), Signal::Interrupt) => {
                sys::signal_process(copy.pidfd.as_fd(), libc::SIGINT)
            }
        };
    }

    /// Changes what the sandbox may use from now on, and says so.
    pub fn limit(&mut self, limits: Limits) {
        if self.apply(limits) {
            let sandbox = self.handle;
            self.events
                .push_back((Event::Limited { sandbox }, Vec::new()));
        }
    }

    /// `false`: the sandbox has been ended.
    fn apply(&mut self, limits: Limits) -> bool {
        self.plan.limits = limits;
        let applied = self
            .group
            .as_ref()
            .map_or(Ok(()), |group| group.apply(&limits, self.plan.kept));
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
        if self.control_ended {
            watch.remove(self.control.as_fd());
        }
        if self.is_gone() {
            watch.remove(&self.pidfd);
        }
        for copy in self
            .commands
            .values_mut()
            .filter_map(|one| one.copy.as_mut())
        {
            if !copy.watched {
                copy.watched = true;
                watch.add(&copy.pidfd, who);
            }
            if copy.exit.is_some() {
                watch.remove(&copy.pidfd);
            }
        }
    }

    pub fn deadline(&self) -> Option<Instant> {
        match &self.phase {
            Phase::SettingUp { deadline } => Some(*deadline),
            Phase::Ready => self.commands.values().filter_map(Running::deadline).min(),
            Phase::Dying | Phase::Gone => None,
        }
    }

    pub fn take_events(&mut self) -> VecDeque<(Event, Vec<OwnedFd>)> {
        std::mem::take(&mut self.events)
    }

    /// Takes in what has happened: reports of init, its end, a deadline.
    pub fn advance(&mut self, now: Instant, shared: &mut Result<Shared>) {
        if matches!(self.phase, Phase::Gone) {
            return;
        }
        self.read_reports(shared);
        self.reap_copies();
        self.reap();
        self.meet_deadlines(now);
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
        let mut all = false;
        for (id, running) in &mut self.commands {
            match running.due(now) {
                Due::Nothing => {}
                Due::End => late.push(*id),
                Due::EndOfAll => all = true,
            }
        }
        if all {
            return self.kill();
        }
        for id in late {
            self.signal(id, Signal::Kill);
        }
    }

    fn read_reports(&mut self, shared: &mut Result<Shared>) {
        match self.control.fill() {
            Ok(true) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            // The end. From here on the process handle tells; to wait for this socket would be to spin.
            Ok(false) | Err(_) => {
                self.control_ended = true;
                return;
            }
        }
        loop {
            match self.control.next_report() {
                Ok(Some(report)) => self.take_report(report, shared),
                Ok(None) => return,
                Err(_) => return self.kill(),
            }
        }
    }

    fn take_report(&mut self, report: Report, shared: &mut Result<Shared>) {
        match report {
            Report::SetupFailed(error) => self.refuse(None, error),
            Report::Workspace {
                workspace,
                inputs,
                rules,
            } => {
                self.workspace = Some((workspace, inputs));
                self.rules = rules;
            }
            Report::Doors(doors) => self.doors = doors,
            Report::Ready => self.take_ready(shared),
            Report::Started { id } => {
                let running = self.commands.get_mut(&id);
                let cold = running.and_then(|running| running.cold.take());
                if self.plan.closed.is_some()
                    && let Err(error) = verify::children_are_lone(self.pid)
                {
                    self.refuse(Some(id), error);
                    return self.kill();
                }
                self.say_started(id, cold);
                if let Some(running) = self.commands.get(&id) {
                    running.prepare();
                }
            }
            Report::StartFailed { id, errno } => {
                if let Some(running) = self.commands.get_mut(&id) {
                    running.errno = Some(errno);
                }
            }
            // Everything but init has been killed, after a copy had ended.
            Report::Ended { id: 0, .. } => {
                let over = |running: &Running| {
                    let copy = running.copy.as_ref();
                    copy.and_then(|copy| copy.exit.clone())
                };
                let mut ended = self.commands.iter();
                let ended = ended.find_map(|(id, running)| Some((*id, over(running)?)));
                if let Some((id, exit)) = ended {
                    self.finish(id, exit);
                }
            }
            Report::Ended { id, code, status } => {
                let exit = exit_of(code, status);
                let in_own_namespace = self.plan.keeps(Weakening::Pidns);
                match self.commands.get_mut(&id) {
                    // Init could not kill what is left: the cgroup is killed, and the end told when init has gone with it.
                    Some(running) if !in_own_namespace && running.groups().is_none() => {
                        running.exit = Some(exit);
                        self.kill();
                    }
                    _ => self.finish(id, exit),
                }
            }
        }
    }

    /// Nothing is released into a sandbox that does not look right from outside.
    fn take_ready(&mut self, shared: &mut Result<Shared>) {
        let Ok(shared) = shared else { return };
        let inspected = self.inspect(self.pid, shared);
        match (inspected, self.workspace.take()) {
            (Ok(report), Some((workspace, inputs))) => {
                let Owner { uid, gid } = self.owner;
                self.phase = Phase::Ready;
                for (start, fds) in std::mem::take(&mut self.queued) {
                    self.start(start, fds, shared);
                }
                let opened = Box::new(Opened {
                    uid,
                    gid,
                    inputs,
                    report,
                    meter: self.group.as_ref().map(Group::meter),
                });
                // Ahead of what the start may have said.
                self.events.push_front((
                    Event::Opened {
                        sandbox: self.handle,
                        opened,
                    },
                    [workspace]
                        .into_iter()
                        .chain(std::mem::take(&mut self.doors))
                        .collect(),
                ));
            }
            (inspected, _) => {
                let no_workspace =
                    || Error::because(Step::Init, "workspace", "it was not handed over");
                self.refuse(None, inspected.err().unwrap_or_else(no_workspace));
                self.kill();
            }
        }
    }

    fn inspect(&self, pid: i32, shared: &Shared) -> Result<belljar_spec::Report> {
        let constants = shared.constants.as_ref();
        let constants = constants.ok_or_else(|| {
            Error::because(Step::Verify, "namespaces", "the host's are not known")
        })?;
        let cgroup = shared.cgroups.as_ref().ok().zip(self.group.as_ref());
        verify::inspect(&Subject {
            pid,
            plan: &self.plan,
            mode: self.mode,
            owner: self.owner,
            cgroup: cgroup.map(|(tree, group)| verify::Cgroup {
                version: tree.version(),
                memberships: group.memberships(),
                limits: &self.limits_in_force,
            }),
            host: &constants.host,
        })
    }

    /// A copy is a child of ours. With it everything in the sandbox ends, which init sees to.
    fn reap_copies(&mut self) {
        for running in self.commands.values_mut() {
            let Some(copy) = running.copy.as_mut().filter(|copy| copy.exit.is_none()) else {
                continue;
            };
            let exit = match waitpid(Pid::from_raw(copy.pid), Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) => continue,
                Ok(WaitStatus::Exited(_, code)) => Exit::Code(code),
                Ok(WaitStatus::Signaled(_, signal, _)) => Exit::Signal(signal as i32),
                _ => Exit::Killed,
            };
            copy.exit = Some(exit);
            running.kill(Instant::now());
            let _ = self.control.kill_all();
        }
    }

    fn reap(&mut self) {
        if let Ok(WaitStatus::StillAlive) =
            waitpid(Pid::from_raw(self.pid), Some(WaitPidFlag::WNOHANG))
        {
        } else {
            if matches!(self.phase, Phase::SettingUp { .. }) && self.events.is_empty() {
                let reason = "it ended while it was being set up";
                self.refuse(None, Error::because(Step::Init, "init", reason));
            }
            for id in self.commands.keys().copied().collect::<Vec<_>>() {
                self.finish(id, Exit::Killed);
            }
            self.phase = Phase::Gone;
        }
    }

    /// The command is over; one that is not beside others, with everything it started.
    fn finish(&mut self, id: CommandId, exit: Exit) {
        let Some(mut running) = self.commands.remove(&id) else {
            return;
        };
        let exit = running.exit.take().unwrap_or(exit);
        if let Some(copy) = running.copy.take() {
            self.ended_copies.push(copy.pidfd);
        }
        let outcome = running.outcome(exit);
        // It was let run on in order to die.
        if running.role != Role::Alone && running.was_killed() {
            self.apply(self.plan.limits);
        }
        if let Err(error) = running.remove() {
            self.refuse(Some(id), error);
        }
        self.events.push_back((
            Event::Ended {
                sandbox: self.handle,
                command: id,
                outcome,
            },
            Vec::new(),
        ));
    }

    /// Kills init, and with it the whole process namespace; the cgroup too, should that ever not be all.
    pub fn kill(&mut self) {
        let stages = self.commands.values().filter_map(Running::groups);
        for group in stages.chain(&self.group) {
            group.unthrottle();
            group.kill();
        }
        let _ = sys::signal_process(self.pidfd.as_fd(), libc::SIGKILL);
    }

    pub fn close(&mut self) {
        self.closing = true;
        if !matches!(self.phase, Phase::Gone) {
            self.kill();
        }
    }

    /// Whether somebody waits for it to be ready.
    pub fn is_coming(&self) -> bool {
        matches!(self.phase, Phase::SettingUp { .. })
    }

    pub fn is_gone(&self) -> bool {
        matches!(self.phase, Phase::Gone)
    }

    pub fn is_closed(&self) -> bool {
        self.closing && self.is_gone()
    }

    /// Leaves no trace. Only for a sandbox that is gone.
    pub fn remove(self, shared: &mut Result<Shared>, watch: &Watch) {
        watch.remove(&self.pidfd);
        watch.remove(self.control.as_fd());
        let stages = self.commands.into_values().try_for_each(Running::remove);
        let Ok(shared) = shared else { return };
        if stages.is_err() {
            shared.lease.leave_to_the_next();
        }
        shared.give_back(self.group, self.owner);
    }
}

/// All of the plan to the child.
fn send_birth(embryo: &Embryo, plan: &Plan, mode: Mode) -> Result<()> {
    let provided = match mode {
        Mode::Root => Provided::IdMaps(IdMaps::for_plan(plan, embryo.owner)?),
        Mode::Enterable { .. } => Provided::trees(plan, &IdMaps::for_plan(plan, embryo.owner)?)?,
        Mode::Rootless(_) => Provided::IdMaps(IdMaps::default()),
    };
    let birth = Birth {
        plan: plan.clone(),
        owner: embryo.owner,
        trees: matches!(provided, Provided::Trees(_)),
    };
    embryo
        .control
        .order(&birth, &provided.fds())
        .during(Step::Init, "plan")
}
