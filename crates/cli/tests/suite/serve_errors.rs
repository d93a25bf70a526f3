//! Errors that are not in the code itself, and those of commands.

use serde_json::{Value, json};

use super::daemon::Daemon;

/// Language, the code, another file and its text, the line of the code, and where it says that the error is.
type Other = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    Option<u32>,
    &'static str,
);

const OTHERS: &[Other] = &[
    (
        "javascript",
        "const h = require('./h.js')\n\nh()",
        "h.js",
        "\n\n\n\nmodule.exports = () => {\n  null.x }",
        Some(3),
        "h.js:6",
    ),
    (
        "javascript",
        "import h from './h.mjs'\nh()",
        "h.mjs",
        "\n\nlet = = 3",
        None,
        "h.mjs:3",
    ),
    (
        "typescript",
        "import {h} from './h'\n\nh()",
        "h.ts",
        "\n\n\n\nexport function h(): any {\n return (null as any).x }",
        Some(3),
        "h.ts:6",
    ),
    (
        "typescript",
        "import {h} from './h'\n\nh()",
        "h.ts",
        "\n\n\nexport function h() { let = = 3 }",
        None,
        "h.ts:4",
    ),
    (
        "python",
        "import h\n\nh.f()",
        "h.py",
        "\n\n\n\ndef f():\n  1/0",
        Some(3),
        "h.py:6",
    ),
    (
        "ruby",
        "require './h'\n\nh",
        "h.rb",
        "\n\n\ndef h\n  nil.foo\nend",
        Some(3),
        "h.rb:5",
    ),
    (
        "php",
        "<?php\nrequire 'h.php';\n\nh();",
        "h.php",
        "<?php\n\n\n\nfunction h() {\n  nope(); }",
        Some(4),
        "h.php:6",
    ),
    (
        "perl",
        "use lib '.';\nuse h;",
        "h.pm",
        "package h;\n\nsub f {\n  my $x = ; }\n1;",
        Some(2),
        "h.pm:4",
    ),
    (
        "lua",
        "local h = require('h')\n\nh()",
        "h.lua",
        "\n\n\nreturn function()\n  local x = nil; x.y = 3 end",
        Some(3),
        "h.lua:5",
    ),
    (
        "bash",
        "source ./h.sh\n\nf",
        "h.sh",
        "f() {\n\n\n\n  nosuch; }",
        None,
        "h.sh:5",
    ),
    (
        "c",
        "\n#include \"h.h\"\nint main() { return f(); }",
        "h.h",
        "\n\n\n\nint f() { return x; }",
        Some(2),
        "h.h:5",
    ),
    (
        "java",
        "class Main { public static void main(String[] a) {\n H.f(); } }",
        "H.java",
        "\n\nclass H { static void f() {\n throw new RuntimeException(\"no\"); } }",
        Some(2),
        "H.java:4",
    ),
    (
        "rust",
        "mod h;\nfn main() { h::f(); }",
        "h.rs",
        "\n\n\npub fn f() { panic!(\"no\"); }",
        None,
        "h.rs:4",
    ),
];

fn debug(daemon: &Daemon, id: &Value) -> Value {
    let path = format!("/v1/runs/{}/debug", id.as_str().unwrap());
    daemon.get(&path).ok()
}

fn failing(debug: &Value) -> Vec<&Value> {
    let lines = debug["source"].as_array().unwrap().iter();
    lines.filter(|line| line["failing"] == true).collect()
}

#[test]
fn in_other_files() {
    let daemon = Daemon::start();
    for (language, code, name, content, line, place) in OTHERS {
        let body = json!({"language": language, "code": code, "files": {*name: content}});
        let result = daemon.run(&body);
        let error = &result["error"];
        assert_eq!(error["line"], json!(line), "{language} {result:#}");
        let message = error["message"].as_str().unwrap();
        assert!(
            message.ends_with(&format!("(in {place})")),
            "{language} {message}"
        );
        let debug = debug(&daemon, &result["id"]);
        assert_eq!(debug["error"], *error, "{language}");
        assert_eq!(
            failing(&debug).len(),
            usize::from(line.is_some()),
            "{debug}"
        );
    }
}

