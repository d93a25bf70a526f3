//! The head of an HTTP/1 message: read with bounds, understood in one way only, changed, written again.

use std::io;

use belljar_spec::HostRule;
use tokio::io::{AsyncRead, AsyncReadExt};

/// No head is longer.
pub const MAX_HEAD: usize = 64 << 10;
const MAX_FIELDS: usize = 128;

/// Why a head was not accepted: a status and a sentence.
#[derive(Debug, PartialEq, Eq)]
pub struct Bad(pub u16, pub &'static str);

/// How long a body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    Known(u64),
    Chunked,
}

pub struct Head {
    /// The three words of a request line, or of a status line.
    pub first: [String; 3],
    pub fields: Vec<(String, String)>,
}

/// Reads until a head is whole. What came behind it stays in `buffer`. `Ok(None)`: the end came before its first byte.
pub async fn read_head(
    stream: &mut (impl AsyncRead + Unpin),
    buffer: &mut Vec<u8>,
) -> io::Result<Result<Option<Head>, Bad>> {
    let mut searched = 0;
    loop {
        if let Some(at) = find(&buffer[searched..], b"\r\n\r\n") {
            let rest = buffer.split_off(searched + at + 4);
            let head = std::mem::replace(buffer, rest);
            return Ok(Head::parse(&head).map(Some));
        }
        if buffer.len() >= MAX_HEAD {
            return Ok(Err(Bad(431, "the head of the message is too long")));
        }
        searched = buffer.len().saturating_sub(3);
        buffer.reserve(4096);
        if stream.read_buf(buffer).await? == 0 {
            return Ok(if buffer.is_empty() {
                Ok(None)
            } else {
                Err(Bad(400, "the message ends in its head"))
            });
        }
    }
}

pub fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// What names of fields and methods are made of.
pub fn is_token(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)
}

