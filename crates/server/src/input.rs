//! Live input of a run, from its client to the code.
//!
//! Code may not read what it is sent. What waits for it is bounded for each run, and counts with the requests that are on their way.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use belljar::Stdin;
use belljar_spec::{Content, Error};
use tokio::io::{AsyncWriteExt, duplex};
use tokio::sync::mpsc;

use crate::admission::{Admission, Held};

/// Pieces that wait to be read, and their size together. A single one may be larger.
const PIECES: usize = 64;
const WAITING_BYTES: usize = 1 << 20;
/// What the code finds at once.
const PIPE_BYTES: usize = 64 << 10;

/// Where it goes in.
pub struct Input {
    pieces: mpsc::Sender<Piece>,
    /// Bytes of those that the code has not taken yet.
    waiting: Arc<AtomicUsize>,
}

/// Counts until it is dropped.
struct Piece {
    data: Content,
    waiting: Arc<AtomicUsize>,
    _held: Held,
}

impl Drop for Piece {
    fn drop(&mut self) {
        let length = self.data.as_bytes().len();
        self.waiting.fetch_sub(length, Ordering::Relaxed);
    }
}

/// Where pieces go in, and what the code reads them from.
pub fn live() -> (Input, Stdin) {
    let (sender, mut pieces) = mpsc::channel::<Piece>(PIECES);
    let (mut writer, reader) = duplex(PIPE_BYTES);
    tokio::spawn(async move {
        while let Some(piece) = pieces.recv().await {
            if writer.write_all(piece.data.as_bytes()).await.is_err() {
                break;
            }
        }
    });
    let input = Input {
        pieces: sender,
        waiting: Arc::default(),
    };
    (input, Stdin::Stream(Box::new(reader)))
}

impl Input {
    /// Does not wait for the code. One at a time: whoever calls it has the channel's lock.
    pub fn give(&self, data: Content, admission: &Admission) -> Result<(), Error> {
        let unread = || Error::Overloaded {
            reason: "the code has not read what was sent before".into(),
            retry_after_s: 1,
        };
        let length = data.as_bytes().len();
        let waiting = self.waiting.load(Ordering::Relaxed);
        if waiting > 0 && waiting + length > WAITING_BYTES {
            return Err(unread());
        }
        let held = admission.hold(length as u64)?;
        self.waiting.fetch_add(length, Ordering::Relaxed);
        let piece = Piece {
            data,
            waiting: Arc::clone(&self.waiting),
            _held: held,
        };
        self.pieces.try_send(piece).map_err(|_| unread())
    }
}
