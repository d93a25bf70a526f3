//! Output of strangers on a person's terminal.
//!
//! Escape sequences can retitle the window, write the clipboard, or make a terminal type. When the output is a terminal, only
//! colours pass, and end with the output; everything else shows as text. Pipes and files get the bytes as they are.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use anyhow::{Context, Result};

/// Where a stream of a program's output goes.
pub struct Output<W: Write> {
    to: W,
    filter: Option<Filter>,
}

impl<W: Write + IsTerminal> Output<W> {
    pub fn new(to: W) -> Self {
        let filter = to.is_terminal().then(Filter::default);
        Self { to, filter }
    }

    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.filter {
            None => self.to.write_all(bytes)?,
            Some(filter) => self.to.write_all(&filter.clean(bytes))?,
        }
        self.to.flush()
    }
}

impl<W: Write> Drop for Output<W> {
    /// What comes next on the terminal is ours, and is not to be hidden by a colour.
    fn drop(&mut self) {
        if let Some(filter) = &mut self.filter {
            let rest = filter.end();
            let _ = self.to.write_all(&rest).and_then(|()| self.to.flush());
        }
    }
}

/// A line of our own for whoever reads standard output.
pub fn say(text: impl Display) -> io::Result<()> {
    heard(writeln!(io::stdout(), "{text}"))
}

/// That nobody reads on, as under `| head -1`, is no failure.
pub fn heard(written: io::Result<()>) -> io::Result<()> {
    if has_left(&written) { Ok(()) } else { written }
}

/// Whether whoever read it has gone.
pub fn has_left(written: &io::Result<()>) -> bool {
    matches!(written, Err(error) if error.kind() == io::ErrorKind::BrokenPipe)
}

/// Writing a program's output that failed. It is told when the program has ended: that has nothing to do with it.
#[derive(Default)]
pub struct Lost(Option<io::Error>);

impl Lost {
    pub fn see(&mut self, written: io::Result<()>) {
        if let Err(error) = heard(written) {
            self.0.get_or_insert(error);
        }
    }

    /// An error if something was lost.
    pub fn tell(self) -> Result<()> {
        let all = self.0.map_or(Ok(()), Err);
        all.context("the output could not be written")
    }
}

/// A line of our own beside the output. Some of it others have said, an archive or a registry: what could control a terminal shows
/// as text. Where nobody can read it, that is no reason to end, as it would be with `eprintln!`.
pub fn note(text: impl Display) {
    let _ = writeln!(io::stderr(), "belljar: {}", printable(&text.to_string()));
}

