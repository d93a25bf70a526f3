//! The first process of a container: starts commands, carries their streams, and works on files of the workspace.
//!
//! Theory of operation. A program without libc, so that it runs in any image. It speaks frames over its own standard input
//! and output, which the engine holds the other ends of: one connection for all commands. It puts the engine's own
//! system call filter on itself and makes the fence for commands before it says that it is ready, reaps what the container orphans, and ends everything when
//! the connection ends. As process 1 it hears no signal from inside, and it is closed to inspection (`PR_SET_DUMPABLE`).
//!
//! A frame is a length (of what follows), a kind, an id and a payload, all little-endian. Bytes of a stream are sent only as
//! far as the other side has acknowledged earlier ones, so nothing here grows without bound.
#![no_std]
#![no_main]

extern crate alloc;

mod birth;
#[path = "../init/call.rs"]
mod call;
mod command;
mod fence;
mod files;
#[path = "../init/lone.rs"]
mod lone;
mod memory;
mod streams;
#[path = "../init/sys.rs"]
#[allow(dead_code)]
mod sys;
mod system;

use alloc::vec::Vec;

use command::Commands;
use fence::Fence;
use files::Files;
use sys::{Fd, IN, Poll, poll};
use system::OUT;

/// More than any frame the engine sends.
const MAX_FRAME: usize = 4 << 20;
/// Above this much unsent output nothing more is read from commands.
const MOST_UNSENT: usize = 1 << 20;

const STDIN: Fd = 0;
const STDOUT: Fd = 1;

/// Kinds of frames; `crates/engine/src/docker/wire.rs` has the same.
pub mod kind {
    pub const START: u8 = 1;
    pub const SIGNAL: u8 = 2;
    pub const DATA: u8 = 3;
    pub const ACK: u8 = 4;
    pub const FILE: u8 = 5;
    pub const RESIZE: u8 = 6;
    pub const READY: u8 = 16;
    pub const STARTED: u8 = 17;
    pub const FAILED: u8 = 18;
    pub const ENDED: u8 = 19;
    pub const REPLY: u8 = 20;
}

/// What waits to be sent.
pub struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
}

impl Outbox {
    pub fn push(&mut self, kind: u8, id: u32, parts: &[&[u8]]) {
        let length: usize = 5 + parts.iter().map(|part| part.len()).sum::<usize>();
        self.bytes.extend_from_slice(&(length as u32).to_le_bytes());
        self.bytes.push(kind);
        self.bytes.extend_from_slice(&id.to_le_bytes());
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
    }

    fn is_empty(&self) -> bool {
        self.sent == self.bytes.len()
    }

    fn is_full(&self) -> bool {
        self.bytes.len() - self.sent > MOST_UNSENT
    }

