//! What was mistyped, in one sentence on one line: which word it is, and what would do. The parser's own account of it takes several.

use std::error::Error as _;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::num::ParseIntError;

use belljar_spec::{nearest, shown};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory};

use crate::args::Cli;

/// About the words that this process was started with.
pub fn told(error: &clap::Error) -> String {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    sentence(error, &words)
}

fn sentence(error: &clap::Error, words: &[OsString]) -> String {
    let root = Cli::command();
    let (command, path) = meant(&root, words);
    let arguments = texts(error, ContextKind::InvalidArg);
    let field = names(&arguments);
    let given = shown(&texts(error, ContextKind::InvalidValue).concat());
    let what = match error.kind() {
        ErrorKind::UnknownArgument => unknown(command, &arguments.concat(), error),
        ErrorKind::InvalidSubcommand => no_command(command, error),
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let known = commands(command).join(", ");
            format!("command: none was given; give one of {known}")
        }
        ErrorKind::MissingRequiredArgument => {
            let usage = texts(error, ContextKind::Usage).concat();
            let usage = usage.trim().trim_start_matches("Usage: ");
            let usage = usage.lines().next().unwrap_or_default();
            format!("{field}: nothing was given; give {usage}")
        }
        ErrorKind::ArgumentConflict => {
            let others = names(&texts(error, ContextKind::PriorArg));
            if others == field {
                format!("{field}: it was given more than once; give it once")
            } else {
                format!("{field}: it cannot be given together with {others}; give one or the other")
            }
        }
        ErrorKind::InvalidValue => match &texts(error, ContextKind::ValidValue)[..] {
            [] => format!(
                "{field}: nothing was given for it; give {}",
                arguments.concat()
            ),
            some => format!(
                "{field}: {given} is not accepted; give one of {}",
                some.join(", ")
            ),
        },
        // Numbers are all that the parser reads by itself.
        ErrorKind::ValueValidation => match error.source() {
            Some(source) if !source.is::<ParseIntError>() => {
                format!("{field}: {given} is not accepted; give a whole number ({source})")
            }
            _ => format!("{field}: {given} is not accepted; give a whole number"),
        },
        ErrorKind::TooManyValues => {
            format!("{field}: {given} is not accepted; it takes no value")
        }
        ErrorKind::InvalidUtf8 => {
            let strange = words.iter().find(|word| word.to_str().is_none());
            let strange = strange.map(|word| shown(&word.to_string_lossy()));
            let strange = strange.unwrap_or_default();
            format!("argument: {strange} is not accepted; give text in UTF-8")
        }
        _ => first_line(error),
    };
    format!("{what} (see {path} --help)")
}

/// The command that the words name as far as they name one, and how it is called.
fn meant<'a>(root: &'a Command, words: &[OsString]) -> (&'a Command, String) {
    let (mut command, mut path) = (root, root.get_name().to_owned());
    for word in words {
        let Some(below) = command.find_subcommand(word) else {
            break;
        };
        command = below;
        let _ = write!(path, " {}", command.get_name());
    }
    (command, path)
}

fn unknown(command: &Command, given: &str, error: &clap::Error) -> String {
    if given.starts_with('-') {
        let near = texts(error, ContextKind::SuggestedArg);
        let near = near.first().map(String::as_str);
        return format!(
            "option: {} is not known{}",
            shown(given),
            did_you_mean(near)
        );
    }
    let last = command.get_positionals().find(|one| one.is_last_set());
    let name = last.and_then(|last| last.get_value_names()?.first());
    let place = name.map_or_else(String::new, |name| {
        format!("; what is meant as {name} comes after --")
    });
    format!("argument: {} is one too many{place}", shown(given))
}

fn no_command(command: &Command, error: &clap::Error) -> String {
    let given = texts(error, ContextKind::InvalidSubcommand).concat();
    let known = commands(command);
    let near = texts(error, ContextKind::SuggestedSubcommand);
    let near = near.first().map(String::as_str);
    // The parser does not think of letters that have changed places.
    let near = near.or_else(|| nearest(&given, known.iter().copied()));
    let (meant, known) = (did_you_mean(near), known.join(", "));
    format!(
        "command: {} is not known{meant}; known are {known}",
        shown(&given)
    )
}

fn did_you_mean(name: Option<&str>) -> String {
    name.map_or_else(String::new, |name| format!(", did you mean {name}?"))
}

fn commands(command: &Command) -> Vec<&str> {
    command.get_subcommands().map(Command::get_name).collect()
}