/// Columns as wide as what is in them. Names that people gave stay on one line.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let clean = |text: &str| -> String {
        text.chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .take(200)
            .collect()
    };
    let rows: Vec<Vec<String>> =
        std::iter::once(head.iter().map(|&text| text.to_owned()).collect())
            .chain(
                rows.iter()
                    .map(|row| row.iter().map(|text| clean(text)).collect()),
            )
            .collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row: &Vec<String>| row.get(column));
        cells.map(|text| text.chars().count()).max().unwrap_or(0)
    };
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<_> = row
            .iter()
            .enumerate()
            .map(|(column, cell)| format!("{cell:width$}", width = width(column)))
            .collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() && !matches!(c, '\n' | '\t') {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// JSON text in which no control character is left as itself; JSON's own rules stop at U+001F.
pub fn escape_controls(json: &str) -> String {
    let escape = |c: char| match c {
        '\u{7f}'..='\u{9f}' => format!("\\u{:04x}", u32::from(c)),
        _ => c.to_string(),
    };
    json.chars().map(escape).collect()
}

/// What of a sequence has been seen so far.
#[derive(Default)]
struct Filter {
    /// An escape sequence that may yet become a colour.
    escape: Vec<u8>,
    /// A character of several bytes, and how many are to come.
    character: Vec<u8>,
    missing: usize,
    /// A colour is on.
    coloured: bool,
}

impl Filter {
    const MAX_SEQUENCE: usize = 32;
    const RESET: &[u8] = b"\x1b[0m";

    fn clean(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len());
        for &byte in bytes {
            self.take(&mut out, byte);
        }
        out
    }

    /// What may yet have become something else, and the end of a colour.
    fn end(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut escape = std::mem::take(&mut self.escape).into_iter();
        escape
            .next()
            .into_iter()
            .for_each(|byte| show(&mut out, byte));
        out.extend(escape);
        for byte in std::mem::take(&mut self.character) {
            show(&mut out, byte);
        }
        self.missing = 0;
        if std::mem::take(&mut self.coloured) {
            out.extend(Self::RESET);
        }
        out
    }

    fn take(&mut self, out: &mut Vec<u8>, byte: u8) {
        if self.escape.is_empty() {
            self.plain(out, byte);
        } else {
            self.in_escape(out, byte);
        }
    }

    fn plain(&mut self, out: &mut Vec<u8>, byte: u8) {
        if self.missing > 0 {
            self.character.push(byte);
            self.missing -= 1;
            let broken = !matches!(byte, 0x80..=0xbf);
            if self.missing == 0 || broken {
                self.missing = 0;
                let character = std::mem::take(&mut self.character);
                // C2 80 to C2 9F are controls too, which some terminals obey like an escape sequence.
                if broken || matches!(character.as_slice(), [0xc2, 0x80..=0x9f]) {
                    for byte in character {
                        show(out, byte);
                    }
                } else {
                    out.extend(character);
                }
            }
            return;
        }
        match byte {
            0x1b => self.escape.push(byte),
            b'\n' | b'\r' | b'\t' | b' '..=b'~' => out.push(byte),
            0xc2..=0xf4 => {
                self.missing = if byte < 0xe0 {
                    1
                } else if byte < 0xf0 {
                    2
                } else {
                    3
                };
                self.character.push(byte);
            }
            _ => show(out, byte),
        }
    }

    fn in_escape(&mut self, out: &mut Vec<u8>, byte: u8) {
        self.escape.push(byte);
        match (self.escape.as_slice(), byte) {
            ([_, b'['], _) => {}
            ([_, b'[', ..], b'm') => {
                self.coloured = self.escape != Self::RESET;
                out.append(&mut self.escape);
            }
            ([_, b'[', ..], b'0'..=b'9' | b';' | b':')
                if self.escape.len() < Self::MAX_SEQUENCE => {}
            _ => {
                let mut escape = std::mem::take(&mut self.escape).into_iter();
                // The first is the escape character itself; the rest is text like any other.
                escape.next().into_iter().for_each(|byte| show(out, byte));
                for byte in escape {
                    self.take(out, byte);
                }
            }
        }
    }
}

fn show(out: &mut Vec<u8>, byte: u8) {
    out.extend_from_slice(format!("\\x{byte:02x}").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::Filter;

    fn clean(parts: &[&str]) -> String {
        let mut filter = Filter::default();
        parts
            .iter()
            .map(|part| String::from_utf8(filter.clean(part.as_bytes())).expect("UTF-8"))
            .collect()
    }

    #[test]
    fn colours_pass() {
        assert_eq!(clean(&["a\x1b[1;31mb\x1b[0m\n"]), "a\x1b[1;31mb\x1b[0m\n");
        assert_eq!(clean(&["\x1b[3", "8;5;", "1mx"]), "\x1b[38;5;1mx");
    }

    #[test]
    fn colours_end_with_the_output() {
        let end = |text: &str| {
            let mut filter = Filter::default();
            filter.clean(text.as_bytes());
            String::from_utf8(filter.end()).expect("UTF-8")
        };
        assert_eq!(end("a\x1b[8mb"), "\x1b[0m");
        assert_eq!(end("a\x1b[8mb\x1b[0m"), "");
        assert_eq!(end("a\x1b[1;3"), "\\x1b[1;3");
        assert_eq!(end("\x1b[8ma\x1b"), "\\x1b\x1b[0m");
        let mut filter = Filter::default();
        filter.clean(b"a\xe2\x9c");
        assert_eq!(filter.end(), b"\\xe2\\x9c");
    }

    #[test]
    fn everything_else_is_shown() {
        assert_eq!(clean(&["\x1b]52;c;aGk=\x07"]), "\\x1b]52;c;aGk=\\x07");
        assert_eq!(clean(&["\x1b[2J", "x\x08\x00"]), "\\x1b[2Jx\\x08\\x00");
        assert_eq!(clean(&["é✓\t\r\n"]), "é✓\t\r\n");
        assert_eq!(
            clean(&["a\u{9b}2Jb\u{9d}0;t"]),
            "a\\xc2\\x9b2Jb\\xc2\\x9d0;t"
        );
        assert_eq!(clean(&["\x1b\x1b[31mx"]), "\\x1b\x1b[31mx");
        assert_eq!(
            clean(&["\x1b[", &"1".repeat(40), "m"]),
            format!("\\x1b[{}m", "1".repeat(40))
        );
    }
}
