//! What was tried. What was refused cannot push out what was reached, and whatever is left out is counted.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use belljar_spec::Connection;

use crate::clock;

/// Of those that were reached, and of those that were not, each.
const MAX_ENTRIES: usize = 1000;
/// Spans of time for which it is known how many were left out.
const MAX_SPANS: usize = 1000;
/// Names are at most this long; what is longer is no name.
const MAX_HOST: usize = 255;

#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Book>>);

#[derive(Default)]
struct Book {
    mark: u64,
    next: u64,
    /// Those that came as far as an address that the rules allow, by number.
    reached: BTreeMap<u64, Arc<Entry>>,
    /// Those that did not, and those of which it is not known yet.
    others: BTreeMap<u64, Arc<Entry>>,
    /// Which of the others stands for all that are like it.
    alike: HashMap<Kind, u64>,
    /// How many are not in the lists, by the mark that they came after.
    omitted: BTreeMap<u64, u64>,
}

/// What makes two connections the same to whoever reads a list. Those of two runs are never the same.
#[derive(PartialEq, Eq, Hash)]
struct Kind {
    mark: u64,
    host: String,
    port: u16,
    allowed: bool,
    reason: Option<String>,
}

/// A connection that was tried.
pub struct Entry {
    book: Weak<Mutex<Book>>,
    number: u64,
    mark: u64,
    host: String,
    port: u16,
    started: Instant,
    started_at: String,
    pub sent: AtomicU64,
    pub received: AtomicU64,
    count: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    address: Option<SocketAddr>,
    allowed: bool,
    reason: Option<String>,
    ended: Option<Instant>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Log {
    pub fn begin(&self, host: &str, port: u16) -> Arc<Entry> {
        let mut book = lock(&self.0);
        let entry = Arc::new(Entry {
            book: Arc::downgrade(&self.0),
            number: book.next,
            mark: book.mark,
            host: host
                .chars()
                .filter(|c| !c.is_control())
                .take(MAX_HOST)
                .collect(),
            port,
            started: Instant::now(),
            started_at: clock::now(),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            count: AtomicU64::new(1),
            state: Mutex::default(),
        });
        book.next += 1;
        book.others.insert(entry.number, Arc::clone(&entry));
        entry
    }

    /// What comes from now on can be told from what was before.
    pub fn mark(&self) -> u64 {
        let mut book = lock(&self.0);
        book.mark += 1;
        book.mark
    }

    /// Everything after that mark, in order, and how many there were that are not in the list.
    pub fn since(&self, mark: u64) -> (Vec<Connection>, u64) {
        let book = lock(&self.0);
        let all = book.reached.values().chain(book.others.values());
        let mut all: Vec<_> = all.filter(|entry| entry.mark >= mark).collect();
        all.sort_unstable_by_key(|entry| entry.number);
        let list = all.into_iter().map(|entry| entry.shown()).collect();
        (
            list,
            book.omitted.range(mark..).map(|(_, count)| count).sum(),
        )
    }
}

impl Book {
    /// An entry that is among the others has come through.
    fn reach(&mut self, number: u64) {
        let Some(entry) = self.others.remove(&number) else {
            return;
        };
        self.reached.insert(number, entry);
        if self.reached.len() > MAX_ENTRIES {
            self.shorten();
        }
    }

    /// Makes one of two that are over and alike; where all differ, the oldest is left out.
    fn shorten(&mut self) {
        let mut first = HashMap::new();
        let over = self.reached.values().filter(|entry| entry.is_over());
        let pair = over.filter_map(|entry| Some((first.insert(entry.kind(), entry)?, entry)));
        let pair = pair.map(|(one, two)| (Arc::clone(one), two.number)).next();
        if let Some((one, two)) = pair {
            if let Some(two) = self.reached.remove(&two) {
                one.add(&two);
            }
        } else if let Some((_, oldest)) = self.reached.pop_first() {
            self.omit(&oldest);
        }
    }

    /// An entry that is among the others was refused, or came to nothing.
    fn fold(&mut self, number: u64) {
        let Some(entry) = self.others.get(&number).cloned() else {
            return;
        };
        let kind = entry.kind();
        let like = self.alike.get(&kind).filter(|&&like| like != number);
        if let Some(like) = like.and_then(|like| self.others.get(like)) {
            like.add(&entry);
            self.others.remove(&number);
            return;
        }
        self.alike.insert(kind, number);
        if self.alike.len() > MAX_ENTRIES {
            let oldest = self.others.values().find(|entry| entry.is_over()).cloned();
            if let Some(oldest) = oldest {
                self.others.remove(&oldest.number);
                self.alike.remove(&oldest.kind());
                self.omit(&oldest);
            }
        }
    }

