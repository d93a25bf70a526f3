//! One command of a sandbox, as its keeper sees it: what it may use, when it must end, how it did.

use std::time::{Duration, Instant};

use crate::cgroup::{Counters, Group, Meter, Part};
use crate::error::{Error, Result};
use crate::insistence::Insistence;
use crate::keeper::watch::Watched;
use crate::protocol::{Exit, Outcome, Role, Start};

/// How long the news of a killed command's end may take before everything around it is killed too. When it is killed does not
/// depend on it; on a busy machine others must not pay for news that are late.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long init may take to execute a command. It waits until that has happened, and code can stop the new process before: that
/// is no harm but to its own sandbox, which is ended then.
const START_TIME: Duration = Duration::from_secs(10);

pub(super) struct Running {
    pub role: Role,
    started: Instant,
    /// When init must have executed it.
    start_by: Option<Instant>,
    deadline: Option<Instant>,
    timed_out: bool,
    /// Of a kernel's runs the engine looks after that.
    insistence: Option<Insistence>,
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
    pub meter: Option<Meter>,
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
            start_by: None,
            deadline,
            timed_out: false,
            insistence: (start.role != Role::Kernel).then(|| Insistence::new(started)),
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

    /// Init has been told to execute it.
    pub fn await_start(&mut self) {
        self.start_by = Some(self.started + START_TIME);
    }

    /// Init has executed it.
    pub fn note_start(&mut self) {
        self.start_by = None;
    }

    /// The next moment at which something has to be done about it.
    pub fn deadline(&self) -> Option<Instant> {
        let end = self.end_by();
        let look = self.insistence.as_ref().map(Insistence::next);
        end.into_iter().chain(self.start_by).chain(look).min()
    }

    fn end_by(&self) -> Option<Instant> {
        match self.killed {
            Some(killed) => Some(killed + PATIENCE),
            None => self.deadline,
        }
    }

    /// Whether it tries without end to have more processes than it may, where that has been found out just now.
    pub fn insists(&mut self, now: Instant) -> Option<bool> {
        self.insistence.as_mut()?.look(now, self.meter.as_ref())
    }

    /// What is due: nothing, its end, or that of everything around it.
    pub fn due(&mut self, now: Instant) -> Due {
        if self.end_by().is_none_or(|deadline| now < deadline) {
            let never = self.start_by.take_if(|by| *by <= now);
            return never.map_or(Due::Nothing, |_| Due::NeverStarted);
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

    /// Removes the group of a compile stage. What a command beside others left running goes on in its part, which is returned.
    pub fn remove(self) -> Result<Option<Part>> {
        self.group.map_or(Ok(()), Group::remove)?;
        Ok(self.part)
    }

    pub fn groups(&self) -> Option<&Group> {
        self.group.as_ref()
    }
}

pub(super) enum Due {
    Nothing,
    End,
    EndOfAll,
    /// It is refused, and everything around it ended.
    NeverStarted,
}

/// As init tells it.
pub(super) fn exit_of(code: i32, status: i32) -> Exit {
    if code == libc::CLD_EXITED {
        Exit::Code(status)
    } else {
        Exit::Signal(status)
    }
}

/// As the kernel tells it of a child.
pub(super) fn exit_of_status(status: i32) -> Exit {
    if libc::WIFEXITED(status) {
        Exit::Code(libc::WEXITSTATUS(status))
    } else {
        Exit::Signal(libc::WTERMSIG(status))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Command;
    use crate::protocol::Stage;

    fn beside() -> Running {
        let command = Command {
            argv: vec!["true".into()],
            env: Vec::new(),
            cwd: "/".into(),
            limits: belljar_spec::Limits {
                timeout_ms: 600_000,
                memory_bytes: 1 << 30,
                cpus: 1.0,
                processes: 10,
                output_bytes: 1 << 20,
                disk_bytes: 1 << 20,
                open_files: 100,
                cpu_shares: None,
            },
        };
        let start = Start {
            id: 1,
            command,
            role: Role::Beside,
            stage: Stage::Run,
            zygote: None,
            early: false,
        };
        let place = Place {
            group: None,
            part: None,
            meter: None,
        };
        Running::new(&start, place)
    }

    #[test]
    fn what_init_does_not_execute_in_time_is_given_up() {
        let mut running = beside();
        running.await_start();
        let by = running.started + START_TIME;
        running.insistence = None;
        assert_eq!(running.deadline(), Some(by));
        let just_before = by.checked_sub(Duration::from_millis(1)).expect("time");
        assert!(matches!(running.due(just_before), Due::Nothing));
        assert!(matches!(running.due(by), Due::NeverStarted));
        assert!(matches!(running.due(by), Due::Nothing), "said once");

        let mut running = beside();
        running.await_start();
        running.note_start();
        assert!(matches!(running.due(by), Due::Nothing));
    }

    #[test]
    fn how_a_child_ended_has_its_number() {
        assert_eq!(exit_of_status(3 << 8), Exit::Code(3));
        assert_eq!(exit_of_status(11), Exit::Signal(11));
        assert_eq!(exit_of_status(40), Exit::Signal(40));
    }
}
