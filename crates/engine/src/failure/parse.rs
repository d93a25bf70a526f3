//! What programs of each language print when they fail.

use std::sync::{LazyLock, OnceLock};

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
        languages: &["python", "command"],
        error: r"(?m)^(?<type>[A-Za-z_][\w.]*)(?:: (?<message>.*))?$",
        place: r#"(?m)^\s*File "[^"]*(?:main\.py|/workspace/[^"]*)", line (?<line>\d+)"#,
    },
    // What nothing has caught is told below the line that threw it, whatever it calls itself.
    Format {
        languages: &["javascript", "typescript"],
        error: r"(?m)^ *\^+\n\n(?<type>[A-Za-z_$][\w$.]*)(?: \[\w+\])?(?:: (?<message>.*))?$",
        place: r"(?m)(?:main|/workspace/[\w./-]+)\.[mc]?[jt]sx?:(?<line>\d+)(?::(?<column>\d+))?",
    },
    Format {
        languages: &["javascript", "typescript", "command"],
        error: r"(?m)^(?:Uncaught )?(?<type>(?:[A-Z]\w*)?(?:Error|Exception))(?: \[\w+\])?: (?<message>.*)$",
        place: r"(?m)(?:main|/workspace/[\w./-]+)\.[mc]?[jt]sx?:(?<line>\d+)(?::(?<column>\d+))?",
    },
    // What was thrown is no error, and says nothing of itself.
    Format {
        languages: &["javascript", "typescript"],
        error: r"(?m)^ *\^\n(?<message>.+)\n(?:.+\n)*?(?:\(Use `node --trace-uncaught|\nNode\.js v)",
        place: r"(?m)(?:main|/workspace/[\w./-]+)\.[mc]?[jt]sx?:(?<line>\d+)",
    },
    Format {
        languages: &["ruby"],
        error: r"(?m):(?<line>\d+):in [`'][^']*': (?<message>.*?) \((?<type>[A-Z][\w:]*)\)$",
        place: r"(?m)/workspace/[^:\n]*:(?<line>\d+):in",
    },
    Format {
        languages: &["ruby"],
        error: r"(?m)^[^\s:]+:(?<line>\d+): (?<message>.*?)(?: \((?<type>[A-Z][\w:]*)\))?$",
        place: "",
    },
    Format {
        languages: &["php"],
        error: r"(?m)(?:Fatal|Parse|Uncaught)\s?(?:error)?:\s+(?:Uncaught )?(?:(?<type>(?:\w+\\)*(?:[A-Z]\w*)?(?:Error|Exception)): )?(?<message>.*?) in \S+?(?:\.php)?(?::(?<line>\d+)| on line (?<line2>\d+))",
        place: "",
    },
    // A program that ended itself after it was warned.
    Format {
        languages: &["php"],
        error: r"(?m)^(?:PHP )?(?<type>Warning):\s+(?<message>.*?) in \S+ on line (?<line>\d+)$",
        place: "",
    },
    Format {
        languages: &["java"],
        error: r#"(?m)^(?:Exception in thread "[^"]*" |Caused by: )(?<type>[\w.$]+)(?:: (?<message>.*))?$"#,
        // Of a class without a package, as the code's own are.
        place: r"(?m)^\s+at [\w$]+\.[\w$<>]+\(\w+\.java:(?<line>\d+)\)",
    },
    Format {
        languages: &["go"],
        error: r"(?m)^(?:(?<type>panic|fatal error)): (?<message>.*)$",
        place: r"(?m)main\.go:(?<line>\d+)",
    },
    // What it logged before it ended itself.
    Format {
        languages: &["go"],
        error: r"(?m)^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d (?<message>.*)$",
        place: "",
    },
    Format {
        languages: &["rust"],
        error: r"(?m)^thread '[^']*'(?: \(\d+\))? (?<type>panicked) at [^:]*:(?<line>\d+):(?<column>\d+):\n(?<message>.*)$",
        place: "",
    },
    Format {
        languages: &["rust"],
        error: r"(?m)^thread '[^']*'(?: \(\d+\))? (?<message>has overflowed its stack)",
        place: "",
    },
    // What `main` returned.
    Format {
        languages: &["rust"],
        error: r"(?m)^Error: (?<message>.*)$",
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
    // It says it twice, and then shows the line.
    Format {
        languages: &["bash"],
        error: r"(?m)^[^\s:]*: (?:eval: )?line (?<line>\d+): (?<message>syntax error.*)$",
        place: "",
    },
    Format {
        languages: &["bash"],
        error: r"(?m)^[^\s:]*: line (?<line>\d+): (?<message>.*)$",
        place: "",
    },
    // What has drawn a meter goes on in the same line.
    Format {
        languages: &["bash", "command"],
        error: r"(?m)[\d ](?<message>curl: \(\d+\) .*)$",
        place: "",
    },
    // A program that was called.
    Format {
        languages: &["bash", "command"],
        error: r"(?m)^(?<message>[\w./+-]*[A-Za-z][\w.+-]*: .*)$",
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
        languages: &["lua"],
        error: r"(?m)^\S*lua\S*: (?<message>.*)$",
        place: r"(?m)/workspace/[^:\n]*:(?<line>\d+):",
    },
    Format {
        languages: &["r"],
        error: r"(?m)^Error(?: in (?:[^:]|::)+?)? ?:\s*(?<message>.*)$",
        place: "",
    },
];

