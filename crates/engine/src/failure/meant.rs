//! What somebody meant who wrote a name that is not known.

use std::collections::BTreeSet;

use belljar_spec::nearest_within;

/// Names that code of Python and JavaScript uses without saying them elsewhere: of objects, and others.
const MEMBERS: &str = "append clear close copy count decode encode endswith extend filter find forEach format get includes index indexOf \
    insert items join keys length log lower map match next parse pop push read readline readlines reduce remove repeat replace reverse \
    setdefault slice sort splice split startswith strip toLowerCase toString toUpperCase trim update upper values write";
const FUNCTIONS: &str = "abs all any bool bytes console dict enumerate filter float format getattr input int isinstance iter len list map \
    max min next object open print range reversed round set sorted str sum super tuple type zip";
/// Languages that these are names of.
const HAVE_THEM: [&str; 3] = ["python", "javascript", "typescript"];
/// Words of languages that are never a name.
const KEYWORDS: &str = "and as async await bool break case catch char class const continue def del delete do done double elif else elsif end \
    enum esac except export extends fi final finally float fn for foreach from func function global if impl import in int is lambda let local \
    long loop match mod mut my namespace new nil none not null or our package pass private pub public raise repeat require return self short \
    static struct sub switch then this throw true try type typedef unless unsigned until use using var void while with yield";
/// What shells are asked for.
const COMMANDS: &str = "awk basename bash bzip2 cat chmod chown clear cmp comm cp curl cut date dd df diff dirname docker du echo env expr \
    false file find gcc git grep gunzip gzip head hostname id install java jq kill less ln ls make md5sum mkdir mktemp mv nl node nproc npm \
    paste perl php pip pip3 printf ps pwd python python3 readlink realpath rm rmdir ruby sed seq sh sha256sum sleep sort source split ssh \
    stat sudo tail tar tee test time timeout touch tr true uname uniq unzip wc wget which whoami xargs yes zip";

/// The first text in quotes.
pub fn quoted(message: &str) -> Option<&str> {
    let open = message.find(['\'', '"', '`', '‘'])?;
    let rest = &message[open..];
    let mut chars = rest.chars();
    let mark = chars.next()?;
    let inside = chars.as_str();
    let close = match mark {
        '`' => ['`', '\''],
        '‘' => ['’', '\''],
        mark => [mark, mark],
    };
    Some(&inside[..inside.find(close)?])
}

/// What a compiler or interpreter itself takes for what was meant: `did you mean ‘std::cout’?`, `Did you mean?  upcase`.
fn proposed(said: &str) -> Option<&str> {
    let at = said.rfind("id you mean")? + "id you mean".len();
    let rest = &said[at..];
    let open = |c: char| "'\"`‘:".contains(c);
    let name = rest.trim_start_matches(|c: char| " ?:".contains(c) || open(c));
    // Else it is a sentence, like `did you mean to import …`.
    let marked = rest[..rest.len() - name.len()].contains(|c: char| c == '?' || open(c));
    let part = |c: char| c.is_alphanumeric() || "_.:!/$@".contains(c);
    let end = name.find(|c: char| !part(c)).unwrap_or(name.len());
    let name = name[..end].trim_end_matches(['.', ':']);
    (marked && !name.is_empty()).then_some(name)
}

/// A name in the code that looks like the one that is not known, unless the language has said what was meant.
pub fn misspelt(
    category: &str,
    language: &str,
    message: &str,
    said: &str,
    code: &str,
) -> Option<String> {
    let words: Vec<_> = message
        .split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .filter(|word| !word.is_empty())
        .collect();
    let unknown = match quoted(message) {
        // JavaScript shows the whole expression.
        _ if message.ends_with(" is not a function") => {
            let called = message.trim_end_matches(" is not a function");
            called.rsplit('.').next()?
        }
        // Python names the object first, and what it takes for the right name last.
        Some(_) if message.contains("has no attribute") => {
            quoted(message.rsplit("has no attribute").next()?)?
        }
        Some(name) => name.trim_start_matches(['$', '@', '%', '&']),
        // PHP writes `function name()`.
        None => match message.split_once("()") {
            Some((before, _)) => before
                .rsplit(|c: char| !(c.is_alphanumeric() || c == '_'))
                .next()?,
            None => words.first()?,
        },
    };
    if let Some(meant) = proposed(said) {
        return Some(sentence(unknown, meant));
    }
    let usual = if category == "attribute" {
        &[MEMBERS][..]
    } else {
        &[MEMBERS, FUNCTIONS]
    };
    meant(unknown, language, code, usual)
}

/// Of a name that a compiler does not know.
pub fn undeclared(unknown: &str, language: &str, message: &str, code: &str) -> Option<String> {
    match proposed(message) {
        Some(meant) => Some(sentence(unknown, meant)),
        None => meant(unknown, language, code, &[MEMBERS, FUNCTIONS]),
    }
}

