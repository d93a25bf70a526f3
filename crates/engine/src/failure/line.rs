//! The line of an error whose language does not tell it.
//!
//! R names the call that failed, or shows the text that it could not read; JavaScript names what it cannot import. Where just one line
//! of the code has that, it is the line; a guess between several would be worse than none.

use super::place::Place;

/// Of an error that R has printed.
pub fn of_r(code: &str, printed: &str) -> Option<u32> {
    let begin = printed
        .match_indices("Error")
        .filter(|(at, _)| *at == 0 || printed[..*at].ends_with('\n'))
        .last()?
        .0;
    let said = &printed[begin..];
    let first = said.lines().next()?;
    if let Some(call) = first.strip_prefix("Error in ") {
        // What follows is in the next line where it is long.
        let end = call.find(" : ").or_else(|| call.rfind(" :"))?;
        return only(code, &call[..end]).or_else(|| {
            // It may be a call of a library's own: then the code has the first of those that led there.
            let calls = said.lines().find_map(|line| line.strip_prefix("Calls: "))?;
            let outermost = calls.split(" -> ").next()?.trim();
            only(code, &format!("{outermost}("))
        });
    }
    if first.contains("unexpected") {
        // The text up to what was unexpected, with the line before it where there is one.
        let shown = said.split_once(" in")?.1.split_once('"')?.1;
        let shown = &shown[..shown.find("\"\n").unwrap_or(shown.len())];
        let shown = shown.strip_suffix('"').unwrap_or(shown);
        return only(code, shown.lines().last()?);
    }
    let name = first.split_once("object '")?.1.split_once("' not found")?.0;
    only(code, name)
}

/// Of a module that JavaScript does not find: `Cannot find package 'x' imported from /workspace/main.js`.
pub fn of_import(code: &str, main: &str, message: &str) -> Option<u32> {
    let (what, from) = message.split_once("' imported from ")?;
    let from = Place::new(from, 1, None);
    // What a compiler made of the code, and of whatever came with it. A session names just the workspace.
    if !from.is_in(main) && !from.file.starts_with("/tmp/build/") && !from.file.is_empty() {
        return None;
    }
    let (_, module) = what.split_once('\'')?;
    let module = Place::new(module, 1, None).file;
    let imports = |line: &str| {
        let named = line.split(['\'', '"', '`']).skip(1).step_by(2);
        let mut named = named.map(|name| Place::new(name, 1, None).file);
        (line.contains("import") || line.contains("from"))
            && named.any(|name| name == module || name.starts_with(&format!("{module}/")))
    };
    let mut found = code.lines().zip(1..).filter(|(line, _)| imports(line));
    match (found.next(), found.next()) {
        (Some((_, number)), None) => Some(number),
        _ => None,
    }
}

/// Of a function in a session's bash, which tells the line in the run that defined it. It is this one's if it has what the message names.
pub fn of_function(code: &str, message: &str, printed: &str) -> Option<u32> {
    let named = message.split(": ").next().filter(|name| !name.is_empty())?;
    let told = printed.lines().rfind(|line| line.ends_with(message))?;
    let (number, _) = told.strip_prefix("environment: line ")?.split_once(':')?;
    let number: u32 = number.parse().ok()?;
    let line = code.lines().nth(number.checked_sub(1)? as usize)?;
    line.contains(named).then_some(number)
}

/// The line of the code that has this text, if there is only one.
fn only(code: &str, text: &str) -> Option<u32> {
    let text = plain(text);
    if text.is_empty() {
        return None;
    }
    let mut found = code
        .lines()
        .zip(1..)
        .filter(|(line, _)| has(&plain(line), &text));
    match (found.next(), found.next()) {
        (Some((_, number)), None) => Some(number),
        _ => None,
    }
}

/// As a whole: not as the end or the beginning of longer names.
fn has(line: &str, text: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    let joined =
        |one: Option<char>, other: Option<char>| one.is_some_and(part) && other.is_some_and(part);
    line.match_indices(text).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + text.len()..]);
        !joined(before.chars().next_back(), text.chars().next())
            && !joined(text.chars().next_back(), after.chars().next())
    })
}

/// R writes code its own way: with other spaces and quotes.
fn plain(text: &str) -> String {
    let text = text.split('#').next().unwrap_or(text).chars();
    let text = text.filter(|c| !c.is_whitespace());
    text.map(|c| if c == '\'' { '"' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_javascript_could_not_import() {
        let code = "import a from 'fs'\nimport {\n  b\n} from 'left-pad'\nimport './lib/c.mjs'\nimport d from \"@x/y/z.js\"\n";
        for (module, from, line) in [
            ("left-pad", "/workspace/main.js", Some(4)),
            ("left-pad", "/tmp/build/main.mjs", Some(4)),
            ("left-pad", "/workspace/", Some(4)),
            ("/workspace/lib/c.mjs", "/workspace/main.js", Some(5)),
            ("@x/y", "/workspace/main.js", Some(6)),
            ("left", "/workspace/main.js", None),
            ("left-pad", "/workspace/h.js", None),
        ] {
            let message = format!("Cannot find package '{module}' imported from {from}");
            assert_eq!(of_import(code, "main.js", &message), line, "{message}");
        }
    }

    #[test]
    fn what_a_function_of_bash_could_not_do() {
        let printed = "environment: line 2: nosuch: command not found\n";
        let message = "nosuch: command not found";
        assert_eq!(
            of_function("f() {\nnosuch\n}\nf", message, printed),
            Some(2)
        );
        assert_eq!(of_function("echo\nf", message, printed), None);
        assert_eq!(of_function("f", message, printed), None);
        let own = "main.sh: line 2: nosuch: command not found\n";
        assert_eq!(of_function("f() {\nnosuch\n}\nf", message, own), None);
    }

    #[test]
    fn the_call_that_r_names() {
        let code = "f <- function(a) {\n  if (a) stop('no ', a)\n}\nx <- 3\nf( x )  # here\nlog('a'); ff(x)\n";
        for (printed, line) in [
            ("Error in f(x) : no 3\nExecution halted\n", Some(5)),
            ("Warning message:\nError in f(x) :\n  no 3\n", Some(5)),
            (
                "Error in log(\"a\") : non-numeric argument to mathematical function\n",
                Some(6),
            ),
            ("Error in ff(x) : could not find function \"ff\"\n", Some(6)),
            ("Error in f(x) : a : b\n", Some(5)),
            ("Error in g(x) : no 3\n", None),
            (
                "Error in h(y) : no 3\nCalls: ff -> g -> h\nExecution halted\n",
                Some(6),
            ),
            ("Error in base::stop(1) : 1\n", None),
            ("Error: 1\n", None),
            ("", None),
        ] {
            assert_eq!(of_r(code, printed), line, "{printed}");
        }
    }

    #[test]
    fn what_it_could_not_read_or_find() {
        let code = "x <- 1\nprint(x)\n\ny <- 3 3\nz <- nope + x\n";
        for (printed, line) in [
            (
                "Error: unexpected numeric constant in \"y <- 3 3\"\nExecution halted\n",
                Some(4),
            ),
            (
                "Error: unexpected numeric constant in:\n\"\ny <- 3 3\"\nExecution halted\n",
                Some(4),
            ),
            ("Error: unexpected end of input\n", None),
            ("Error: object 'nope' not found\n", Some(5)),
            ("Error: object 'x' not found\n", None),
        ] {
            assert_eq!(of_r(code, printed), line, "{printed}");
        }
    }
}