/// What is told does not depend on whether an interpreter waits.
#[test]
fn in_other_files_of_sessions() {
    let daemon = Daemon::start();
    let sessions = OTHERS
        .iter()
        .filter(|other| ["python", "javascript"].contains(&other.0) && other.4.is_some());
    for (language, code, name, content, line, place) in sessions {
        let files = json!({*name: content});
        let sandbox = daemon.sandbox(&json!({"language": language, "files": files}));
        let body = json!({"code": code});
        let result = daemon.post(&format!("{sandbox}/runs"), &body).ok();
        let error = &result["error"];
        assert_eq!(error["line"], json!(line), "{language} {result:#}");
        let message = error["message"].as_str().unwrap();
        let told = message.ends_with(&format!("(in {place})"));
        assert!(told, "{language} {error:#}");
    }
}

#[test]
fn lines_of_sessions() {
    let daemon = Daemon::start();
    for (language, code) in [
        ("bash", "echo\n\nnosuch"),
        ("bash", "echo\n\nif then"),
        ("bash", "echo\nf() {\n  nosuch\n}\nf"),
        ("ruby", "\n\nnosuch"),
        ("lua", "\n\nnosuch()"),
    ] {
        let sandbox = daemon.sandbox(&json!({"language": language}));
        let run = daemon.post(&format!("{sandbox}/runs"), &json!({"code": code}));
        let result = run.ok();
        assert_eq!(result["error"]["line"], 3, "{language} {result:#}");
    }
}

/// Command, category, a word of the message, and one of the hint.
#[test]
fn of_commands() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({"files": {"s.py": "\n\n\n1 / 0"}}));
    for (command, category, message, hint) in [
        (
            json!({"shell": "nosuch"}),
            "name",
            "nosuch: not found",
            "no command nosuch",
        ),
        (
            json!({"shell": "grpe x"}),
            "name",
            "grpe: not found",
            "mean grep?",
        ),
        (
            json!({"shell": "./nosuch"}),
            "name",
            "not found",
            "no program ./nosuch",
        ),
        (json!({"shell": "cat nosuch"}), "file", "nosuch", "files"),
        (
            json!({"shell": "echo 'wget: unable to resolve host address ‘x.test’' >&2; exit 4"}),
            "network",
            "wget",
            "asked for",
        ),
        (
            json!({"argv": ["python3", "s.py"]}),
            "value",
            "(in s.py:4)",
            "",
        ),
        (
            json!({"argv": ["bash", "-c", "nosuch"]}),
            "name",
            "nosuch",
            "no command nosuch",
        ),
    ] {
        let ended = daemon.post(&format!("{sandbox}/commands"), &command).ok();
        let debug = debug(&daemon, &ended["id"]);
        let error = &ended["error"];
        assert_eq!(error, &debug["error"], "{command}");
        assert_eq!(error["category"], category, "{command} {ended:#}");
        assert_eq!(error["line"], json!(null), "{command} {ended:#}");
        assert!(failing(&debug).is_empty(), "{debug:#}");
        for (field, word) in [("message", message), ("hint", hint)] {
            let text = error[field].as_str().unwrap_or_default();
            assert!(text.contains(word), "{command} {error:#}");
        }
    }
    // Where nothing is known, nothing is said.
    for quiet in [
        "exit 3",
        "echo well; echo said >&2",
        "echo some words >&2; exit 1",
    ] {
        let command = json!({ "shell": quiet });
        let ended = daemon.post(&format!("{sandbox}/commands"), &command).ok();
        assert_eq!(ended["error"], json!(null), "{ended:#}");
    }
    let late = json!({"shell": "sleep 60", "limits": {"timeout_ms": 300}});
    let ended = daemon.post(&format!("{sandbox}/commands"), &late).ok();
    assert_eq!(ended["error"]["category"], "timeout", "{ended:#}");
}

