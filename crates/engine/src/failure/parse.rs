//! What programs of each language print when they fail.

use std::sync::{LazyLock, OnceLock};

use regex_lite::{Captures, Match, Regex};

use super::place::Place;

/// What the last error in an output says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Claim {
    pub kind: String,
    pub message: String,
    pub line: Option<u32>,
    pub column: Option<u32>,
    /// The line of another file, like `lib/h.js:6`, where the error is in that.
    pub elsewhere: Option<String>,
}

/// How much of an output is looked at.
const MOST_BYTES: usize = 64 << 10;
/// How much of a message is passed on.
const MOST_MESSAGE: usize = 2000;

/// `type` and `message` come from the last match of `error`. Where it is: in the `file` and `line` of that, then in those of `place`, which
/// are what called it. Python tells it the other way round.
struct Format {
    languages: &'static [&'static str],
    error: &'static str,
    place: &'static str,
}

const FORMATS: &[Format] = &[
    // Of this just the first line that is not indented: see `of_python`.
    Format {
        languages: &["python", "command"],
        error: r"^(?<type>[^\W\d][^\s:]*)(?:: ?(?<message>.*))?$",
        place: r#"(?m)^\s*File "(?<file>[^"]*)", line (?<line>\d+)"#,
    },
    // Several at once, in a frame; those that are in it are further in. A message may have lines, which are not.
    Format {
        languages: &["python", "command"],
        error: r"(?m)^  \| (?<type>[A-Za-z_][\w.]*): (?<message>(?s:.*?) \(\d+ sub-exceptions?\))$",
        place: r#"(?m)^  \|   File "(?<file>[^"]*)", line (?<line>\d+)"#,
    },
    // What a promise was rejected with is no error: of all that is said then, only the end is about it.
    Format {
        languages: &["javascript", "typescript"],
        error: r"(?m)^(?<type>UnhandledPromiseRejection)(?: \[\w+\])?: .* The (?<message>promise rejected with .*)$",
        place: SCRIPT,
    },
    // What nothing has caught is told below the line that threw it, whatever it calls itself.
    Format {
        languages: &["javascript", "typescript"],
        error: r"(?m)^(?<file>\S+):(?<line>\d+)\n.*\n *\^+\n\n+(?<type>[A-Za-z_$][\w$.]*)(?: \[\w+\])?(?:: (?<message>.*))?$",
        place: SCRIPT,
    },
    Format {
        languages: &["javascript", "typescript", "command"],
        error: r"(?m)^(?:(?<file>\S+):(?<line>\d+)\n.*\n *\^+\n+)?(?:Uncaught )?(?<type>(?:[A-Z]\w*)?(?:Error|Exception))(?: \[\w+\])?: (?<message>.*)$",
        place: SCRIPT,
    },
    // What was thrown is no error, and says nothing of itself.
    Format {
        languages: &["javascript", "typescript"],
        error: r"(?m)^(?<file>\S+):(?<line>\d+)\n.*\n *\^\n(?<message>.+)\n(?:.+\n)*?(?:\(Use `node --trace-uncaught|\nNode\.js v)",
        place: "",
    },
    Format {
        languages: &["ruby"],
        error: r"(?m)^(?<file>\S+?):(?<line>\d+):in [`'][^']*': (?<message>.*?) \((?<type>[A-Z][\w:]*)\)$",
        place: r"(?m)^\s+(?:\d+: )?from (?<file>\S+?):(?<line>\d+):in",
    },
    Format {
        languages: &["ruby"],
        error: r"(?m)^(?<file>[^\s:]+):(?<line>\d+): (?<message>.*?)(?: \((?<type>[A-Z][\w:]*)\))?$",
        place: "",
    },
    // Of an argument that does not fit it says who called, too; of `eval`, where that was.
    Format {
        languages: &["php"],
        error: r"(?m)(?:Fatal|Parse|Uncaught)\s?(?:error)?:\s+(?:Uncaught )?(?:(?<type>(?:\w+\\)*(?:[A-Z]\w*)?(?:Error|Exception)): )?(?<message>.*?)(?:, called)? in (?<file>\S+?)(?:\((?<line3>\d+)\) : eval\(\)'d code|:(?<line>\d+)| on line (?<line2>\d+))",
        place: r"(?m)^#\d+ (?<file>[^(\n]+)\((?<line>\d+)\)",
    },
    // With a message of several lines.
    Format {
        languages: &["php"],
        error: r"(?m)Fatal error:\s+Uncaught (?<type>(?:\w+\\)*\w+): (?<message>(?s:.*?)) in (?<file>\S+?):(?<line>\d+)\nStack trace:$",
        place: r"(?m)^#\d+ (?<file>[^(\n]+)\((?<line>\d+)\)",
    },
    // A program that ended itself after it was warned.
    Format {
        languages: &["php"],
        error: r"(?m)^(?:PHP )?(?<type>Warning):\s+(?<message>.*?) in (?<file>\S+) on line (?<line>\d+)$",
        place: "",
    },
    Format {
        languages: &["java"],
        error: r#"(?m)^(?:Exception in thread "[^"]*" |Caused by: )(?<type>[\w.$]+)(?:: (?<message>.*))?$"#,
        // Those of the language are told with the module they are in.
        place: r"(?m)^\s+at (?:[\w$]+\.)+[\w$<>]+\((?<file>\w+\.java):(?<line>\d+)\)",
    },
    Format {
        languages: &["go"],
        error: r"(?m)^(?:(?<type>panic|fatal error)): (?<message>.*)$",
        place: r"(?m)^\t(?<file>\S+\.go):(?<line>\d+)",
    },
    // What it logged before it ended itself.
    Format {
        languages: &["go"],
        error: r"(?m)^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d (?<message>.*)$",
        place: "",
    },
    Format {
        languages: &["rust"],
        error: r"(?m)^thread '[^']*'(?: \(\d+\))? (?<type>panicked) at (?<file>[^:\n]*):(?<line>\d+):(?<column>\d+):\n(?<message>.*)$",
        place: r"(?m)^\s+at (?<file>\S+\.rs):(?<line>\d+):(?<column>\d+)$",
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
        error: r"(?m)^(?:.*?\s)?(?<file>[^\s:]+):(?<line>\d+): .*?: (?<message>Assertion .*)$",
        place: "",
    },
    // It says it twice, and then shows the line.
    Format {
        languages: &["bash", "command"],
        error: r"(?m)^(?<file>[^\s:]*): (?:eval: |-c: )?line (?<line>\d+): (?<message>syntax error.*)$",
        place: "",
    },
    Format {
        languages: &["bash", "command"],
        error: r"(?m)^(?<file>[^\s:]*): line (?<line>\d+): (?<message>.*)$",
        place: "",
    },
    // Of another shell, which commands are given to.
    Format {
        languages: &["bash", "command"],
        error: r"(?m)^(?<file>[^\s:]*): (?<line>\d+): (?:eval: )?(?<message>\S.*)$",
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
        error: r"(?m)^(?<message>\S.*?) at (?<file>\(eval \d+\)|\S+) line (?<line>\d+)\b",
        place: r"(?m) at (?<file>\S+) line (?<line>\d+)\b",
    },
    Format {
        languages: &["lua"],
        error: r"(?m)^\S*lua\S*: (?:error loading module .*:\n\s+)?(?<file>[^:\n]+):(?<line>\d+): (?<message>.*)$",
        place: CHUNK,
    },
    Format {
        languages: &["lua"],
        error: r"(?m)^\S*lua\S*: (?<message>.*)$",
        place: CHUNK,
    },
    // The call may have colons in it, but none between spaces; libraries put it in quotes of their own.
    Format {
        languages: &["r"],
        error: r"(?m)^Error(?: in (?:`[^`\n]*`:\s|.+? :\s)| ?:\s)\s*(?<message>.*)$",
        place: "",
    },
];

