//! What was tried. What was refused cannot push out what was reached, and whatever is left out is counted.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use belljar_spec::Connection;

use super::entry::{Before, Entry, Kind, lock};

/// Of those that were reached, of names that were looked up, and of those that were refused, each.
const MAX_ENTRIES: usize = 1000;
/// Spans of time for which it is known how many were left out.
const MAX_SPANS: usize = 1000;
/// Where names are asked for.
const NAMES_PORT: u16 = 53;

/// Of one sandbox, whatever takes its place when it is made anew.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Book>>);

#[derive(Default)]
pub(super) struct Book {
    mark: u64,
    next: u64,
    /// Those that came as far as an address that the rules allow, by number.
    reached: BTreeMap<u64, Arc<Entry>>,
    /// Names that were allowed: whoever answers for them has heard of them.
    asked: Folded,
    /// Those that did not come so far, and those of which it is not known yet.
    others: Folded,
    /// How many are not in the lists, by the mark that they came after.
    omitted: BTreeMap<u64, u64>,
    /// When the last result was made.
    told: Mark,
}

/// Entries of which one stands for all that are like it.
#[derive(Default)]
struct Folded {
    entries: BTreeMap<u64, Arc<Entry>>,
    alike: HashMap<Kind, u64>,
}

/// A moment: what came later can be told from what was before, and what moved later on connections that were open then.
#[derive(Default)]
pub struct Mark {
    number: u64,
    open: Vec<Before>,
}

impl Log {
    pub fn begin(&self, host: &str, port: u16) -> Arc<Entry> {
        let mut book = lock(&self.0);
        let place = (book.next, book.mark);
        let entry = Entry::new(Arc::downgrade(&self.0), place, host, port);
        book.next += 1;
        book.others.entries.insert(entry.number, Arc::clone(&entry));
        entry
    }

    /// A question for a name.
    pub fn ask(&self, name: &str) -> Arc<Entry> {
        self.begin(name, NAMES_PORT)
    }

    pub fn mark(&self) -> Mark {
        lock(&self.0).mark()
    }

    /// Everything, in order, and how many there were that are not in the list.
    pub fn all(&self) -> (Vec<Connection>, u64) {
        lock(&self.0).since(&Mark::default())
    }

    /// For the result of what began at that mark: everything since then, and since the last result if that was before; so
    /// nothing is in no result. Of connections that were open by then, what they have moved since.
    pub fn result(&self, began: &Mark) -> (Vec<Connection>, u64) {
        let mut book = lock(&self.0);
        let since = if book.told.number < began.number {
            &book.told
        } else {
            began
        };
        let listed = book.since(since);
        book.told = book.mark();
        listed
    }

    /// What is in no result yet.
    pub fn untold(&self) -> (Vec<Connection>, u64) {
        let now = self.mark();
        self.result(&now)
    }
}

impl Book {
    fn mark(&mut self) -> Mark {
        self.mark += 1;
        let open = self.reached.values().chain(self.others.entries.values());
        let open = open.filter(|entry| !entry.is_over());
        Mark {
            number: self.mark,
            open: open.map(Before::of).collect(),
        }
    }

    fn since(&self, mark: &Mark) -> (Vec<Connection>, u64) {
        let all = self.reached.values();
        let all = all.chain(self.asked.entries.values());
        let all = all.chain(self.others.entries.values());
        let mut all: Vec<_> = all.filter(|entry| entry.mark >= mark.number).collect();
        all.sort_unstable_by_key(|entry| entry.number);
        let before = mark.open.iter().filter_map(Before::shown);
        let list = before.chain(all.into_iter().map(|entry| entry.shown()));
        let omitted = self.omitted.range(mark.number..).map(|(_, count)| count);
        (list.collect(), omitted.sum())
    }

    /// An entry that is among the others has come through.
    pub(super) fn reach(&mut self, number: u64) {
        let Some(entry) = self.others.entries.remove(&number) else {
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
    pub(super) fn fold(&mut self, number: u64) {
        if let Some(entry) = self.others.entries.get(&number).cloned()
            && let Some(oldest) = self.others.fold(entry)
        {
            self.omit(&oldest);
        }
    }

    /// An entry that is among the others was an allowed question for a name.
    pub(super) fn ask(&mut self, number: u64) {
        if let Some(entry) = self.others.entries.remove(&number)
            && let Some(oldest) = self.asked.fold(entry)
        {
            self.omit(&oldest);
        }
    }

    fn omit(&mut self, entry: &Entry) {
        *self.omitted.entry(entry.mark).or_default() += entry.count();
        if self.omitted.len() > MAX_SPANS
            && let Some((_, count)) = self.omitted.pop_first()
            && let Some(mut next) = self.omitted.first_entry()
        {
            *next.get_mut() += count;
        }
    }
}

impl Folded {
    /// Joins an entry that is over with one that is like it. Returns the oldest if it has to go.
    fn fold(&mut self, entry: Arc<Entry>) -> Option<Arc<Entry>> {
        let (kind, number) = (entry.kind(), entry.number);
        let like = self.alike.get(&kind).filter(|&&like| like != number);
        if let Some(like) = like.and_then(|like| self.entries.get(like)) {
            like.add(&entry);
            self.entries.remove(&number);
            return None;
        }
        self.alike.insert(kind, number);
        self.entries.insert(number, entry);
        if self.alike.len() <= MAX_ENTRIES {
            return None;
        }
        let oldest = self.entries.values().find(|entry| entry.is_over())?;
        let oldest = Arc::clone(oldest);
        self.entries.remove(&oldest.number);
        self.alike.remove(&oldest.kind());
        Some(oldest)
    }
}

#[cfg(test)]
mod tests;