/// Of what is written as `--memory <SIZE>`, `<REF>...` and `[FILE]` in usages.
fn names(arguments: &[String]) -> String {
    let name = |text: &String| {
        let first = text.split(' ').next().unwrap_or_default();
        first.trim_matches(['<', '>', '[', ']', '.']).to_owned()
    };
    let names: Vec<_> = arguments.iter().map(name).collect();
    names.join(", ")
}

fn texts(error: &clap::Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        Some(ContextValue::StyledStr(text)) => vec![text.to_string()],
        Some(ContextValue::StyledStrs(texts)) => texts.iter().map(ToString::to_string).collect(),
        _ => Vec::new(),
    }
}

fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use clap::Parser;

    use super::*;

    fn told(words: &[&str]) -> String {
        let words = words.iter().map(OsString::from);
        let all = std::iter::once("belljar".into()).chain(words.clone());
        let error = Cli::try_parse_from(all).err().expect("a mistake");
        assert!(error.use_stderr());
        sentence(&error, &words.collect::<Vec<_>>())
    }

    #[test]
    fn one_sentence_each() {
        for (words, said) in [
            (
                &["run", "--no-such-flag"][..],
                "option: \"--no-such-flag\" is not known (see belljar run --help)",
            ),
            (
                &["run", "--timout", "3s"],
                "option: \"--timout\" is not known, did you mean --timeout? (see belljar run --help)",
            ),
            (
                &["run", "a.py", "b\u{1b}.py"],
                "argument: \"b\\u{1b}.py\" is one too many; what is meant as ARGS comes after -- (see belljar run --help)",
            ),
            (
                &["run", "-c"],
                "-c: nothing was given for it; give -c <CODE> (see belljar run --help)",
            ),
            (
                &["run", "-c", "1", "file.py"],
                "-c: it cannot be given together with FILE; give one or the other (see belljar run --help)",
            ),
            (
                &["run", "--memory", "1m", "--memory", "2m"],
                "--memory: it was given more than once; give it once (see belljar run --help)",
            ),
            (
                &["run", "--json=yes"],
                "--json: \"yes\" is not accepted; it takes no value (see belljar run --help)",
            ),
            (
                &["image", "rnu"],
                "command: \"rnu\" is not known; known are pull, import, list, rm, prune (see belljar image --help)",
            ),
            (
                &["image", "pul", "x"],
                "command: \"pul\" is not known, did you mean pull?; known are pull, import, list, rm, prune (see belljar image --help)",
            ),
            (
                &["image"],
                "command: none was given; give one of pull, import, list, rm, prune (see belljar image --help)",
            ),
            (
                &["image", "rm"],
                "REF: nothing was given; give belljar image rm <REF>... (see belljar image rm --help)",
            ),
            (
                &["cp"],
                "SRC, DST: nothing was given; give belljar cp <SRC> <DST> (see belljar cp --help)",
            ),
            (
                &["exec", "id", "ls"],
                "argument: \"ls\" is one too many; what is meant as CMD comes after -- (see belljar exec --help)",
            ),
            (
                &["exec", "id"],
                "CMD: nothing was given; give belljar exec <ID> -- <CMD>... (see belljar exec --help)",
            ),
            (
                &["history", "--limit", "many"],
                "--limit: \"many\" is not accepted; give a whole number (see belljar history --help)",
            ),
            (
                &["history", "--limit", "5000000000"],
                "--limit: \"5000000000\" is not accepted; give a whole number (5000000000 is not in 0..=4294967295) (see belljar history --help)",
            ),
            (
                &["repl", "--sandbox", "s", "--memory", "1m", "--image", "x"],
                "--sandbox: it cannot be given together with --memory, --image; give one or the other (see belljar repl --help)",
            ),
            (
                &["key", "x"],
                "argument: \"x\" is one too many (see belljar key --help)",
            ),
        ] {
            assert_eq!(told(words), said, "{words:?}");
        }
        for words in [&["rnu"][..], &["help", "rnu"]] {
            let said = told(words);
            let begins = "command: \"rnu\" is not known, did you mean run?; known are run, repl, ";
            assert!(
                said.starts_with(begins) && said.ends_with(" (see belljar --help)"),
                "{said}"
            );
        }
        let said = told(&[]);
        assert!(
            said.starts_with("command: none was given; give one of run, "),
            "{said}"
        );
    }

    #[test]
    fn what_is_not_text_is_shown() {
        let word = OsString::from_vec(b"A=\xff".to_vec());
        let words = ["run".into(), "--env".into(), word];
        let all = std::iter::once("belljar".into()).chain(words.clone());
        let error = Cli::try_parse_from(all).err().expect("a mistake");
        let said = sentence(&error, &words);
        let whole =
            "argument: \"A=\u{fffd}\" is not accepted; give text in UTF-8 (see belljar run --help)";
        assert_eq!(said, whole);
    }
}
