//! The messages of the name system, as few of them as are needed: one question, and addresses for an answer.

use std::net::{IpAddr, Ipv4Addr};

use belljar_spec::is_host_name;

pub const A: u16 = 1;
pub const AAAA: u16 = 28;
/// No message is longer by stream; by datagram answers are far shorter.
pub const MAX_MESSAGE: usize = 4096;

const HEADER: usize = 12;
const INTERNET: u16 = 1;
const NO_SUCH_NAME: u8 = 3;
const FAILED: u8 = 2;

/// A question, as it came.
#[derive(Debug, PartialEq, Eq)]
pub struct Question {
    pub id: u16,
    /// In lower case, without a dot at the end.
    pub name: String,
    pub kind: u16,
    /// Its bytes, to be sent back.
    section: Vec<u8>,
    recursion: u8,
}

/// What is answered.
pub enum Answer {
    Address(Ipv4Addr),
    /// The name is there, but has nothing of this kind.
    Nothing,
    NoSuchName,
    Failed,
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    let pair = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes([pair[0], pair[1]]))
}

/// A name at `at`, and where it ends. Pointers only lead backwards, so this ends.
fn name(bytes: &[u8], mut at: usize) -> Option<(String, usize)> {
    let mut text = String::new();
    let mut end = None;
    loop {
        let length = usize::from(*bytes.get(at)?);
        match length {
            0 => break,
            1..=63 => {
                let label = bytes.get(at + 1..at + 1 + length)?;
                if !text.is_empty() {
                    text.push('.');
                }
                text.push_str(std::str::from_utf8(label).ok()?);
                if text.len() > 255 {
                    return None;
                }
                at += 1 + length;
            }
            0xc0.. => {
                let to = usize::from(word(bytes, at)? & 0x3fff);
                end.get_or_insert(at + 2);
                if to >= at {
                    return None;
                }
                at = to;
            }
            _ => return None,
        }
    }
    Some((text.to_ascii_lowercase(), end.unwrap_or(at + 1)))
}

pub fn parse_question(bytes: &[u8]) -> Option<Question> {
    let is_query = bytes.get(2)? & 0xf8 == 0;
    if !is_query || word(bytes, 4)? != 1 {
        return None;
    }
    let (name, end) = name(bytes, HEADER)?;
    let kind = word(bytes, end)?;
    if word(bytes, end + 2)? != INTERNET {
        return None;
    }
    Some(Question {
        id: word(bytes, 0)?,
        name,
        kind,
        section: bytes.get(HEADER..end + 4)?.to_vec(),
        recursion: bytes.get(2)? & 1,
    })
}

impl Question {
    /// As it came, or nearly: what follows the question is not looked at.
    pub fn length(&self) -> usize {
        HEADER + self.section.len()
    }

    pub fn answer(&self, answer: &Answer) -> Vec<u8> {
        let (code, count) = match answer {
            Answer::Address(_) => (0, 1),
            Answer::Nothing => (0, 0),
            Answer::NoSuchName => (NO_SUCH_NAME, 0),
            Answer::Failed => (FAILED, 0),
        };
        let mut bytes = self.id.to_be_bytes().to_vec();
        bytes.extend([
            0x84 | self.recursion,
            0x80 | code,
            0,
            1,
            0,
            count,
            0,
            0,
            0,
            0,
        ]);
        bytes.extend(&self.section);
        if let Answer::Address(address) = answer {
            bytes.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 30, 0, 4]);
            bytes.extend(address.octets());
        }
        bytes
    }
}

/// How long a [`query`] for a name is.
pub fn query_length(name: &str) -> usize {
    HEADER + name.len() + 6
}

pub fn query(id: u16, name: &str, kind: u16) -> Option<Vec<u8>> {
    if !is_host_name(name) {
        return None;
    }
    let mut bytes = id.to_be_bytes().to_vec();
    bytes.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.') {
        bytes.push(u8::try_from(label.len()).ok()?);
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    bytes.extend(kind.to_be_bytes());
    bytes.extend(INTERNET.to_be_bytes());
    Some(bytes)
}

/// What a server said.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    Addresses(Vec<IpAddr>),
    NoSuchName,
    /// To be asked again by stream.
    Cut,
}

/// The reply to a query, if it is one: same number, same question, no error but that there is no such name.
pub fn parse_reply(bytes: &[u8], query: &[u8]) -> Option<Reply> {
    let flags = word(bytes, 2)?;
    let same = bytes.get(..2) == query.get(..2)
        && bytes
            .get(HEADER..query.len())?
            .eq_ignore_ascii_case(query.get(HEADER..)?);
    if !same || flags & 0x8000 == 0 || word(bytes, 4)? != 1 {
        return None;
    }
    if flags & 0x0200 != 0 {
        return Some(Reply::Cut);
    }
    match flags & 15 {
        0 => {}
        3 => return Some(Reply::NoSuchName),
        _ => return None,
    }
    let mut addresses = Vec::new();
    let mut at = query.len();
    for _ in 0..word(bytes, 6)?.min(64) {
        (_, at) = name(bytes, at)?;
        let (kind, length) = (word(bytes, at)?, usize::from(word(bytes, at + 8)?));
        let data = bytes.get(at + 10..at + 10 + length)?;
        match (kind, data.len()) {
            (A, 4) => addresses.push(<[u8; 4]>::try_from(data).ok()?.into()),
            (AAAA, 16) => addresses.push(<[u8; 16]>::try_from(data).ok()?.into()),
            _ => {}
        }
        at += 10 + length;
    }
    Some(Reply::Addresses(addresses))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn there_and_back() {
        let asked = query(7, "Example.org", A).unwrap();
        let question = parse_question(&asked).unwrap();
        assert_eq!((question.name.as_str(), question.kind), ("example.org", A));
        let address = Ipv4Addr::new(127, 128, 0, 1);
        let reply = parse_reply(&question.answer(&Answer::Address(address)), &asked);
        assert_eq!(reply, Some(Reply::Addresses(vec![address.into()])));
        let none = question.answer(&Answer::NoSuchName);
        assert_eq!(parse_reply(&none, &asked), Some(Reply::NoSuchName));
        let other = query(8, "example.org", A).unwrap();
        assert_eq!(parse_reply(&none, &other), None);
        let other = query(7, "example.com", A).unwrap();
        assert_eq!(parse_reply(&none, &other), None);
        assert!(parse_reply(&question.answer(&Answer::Failed), &asked).is_none());
    }

    #[test]
    fn pointers_that_go_round() {
        let mut bytes = query(1, "a.b", A).unwrap();
        bytes[12] = 0xc0;
        bytes[13] = 12;
        assert_eq!(parse_question(&bytes), None);
    }

    proptest! {
        #[test]
        fn fuzz_names(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            parse_question(&bytes);
            let asked = query(1, "a.b", A).unwrap();
            parse_reply(&bytes, &asked);
            let mut reply = asked.clone();
            reply[2] = 0x81;
            reply[7] = 3;
            reply.extend(bytes);
            parse_reply(&reply, &asked);
        }
    }
}
