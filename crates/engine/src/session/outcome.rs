//! What a run showed and said, as a part of its result. All of it is claimed by the code.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar_spec::{Cause, Display, ErrorInfo, Limits, Medium, RunId, RunResult, Status};
use serde_json::{Map, Value};

use super::Session;
use super::running::End;
use crate::files::Collected;
use crate::kernel::{Done as Claim, Failure, VALUE_BYTES, cut};
use crate::sandbox::Sandbox;
use crate::verdict::{Done, Finished};

/// Richest first: the one that a viewer who shows one form should show.
const PREFERENCE: [&str; 8] = [
    "image/png",
    "image/jpeg",
    "image/svg+xml",
    "text/html",
    "text/markdown",
    "text/latex",
    "application/json",
    "text/plain",
];
const MAX_FORMS: usize = 16;
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
    /// Keeps a display, unless there have been too many.
    pub fn add(
        &mut self,
        forms: &Map<String, Value>,
        most: usize,
        most_bytes: usize,
    ) -> Option<Display> {
        let mut media: Vec<_> = forms
            .iter()
            .take(MAX_FORMS)
            .filter_map(|(mime, data)| Some((mime, medium(mime, data)?)))
            .collect();
        let rank = |mime: &str| PREFERENCE.iter().position(|known| *known == mime);
        media.sort_by_key(|(mime, _)| (rank(mime).unwrap_or(PREFERENCE.len()), *mime));
        let mut media = media.into_iter().map(|(_, medium)| medium);
        let Medium { mime, data } = media.next()?;
        let display = Display {
            mime,
            data,
            alternatives: media.collect(),
        };
        let others = display.alternatives.iter().map(|one| one.data.len());
        let bytes = display.data.len() + others.sum::<usize>();
        if self.displays.len() == most || self.bytes + bytes > most_bytes {
            return None;
        }
        self.bytes += bytes;
        self.displays.push(display.clone());
        Some(display)
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
            End::Killed => {
                if !matches!(fact, Status::TimedOut | Status::OutOfMemory) {
                    result.status = Status::Killed;
                }
            }
            End::Forged => {
                result.status = Status::Killed;
                result.error = Some(told(
                    "ProtocolViolation",
                    "the code closed, wrote to or did not read the channel of its interpreter"
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

/// Text as base64; what claims to be base64 already must be.
fn medium(mime: &str, data: &Value) -> Option<Medium> {
    let plausible =
        mime.len() <= 128 && mime.contains('/') && mime.bytes().all(|byte| byte.is_ascii_graphic());
    if !plausible {
        return None;
    }
    let is_text = mime.starts_with("text/")
        || mime == "image/svg+xml"
        || mime.ends_with("json")
        || mime.ends_with("javascript");
    let data = match data {
        Value::String(text) if is_text => STANDARD.encode(text),
        Value::String(encoded) => {
            STANDARD.encode(STANDARD.decode(encoded.replace(['\n', '\r'], "")).ok()?)
        }
        other if is_text => STANDARD.encode(other.to_string()),
        _ => return None,
    };
    Some(Medium {
        mime: mime.to_owned(),
        data,
    })
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
