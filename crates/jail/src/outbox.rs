//! What a socket has not taken yet, for a side that must never wait for the other.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::channel::send_some;

#[derive(Default)]
pub(crate) struct Outbox {
    unsent: VecDeque<Unsent>,
    /// How many bytes they have together.
    bytes: usize,
}

/// A message that the socket has not taken, or not all of.
struct Unsent {
    bytes: Vec<u8>,
    sent: usize,
    /// They go with the first byte.
    fds: Vec<OwnedFd>,
}

impl Unsent {
    /// Until all of it is sent, or the socket would have to be waited for.
    fn send(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        while self.sent < self.bytes.len() {
            let fds: Vec<_> = self.fds.iter().map(AsFd::as_fd).collect();
            match send_some(socket, &self.bytes[self.sent..], &fds) {
                Ok(sent) => {
                    self.sent += sent;
                    self.fds.clear();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Outbox {
    /// Sends without ever waiting. `Ok(false)`: some of it is kept here until the next [`Outbox::flush`].
    pub fn offer(
        &mut self,
        socket: BorrowedFd<'_>,
        bytes: Vec<u8>,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<bool> {
        let mut sent = 0;
        if self.unsent.is_empty() {
            match send_some(socket, &bytes, fds) {
                Ok(all) if all == bytes.len() => return Ok(true),
                Ok(some) => sent = some,
                Err(error) if is_for_later(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let fds = if sent == 0 { fds } else { &[] };
        let fds: io::Result<_> = fds.iter().map(BorrowedFd::try_clone_to_owned).collect();
        let fds = fds?;
        self.bytes += bytes.len();
        self.unsent.push_back(Unsent { bytes, sent, fds });
        Ok(false)
    }

    /// Sends what was kept. An error of the kind `WouldBlock`: there is more.
    pub fn flush(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        while let Some(first) = self.unsent.front_mut() {
            first.send(socket)?;
            self.bytes -= first.bytes.len();
            self.unsent.pop_front();
        }
        Ok(())
    }

    pub fn is_empty(&self) -> bool {
        self.unsent.is_empty()
    }

    /// How much is kept: messages, and the bytes of them all.
    pub fn kept(&self) -> (usize, usize) {
        (self.unsent.len(), self.bytes)
    }
}

fn is_for_later(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}
