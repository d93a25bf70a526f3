//! What programs of each language print when they fail.

use std::sync::LazyLock;

use regex_lite::{Captures, Regex};

/// What the last error in an output says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Claim {
    pub kind: String,
    pub message: String,
    pub line: Option<u32>,
    pub column: Option<u32>,
}

/// How much of an output is looked at.
const MOST_BYTES: usize = 64 << 10;

/// `type` and `message` come from the last match of `error`, `line` from the last match of `place`, or from `error` itself.
struct Format {
    languages: &'static [&'static str],
    error: &'static str,
    place: &'static str,
}

const FORMATS: &[Format] = &[
    Format {
        languages: &["python"],
        error: r"(?m)^(?<type>[A-Za-z_][\w.]*)(?:: (?<message>.*))?$",
        place: r#"(?m)^\s*File "[^"]*(?:main\.py|/workspace/[^"]*)", line (?<line>\d+)"#,
    },
    Format {
        languages: &["javascript", "typescript"],
        error: r"(?m)^(?:Uncaught )?(?<type>[A-Z]\w*(?:Error|Exception))(?: \[\w+\])?: (?<message>.*)$",
        place: r"(?m)(?:main|/workspace/[\w./-]+)\.[mc]?[jt]sx?:(?<line>\d+)(?::(?<column>\d+))?",
    },
    Format {
        languages: &["ruby"],
        error: r"(?m):(?<line>\d+):in [`'][^']*': (?<message>.*?) \((?<type>[A-Z][\w:]*)\)$",
        place: "",
    },
    Format {
        languages: &["ruby"],
        error: r"(?m)^[^\s:]+:(?<line>\d+): (?<message>.*?)(?: \((?<type>[A-Z][\w:]*)\))?$",
        place: "",
    },
    Format {
        languages: &["php"],
        error: r"(?m)(?:Fatal|Parse|Uncaught)\s?(?:error)?:\s+(?:Uncaught )?(?:(?<type>[A-Z]\w*(?:Error|Exception)): )?(?<message>.*?) in \S+?(?:\.php)?(?::(?<line>\d+)| on line (?<line2>\d+))",
        place: "",
    },
    Format {
        languages: &["java"],
        error: r#"(?m)^(?:Exception in thread "[^"]*" |Caused by: )(?<type>[\w.$]+)(?:: (?<message>.*))?$"#,
        place: r"\((?:Main|main)\.java:(?<line>\d+)\)",
    },
    Format {
        languages: &["go"],
        error: r"(?m)^(?:(?<type>panic|fatal error)): (?<message>.*)$",
        place: r"(?m)main\.go:(?<line>\d+)",
    },
    Format {
        languages: &["rust"],
        error: r"(?m)^thread '[^']*'(?: \(\d+\))? (?<type>panicked) at [^:]*:(?<line>\d+):(?<column>\d+):\n(?<message>.*)$",
        place: "",
    },
    Format {
        languages: &["cpp", "c"],
        error: r"(?m)terminate called after throwing an instance of '(?<type>[^']+)'(?:\n\s+what\(\):\s+(?<message>.*))?",
        place: "",
    },
    Format {
        languages: &["cpp", "c"],
        error: r"(?m)^.*?(?<line>\d+): [^:]*: (?<message>Assertion .*)$",
        place: "",
    },
    Format {
        languages: &["bash"],
        error: r"(?m)^[^\s:]*: line (?<line>\d+): (?<message>.*)$",
        place: "",
    },
    Format {
        languages: &["perl"],
        error: r"(?m)^(?<message>.*?) at \S+ line (?<line>\d+)\b",
        place: "",
    },
    Format {
        languages: &["lua"],
        error: r"(?m)^\S*lua\S*: [^:]+:(?<line>\d+): (?<message>.*)$",
        place: "",
    },
    Format {
        languages: &["r"],
        error: r"(?m)^Error(?: in (?:[^:]|::)+?)? ?:\s*(?<message>.*)$",
        place: "",
    },
];