/// A frame of Node.js: `at f (/workspace/main.js:3:8)`.
const SCRIPT: &str =
    r"(?m)^\s+at (?:.*\()?(?:async )?(?<file>[^\s()]+?):(?<line>\d+):(?<column>\d+)\)?";
/// A frame of Lua.
const CHUNK: &str = r"(?m)^\s+(?<file>[^\s:]+):(?<line>\d+): in";

/// What compilers print: a file with a line, or a line below a message.
const COMPILERS: [&str; 6] = [
    r"(?m)^(?<file>[^\s:(]+):(?<line>\d+):(?:(?<column>\d+):)? (?:fatal )?error: (?<message>.*)$",
    r"(?m)^error(?:\[(?<type>E\d+)\])?: (?<message>.*)\n\s*--> (?<file>[^:\n]+):(?<line>\d+):(?<column>\d+)",
    r"(?m)^(?<file>[^\s:(]+)\((?<line>\d+),(?<column>\d+)\): error (?<type>TS\d+): (?<message>.*)$",
    r"(?m)^\S+ \[ERROR\] (?<message>.*)\n\n\s*(?<file>[^:\n]+):(?<line>\d+):(?<column>\d+):",
    r"(?m)^(?<file>(?:\./)?[^\s:(]+):(?<line>\d+):(?<column>\d+): (?<message>.*)$",
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

/// What Python says of an exception, from where it begins to tell: below the calls, each of which is indented, its type and message.
/// Lines of the message and notes come after that, and may look like anything.
fn of_python(language: &str, main: &str, text: &str) -> Option<Claim> {
    let (error, frame) = compiled(0);
    let mut begin = text.find('\n')? + 1;
    let line = loop {
        let line = text[begin..].lines().next()?;
        if !line.is_empty() && !line.starts_with([' ', '\t']) {
            break line;
        }
        begin += text[begin..].find('\n')? + 1;
    };
    let mut claim = claim(&error.as_ref()?.captures(line)?);
    // What a command prints after it may be of another program.
    if language == "python" {
        claim.message = with_rest(&claim.message, &text[begin + line.len()..]);
    }
    let mut calls = places(frame.as_ref(), &text[..begin]);
    calls.reverse();
    Some(claim.at(calls, main))
}

fn with_rest(message: &str, rest: &str) -> String {
    let whole = format!("{message}{rest}");
    whole.trim().chars().take(MOST_MESSAGE).collect()
}

/// How it begins to tell of several at once.
const GROUP: &str = "  + Exception Group";

/// Where Python begins to tell of an exception. Without it a last line is only what the code has printed.
fn exception(text: &str) -> Option<&str> {
    const BEGIN: &str = "Traceback (most recent call last):";
    let group = text.rfind(&format!("{GROUP} {BEGIN}"));
    let is_last = |group: &usize| !text[*group..].contains(&format!("\n{BEGIN}"));
    let begin = group
        .filter(is_last)
        .or_else(|| text.rfind(BEGIN))
        .or_else(|| text.rfind("  File \""))?;
    Some(&text[begin..])
}
static COMPILER_FORMATS: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    COMPILERS
        .iter()
        .filter_map(|text| Regex::new(text).ok())
        .collect()
});

