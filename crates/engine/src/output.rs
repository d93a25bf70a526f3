//! Output of a program: passed on as it comes, kept up to a limit, and drained beyond it.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;

use tokio::net::unix::pipe::Receiver;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// Sees output while the program runs. Implementations must not block the engine for long.
pub trait Sink {
    fn output(&mut self, stream: Stream, bytes: &[u8]);
}

impl<F: FnMut(Stream, &[u8])> Sink for F {
    fn output(&mut self, stream: Stream, bytes: &[u8]) {
        self(stream, bytes);
    }
}

/// The beginning of what was written, and whether there was more.
#[derive(Debug, Default)]
pub struct Captured {
    pub bytes: Vec<u8>,
    pub truncated: bool,
}

impl Captured {
    /// Keeps what still fits and returns that part.
    fn take<'a>(&mut self, bytes: &'a [u8], limit: usize) -> &'a [u8] {
        let kept = &bytes[..bytes.len().min(limit - self.bytes.len())];
        self.bytes.extend_from_slice(kept);
        self.truncated |= kept.len() < bytes.len();
        kept
    }
}

/// Reads both pipes until every writer has gone, or until `ended` says that none is left. What is over the limit is read
/// and dropped: the program runs on.
///
/// The end of a pipe alone proves nothing: code can hide a descriptor in a socket's queue, where it outlives all processes
/// until the kernel looks for such things. After `ended` only what is in the pipes already is read.
pub async fn capture<T>(
    stdout: OwnedFd,
    stderr: OwnedFd,
    limit: usize,
    sink: &mut dyn Sink,
    ended: impl Future<Output = T>,
) -> std::io::Result<(Captured, Captured, T)> {
    let mut out = Pipe::new(stdout, Stream::Stdout, limit)?;
    let mut err = Pipe::new(stderr, Stream::Stderr, limit)?;
    let mut ended = std::pin::pin!(ended);
    loop {
        tokio::select! {
            ready = out.receiver.readable(), if out.open => { ready?; out.read(sink)?; }
            ready = err.receiver.readable(), if err.open => { ready?; err.read(sink)?; }
            outcome = &mut ended => {
                return Ok((out.drain(sink)?, err.drain(sink)?, outcome));
            }
        }
    }
}

/// One of the two pipes.
struct Pipe {
    receiver: Receiver,
    stream: Stream,
    limit: usize,
    captured: Captured,
    buffer: Vec<u8>,
    open: bool,
}

impl Pipe {
    fn new(fd: OwnedFd, stream: Stream, limit: usize) -> std::io::Result<Self> {
        let receiver = Receiver::from_owned_fd(fd)?;
        Ok(Self {
            receiver,
            stream,
            limit,
            captured: Captured::default(),
            buffer: vec![0; 64 << 10],
            open: true,
        })
    }

    /// Reads once, if there is anything.
    fn read(&mut self, sink: &mut dyn Sink) -> std::io::Result<()> {
        match self.receiver.try_read(&mut self.buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            read => {
                let n = read?;
                self.open = n > 0;
                keep(
                    &mut self.captured,
                    &self.buffer[..n],
                    self.limit,
                    self.stream,
                    sink,
                );
            }
        }
        Ok(())
    }

    /// Reads what is in the pipe now, straight from the kernel: the runtime may not have heard of it yet.
    fn drain(mut self, sink: &mut dyn Sink) -> std::io::Result<Captured> {
        let mut file = File::from(self.receiver.into_nonblocking_fd()?);
        loop {
            match file.read(&mut self.buffer) {
                Ok(0) => return Ok(self.captured),
                Ok(n) => keep(
                    &mut self.captured,
                    &self.buffer[..n],
                    self.limit,
                    self.stream,
                    sink,
                ),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(self.captured),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Keeps what fits, and shows just that.
fn keep(captured: &mut Captured, bytes: &[u8], limit: usize, stream: Stream, sink: &mut dyn Sink) {
    let kept = captured.take(bytes, limit);
    if !kept.is_empty() {
        sink.output(stream, kept);
    }
}
