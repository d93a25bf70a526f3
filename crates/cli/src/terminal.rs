//! Output of strangers on a person's terminal.
//!
//! Escape sequences can retitle the window, write the clipboard, or make a terminal type. When the output is a terminal, only
//! colours pass; everything else shows as text. Pipes and files get the bytes as they are.

use std::io::{self, IsTerminal, Write};

/// Where a stream of a program's output goes.
pub struct Output<W> {
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

/// The part of an escape sequence seen so far.
#[derive(Default)]
struct Filter {
    pending: Vec<u8>,
}

impl Filter {
    const MAX_SEQUENCE: usize = 32;

    fn clean(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len());
        for &byte in bytes {
            if self.pending.is_empty() {
                match byte {
                    0x1b => self.pending.push(byte),
                    b'\n' | b'\r' | b'\t' | b' '..=b'~' | 0x80.. => out.push(byte),
                    _ => show(&mut out, byte),
                }
                continue;
            }
            self.pending.push(byte);
            match (self.pending.as_slice(), byte) {
                ([_, b'['], _) => {}
                ([_, b'[', ..], b'm') => out.append(&mut self.pending),
                ([_, b'[', ..], b'0'..=b'9' | b';' | b':')
                    if self.pending.len() < Self::MAX_SEQUENCE => {}
                _ => {
                    for byte in std::mem::take(&mut self.pending) {
                        if matches!(byte, b'\n' | b' '..=b'~' | 0x80..) {
                            out.push(byte);
                        } else {
                            show(&mut out, byte);
                        }
                    }
                }
            }
        }
        out
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
    fn everything_else_is_shown() {
        assert_eq!(clean(&["\x1b]52;c;aGk=\x07"]), "\\x1b]52;c;aGk=\\x07");
        assert_eq!(clean(&["\x1b[2J", "x\x08\x00"]), "\\x1b[2Jx\\x08\\x00");
        assert_eq!(clean(&["é✓\t\r\n"]), "é✓\t\r\n");
        assert_eq!(
            clean(&["\x1b[", &"1".repeat(40), "m"]),
            format!("\\x1b[{}m", "1".repeat(40))
        );
    }
}
