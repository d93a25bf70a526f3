//! Output of a program: passed on as it comes, kept up to a limit, and drained beyond it.
//!
//! Where nobody looks on, whoever prints something need not wake us: what is in the pipes is read at the end of a short run, and a longer one
//! is listened to after a while.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use tokio::net::unix::pipe::Receiver;
use tokio::time::{Instant, sleep_until};

use crate::awake::stay_awake;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// Sees output while the program runs. Implementations must not block the engine for long.
pub trait Sink: Send {
    fn output(&mut self, stream: Stream, bytes: &[u8]);

    /// Whether there is nobody left to see more of it, as after `| head -1`. The program then finds its pipe closed, as it would without us.
    fn has_left(&self, _stream: Stream) -> bool {
        false
    }
}

impl<F: FnMut(Stream, &[u8]) + Send> Sink for F {
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

/// More than a pipe can hold, however large code has made it (`/proc/sys/fs/pipe-max-size` is 1 MiB).
const MOST_IN_A_PIPE: usize = 2 << 20;
/// How much is read at once: little from a program that says little, for fresh memory takes time.
const CHUNK: usize = 4 << 10;
const LARGE_CHUNK: usize = 64 << 10;
/// When so much has been dropped, there is a pause after each piece, and whoever wrote it waits: to carry off a flood as fast as
/// it can be made takes two cores, and nobody gets anything from it.
const FLOOD: usize = 8 << 20;
const PAUSE: Duration = Duration::from_millis(1);

/// Standard output and error of a command.
pub(crate) struct Output {
    out: Pipe,
    err: Pipe,
    buffer: Vec<u8>,
    limit: usize,
    /// How much was dropped.
    dropped: usize,
    /// Nothing is read before.
    pause: Option<Instant>,
}

impl Output {
    /// Nobody listens to it yet.
    pub fn new(stdout: OwnedFd, stderr: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            out: Pipe::new(stdout, Stream::Stdout)?,
            err: Pipe::new(stderr, Stream::Stderr)?,
            buffer: Vec::new(),
            limit: 0,
            dropped: 0,
            pause: None,
        })
    }

    /// From here on `read` hears what is printed.
    pub fn listen(&mut self) -> io::Result<()> {
        self.out.listen()?;
        self.err.listen()
    }

    /// No longer: whoever prints wakes nobody.
    pub fn turn_away(&mut self) -> io::Result<()> {
        self.out.turn_away()?;
        self.err.turn_away()
    }

    /// Whether every writer has gone.
    fn is_over(&self) -> bool {
        !self.out.open && !self.err.open
    }

    pub fn is_heard(&self) -> bool {
        matches!(self.out.end, End::Heard(_))
    }

    /// From here on up to `limit` bytes of each are kept.
    pub fn begin(&mut self, limit: u64) {
        self.limit = usize::try_from(limit).unwrap_or(usize::MAX);
        self.buffer.resize(CHUNK, 0);
        self.dropped = 0;
        self.pause = None;
    }

    /// Waits for output and passes it on. Can be cancelled at any time; without an end once every writer has gone, and where nobody
    /// listens.
    pub async fn read(&mut self, sink: &mut dyn Sink) -> io::Result<()> {
        if let Some(until) = self.pause {
            sleep_until(until).await;
            self.pause = None;
        }
        let pipe = tokio::select! {
            ready = self.out.readable() => { ready?; &mut self.out }
            ready = self.err.readable() => { ready?; &mut self.err }
        };
        match pipe.try_read(&mut self.buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
            Ok(n) => {
                pipe.open = n > 0;
                self.dropped += n - pipe.keep(&self.buffer[..n], self.limit, sink);
                if sink.has_left(pipe.stream) {
                    pipe.close();
                }
                self.pause = (self.dropped > FLOOD).then(|| Instant::now() + PAUSE);
                if n == self.buffer.len() {
                    self.buffer.resize(LARGE_CHUNK, 0);
                }
                Ok(())
            }
        }
    }

    /// Reads what is in the pipes now, and gives back what was kept.
    pub fn finish(&mut self, sink: &mut dyn Sink) -> io::Result<(Captured, Captured)> {
        for pipe in [&mut self.out, &mut self.err] {
            pipe.drain(&mut self.buffer, self.limit, sink)?;
        }
        // A sandbox that waits for its next run needs no room to read into.
        self.buffer = Vec::new();
        let take = |pipe: &mut Pipe| std::mem::take(&mut pipe.captured);
        Ok((take(&mut self.out), take(&mut self.err)))
    }
}