/// A key that the code has elsewhere, nearly.
pub fn key(message: &str, said: &str, code: &str) -> Option<String> {
    let unknown = quoted(message).unwrap_or_else(|| message.rsplit(' ').next().unwrap_or_default());
    let meant = proposed(said).or_else(|| likely(unknown, names(code, unknown)))?;
    Some(format!("There is no key {unknown}; did you mean {meant}?"))
}

/// The command that a shell does not find: `x: command not found`, `x: not found`.
pub fn absent(message: &str) -> Option<&str> {
    let before = message
        .split_once(": command not found")
        .map(|(before, _)| before)
        .or_else(|| message.strip_suffix(": not found"))?;
    let name = before.rsplit(": ").next().unwrap_or(before);
    (!name.is_empty() && !name.contains(' ')).then_some(name)
}

pub fn command(name: &str) -> String {
    if name.contains('/') {
        return format!(
            "There is no program {name} here, or what its first line names is not there."
        );
    }
    let known = || COMMANDS.split_whitespace();
    // Who mistypes a word mostly has its first letter.
    let alike = known().filter(|known| known.chars().next() == name.chars().next());
    let meant = likely(name, alike).or_else(|| nearest_within(name, 1, known()));
    match meant {
        Some(meant) if known().all(|known| known != name) => {
            format!("There is no command {name} here; did you mean {meant}?")
        }
        _ => format!(
            "There is no command {name} here: use what is there, or a template or image that has it."
        ),
    }
}

fn sentence(unknown: &str, meant: &str) -> String {
    format!("{unknown} is not known; did you mean {meant}?")
}

/// No name that is compared with is longer than half of this, and one that is has nothing in common with it.
const LONGEST: usize = 128;
/// Of all names that are compared: each letter is held against all of the other name, and nobody else is served meanwhile.
const COMPARED: usize = 256 << 10;

fn names<'a>(code: &'a str, unknown: &str) -> BTreeSet<&'a str> {
    let keywords: BTreeSet<&str> = KEYWORDS.split_whitespace().collect();
    let (mut escaped, mut compared) = (false, 0);
    code.split_inclusive(|c: char| !(c.is_alphanumeric() || c == '_'))
        .filter_map(|piece| {
            let word = piece.trim_end_matches(|c: char| !(c.is_alphanumeric() || c == '_'));
            // Its first letter may be part of an escape, as in `\nb`.
            let is_name = !escaped && (2..=LONGEST).contains(&word.len());
            escaped = piece.ends_with('\\');
            (is_name
                && word != unknown
                && !keywords.contains(word)
                && !word.starts_with(|c: char| c.is_ascii_digit()))
            .then_some(word)
        })
        .take_while(|word| {
            compared += word.len();
            compared <= COMPARED
        })
        .collect()
}