    fn omit(&mut self, entry: &Entry) {
        *self.omitted.entry(entry.mark).or_default() += entry.count.load(Ordering::Relaxed);
        if self.omitted.len() > MAX_SPANS
            && let Some((_, count)) = self.omitted.pop_first()
            && let Some(mut next) = self.omitted.first_entry()
        {
            *next.get_mut() += count;
        }
    }
}

impl Entry {
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut lock(&self.state))
    }

    pub fn allow(&self, address: SocketAddr) {
        self.change(|state| {
            state.allowed = true;
            state.address = Some(address);
        });
        if let Some(book) = self.book.upgrade() {
            lock(&book).reach(self.number);
        }
    }

    /// It is over. The first reason is the one that counts.
    pub fn end(&self, reason: Option<&str>) {
        self.change(|state| {
            state.ended.get_or_insert_with(Instant::now);
            if let (None, Some(reason)) = (&state.reason, reason) {
                state.reason = Some(reason.to_owned());
            }
        });
        if let Some(book) = self.book.upgrade() {
            lock(&book).fold(self.number);
        }
    }

    /// It was refused after all.
    pub fn refuse(&self, reason: &str) {
        self.change(|state| state.allowed = false);
        self.end(Some(reason));
    }

    fn is_over(&self) -> bool {
        self.change(|state| state.ended.is_some())
    }

    fn kind(&self) -> Kind {
        self.change(|state| Kind {
            mark: self.mark,
            host: self.host.clone(),
            port: self.port,
            allowed: state.allowed,
            reason: state.reason.clone(),
        })
    }

    fn add(&self, other: &Self) {
        for (own, more) in [
            (&self.sent, &other.sent),
            (&self.received, &other.received),
            (&self.count, &other.count),
        ] {
            own.fetch_add(more.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    fn shown(&self) -> Connection {
        let state = lock(&self.state);
        let until = state.ended.unwrap_or_else(Instant::now);
        Connection {
            host: self.host.clone(),
            port: self.port,
            address: state.address.map(|at| at.ip().to_string()),
            allowed: state.allowed,
            reason: state.reason.clone(),
            bytes_sent: self.sent.load(Ordering::Relaxed),
            bytes_received: self.received.load(Ordering::Relaxed),
            count: self.count.load(Ordering::Relaxed),
            started_at: self.started_at.clone(),
            duration_ms: until.duration_since(self.started).as_secs_f64() * 1000.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(log: &Log, host: &str) -> Arc<Entry> {
        let entry = log.begin(host, 80);
        entry.allow("192.0.2.1:80".parse().unwrap());
        entry.received.store(7, Ordering::Relaxed);
        entry.end(None);
        entry
    }

    #[test]
    fn refusals_do_not_push_out_what_was_reached() {
        let log = Log::default();
        reach(&log, "good");
        let mark = log.mark();
        for port in 0..1500 {
            log.begin("a", port).refuse("no");
        }
        let (list, omitted) = log.since(0);
        assert_eq!((list.len(), omitted), (MAX_ENTRIES + 1, 500));
        assert!(list[0].allowed && list[0].host == "good");
        let (list, omitted) = log.since(mark);
        assert_eq!((list.len(), omitted), (MAX_ENTRIES, 500));
        assert_eq!(list[MAX_ENTRIES - 1].port, 1499);
        let mark = log.mark();
        assert_eq!(log.since(mark), (Vec::new(), 0));
    }

    #[test]
    fn refusals_that_are_alike_are_one_in_each_run() {
        let log = Log::default();
        for _ in 0..1500 {
            log.begin("a", 1).refuse("no");
        }
        log.begin("a", 1).refuse("never");
        let mark = log.mark();
        log.begin("a", 1).refuse("no");
        let counts = |mark| {
            let (list, omitted) = log.since(mark);
            assert_eq!(omitted, 0);
            list.iter().map(|one| one.count).collect::<Vec<_>>()
        };
        assert_eq!(counts(0), [1500, 1, 1]);
        assert_eq!(counts(mark), [1]);
    }

    #[test]
    fn what_was_reached_is_kept_for_as_long_as_it_differs() {
        let log = Log::default();
        reach(&log, "rare");
        for _ in 0..1500 {
            reach(&log, "often");
        }
        let (list, omitted) = log.since(0);
        assert_eq!(
            (list.len(), omitted, &*list[0].host),
            (MAX_ENTRIES, 0, "rare")
        );
        assert_eq!(list.iter().map(|one| one.count).sum::<u64>(), 1501);
        assert_eq!(
            list.iter().map(|one| one.bytes_received).sum::<u64>(),
            1501 * 7
        );
        for n in 0..1500 {
            reach(&log, &format!("{n}"));
        }
        let (list, omitted) = log.since(0);
        assert_eq!(list.len(), MAX_ENTRIES);
        assert_eq!(
            list.iter().map(|one| one.count).sum::<u64>() + omitted,
            3001
        );
    }

    #[test]
    fn those_that_are_not_decided_push_out_nobody() {
        let log = Log::default();
        reach(&log, "good");
        let slow: Vec<_> = (0..3000).map(|port| log.begin("slow", port)).collect();
        for one in &slow {
            one.refuse("no");
        }
        let (list, omitted) = log.since(0);
        assert_eq!((list.len(), omitted), (MAX_ENTRIES + 1, 2000));
        assert_eq!(list[0].host, "good");
    }
}