/// Reads both pipes until `ended` says that no writer is left. What is over the limit is read and dropped: the program
/// runs on.
///
/// The end of a pipe alone proves nothing: code can hide a descriptor in a socket's queue, where it outlives all processes
/// until the kernel looks for such things. After `ended` only what is in the pipes already is read.
pub(crate) async fn capture<T>(
    output: &mut Output,
    sink: &mut dyn Sink,
    ended: impl Future<Output = T>,
    hurry: bool,
) -> io::Result<(Captured, Captured, T)> {
    output.listen()?;
    let mut ended = std::pin::pin!(ended);
    let mut alert = hurry;
    let outcome = loop {
        tokio::select! {
            outcome = &mut ended => break outcome,
            read = output.read(sink) => read?,
            // As a rule both pipes close because the program has ended, and that is told in a moment.
            () = stay_awake(), if alert && output.is_over() => alert = false,
        }
    };
    let (out, err) = output.finish(sink)?;
    Ok((out, err, outcome))
}

/// One of the two pipes.
struct Pipe {
    end: End,
    stream: Stream,
    captured: Captured,
    open: bool,
}

/// Our end of a pipe.
enum End {
    Quiet(OwnedFd),
    Heard(Receiver),
    /// While it becomes one or the other; for good if that has failed.
    Changing,
    Closed,
}

impl Pipe {
    fn new(fd: OwnedFd, stream: Stream) -> io::Result<Self> {
        belljar_jail::set_nonblocking(fd.as_fd())?;
        Ok(Self {
            end: End::Quiet(fd),
            stream,
            captured: Captured::default(),
            open: true,
        })
    }

    fn listen(&mut self) -> io::Result<()> {
        self.end = match std::mem::replace(&mut self.end, End::Changing) {
            End::Quiet(fd) => End::Heard(Receiver::from_owned_fd_unchecked(fd)?),
            heard => heard,
        };
        Ok(())
    }

    fn turn_away(&mut self) -> io::Result<()> {
        self.end = match std::mem::replace(&mut self.end, End::Changing) {
            End::Heard(receiver) => End::Quiet(receiver.into_nonblocking_fd()?),
            quiet => quiet,
        };
        Ok(())
    }

    fn close(&mut self) {
        self.end = End::Closed;
        self.open = false;
    }

    async fn readable(&self) -> io::Result<()> {
        match &self.end {
            End::Heard(receiver) if self.open => receiver.readable().await,
            _ => std::future::pending().await,
        }
    }

    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match &self.end {
            End::Heard(receiver) => receiver.try_read(buffer),
            _ => Err(ErrorKind::WouldBlock.into()),
        }
    }

    fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        match &self.end {
            End::Quiet(fd) => Ok(fd.as_fd()),
            End::Heard(receiver) => Ok(receiver.as_fd()),
            End::Changing | End::Closed => Err(ErrorKind::NotConnected.into()),
        }
    }

    /// Reads straight from the kernel: the runtime may not have heard of it yet. A writer that goes on writing is not waited for.
    fn drain(&mut self, buffer: &mut [u8], limit: usize, sink: &mut dyn Sink) -> io::Result<()> {
        let mut drained = 0;
        while drained < MOST_IN_A_PIPE && !matches!(self.end, End::Closed) {
            match belljar_jail::read_some(self.fd()?, buffer) {
                Ok(0) => {
                    self.open = false;
                    return Ok(());
                }
                Ok(n) => {
                    drained += n;
                    self.keep(&buffer[..n], limit, sink);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Keeps what fits, and shows just that. Returns how much that is.
    fn keep(&mut self, bytes: &[u8], limit: usize, sink: &mut dyn Sink) -> usize {
        let kept = &bytes[..bytes.len().min(limit - self.captured.bytes.len())];
        self.captured.bytes.extend_from_slice(kept);
        self.captured.truncated |= kept.len() < bytes.len();
        if !kept.is_empty() {
            sink.output(self.stream, kept);
        }
        kept.len()
    }
}
