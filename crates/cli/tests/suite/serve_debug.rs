//! What went wrong in a run, in the words of each language.

use serde_json::{Value, json};

use super::daemon::Daemon;

/// Language, code, category, the line, and a word of the hint.
type Failure = (
    &'static str,
    &'static str,
    &'static str,
    Option<u32>,
    &'static str,
);

fn check(failures: &[Failure]) {
    let daemon = Daemon::start();
    for (language, code, category, line, word) in failures {
        let body = json!({"language": language, "code": code});
        let result = daemon.run(&body);
        let id = result["id"].as_str().unwrap();
        let debug = daemon.get(&format!("/v1/runs/{id}/debug")).ok();
        let error = &debug["error"];
        assert_eq!(result["error"], *error, "{language} {code}");
        assert_eq!(
            (&error["category"], &error["line"]),
            (&json!(category), &json!(line)),
            "{language} {code}: {debug}"
        );
        let hint = error["hint"].as_str().unwrap_or_default();
        assert!(hint.contains(word), "{language} {code}: {hint:?}");
        let failing: Vec<&Value> = debug["source"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|line| line["failing"] == true)
            .collect();
        assert_eq!(failing.len(), usize::from(line.is_some()), "{debug}");
    }
}

#[test]
fn of_interpreters() {
    check(&[
        ("python", "import sklear_n", "import", Some(1), "sklear_n"),
        (
            "python",
            "x = [1]\nx.apend(2)",
            "attribute",
            Some(2),
            "append",
        ),
        ("python", "x = [1]\n\nx[5]", "index", Some(3), ""),
        (
            "python",
            "import os\nos.abort()",
            "signal",
            None,
            "exception",
        ),
        (
            "javascript",
            "const total = 1;\nconsole.log(totl)",
            "name",
            Some(2),
            "total",
        ),
        (
            "javascript",
            "require('left-pad')",
            "import",
            Some(1),
            "left-pad",
        ),
        (
            "javascript",
            "\nrequire('fs').readFileSync('nope')",
            "file",
            Some(2),
            "files",
        ),
        (
            "javascript",
            "throw new Error('boom')",
            "other",
            Some(1),
            "",
        ),
        (
            "typescript",
            "const x: any = null;\nx.y",
            "attribute",
            Some(2),
            "",
        ),
        ("ruby", "total = 1\nputs totl", "name", Some(2), "total"),
        ("ruby", "\n\nrequire 'nope'", "import", Some(3), "nope"),
        ("ruby", "Integer('a')", "value", Some(1), ""),
        (
            "php",
            "<?php\n$x = null;\n$x->y();",
            "attribute",
            Some(3),
            "",
        ),
        (
            "php",
            "<?php\nrequire 'nope.php';",
            "file",
            Some(2),
            "files",
        ),
        ("bash", "echo\nnope", "name", Some(2), "nope"),
        ("bash", "if then", "syntax", Some(1), ""),
        ("bash", "cat nope", "file", None, "files"),
        (
            "bash",
            "total=1\nset -u; echo $totl",
            "name",
            Some(2),
            "total",
        ),
        (
            "perl",
            "use strict; my $total = 1;\nprint $totl;",
            "name",
            Some(2),
            "total",
        ),
        ("perl", "use Nope::Mod;", "import", Some(1), "Nope::Mod"),
        ("perl", "my $x;\n$x->foo();", "attribute", Some(2), ""),
        ("lua", "local t = nil\nt.x()", "attribute", Some(2), ""),
        ("lua", "require('nope')", "import", Some(1), "nope"),
        ("lua", "return 1 + {}", "type", Some(1), ""),
        ("r", "total <- 1\nprint(totl)", "name", Some(2), "total"),
        ("r", "\nx <- readLines('nope')", "file", Some(2), "files"),
        ("r", "library(nope)", "import", Some(1), "nope"),
    ]);
}

#[test]
fn of_what_says_little() {
    check(&[
        (
            "r",
            "f <- function(a) {\n  stop('no')\n}\n\nf( 3 )",
            "other",
            Some(5),
            "",
        ),
        ("r", "x <- 1\n\ny <- 3 3", "syntax", Some(3), ""),
        // It cannot be told which.
        ("r", "f <- function() log('a')\nlog('a')", "type", None, ""),
        (
            "javascript",
            "class NotFound extends Error {}\nthrow new NotFound('q')",
            "other",
            Some(2),
            "",
        ),
        ("javascript", "\nthrow {a: 1}", "other", Some(2), ""),
        ("perl", "if (1 {", "syntax", Some(1), ""),
        (
            "cpp",
            "int main() { std::cout << 1; }",
            "compile",
            Some(1),
            "#include <iostream>",
        ),
        (
            "go",
            "package main\nimport (\"log\"; \"os\")\nfunc main() { _, err := os.Open(\"nope\"); log.Fatal(err) }",
            "file",
            None,
            "files",
        ),
    ]);
}

