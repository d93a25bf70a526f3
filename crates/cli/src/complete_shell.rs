//! Whether a shell input is whole: quotations closed, compound commands ended, documents and pipelines complete. A guess.

use std::iter::Peekable;
use std::str::Chars;

/// `true`: it can be run.
pub fn is_complete(input: &str) -> bool {
    Scan {
        rest: input.chars().peekable(),
        open: Vec::new(),
        at_command: true,
        goes_on: false,
        documents: Vec::new(),
    }
    .run()
    .is_some()
}

struct Scan<'a> {
    rest: Peekable<Chars<'a>>,
    /// What ends the compounds that have begun.
    open: Vec<&'static str>,
    /// The next word is the name of a command, and so may be a word of the grammar.
    at_command: bool,
    /// The last thing was an operator that needs another command.
    goes_on: bool,
    /// The last lines of documents that begin on the next one.
    documents: Vec<String>,
}

impl Scan<'_> {
    /// `None`: something is missing.
    fn run(mut self) -> Option<()> {
        while let Some(c) = self.rest.next() {
            match c {
                ' ' | '\t' => {}
                '\n' => {
                    self.at_command = true;
                    self.skip_documents()?;
                }
                '#' => while self.rest.next_if(|c| *c != '\n').is_some() {},
                ';' | '&' | '|' => {
                    let twice = self.rest.next_if_eq(&c).is_some();
                    self.goes_on = c == '|' || (c == '&' && twice);
                    self.at_command = true;
                }
                '(' => self.begin(")"),
                ')' => {
                    self.end(")");
                    self.goes_on = false;
                    self.at_command = true;
                }
                '<' if self.rest.next_if_eq(&'<').is_some() => self.redirect()?,
                '<' | '>' => self.goes_on = false,
                _ => {
                    let word = self.word(c)?;
                    self.goes_on = false;
                    self.grammar(&word);
                }
            }
        }
        let whole = self.open.is_empty() && self.documents.is_empty() && !self.goes_on;
        whole.then_some(())
    }

    fn begin(&mut self, end: &'static str) {
        self.open.push(end);
        self.at_command = true;
        self.goes_on = false;
    }

    fn end(&mut self, end: &str) {
        if self.open.last() == Some(&end) {
            self.open.pop();
        }
    }

    fn grammar(&mut self, word: &str) {
        if !self.at_command {
            return;
        }
        self.at_command = false;
        match word {
            "if" => self.begin("fi"),
            "while" | "until" => self.begin("done"),
            "for" | "select" => self.open.push("done"),
            "case" => self.open.push("esac"),
            "{" => self.begin("}"),
            "fi" | "done" | "esac" | "}" => self.end(word),
            "then" | "do" | "else" | "elif" | "!" | "time" => self.at_command = true,
            _ => {}
        }
    }

    /// After `<<`: a document, or a word that is one.
    fn redirect(&mut self) -> Option<()> {
        self.goes_on = false;
        if self.rest.next_if_eq(&'<').is_some() {
            return Some(());
        }
        self.rest.next_if_eq(&'-');
        while self.rest.next_if(|c| matches!(c, ' ' | '\t')).is_some() {}
        let first = self.rest.next()?;
        let word = self.word(first)?;
        self.documents.push(word.replace(['\'', '"', '\\'], ""));
        Some(())
    }

    fn skip_documents(&mut self) -> Option<()> {
        for end in std::mem::take(&mut self.documents) {
            loop {
                let mut line = String::new();
                while let Some(c) = self.rest.next_if(|c| *c != '\n') {
                    line.push(c);
                }
                if line.trim_start_matches('\t') == end {
                    break;
                }
                self.rest.next()?;
            }
        }
        Some(())
    }

    /// The word that begins with `first`, as it is written.
    fn word(&mut self, first: char) -> Option<String> {
        let mut word = String::new();
        let mut next = Some(first);
        while let Some(c) = next {
            word.push(c);
            match c {
                '\\' => word.push(self.rest.next()?),
                '\'' => word.push_str(&self.until('\'', false)?),
                '"' | '`' => word.push_str(&self.until(c, true)?),
                '$' => {
                    if self.rest.next_if_eq(&'{').is_some() {
                        word.push_str(&self.until('}', true)?);
                    } else if self.rest.next_if_eq(&'(').is_some() {
                        self.substitution()?;
                    }
                }
                _ => {}
            }
            next = self.rest.next_if(|c| {
                !matches!(
                    c,
                    ' ' | '\t' | '\n' | ';' | '&' | '|' | '(' | ')' | '<' | '>'
                )
            });
        }
        Some(word)
    }

    fn until(&mut self, end: char, escapes: bool) -> Option<String> {
        let mut text = String::new();
        loop {
            let c = self.rest.next()?;
            text.push(c);
            if c == end {
                return Some(text);
            }
            if c == '\\' && escapes {
                text.push(self.rest.next()?);
            }
        }
    }

    /// Up to the parenthesis that ends it.
    fn substitution(&mut self) -> Option<()> {
        let mut depth = 1;
        while depth > 0 {
            match self.rest.next()? {
                '\\' => drop(self.rest.next()?),
                quote @ ('\'' | '"') => drop(self.until(quote, quote == '"')?),
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::is_complete;

    #[test]
    fn whole_inputs() {
        for input in [
            "echo a b",
            "echo \"a\nb\" 'c\nd'",
            "if true; then echo x; fi",
            "for x in a b; do echo $x; done",
            "while read x; do\n  echo $x\ndone < file",
            "case $x in\n  a) echo a;;\n  *) echo b;;\nesac",
            "f() { echo if; }",
            "f()\n{\n  :\n}",
            "cat <<END\nif\nEND",
            "cat <<-'END'\n$(\n\tEND\necho",
            "cat <<< word",
            "echo if for while do",
            "echo $(( 1 + (2) )) ${x#(} $(echo \")\")",
            "a | b && c",
            "echo a # if (",
            "(cd /; ls)",
            "x=(a b)",
            "echo fi; done",
            "sleep 1 &",
        ] {
            assert!(is_complete(input), "{input:?}");
        }
    }

    #[test]
    fn parts() {
        for input in [
            "if true; then",
            "if true; then echo fi",
            "for x in a b",
            "while :; do",
            "case $x in",
            "case $x in a)",
            "f() {",
            "echo 'a",
            "echo \"a\\\"",
            "echo $(ls",
            "echo ${x",
            "a |",
            "a &&",
            "a || # why",
            "echo \\",
            "cat <<END",
            "cat <<END\nx\nENDE",
            "(ls",
        ] {
            assert!(!is_complete(input), "{input:?}");
        }
    }
}
