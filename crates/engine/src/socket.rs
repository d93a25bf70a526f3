//! A socket that is waited on for what arrives, and for room to send only while something is owed.
//!
//! Whoever waits for both is woken each time the other side reads, for nothing: in the middle of each run, between the code and
//! its answer.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};

pub(crate) struct Socket {
    arriving: AsyncFd<UnixStream>,
    /// The same once more, while something is owed.
    leaving: Option<AsyncFd<UnixStream>>,
}

/// What can be done without waiting. Whoever finds that it cannot, after all, says so to the guard and waits again.
pub(crate) enum Ready<'a> {
    Receive(AsyncFdReadyGuard<'a, UnixStream>),
    Send(AsyncFdReadyGuard<'a, UnixStream>),
}

impl Socket {
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        let socket = UnixStream::from(socket);
        socket.set_nonblocking(true)?;
        Ok(Self {
            arriving: registered(socket, Interest::READABLE)?,
            leaving: None,
        })
    }

    /// Waits until something has arrived or, if something is owed, until there is room for it. Can be cancelled at any time.
    pub async fn ready(&mut self, owes: bool) -> io::Result<Ready<'_>> {
        if !owes {
            self.leaving = None;
            return Ok(Ready::Receive(self.arriving.readable().await?));
        }
        let leaving = match &mut self.leaving {
            Some(leaving) => leaving,
            none => {
                let socket = self.arriving.get_ref().try_clone()?;
                none.insert(registered(socket, Interest::WRITABLE)?)
            }
        };
        tokio::select! {
            arrived = self.arriving.readable() => Ok(Ready::Receive(arrived?)),
            room = leaving.writable() => Ok(Ready::Send(room?)),
        }
    }
}

#[expect(
    deprecated,
    reason = "a `UnixStream` keeps its descriptor for as long as it lives, which is all that was not sound about it"
)]
fn registered(socket: UnixStream, interest: Interest) -> io::Result<AsyncFd<UnixStream>> {
    AsyncFd::with_interest(socket, interest)
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.arriving.get_ref().as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::time::Duration;

    fn pair() -> (Socket, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        (Socket::new(ours.into()).expect("socket"), theirs)
    }

    /// Whether it is ready soon: to receive, or else to send.
    async fn soon(socket: &mut Socket, owes: bool) -> Option<bool> {
        let waited = tokio::time::timeout(Duration::from_millis(200), socket.ready(owes)).await;
        waited
            .ok()
            .map(|ready| matches!(ready.expect("ready"), Ready::Receive(_)))
    }

    #[tokio::test]
    async fn a_reader_on_the_other_side_wakes_nobody() {
        let (mut socket, mut theirs) = pair();
        socket.arriving.get_ref().write_all(b"x").expect("sent");
        {
            let mut waiting = std::pin::pin!(socket.ready(false));
            let pause = Duration::from_millis(50);
            assert!(tokio::time::timeout(pause, waiting.as_mut()).await.is_err());
            theirs.read_exact(&mut [0]).expect("read");
            assert!(tokio::time::timeout(pause, waiting.as_mut()).await.is_err());
        }
        theirs.write_all(b"y").expect("answer");
        assert_eq!(soon(&mut socket, false).await, Some(true));
    }

    #[tokio::test]
    async fn what_is_owed_waits_for_room() {
        let (mut socket, mut theirs) = pair();
        let mut filled = 0;
        while let Ok(n) = socket.arriving.get_ref().write(&[0; 4096]) {
            filled += n;
        }
        assert_eq!(soon(&mut socket, true).await, None);
        let mut chunk = vec![0; 1 << 20];
        while filled > 0 {
            filled -= theirs.read(&mut chunk).expect("read");
        }
        assert_eq!(soon(&mut socket, true).await, Some(false));
    }
}
