//! One sandbox as its keeper sees it: being made, ready, running, ending, gone.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::fchown;
use std::time::{Duration, Instant};

use belljar_spec::Weakening;
use nix::poll::{PollFd, PollFlags};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::Shared;
use super::embryo::Embryo;
use crate::beneath::Found;
use crate::cgroup::{Counters, Group};
use crate::channel::{Control, Report};
use crate::confine::{Mode, Namespaces};
use crate::error::{Context, Error, Result, Step};
use crate::idmap::IdMaps;
use crate::plan::{Birth, Command, Owner, Plan};
use crate::protocol::{Event, Exit, Handle, Opened, Outcome, Stage};
use crate::sys;
use crate::verify::{self, Subject};

/// Setting up takes a millisecond; a host on which it takes this long is broken.
const SETUP_TIME: Duration = Duration::from_secs(20);
/// The id of the command; there is one at a time.
const COMMAND: u32 = 1;

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
    /// Of the compile stage, while it runs.
    stage_group: Option<Group>,
    workspace: Option<(OwnedFd, Vec<Found>)>,
    phase: Phase,
    /// A command that came before the sandbox was ready.
    queued: Option<(Command, Stage, Vec<OwnedFd>)>,
    closing: bool,
    events: VecDeque<(Event, Option<OwnedFd>)>,
}

enum Phase {
    SettingUp {
        deadline: Instant,
    },
    Ready,
    Running(Running),
    /// Refused and killed; its end is awaited.
    Dying,
    /// Init has been reaped, and with it everything in its process namespace.
    Gone,
}

struct Running {
    started: Instant,
    deadline: Instant,
    timed_out: bool,
    /// Set when the program could not be executed.
    errno: Option<i32>,
    /// How it ended, where that is known before everything has.
    exit: Option<Exit>,
    before: Counters,
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
                stage_group: None,
                workspace: None,
                phase: Phase::SettingUp {
                    deadline: Instant::now() + SETUP_TIME,
                },
                queued: None,
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
    pub fn start(&mut self, command: Command, stage: Stage, fds: Vec<OwnedFd>, shared: &Shared) {
        if matches!(self.phase, Phase::SettingUp { .. }) && self.queued.is_none() {
            self.queued = Some((command, stage, fds));
            return;
        }
        if !matches!(self.phase, Phase::Ready) || fds.len() != 3 {
            return self.refuse(Error::because(
                Step::Command,
                command.argv.join(" "),
                "the sandbox is not ready",
            ));
        }
        if let Err(error) = self.try_start(&command, stage, &fds, shared) {
            self.refuse(error);
        }
    }

    fn try_start(
        &mut self,
        command: &Command,
        stage: Stage,
        fds: &[OwnedFd],
        shared: &Shared,
    ) -> Result<()> {
        let mut joins = Vec::new();
        if let (Stage::Compile, Some(_), Ok(tree)) = (stage, &self.group, &shared.cgroups) {
            let group = tree.create(&format!("{}-compile-{}", shared.lease.token, self.handle))?;
            let joined = group
                .apply(&command.limits)
                .and_then(|()| group.all_joins());
            self.stage_group = Some(group);
            joins = joined?;
        }
        if let Mode::Root = self.mode {
            // Otherwise code could not reopen its own output as /dev/stdout.
            for fd in fds {
                fchown(fd, Some(self.owner.uid), Some(self.owner.gid))
                    .during(Step::Command, "standard descriptors")?;
            }
        }
        let all: Vec<BorrowedFd<'_>> = fds.iter().chain(&joins).map(AsFd::as_fd).collect();
        let before = self.active_group().map(Group::counters).unwrap_or_default();
        self.control
            .start(COMMAND, command, true, &all)
            .during(Step::Command, command.argv.join(" "))?;
        let started = Instant::now();
        let deadline = started + Duration::from_millis(command.limits.timeout_ms);
        self.phase = Phase::Running(Running {
            started,
            deadline,
            timed_out: false,
            errno: None,
            exit: None,
            before,
        });
        Ok(())
    }

    fn active_group(&self) -> Option<&Group> {
        self.stage_group.as_ref().or(self.group.as_ref())
    }

    fn refuse(&mut self, error: Error) {
        self.events.push_back((
            Event::Refused {
                sandbox: self.handle,
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
                phase => {
                    *phase = Phase::Dying;
                    let reason = "setting up the sandbox took too long";
                    self.refuse(Error::because(Step::Init, "in time", reason));
                }
            }
            self.kill();
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
            Report::SetupFailed(error) => self.refuse(error),
            Report::Workspace { workspace, inputs } => self.workspace = Some((workspace, inputs)),
            Report::Ready => self.take_ready(shared),
            Report::Started => self.events.push_back((
                Event::Started {
                    sandbox: self.handle,
                },
                None,
            )),
            Report::StartFailed { errno } => {
                if let Phase::Running(running) = &mut self.phase {
                    running.errno = Some(errno);
                }
            }
            Report::Ended { code, status } => {
                let exit = exit_of(code, status);
                match &mut self.phase {
                    // Init could not kill what is left: the cgroup is killed, and the end told when init has gone with it.
                    Phase::Running(running)
                        if !self.plan.keeps(Weakening::Pidns) && self.stage_group.is_none() =>
                    {
                        running.exit = Some(exit);
                        self.kill();
                    }
                    _ => self.finish(exit),
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
                if let Some((command, stage, fds)) = self.queued.take() {
                    self.start(command, stage, fds, shared);
                }
                let opened = Opened {
                    uid,
                    gid,
                    inputs,
                    report,
                };
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
                self.refuse(inspected.err().unwrap_or_else(no_workspace));
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
                self.refuse(Error::because(
                    Step::Init,
                    "init",
                    "it ended while it was being set up",
                ));
            }
            self.finish(Exit::Killed);
            self.phase = Phase::Gone;
        }
    }

    /// The command is over and everything it started too.
    fn finish(&mut self, exit: Exit) {
        let Phase::Running(running) = &self.phase else {
            return;
        };
        let wall = running.started.elapsed();
        let now = self.active_group().map(Group::counters);
        let counted = now.unwrap_or_default();
        let outcome = Outcome {
            exit: running
                .errno
                .map_or(exit, |errno| Exit::NotStarted { errno }),
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
        self.events.push_back((
            Event::Ended {
                sandbox: self.handle,
                outcome,
            },
            None,
        ));
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
        let mut groups = [self.stage_group, self.group].into_iter().flatten();
        let removed = groups.try_for_each(Group::remove);
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
        group.apply(&plan.limits)?;
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
