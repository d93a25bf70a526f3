//! Whether what was typed so far is a whole input. A guess: the interpreter has the last word.

use crate::complete_shell;

/// `true`: it can be run.
pub fn is_complete(language: &str, input: &str) -> bool {
    if input.trim_start().starts_with(':') {
        return true;
    }
    if language == "bash" {
        return complete_shell::is_complete(input);
    }
    let quotes: &[&str] = match language {
        "python" => &["\"\"\"", "'''", "\"", "'"],
        "javascript" | "typescript" => &["`", "\"", "'"],
        _ => &["\"", "'"],
    };
    let comment = if language == "javascript" || language == "typescript" {
        "//"
    } else {
        "#"
    };
    let open = scan(input, quotes, comment);
    let last = input.rsplit('\n').next().unwrap_or_default();
    if open.depth > 0 || open.in_long_quote || last.ends_with('\\') {
        return false;
    }
    if language == "python" {
        // A block goes on until an empty line.
        let begins = |line: &str| {
            let line = line.trim_end();
            line.ends_with(':') || line.trim_start().starts_with('@')
        };
        let in_block = input.lines().any(begins) || last.starts_with([' ', '\t']);
        return !in_block || last.trim().is_empty();
    }
    true
}

struct Open {
    depth: usize,
    /// In a quotation that may go over lines.
    in_long_quote: bool,
}

fn scan(input: &str, quotes: &[&str], comment: &str) -> Open {
    let mut rest = input;
    let mut depth = 0_usize;
    while let Some(first) = rest.chars().next() {
        if let Some(quote) = quotes.iter().find(|quote| rest.starts_with(**quote)) {
            let long = quote.len() == 3 || *quote == "`";
            match end_of_quote(&rest[quote.len()..], quote, long) {
                Some(end) => rest = &rest[quote.len() + end..],
                None if long => {
                    return Open {
                        depth,
                        in_long_quote: true,
                    };
                }
                // An unfinished short one is an error, which the interpreter explains.
                None => rest = rest.split_once('\n').map_or("", |(_, after)| after),
            }
            continue;
        }
        if rest.starts_with(comment) {
            rest = rest.split_once('\n').map_or("", |(_, after)| after);
            continue;
        }
        match first {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        rest = &rest[first.len_utf8()..];
    }
    Open {
        depth,
        in_long_quote: false,
    }
}

/// Where the rest goes on after the closing quote.
fn end_of_quote(text: &str, quote: &str, long: bool) -> Option<usize> {
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        if first == '\\' {
            let escaped = text[at + 1..].chars().next().map_or(0, char::len_utf8);
            at += 1 + escaped;
        } else if text[at..].starts_with(quote) {
            return Some(at + quote.len());
        } else if first == '\n' && !long {
            return None;
        } else {
            at += first.len_utf8();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::is_complete;

    #[test]
    fn whole_inputs() {
        for (language, input) in [
            ("python", "x = 1"),
            ("python", "print('(')"),
            ("python", "x = [1,\n2]"),
            ("python", "def f():\n    return 1\n"),
            ("python", "s = '''a\nb'''"),
            ("python", "x = 'unfinished"),
            ("python", "# ("),
            ("javascript", "const f = () => { return 1 }"),
            ("javascript", "`a\nb`"),
            ("bash", "echo \"a b\""),
            ("python", ":reset"),
        ] {
            assert!(is_complete(language, input), "{input:?}");
        }
    }

    #[test]
    fn parts() {
        for (language, input) in [
            ("python", "f("),
            ("python", "def f():"),
            ("python", "def f():\n    return 1"),
            ("python", "@cache"),
            ("python", "s = '''a"),
            ("python", "x = 1 + \\"),
            ("javascript", "function f() {"),
            ("javascript", "`a"),
            ("bash", "echo \\"),
        ] {
            assert!(!is_complete(language, input), "{input:?}");
        }
    }
}
