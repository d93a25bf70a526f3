//! What would help.

use belljar_spec::{ErrorInfo, RunResult};

use super::category::TOO_MANY_FILES;
use super::meant::{self, likely, quoted};
use super::unimported;

/// Modules whose package has another name.
const PACKAGES: [(&str, &str); 16] = [
    ("PIL", "pillow"),
    ("bs4", "beautifulsoup4"),
    ("cv2", "opencv-python-headless"),
    ("dateutil", "python-dateutil"),
    ("docx", "python-docx"),
    ("dotenv", "python-dotenv"),
    ("fitz", "pymupdf"),
    ("git", "gitpython"),
    ("jwt", "pyjwt"),
    ("magic", "python-magic"),
    ("pptx", "python-pptx"),
    ("serial", "pyserial"),
    ("skimage", "scikit-image"),
    ("sklearn", "scikit-learn"),
    ("yaml", "pyyaml"),
    ("zmq", "pyzmq"),
];

/// Languages that `packages` is for.
const PACKAGED: [&str; 3] = ["python", "javascript", "typescript"];

/// Where commands are given to a shell.
pub const SHELLS: [&str; 2] = ["bash", "command"];

const NO_FILES: &str = "The code has no files here, neither to read nor to write (filesystem).";

/// What Python code often imports.
const MODULES: &str = "aiohttp argparse asyncio base64 boto3 click collections copy csv dataclasses datetime decimal django enum fastapi flask \
    fractions functools glob gzip hashlib heapq httpx inspect io itertools jinja2 json keras logging lxml math matplotlib multiprocessing \
    networkx nltk numpy openai openpyxl operator os pandas pathlib pickle plotly polars psutil pydantic pytest queue random re redis requests \
    rich scipy seaborn secrets shutil socket sqlalchemy sqlite3 statistics string struct subprocess sympy sys tempfile tensorflow textwrap \
    threading time torch tqdm traceback transformers typing unittest urllib urllib3 uuid weakref xml zipfile";

pub fn signal(number: i32) -> &'static str {
    match number {
        4 => " (an illegal instruction)",
        6 => " (it aborted itself)",
        7 | 11 => " (it used memory that is not its own)",
        8 => " (a division by zero or a like mistake)",
        9 => " (it was killed)",
        24 => " (its CPU time was up)",
        25 => " (it wrote a file that was too large)",
        31 => " (it made a system call that is not allowed here)",
        _ => "",
    }
}

