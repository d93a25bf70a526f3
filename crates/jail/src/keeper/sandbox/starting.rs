//! How commands start in a sandbox: as copies of a zygote, or executed by its init.

use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::fchown;
use std::time::{Duration, Instant};

use super::{Phase, Queued, Sandbox};
use crate::cgroup::Group;
use crate::confine::{Mode, Network};
use crate::error::{Context, Error, Result, Step};
use crate::keeper::command::{Copy, Place, Running};
use crate::keeper::shared::Shared;
use crate::keeper::watch::{Watch, Who};
use crate::keeper::zygote::{Order, Waiting};
use crate::protocol::{CommandId, Event, Role, Stage, Start};
use crate::seccomp;
use crate::sys;
use crate::verify;

/// How long a copy may take for its first act: it may have to wait for a core.
const LONE_TIME: Duration = Duration::from_secs(2);
const LONE_PAUSE: Duration = Duration::from_micros(500);

impl Sandbox {
    /// Starts a command, or keeps it until the sandbox has been verified.
    pub fn start(&mut self, start: Start, fds: Vec<OwnedFd>, shared: &mut Shared) {
        let cold = None;
        let queued = Queued { start, fds, cold };
        if self.is_coming() {
            self.queued.push(queued);
        } else {
            self.start_queued(queued, shared);
        }
    }

    pub(super) fn start_queued(&mut self, queued: Queued, shared: &mut Shared) {
        // Nothing of the code's runs beside a copy that is on its way: it could take the time that the copy needs to get there, and
        // the interpreter that is copied stands still until then, for all.
        if self.ordered.is_some() {
            return self.queued.push(queued);
        }
        let Queued { start, fds, cold } = queued;
        let id = start.id;
        if let Err(error) = self.check_start(&start, &fds) {
            return self.refuse(Some(id), error);
        }
        if cold.is_some() {
            return self.start_cold(start, fds, cold, shared);
        }
        if let Err(cold) = self.order_copy(start, fds, &[], shared) {
            let wanted = cold.start.zygote.is_some();
            let reason = "it has ended, or has more threads than one, or is of another kind, or something runs in \
                          the sandbox already";
            let reason =
                wanted.then(|| Error::because(Step::Zygote, "the warm interpreter", reason));
            self.start_cold(cold.start, cold.fds, reason, shared);
        }
    }

    /// Orders the kernel that somebody waits for as soon as there are namespaces to enter, while the sandbox's first process gives
    /// up its rights and becomes init. The copy has given up its own before it is one, and hears nothing before both have been looked at.
    pub(super) fn order_ahead(&mut self, shared: &mut Result<Shared>) {
        let Ok(shared) = shared else { return };
        // An inherited network belongs to another user namespace, and can be entered only together with all the others.
        if self.network == Network::Inherited {
            return;
        }
        let urgent = |queued: &Queued| queued.start.zygote.is_some() && !queued.start.early;
        let Some(at) = self.queued.iter().position(urgent) else {
            return;
        };
        let Ok(namespaces) = verify::open_namespaces(self.pid) else {
            return;
        };
        let Queued { start, fds, cold } = self.queued.remove(at);
        let unordered = match self.check_descriptors(&start, &fds) {
            Ok(()) => self.order_copy(start, fds, &namespaces, shared).err(),
            Err(error) => return self.refuse(Some(start.id), error),
        };
        if let Some(waiting) = unordered {
            let Waiting { start, fds, .. } = *waiting;
            self.queued.insert(at, Queued { start, fds, cold });
        }
    }

    /// Sends what has waited for a sandbox that has been verified to where init will find it first of all.
    pub(super) fn start_ahead(&mut self, shared: &Shared) {
        for queued in std::mem::take(&mut self.queued) {
            let Queued { start, fds, cold } = queued;
            // A copy enters by init, which nobody but us may look into before it is there.
            if self.ordered.is_some() || start.zygote.is_some() || cold.is_some() {
                self.queued.push(Queued { start, fds, cold });
                continue;
            }
            let checked = self.check_descriptors(&start, &fds);
            if let Err(error) = checked.and_then(|()| self.try_start(&start, &fds, None, shared)) {
                self.refuse(Some(start.id), error);
            }
        }
    }

