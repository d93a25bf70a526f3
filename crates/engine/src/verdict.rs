//! From what the keeper counted to what the caller is told.

use std::time::Duration;

use belljar_jail::{Exit, Outcome};
use belljar_spec::{
    Connection, Limits, Report, RunId, RunResult, SandboxId, Stage, State, Status, Usage,
    output_text,
};

use crate::command::no_program;
use crate::files::Collected;
use crate::output::Captured;

/// What came of the stages.
pub(crate) struct Done {
    pub language: String,
    pub runtime: String,
    pub compile: Option<Finished>,
    pub run: Option<Finished>,
    pub limits: Limits,
    pub compile_limits: Option<Limits>,
    pub collected: Collected,
    pub connections: Vec<Connection>,
    pub connections_omitted: u64,
}

/// How that is told which a compiler has not said.
pub(crate) const NO_PROGRAM: &str = "the compiler made no program that can be started";

/// One stage that has ended.
pub(crate) struct Finished {
    pub outcome: Outcome,
    pub stdout: Captured,
    pub stderr: Captured,
    pub start: Duration,
}

pub(crate) fn verdict(outcome: &Outcome) -> Status {
    match outcome.exit {
        // The kernel's word comes first: a program may die of it, hang on, or carry on without the child it lost.
        _ if outcome.oom_kills > 0 => Status::OutOfMemory,
        _ if outcome.timed_out => Status::TimedOut,
        Exit::Code(0) => Status::Ok,
        Exit::Code(_) | Exit::Signal(_) | Exit::NotStarted { .. } => Status::Failed,
        Exit::Killed => Status::Killed,
    }
}

impl Finished {
    /// A compiler that was content and has made nothing that can be run has failed, whatever it says. `run`: what was tried with it.
    pub fn has_made_no_program(&mut self, run: &Outcome) -> bool {
        let Some(error) = no_program(run) else {
            return false;
        };
        // Without the number, which is nobody's here.
        let error = error.to_string();
        let error = error.split(" (os error").next().unwrap_or_default();
        if self.stderr.bytes.last().is_some_and(|&last| last != b'\n') {
            self.stderr.bytes.push(b'\n');
        }
        let told =
            format!("{NO_PROGRAM}, as of a library or of code without an entry point ({error})\n");
        self.stderr.bytes.extend(told.into_bytes());
        self.outcome.exit = Exit::Code(1);
        true
    }
}

fn exit_numbers(exit: &Exit) -> (Option<i32>, Option<i32>) {
    match exit {
        Exit::Code(code) => (Some(*code), None),
        Exit::Signal(signal) => (None, Some(*signal)),
        Exit::Killed => (None, Some(9)),
        Exit::NotStarted { .. } => (None, None),
    }
}

fn usage(stage: &Finished) -> Usage {
    #[expect(
        clippy::cast_precision_loss,
        reason = "microseconds of a run are far below 2^52"
    )]
    let millis = |micros: u64| micros as f64 / 1000.0;
    Usage {
        wall_ms: millis(stage.outcome.wall_micros),
        cpu_ms: stage.outcome.cpu_micros.map(millis),
        memory_peak_bytes: stage.outcome.memory_peak,
        processes_peak: stage.outcome.processes_peak,
        start_ms: millis(u64::try_from(stage.start.as_micros()).unwrap_or(u64::MAX)),
    }
}

impl Done {
    pub fn into_result(self, (id, sandbox): (RunId, SandboxId), report: Report) -> RunResult {
        let compile = self
            .compile
            .zip(self.compile_limits)
            .map(|(stage, limits)| into_stage(stage, limits));
        // Where the compiler failed, the run has no output and no end of its own.
        let (run, status) = match self.run {
            Some(run) => {
                let status = verdict(&run.outcome);
                (Some(into_stage(run, self.limits)), status)
            }
            None => (None, Status::CompileFailed),
        };
        let failed_compile = if run.is_none() {
            compile.as_ref()
        } else {
            None
        };
        let (exit_code, signal) = run
            .as_ref()
            .or(failed_compile)
            .map_or((None, None), |s| (s.exit_code, s.signal));
        let run = run.unwrap_or_else(|| Stage {
            usage: compile.as_ref().map(|c| c.usage).unwrap_or_default(),
            ..empty_stage(&self.limits)
        });
        let (files, complete) = self.collected.listing();
        RunResult {
            id,
            sandbox,
            language: self.language,
            runtime: self.runtime,
            backend: report.backend,
            status,
            success: status == Status::Ok,
            exit_code,
            signal,
            stdout: run.stdout,
            stderr: run.stderr,
            stdout_base64: run.stdout_base64,
            stderr_base64: run.stderr_base64,
            stdout_truncated: run.stdout_truncated,
            stderr_truncated: run.stderr_truncated,
            compile,
            value: None,
            value_text: None,
            displays: Vec::new(),
            error: None,
            state: State::None,
            usage: run.usage,
            limits: self.limits,
            report,
            files,
            files_truncated: !complete,
            connections: self.connections,
            connections_omitted: self.connections_omitted,
            started_at: String::new(),
        }
    }
}

fn into_stage(stage: Finished, limits: Limits) -> Stage {
    let usage = usage(&stage);
    let (exit_code, signal) = exit_numbers(&stage.outcome.exit);
    let (stdout_truncated, stderr_truncated) = (stage.stdout.truncated, stage.stderr.truncated);
    let (stdout, stdout_base64) = output_text(stage.stdout.bytes);
    let (stderr, stderr_base64) = output_text(stage.stderr.bytes);
    Stage {
        status: verdict(&stage.outcome),
        exit_code,
        signal,
        stdout,
        stderr,
        stdout_base64,
        stderr_base64,
        stdout_truncated,
        stderr_truncated,
        usage,
        limits,
    }
}

fn empty_stage(limits: &Limits) -> Stage {
    Stage {
        status: Status::CompileFailed,
        exit_code: None,
        signal: None,
        stdout: String::new(),
        stderr: String::new(),
        stdout_base64: None,
        stderr_base64: None,
        stdout_truncated: false,
        stderr_truncated: false,
        usage: Usage::default(),
        limits: *limits,
    }
}
