//! What flows into and out of commands.

use alloc::collections::VecDeque;

use crate::sys::{self, Fd};
use crate::system::{self, EAGAIN};
use crate::{Outbox, kind};

/// Streams of a command, by number. Bytes go in through 0, 3 and 4, and come out of 1, 2 and 3.
pub const STDIN: u8 = 0;
pub const STDOUT: u8 = 1;
pub const STDERR: u8 = 2;
pub const CHANNEL: u8 = 3;
/// What a kernel's run reads: its reading end travelled over the channel.
pub const INPUT: u8 = 4;

const CHUNK: usize = 64 << 10;

/// Bytes that come out of the command.
pub struct Source {
    pub fd: Fd,
    pub stream: u8,
    pub window: usize,
    pub after_end: usize,
}

/// Bytes that go into the command.
pub struct Drain {
    pub fd: Fd,
    pub stream: u8,
    pub waiting: VecDeque<u8>,
    /// Travels with the byte at this place.
    pub passenger: Option<(usize, Fd)>,
    pub last: bool,
}

impl Source {
    /// Passes on what is there: how many bytes.
    pub fn read(&mut self, id: u32, outbox: &mut Outbox) -> usize {
        if self.fd < 0 || self.window == 0 {
            return 0;
        }
        let mut buffer = [0_u8; CHUNK];
        let most = self.window.min(CHUNK);
        match sys::read(self.fd, &mut buffer[..most]) {
            Ok(n) => {
                outbox.push(kind::DATA, id, &[&[self.stream, 0], &buffer[..n]]);
                self.window -= n;
                if n == 0 && self.stream != CHANNEL {
                    sys::close(self.fd);
                    self.fd = -1;
                } else if n == 0 {
                    // Kept for its other direction, but there is nothing more to wait for.
                    self.window = 0;
                    self.after_end = 0;
                }
                n
            }
            Err(EAGAIN | sys::EINTR) => 0,
            Err(_) => {
                self.after_end = 0;
                self.window = 0;
                0
            }
        }
    }
}

impl Drain {
    pub fn write(&mut self, id: u32, outbox: &mut Outbox) {
        let mut written = 0;
        while self.fd >= 0 && !self.waiting.is_empty() {
            let mut bytes = self.waiting.as_slices().0;
            let mut fd = None;
            if let Some((at, passenger)) = self.passenger {
                if at == 0 {
                    fd = Some(passenger);
                } else {
                    bytes = &bytes[..bytes.len().min(at)];
                }
            }
            let sent = if self.stream == CHANNEL {
                system::send(self.fd, bytes, fd)
            } else {
                sys::write(self.fd, bytes)
            };
            match sent {
                Ok(n) => {
                    self.waiting.drain(..n);
                    written += n;
                    if let Some((at, passenger)) = &mut self.passenger {
                        if *at == 0 {
                            sys::close(*passenger);
                            self.passenger = None;
                        } else {
                            *at -= n;
                        }
                    }
                }
                Err(EAGAIN) => break,
                Err(sys::EINTR) => {}
                // Nobody reads it any more.
                Err(_) => {
                    written += self.waiting.len();
                    self.waiting.clear();
                    if self.stream != CHANNEL {
                        sys::close(self.fd);
                        self.fd = -1;
                    }
                    break;
                }
            }
        }
        if self.fd < 0 {
            written += self.waiting.len();
            self.waiting.clear();
        }
        if written > 0 {
            outbox.push(
                kind::ACK,
                id,
                &[&[self.stream], &(written as u32).to_le_bytes()],
            );
        }
        if self.last && self.waiting.is_empty() && self.fd >= 0 && self.stream != CHANNEL {
            sys::close(self.fd);
            self.fd = -1;
        }
    }
}