/// What a compiler of C says first of an error in a header: who includes it, or needs what is there.
static INCLUDED: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(r"(?m)^(?:In file included from |\s+from )?(?<file>[^\s:,]+):(?<line>\d+)(?::(?<column>\d+))?[:,]").ok()
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

fn place(found: &Captures<'_>) -> Option<Place> {
    let line = number(found, &["line", "line2", "line3"])?;
    let column = number(found, &["column"]);
    Some(Place::new(found.name("file")?.as_str(), line, column))
}

fn places(frame: Option<&Regex>, told: &str) -> Vec<Place> {
    let frames = frame.iter().flat_map(|frame| frame.captures_iter(told));
    frames.filter_map(|frame| place(&frame)).collect()
}

fn claim(found: &Captures<'_>) -> Claim {
    let text = |name: &str| {
        let text = found.name(name).map_or("", |found| found.as_str());
        text.trim().chars().take(MOST_MESSAGE).collect::<String>()
    };
    Claim {
        kind: text("type"),
        message: text("message"),
        ..Claim::default()
    }
}

impl Claim {
    /// `places` come from the error outwards: the line is that of the first one in the code's own file.
    fn at(mut self, places: impl IntoIterator<Item = Place>, main: &str) -> Self {
        for place in places {
            if place.is_in(main) {
                self.line = Some(place.line);
                self.column = place.column;
                break;
            }
            self.elsewhere = self.elsewhere.or_else(|| place.told());
        }
        self
    }
}

/// A message that goes on in another line: what is told of in JavaScript, the text that R could not read.
fn completed(message: String, rest: &str) -> String {
    let Some(begun) = message.strip_suffix(':') else {
        return message;
    };
    if let Some(shown) = rest.strip_prefix("\n\"") {
        let shown = &shown[..shown.find("\"\n").unwrap_or(shown.len())];
        let last = shown.lines().last().unwrap_or_default().trim();
        return format!("{begun} \"{last}\"");
    }
    match rest.lines().map(str::trim).find(|line| !line.is_empty()) {
        // Two values side by side say nothing in their first line.
        Some(next) if next.starts_with("+ actual") => begun.to_owned(),
        Some(next) if !next.starts_with("at ") => format!("{message} {next}"),
        _ => message,
    }
}

/// A message of Ruby's goes on in the lines below, up to the calls that led there; what it shows of the code is apart from it.
fn with_more_lines(mut message: String, rest: &str) -> String {
    let more = rest.strip_prefix('\n').unwrap_or(rest).lines();
    for line in more.take_while(|line| !line.trim().is_empty() && !line.starts_with("\tfrom ")) {
        message.push('\n');
        message.push_str(line);
    }
    message.chars().take(MOST_MESSAGE).collect()
}

