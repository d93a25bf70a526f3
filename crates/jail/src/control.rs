//! The socket between a keeper and a sandbox's first process: fixed records, with descriptors.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use serde::Serialize;

use crate::beneath::Found;
use crate::channel::{Channel, HEADER, frame, receive, send_all};
use crate::error::Error;
use crate::outbox::Outbox;
use crate::protocol::{CommandId, Role, Signal, Start};

// The same numbers as in the init program.
const START: u32 = 1;
const SIGNAL: u32 = 2;
const READY: u32 = 1;
const STARTED: u32 = 2;
const START_FAILED: u32 = 3;
const ENDED: u32 = 4;
const SETUP_FAILED: u32 = 5;
const WORKSPACE: u32 = 6;
const DOORS: u32 = 7;
const PLACED: u32 = 8;
const LOCKED: u32 = 9;
const ALONE: u32 = 1;
const CHANNEL: u32 = 2;
const LONE: u32 = 8;
const TERMINAL: u32 = 4;
const RECORD: usize = 16;
/// Init takes no longer message.
const MAX_MESSAGE: usize = 4 << 20;
/// Whoever has left this much to be sent takes nothing more. Each message holds descriptors of the keeper's.
const MAX_KEPT: (usize, usize) = (64, 1 << 20);

/// What a sandbox's first process tells the keeper: during set-up the half-confined child, later init.
pub enum Report {
    SetupFailed(Error),
    Workspace {
        workspace: OwnedFd,
        inputs: Vec<Found>,
        /// Landlock rules for a kernel that comes from outside.
        rules: Option<OwnedFd>,
    },
    /// The sockets of its network.
    Doors(Vec<OwnedFd>),
    /// Namespaces, cgroups and mounts are as they will stay.
    Placed,
    /// It has given up all that it will; what is left is to become init.
    Locked,
    Ready,
    Started {
        id: CommandId,
    },
    StartFailed {
        id: CommandId,
        errno: i32,
    },
    Ended {
        id: CommandId,
        code: i32,
        status: i32,
    },
}

/// One end of the socket between keeper and init.
pub struct Control {
    socket: OwnedFd,
    bytes: Vec<u8>,
    fds: VecDeque<OwnedFd>,
    /// The keeper's: code can keep init from reading, and nobody else shall wait for that.
    unsent: Outbox,
}

