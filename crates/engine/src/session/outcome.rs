//! What a run showed and said, as a part of its result. All of it is claimed by the code.

use belljar_spec::{Cause, Display, ErrorInfo, Limits, RunId, RunResult, Status};

use super::running::End;
use super::{Observer, Session};
use crate::files::Collected;
use crate::kernel::{Done as Claim, Failure, VALUE_BYTES, cut};
use crate::sandbox::Sandbox;
use crate::verdict::{Done, Finished};

const MAX_DISPLAYS: usize = 256;
const MAX_DISPLAY_BYTES: usize = 32 << 20;
/// Kernels keep to less, each its own.
const MAX_ERROR_TEXT: usize = 64 << 10;
const MAX_TRACEBACK: usize = 1 << 20;

/// What was displayed so far.
#[derive(Default)]
pub(super) struct Shown {
    displays: Vec<Display>,
    bytes: usize,
}

impl Shown {
    /// Keeps a display, unless there have been too many or nobody has room for it.
    pub fn add(&mut self, display: &Display, observer: &mut dyn Observer) -> bool {
        let others = display.alternatives.iter().map(|one| one.data.len());
        let bytes = display.data.len() + others.sum::<usize>();
        let is_full = self.displays.len() == MAX_DISPLAYS || self.bytes + bytes > MAX_DISPLAY_BYTES;
        if is_full || !observer.has_room(bytes) {
            return false;
        }
        self.bytes += bytes;
        self.displays.push(display.clone());
        true
    }

    /// Completes the result of a whole program, whose end is a fact. What the kernel claims is added to that.
    pub fn fill_script(self, result: &mut RunResult, claim: Option<Box<Claim>>) {
        result.displays = self.displays;
        if let Some(done) = claim {
            result.value = done.value.filter(|value| !value.is_null());
            result.value_text = done.value_text.map(|text| cut(text, VALUE_BYTES));
            result.error = done.error.map(info);
        }
    }

    /// Completes a result that has the facts already.
    pub fn fill(self, result: &mut RunResult, end: End, interrupted: bool) {
        result.displays = self.displays;
        let fact = result.status;
        match end {
            End::Done(done) => {
                result.value = done.value.filter(|value| !value.is_null());
                result.value_text = done.value_text.map(|text| cut(text, VALUE_BYTES));
                result.error = done.error.map(info);
                if interrupted && done.interrupted && fact == Status::Failed {
                    result.status = Status::Killed;
                }
                if !done.ok && fact == Status::Ok {
                    result.status = Status::Failed;
                }
            }
            End::Died(_) => {
                result.error = Some(told(
                    "InterpreterDied",
                    match (result.exit_code, result.signal) {
                        (_, Some(signal)) => {
                            format!("the interpreter was ended by signal {signal} during the run")
                        }
                        (code, None) => format!(
                            "the interpreter exited during the run, with exit code {}",
                            code.unwrap_or_default()
                        ),
                    },
                ));
                // Nobody has said how the code ended, so it has not ended well.
                if fact == Status::Ok {
                    result.status = Status::Failed;
                }
            }
            End::Became(_) => {}
            End::Killed => {
                if !matches!(fact, Status::TimedOut | Status::OutOfMemory) {
                    result.status = Status::Killed;
                }
            }
            End::Forged => {
                result.status = Status::Killed;
                result.error = Some(told(
                    "ProtocolViolation",
                    "the code closed, wrote to, flooded or did not read the channel of its interpreter"
                        .into(),
                ));
            }
        }
        // An interpreter that was interrupted and goes on has no end of its own.
        if result.status == Status::TimedOut {
            result.exit_code = None;
        }
        result.success = result.status == Status::Ok;
    }
}

fn told(kind: &str, message: String) -> ErrorInfo {
    ErrorInfo {
        kind: kind.into(),
        message,
        ..ErrorInfo::default()
    }
}

fn cause(claimed: Cause) -> Cause {
    Cause {
        kind: cut(claimed.kind, MAX_ERROR_TEXT),
        message: cut(claimed.message, MAX_ERROR_TEXT),
    }
}

fn info(failure: Failure) -> ErrorInfo {
    ErrorInfo {
        kind: cut(failure.kind, MAX_ERROR_TEXT),
        message: cut(failure.message, MAX_ERROR_TEXT),
        traceback: cut(failure.traceback, MAX_TRACEBACK),
        line: failure.line,
        column: failure.column,
        causes: failure.causes.into_iter().map(cause).collect(),
        category: None,
        hint: None,
    }
}

impl Session {
    /// The facts about a run.
    pub(super) fn program_result(
        &self,
        id: RunId,
        sandbox: &Sandbox,
        compile: Option<(Finished, Limits)>,
        run: Option<Finished>,
        limits: Limits,
    ) -> RunResult {
        let (compile, compile_limits) = compile.unzip();
        let done = Done {
            language: self.toolchain.name.clone(),
            runtime: self.toolchain.version.clone(),
            compile,
            run,
            limits,
            compile_limits,
            collected: Collected {
                files: Vec::new(),
                complete: true,
            },
            connections: Vec::new(),
            connections_omitted: 0,
        };
        done.into_result((id, self.id), sandbox.report.clone())
    }
}
