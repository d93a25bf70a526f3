//! An archive on its way out, as it is written.

use std::io::{self, Write};
use std::pin::Pin;

use belljar_spec::Error;
use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::timeout_at;

use super::CHUNK;
use crate::body::Pace;

/// Returns when it has to end, with the reason.
type Ended = Pin<Box<dyn Future<Output = Error> + Send>>;

/// Collects what is written and sends it on; waits for a reader that is slow, but not for ever.
pub struct Chunks {
    /// `None` after the last.
    sender: mpsc::Sender<Option<Bytes>>,
    buffer: Vec<u8>,
    pace: Pace,
    /// What ends it before its time; `None` when that has happened.
    ended: Option<Ended>,
    sent: u64,
    runtime: Handle,
}

impl Chunks {
    pub fn new(sender: mpsc::Sender<Option<Bytes>>, pace: Pace, ended: Ended) -> Self {
        Self {
            sender,
            ended: Some(ended),
            buffer: Vec::with_capacity(CHUNK),
            pace,
            sent: 0,
            runtime: Handle::current(),
        }
    }

    fn send(&mut self, chunk: Option<Bytes>) -> io::Result<()> {
        let bytes = chunk.as_ref().map_or(0, Bytes::len) as u64;
        let broken = || io::Error::from(io::ErrorKind::BrokenPipe);
        let ended = self.ended.as_mut().ok_or_else(broken)?;
        let sending = timeout_at(self.pace.deadline(self.sent), self.sender.send(chunk));
        let sent = self.runtime.block_on(async {
            tokio::select! {
                sent = sending => Ok(sent),
                error = ended => Err(error),
            }
        });
        match sent {
            Ok(sent) => sent?.map_err(|_| broken())?,
            Err(error) => {
                self.ended = None;
                return Err(io::Error::other(error));
            }
        }
        self.sent += bytes;
        Ok(())
    }

    pub fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        self.send(None)
    }
}

impl Write for Chunks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= CHUNK {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let chunk = std::mem::replace(&mut self.buffer, Vec::with_capacity(CHUNK));
        self.send(Some(chunk.into()))
    }
}