/// What compilers print: a file with a line, or a line below a message.
const COMPILERS: [&str; 4] = [
    r"(?m)^[^\s:(]+:(?<line>\d+):(?:(?<column>\d+):)? (?:fatal )?error: (?<message>.*)$",
    r"(?m)^error(?:\[(?<type>E\d+)\])?: (?<message>.*)\n\s*--> [^:]+:(?<line>\d+):(?<column>\d+)",
    r"(?m)^[^\s:(]+\((?<line>\d+),(?<column>\d+)\): error (?<type>TS\d+): (?<message>.*)$",
    r"(?m)^(?:\./)?[^\s:(]+:(?<line>\d+):(?<column>\d+): (?<message>.*)$",
];

/// Compiled when they are first needed.
static COMPILED: LazyLock<Vec<(Option<Regex>, Option<Regex>)>> = LazyLock::new(|| {
    let compile = |text: &str| Regex::new(text).ok().filter(|_| !text.is_empty());
    let pair = |format: &Format| (compile(format.error), compile(format.place));
    FORMATS.iter().map(pair).collect()
});
static COMPILER_FORMATS: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    COMPILERS
        .iter()
        .filter_map(|text| Regex::new(text).ok())
        .collect()
});

fn end(text: &str) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(MOST_BYTES))..]
}

fn number(found: &Captures<'_>, names: &[&str]) -> Option<u32> {
    names
        .iter()
        .find_map(|name| found.name(name))
        .and_then(|text| text.as_str().parse().ok())
}

fn claim(found: &Captures<'_>) -> Claim {
    let text = |name: &str| {
        let text = found.name(name).map_or("", |found| found.as_str());
        text.trim().chars().take(2000).collect::<String>()
    };
    Claim {
        kind: text("type"),
        message: text("message"),
        line: number(found, &["line", "line2"]),
        column: number(found, &["column"]),
    }
}

/// Why a program ended, by the last error it printed.
pub fn program(language: &str, stderr: &str) -> Option<Claim> {
    let text = end(stderr);
    FORMATS
        .iter()
        .zip(COMPILED.iter())
        .filter(|(format, _)| format.languages.contains(&language))
        .find_map(|(_, (error, place))| {
            let found = error.as_ref()?.captures_iter(text).last()?;
            let mut claim = claim(&found);
            // JavaScript and Go name the place of the error first, and then that of its callers.
            let place = place.as_ref().and_then(|place| {
                let mut places = place.captures_iter(text);
                if language == "python" {
                    places.last()
                } else {
                    places.next()
                }
            });
            if let Some(place) = place {
                claim.line = number(&place, &["line"]);
                claim.column = number(&place, &["column"]);
            }
            Some(claim)
        })
}

