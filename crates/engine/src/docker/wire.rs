//! Frames between the engine and the agent in a container. What comes in is parsed as hostile: the agent is ours, but it lives
//! with the code.

/// Kinds of frames; `crates/jail/agent/main.rs` has the same.
pub mod kind {
    /// The first frame: the system call filter.
    pub const FILTER: u8 = 0;
    pub const START: u8 = 1;
    pub const SIGNAL: u8 = 2;
    pub const DATA: u8 = 3;
    pub const ACK: u8 = 4;
    pub const FILE: u8 = 5;
    pub const RESIZE: u8 = 6;
    /// The second frame: the rules around files.
    pub const FENCE: u8 = 7;
    pub const READY: u8 = 16;
    pub const STARTED: u8 = 17;
    pub const FAILED: u8 = 18;
    pub const ENDED: u8 = 19;
    pub const REPLY: u8 = 20;
}

/// Streams of a command.
pub mod stream {
    pub const STDIN: u8 = 0;
    pub const STDOUT: u8 = 1;
    pub const STDERR: u8 = 2;
    pub const CHANNEL: u8 = 3;
    /// What a kernel's run reads.
    pub const INPUT: u8 = 4;
}

/// How much of a stream may be on its way without having been acknowledged.
pub const WINDOW: usize = 256 << 10;
/// The most that is sent in one frame.
pub const CHUNK: usize = 64 << 10;
/// More than any frame of the agent.
const MAX_FRAME: usize = 1 << 20;
const HEADER: usize = 4;

pub fn frame(kind: u8, id: u32, parts: &[&[u8]]) -> Vec<u8> {
    let length = 5 + parts.iter().map(|part| part.len()).sum::<usize>();
    let mut bytes = Vec::with_capacity(HEADER + length);
    bytes.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
    bytes.push(kind);
    bytes.extend_from_slice(&id.to_le_bytes());
    for part in parts {
        bytes.extend_from_slice(part);
    }
    bytes
}

/// What came from the agent.
#[derive(Debug, PartialEq, Eq)]
pub enum Incoming {
    Ready {
        status: String,
        /// The version of Landlock that is put around commands; 0: there is none.
        fence: u32,
    },
    Started {
        id: u32,
    },
    Failed {
        id: u32,
        errno: i32,
    },
    Ended {
        id: u32,
        code: i32,
        status: i32,
    },
    Data {
        id: u32,
        stream: u8,
        bytes: Vec<u8>,
    },
    Ack {
        id: u32,
        stream: u8,
        count: usize,
    },
    Reply {
        id: u32,
        errno: i32,
        more: bool,
        bytes: Vec<u8>,
    },
}

/// It was no frame of the agent.
#[derive(Debug, PartialEq, Eq)]
pub struct Forged;

/// Bytes as they come, cut into frames.
#[derive(Default)]
pub struct Decoder(Vec<u8>);

impl Decoder {
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub fn next(&mut self) -> Result<Option<Incoming>, Forged> {
        let Some(header) = self.0.first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*header) as usize;
        if !(5..=MAX_FRAME).contains(&length) {
            return Err(Forged);
        }
        if self.0.len() < HEADER + length {
            return Ok(None);
        }
        let parsed = parse(&self.0[HEADER..HEADER + length]);
        self.0.drain(..HEADER + length);
        parsed.map(Some).ok_or(Forged)
    }
}

fn parse(frame: &[u8]) -> Option<Incoming> {
    let (&kind, rest) = frame.split_first()?;
    let (id, body) = word(rest)?;
    Some(match kind {
        kind::READY => Incoming::Ready {
            status: String::from_utf8_lossy(body).into_owned(),
            fence: id,
        },
        kind::STARTED => Incoming::Started { id },
        kind::FAILED => Incoming::Failed {
            id,
            errno: word(body)?.0.cast_signed(),
        },
        kind::ENDED => {
            let (code, rest) = word(body)?;
            Incoming::Ended {
                id,
                code: code.cast_signed(),
                status: word(rest)?.0.cast_signed(),
            }
        }
        kind::DATA => {
            let (&[stream, _], bytes) = body.split_first_chunk()?;
            Incoming::Data {
                id,
                stream,
                bytes: bytes.to_vec(),
            }
        }
        kind::ACK => {
            let (&stream, rest) = body.split_first()?;
            Incoming::Ack {
                id,
                stream,
                count: word(rest)?.0 as usize,
            }
        }
        kind::REPLY => {
            let (errno, rest) = word(body)?;
            let (&more, bytes) = rest.split_first()?;
            Incoming::Reply {
                id,
                errno: errno.cast_signed(),
                more: more != 0,
                bytes: bytes.to_vec(),
            }
        }
        _ => return None,
    })
}

pub fn word(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<4>()?;
    Some((u32::from_le_bytes(*head), rest))
}

pub fn long(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*head), rest))
}

/// Bytes up to the next NUL, and what follows it.
pub fn string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    Some((&bytes[..end], &bytes[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_frame_may_come_in_pieces() {
        let mut decoder = Decoder::default();
        let bytes = frame(kind::DATA, 7, &[&[stream::STDOUT, 0], b"hi"]);
        for byte in &bytes[..bytes.len() - 1] {
            decoder.add(&[*byte]);
            assert_eq!(decoder.next(), Ok(None));
        }
        decoder.add(&bytes[bytes.len() - 1..]);
        let data = Incoming::Data {
            id: 7,
            stream: stream::STDOUT,
            bytes: b"hi".to_vec(),
        };
        assert_eq!(decoder.next(), Ok(Some(data)));
        assert_eq!(decoder.next(), Ok(None));
    }

    #[test]
    fn a_lying_length_is_noticed_at_once() {
        let mut decoder = Decoder::default();
        decoder.add(&[0xff; 4]);
        assert_eq!(decoder.next(), Err(Forged));
        let mut decoder = Decoder::default();
        decoder.add(&[0; 4]);
        assert_eq!(decoder.next(), Err(Forged));
    }

    proptest! {
        #[test]
        fn fuzz_frames_of_agents(bytes: Vec<u8>) {
            let mut decoder = Decoder::default();
            decoder.add(&bytes);
            while let Ok(Some(_)) = decoder.next() {}
        }
    }
}