#[test]
fn of_compilers_and_what_they_made() {
    check(&[
        (
            "c",
            "int main() {\n  int total = 1;\n  return totl; }",
            "compile",
            Some(3),
            "total",
        ),
        (
            "c",
            "#include <nope.h>\nint main() {}",
            "compile",
            Some(1),
            "nope.h",
        ),
        (
            "c",
            "#include <assert.h>\nint main() { assert(1 == 2); }",
            "assertion",
            Some(2),
            "",
        ),
        (
            "c",
            "int main() { return *(volatile int *)0; }",
            "signal",
            None,
            "pointer",
        ),
        (
            "cpp",
            "#include <vector>\nint main() { std::vector<int> v; v.at(5); }",
            "index",
            None,
            "",
        ),
        (
            "cpp",
            "#include <stdexcept>\nint main() { throw std::runtime_error(\"x\"); }",
            "other",
            None,
            "",
        ),
        (
            "go",
            "package main\nimport \"fmt\"\nfunc main() {\n total := 1\n fmt.Println(totl) }",
            "compile",
            Some(5),
            "total",
        ),
        (
            "go",
            "package main\nfunc main() {\n x := []int{1}\n i := 5\n println(x[i]) }",
            "index",
            Some(5),
            "",
        ),
        (
            "java",
            "class Main { public static void main(String[] a) {\n int[] x = new int[1];\n System.out.println(x[5]); } }",
            "index",
            Some(3),
            "",
        ),
        (
            "java",
            "class Main { public static void main(String[] a) {\n int total = 1;\n System.out.println(totl); } }",
            "compile",
            Some(3),
            "total",
        ),
        (
            "rust",
            "fn main() {\n let total = 1;\n println!(\"{}\", totl); }",
            "compile",
            Some(3),
            "total",
        ),
        (
            "rust",
            "fn main() {\n \"x\".parse::<i32>().unwrap(); }",
            "value",
            Some(2),
            "",
        ),
        ("typescript", "\nconst x: = ;", "compile", Some(2), ""),
    ]);
}

#[test]
fn of_what_is_easily_mistaken() {
    check(&[
        (
            "python",
            "from json import lods",
            "import",
            Some(1),
            "json is there",
        ),
        (
            "javascript",
            "\nawait fetch('http://127.0.0.1:9')",
            "network",
            Some(2),
            "network",
        ),
        ("javascript", "[1].pusj(2)", "attribute", Some(1), "push"),
        ("php", "<?php\n\nnew Nope();", "name", Some(3), ""),
        ("bash", "echo\necho $((1 / 0))", "value", Some(2), ""),
        (
            "c",
            "int total(void);\nint totle(void) { return 1; }\nint main() { return total(); }",
            "compile",
            None,
            "totle",
        ),
        (
            "java",
            "import org.nope.Thing;\nclass Main { public static void main(String[] a) {} }",
            "compile",
            Some(1),
            "org.nope is not here",
        ),
    ]);
}

#[test]
fn it_says_what_ran() {
    let daemon = Daemon::start();
    let text = |id: &Value| {
        let path = format!("/v1/runs/{}/debug", id.as_str().unwrap());
        daemon.get(&path).ok()["text"].as_str().unwrap().to_owned()
    };
    let sandbox = daemon.sandbox(&json!({}));
    let command = json!({"argv": ["sh", "-c", "echo out; exit 3"]});
    let ended = daemon.post(&format!("{sandbox}/commands"), &command).ok();
    let report = text(&ended["id"]);
    // Not an error of the sandbox's Python.
    assert!(
        report.contains("(command): failed") && report.contains("1 | sh -c 'echo out; exit 3'"),
        "{report}"
    );
    let code = format!("import sys\n{}sys.exit(4)", "x = 1\n".repeat(20));
    let ended = daemon.run(&json!({"code": code, "args": ["one", "two"]}));
    let report = text(&ended["id"]);
    for part in [
        "Arguments: [\"one\", \"two\"]",
        "Source (10 of 22 lines):\n     1 | import sys\n",
        "exited with code 4",
    ] {
        assert!(report.contains(part), "{part:?}: {report}");
    }
    assert!(!report.contains('>'), "{report}");
}

