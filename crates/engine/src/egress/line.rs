//! The first line of a client, by which it is told whether it speaks HTTP: as widely as any server might take it.

use super::http::{MAX_HEAD, is_token};

#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// It has not ended, and may yet be anything.
    Partial,
    /// The same, but it begins as hardly any request does: nobody need wait for its end.
    Odd,
    Request,
    /// A request of a kind that is not passed on, and why.
    Refused(&'static str),
    Other,
}

/// What some server takes for the gap between two words, in ASCII, Latin-1 (what Python splits at) or UTF-8.
fn is_gap(b: u8) -> bool {
    matches!(b, b'\t'..=b'\r' | 0x1c..=b' ' | 0x80..)
}

/// What `bytes` begin with. Servers skip what is empty, take any word for a method, and some end lines without a carriage return.
pub fn look(bytes: &[u8]) -> Line {
    let empty = bytes.iter().take_while(|b| is_gap(**b)).count();
    let text = &bytes[empty..];
    let word = text.iter().take_while(|b| is_token(**b)).count();
    let Some(end) = text.iter().position(|&b| b == b'\n') else {
        let in_words = word > 0 && text.get(word).is_some_and(|b| is_gap(*b));
        return match bytes.len() > MAX_HEAD {
            true if in_words => Line::Refused("its first line is too long"),
            true => Line::Other,
            false if !bytes[..empty].iter().all(|b| b"\r\n".contains(b)) => Line::Odd,
            false if in_words || word == text.len() => Line::Partial,
            false => Line::Odd,
        };
    };
    let line = text[..end].to_ascii_uppercase();
    let mut words = line.split(|b| is_gap(*b)).skip(1);
    if !words.any(|word| word.starts_with(b"HTTP/")) {
        return Line::Other;
    }
    if line.starts_with(b"PRI ") {
        return Line::Refused("HTTP/2 without TLS does not show which host is meant");
    }
    if empty > 0 || word == 0 || !line.ends_with(b"\r") {
        return Line::Refused(
            "the request is malformed: it begins with its method, and lines end with CR LF",
        );
    }
    Line::Request
}

/// Whether this is the beginning of what nearly always becomes a request.
pub fn is_likely(bytes: &[u8]) -> bool {
    const METHODS: [&[u8]; 8] = [
        b"GET ",
        b"HEAD ",
        b"POST ",
        b"PUT ",
        b"DELETE ",
        b"OPTIONS ",
        b"PATCH ",
        b"TRACE ",
    ];
    METHODS.iter().any(|method| {
        let length = method.len().min(bytes.len());
        bytes[..length] == method[..length]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
        ] {
            assert_eq!(look(partial.as_bytes()), Line::Partial, "{partial:?}");
        }
        for odd in ["\0\0\0\x08", "{\"a\": 1}", " GET / HTTP/1.1", "(GET"] {
            assert_eq!(look(odd.as_bytes()), Line::Odd, "{odd:?}");
        }
    }
}
