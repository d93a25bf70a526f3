//! When programs have ended: what they had sent by then is still passed on, as it would be without us in between.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::timeout;

/// As long as bytes move.
const LONGEST: Duration = Duration::from_secs(5);
/// For a server that takes none.
const PATIENCE: Duration = Duration::from_millis(250);
/// For a client that may be alive, and has said nothing.
const QUIET: Duration = Duration::from_millis(5);

/// What is on its way out of a sandbox.
#[derive(Default)]
pub struct Tide {
    /// Connections whose client may still send,
    open: AtomicUsize,
    /// and those of them with something that has not been passed on.
    busy: AtomicUsize,
    changed: Notify,
}

/// From a client to a server, until all has been passed on.
pub struct Upward {
    tide: Arc<Tide>,
    state: AtomicU8,
}

const BUSY: u8 = 0;
const WAITING: u8 = 1;
const ENDED: u8 = 2;

impl Tide {
    pub fn begin(self: &Arc<Self>) -> Upward {
        self.open.fetch_add(1, Ordering::Relaxed);
        self.busy.fetch_add(1, Ordering::Relaxed);
        Upward {
            tide: Arc::clone(self),
            state: AtomicU8::new(BUSY),
        }
    }

    /// Waits until nothing is on its way any more, or does not move: `moved` is how many bytes have so far.
    pub async fn ebb(&self, moved: impl Fn() -> u64) {
        let began = Instant::now();
        let (mut seen, mut since) = (moved(), began);
        loop {
            let changed = self.changed.notified();
            if self.open.load(Ordering::Acquire) == 0 || began.elapsed() > LONGEST {
                return;
            }
            let is_quiet = self.busy.load(Ordering::Acquire) == 0;
            let heard = timeout(QUIET, changed).await.is_ok();
            let now = moved();
            if heard || now != seen {
                (seen, since) = (now, Instant::now());
            } else if is_quiet || since.elapsed() > PATIENCE {
                return;
            }
        }
    }
}

impl Upward {
    fn become_one(&self, state: u8) {
        let before = self.state.swap(state, Ordering::AcqRel);
        match (before, state) {
            (BUSY, WAITING | ENDED) => self.tide.busy.fetch_sub(1, Ordering::AcqRel),
            (WAITING, BUSY) => self.tide.busy.fetch_add(1, Ordering::AcqRel),
            _ => 0,
        };
        if before != ENDED && state == ENDED {
            self.tide.open.fetch_sub(1, Ordering::AcqRel);
            self.tide.changed.notify_waiters();
        }
    }

    pub fn end(&self) {
        self.become_one(ENDED);
    }
}

impl Drop for Upward {
    fn drop(&mut self) {
        self.end();
    }
}

/// What a client sends, by which it is seen whether there is something.
pub struct Watched<'a, R> {
    pub from: R,
    pub upward: &'a Upward,
}

impl<R: AsyncRead + Unpin> AsyncRead for Watched<'_, R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.from).poll_read(context, buffer);
        let state = if polled.is_pending() { WAITING } else { BUSY };
        self.upward.become_one(state);
        polled
    }
}

/// Asks whoever serves a door to let in all who have come so far.
#[derive(Clone)]
pub struct Bell(mpsc::Sender<oneshot::Sender<()>>);

pub type Rings = mpsc::Receiver<oneshot::Sender<()>>;

impl Bell {
    pub fn new() -> (Self, Rings) {
        let (sender, rings) = mpsc::channel(1);
        (Self(sender), rings)
    }

    pub async fn ring(&self) {
        let (done, heard) = oneshot::channel();
        let rung = async { self.0.send(done).await.is_ok() && heard.await.is_ok() };
        // Where there are no descriptors left nobody can be let in.
        let _ = timeout(PATIENCE, rung).await;
    }
}