#[test]
fn limits_are_told_alike_in_every_language() {
    let daemon = Daemon::start();
    let limits = json!({"timeout_ms": 1500, "memory_bytes": "64m"});
    let endless = [
        ("python", "while True: pass"),
        ("javascript", "for (;;);"),
        ("bash", "while :; do :; done"),
        ("ruby", "loop {}"),
    ];
    let told = |result: &Value| {
        let error = &result["error"];
        assert_eq!(result["exit_code"], json!(null), "{result}");
        assert_eq!(error["type"], "TimeoutError", "{result}");
        assert_eq!(error["message"], "the time was up after 1500 ms");
        assert_eq!(error["category"], "timeout");
        assert!(error["hint"].as_str().unwrap().contains("loop"), "{error}");
    };
    for (language, code) in endless {
        let body = json!({"language": language, "code": code, "limits": {"timeout_ms": 1500}});
        told(&daemon.run(&body));
        let sandbox = daemon.sandbox(&json!({"language": language}));
        let body = json!({"code": code, "limits": {"timeout_ms": 1500}});
        told(&daemon.post(&format!("{sandbox}/runs"), &body).ok());
    }
    let caught = "try:\n  while True: pass\nexcept BaseException: pass";
    told(&daemon.run(&json!({"code": caught, "limits": {"timeout_ms": 1500}})));
    let body = json!({"code": "x = bytearray(300 << 20)", "limits": limits});
    let result = daemon.run(&body);
    assert_eq!(result["status"], "out_of_memory", "{result}");
    assert_eq!(result["error"]["type"], "MemoryError", "{result}");
    assert_eq!(result["error"]["category"], "memory", "{result}");
}

#[test]
fn what_code_means_does_not_depend_on_what_waits() {
    for settings in ["[pool]\npython = 0\n", "[pool]\njavascript = 1\n"] {
        let daemon = Daemon::with(settings);
        assert_eq!(daemon.run(&json!({"code": "return 6 * 7"}))["value"], 42);
        let result = daemon.run(&json!({"code": "x = 1\nx / 0"}));
        let error = &result["error"];
        assert_eq!(error["type"], "ZeroDivisionError", "{result}");
        assert_eq!(error["line"], 2, "{result}");
        assert_eq!(error["category"], "value", "{result}");
    }
}

#[test]
fn of_what_is_easily_taken_for_something_else() {
    check(&[
        ("ruby", "\n'x'.upcas", "attribute", Some(2), "upcase"),
        ("python", "'x'.uper()", "attribute", Some(1), "mean upper"),
        (
            "python",
            "d = {'alpha': 1}\nd['alhpa']",
            "index",
            Some(2),
            "alpha?",
        ),
        ("javascript", "\nthrow 'words'", "other", Some(2), ""),
        ("javascript", "JSON.parse('{bad')", "value", Some(1), ""),
        (
            "php",
            "<?php\nfile_get_contents('http://site.test/') or exit(1);",
            "network",
            Some(2),
            "asked for",
        ),
        ("lua", "error({code = 2})", "other", Some(1), ""),
        ("bash", "grpe x", "name", Some(1), "grep"),
        ("bash", "touch x\n./x", "permission", Some(2), "chmod"),
        ("bash", "echo \"x", "syntax", Some(1), ""),
        (
            "cpp",
            "#include <iostream>\nint main() { cout << 1; }",
            "compile",
            Some(2),
            "std::cout",
        ),
        (
            "rust",
            "fn main() -> Result<(), Box<dyn std::error::Error>> { std::fs::read(\"nope\")?; Ok(()) }",
            "file",
            None,
            "files",
        ),
        (
            "go",
            "package main\nfunc main() {\n var m map[string]int\n m[\"a\"] = 1 }",
            "type",
            Some(4),
            "",
        ),
    ]);
}

/// Where there is a network, it is not the lack of one that kept the code from something.
#[test]
fn of_networks() {
    let daemon = Daemon::start();
    let fetch = |url: &str| format!("import urllib.request\nurllib.request.urlopen({url:?})");
    for (network, code, words) in [
        (
            json!("none"),
            fetch("http://site.test/"),
            "unless it is asked for",
        ),
        (
            json!(["site.test"]),
            fetch("http://other.test/"),
            "no rule allows other.test:80",
        ),
        (
            json!("all"),
            fetch("http://10.0.0.1/"),
            "10.0.0.1 is private",
        ),
        (
            json!(["site.test"]),
            "import socket\nsocket.create_connection(('192.0.2.1', 80))".into(),
            "by the names",
        ),
    ] {
        let result = daemon.run(&json!({"code": code, "network": network}));
        let error = &result["error"];
        assert_eq!(error["category"], "network", "{result:#}");
        let hint = error["hint"].as_str().unwrap_or_default();
        assert!(hint.contains(words), "{network} {code}: {hint:?}");
    }
}

#[test]
fn of_code_that_was_printed_and_not_run() {
    let daemon = Daemon::start();
    for (code, printed) in [
        ("echo 6 * 7;", true),
        ("<?php echo 6 * 7;", false),
        ("text <?= 6 * 7 ?>", false),
    ] {
        let body = json!({"code": code, "language": "php"});
        let result = daemon.post("/v1/runs", &body).ok();
        assert_eq!(result["status"], "ok", "{result:#}");
        let id = result["id"].as_str().unwrap();
        let debug = daemon.get(&format!("/v1/runs/{id}/debug")).ok();
        for told in ["summary", "text"] {
            let told = debug[told].as_str().unwrap();
            assert_eq!(told.contains("<?php` in it"), printed, "{code}: {told}");
        }
    }
}