/// The first error a compiler reports; the others often follow from it.
pub fn compiler(output: &str) -> Option<Claim> {
    let text = &output[..output.floor_char_boundary(MOST_BYTES)];
    COMPILER_FORMATS
        .iter()
        .find_map(|format| format.captures(text))
        .map(|found| claim(&found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_is_one() {
        assert_eq!(COMPILER_FORMATS.len(), COMPILERS.len());
        for (format, (error, place)) in FORMATS.iter().zip(COMPILED.iter()) {
            assert!(error.is_some(), "{}", format.error);
            assert_eq!(
                place.is_some(),
                !format.place.is_empty(),
                "{}",
                format.place
            );
        }
    }

    #[test]
    fn each_language_in_its_own_words() {
        for (language, text, kind, message, line) in [
            (
                "python",
                "Traceback (most recent call last):\n  File \"/workspace/main.py\", line 7, in <module>\n    f()\n  File \"/workspace/main.py\", line 3, in f\n    1/0\n    ~^~\nZeroDivisionError: division by zero\n",
                "ZeroDivisionError",
                "division by zero",
                Some(3),
            ),
            (
                "python",
                "  File \"/workspace/main.py\", line 2\n    if x\n        ^\nSyntaxError: expected ':'\n",
                "SyntaxError",
                "expected ':'",
                Some(2),
            ),
            (
                "javascript",
                "/workspace/main.js:3\nfoo();\n^\n\nReferenceError: foo is not defined\n    at Object.<anonymous> (/workspace/main.js:3:1)\n    at Module._compile (node:internal/modules/cjs/loader:1554:14)\n\nNode.js v18\n",
                "ReferenceError",
                "foo is not defined",
                Some(3),
            ),
            (
                "ruby",
                "/workspace/main.rb:2:in `foo': undefined local variable or method `x' for main:Object (NameError)\n\tfrom /workspace/main.rb:5:in `<main>'\n",
                "NameError",
                "undefined local variable or method `x' for main:Object",
                Some(2),
            ),
            (
                "php",
                "PHP Fatal error:  Uncaught TypeError: f(): Argument #1 must be of type int, string given in /workspace/main.php:4\nStack trace:\n#0 {main}\n  thrown in /workspace/main.php on line 4\n",
                "TypeError",
                "f(): Argument #1 must be of type int, string given",
                Some(4),
            ),
            (
                "java",
                "Exception in thread \"main\" java.lang.ArrayIndexOutOfBoundsException: Index 5 out of bounds for length 3\n\tat Main.f(Main.java:4)\n\tat Main.main(Main.java:9)\n",
                "java.lang.ArrayIndexOutOfBoundsException",
                "Index 5 out of bounds for length 3",
                Some(4),
            ),
            (
                "go",
                "panic: runtime error: index out of range [5] with length 3\n\ngoroutine 1 [running]:\nmain.main()\n\t/workspace/main.go:7 +0x1d\nexit status 2\n",
                "panic",
                "runtime error: index out of range [5] with length 3",
                Some(7),
            ),
            (
                "rust",
                "\nthread 'main' panicked at /workspace/main.rs:3:5:\nattempt to divide by zero\nnote: run with `RUST_BACKTRACE=1`\n",
                "panicked",
                "attempt to divide by zero",
                Some(3),
            ),
            (
                "cpp",
                "terminate called after throwing an instance of 'std::out_of_range'\n  what():  vector::_M_range_check\n",
                "std::out_of_range",
                "vector::_M_range_check",
                None,
            ),
            (
                "bash",
                "/workspace/main.sh: line 2: foo: command not found\n",
                "",
                "foo: command not found",
                Some(2),
            ),
            (
                "perl",
                "Illegal division by zero at /workspace/main.pl line 3.\n",
                "",
                "Illegal division by zero",
                Some(3),
            ),
            (
                "lua",
                "lua: /workspace/main.lua:2: attempt to call a nil value (global 'foo')\nstack traceback:\n\t[C]: in ?\n",
                "",
                "attempt to call a nil value (global 'foo')",
                Some(2),
            ),
            (
                "r",
                "Error in library(nope) : there is no package called ‘nope’\nExecution halted\n",
                "",
                "there is no package called ‘nope’",
                None,
            ),
        ] {
            let claim = program(language, text).unwrap_or_else(|| panic!("{language}"));
            assert_eq!(
                (claim.kind.as_str(), claim.message.as_str(), claim.line),
                (kind, message, line),
                "{language}"
            );
        }
    }

    #[test]
    fn each_compiler_in_its_own_words() {
        for (text, message, line) in [
            (
                "/workspace/main.c: In function 'main':\n/workspace/main.c:3:5: error: 'x' undeclared (first use in this function)\n",
                "'x' undeclared (first use in this function)",
                3,
            ),
            (
                "error[E0425]: cannot find value `x` in this scope\n --> /workspace/main.rs:2:20\n  |\n",
                "cannot find value `x` in this scope",
                2,
            ),
            (
                "# command-line-arguments\n./main.go:4:2: undefined: x\n",
                "undefined: x",
                4,
            ),
            (
                "/workspace/Main.java:3: error: cannot find symbol\n",
                "cannot find symbol",
                3,
            ),
            (
                "main.ts(3,5): error TS2304: Cannot find name 'x'.\n",
                "Cannot find name 'x'.",
                3,
            ),
        ] {
            let claim = compiler(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!((claim.message.as_str(), claim.line), (message, Some(line)));
        }
        assert_eq!(compiler("nothing of the kind"), None);
    }
}
