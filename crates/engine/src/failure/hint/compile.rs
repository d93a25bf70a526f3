//! What a compiler missed.

use super::super::meant::{self, quoted};
use super::super::unimported;
use super::modules::{MODULES, missing};

/// What a compiler misses, where that can be seen.
pub fn not_compiled(language: &str, output: &str, message: &str, code: &str) -> Option<String> {
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
