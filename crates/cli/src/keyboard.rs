//! What a person types while code runs, for `input()` and the like.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, Interest, ReadBuf};

/// The terminal, opened anew: not to block is its own affair then, and what nobody reads stays for the next line.
pub struct Keyboard(AsyncFd<File>);

impl Keyboard {
    pub fn open() -> io::Result<Self> {
        const O_NONBLOCK: i32 = 0o4000;
        const O_NOCTTY: i32 = 0o400;
        let terminal = OpenOptions::new()
            .read(true)
            .custom_flags(O_NONBLOCK | O_NOCTTY)
            .open("/dev/tty")?;
        AsyncFd::with_interest(terminal, Interest::READABLE).map(Self)
    }
}

impl AsyncRead for Keyboard {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.0.poll_read_ready(context))?;
            let room = buffer.initialize_unfilled();
            match ready.try_io(|terminal| terminal.get_ref().read(room)) {
                Ok(read) => {
                    buffer.advance(read?);
                    return Poll::Ready(Ok(()));
                }
                // Nothing after all.
                Err(_) => {}
            }
        }
    }
}
