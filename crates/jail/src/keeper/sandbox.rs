//! One sandbox as its keeper sees it: being made, ready, running, ending, gone.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use belljar_spec::Weakening;
use nix::poll::{PollFd, PollFlags};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::Shared;
use crate::cgroup::{Counters, Group};
use crate::channel::{self, Control, Report};
use crate::confine::{Confinement, Mode};
use crate::error::{Context, Error, Result, Step};
use crate::idmap::IdMaps;
use crate::plan::{Command, Plan};
use crate::protocol::{Event, Exit, Handle, Opened, Outcome, Stage};
use crate::root::Owner;
use crate::sys::{self, Side};
use crate::verify;

/// Setting up takes a millisecond; a host on which it takes this long is broken.
const SETUP_TIME: Duration = Duration::from_secs(20);
/// The id of the command; there is one at a time.
const COMMAND: u32 = 1;

pub(super) struct Sandbox {
    handle: Handle,
    plan: Plan,
    mode: Mode,
    pid: i32,
    pidfd: OwnedFd,
    control: Control,
    group: Option<Group>,
    /// Of the compile stage, while it runs.
    stage_group: Option<Group>,
    workspace: Option<OwnedFd>,
    phase: Phase,
    closing: bool,
    events: VecDeque<(Event, Option<OwnedFd>)>,
}

enum Phase {
    SettingUp { deadline: Instant },
    Ready,
    Running(Running),
    /// Init has been reaped, and with it everything in its process namespace.
    Gone,
}

struct Running {
    started: Instant,
    deadline: Instant,
    timed_out: bool,
    /// Set when the program could not be executed.
    errno: Option<i32>,
    before: Counters,
}

impl Sandbox {
    pub fn open(handle: Handle, plan: Plan, shared: &mut Shared) -> Result<Self> {
        let group = if plan.keeps(Weakening::Cgroups) {
            let tree = shared.cgroups.as_ref().map_err(Clone::clone)?;
            let group = tree.create(&format!("{}-{}", shared.lease.token, plan.id))?;
            if let Err(error) = group.apply(&plan.limits) {
                group.remove()?;
                return Err(error);
            }
            Some(group)
        } else {
            None
        };
        match Self::launch(handle, plan, &group, shared) {
            Ok((plan, mode, pid, pidfd, control)) => Ok(Self {
                handle,
                plan,
                mode,
                pid,
                pidfd,
                control,
                group,
                stage_group: None,
                workspace: None,
                phase: Phase::SettingUp { deadline: Instant::now() + SETUP_TIME },
                closing: false,
                events: VecDeque::new(),
            }),
            Err(error) => {
                group.map_or(Ok(()), Group::remove)?;
                Err(error)
            }
        }
    }

    fn launch(
        _handle: Handle,
        plan: Plan,
        group: &Option<Group>,
        shared: &mut Shared,
    ) -> Result<(Plan, Mode, i32, OwnedFd, Control)> {
        let mode = if shared.is_root {
            let uid = shared.lease.take_uid();
            let uid = uid.ok_or_else(|| Error::because(Step::Identity, "a free user id", "all are in use"))?;
            Mode::Root(Owner { uid, gid: uid })
        } else {
            Mode::Rootless(Owner { uid: shared.ids.0, gid: shared.ids.1 })
        };
        let id_maps = if shared.is_root { IdMaps::for_plan(&plan, mode.owner())? } else { IdMaps::none() };
        let (ours, theirs) = channel::pair().during(Step::Init, "control socket")?;
        let birthplace = group.as_ref().and_then(Group::birthplace);
        match sys::fork(mode.namespaces(&plan), birthplace).during(Step::Namespaces, "for the sandbox")? {
            Side::Parent { pid, pidfd } => Ok((plan, mode, pid, pidfd, Control::new(ours))),
            Side::Child => {
                drop(ours);
                Confinement {
                    plan: &plan,
                    mode,
                    id_maps: &id_maps,
                    cgroup_joins: group.as_ref().map_or(&[], Group::joins),
                    init: shared.init.as_fd(),
                    control: Control::new(theirs),
                }
                .enter()
            }
        }
    }

    pub fn start(&mut self, command: Command, stage: Stage, fds: Vec<OwnedFd>, shared: &Shared) {
        if !matches!(self.phase, Phase::Ready) || fds.len() != 3 {
            return self.refuse(Error::because(Step::Command, &command.argv.join(" "), "the sandbox is not ready"));
        }
        if let Err(error) = self.try_start(&command, stage, &fds, shared) {
            self.refuse(error);
        }
    }

    fn try_start(&mut self, command: &Command, stage: Stage, fds: &[OwnedFd], shared: &Shared) -> Result<()> {
        let mut joins = Vec::new();
        if let (Stage::Compile, Some(_), Ok(tree)) = (stage, &self.group, &shared.cgroups) {
            let group = tree.create(&format!("{}-{}-compile", shared.lease.token, self.plan.id))?;
            let joined = group.apply(&command.limits).and_then(|()| group.all_joins());
            self.stage_group = Some(group);
            joins = joined?;
        }
        let all: Vec<BorrowedFd<'_>> = fds.iter().chain(&joins).map(AsFd::as_fd).collect();
        let before = self.active_group().map(Group::counters).unwrap_or_default();
        self.control.start(COMMAND, command, true, &all).during(Step::Command, command.argv.join(" "))?;
        let started = Instant::now();
        let deadline = started + Duration::from_millis(command.limits.timeout_ms);
        self.phase = Phase::Running(Running { started, deadline, timed_out: false, errno: None, before });
        Ok(())
    }