pub fn of(
    category: &str,
    language: &str,
    code: &str,
    result: &RunResult,
    error: &ErrorInfo,
) -> Option<String> {
    let limits = &result.limits;
    let message = &error.message;
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

/// `name 'math' is not defined`, `fs is not defined`, `uninitialized constant Set`.
fn not_imported(language: &str, message: &str, code: &str) -> Option<String> {
    let name = if let Some(constant) = message.strip_prefix("uninitialized constant ") {
        constant
    } else {
        let (before, _) = message.split_once(" is not defined")?;
        quoted(before).unwrap_or(before)
    };
    unimported::statement(language, MODULES, name, code)
}

/// Where the code has it already, it is elsewhere that it is missed.
fn missing(statement: &str, code: &str) -> Option<String> {
    let shown = statement.trim_end_matches(';');
    (!code.contains(shown)).then(|| format!("It is missing `{shown}`."))
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

/// What a compiler misses, where that can be seen.
fn not_compiled(language: &str, output: &str, message: &str, code: &str) -> Option<String> {
    let lower = message.to_lowercase();
    let absent = [
        "no such file or directory",
        "cannot find package",
        "unresolved import",
        "does not exist",
        "could not resolve",
        "can't find crate",
    ];
    if absent.iter().any(|part| lower.contains(part)) {
        // `package NAME does not exist` is Java's.
        let java = message
            .strip_prefix("package ")
            .and_then(|rest| rest.strip_suffix(" does not exist"));
        let named = java
            .or_else(|| quoted(message))
            .or_else(|| message.split(':').next())?;
        return Some(format!(
            "{named} is not here: use what the language itself has, or a template or image that has it."
        ));
    }
    // Java names it in a line of its own, Go after a colon.
    let symbol = output
        .lines()
        .find_map(|line| line.trim().strip_prefix("symbol:"))
        .and_then(|line| line.split_whitespace().last())
        // Of a method it shows the arguments, too.
        .and_then(|name| name.split('(').next());
    if let Some(header) = quoted(message).and_then(|name| header(name, output)) {
        return Some(format!("It is missing {header}."));
    }
    let unknown_name = symbol.or_else(|| message.strip_prefix("undefined: "));
    let statement = match quoted(message) {
        Some(name) if language == "rust" => {
            unimported::proposed_use(name, output).map(str::to_owned)
        }
        _ => unknown_name.and_then(|name| unimported::statement(language, MODULES, name, code)),
    };
    if let Some(statement) = statement {
        return missing(&statement, code);
    }
    let unknown = [
        "cannot find",
        "undeclared",
        "not declared",
        "undefined: ",
        "undefined reference",
        "is not a member of",
        "has no member named",
    ];
    match unknown_name {
        Some(name) => meant::undeclared(name, language, message, code),
        _ if unknown.iter().any(|part| lower.contains(part)) => {
            meant::undeclared(quoted(message)?, language, message, code)
        }
        _ => None,
    }
}

/// The line that a compiler of C proposes to add for a name: `note: ‘std::cout’ is defined in header …; did you forget to ‘#include …’?`
fn header<'a>(name: &str, output: &'a str) -> Option<&'a str> {
    let note = output.lines().find(|line| {
        let is_note = line.contains("note: ") && line.contains("did you forget to ‘#include ");
        is_note && line.contains(name)
    })?;
    let (_, proposed) = note.split_once("did you forget to ‘")?;
    Some(proposed.split_once('’')?.0)
}

fn missing_module(message: &str, language: &str) -> Option<String> {
    // `cannot load such file -- name` and `Can't locate Name.pm in @INC` have no quotes.
    let perl = message
        .strip_prefix("Can't locate ")
        .and_then(|rest| rest.split(".pm in").next());
    if let Some(name) = perl {
        let name = name.replace('/', "::");
        return Some(format!(
            "{name} is not installed here. Use what is there, or a template or image that has it."
        ));
    }
    let name = quoted(message).or_else(|| message.rsplit("-- ").next())?;
    if message.starts_with("Import '") && message.ends_with("' not allowed") {
        return Some(format!(
            "{name} is not among the modules that this run may import (imports): add it there, or do without."
        ));
    }
    if let Some(rest) = message.strip_prefix("cannot import name ") {
        // The module is there.
        let module = rest.split(" from ").nth(1).and_then(quoted)?;
        return Some(format!(
            "{module} is there, but has no {name}: look at its name, or at which version is installed."
        ));
    }
    if let ("No module named", Some((package, module))) =
        (message.get(..15).unwrap_or_default(), name.rsplit_once('.'))
    {
        // Python names the first that it does not find.
        return Some(format!(
            "{package} is there, but has no module {module}: look at its name, or at which version is installed."
        ));
    }
    let top = name
        .split(['.', '/'])
        .next()
        .filter(|top| !top.is_empty())?;
    let advice = if PACKAGED.contains(&language) {
        "Use what is there, ask for it with `packages`, or use a template or image that has it."
    } else {
        "Use what is there, or a template or image that has it."
    };
    if language != "python" {
        return Some(format!("{top} is not installed here. {advice}"));
    }
    if let Some((_, package)) = PACKAGES.iter().find(|(module, _)| *module == top) {
        return Some(format!(
            "{top} is not installed here; it comes with the package {package}. {advice}"
        ));
    }
    // What somebody has put under a name that is nearly right is not to be recommended.
    let known = MODULES.split_whitespace();
    let known = known.chain(PACKAGES.iter().map(|(module, _)| *module));
    match likely(top, known).filter(|meant| *meant != top) {
        Some(meant) => Some(format!("There is no {top} here; did you mean {meant}?")),
        None => Some(format!("{top} is not installed here. {advice}")),
    }
}