fn meant(unknown: &str, language: &str, code: &str, usual: &[&'static str]) -> Option<String> {
    let mut known = names(code, unknown);
    if HAVE_THEM.contains(&language) {
        let usual = usual.iter().flat_map(|text| text.split_whitespace());
        known.extend(usual.filter(|word| *word != unknown));
    }
    Some(sentence(unknown, likely(unknown, known)?))
}

/// Nearly every short word is a few letters away from some other.
pub fn likely<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let most = match word.chars().count() {
        0..=4 => 1,
        5..=8 => 2,
        _ => 3,
    };
    nearest_within(word, most, known)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Code chooses how many names there are, and how long: to look for one among them takes next to no time.
    #[test]
    fn names_are_found_quickly_or_not_at_all() {
        let unknown = "a".repeat(64);
        for length in [3, 66, 120, 20_000] {
            let name = |number: usize| format!("b{number}{}", "a".repeat(length - 2));
            let code: Vec<_> = (0..(16 << 20) / length).map(name).collect();
            let code = code.join(" ");
            let since = std::time::Instant::now();
            let names = names(&code, &unknown);
            assert!(names.iter().map(|name| name.len()).sum::<usize>() <= COMPARED);
            // Without an optimiser reading it takes longest.
            assert!(since.elapsed() < std::time::Duration::from_secs(5));
        }
    }

    fn hint(message: &str, code: &str) -> Option<String> {
        let category = if message.contains("attribute") || message.contains("function") {
            "attribute"
        } else {
            "name"
        };
        misspelt(category, "python", message, message, code)
    }

    #[test]
    fn names_of_the_code_and_of_the_language() {
        for (message, code) in [
            ("foo is not defined", "foo()"),
            ("'str' object has no attribute 'foo'", "'a'.foo"),
            ("undefined method 'foo' for nil", "nil.foo"),
            ("Call to undefined function foo()", "foo();"),
        ] {
            assert_eq!(hint(message, code), None, "{message}");
        }
        for (message, code, name) in [
            (
                "Call to undefined function prnt()",
                "print(1); prnt(2);",
                "print",
            ),
            (
                "name 'totl' is not defined",
                "total = 1\nprint(totl)",
                "total",
            ),
            ("totl is not defined", "total = 1\nprint(totl)", "total"),
            (
                "'list' object has no attribute 'apend'",
                "x = [1]\nx.apend(2)",
                "append",
            ),
            // And not `super`, which no object has.
            (
                "'str' object has no attribute 'uper'",
                "'x'.uper()",
                "upper",
            ),
            ("name 'pritn' is not defined", "pritn(1)", "print"),
            ("\"a b\".trimm is not a function", "\"a b\".trimm()", "trim"),
            ("[1].pusj is not a function", "[1].pusj(2)", "push"),
            ("object 'totl' not found", "total <- 1; totl", "total"),
            ("totl: unbound variable", "total=1; echo $totl", "total"),
            (
                "Global symbol \"$totl\" requires explicit package name",
                "my $total; $totl",
                "total",
            ),
            (
                "'A' object has no attribute 'apend_all'",
                "class A:\n  def append_all(self): pass\nA().apend_all()",
                "append_all",
            ),
        ] {
            let hint = hint(message, code).unwrap_or_default();
            assert!(hint.contains(&format!("mean {name}?")), "{message}: {hint}");
        }
    }

    #[test]
    fn what_the_language_proposes_goes_first() {
        let ruby = "main.rb:1: undefined method `upcas' for \"x\":String (NoMethodError)\nDid you mean?  upcase\n               upcase!\n";
        let message = "undefined method `upcas' for \"x\":String";
        let hint = misspelt("attribute", "ruby", message, ruby, "'x'.upcas").unwrap();
        assert_eq!(hint, "upcas is not known; did you mean upcase?");
        let message = "‘cout’ was not declared in this scope; did you mean ‘std::cout’?";
        let hint = undeclared("cout", "cpp", message, "cout << count;").unwrap();
        assert_eq!(hint, "cout is not known; did you mean std::cout?");
        let python = "name 'totl' is not defined. Did you mean: 'total'?";
        assert_eq!(proposed(python), Some("total"));
        let python = "'list' object has no attribute 'apend'. Did you mean: 'append'?";
        let hint = misspelt("attribute", "python", python, python, "[].apend(1)").unwrap();
        assert_eq!(hint, "apend is not known; did you mean append?");
        assert_eq!(proposed("Did you mean to import \"a/b.js\"?"), None);
        assert_eq!(proposed("did you mean"), None);
    }

    #[test]
    fn keys_and_commands() {
        let code = "d = {'alpha': 1}\nd['alhpa']";
        let hint = key("'alhpa'", "KeyError: 'alhpa'", code).unwrap();
        assert_eq!(hint, "There is no key alhpa; did you mean alpha?");
        assert_eq!(key("'zzz'", "", code), None);
        assert_eq!(key("5", "", code), None);
        for (message, name) in [
            ("grpe: command not found", Some("grpe")),
            ("/bin/sh: 1: nosuch: not found", Some("nosuch")),
            ("nosuch: not found", Some("nosuch")),
            ("2026-01-02 03:04:05 ERROR 404: Not Found.", None),
            ("the page was: not found", None),
        ] {
            assert_eq!(absent(message), name, "{message}");
        }
        for (typo, meant) in [("grpe", "grep"), ("vgrep", "grep"), ("pyton3", "python3")] {
            let hint = command(typo);
            assert!(hint.ends_with(&format!("mean {meant}?")), "{hint}");
        }
        // `nosuch` is not far from `touch`, but nobody has meant that.
        for absent in ["jq", "acme-tool", "nosuch"] {
            let hint = command(absent);
            assert!(hint.contains(absent) && hint.contains("image"), "{hint}");
        }
        assert!(command("./x").contains("no program ./x"));
    }

    #[test]
    fn what_nobody_has_meant() {
        for (language, message, code) in [
            ("bash", "UNDEF: unbound variable", "set -u\necho $UNDEF"),
            (
                "perl",
                "Global symbol \"$y\" requires explicit package name",
                "use strict; my $z; print $y",
            ),
            (
                "ruby",
                "undefined local variable or method `ab'",
                "puts \"a\\nb\", ab",
            ),
            ("php", "Call to undefined function prin()", "prin(2);"),
        ] {
            let hint = misspelt("name", language, message, message, code);
            assert_eq!(hint, None, "{message}");
        }
        assert_eq!(undeclared("prin", "c", "", "prin(1);"), None);
        assert!(undeclared("prin", "typescript", "", "prin(1);").is_some());
    }
}
