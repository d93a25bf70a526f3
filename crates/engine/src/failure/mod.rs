//! Why a run failed, told alike for every language: from what its interpreter said, else from what was printed.
//!
//! All of it is a claim of the code, but for limits and signals.

mod category;
mod hint;
mod line;
mod meant;
mod parse;
mod place;
mod signals;
mod unimported;

use belljar_spec::{ErrorInfo, RunResult, Status};

use crate::verdict::NO_PROGRAM;
use parse::Claim;

pub use signals::signal;

/// How much of what was printed goes into a report.
const TAIL_BYTES: usize = 2000;
/// Hints look at names in the code; nobody reads more of it for that.
const MOST_CODE: usize = 256 << 10;

/// As much of the code as hints look at.
pub(crate) fn for_hints(code: &str) -> String {
    code[..code.floor_char_boundary(MOST_CODE)].to_owned()
}

/// What is known about the failure of a run of `code`; `None` if it did not fail, or failed without a word.
pub fn of(language: &str, code: &str, result: &RunResult) -> Option<ErrorInfo> {
    of_file(place::usual(language), language, code, result)
}

/// The same of code whose file has a name of its own.
pub(crate) fn of_file(
    main: &str,
    language: &str,
    code: &str,
    result: &RunResult,
) -> Option<ErrorInfo> {
    let mut elsewhere = None;
    let known = match (&result.error, result.status) {
        // All of it was said when the run ended.
        (Some(error), _) if error.category.is_some() => return Some(error.clone()),
        (Some(error), _) => {
            elsewhere = parse::elsewhere(language, &error.traceback);
            let mut error = error.clone();
            if language == "javascript" {
                let import = || line::of_import(code, main, &error.message);
                error.line = error.line.or_else(import);
            }
            Some(error)
        }
        (None, Status::Ok) => return None,
        (None, _) => claimed(main, language, code, result).map(|claimed| {
            elsewhere = claimed.1;
            claimed.0
        }),
    };
    let mut error = match result.status {
        Status::TimedOut => {
            let message = format!("the time was up after {} ms", result.limits.timeout_ms);
            ended_by("TimeoutError", message, known)
        }
        Status::OutOfMemory => {
            let limit = result.limits.memory_bytes >> 20;
            let message = format!("it needed more than the {limit} MiB of memory that it may have");
            ended_by("MemoryError", message, known)
        }
        Status::CompileFailed => known.unwrap_or_else(|| not_compiled(result)),
        Status::Killed => known.unwrap_or_else(|| told("Killed", "it was ended from outside")),
        Status::Ok | Status::Failed => known.or_else(|| {
            let signal = result.signal?;
            Some(told(&signals::name(signal), signals::message(signal)))
        })?,
    };
    let has_no_name = error.kind.is_empty();
    if has_no_name {
        error.kind = match result.status {
            Status::CompileFailed => "CompileError".into(),
            _ => "Error".into(),
        };
    }
    let category = category::of(language, result, &error);
    // As those languages call it that have a name for it, and as sessions of the others do.
    if has_no_name && category == "syntax" {
        error.kind = "SyntaxError".into();
    }
    if error.hint.is_none() {
        error.hint = hint::of(category, language, code, result, &error);
    }
    error.category = Some(category.into());
    // A limit's verdict has no place, and a forbidden import is known by how its message ends.
    let as_it_is = matches!(result.status, Status::TimedOut | Status::OutOfMemory)
        || error.message.ends_with(" not allowed");
    if let Some(place) = elsewhere.filter(|_| !as_it_is) {
        let told = format!("{} (in {place})", error.message);
        error.message = told.trim_start().into();
    }
    Some(error)
}

fn told(kind: &str, message: &str) -> ErrorInfo {
    ErrorInfo {
        kind: kind.into(),
        message: message.into(),
        ..ErrorInfo::default()
    }
}

/// A limit's verdict, with the place where the code was, if that is known.
fn ended_by(kind: &str, message: String, place: Option<ErrorInfo>) -> ErrorInfo {
    ErrorInfo {
        kind: kind.into(),
        message,
        ..place.unwrap_or_default()
    }
}

fn not_compiled(result: &RunResult) -> ErrorInfo {
    let compile = result.compile.as_ref();
    let message = match compile.map(|stage| (stage.status, stage.limits)) {
        Some((Status::TimedOut, limits)) => {
            format!("the compiler's time was up after {} ms", limits.timeout_ms)
        }
        Some((Status::OutOfMemory, limits)) => format!(
            "the compiler needed more than the {} MiB of memory that it may have",
            limits.memory_bytes >> 20
        ),
        Some((Status::Failed, _)) if output(result).1.contains(NO_PROGRAM) => NO_PROGRAM.into(),
        _ => "the compiler did not accept it".into(),
    };
    told("CompileError", &message)
}

/// Of the stage that failed: standard output and standard error.
pub fn output(result: &RunResult) -> (&str, &str) {
    match (&result.compile, result.status) {
        (Some(compile), Status::CompileFailed) => (&compile.stdout, &compile.stderr),
        _ => (&result.stdout, &result.stderr),
    }
}

/// The end of what was printed.
pub fn tail(text: &str) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(TAIL_BYTES))..]
}

/// With the line of another file, where it is in that.
fn claimed(
    main: &str,
    language: &str,
    code: &str,
    result: &RunResult,
) -> Option<(ErrorInfo, Option<String>)> {
    let (stdout, stderr) = output(result);
    let stage = if result.status == Status::CompileFailed {
        parse::compiler(main, stderr).or_else(|| parse::compiler(main, stdout))
    } else {
        parse::program(language, main, stderr)
    };
    let Claim {
        kind,
        message,
        line,
        column,
        elsewhere,
    } = stage?;
    let line = match language {
        "r" => line::of_r(code, stderr),
        "javascript" | "typescript" => line.or_else(|| line::of_import(code, main, &message)),
        "bash" => line.or_else(|| line::of_function(code, &message, stderr)),
        _ => line,
    };
    let error = ErrorInfo {
        kind,
        message,
        traceback: tail(stderr).into(),
        line,
        column,
        ..ErrorInfo::default()
    };
    Some((error, elsewhere))
}
