//! Output of a program: passed on as it comes, kept up to a limit, and drained beyond it.

use std::os::fd::OwnedFd;

use tokio::io::AsyncReadExt;
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

/// Reads both pipes until every writer has gone. What is over the limit is read and dropped: the program runs on.
pub async fn capture(
    stdout: OwnedFd,
    stderr: OwnedFd,
    limit: usize,
    sink: &mut dyn Sink,
) -> std::io::Result<(Captured, Captured)> {
    let mut out = Receiver::from_owned_fd(stdout)?;
    let mut err = Receiver::from_owned_fd(stderr)?;
    let (mut captured_out, mut captured_err) = (Captured::default(), Captured::default());
    let (mut out_buffer, mut err_buffer) = (vec![0; 64 << 10], vec![0; 16 << 10]);
    let (mut out_open, mut err_open) = (true, true);
    while out_open || err_open {
        tokio::select! {
            read = out.read(&mut out_buffer), if out_open => {
                let n = read?;
                out_open = n > 0;
                let kept = captured_out.take(&out_buffer[..n], limit);
                if !kept.is_empty() { sink.output(Stream::Stdout, kept); }
            }
            read = err.read(&mut err_buffer), if err_open => {
                let n = read?;
                err_open = n > 0;
                let kept = captured_err.take(&err_buffer[..n], limit);
                if !kept.is_empty() { sink.output(Stream::Stderr, kept); }
            }
        }
    }
    Ok((captured_out, captured_err))
}