impl Head {
    pub fn parse(bytes: &[u8]) -> Result<Self, Bad> {
        let bad = Bad(400, "the head of the message is malformed");
        let Ok(text) = std::str::from_utf8(bytes) else {
            return Err(bad);
        };
        let mut lines = text.strip_suffix("\r\n\r\n").unwrap_or(text).split("\r\n");
        let clean = |line: &str| !line.bytes().any(|b| b < 0x20 && b != b'\t' || b == 0x7f);
        let Some(first) = lines.next().filter(|line| clean(line)) else {
            return Err(bad);
        };
        let mut words = first.splitn(3, ' ').map(str::to_owned);
        let first = [(); 3].map(|()| words.next().unwrap_or_default());
        let mut fields = Vec::new();
        for line in lines {
            let Some((name, value)) = line.split_once(':').filter(|_| clean(line)) else {
                return Err(bad);
            };
            if name.is_empty() || !name.bytes().all(is_token) {
                return Err(bad);
            }
            if fields.len() == MAX_FIELDS {
                return Err(Bad(431, "the message has too many fields"));
            }
            fields.push((name.to_owned(), value.trim().to_owned()));
        }
        Ok(Self { first, fields })
    }

    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.fields
            .iter()
            .filter(move |(own, _)| own.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// The value of a field that may be there once. `Err` where it is there more often.
    pub fn one<'a>(&'a self, name: &'a str) -> Result<Option<&'a str>, Bad> {
        let mut all = self.all(name);
        let first = all.next();
        match all.next() {
            Some(_) => Err(Bad(400, "a field is there twice that may be there once")),
            None => Ok(first),
        }
    }

    pub fn is_request(&self) -> bool {
        let [method, target, version] = &self.first;
        !method.is_empty()
            && method
                .bytes()
                .all(|b| b.is_ascii_uppercase() || b"-_".contains(&b))
            && !target.is_empty()
            && !target.contains(char::is_whitespace)
            && matches!(version.as_str(), "HTTP/1.1" | "HTTP/1.0")
    }

    /// How long the body of a request is; two ways to say it are one too many.
    pub fn body(&self) -> Result<Length, Bad> {
        let bad = Bad(400, "it is not clear how long the body is");
        let (Ok(length), Ok(coding)) = (self.one("content-length"), self.one("transfer-encoding"))
        else {
            return Err(bad);
        };
        match (length, coding) {
            (None, None) => Ok(Length::Known(0)),
            (Some(text), None) if text.bytes().all(|b| b.is_ascii_digit()) => {
                text.parse().map(Length::Known).map_err(|_| bad)
            }
            (None, Some(coding)) if coding.eq_ignore_ascii_case("chunked") => Ok(Length::Chunked),
            _ => Err(bad),
        }
    }

    /// HTTP/2 is none that is passed on: it would not show which host is meant.
    pub fn upgrades(&self) -> bool {
        let mut all = self.all("upgrade").peekable();
        all.peek().is_some() && all.all(|to| !to.to_ascii_lowercase().contains("h2c"))
    }

    /// Without what is between two neighbours only. An upgrade is for the server.
    pub fn drop_hop_fields(&mut self, keep_upgrade: bool) {
        let named: Vec<String> = self
            .all("connection")
            .flat_map(|value| value.split(','))
            .map(|name| name.trim().to_ascii_lowercase())
            .collect();
        self.fields.retain(|(name, _)| {
            let name = name.to_ascii_lowercase();
            let hop = [
                "connection",
                "proxy-connection",
                "keep-alive",
                "proxy-authorization",
            ]
            .contains(&name.as_str())
                || named.contains(&name)
                    && !["host", "content-length", "transfer-encoding"].contains(&name.as_str());
            !hop || keep_upgrade && name == "upgrade"
        });
        let connection = if keep_upgrade { "Upgrade" } else { "close" };
        self.fields.push(("Connection".into(), connection.into()));
    }

    /// Puts in the headers of a rule, in place of what the code sent under these names.
    pub fn add_headers(&mut self, rule: &HostRule) {
        for (name, value) in &rule.headers {
            self.fields
                .retain(|(own, _)| !own.eq_ignore_ascii_case(name));
            self.fields.push((name.clone(), value.expose().to_owned()));
        }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut text = self.first.join(" ").trim_end().to_owned();
        text.push_str("\r\n");
        for (name, value) in &self.fields {
            text.push_str(name);
            text.push_str(": ");
            text.push_str(value);
            text.push_str("\r\n");
        }
        text.push_str("\r\n");
        text.into_bytes()
    }
}

/// An answer of our own.
pub fn answer(status: u16, reason: &str) -> Vec<u8> {
    let phrase = match status {
        400 => "Bad Request",
        403 => "Forbidden",
        408 => "Request Timeout",
        431 => "Request Header Fields Too Large",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Error",
    };
    let clean: String = reason.chars().filter(|c| !c.is_control()).collect();
    let body = format!("belljar: {clean}\n");
    format!(
        "HTTP/1.1 {status} {phrase}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\
         X-Belljar-Refused: {}\r\nConnection: close\r\n\r\n{body}",
        body.len(),
        clean.replace(|c: char| !c.is_ascii(), "?"),
    )
    .into_bytes()
}

/// Authority and path of `http://authority/path`.
pub fn absolute(target: &str) -> Option<(String, String)> {
    let (scheme, rest) = target.split_at_checked(7)?;
    if !scheme.eq_ignore_ascii_case("http://") {
        return None;
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let path = path.split('#').next().unwrap_or("");
    let path = if path.starts_with('/') {
        path.to_owned()
    } else {
        format!("/{path}")
    };
    // `user@host` is read as either by someone.
    (!authority.contains(['@', '\\'])).then(|| (authority.to_ascii_lowercase(), path))
}

/// Host and port of `host:port`, `[six]:port` or `host`.
pub fn authority(text: &str, default: Option<u16>) -> Option<(&str, u16)> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    if host.contains(':') && !host.starts_with('[') {
        return None;
    }
    let port = match port {
        None => default?,
        Some("") => return None,
        Some(port) if port.bytes().all(|b| b.is_ascii_digit()) => port.parse().ok()?,
        Some(_) => return None,
    };
    (port > 0 && !host.is_empty()).then_some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn head(text: &str) -> Result<Head, Bad> {
        Head::parse(text.as_bytes())
    }

    #[test]
    fn heads() {
        let head = head("GET http://a.com/x HTTP/1.1\r\nHost: a.com\r\nA:  b \r\n\r\n").unwrap();
        assert!(head.is_request());
        assert_eq!(head.one("a").unwrap(), Some("b"));
        assert_eq!(head.body().unwrap(), Length::Known(0));
        assert_eq!(
            head.to_bytes(),
            b"GET http://a.com/x HTTP/1.1\r\nHost: a.com\r\nA: b\r\n\r\n"
        );
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        for text in [
            "GET / HTTP/1.1\r\n folded: x\r\n\r\n",
            "GET / HTTP/1.1\r\nA : x\r\n\r\n",
            "GET / HTTP/1.1\r\nA: x\ny: z\r\n\r\n",
            "GET / HTTP/1.1\r\nA: x\0\r\n\r\n",
            "GET / HTTP/1.1\r\nnothing\r\n\r\n",
        ] {
            assert!(head(text).is_err(), "{text:?}");
        }
        for fields in [
            "Content-Length: 1\r\nContent-Length: 2",
            "Content-Length: 1\r\nTransfer-Encoding: chunked",
            "Transfer-Encoding: gzip, chunked",
            "Content-Length: +1",
            "Content-Length: 99999999999999999999",
        ] {
            let head = head(&format!("POST / HTTP/1.1\r\n{fields}\r\n\r\n")).unwrap();
            assert!(head.body().is_err(), "{fields}");
        }
        for first in [
            "get / HTTP/1.1",
            "GET  HTTP/1.1",
            "GET / HTTP/2",
            "GET / x HTTP/1.1",
            "GET",
        ] {
            assert!(
                !head(&format!("{first}\r\n\r\n")).unwrap().is_request(),
                "{first}"
            );
        }
    }

    #[test]
    fn neighbours_words_stay_with_neighbours() {
        let text = "GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, X-Mine, Host\r\nX-Mine: 1\r\n\
                    Proxy-Authorization: x\r\nUpgrade: h2c\r\nContent-Length: 0\r\n\r\n";
        let mut plain = head(text).unwrap();
        plain.drop_hop_fields(false);
        let names: Vec<_> = plain.fields.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["Host", "Upgrade", "Content-Length", "Connection"]);
        assert_eq!(plain.one("connection").unwrap(), Some("close"));
    }