#[cfg(test)]
mod tests {
    use belljar_spec::{
        Backend, HostCapacity, LimitsPatch, Maxima, Report, RunId, SandboxId, State, Status, Usage,
    };

    use super::super::category;
    use super::*;

    fn failed(signal: Option<i32>) -> RunResult {
        let host = HostCapacity {
            memory_bytes: 1 << 34,
            cpus: 2,
            maxima: Maxima::NONE,
        };
        let nothing = LimitsPatch::default();
        RunResult {
            id: RunId::from_bits(1),
            sandbox: SandboxId::from_bits(2),
            language: "python".into(),
            runtime: String::new(),
            backend: Backend::Native,
            status: Status::Failed,
            success: false,
            exit_code: signal.is_none().then_some(1),
            signal,
            stdout: String::new(),
            stderr: String::new(),
            stdout_base64: None,
            stderr_base64: None,
            stdout_truncated: false,
            stderr_truncated: false,
            compile: None,
            value: None,
            value_text: None,
            displays: Vec::new(),
            error: None,
            state: State::None,
            usage: Usage::default(),
            limits: nothing.resolve(&nothing, &host).unwrap(),
            report: Report::default(),
            files: Vec::new(),
            files_truncated: false,
            connections: Vec::new(),
            connections_omitted: 0,
            started_at: String::new(),
        }
    }

    #[test]
    fn what_was_forbidden_is_not_said_to_be_missing() {
        let hint = missing_module("Import 'os' not allowed", "python").unwrap();
        assert!(
            hint.contains("(imports)") && !hint.contains("installed"),
            "{hint}"
        );
    }

    #[test]
    fn hints_recommend_what_there_is() {
        let there = missing_module(
            "cannot import name 'lods' from 'json' (/usr/lib/python3.11/json/__init__.py)",
            "python",
        );
        assert!(there.unwrap().starts_with("json is there, but has no lods"));
        // What cannot be asked for is not recommended.
        for (language, asked) in [("ruby", false), ("lua", false), ("javascript", true)] {
            let hint = missing_module("cannot load such file -- nope", language).unwrap();
            assert_eq!(hint.contains("`packages`"), asked, "{language}: {hint}");
        }
    }

    #[test]
    fn what_was_not_imported_is_not_misspelt() {
        let result = failed(None);
        let hint = |language: &str, message: &str, code: &str| {
            let error = ErrorInfo {
                message: message.into(),
                traceback: message.into(),
                ..ErrorInfo::default()
            };
            of("name", language, code, &result, &error)
        };
        for (language, message, code, missing) in [
            (
                "python",
                "name 'math' is not defined",
                "math.pi",
                "import math",
            ),
            (
                "python",
                "name 'pd' is not defined. Did you mean: 'id'?",
                "pd.DataFrame()",
                "import pandas as pd",
            ),
            (
                "javascript",
                "path is not defined",
                "path.join('a')",
                "const path = require(\"path\")",
            ),
            (
                "ruby",
                "uninitialized constant Set",
                "Set.new",
                "require \"set\"",
            ),
        ] {
            let wanted = format!("It is missing `{missing}`.");
            assert_eq!(hint(language, message, code), Some(wanted), "{message}");
        }
        // It comes too late, or in another place.
        let late = "math.pi\nimport math";
        assert_eq!(hint("python", "name 'math' is not defined", late), None);
        let go = "func main() { fmt.Println() }";
        assert_eq!(
            not_compiled("go", "", "undefined: fmt", go).as_deref(),
            Some("It is missing `import \"fmt\"`.")
        );
        let rust =
            "help: consider importing this struct\n  |\n1 + use std::collections::HashMap;\n";
        let message = "cannot find type `HashMap` in this scope";
        assert_eq!(
            not_compiled("rust", rust, message, "HashMap::new()").as_deref(),
            Some("It is missing `use std::collections::HashMap`.")
        );
    }

