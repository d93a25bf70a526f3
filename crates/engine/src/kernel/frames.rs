//! The channel to a kernel: length-prefixed JSON. What comes in is written by untrusted code.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};

use belljar_jail::send_some;
use serde::Serialize;
use tokio::io::Interest;
use tokio::net::UnixStream;

/// What a kernel may say in one go.
pub const MAX_INCOMING: usize = 16 << 20;
const HEADER: usize = 4;

pub struct Frames {
    socket: UnixStream,
    incoming: Vec<u8>,
    /// Where the bytes begin that are no part of a frame yet handed out.
    taken: usize,
    outgoing: VecDeque<Outgoing>,
}

struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    /// Travels with the first byte.
    fd: Option<OwnedFd>,
}

impl Frames {
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        let socket = std::os::unix::net::UnixStream::from(socket);
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket: UnixStream::from_std(socket)?,
            incoming: Vec::new(),
            taken: 0,
            outgoing: VecDeque::new(),
        })
    }

    /// Puts a frame in line. It is sent by [`Frames::turn`], as fast as the kernel reads.
    pub fn push(&mut self, frame: &impl Serialize, fd: Option<OwnedFd>) -> io::Result<()> {
        let mut bytes = vec![0; HEADER];
        serde_json::to_writer(&mut bytes, frame)?;
        let length = u32::try_from(bytes.len() - HEADER).map_err(io::Error::other)?;
        bytes[..HEADER].copy_from_slice(&length.to_le_bytes());
        self.outgoing.push_back(Outgoing { bytes, sent: 0, fd });
        match send(&self.socket, &mut self.outgoing) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            sent => sent,
        }
    }

    /// Waits until something has been sent or has arrived. Can be cancelled at any time.
    pub async fn turn(&mut self) -> io::Result<()> {
        let interest = if self.outgoing.is_empty() {
            Interest::READABLE
        } else {
            Interest::READABLE | Interest::WRITABLE
        };
        let ready = self.socket.ready(interest).await?;
        if ready.is_writable() && !self.outgoing.is_empty() {
            let (socket, outgoing) = (&self.socket, &mut self.outgoing);
            match socket.try_io(Interest::WRITABLE, || send(socket, outgoing)) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                sent => sent?,
            }
        }
        if ready.is_readable() {
            self.receive()?;
        }
        Ok(())
    }

    fn receive(&mut self) -> io::Result<()> {
        if self.taken > 0 {
            self.incoming.drain(..self.taken);
            self.taken = 0;
        }
        if self.incoming.len() > MAX_INCOMING + HEADER {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                "a frame is too long",
            ));
        }
        self.incoming.reserve(16 << 10);
        match self.socket.try_read_buf(&mut self.incoming) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The next whole frame, if one has arrived.
    pub fn next(&mut self) -> io::Result<Option<&[u8]>> {
        let rest = &self.incoming[self.taken..];
        let Some(header) = rest.first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*header) as usize;
        if length > MAX_INCOMING {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                "a frame is too long",
            ));
        }
        if rest.len() < HEADER + length {
            return Ok(None);
        }
        let start = self.taken + HEADER;
        self.taken = start + length;
        Ok(Some(&self.incoming[start..start + length]))
    }
}

/// Sends straight to the kernel: the runtime may not know yet that the socket is writable.
fn send(socket: &UnixStream, outgoing: &mut VecDeque<Outgoing>) -> io::Result<()> {
    while let Some(first) = outgoing.front_mut() {
        let fds: Vec<_> = first.fd.iter().map(AsFd::as_fd).collect();
        first.sent += send_some(socket.as_fd(), &first.bytes[first.sent..], &fds)?;
        first.fd = None;
        if first.sent == first.bytes.len() {
            outgoing.pop_front();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::net::UnixStream as StdStream;

    fn channel() -> (Frames, StdStream) {
        let (ours, theirs) = belljar_jail::pair().expect("sockets");
        (Frames::new(ours).expect("frames"), theirs.into())
    }

    #[tokio::test]
    async fn a_frame_may_come_in_pieces() {
        let (mut frames, mut kernel) = channel();
        kernel.write_all(&[2, 0, 0]).expect("write");
        frames.turn().await.expect("turn");
        assert!(frames.next().expect("next").is_none());
        kernel.write_all(b"\0{}\x01").expect("write");
        frames.turn().await.expect("turn");
        assert_eq!(frames.next().expect("next"), Some(&b"{}"[..]));
        assert!(frames.next().expect("next").is_none());
    }

    #[tokio::test]
    async fn a_lying_length_is_an_error() {
        let (mut frames, mut kernel) = channel();
        kernel.write_all(&[0xff; 8]).expect("write");
        frames.turn().await.expect("turn");
        assert!(frames.next().is_err());
    }

    #[tokio::test]
    async fn the_end_is_an_error() {
        let (mut frames, kernel) = channel();
        drop(kernel);
        assert!(frames.turn().await.is_err());
    }

    #[tokio::test]
    async fn a_kernel_that_does_not_read_holds_up_nobody() {
        let (mut frames, _kernel) = channel();
        let large = "x".repeat(8 << 20);
        frames.push(&large, None).expect("push");
        assert!(!frames.outgoing.is_empty());
    }
}
