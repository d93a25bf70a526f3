//! What went wrong in a run: a report to be read by a person or handed to a model.
//!
//! All of it is read from what the code printed, so it is a claim; how the run ended is not.

use std::fmt::Write as _;

use belljar::failure::{self, output, tail};
use belljar_spec::{ErrorInfo, RunId, RunResult, Status};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::history::{Record, status_name};

/// Lines of source before and after the failing one.
const AROUND: u32 = 3;
/// Lines of source where no line is known to have failed.
const FIRST: u32 = 10;

/// How a run ended and, if it failed, why.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Debug {
    pub id: RunId,
    /// Or `command`, or `terminal`.
    pub language: String,
    /// Absent where that does not matter.
    pub runtime: Option<String>,
    pub status: Status,
    /// How it ended, in a sentence.
    pub summary: String,
    /// What the code said about it.
    pub error: Option<ErrorInfo>,
    /// What it was started with.
    pub args: Vec<String>,
    /// The failing line and those around it, or the first ones, where none is known to have failed. Absent where no code is kept.
    pub source: Vec<SourceLine>,
    /// How many lines there are altogether.
    pub source_lines: usize,
    /// The last of what it printed.
    pub stdout: String,
    pub stderr: String,
    /// All of this as one text.
    pub text: String,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct SourceLine {
    pub line: u32,
    pub text: String,
    pub failing: bool,
}

pub fn report(record: &Record) -> Debug {
    let code = record.code.as_deref().unwrap_or("");
    let args = record.request["args"].as_array();
    let args = args.into_iter().flatten().filter_map(|arg| arg.as_str());
    let args = args.map(str::to_owned).collect();
    let source_lines = code.lines().count();
    let Some(result) = &record.result else {
        let summary = "It was ended before it was done: the sandbox was deleted, the daemon stopped, or the client had gone before it began.";
        return complete(Debug {
            id: record.id,
            language: record.language.clone(),
            runtime: None,
            status: record.status,
            summary: summary.into(),
            error: None,
            args,
            source: around(code, None),
            source_lines,
            stdout: String::new(),
            stderr: String::new(),
            text: String::new(),
        });
    };
    let (stdout, stderr) = output(result);
    let error = failure::of(&record.language, code, result);
    // One that the code does not have says nothing about where to look.
    let line = error.as_ref().and_then(|error| error.line);
    let line = line.filter(|line| (1..=source_lines).contains(&(*line as usize)));
    complete(Debug {
        id: record.id,
        language: record.language.clone(),
        // What a command was is not a matter of the sandbox's interpreter.
        runtime: (!["command", "terminal"].contains(&record.language.as_str()))
            .then(|| result.runtime.clone()),
        status: result.status,
        summary: summary(result) + &cut(result) + shortened(record) + untagged(record, result),
        error,
        args,
        source: around(code, line),
        source_lines,
        stdout: tail(stdout).into(),
        stderr: tail(stderr).into(),
        text: String::new(),
    })
}

fn around(code: &str, failing: Option<u32>) -> Vec<SourceLine> {
    let (first, last) = match failing {
        None => (1, FIRST),
        Some(failing) => (
            failing.saturating_sub(AROUND).max(1),
            failing.saturating_add(AROUND),
        ),
    };
    code.lines()
        .zip(1..)
        .skip(first as usize - 1)
        .take_while(|(_, line)| *line <= last)
        .map(|(text, line)| SourceLine {
            line,
            text: text.chars().take(400).collect(),
            failing: Some(line) == failing,
        })
        .collect()
}

/// What was not kept of its output.
fn cut(result: &RunResult) -> String {
    let limit = result.limits.output_bytes;
    match (result.stdout_truncated, result.stderr_truncated) {
        (false, false) => String::new(),
        (out, err) => {
            let name = match (out, err) {
                (true, true) => "stdout and stderr were",
                (true, false) => "stdout was",
                _ => "stderr was",
            };
            format!(
                " It printed more than the {limit} bytes that output_bytes allowed: {name} cut off."
            )
        }
    }
}

