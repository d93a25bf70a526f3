//! What would help.

mod compile;
mod modules;

use belljar_spec::{ErrorInfo, RunResult};

use super::category::TOO_MANY_FILES;
use super::meant;
use compile::not_compiled;
use modules::{missing, missing_module, not_imported};

/// Where commands are given to a shell.
pub const SHELLS: [&str; 2] = ["bash", "command"];

const NO_FILES: &str = "The code has no files here, neither to read nor to write (filesystem).";

pub fn of(
    category: &str,
    language: &str,
    code: &str,
    result: &RunResult,
    error: &ErrorInfo,
) -> Option<String> {
    let limits = &result.limits;
    let message = &error.message;
    if SHELLS.contains(&language) && code.contains("\r\n") {
        return Some("Lines end with CR LF, and a shell takes the CR for a part of the last word: give it lines that end with LF alone.".into());
    }
    match category {
        "import" => missing_module(message, &result.language),
        "name" if SHELLS.contains(&language) && meant::absent(message).is_some() => {
            meant::absent(message).map(meant::command)
        }
        "name" => match not_imported(language, message, code) {
            Some(statement) => missing(&statement, code),
            None => meant::misspelt(category, language, message, &error.traceback, code),
        },
        "attribute" => meant::misspelt(category, language, message, &error.traceback, code),
        "index" if error.kind.ends_with("KeyError") => meant::key(message, &error.traceback, code),
        "syntax" if language == "python" => notebook(code, error.line),
        "compile" => not_compiled(language, &error.traceback, message, code),
        "signal" => signal_hint(result.signal?),
        "timeout" => Some(if computing(result) {
            format!("It was computing all the time: look for a loop that does not end, or ask for more than {} ms (limits.timeout_ms).", limits.timeout_ms)
        } else {
            format!("It was mostly waiting: for input, a lock, a sleep or a network. There is none here unless asked for. The limit was {} ms (limits.timeout_ms).", limits.timeout_ms)
        }),
        "memory" => Some(format!(
            "The limit was {} MiB (limits.memory_bytes); files in /tmp and the workspace count too. Ask for more, or hold less at one time.",
            limits.memory_bytes >> 20
        )),
        "recursion" => Some("The recursion does not end, or is too deep: check where it stops, or use a loop.".into()),
        "network" => not_reached(result),
        "permission" => Some(not_permitted(message, result).into()),
        "file" if message.to_lowercase().contains(TOO_MANY_FILES) => Some(format!(
            "A process may have {} files open at one time (limits.open_files): close those that are done with, or ask for more.",
            limits.open_files
        )),
        "file" if result.report.filesystem == "none" => Some(NO_FILES.into()),
        "file" => Some("The current directory is the workspace; what the code needs there has to be given with `files`.".into()),
        "disk" => Some(format!(
            "The workspace and /tmp together may have {} MiB (limits.disk_bytes).",
            limits.disk_bytes >> 20
        )),
        "process" => Some(format!(
            "At most {} processes and threads may run at one time (limits.processes).",
            limits.processes
        )),
        _ => None,
    }
}

/// Whether it used a good part of the time it had for computing. On a busy host that is no more than its share; what waits uses next to none.
#[expect(
    clippy::cast_precision_loss,
    reason = "milliseconds of a run are far below 2^52"
)]
fn computing(result: &RunResult) -> bool {
    let time = (result.limits.timeout_ms as f64).min(result.usage.wall_ms);
    result.usage.cpu_ms.is_some_and(|used| used > time * 0.2)
}

/// Why nothing was reached: there is no network, or the rules are others. What was reached and failed then needs no word of ours.
fn not_reached(result: &RunResult) -> Option<String> {
    if result.report.network == "none" {
        return Some("A sandbox has no network unless it is asked for (network).".into());
    }
    let refused = |connection: &&belljar_spec::Connection| !connection.allowed;
    match result.connections.iter().rfind(refused) {
        Some(refused) => {
            let reason = refused.reason.as_deref().unwrap_or("it was refused");
            Some(format!("Not reached: {reason} (network)."))
        }
        None if result.connections.is_empty() => Some(
            "Hosts that `network` names are reached over TCP, by the names and ports of the rules or through the proxy (http_proxy); nothing else is there.".into(),
        ),
        None => None,
    }
}

fn not_permitted(message: &str, result: &RunResult) -> &'static str {
    if result.report.filesystem == "none" {
        NO_FILES
    } else if result.exit_code == Some(126) {
        // A shell's word for what it found but could not execute.
        "It cannot be executed: make it executable (chmod +x), or give it to its interpreter."
    } else if message.to_lowercase().contains("not permitted") {
        "The code is an ordinary user without privileges, and some calls are not for sandboxes: look for a way without."
    } else {
        "Only the workspace and /tmp can be written to; all else is read-only."
    }
}

/// Commands to a notebook, which models like to write.
fn notebook(code: &str, line: Option<u32>) -> Option<String> {
    let at = usize::try_from(line?).ok()?.checked_sub(1)?;
    let wrong = code.lines().nth(at)?.trim_start();
    let hint = if wrong.starts_with('!') {
        "A line that begins with ! is for notebooks: run the command with subprocess, or as one of the shell. Packages are asked for with `packages`."
    } else if wrong.starts_with('%') {
        "A line that begins with % is for notebooks: leave it out. What is shown with plt.show() comes back without it."
    } else {
        return None;
    };
    Some(hint.into())
}

fn signal_hint(number: i32) -> Option<String> {
    let hint = match number {
        6 => {
            "Look for a failed check, an exception that nothing catches, or memory that was freed twice."
        }
        7 | 11 => {
            "Look for an index past the end, a pointer to nothing or to what is gone, or a recursion without an end."
        }
        8 => "Look for a division by zero.",
        25 => "A file was larger than the disk limit allows (limits.disk_bytes).",
        31 => "The code does something that no sandbox may; look for another way.",
        _ => return None,
    };
    Some(hint.into())
}

#[cfg(test)]
mod tests;
