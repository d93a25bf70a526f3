//! One command of a sandbox, as its keeper sees it: what it may use, when it must end, how it did.

use std::time::{Duration, Instant};

use crate::cgroup::{Counters, Group, Meter, Part};
use crate::error::{Error, Result};
use crate::keeper::watch::Watched;
use crate::protocol::{Exit, Outcome, Role, Start};

/// How long the news of a killed command's end may take before everything around it is killed too. When it is killed does not
/// depend on it; on a busy machine others must not pay for news that are late.
const PATIENCE: Duration = Duration::from_secs(2);

pub(super) struct Running {
    pub role: Role,
    started: Instant,
    deadline: Option<Instant>,
    timed_out: bool,
    /// When it was killed, so that it is known when that did not help.
    killed: Option<Instant>,
    /// Set when the program could not be executed.
    pub errno: Option<i32>,
    /// How it ended, where that is known before everything has.
    pub exit: Option<Exit>,
    /// Of the compile stage: what it used is not counted as the run's.
    group: Option<Group>,
    /// Of a command beside others.
    part: Option<Part>,
    meter: Option<Meter>,
    before: Counters,
    /// Of a kernel that was copied from a zygote: no child of init's, but of ours.
    pub copy: Option<Copy>,
    /// Why it was started cold.
    pub cold: Option<Error>,
}

/// A process that a zygote forked into the sandbox.
pub(super) struct Copy {
    pub pid: i32,
    /// Until it has ended.
    pub pidfd: Option<Watched>,
    /// How it ended. The command is over when all else in the sandbox has ended too.
    pub exit: Option<Exit>,
}

/// Where a command is counted and killed.
pub(super) struct Place {
    pub group: Option<Group>,
    pub part: Option<Part>,
    pub meter: Option<Meter>,
}

impl Running {
    pub fn new(start: &Start, place: Place) -> Self {
        let Place { group, part, meter } = place;
        let started = Instant::now();
        // A kernel waits for runs, and each of those has a deadline of its own. At a terminal somebody sits.
        let deadline = (!matches!(start.role, Role::Kernel | Role::Terminal))
            .then(|| started + Duration::from_millis(start.command.limits.timeout_ms));
        let before = meter.as_ref().map(Meter::read_brief).unwrap_or_default();
        Self {
            role: start.role,
            started,
            deadline,
            timed_out: false,
            killed: None,
            errno: None,
            exit: None,
            group,
            part,
            meter,
            before,
            copy: None,
            cold: None,
        }
    }

    /// The next moment at which something has to be done about it.
    pub fn deadline(&self) -> Option<Instant> {
        match self.killed {
            Some(killed) => Some(killed + PATIENCE),
            None => self.deadline,
        }
    }

    /// What is due: nothing, its end, or that of everything around it.
    pub fn due(&mut self, now: Instant) -> Due {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return Due::Nothing;
        }
        match (self.killed, self.role) {
            // Nothing else lives in the sandbox, so there is no need to be gentle.
            (None, Role::Alone) => {
                self.timed_out = true;
                self.killed = Some(now + Duration::from_hours(1));
                Due::EndOfAll
            }
            (None, _) => {
                self.timed_out = true;
                Due::End
            }
            (Some(_), _) => {
                self.killed = Some(now + Duration::from_hours(1));
                Due::EndOfAll
            }
        }
    }

    /// Kills what is in its own groups. Init is told apart from this.
    pub fn kill(&mut self, now: Instant) {
        self.killed.get_or_insert(now);
        if let Some(part) = &self.part {
            part.kill();
        }
        if let Some(group) = &self.group {
            group.unthrottle();
            group.kill();
        }
    }

    /// It is under way, and there is time.
    pub fn prepare(&self) {
        if let Some(meter) = &self.meter {
            meter.prepare();
        }
    }

    pub fn was_killed(&self) -> bool {
        self.killed.is_some()
    }

    pub fn outcome(&self, exit: Exit) -> Outcome {
        let now = self.meter.as_ref().map(Meter::read_final);
        let counted = now.unwrap_or_default();
        let micros = self.started.elapsed().as_micros();
        Outcome {
            exit: self.errno.map_or(exit, |errno| Exit::NotStarted { errno }),
            timed_out: self.timed_out,
            oom_kills: counted.oom_kills.saturating_sub(self.before.oom_kills),
            wall_micros: u64::try_from(micros).unwrap_or(u64::MAX),
            cpu_micros: now
                .map(|counted| counted.cpu_micros.saturating_sub(self.before.cpu_micros)),
            memory_peak: now.map(|counted| counted.memory_peak),
            processes_peak: now.map(|counted| counted.processes_peak),
        }
    }

    /// Removes the group of a compile stage. What a command beside others left running goes on, in its part.
    pub fn remove(self) -> Result<()> {
        self.group.map_or(Ok(()), Group::remove)?;
        match self.part {
            Some(part) if part.is_empty() => part.remove(),
            _ => Ok(()),
        }
    }

    pub fn groups(&self) -> Option<&Group> {
        self.group.as_ref()
    }
}

pub(super) enum Due {
    Nothing,
    End,
    EndOfAll,
}

/// As init tells it.
pub(super) fn exit_of(code: i32, status: i32) -> Exit {
    if code == libc::CLD_EXITED {
        Exit::Code(status)
    } else {
        Exit::Signal(status)
    }
}