    fn active_group(&self) -> Option<&Group> {
        self.stage_group.as_ref().or(self.group.as_ref())
    }

    fn refuse(&mut self, error: Error) {
        self.events.push_back((Event::Refused { sandbox: self.handle, error }, None));
    }

    /// What the loop shall wait for on behalf of this sandbox.
    pub fn wanted(&self) -> Vec<PollFd<'_>> {
        if matches!(self.phase, Phase::Gone) {
            return Vec::new();
        }
        vec![PollFd::new(self.control.as_fd(), PollFlags::POLLIN), PollFd::new(self.pidfd.as_fd(), PollFlags::POLLIN)]
    }

    pub fn deadline(&self) -> Option<Instant> {
        match &self.phase {
            Phase::SettingUp { deadline } => Some(*deadline),
            Phase::Running(running) if !running.timed_out => Some(running.deadline),
            _ => None,
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
        if self.deadline().is_some_and(|deadline| now >= deadline) {
            match &mut self.phase {
                Phase::Running(running) => running.timed_out = true,
                _ => self.refuse(Error::because(Step::Init, "in time", "setting up the sandbox took too long")),
            }
            self.kill();
        }
    }

    fn read_reports(&mut self, shared: &Result<Shared>) {
        // Nothing there, or the end: the process handle tells about that.
        if !self.control.fill().unwrap_or(false) {
            return;
        }
        loop {
            match self.control.next() {
                Ok(Some(report)) => self.take_report(report, shared),
                Ok(None) => return,
                Err(_) => return self.kill(),
            }
        }
    }

    fn take_report(&mut self, report: Report, shared: &Result<Shared>) {
        match report {
            Report::SetupFailed(error) => self.refuse(error),
            Report::Workspace(workspace) => self.workspace = Some(workspace),
            Report::Ready => self.take_ready(shared),
            Report::Started => self.events.push_back((Event::Started { sandbox: self.handle }, None)),
            Report::StartFailed { errno } => {
                if let Phase::Running(running) = &mut self.phase {
                    running.errno = Some(errno);
                }
            }
            Report::Ended { code, status } => self.finish(exit_of(code, status)),
        }
    }

    /// Nothing is released into a sandbox that does not look right from outside.
    fn take_ready(&mut self, shared: &Result<Shared>) {
        let tree = shared.as_ref().ok().and_then(|shared| shared.cgroups.as_ref().ok());
        match verify::inspect(self.pid, &self.plan, self.mode, tree.zip(self.group.as_ref())) {
            Ok(report) => {
                let Owner { uid, gid } = self.mode.owner();
                self.phase = Phase::Ready;
                let opened = Opened { uid, gid, report };
                self.events.push_back((Event::Opened { sandbox: self.handle, opened }, self.workspace.take()));
            }
            Err(error) => {
                self.refuse(error);
                self.kill();
            }
        }
    }

    fn reap(&mut self) {
        match waitpid(Pid::from_raw(self.pid), Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => {}
            _ => {
                if matches!(self.phase, Phase::SettingUp { .. }) && self.events.is_empty() {
                    self.refuse(Error::because(Step::Init, "init", "it ended while it was being set up"));
                }
                self.finish(Exit::Killed);
                self.phase = Phase::Gone;
            }
        }
    }

    /// The command is over and everything it started too.
    fn finish(&mut self, exit: Exit) {
        let Phase::Running(running) = &self.phase else { return };
        let wall = running.started.elapsed();
        let now = self.active_group().map(Group::counters);
        let counted = now.unwrap_or_default();
        let outcome = Outcome {
            exit: running.errno.map_or(exit, |errno| Exit::NotStarted { errno }),
            timed_out: running.timed_out,
            oom_kills: counted.oom_kills.saturating_sub(running.before.oom_kills),
            wall_micros: u64::try_from(wall.as_micros()).unwrap_or(u64::MAX),
            cpu_micros: counted.cpu_micros.saturating_sub(running.before.cpu_micros),
            memory_peak: now.map(|counted| counted.memory_peak),
            processes_peak: now.map(|counted| counted.processes_peak),
        };
        self.phase = Phase::Ready;
        if let Some(Err(error)) = self.stage_group.take().map(Group::remove) {
            self.refuse(error);
        }
        self.events.push_back((Event::Ended { sandbox: self.handle, outcome }, None));
    }

    /// Kills init, and with it the whole process namespace; the cgroup too, should that ever not be all.
    pub fn kill(&mut self) {
        for group in [&self.stage_group, &self.group].into_iter().flatten() {
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
        let removed = self.group.map_or(Ok(()), Group::remove);
        // An id whose processes might live on is never given to anyone else.
        if let (Ok(shared), Mode::Root(owner), Ok(())) = (shared, self.mode, removed) {
            shared.lease.release_uid(owner.uid);
        }
    }
}

fn exit_of(code: i32, status: i32) -> Exit {
    if code == libc::CLD_EXITED { Exit::Code(status) } else { Exit::Signal(status) }
}