#[test]
fn of_what_is_forbidden() {
    let daemon = Daemon::start();
    let result = daemon.run(&json!({"code": "import os", "imports": ["json"]}));
    let hint = result["error"]["hint"].as_str().unwrap();
    assert!(
        hint.contains("(imports)") && !hint.contains("installed"),
        "{hint}"
    );
    // Clients know it by its end, wherever it was.
    let files = json!({"h.py": "import os"});
    let body = json!({"code": "import h", "imports": ["json", "h"], "files": files});
    let result = daemon.run(&body);
    assert_eq!(
        result["error"]["message"], "Import 'os' not allowed",
        "{result:#}"
    );
    let result = daemon.run(&json!({"code": "open('x', 'w')", "filesystem": "none"}));
    let hint = result["error"]["hint"].as_str().unwrap();
    assert!(
        hint.contains("(filesystem)") && !hint.contains("/tmp"),
        "{hint}"
    );
}

/// Language, code, category, line, message, and whether there is a hint.
#[test]
fn words_of_each_language() {
    let daemon = Daemon::start();
    for (language, code, category, line, message) in [
        (
            "r",
            "\nif (x {\n 1 }",
            "syntax",
            Some(2),
            "unexpected '{' in \"if (x {\"",
        ),
        (
            "r",
            "f <- function() {\n x <- 1\n  y z\n}",
            "syntax",
            Some(3),
            "unexpected symbol in \"y z\"",
        ),
        (
            "r",
            "\napply(1:10, 1, sum)",
            "other",
            Some(2),
            "dim(X) must have a positive length",
        ),
        (
            "r",
            "x <- data.frame(a=1)\nx[,'b']",
            "index",
            None,
            "undefined columns selected",
        ),
        (
            "php",
            "<?php\nif (1) {\n foo(1);",
            "syntax",
            Some(3),
            "Unclosed '{' on line 2",
        ),
        (
            "php",
            "<?php\necho FOO;",
            "name",
            Some(2),
            "Undefined constant \"FOO\"",
        ),
        (
            "php",
            "<?php\nfunction f(int $x) {}\n\nf('a');",
            "type",
            Some(4),
            "f(): Argument #1 ($x) must be of type int, string given",
        ),
        (
            "perl",
            "use strict;\nmy $x = foo;",
            "name",
            Some(2),
            "Bareword \"foo\" not allowed while \"strict subs\" in use",
        ),
        (
            "perl",
            "my $x = {};\npush @$x, 1;",
            "type",
            Some(2),
            "Not an ARRAY reference",
        ),
        (
            "bash",
            "set -u\necho $UNDEF",
            "name",
            Some(2),
            "UNDEF: unbound variable",
        ),
        (
            "javascript",
            "const assert = require('assert')\nassert(1 === 2)",
            "assertion",
            Some(2),
            "The expression evaluated to a falsy value: assert(1 === 2)",
        ),
    ] {
        let result = daemon.run(&json!({"language": language, "code": code}));
        let error = &result["error"];
        assert_eq!(error["category"], category, "{result:#}");
        assert_eq!(error["line"], json!(line), "{result:#}");
        assert_eq!(error["message"], message, "{result:#}");
        assert_eq!(error["hint"], json!(null), "{result:#}");
    }
    for language in ["javascript", "typescript"] {
        let code = "\nimport pad from 'left-pad'\npad()";
        let result = daemon.run(&json!({"language": language, "code": code}));
        let error = &result["error"];
        assert_eq!(
            (&error["category"], &error["line"]),
            (&json!("import"), &json!(2)),
            "{result:#}"
        );
    }
}