    #[test]
    fn limits_are_named_that_were_hit() {
        let mut result = failed(None);
        result.limits.open_files = 20;
        result.limits.processes = 10;
        for (language, kind, message, limit) in [
            (
                "python",
                "OSError",
                "[Errno 24] Too many open files: '/dev/null'",
                "20 files open at one time (limits.open_files)",
            ),
            (
                "java",
                "java.io.FileNotFoundException",
                "a.txt (Too many open files)",
                "20 files open at one time (limits.open_files)",
            ),
            (
                "java",
                "java.lang.OutOfMemoryError",
                "unable to create native thread: possibly out of memory or process/resource limits reached",
                "10 processes and threads",
            ),
            ("go", "fatal error", "newosproc", "10 processes and threads"),
            (
                "php",
                "Warning",
                "file_put_contents(): Only 1028096 of 2097152 bytes written, possibly out of free disk space",
                "(limits.disk_bytes)",
            ),
        ] {
            let error = ErrorInfo {
                kind: kind.into(),
                message: message.into(),
                ..ErrorInfo::default()
            };
            let category = category::of(language, &result, &error);
            let hint = of(category, language, "", &result, &error).unwrap_or_default();
            assert!(hint.contains(limit), "{message}: {category}: {hint}");
        }
    }

    #[test]
    fn an_interpreter_that_died_of_a_signal_has_its_hint() {
        let result = failed(Some(11));
        let error = ErrorInfo {
            kind: "InterpreterDied".into(),
            message: "the interpreter was ended by signal 11 during the run".into(),
            ..ErrorInfo::default()
        };
        let category = category::of("python", &result, &error);
        assert_eq!(category, "signal");
        assert!(of(category, "python", "", &result, &error).is_some());
    }

    #[test]
    fn hints_name_what_is_meant() {
        assert!(
            missing_module("No module named 'cv2'", "python")
                .unwrap()
                .contains("opencv-python-headless")
        );
        assert!(
            missing_module("No module named 'pandas.core'", "python")
                .unwrap()
                .contains("has no module core")
        );
        assert!(
            missing_module("cannot load such file -- nokogiri", "ruby")
                .unwrap()
                .contains("nokogiri")
        );
        let typo = missing_module("No module named 'reqeusts'", "python").unwrap();
        assert!(
            typo.contains("mean requests?") && !typo.contains("package"),
            "{typo}"
        );
        let unknown = missing_module("No module named 'acme_tools'", "python").unwrap();
        assert!(
            unknown.starts_with("acme_tools is not installed here. "),
            "{unknown}"
        );
        let java = "Main.java:1: error: cannot find symbol\n  symbol:   variable totl\n  location: class Main\n";
        let method = java.replace("variable totl", "method totl(int)");
        for (output, message) in [
            (java, "cannot find symbol"),
            (&method, "cannot find symbol"),
            ("", "cannot find value `totl` in this scope"),
            ("", "undefined: totl"),
            ("", "‘totl’ undeclared (first use in this function)"),
            ("", "undefined reference to `totl'"),
        ] {
            let hint = not_compiled("c", output, message, "int total = totl;").unwrap_or_default();
            assert!(hint.contains("mean total?"), "{message}: {hint}");
        }
        // It is no other name that is meant where the code has this one.
        let method = method.replace("totl(int)", "run()");
        assert_eq!(
            not_compiled("java", &method, "cannot find symbol", "run();"),
            None
        );
        let cpp = "main.cpp:1:18: error: ‘cout’ is not a member of ‘std’\nmain.cpp:1:1: note: ‘std::cout’ is defined in header ‘<iostream>’; did you forget to ‘#include <iostream>’?\n";
        assert_eq!(
            not_compiled(
                "cpp",
                cpp,
                "‘cout’ is not a member of ‘std’",
                "std::cout << 1;"
            )
            .as_deref(),
            Some("It is missing #include <iostream>.")
        );
        assert!(
            not_compiled("c", "", "nope.h: No such file or directory", "")
                .unwrap()
                .starts_with("nope.h is not here")
        );
        assert!(
            not_compiled("java", "", "package org.nope does not exist", "")
                .unwrap()
                .starts_with("org.nope is not here")
        );
        assert_eq!(not_compiled("c", "", "expected ';' before 'x'", ""), None);
    }
}
