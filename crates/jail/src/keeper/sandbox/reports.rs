//! What a sandbox's init reports, and what the kernel says about the ends of its processes.

use std::io::ErrorKind;
use std::time::Instant;

use belljar_spec::Weakening;

use super::{Phase, Sandbox};
use crate::cgroup::Group;
use crate::confine::{Mode, Network};
use crate::control::Report;
use crate::doors;
use crate::error::{Error, Result, Step};
use crate::keeper::command::{Running, exit_of, exit_of_status};
use crate::keeper::shared::Shared;
use crate::plan::Owner;
use crate::protocol::{CommandId, Event, Exit, Opened, Role};
use crate::seccomp;
use crate::sys;
use crate::verify::{self, Subject};

impl Sandbox {
    pub(super) fn read_reports(&mut self, shared: &mut Result<Shared>) {
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
            Report::Placed => {
                self.order_ahead(shared);
                self.look_around(shared);
            }
            Report::Locked => {
                // Those that it shall keep it has more of until it is init.
                if let Ok(shared) = shared
                    && self.plan.keeps(Weakening::Capabilities)
                {
                    let inspected = self.inspect(shared);
                    if inspected.is_ok() {
                        self.start_ahead(shared);
                    }
                    self.inspected = Some(inspected);
                }
            }
            Report::Ready => self.take_ready(shared),
            Report::Started { id } => {
                let cold = self.commands.get_mut(&id).and_then(|running| {
                    running.note_start();
                    running.cold.take()
                });
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
        let seen = self.inspected.take();
        let inspected = seen.unwrap_or_else(|| self.inspect(shared));
        match (inspected, self.workspace.take()) {
            (Ok(report), Some((workspace, inputs))) => {
                let Owner { uid, gid } = self.owner;
                self.phase = Phase::Ready;
                for queued in std::mem::take(&mut self.queued) {
                    self.start_queued(queued, shared);
                }
                self.joins.clear();
                // Those that init finds waiting for it. When they have ended somebody waits.
                self.commands.values().for_each(Running::prepare);
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

    /// While it gives up its rights: what is seen now stays so, and need not be looked for when somebody waits.
    fn look_around(&mut self, shared: &Result<Shared>) {
        let Ok(shared) = shared else { return };
        let subject = self.subject(self.pid, self.filters, shared);
        self.surroundings = Some(subject.and_then(|subject| verify::look_around(&subject)));
        self.note_network(shared);
    }

    /// Holds on to a network that others can use after this sandbox: one that code has no sockets for.
    fn note_network(&mut self, shared: &Shared) {
        if let Mode::Enterable { by } = self.mode
            && self.network == Network::Own
            && !self.plan.network
            && shared.networks.has_room()
            && let Ok(network) = doors::namespace_of_process(self.pid, "net")
        {
            self.reusable = Some(shared.networks.hold(by, network));
        }
    }

    fn inspect(&mut self, shared: &Shared) -> Result<belljar_spec::Report> {
        let seen = self.surroundings.take();
        let subject = self.subject(self.pid, self.filters, shared)?;
        let around = seen.unwrap_or_else(|| verify::look_around(&subject))?;
        let report = verify::inspect(&subject, &around)?;
        self.surroundings = Some(Ok(around));
        Ok(report)
    }

    /// A copy is held against init, which has been inspected.
    pub(super) fn inspect_copy(&self, pid: i32, shared: &Shared) -> Result<()> {
        let Some(Ok(around)) = &self.surroundings else {
            let reason = "the sandbox has not been looked at";
            return Err(Error::because(Step::Verify, "a copy", reason));
        };
        verify::inspect_copy(&self.subject(pid, seccomp::PARTS, shared)?, around)
    }

    fn subject<'a>(&'a self, pid: i32, filters: u32, shared: &'a Shared) -> Result<Subject<'a>> {
        let host = shared.known_host()?;
        let cgroup = shared.cgroups.as_ref().ok().zip(self.group.as_ref());
        Ok(Subject {
            pid,
            plan: &self.plan,
            mode: self.mode,
            owner: self.owner,
            filters,
            cgroup: cgroup.map(|(tree, group)| verify::Cgroup {
                version: tree.version(),
                memberships: group.memberships(),
                limits: &self.limits_in_force,
            }),
            host,
        })
    }

    /// A copy is a child of ours. With it everything in the sandbox ends, which init sees to.
    pub(super) fn reap_copies(&mut self) {
        for running in self.commands.values_mut() {
            let Some(copy) = running.copy.as_mut().filter(|copy| copy.exit.is_none()) else {
                continue;
            };
            let exit = match sys::reap(copy.pid) {
                Ok(None) => continue,
                Ok(Some(status)) => exit_of_status(status),
                Err(_) => Exit::Killed,
            };
            copy.exit = Some(exit);
            copy.pidfd = None;
            if !self.closing {
                running.kill(Instant::now());
                let _ = self.control.kill_all();
            }
        }
    }

    pub(super) fn reap(&mut self) {
        if !matches!(sys::reap(self.pid), Ok(None)) {
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
    pub(super) fn finish(&mut self, id: CommandId, exit: Exit) {
        // Who closes a sandbox waits for nothing in it: nobody asks what it used, and no limits have to hold again.
        if self.silent {
            return;
        }
        let Some(mut running) = self.commands.remove(&id) else {
            return;
        };
        // How a copy ended is known, also if everything around it had to be ended then.
        let of_copy = running.copy.as_ref().and_then(|copy| copy.exit.clone());
        let exit = running.exit.take().or(of_copy).unwrap_or(exit);
        let outcome = running.outcome(exit);
        self.take_back();
        if self.unthrottled && running.role != Role::Alone && !self.closing {
            self.apply(self.plan.limits);
        }
        // Whoever waits for the end does not wait until its files have been closed.
        self.meters.extend(running.meter.take());
        match running.remove() {
            Ok(part) => self.left.extend(part),
            Err(error) => self.refuse(Some(id), error),
        }
        self.sweep_parts();
        self.events.push_back((
            Event::Ended {
                sandbox: self.handle,
                command: id,
                outcome,
            },
            Vec::new(),
        ));
    }
}
