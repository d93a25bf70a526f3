//! A body that comes in pieces, as the thread that unpacks it reads it.

use std::io::{self, Read};

use belljar_spec::Error;
use bytes::Bytes;
use tokio::sync::mpsc;

/// Waits for the next piece when it has read the last one. Their end is the end; one that is an error is an error of reading.
pub struct Pieces {
    receiver: mpsc::Receiver<Result<Bytes, Error>>,
    piece: Bytes,
}

impl Pieces {
    /// What it reads, and where that is put. So many pieces may wait to be read.
    pub fn new(waiting: usize) -> (mpsc::Sender<Result<Bytes, Error>>, Self) {
        let (sender, receiver) = mpsc::channel(waiting);
        let piece = Bytes::new();
        (sender, Self { receiver, piece })
    }
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.receiver.blocking_recv() {
                None => return Ok(0),
                Some(Ok(piece)) => self.piece = piece,
                Some(Err(error)) => return Err(io::Error::other(error)),
            }
        }
        let count = buffer.len().min(self.piece.len());
        buffer[..count].copy_from_slice(&self.piece.split_to(count));
        Ok(count)
    }
}
