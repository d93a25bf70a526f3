//! One sandbox as its keeper sees it: being made, ready, ending, gone; and the commands in it.

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::fchown;
use std::time::{Duration, Instant};

use belljar_spec::{Limits, Weakening};
use nix::poll::{PollFd, PollFlags};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::Shared;
use super::command::{Due, Place, Running};
use super::embryo::Embryo;
use crate::beneath::Found;
use crate::cgroup::Group;
use crate::channel::{Control, Report};
use crate::confine::{Mode, Namespaces};
use crate::error::{Context, Error, Result, Step};
use crate::idmap::IdMaps;
use crate::plan::{Birth, Owner, Plan};
use crate::protocol::{CommandId, Event, Exit, Handle, Opened, Role, Signal, Stage, Start};
use crate::sys;
use crate::verify::{self, Subject};

/// Setting up takes a millisecond; a host on which it takes this long is broken.
const SETUP_TIME: Duration = Duration::from_secs(20);

pub(super) struct Sandbox {
    handle: Handle,
    plan: Plan,
    mode: Mode,
    owner: Owner,
    pid: i32,
    pidfd: OwnedFd,
    control: Control,
    control_ended: bool,
    group: Option<Group>,
    commands: BTreeMap<CommandId, Running>,
    workspace: Option<(OwnedFd, Vec<Found>)>,
    phase: Phase,
    /// Commands that came before the sandbox was ready.
    queued: Vec<(Start, Vec<OwnedFd>)>,
    closing: bool,
    events: VecDeque<(Event, Option<OwnedFd>)>,
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
    pub fn open(handle: Handle, plan: Plan, shared: &mut Shared) -> Result<Self> {
        let (namespaces, with_group) = (Namespaces::of(&plan), plan.keeps(Weakening::Cgroups));
        let embryo = match shared.embryo.take() {
            Some(ready) if ready.fits(namespaces, with_group) => ready,
            unfit => {
                if let Some(unfit) = unfit {
                    unfit.discard();
                }
                Embryo::fork(shared, namespaces, with_group)?
            }
        };
        match send_birth(&embryo, plan, shared) {
            Ok(Birth { plan, owner }) => Ok(Self {
                handle,
                plan,
                mode: shared.mode,
                owner,
                pid: embryo.pid,
                pidfd: embryo.pidfd,
                control: embryo.control,
                control_ended: false,
                group: embryo.group,
                commands: BTreeMap::new(),
                workspace: None,
                phase: Phase::SettingUp {
                    deadline: Instant::now() + SETUP_TIME,
                },
                queued: Vec::new(),
                closing: false,
                events: VecDeque::new(),
            }),
            Err(error) => {
                embryo.discard();
                Err(error)
            }
        }
    }

    /// Starts a command, or keeps it until the sandbox has been verified.
    pub fn start(&mut self, start: Start, fds: Vec<OwnedFd>, shared: &Shared) {
        if matches!(self.phase, Phase::SettingUp { .. }) {
            return self.queued.push((start, fds));
        }
        let id = start.id;
        if let Err(error) = self.try_start(&start, &fds, shared) {
            self.refuse(Some(id), error);
        }
    }

