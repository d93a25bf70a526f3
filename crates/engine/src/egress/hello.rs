//! The first words of a TLS client: enough of them to see which server it means.

/// What a client's first bytes are.
#[derive(Debug, PartialEq, Eq)]
pub enum Hello {
    /// More are needed.
    Partial,
    /// TLS, with the server's name if the client tells it.
    Tls(Option<String>),
    /// It began like TLS and is none.
    Broken,
}

/// No client sends more before it hears the server.
pub const MAX_HELLO: usize = 64 << 10;

pub const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;

/// Reads records that begin with a handshake; the message may be spread over several.
pub fn parse(bytes: &[u8]) -> Hello {
    let mut message = Vec::new();
    let mut rest = Reader(bytes);
    loop {
        let Some(header) = rest.take(5) else {
            return unfinished(bytes);
        };
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if header[0] != HANDSHAKE || header[1] != 3 || length == 0 || length > (1 << 14) + 256 {
            return Hello::Broken;
        }
        let part = rest.0.get(..length).unwrap_or(rest.0);
        message.extend_from_slice(part);
        let wanted = match message.first_chunk::<4>() {
            Some([CLIENT_HELLO, a, b, c]) => {
                4 + (usize::from(*a) << 16) + (usize::from(*b) << 8) + usize::from(*c)
            }
            Some(_) => return Hello::Broken,
            None => usize::MAX,
        };
        if message.len() >= wanted {
            let name = Reader(&message[4..wanted]).server_name();
            return name.map_or(Hello::Broken, Hello::Tls);
        }
        if rest.take(length).is_none() {
            return unfinished(bytes);
        }
    }
}

fn unfinished(bytes: &[u8]) -> Hello {
    if bytes.len() < MAX_HELLO {
        Hello::Partial
    } else {
        Hello::Broken
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self, bytes: usize) -> Option<usize> {
        let taken = self.take(bytes)?;
        Some(
            taken
                .iter()
                .fold(0, |sum, byte| sum << 8 | usize::from(*byte)),
        )
    }

    /// What follows a length of so many bytes.
    fn vector(&mut self, length_bytes: usize) -> Option<Self> {
        let length = self.number(length_bytes)?;
        self.take(length).map(Self)
    }

    /// The outer `None`: no client hello. The inner one: it names nobody.
    #[expect(
        clippy::option_option,
        reason = "malformed and absent are different things"
    )]
    fn server_name(mut self) -> Option<Option<String>> {
        self.take(2 + 32)?;
        self.vector(1)?;
        self.vector(2)?;
        self.vector(1)?;
        if self.0.is_empty() {
            return Some(None);
        }
        let mut extensions = self.vector(2)?;
        let mut name = None;
        while !extensions.0.is_empty() {
            let kind = extensions.number(2)?;
            let mut body = extensions.vector(2)?;
            if kind != usize::from(SERVER_NAME) {
                continue;
            }
            let mut list = body.vector(2)?;
            // One name of the kind `host_name`; a second one would be read by one side only.
            if name.is_some() || list.number(1)? != 0 {
                return None;
            }
            let text = list.vector(2)?.0;
            if !list.0.is_empty() || !body.0.is_empty() {
                return None;
            }
            name = Some(String::from_utf8(text.to_vec()).ok()?);
        }
        Some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hello(extensions: &[u8]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([0, 0, 2, 0x13, 1, 1, 0]);
        body.extend(u16::try_from(extensions.len()).unwrap().to_be_bytes());
        body.extend(extensions);
        let mut message = vec![1, 0];
        message.extend(u16::try_from(body.len()).unwrap().to_be_bytes());
        message.extend(body);
        message
    }

    fn records(message: &[u8], most: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for part in message.chunks(most) {
            bytes.extend([22, 3, 1]);
            bytes.extend(u16::try_from(part.len()).unwrap().to_be_bytes());
            bytes.extend(part);
        }
        bytes
    }

    fn sni(name: &[u8]) -> Vec<u8> {
        let length = |n: usize| u16::try_from(n).unwrap().to_be_bytes();
        let mut extension = vec![0, 0];
        extension.extend(length(name.len() + 5));
        extension.extend(length(name.len() + 3));
        extension.push(0);
        extension.extend(length(name.len()));
        extension.extend(name);
        extension
    }

    #[test]
    fn names() {
        let one = hello(&sni(b"example.org"));
        for most in [1, 3, 40, 16_000] {
            let bytes = records(&one, most);
            assert_eq!(parse(&bytes), Hello::Tls(Some("example.org".into())));
            for cut in 0..bytes.len() {
                assert_eq!(parse(&bytes[..cut]), Hello::Partial, "{cut} of {most}");
            }
        }
        assert_eq!(parse(&records(&hello(&[]), 999)), Hello::Tls(None));
    }

    #[test]
    fn what_is_no_hello() {
        let mut twice = sni(b"a.com");
        twice.extend(sni(b"b.com"));
        for bytes in [
            records(&hello(&twice), 999),
            records(&hello(&sni(b"\xff")), 999),
            records(&hello(&[0, 0, 0, 9, 1]), 999),
            records(&[2, 0, 0, 0], 999),
            vec![22, 3, 1, 0, 0],
            vec![22, 9, 1, 0, 1],
            vec![22, 3, 1, 0xff, 0xff],
        ] {
            assert_eq!(parse(&bytes), Hello::Broken, "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn fuzz_hellos(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut bytes = bytes;
            parse(&bytes);
            bytes.splice(0..0, [22, 3, 1, 0, 100, 1, 0, 0, 96]);
            parse(&bytes);
        }
    }
}