    #[test]
    fn secrets_replace_what_the_code_sent() {
        let network: belljar_spec::Network = serde_json::from_str(
            r#"[{"host": "a.com", "headers": {"Authorization": "Bearer real"}}]"#,
        )
        .unwrap();
        let mut head =
            head("GET / HTTP/1.1\r\nauthorization: fake\r\nHost: a.com\r\n\r\n").unwrap();
        head.add_headers(&network.rules()[0]);
        let all: Vec<_> = head.all("authorization").collect();
        assert_eq!(all, ["Bearer real"]);
    }

    #[test]
    fn authorities() {
        assert_eq!(authority("a.com:443", None), Some(("a.com", 443)));
        assert_eq!(authority("[::1]:8080", None), Some(("[::1]", 8080)));
        assert_eq!(authority("a.com", Some(80)), Some(("a.com", 80)));
        assert_eq!(authority("[::1]", Some(80)), Some(("[::1]", 80)));
        for bad in [
            "a.com",
            "a.com:",
            "a.com:0",
            "a.com:+1",
            "::1:80",
            ":80",
            "a.com:99999",
        ] {
            assert_eq!(authority(bad, None), None, "{bad}");
        }
    }

    #[test]
    fn what_may_be_switched_to() {
        let upgrades = |to: &str| {
            let text = format!("GET / HTTP/1.1\r\nUpgrade: {to}\r\n\r\n");
            head(&text).unwrap().upgrades()
        };
        assert!(upgrades("websocket") && !upgrades("h2c") && !upgrades("x, H2C"));
    }

    proptest! {
        #[test]
        fn fuzz_requests(text in "[ -~\r\n\t]{0,200}") {
            if let Ok(head) = Head::parse(text.as_bytes()) {
                let _ = (head.is_request(), head.body());
            }
        }
    }
}