    /// Has the command executed by init.
    pub fn start_cold(
        &mut self,
        start: Start,
        fds: Vec<OwnedFd>,
        cold: Option<Error>,
        shared: &Shared,
    ) {
        self.commands.remove(&start.id);
        self.ordered.take_if(|ordered| *ordered == start.id);
        if self.is_coming() {
            return self.queued.push(Queued { start, fds, cold });
        }
        if let Err(error) = self.try_start(&start, &fds, cold, shared) {
            self.refuse(Some(start.id), error);
        }
    }

    fn check_start(&self, start: &Start, fds: &[OwnedFd]) -> Result<()> {
        if !matches!(self.phase, Phase::Ready) {
            return Err(unfit(start, "the sandbox is not ready"));
        }
        self.check_descriptors(start, fds)
    }

    fn check_descriptors(&self, start: &Start, fds: &[OwnedFd]) -> Result<()> {
        if fds.len() != 3 + usize::from(start.role == Role::Kernel) {
            let reason = "it came with a wrong number of descriptors";
            return Err(unfit(start, reason));
        }
        if self.commands.contains_key(&start.id) {
            return Err(unfit(start, "another command has its number"));
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
        namespaces: &[OwnedFd],
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
        // Before anything has been started there is nothing in it that could run, but for what init will find.
        let is_quiet =
            || self.commands.is_empty() && (!self.started || group.meter().has_one_process());
        if !is_quiet() {
            return Err(waiting);
        }
        let mut joins = std::mem::take(&mut self.joins);
        if joins.is_empty() {
            let Ok(opened) = group.joins() else {
                return Err(waiting);
            };
            joins = opened;
        }
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
            namespaces,
        };
        match zygote.order(waiting, &order) {
            Ok(()) => {
                self.commands.insert(id, running);
                self.ordered = Some(id);
                self.started = true;
                Ok(())
            }
            Err(waiting) => Err(waiting),
        }
    }

    /// A zygote has forked itself into this sandbox.
    pub fn take_copy(&mut self, id: CommandId, pid: i32) {
        self.arrived = Some((id, pid));
    }

    /// Nobody knows whether a copy has come, or will. It could hear what another kernel is told, so there is none in this sandbox.
    pub fn lose_copy(&mut self, id: CommandId, error: Error) {
        self.ordered = None;
        self.commands.remove(&id);
        if self.is_coming() {
            return self.fail(error);
        }
        self.refuse(Some(id), error);
        self.kill();
    }

    /// Takes in a copy that has arrived, once the sandbox is ready. Nothing is said about it before it has been looked at, and
    /// nothing else is started.
    pub fn adopt(&mut self, shared: &mut Result<Shared>, watch: &Watch) {
        let is_lost = self.closing || self.control_ended;
        if self.is_coming() && !is_lost {
            return;
        }
        let Ok(shared) = shared else { return };
        if is_lost {
            self.look_again = None;
        } else if self.is_not_lone_yet(shared) {
            return;
        }
        if let Some((id, pid)) = self.arrived.take() {
            self.ordered = None;
            self.lone_by = None;
            if matches!(self.phase, Phase::Ready) && !is_lost {
                self.inspect_and_keep(id, pid, shared, watch);
            } else {
                self.turn_away(id, pid, shared);
            }
        }
        if self.ordered.is_none() && !self.is_coming() {
            for queued in std::mem::take(&mut self.queued) {
                self.start_queued(queued, shared);
            }
        }
    }