/// What compilers print: a file with a line, or a line below a message.
const COMPILERS: [&str; 6] = [
    r"(?m)^[^\s:(]+:(?<line>\d+):(?:(?<column>\d+):)? (?:fatal )?error: (?<message>.*)$",
    r"(?m)^error(?:\[(?<type>E\d+)\])?: (?<message>.*)\n\s*--> [^:]+:(?<line>\d+):(?<column>\d+)",
    r"(?m)^[^\s:(]+\((?<line>\d+),(?<column>\d+)\): error (?<type>TS\d+): (?<message>.*)$",
    r"(?m)^\S+ \[ERROR\] (?<message>.*)\n\n\s*[^:\n]+:(?<line>\d+):(?<column>\d+):",
    r"(?m)^(?:\./)?[^\s:(]+:(?<line>\d+):(?<column>\d+): (?<message>.*)$",
    // A linker's: it knows no lines.
    r"(?m): (?<message>undefined reference to .*)$",
];

/// What only follows from another error, or only says that there was one.
const ECHOES: [&str; 7] = [
    "Missing right curly",
    "BEGIN failed--",
    "Execution of ",
    "Compilation failed in require",
    "declared but not used",
    "declared and not used",
    "imported and not used",
];

fn is_echo(claim: &Claim) -> bool {
    ECHOES.iter().any(|echo| claim.message.contains(echo))
}

type Compiled = (Option<Regex>, Option<Regex>);

/// Each is compiled when it is first needed.
static COMPILED: [OnceLock<Compiled>; FORMATS.len()] = [const { OnceLock::new() }; FORMATS.len()];

fn compiled(index: usize) -> &'static Compiled {
    let compile = |text: &str| Regex::new(text).ok().filter(|_| !text.is_empty());
    COMPILED[index].get_or_init(|| {
        let Format { error, place, .. } = &FORMATS[index];
        (compile(error), compile(place))
    })
}

/// Where Python begins to tell of an exception. Without it a last line is only what the code has printed.
fn exception(text: &str) -> Option<&str> {
    let begin = text
        .rfind("Traceback (most recent call last):")
        .or_else(|| text.rfind("  File \""))?;
    Some(&text[begin..])
}
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
    // What draws over its own line, as a meter of progress does, has ended that line.
    let text = end(stderr).replace('\r', "\n");
    let text = text.as_str();
    FORMATS
        .iter()
        .enumerate()
        .filter(|(_, format)| format.languages.contains(&language))
        .find_map(|(index, format)| {
            let (error, place) = compiled(index);
            let is_python = format.languages[0] == "python";
            let text = if is_python { exception(text)? } else { text };
            let claims = error
                .as_ref()?
                .captures_iter(text)
                .map(|found| claim(&found));
            let mut claim = claims.fold(None, |last: Option<Claim>, next| {
                if last.is_some() && is_echo(&next) {
                    return last;
                }
                Some(next)
            })?;
            // JavaScript and Go name the place of the error first, and then that of its callers.
            let place = place.as_ref().and_then(|place| {
                let mut places = place.captures_iter(text);
                if is_python {
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
    COMPILER_FORMATS.iter().find_map(|format| {
        let mut claims = format.captures_iter(text).map(|found| claim(&found));
        let first = claims.next()?;
        if !is_echo(&first) {
            return Some(first);
        }
        Some(claims.find(|claim| !is_echo(claim)).unwrap_or(first))
    })
}

#[cfg(test)]
mod tests;
