//! Sockets that carry descriptors; and the one between a keeper and its engine, with length-prefixed frames.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, Shutdown, SockFlag, SockType,
    recvmsg, sendmsg, shutdown, socketpair,
};

use crate::outbox::Outbox;
use crate::sys;

/// No frame is longer. A plan with its arguments and environment is far below it.
const MAX_FRAME: usize = 8 << 20;
/// No frame carries more descriptors: the kernel's own limit is 253.
const MAX_FDS: usize = 64;
pub(crate) const HEADER: usize = 8;

/// A connected pair of stream sockets.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(
        AddressFamily::Unix,
        SockType::Stream,
        None,
        SockFlag::SOCK_CLOEXEC,
    )?)
}

/// Sends all bytes, the descriptors with the first of them. Waits when the socket is full.
pub(crate) fn send_all(
    socket: BorrowedFd<'_>,
    mut bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let numbers: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let mut rights = if numbers.is_empty() {
        vec![]
    } else {
        vec![ControlMessage::ScmRights(&numbers)]
    };
    while !bytes.is_empty() {
        match sendmsg::<()>(
            socket.as_raw_fd(),
            &[IoSlice::new(bytes)],
            &rights,
            MsgFlags::MSG_NOSIGNAL,
            None,
        ) {
            Ok(sent) => {
                bytes = &bytes[sent..];
                rights.clear();
            }
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => {
                let mut wanted = [PollFd::new(socket, PollFlags::POLLOUT)];
                poll(&mut wanted, PollTimeout::NONE)?;
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Sends what the socket takes without waiting, the descriptors with the first byte.
pub fn send_some(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let numbers: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&numbers)];
    let rights = if fds.is_empty() { &[][..] } else { &rights };
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    let slices = [IoSlice::new(bytes)];
    Ok(sendmsg::<()>(
        socket.as_raw_fd(),
        &slices,
        rights,
        flags,
        None,
    )?)
}

/// From here on nobody waits in reading from it.
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(())
}

/// Reads from a descriptor that does not block.
pub fn read_some(from: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<usize> {
    Ok(nix::unistd::read(from, into)?)
}

/// Receives bytes that are there, without waiting. `Ok(0)` is the end.
pub fn receive_some(socket: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<usize> {
    Ok(nix::sys::socket::recv(
        socket.as_raw_fd(),
        into,
        MsgFlags::MSG_DONTWAIT,
    )?)
}

/// The same, with a descriptor that may have come along.
pub fn receive_with(
    socket: BorrowedFd<'_>,
    into: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut fds = VecDeque::new();
    let n = receive(socket, into, &mut fds)?;
    Ok((n, fds.pop_front()))
}

/// Nothing more is sent on this socket: whoever reads the other end sees that.
pub fn end_of_sending(socket: BorrowedFd<'_>) {
    let _ = shutdown(socket.as_raw_fd(), Shutdown::Write);
}

/// The bytes of a frame.
pub(crate) fn frame(bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<Vec<u8>> {
    let (Ok(length), Ok(count)) = (u32::try_from(bytes.len()), u32::try_from(fds.len())) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    if bytes.len() > MAX_FRAME || fds.len() > MAX_FDS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut frame = Vec::with_capacity(HEADER + bytes.len());
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(&count.to_le_bytes());
    frame.extend_from_slice(bytes);
    Ok(frame)
}

/// Receives what is there, without waiting. `Ok(0)` is the end.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    into: &mut [u8],
    fds: &mut VecDeque<OwnedFd>,
) -> io::Result<usize> {
    let mut space = cmsg_space!([i32; MAX_FDS]);
    let mut slices = [IoSliceMut::new(into)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut slices, Some(&mut space), flags)?;
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(numbers) = control {
            for number in numbers {
                fds.push_back(sys::adopt(number)?);
            }
        }
    }
    Ok(message.bytes)
}

/// A message between engine and keeper.
pub struct Frame {
    pub bytes: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

/// One end of the socket between engine and keeper.
pub struct Channel {
    socket: OwnedFd,
    bytes: Vec<u8>,
    fds: VecDeque<OwnedFd>,
    unsent: Outbox,
}

impl Channel {
    pub fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            bytes: Vec::new(),
            fds: VecDeque::new(),
            unsent: Outbox::default(),
        }
    }

    /// Sends, and waits for the other side if the socket is full.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        send_all(self.socket.as_fd(), &frame(bytes, fds)?, fds)
    }

    /// Sends without ever waiting. `Ok(false)`: some of it is kept here until the next [`Channel::flush`].
    ///
    /// For the side that must go on reading, since the other one does wait: else both would, for ever.
    pub fn offer(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<bool> {
        let bytes = frame(bytes, fds)?;
        self.unsent.offer(self.socket.as_fd(), bytes, fds)
    }

    /// Sends what was kept. An error of the kind `WouldBlock`: there is more.
    pub fn flush(&mut self) -> io::Result<()> {
        self.unsent.flush(self.socket.as_fd())
    }

    /// Whether something was kept.
    pub fn is_behind(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Reads once. `Ok(false)`: the other side has gone.
    pub fn fill(&mut self) -> io::Result<bool> {
        // Mostly small: each fresh page of memory costs as much as several system calls.
        let missing = self.next_length().saturating_sub(self.bytes.len());
        let mut chunk = vec![0; missing.clamp(4 << 10, 64 << 10)];
        let n = receive(self.socket.as_fd(), &mut chunk, &mut self.fds)?;
        self.bytes.extend_from_slice(&chunk[..n]);
        Ok(n > 0)
    }

    /// How long the frame is of which the beginning is there, header included.
    fn next_length(&self) -> usize {
        match self.bytes.first_chunk::<4>() {
            Some(length) => HEADER.saturating_add(u32::from_le_bytes(*length) as usize),
            None => 0,
        }
    }

    /// Says that nothing more will be sent; what the other side still sends can be read.
    pub fn hang_up(&self) {
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Write);
    }

    /// Hangs up altogether; the other side, and whoever waits on this one, sees the end.
    pub fn shut_down(&self) {
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Both);
    }

    /// Waits for the next frame. `None`: the other side has gone.
    pub fn wait(&mut self) -> io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.next_frame()? {
                return Ok(Some(frame));
            }
            let mut wanted = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
            match poll(&mut wanted, PollTimeout::NONE) {
                // A signal tells us of something else; whoever has to answer has not gone for that.
                Err(Errno::EINTR) => continue,
                polled => polled?,
            };
            if !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// The next whole frame, if one has arrived.
    pub fn next_frame(&mut self) -> io::Result<Option<Frame>> {
        let Some(header) = self.bytes.first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let (length, count) = (
            u32::from_le_bytes([header[0], header[1], header[2], header[3]]),
            u32::from_le_bytes([header[4], header[5], header[6], header[7]]),
        );
        let (length, count) = (length as usize, count as usize);
        if length > MAX_FRAME || count > MAX_FDS {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a frame is too long",
            ));
        }
        if self.bytes.len() < HEADER + length {
            return Ok(None);
        }
        if self.fds.len() < count {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a frame lacks descriptors",
            ));
        }
        let bytes = self.bytes[HEADER..HEADER + length].to_vec();
        self.bytes.drain(..HEADER + length);
        Ok(Some(Frame {
            bytes,
            fds: self.fds.drain(..count).collect(),
        }))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever a dead or hostile end writes: frames or an error, and nothing larger than what came.
        #[test]
        fn fuzz_frames(bytes in prop::collection::vec(any::<u8>(), 0..600), length in 0_u32..64, count in 0_u32..3) {
            let (a, b) = pair().expect("socketpair");
            let mut receiver = Channel::new(b);
            let head: Vec<u8> = [length.to_le_bytes(), count.to_le_bytes()].concat();
            send_all(a.as_fd(), &[head, bytes.clone()].concat(), &[]).expect("send");
            receiver.fill().expect("fill");
            let mut taken = 0;
            while let Ok(Some(frame)) = receiver.next_frame() {
                taken += frame.bytes.len() + HEADER;
            }
            prop_assert!(taken <= bytes.len() + HEADER);
        }
    }

    #[test]
    fn frames_arrive_whole_with_their_descriptors() {
        let (a, b) = pair().expect("socketpair");
        let (sender, mut receiver) = (Channel::new(a), Channel::new(b));
        let null = std::fs::File::open("/dev/null").expect("null");
        sender.send(b"one", &[null.as_fd()]).expect("send");
        sender.send(b"two", &[]).expect("send");
        assert!(receiver.fill().expect("fill"));
        let first = receiver.next_frame().expect("frame").expect("whole");
        assert_eq!(
            (first.bytes.as_slice(), first.fds.len()),
            (b"one".as_slice(), 1)
        );
        while receiver.bytes.is_empty() {
            assert!(receiver.fill().expect("fill"));
        }
        let second = receiver.next_frame().expect("frame").expect("whole");
        assert_eq!(
            (second.bytes.as_slice(), second.fds.len()),
            (b"two".as_slice(), 0)
        );
    }

    #[test]
    fn what_the_socket_does_not_take_is_kept_in_order() {
        let (a, b) = pair().expect("socketpair");
        let (mut sender, mut receiver) = (Channel::new(a), Channel::new(b));
        let body = |number: u32| format!("{number} {}", "x".repeat(10_000)).into_bytes();
        let null = std::fs::File::open("/dev/null").expect("null");
        for number in 0..500 {
            sender
                .offer(&body(number), &[null.as_fd()])
                .expect("never waits");
        }
        assert!(sender.is_behind(), "the socket took everything");
        for number in 0..500 {
            let frame = loop {
                if let Some(frame) = receiver.next_frame().expect("frame") {
                    break frame;
                }
                let _ = sender.flush();
                assert!(receiver.fill().expect("fill"));
            };
            assert_eq!((frame.bytes, frame.fds.len()), (body(number), 1));
        }
        assert!(!sender.is_behind());
    }

    #[test]
    fn a_lying_length_is_an_error() {
        let (a, b) = pair().expect("socketpair");
        let mut receiver = Channel::new(b);
        send_all(a.as_fd(), &[0xff; 8], &[]).expect("send");
        receiver.fill().expect("fill");
        assert!(receiver.next_frame().is_err());
    }
}
