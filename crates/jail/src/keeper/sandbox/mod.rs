//! One sandbox as its keeper sees it: being made, ready, ending, gone; and the commands in it.

mod behind;
mod ending;
mod making;
mod reports;
mod starting;

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use belljar_spec::{Limits, Report, Weakening};

use super::command::{Due, Running};
use super::networks::Reusable;
use super::shared::Shared;
use super::watch::{Watch, Who};
use crate::beneath::Found;
use crate::cgroup::{Group, InForce, Meter, Part};
use crate::confine::{Mode, Network};
use crate::control::Control;
use crate::core::Cores;
use crate::doors;
use crate::error::{Error, Result, Step};
use crate::plan::{Owner, Plan};
use crate::protocol::{CommandId, Event, Handle, Signal, Start};
use crate::sys;
use crate::verify::Surroundings;

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
}