    fn send(&mut self) {
        while !self.is_empty() {
            match sys::write(STDOUT, &self.bytes[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(system::EAGAIN | sys::EINTR) => return,
                Err(_) => leave(),
            }
        }
        self.bytes.clear();
        self.sent = 0;
        if self.bytes.capacity() > 2 * MOST_UNSENT {
            self.bytes = Vec::new();
        }
    }
}

/// Nothing outlives the connection.
fn leave() -> ! {
    command::kill_all();
    sys::exit(0)
}

pub extern "C" fn main() -> ! {
    const PR_SET_DUMPABLE: usize = 4;
    const PR_SET_CHILD_SUBREAPER: usize = 36;
    // Elsewhere than at the head of a process namespace, what it does to all processes would be done to the host's.
    if !sys::is_first() {
        sys::exit(69);
    }
    sys::mask_signals(true);
    if sys::prctl(PR_SET_DUMPABLE, 0).is_err()
        || sys::prctl(PR_SET_CHILD_SUBREAPER, 1).is_err()
        || !system::is_unprivileged()
    {
        sys::exit(71);
    }
    for fd in [STDIN, STDOUT] {
        if system::set_nonblocking(fd).is_err() {
            sys::exit(72);
        }
    }
    let Ok(signals) = sys::child_signals() else {
        sys::exit(73)
    };
    // The first frame is the filter, the second the fence: nothing is started before they are there.
    let mut incoming = Vec::new();
    let mut outbox = Outbox {
        bytes: Vec::new(),
        sent: 0,
    };
    let filter = wait_for_frame(&mut incoming);
    if !filter.is_empty() && system::install_filter(&filter).is_err() {
        sys::exit(74);
    }
    let Ok(fence) = Fence::build(&wait_for_frame(&mut incoming)) else {
        sys::exit(79)
    };
    let status = system::read_whole(b"/proc/self/status\0", 16 << 10);
    outbox.push(kind::READY, fence.version, &[&status]);
    let mut commands = Commands::new(fence);
    let mut files = Files::default();
    loop {
        commands.settle(&mut outbox);
        outbox.send();
        let mut polls = Vec::new();
        polls.push(Poll::new(STDIN, IN));
        polls.push(Poll::new(signals, IN));
        polls.push(Poll::new(STDOUT, if outbox.is_empty() { 0 } else { OUT }));
        commands.wishes(&mut polls, outbox.is_full());
        poll(&mut polls);
        if polls[1].is_ready() {
            drain(signals);
            commands.reap();
        }
        commands.carry(&polls[3..], &mut outbox);
        if polls[0].is_ready() {
            if !fill(&mut incoming) {
                leave();
            }
            let mut at = 0;
            while let Some((frame, next)) = next_frame(&incoming, at) {
                serve(frame, &mut commands, &mut files, &mut outbox);
                at = next;
            }
            incoming.drain(..at);
        }
    }
}

fn serve(frame: &[u8], commands: &mut Commands, files: &mut Files, outbox: &mut Outbox) {
    let id = word(frame, 1);
    let payload = &frame[5..];
    match frame[0] {
        kind::START => commands.start(id, payload, outbox),
        kind::SIGNAL => commands.signal(id, payload),
        kind::DATA => commands.take(id, payload, outbox),
        kind::ACK => commands.acknowledge(id, payload),
        kind::FILE => files.serve(id, payload, outbox),
        kind::RESIZE => commands.resize(id, payload),
        _ => sys::exit(78),
    }
}

/// What is in the next one.
fn wait_for_frame(incoming: &mut Vec<u8>) -> Vec<u8> {
    loop {
        if let Some((frame, next)) = next_frame(incoming, 0) {
            let payload = frame[5..].to_vec();
            incoming.drain(..next);
            return payload;
        }
        poll(&mut [Poll::new(STDIN, IN)]);
        if !fill(incoming) {
            leave();
        }
    }
}

/// `false`: the connection has ended.
fn fill(incoming: &mut Vec<u8>) -> bool {
    let mut buffer = [0_u8; 16 << 10];
    loop {
        match sys::read(STDIN, &mut buffer) {
            Ok(0) => return false,
            Ok(n) => {
                incoming.extend_from_slice(&buffer[..n]);
                if n < buffer.len() || incoming.len() > MAX_FRAME {
                    return true;
                }
            }
            Err(system::EAGAIN) => return true,
            Err(sys::EINTR) => {}
            Err(_) => return false,
        }
    }
}

/// The frame at this place without its length, and where the next one begins.
fn next_frame(bytes: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let rest = &bytes[at..];
    if rest.len() < 4 {
        return None;
    }
    let length = word(rest, 0) as usize;
    if !(5..=MAX_FRAME).contains(&length) {
        sys::exit(75);
    }
    let frame = rest.get(4..4 + length)?;
    Some((frame, at + 4 + length))
}

fn drain(signals: Fd) {
    let mut info = [0_u8; 1024];
    while matches!(sys::read(signals, &mut info), Ok(n) if n > 0) {}
}

pub fn word(bytes: &[u8], at: usize) -> u32 {
    match bytes.get(at..at + 4) {
        Some(b) => u32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        None => sys::exit(82),
    }
}

pub fn short(bytes: &[u8], at: usize) -> u16 {
    match bytes.get(at..at + 2) {
        Some(b) => u16::from_le_bytes([b[0], b[1]]),
        None => sys::exit(82),
    }
}

pub fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    sys::exit(70)
}
