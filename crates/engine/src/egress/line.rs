//! The first line of a client, by which it is told whether it speaks HTTP: as widely as any server might take it.

use super::http::{MAX_HEAD, is_token};

#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// It has not ended, and may yet be anything.
    Partial,
    Request,
    /// A request of a kind that is not passed on, and why.
    Refused(&'static str),
    Other,
}

/// What `bytes` begin with. Servers skip empty lines, take any word for a method, and some end lines without a carriage return.
pub fn look(bytes: &[u8]) -> Line {
    let empty = bytes.iter().take_while(|b| b"\r\n".contains(b)).count();
    let text = &bytes[empty..];
    let word = text.iter().take_while(|b| is_token(**b)).count();
    let too_long = bytes.len() > MAX_HEAD;
    match text.get(word) {
        None if too_long => return Line::Other,
        None => return Line::Partial,
        Some(b' ' | b'\t' | 0x0b | 0x0c | b'\r') if word > 0 => {}
        Some(_) => return Line::Other,
    }
    let Some(end) = text.iter().position(|&b| b == b'\n') else {
        return if too_long {
            Line::Refused("its first line is too long")
        } else {
            Line::Partial
        };
    };
    let line = text[..end].to_ascii_uppercase();
    let mut words = line[word..].split(|b| b" \t\x0b\x0c\r".contains(b));
    if !words.any(|word| word.starts_with(b"HTTP/")) {
        return Line::Other;
    }
    if line.starts_with(b"PRI ") {
        return Line::Refused("HTTP/2 without TLS does not show which host is meant");
    }
    if empty > 0 || !line.ends_with(b"\r") {
        return Line::Refused(
            "the request is malformed: lines end with CR LF, and the first is not empty",
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
        let long = format!("GET /{}", "a".repeat(MAX_HEAD));
        assert!(matches!(look(long.as_bytes()), Line::Refused(_)));
        for other in [
            "SSH-2.0-OpenSSH_9.2\r\n",
            "EHLO a.example\r\n",
            "GET key\r\n",
            "*1\r\n$4\r\nPING\r\n",
            "\0\0\0\x08",
            "QUIT\n",
            "{\"a\": 1}",
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
    }
}