impl Control {
    pub fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            bytes: Vec::new(),
            fds: VecDeque::new(),
            unsent: Outbox::default(),
        }
    }

    /// Child: the set-up went wrong. Nobody is left to tell if this fails too; the keeper sees the end of the socket.
    pub fn report_failure(&mut self, error: &Error) {
        let text = serde_json::to_vec(error).unwrap_or_default();
        let mut message = record(SETUP_FAILED, 0, i32::try_from(text.len()).unwrap_or(0));
        message.extend_from_slice(&text);
        let _ = send_all(self.socket.as_fd(), &message, &[]);
    }

    /// Child: what the keeper says while the sandbox is made.
    pub fn listen(&self) -> io::Result<Channel> {
        Ok(Channel::new(self.socket.try_clone()?))
    }

    /// Keeper: tells the child what to become.
    pub fn order(&mut self, what: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = serde_json::to_vec(what).map_err(io::Error::other)?;
        self.unsent
            .offer(self.socket.as_fd(), frame(&bytes, fds)?, fds)?;
        Ok(())
    }

    /// Keeper: tells init something without waiting; what the socket does not take goes with the next [`Control::flush`].
    fn tell(&mut self, message: Vec<u8>, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let (messages, bytes) = self.unsent.kept();
        if messages >= MAX_KEPT.0 || bytes >= MAX_KEPT.1 {
            return Err(io::Error::new(
                io::ErrorKind::WouldBlock,
                "the sandbox does not take what it was told before",
            ));
        }
        self.unsent.offer(self.socket.as_fd(), message, fds)?;
        Ok(())
    }

    /// Keeper: sends what was kept. An error of the kind `WouldBlock`: there is more.
    pub fn flush(&mut self) -> io::Result<()> {
        self.unsent.flush(self.socket.as_fd())
    }

    /// Keeper: drops what was kept.
    pub fn forget(&mut self) {
        self.unsent = Outbox::default();
    }

    /// Keeper: whether something was kept.
    pub fn is_behind(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Child: hands over the workspace directory, what was put into it, and the rules for a kernel.
    pub fn send_workspace(
        &self,
        workspace: BorrowedFd<'_>,
        inputs: &[Found],
        rules: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let text = serde_json::to_vec(inputs).map_err(io::Error::other)?;
        let mut message = record(
            WORKSPACE,
            u32::from(rules.is_some()),
            i32::try_from(text.len()).map_err(io::Error::other)?,
        );
        message.extend_from_slice(&text);
        let fds: Vec<_> = [workspace].into_iter().chain(rules).collect();
        send_all(self.socket.as_fd(), &message, &fds)
    }

    /// Child: hands over the sockets of its network.
    pub fn send_doors(&self, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let count = u32::try_from(fds.len()).map_err(io::Error::other)?;
        send_all(self.socket.as_fd(), &record(DOORS, count, 0), fds)
    }

    /// Child: the keeper may look at where it is, while it gives up the rest.
    pub fn send_placed(&self) -> io::Result<()> {
        send_all(self.socket.as_fd(), &record(PLACED, 0, 0), &[])
    }

    /// Child: the keeper may look at what it may still do. In one call, which those that are filtered have.
    pub fn send_locked(&self) -> io::Result<()> {
        let message = record(LOCKED, 0, 0);
        let sent = nix::unistd::write(&self.socket, &message)?;
        if sent == message.len() {
            Ok(())
        } else {
            Err(io::ErrorKind::WriteZero.into())
        }
    }

    /// Keeper: start a command. `fds` are its standard descriptors, a kernel's channel, then the cgroups it shall join. One that
    /// is `lone` can start no process.
    pub fn start(&mut self, start: &Start, lone: bool, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let command = &start.command;
        let mut strings = Vec::new();
        let mut push = |parts: &[&[u8]]| {
            for part in parts {
                strings.extend_from_slice(part);
            }
            strings.push(0);
        };
        push(&[command.cwd.as_os_str().as_encoded_bytes()]);
        command
            .argv
            .iter()
            .for_each(|word| push(&[word.as_bytes()]));
        command
            .env
            .iter()
            .for_each(|(name, value)| push(&[name.as_bytes(), b"=", value.as_bytes()]));
        let small =
            |n: usize| u32::try_from(n).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
        let lone = if lone { LONE } else { 0 };
        let words = [
            start.id,
            lone | match start.role {
                Role::Alone => ALONE,
                Role::Kernel => ALONE | CHANNEL,
                Role::Beside => 0,
                Role::Terminal => TERMINAL,
            },
            small(command.argv.len())?,
            small(command.env.len())?,
        ];
        if RECORD + strings.len() > MAX_MESSAGE {
            return Err(io::Error::from_raw_os_error(libc::E2BIG));
        }
        let mut message = Vec::with_capacity(HEADER + RECORD + strings.len());
        for word in [START, small(RECORD + strings.len())?].iter().chain(&words) {
            message.extend_from_slice(&word.to_le_bytes());
        }
        message.extend_from_slice(&strings);
        self.tell(message, fds)
    }

    /// Keeper: kill everything but init, which reports the end of the command 0 when that is done.
    pub fn kill_all(&mut self) -> io::Result<()> {
        self.signal(0, Signal::Kill)
    }

    /// Keeper: send a signal to a command.
    pub fn signal(&mut self, id: CommandId, signal: Signal) -> io::Result<()> {
        let number = match signal {
            Signal::Interrupt => libc::SIGINT,
            Signal::Kill => libc::SIGKILL,
        };
        let words = [SIGNAL, 8, id, number.cast_unsigned()];
        let message = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.tell(message, &[])
    }

    /// Keeper: reads once. `Ok(false)`: the other side has gone.
    pub fn fill(&mut self) -> io::Result<bool> {
        let mut chunk = [0; 4096];
        let n = receive(self.socket.as_fd(), &mut chunk, &mut self.fds)?;
        self.bytes.extend_from_slice(&chunk[..n]);
        Ok(n > 0)
    }

    /// Keeper: the next whole report, if one has arrived.
    pub fn next_report(&mut self) -> io::Result<Option<Report>> {
        let Some(record) = self.bytes.first_chunk::<RECORD>() else {
            return Ok(None);
        };
        let word = |at: usize| {
            let bytes = [record[at], record[at + 1], record[at + 2], record[at + 3]];
            (u32::from_le_bytes(bytes), i32::from_le_bytes(bytes))
        };
        let (kind, id, a, b) = (word(0).0, word(4).0, word(8).1, word(12).1);
        let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let payload = if matches!(kind, SETUP_FAILED | WORKSPACE) {
            usize::try_from(a).unwrap_or(0)
        } else {
            0
        };
        let length = RECORD + payload;
        let Some(payload) = self.bytes.get(RECORD..length) else {
            return Ok(None);
        };
        let report = match kind {
            PLACED => Report::Placed,
            LOCKED => Report::Locked,
            READY => Report::Ready,
            STARTED => Report::Started { id },
            START_FAILED => Report::StartFailed { id, errno: a },
            ENDED => Report::Ended {
                id,
                code: a,
                status: b,
            },
            WORKSPACE => Report::Workspace {
                workspace: self
                    .fds
                    .pop_front()
                    .ok_or_else(|| invalid("no workspace descriptor"))?,
                inputs: serde_json::from_slice(payload).map_err(io::Error::other)?,
                rules: match id {
                    0 => None,
                    _ => self.fds.pop_front(),
                },
            },
            DOORS => {
                let count = usize::try_from(id).unwrap_or(usize::MAX);
                if self.fds.len() < count {
                    return Err(invalid("no sockets of the network"));
                }
                Report::Doors(self.fds.drain(..count).collect())
            }
            SETUP_FAILED => {
                Report::SetupFailed(serde_json::from_slice(payload).map_err(io::Error::other)?)
            }
            _ => return Err(invalid("unknown report of init")),
        };
        self.bytes.drain(..length);
        Ok(Some(report))
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn record(kind: u32, id: u32, a: i32) -> Vec<u8> {
    let mut message = Vec::with_capacity(RECORD);
    message.extend_from_slice(&kind.to_le_bytes());
    message.extend_from_slice(&id.to_le_bytes());
    message.extend_from_slice(&a.to_le_bytes());
    message.extend_from_slice(&[0; 4]);
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::pair;
    use proptest::prelude::*;

    #[test]
    fn who_does_not_read_is_not_waited_for() {
        let (ours, theirs) = pair().expect("socketpair");
        let mut control = Control::new(ours);
        let null = std::fs::File::open("/dev/null").expect("null");
        let message = frame(&vec![b'x'; 100_000], &[null.as_fd()]).expect("frame");
        let taken = (0..1000)
            .take_while(|_| control.tell(message.clone(), &[null.as_fd()]).is_ok())
            .count();
        assert!((4..100).contains(&taken), "{taken} were taken");
        assert!(control.is_behind());
        assert!(control.kill_all().is_err(), "there is no end to it");
        let mut reader = Channel::new(theirs);
        for number in 0..taken {
            let frame = loop {
                if let Some(frame) = reader.next_frame().expect("frame") {
                    break frame;
                }
                let _ = control.flush();
                assert!(reader.fill().expect("fill"), "{number} is missing");
            };
            assert_eq!((frame.bytes.len(), frame.fds.len()), (100_000, 1));
        }
        assert!(!control.is_behind());
        control.kill_all().expect("there is room again");
    }

    proptest! {
        #[test]
        fn fuzz_reports_of_init(kind in 0_u32..10, id: u32, a: i32, rest in prop::collection::vec(any::<u8>(), 0..64)) {
            let (ours, theirs) = pair().expect("socketpair");
            let mut control = Control::new(theirs);
            let head: Vec<u8> = [kind.to_le_bytes(), id.to_le_bytes(), a.to_le_bytes()].concat();
            send_all(ours.as_fd(), &[head, rest].concat(), &[]).expect("send");
            control.fill().expect("fill");
            for _ in 0..16 {
                if !matches!(control.next_report(), Ok(Some(_))) {
                    break;
                }
            }
        }
    }
}