/// What a program of Perl's says at its very end without a place, as it does when it dies of something that ends with a line feed.
fn last_words(rest: &str) -> Option<Claim> {
    let last = rest.lines().rfind(|line| !line.trim().is_empty())?;
    let claim = Claim {
        message: last.trim().chars().take(MOST_MESSAGE).collect(),
        ..Claim::default()
    };
    let has_place = last.starts_with(char::is_whitespace) || last.contains(" line ");
    (!has_place && !is_echo(&claim)).then_some(claim)
}

/// Why a program ended, by the last error it printed. Its own lines are those of `main`.
pub fn program(language: &str, main: &str, stderr: &str) -> Option<Claim> {
    let found = last_error(language, main, end(stderr));
    if found.is_some() || stderr.len() <= MOST_BYTES || !["go", "java"].contains(&language) {
        return found;
    }
    // These say first what it is, and then where each of hundreds of calls or threads was.
    let begin = &stderr[..stderr.floor_char_boundary(MOST_BYTES)];
    last_error(language, main, begin)
}

fn last_error(language: &str, main: &str, text: &str) -> Option<Claim> {
    // What draws over its own line, as a meter of progress does, has ended that line.
    let text = text.replace('\r', "\n");
    let text = text.as_str();
    FORMATS
        .iter()
        .enumerate()
        .filter(|(_, format)| format.languages.contains(&language))
        .find_map(|(index, format)| {
            let (error, frame) = compiled(index);
            let is_python = format.languages[0] == "python";
            let text = if is_python { exception(text)? } else { text };
            if index == 0 {
                let is_group = text.starts_with(GROUP);
                return of_python(language, main, text).filter(|_| !is_group);
            }
            let mut last: Option<(Claim, Captures<'_>)> = None;
            for found in error.as_ref()?.captures_iter(text) {
                let next = claim(&found);
                if last.is_none() || !is_echo(&next) {
                    last = Some((next, found));
                }
            }
            let (mut claim, found) = last?;
            let end = found.get(0).map_or(0, |whole: Match<'_>| whole.end());
            match language {
                "javascript" | "typescript" | "r" => {
                    claim.message = completed(claim.message, &text[end..]);
                }
                // One that has no type is about text that it could not read, and shows that.
                "ruby" if !claim.kind.is_empty() => {
                    claim.message = with_more_lines(claim.message, &text[end..]);
                }
                "perl" => {
                    let rest = text[end..].split_once('\n').map_or("", |(_, rest)| rest);
                    if let Some(last) = last_words(rest) {
                        return Some(last);
                    }
                }
                _ => {}
            }
            let told = if is_python { text } else { &text[end..] };
            let mut calls = places(frame.as_ref(), told);
            if is_python {
                calls.reverse();
            }
            if language == "java" {
                // Of a cause it leaves out the calls that it has in common with what it caused.
                calls.extend(places(frame.as_ref(), &text[..end]));
            }
            Some(claim.at(place(&found).into_iter().chain(calls), main))
        })
        .or_else(|| last_words(text).filter(|_| language == "perl"))
}

/// Where an error is that an interpreter has told of itself, if in another file than the code that led there.
pub fn elsewhere(language: &str, traceback: &str) -> Option<String> {
    let is_python = language == "python";
    let text = if is_python {
        exception(traceback)?
    } else {
        traceback.split("\n  caused by ").next()?
    };
    let mut formats = FORMATS.iter();
    let index = formats.position(|format| format.languages[0] == language)?;
    let frames = compiled(index).1.as_ref()?.captures_iter(text);
    let frames = frames.filter_map(|frame| place(&frame));
    let mut frames = frames.filter(|place| place.told().is_some());
    let first = frames.next()?;
    let last = frames.last()?;
    let (inner, outer) = if is_python {
        (last, first)
    } else {
        (first, last)
    };
    inner.told().filter(|_| inner.file != outer.file)
}

/// The first error a compiler reports; the others often follow from it.
pub fn compiler(main: &str, output: &str) -> Option<Claim> {
    let text = &output[..output.floor_char_boundary(MOST_BYTES)];
    COMPILER_FORMATS.iter().find_map(|format| {
        let mut claims = format.captures_iter(text);
        let first = claims.next()?;
        let found = if is_echo(&claim(&first)) {
            claims
                .find(|found| !is_echo(&claim(found)))
                .unwrap_or(first)
        } else {
            first
        };
        let begin = found.get(0).map_or(0, |whole| whole.start());
        let mut led: Vec<Place> = INCLUDED
            .iter()
            .flat_map(|format| format.captures_iter(&text[..begin]))
            .filter_map(|found| place(&found))
            .collect();
        led.reverse();
        Some(claim(&found).at(place(&found).into_iter().chain(led), main))
    })
}

#[cfg(test)]
mod tests;
