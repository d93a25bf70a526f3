//! The first line of a client, by which it is told whether it speaks HTTP: as widely as any server might take it.

use super::http::{MAX_HEAD, is_token};

#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// It has not ended, and may yet be anything. No server acts on it before that.
    Partial,
    Request,
    /// A request of a kind that is not passed on, and why.
    Refused(&'static str),
    Other,
}

const MALFORMED: &str =
    "the request is malformed: it begins with its method, and lines end with CR LF";

/// What some server takes for the gap between two words, in ASCII, Latin-1 (what Python splits at) or UTF-8.
fn is_gap(b: u8) -> bool {
    matches!(b, b'\t'..=b'\r' | 0x1c..=b' ' | 0x80..)
}

/// Looks at a first line while it comes, at each byte once: somebody may send it byte by byte.
#[derive(Default)]
pub struct Lookout {
    seen: usize,
    /// How many bytes there are before the first word, and in it.
    empty: usize,
    word: usize,
    /// Where another word names the protocol.
    named: Option<usize>,
}

impl Lookout {
    /// What `bytes` begin with, which begin with what was looked at before. Servers skip what is empty, take any word for a method,
    /// and some end lines without a carriage return, or with that alone.
    pub fn look(&mut self, bytes: &[u8]) -> Line {
        if self.empty == self.seen {
            self.empty += count(&bytes[self.empty..], is_gap);
        }
        let word = self.empty + self.word;
        if word >= self.seen {
            self.word += count(&bytes[word..], is_token);
        }
        let from = self.seen.max(self.empty);
        self.seen = bytes.len();
        if let Some(end) = bytes[from..].iter().position(|&b| b == b'\n') {
            return self.whole(&bytes[self.empty..from + end]);
        }
        if self.named.is_none() {
            let from = from.saturating_sub(NAME.len());
            let at = bytes[from..].windows(1 + NAME.len()).position(is_name);
            self.named = at.map(|at| from + at);
        }
        let after = bytes.get(self.empty + self.word);
        let in_words = self.word > 0 && after.is_some_and(|b| is_gap(*b));
        if bytes.len() > MAX_HEAD {
            return if in_words {
                Line::Refused("its first line is too long")
            } else {
                Line::Other
            };
        }
        let ended = |named: usize| {
            let rest = &bytes[named.max(from.saturating_sub(1))..];
            rest.windows(2).any(|pair| pair[0] == b'\r')
        };
        if in_words && self.named.is_some_and(ended) {
            return Line::Refused(MALFORMED);
        }
        Line::Partial
    }

    /// A line from its first word on, without its end.
    fn whole(&self, line: &[u8]) -> Line {
        let line = line.to_ascii_uppercase();
        let mut words = line.split(|b| is_gap(*b)).skip(1);
        if !words.any(|word| word.starts_with(NAME)) {
            return Line::Other;
        }
        if line.starts_with(b"PRI ") {
            return Line::Refused("HTTP/2 without TLS does not show which host is meant");
        }
        if self.empty > 0 || self.word == 0 || !line.ends_with(b"\r") {
            return Line::Refused(MALFORMED);
        }
        Line::Request
    }
}

const NAME: &[u8] = b"HTTP/";

/// Whether that is a gap and the name of the protocol.
fn is_name(bytes: &[u8]) -> bool {
    is_gap(bytes[0]) && bytes[1..].eq_ignore_ascii_case(NAME)
}

fn count(bytes: &[u8], fits: impl Fn(u8) -> bool) -> usize {
    bytes.iter().take_while(|b| fits(**b)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether at once or byte by byte.
    fn look(bytes: &[u8]) -> Line {
        let looked = Lookout::default().look(bytes);
        let mut lookout = Lookout::default();
        let mut slowly = Line::Partial;
        for length in 0..=bytes.len() {
            if slowly == Line::Partial {
                slowly = lookout.look(&bytes[..length]);
            }
        }
        assert_eq!(looked, slowly, "{bytes:?}");
        looked
    }

    #[test]
    fn first_lines() {
        for request in [
            "GET / HTTP/1.1\r\n",
            "PROPFIND /a HTTP/1.1\r\nHost",
            "M-SEARCH * HTTP/1.1\r\n",
            "get\t/  http/1.1\r\n",
            "X / HTTP/9\r\n",
            "GET\x1c/x HTTP/1.1\r\n",
            "GET(/x HTTP/1.1\r\n",
        ] {
            assert_eq!(look(request.as_bytes()), Line::Request, "{request:?}");
        }
        for refused in [
            "GET / HTTP/1.1\nHost: a\n\n",
            "\r\nGET / HTTP/1.1\r\n",
            "\nGET / HTTP/1.1\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ] {
            let looked = look(refused.as_bytes());
            assert!(matches!(looked, Line::Refused(_)), "{refused:?}");
        }
        for refused in [
            b" GET / HTTP/1.1\r\n".as_slice(),
            b"\tGET / HTTP/1.1\r\n",
            b" \r\nGET / HTTP/1.1\r\n",
            b"\x85GET / HTTP/1.1\r\n",
            b"\0GET / HTTP/1.1\r\n",
            b"(GET / HTTP/1.1\r\n",
        ] {
            let looked = look(refused);
            assert!(matches!(looked, Line::Refused(_)), "{refused:?}");
        }
        // As requests these are looked at more closely, and found to be malformed.
        for request in [
            b"GET\xa0/x HTTP/1.1\r\n".as_slice(),
            b"GET /x\x85HTTP/1.1\r\n",
            b"GET\xc2\xa0/x\xe2\x80\xa8HTTP/1.1\r\n",
        ] {
            assert_eq!(look(request), Line::Request, "{request:?}");
        }
        let long = format!("GET /{}", "a".repeat(MAX_HEAD));
        assert!(matches!(look(long.as_bytes()), Line::Refused(_)));
        for other in [
            "SSH-2.0-OpenSSH_9.2\r\n",
            "EHLO a.example\r\n",
            "GET key\r\n",
            "*1\r\n$4\r\nPING\r\n",
            "QUIT\n",
            "{\"a\": \"HTTP/1.1\"}\n",
        ] {
            assert_eq!(look(other.as_bytes()), Line::Other, "{other:?}");
        }
        for partial in [
            "",
            "\r\n",
            "PROP",
            "PROPFIND ",
            "PROPFIND / HTTP/1.1\r",
            "one",
            "\0\0\0\x08",
            "{\"a\": \"\r HTTP/1.1\"}",
            " GET / HTTP/1.1",
            "(GET",
            "one\rtwo HTTP/1.1",
        ] {
            assert_eq!(look(partial.as_bytes()), Line::Partial, "{partial:?}");
        }
        // Some servers end lines so.
        let bare = "GET / HTTP/1.1\rHost: a";
        assert_eq!(look(bare.as_bytes()), Line::Refused(MALFORMED));
    }
}
