//! One connection that was tried, or one name that was looked up, as it is told.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use belljar_spec::Connection;

use super::record::Book;
use crate::clock;

/// Names are at most this long; what is longer is no name.
const MAX_HOST: usize = 255;
/// What is told of one that a name is still being looked up for.
const UNDECIDED: &str = "it is not decided yet";

pub struct Entry {
    book: Weak<Mutex<Book>>,
    pub(super) number: u64,
    pub(super) mark: u64,
    host: String,
    port: u16,
    started: Instant,
    started_at: String,
    pub sent: AtomicU64,
    pub received: AtomicU64,
    /// Those that it stands for too. Apart from its own bytes: somebody may have noted how many those were.
    others: [AtomicU64; 3],
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    address: Option<SocketAddr>,
    allowed: bool,
    reason: Option<String>,
    ended: Option<Instant>,
}

/// What makes two connections the same to whoever reads a list. Those of two runs are never the same.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct Kind {
    mark: u64,
    host: String,
    port: u16,
    allowed: bool,
    reason: Option<String>,
}

/// A connection that was open at some time, and what it had moved by then.
pub(super) struct Before {
    entry: Arc<Entry>,
    /// Whether it was clear by then what becomes of it.
    decided: bool,
    sent: u64,
    received: u64,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One that is not decided yet. Where that is given up, it is over.
pub struct Attempt(pub Arc<Entry>);

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.0.is_decided() {
            self.0.end(Some("it was given up"));
        }
    }
}

impl Entry {
    pub(super) fn new(
        book: Weak<Mutex<Book>>,
        (number, mark): (u64, u64),
        host: &str,
        port: u16,
    ) -> Arc<Self> {
        let host = host.chars().filter(|c| !c.is_control());
        Arc::new(Self {
            book,
            number,
            mark,
            host: host.take(MAX_HOST).collect(),
            port,
            started: Instant::now(),
            started_at: clock::now(),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            others: Default::default(),
            state: Mutex::default(),
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut lock(&self.state))
    }

    fn tell(&self, tell: impl FnOnce(&mut Book)) {
        if let Some(book) = self.book.upgrade() {
            tell(&mut lock(&book));
        }
    }

    /// It came as far as an address that the rules allow.
    pub fn allow(&self, address: SocketAddr) {
        self.change(|state| {
            state.allowed = true;
            state.address = Some(address);
        });
        self.tell(|book| book.reach(self.number));
    }

    /// It is over. The first reason is the one that counts.
    pub fn end(&self, reason: Option<&str>) {
        self.close(reason);
        self.tell(|book| book.fold(self.number));
    }

    /// It was refused after all.
    pub fn refuse(&self, reason: &str) {
        self.change(|state| state.allowed = false);
        self.end(Some(reason));
    }

    /// It was no connection but a question for a name, was allowed, and has been answered; or why not.
    pub fn answered(&self, reason: Option<&str>) {
        self.change(|state| state.allowed = true);
        self.close(reason);
        self.tell(|book| book.ask(self.number));
    }

    fn close(&self, reason: Option<&str>) {
        self.change(|state| {
            state.ended.get_or_insert_with(Instant::now);
            if let (None, Some(reason)) = (&state.reason, reason) {
                state.reason = Some(reason.to_owned());
            }
        });
    }

    pub(super) fn is_over(&self) -> bool {
        self.change(|state| state.ended.is_some())
    }

    fn is_decided(&self) -> bool {
        self.change(|state| state.address.is_some() || state.ended.is_some())
    }

    pub(super) fn kind(&self) -> Kind {
        self.change(|state| Kind {
            mark: self.mark,
            host: self.host.clone(),
            port: self.port,
            allowed: state.allowed,
            reason: state.reason.clone(),
        })
    }

    /// Own and others': sent, received, how many there are.
    fn sums(&self) -> [u64; 3] {
        let [sent, received, count] =
            [0, 1, 2].map(|n: usize| self.others[n].load(Ordering::Relaxed));
        let (own_sent, own_received) = self.moved();
        [sent + own_sent, received + own_received, count + 1]
    }

    fn moved(&self) -> (u64, u64) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (load(&self.sent), load(&self.received))
    }

    pub(super) fn count(&self) -> u64 {
        self.sums()[2]
    }

    /// It stands for that one too.
    pub(super) fn add(&self, other: &Self) {
        for (own, more) in self.others.iter().zip(other.sums()) {
            own.fetch_add(more, Ordering::Relaxed);
        }
    }

    pub(super) fn shown(&self) -> Connection {
        let state = lock(&self.state);
        let until = state.ended.unwrap_or_else(Instant::now);
        let [bytes_sent, bytes_received, count] = self.sums();
        let undecided = state.address.is_none() && state.ended.is_none();
        let undecided = undecided.then(|| UNDECIDED.to_owned());
        Connection {
            host: self.host.clone(),
            port: self.port,
            address: state.address.map(|at| at.ip().to_string()),
            allowed: state.allowed,
            reason: state.reason.clone().or(undecided),
            bytes_sent,
            bytes_received,
            count,
            started_at: self.started_at.clone(),
            duration_ms: until.duration_since(self.started).as_secs_f64() * 1000.0,
        }
    }
}

impl Before {
    pub(super) fn of(entry: &Arc<Entry>) -> Self {
        let (sent, received) = entry.moved();
        Self {
            entry: Arc::clone(entry),
            decided: entry.is_decided(),
            sent,
            received,
        }
    }

    /// What it has moved since then, or what has become of it; `None` if there is nothing to tell.
    pub(super) fn shown(&self) -> Option<Connection> {
        let news = !self.decided && self.entry.is_decided();
        let (sent, received) = self.entry.moved();
        let shown = Connection {
            bytes_sent: sent - self.sent,
            bytes_received: received - self.received,
            count: 1,
            ..self.entry.shown()
        };
        let moved = shown.bytes_sent + shown.bytes_received > 0;
        let cut = self.entry.is_over() && shown.reason.is_some();
        (news || moved || cut).then_some(shown)
    }
}