    /// Whether the copy that has arrived is to take one filter more, and has had no time for that. Code that is given little of it
    /// has to wait for that, and nobody else: it is looked at again.
    fn is_not_lone_yet(&mut self, shared: &Shared) -> bool {
        let now = Instant::now();
        let waits = match (self.arrived, self.plan.closed.is_some()) {
            (Some((_, pid)), true) if matches!(self.phase, Phase::Ready) => {
                let until = *self.lone_by.get_or_insert(now + LONE_TIME);
                let usual = filters_of_copies(shared);
                let is_lone = usual.and_then(|usual| verify::has_more_filters(pid, usual));
                now < until && matches!(is_lone, Ok(false))
            }
            _ => false,
        };
        self.look_again = waits.then(|| now + LONE_PAUSE);
        waits
    }

    /// Ends it if it is what it should be: whoever named it may have named anything. As long as it waits to be reaped, init cannot
    /// end.
    fn turn_away(&mut self, id: CommandId, pid: i32, shared: &mut Shared) {
        if let Ok(pidfd) = sys::open_process(pid)
            && sys::is_child(pidfd.as_fd())
            && verify::share_processes(pid, self.pid)
        {
            let _ = sys::signal_process(pidfd.as_fd(), libc::SIGKILL);
        }
        shared.expect_strays();
        self.commands.remove(&id);
    }

    fn inspect_and_keep(&mut self, id: CommandId, pid: i32, shared: &mut Shared, watch: &Watch) {
        let seen = sys::open_process(pid)
            .during(Step::Zygote, "its copy")
            .and_then(|pidfd| {
                if !sys::is_child(pidfd.as_fd()) {
                    let reason = "it is no child of the keeper's";
                    return Err(Error::because(Step::Zygote, "its copy", reason));
                }
                self.inspect_copy(pid, shared)?;
                if self.plan.closed.is_some() {
                    verify::must_have_more_filters(pid, filters_of_copies(shared)?)?;
                }
                Ok(pidfd)
            });
        match (seen, self.commands.get_mut(&id)) {
            (Ok(pidfd), Some(running)) => {
                running.copy = Some(Copy {
                    pid,
                    pidfd: Some(watch.keep(pidfd, Who::Sandbox(self.handle))),
                    exit: None,
                });
                self.say_started(id, None);
            }
            (seen, _) => {
                self.turn_away(id, pid, shared);
                if let Err(error) = seen {
                    self.refuse(Some(id), error);
                }
                self.kill();
            }
        }
    }

    pub(super) fn say_started(&mut self, command: CommandId, cold: Option<Error>) {
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
        self.sweep_parts();
        let (place, joins) = self.place(start, shared)?;
        let all: Vec<BorrowedFd<'_>> = fds.iter().chain(&joins).map(AsFd::as_fd).collect();
        let mut running = Running::new(start, place);
        running.cold = cold;
        running.await_start();
        let sent = self.control.start(start, self.plan.closed.is_some(), &all);
        let sent = sent.map_err(|error| {
            // Code in the sandbox can bring that about, nothing else can.
            let is_full = error.kind() == ErrorKind::WouldBlock;
            let step = if is_full { Step::Busy } else { Step::Command };
            Error::new(step, "the command", &error)
        });
        match sent {
            Ok(()) => {
                self.commands.insert(start.id, running);
                self.started = true;
                self.beside |= matches!(start.role, Role::Beside | Role::Terminal);
                Ok(())
            }
            Err(error) => {
                self.left.extend(running.remove()?);
                Err(error)
            }
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
            let limits = &start.command.limits;
            let joined = group
                .apply(limits, false)
                .and_then(|_| self.limit_sockets(&group, limits))
                .and_then(|_| group.all_joins());
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
                Err(error) => {
                    part.try_remove();
                    return Err(error);
                }
            }
            place.part = Some(part);
        }
        Ok((place, joins))
    }
}

/// How many filters a copy has that may start processes.
fn filters_of_copies(shared: &Shared) -> Result<u32> {
    Ok(shared.known_host()?.filters_with(seccomp::PARTS))
}

fn unfit(start: &Start, reason: &str) -> Error {
    Error::because(Step::Command, start.command.argv.join(" "), reason)
}
