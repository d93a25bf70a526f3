use belljar_spec::{
    Backend, HostCapacity, LimitsPatch, Maxima, Report, RunId, SandboxId, State, Status, Usage,
};

use super::super::category;
use super::compile::not_compiled;
use super::modules::missing_module;
use super::*;

fn failed(signal: Option<i32>) -> RunResult {
    let host = HostCapacity {
        memory_bytes: 1 << 34,
        cpus: 2,
        open_files: 1 << 20,
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
fn commands_to_a_notebook() {
    let result = failed(None);
    let hint = |code: &str, line: u32| {
        let error = ErrorInfo {
            line: Some(line),
            ..ErrorInfo::default()
        };
        of("syntax", "python", code, &result, &error)
    };
    let packages = hint("import os\n!pip install numpy", 2).unwrap();
    assert!(packages.contains("`packages`"), "{packages}");
    let shown = hint("%matplotlib inline\nx = 1", 1).unwrap();
    assert!(shown.contains("leave it out"), "{shown}");
    assert_eq!(hint("x = (1 +\n% 2", 1), None);
    assert_eq!(hint("x", 9), None);
}

#[test]
fn line_ends_that_a_shell_takes_for_words() {
    let (result, error) = (failed(None), ErrorInfo::default());
    for category in ["name", "syntax", "runtime"] {
        let hint = of(category, "bash", "echo a\r\nls\r\n", &result, &error);
        assert!(hint.is_some_and(|hint| hint.contains("CR LF")));
    }
    assert_eq!(of("runtime", "bash", "echo a\nls\n", &result, &error), None);
    assert_eq!(of("runtime", "ruby", "puts 1\r\n", &result, &error), None);
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
    let rust = "help: consider importing this struct\n  |\n1 + use std::collections::HashMap;\n";
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