    fn try_start(&mut self, start: &Start, fds: &[OwnedFd], shared: &Shared) -> Result<()> {
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
        if let Mode::Root = self.mode {
            // Otherwise code could not reopen its own output as /dev/stdout.
            for fd in &fds[..3] {
                fchown(fd, Some(self.owner.uid), Some(self.owner.gid))
                    .during(Step::Command, "standard descriptors")?;
            }
        }
        let (place, joins) = self.place(start, shared)?;
        let all: Vec<BorrowedFd<'_>> = fds.iter().chain(&joins).map(AsFd::as_fd).collect();
        let running = Running::new(start, place);
        let sent = self
            .control
            .start(start, &all)
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
            let group = tree.create(&format!("{token}-compile-{handle}-{id}"))?;
            let joined = group
                .apply(&start.command.limits, false)
                .and_then(|()| group.all_joins());
            match joined {
                Ok(files) => joins = files,
                Err(error) => return group.remove().and(Err(error)),
            }
            place.meter = Some(group.meter());
            place.group = Some(group);
        } else if start.role == Role::Beside
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
        let _ = self.control.signal(command, signal);
    }

    /// Changes what the sandbox may use from now on.
    pub fn limit(&mut self, limits: Limits) {
        self.plan.limits = limits;
        if let Some(Err(error)) = self
            .group
            .as_ref()
            .map(|group| group.apply(&limits, self.plan.kept))
        {
            self.refuse(None, error);
            // Better no sandbox than one with other limits than it was given.
            self.kill();
        }
    }

    fn refuse(&mut self, command: Option<CommandId>, error: Error) {
        self.events.push_back((
            Event::Refused {
                sandbox: self.handle,
                command,
                error,
            },
            None,
        ));
    }

    /// What the loop shall wait for on behalf of this sandbox.
    pub fn wanted(&self) -> Vec<PollFd<'_>> {
        if matches!(self.phase, Phase::Gone) {
            return Vec::new();
        }
        let mut wanted = vec![PollFd::new(self.pidfd.as_fd(), PollFlags::POLLIN)];
        if !self.control_ended {
            wanted.push(PollFd::new(self.control.as_fd(), PollFlags::POLLIN));
        }
        wanted
    }

    pub fn deadline(&self) -> Option<Instant> {
        match &self.phase {
            Phase::SettingUp { deadline } => Some(*deadline),
            Phase::Ready => self.commands.values().filter_map(Running::deadline).min(),
            Phase::Dying | Phase::Gone => None,
        }
    }

    pub fn take_events(&mut self) -> VecDeque<(Event, Option<OwnedFd>)> {
        std::mem::take(&mut self.events)
    }

    /// Takes in what has happened: reports of init, its end, a deadline.
    pub fn advance(&mut self, now: Instant, shared: &Result<Shared>) {
        if matches!(self.phase, Phase::Gone) {
            return;
        }
        self.read_reports(shared);
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

    fn read_reports(&mut self, shared: &Result<Shared>) {
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

    fn take_report(&mut self, report: Report, shared: &Result<Shared>) {
        match report {
            Report::SetupFailed(error) => self.refuse(None, error),
            Report::Workspace { workspace, inputs } => self.workspace = Some((workspace, inputs)),
            Report::Ready => self.take_ready(shared),
            Report::Started { id } => self.events.push_back((
                Event::Started {
                    sandbox: self.handle,
                    command: id,
                },
                None,
            )),
            Report::StartFailed { id, errno } => {
                if let Some(running) = self.commands.get_mut(&id) {
                    running.errno = Some(errno);
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
    fn take_ready(&mut self, shared: &Result<Shared>) {
        let Ok(shared) = shared else { return };
        let group = shared.cgroups.as_ref().ok().zip(self.group.as_ref());
        let inspected = verify::inspect(&Subject {
            pid: self.pid,
            plan: &self.plan,
            mode: self.mode,
            owner: self.owner,
            group,
            host: &shared.host,
        });
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
                    Some(workspace),
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
        let outcome = running.outcome(exit);
        // It was let run on in order to die.
        if running.role != Role::Alone && running.was_killed() {
            self.limit(self.plan.limits);
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
            None,
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

    pub fn is_gone(&self) -> bool {
        matches!(self.phase, Phase::Gone)
    }

    pub fn is_closed(&self) -> bool {
        self.closing && self.is_gone()
    }

    /// Leaves no trace. Only for a sandbox that is gone.
    pub fn remove(self, shared: &mut Result<Shared>) {
        let removed = self
            .commands
            .into_values()
            .try_for_each(Running::remove)
            .and_then(|()| self.group.map_or(Ok(()), Group::remove));
        let Ok(shared) = shared else { return };
        match (removed, self.mode) {
            // What could not be removed is left to whoever starts next, and so is the user id.
            (Err(_), _) => shared.lease.leave_to_the_next(),
            (Ok(()), Mode::Root) => shared.lease.release_uid(self.owner.uid),
            (Ok(()), Mode::Rootless(_)) => {}
        }
    }
}

/// Whom the sandbox shall be, its limits, and then all of it to the child.
fn send_birth(embryo: &Embryo, plan: Plan, shared: &mut Shared) -> Result<Birth> {
    let owner = match shared.mode {
        Mode::Root => {
            let uid = shared.lease.take_uid();
            let uid = uid.ok_or_else(|| {
                Error::because(Step::Identity, "a free user id", "all are in use")
            })?;
            Owner { uid, gid: uid }
        }
        Mode::Rootless(owner) => owner,
    };
    if let Some(group) = &embryo.group {
        group.apply(&plan.limits, plan.kept)?;
    }
    let id_maps = match shared.mode {
        Mode::Root => IdMaps::for_plan(&plan, owner)?,
        Mode::Rootless(_) => IdMaps::default(),
    };
    let birth = Birth { plan, owner };
    let bytes =
        serde_json::to_vec(&birth).map_err(|error| Error::because(Step::Init, "plan", error))?;
    embryo
        .control
        .send_birth(&bytes, &id_maps.fds())
        .during(Step::Init, "plan")?;
    Ok(birth)
}

fn exit_of(code: i32, status: i32) -> Exit {
    if code == libc::CLD_EXITED {
        Exit::Code(status)
    } else {
        Exit::Signal(status)
    }
}