/// Such code never fails, and rarely does what was meant.
fn untagged(record: &Record, result: &RunResult) -> &'static str {
    let code = record.code.as_deref().unwrap_or("");
    let first = code.lines().next().unwrap_or("");
    if record.language != "php" || code.contains("<?") || first.is_empty() {
        return "";
    }
    if result.stdout.starts_with(first) {
        " The code has no `<?php` in it: outside of that, PHP prints what it reads as it is, and runs nothing."
    } else {
        ""
    }
}

/// By the history, which is no matter of the run.
fn shortened(record: &Record) -> &'static str {
    if record.shortened {
        " There was more than is kept of it here: history.output_bytes of the daemon's settings says how much of each output is."
    } else {
        ""
    }
}

fn summary(result: &RunResult) -> String {
    let (limits, usage) = (&result.limits, &result.usage);
    let mib = |bytes: u64| bytes >> 20;
    match result.status {
        Status::Ok => format!("It ended well after {:.0} ms.", usage.wall_ms),
        Status::CompileFailed => "The compiler did not accept it.".into(),
        Status::TimedOut => format!(
            "Its time was up: it ran for {:.0} ms of the {} ms that timeout_ms allowed, and used {:.0} ms of CPU time.",
            usage.wall_ms,
            limits.timeout_ms,
            usage.cpu_ms.unwrap_or(0.0)
        ),
        Status::OutOfMemory => format!(
            "It needed more memory than the {} MiB that memory_bytes allowed (its peak was {} MiB).",
            mib(limits.memory_bytes),
            mib(usage.memory_peak_bytes.unwrap_or(0))
        ),
        Status::Killed => format!(
            "It was ended from outside after {:.0} ms: it was interrupted, its client had gone, the sandbox was deleted, or the daemon stopped.",
            usage.wall_ms
        ),
        Status::Failed => match (result.exit_code, result.signal) {
            (_, Some(signal)) => {
                format!(
                    "It was ended by signal {signal}{}.",
                    failure::signal(signal)
                )
            }
            (Some(code), _) => format!("It exited with code {code}."),
            _ => "It failed.".into(),
        },
    }
}

fn complete(mut debug: Debug) -> Debug {
    let mut text = format!(
        "Run {} ({}): {}\n{}\n",
        debug.id,
        debug.runtime.as_deref().unwrap_or(&debug.language),
        status_name(debug.status),
        debug.summary
    );
    if let Some(error) = &debug.error {
        let category = error.category.as_deref().unwrap_or("other");
        let _ = write!(text, "\nError ({category}): {}", error.kind);
        if !error.message.is_empty() {
            let separator = if error.kind.is_empty() { "" } else { ": " };
            let _ = write!(text, "{separator}{}", error.message);
        }
        if let Some(line) = error.line {
            let _ = write!(text, " at line {line}");
        }
        text.push('\n');
        if let Some(hint) = &error.hint {
            let _ = writeln!(text, "Hint: {hint}");
        }
    }
    if !debug.args.is_empty() {
        let _ = writeln!(text, "\nArguments: {:?}", debug.args);
    }
    if !debug.source.is_empty() {
        let (shown, all) = (debug.source.len(), debug.source_lines);
        let part = if shown == all {
            String::new()
        } else {
            format!(" ({shown} of {all} lines)")
        };
        let _ = writeln!(text, "\nSource{part}:");
        for line in &debug.source {
            let mark = if line.failing { '>' } else { ' ' };
            let _ = writeln!(text, "{mark}{:5} | {}", line.line, line.text);
        }
    }
    for (name, output) in [("stderr", &debug.stderr), ("stdout", &debug.stdout)] {
        if !output.trim().is_empty() {
            let _ = writeln!(text, "\nThe end of {name}:\n{}", output.trim_end());
        }
    }
    debug.text = text;
    debug
}
