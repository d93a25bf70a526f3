//! What there is, what of it is taken, and the line of those who wait for the rest.

use std::collections::{HashMap, VecDeque};
use std::fmt;

use belljar_spec::{Limits, Unit};
use serde_json::{Map, Value};
use tokio::sync::oneshot;

use super::quota::Share;

/// The least that a sandbox counts as, whatever it uses.
pub const LEAST: u64 = 4 << 20;

/// What a byte of output takes of our own memory at most, about, until the answer has left: itself, and its text in JSON, where a
/// control character is six bytes; what is no UTF-8 is there as text and as base64, each in the result and in the answer.
const OF_OUTPUT: u64 = 8;

/// What an entry of an object takes besides its name and its value.
const IN_AN_OBJECT: u64 = 48;

/// What a run or a sandbox counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    pub memory_bytes: u64,
    /// Thousandths of a core.
    pub cpus: u64,
}

impl Need {
    pub const NONE: Self = Self {
        memory_bytes: 0,
        cpus: 0,
    };

    /// A run with these limits: its output is kept in our own memory until it is read.
    pub fn of(limits: &Limits) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "limits are positive and bounded by the host"
        )]
        let cpus = (limits.cpus * 1000.0) as u64;
        Self {
            memory_bytes: limits
                .memory_bytes
                .saturating_add(Self::answer(limits.output_bytes)),
            cpus,
        }
    }

    /// Memory for the result of a run that may print so much to each of its two outputs.
    pub fn answer(output_bytes: u64) -> u64 {
        output_bytes.saturating_mul(2 * OF_OUTPUT)
    }

    /// And variables that the code gets. They are in our own memory, too, as long as it runs.
    #[must_use]
    pub fn with(self, globals: &Map<String, Value>) -> Self {
        let memory_bytes = self.memory_bytes.saturating_add(entries(globals));
        Self {
            memory_bytes,
            ..self
        }
    }

    /// The larger of each: of two stages that follow each other.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            memory_bytes: self.memory_bytes.max(other.memory_bytes),
            cpus: self.cpus.max(other.cpus),
        }
    }

    pub fn fits(self, free: Self) -> bool {
        self.memory_bytes <= free.memory_bytes && self.cpus <= free.cpus
    }
}

/// What values take in memory, about.
fn entries(values: &Map<String, Value>) -> u64 {
    let entry = |(name, value): (&String, &Value)| name.len() as u64 + IN_AN_OBJECT + taken(value);
    values.iter().map(entry).sum()
}

fn taken(value: &Value) -> u64 {
    let below = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len() as u64,
        Value::Array(list) => list.iter().map(taken).sum(),
        Value::Object(values) => entries(values),
    };
    size_of::<Value>() as u64 + below
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = self.memory_bytes >> 20;
        write!(f, "{mib} MiB and {} cores", Unit::Cores.text(self.cpus))
    }
}

/// Which kept sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AccountId(u64);

/// The memory of a kept sandbox: its limit as long as something runs in it, else what it uses.
#[derive(Debug)]
struct Account {
    limit: u64,
    at_rest: u64,
    runs: usize,
    /// What there is of it beside its processes, whether something runs in it or not.
    beside: u64,
}

impl Account {
    fn counts(&self) -> u64 {
        if self.runs > 0 {
            self.limit
        } else {
            self.at_rest
        }
    }
}

pub struct Waiter {
    pub need: Need,
    /// Of the sandbox that it runs in, if that is kept.
    pub account: Option<AccountId>,
    pub go: oneshot::Sender<()>,
}

pub struct Budget {
    total: Need,
    taken: Need,
    /// Memory of sandboxes that wait ready, as it was last looked at.
    pub ready: u64,
    /// Memory of requests on their way, and of answers that are no run's.
    pub held: u64,
    /// Memory of kept sandboxes that the kernel does not count as theirs: what was put into them from outside.
    pub beside: u64,
    pub line: VecDeque<Waiter>,
    pub shares: HashMap<String, Share>,
    accounts: HashMap<AccountId, Account>,
    opened: u64,
}

impl Budget {
    pub fn new(total: Need) -> Self {
        Self {
            total,
            taken: Need::NONE,
            ready: 0,
            held: 0,
            beside: 0,
            line: VecDeque::new(),
            shares: HashMap::new(),
            accounts: HashMap::new(),
            opened: 0,
        }
    }

    /// Less is free than nothing when sandboxes at rest grow.
    fn free(&self) -> Need {
        Need {
            memory_bytes: self
                .total
                .memory_bytes
                .saturating_sub(self.taken.memory_bytes),
            cpus: self.total.cpus.saturating_sub(self.taken.cpus),
        }
    }

    pub fn room(&self) -> Need {
        let free = self.free();
        Need {
            memory_bytes: free
                .memory_bytes
                .saturating_sub(self.ready + self.held + self.beside),
            ..free
        }
    }

    /// With what its sandbox counts as more, once something runs in it.
    fn whole(&self, need: Need, account: Option<AccountId>) -> Need {
        let account = account.and_then(|id| self.accounts.get(&id));
        let more = account.map_or(0, |account| account.limit - account.counts());
        Need {
            memory_bytes: need.memory_bytes.saturating_add(more),
            ..need
        }
    }

    pub fn has_room(&self, need: Need, account: Option<AccountId>) -> bool {
        let need = self.whole(need, account);
        need.fits(self.room()) || self.is_unused(need)
    }

    /// With nothing else going on, what fits the budget fits.
    fn is_unused(&self, need: Need) -> bool {
        self.ready + self.held > 0
            && self.shares.values().all(|share| share.memory_bytes == 0)
            && need.fits(self.free())
    }

    pub fn take(&mut self, need: Need, account: Option<AccountId>) {
        let need = self.whole(need, account);
        self.taken.memory_bytes += need.memory_bytes;
        self.taken.cpus += need.cpus;
        if let Some(account) = account.and_then(|id| self.accounts.get_mut(&id)) {
            account.runs += 1;
        }
    }

    /// What was taken and counts otherwise from now on.
    pub fn untake(&mut self, bytes: u64) {
        self.taken.memory_bytes -= bytes;
    }

    pub fn give_back(&mut self, need: Need, account: Option<AccountId>) {
        if let Some(account) = account.and_then(|id| self.accounts.get_mut(&id)) {
            account.runs -= 1;
            self.taken.memory_bytes -= account.limit - account.counts();
        }
        self.taken.memory_bytes -= need.memory_bytes;
        self.taken.cpus -= need.cpus;
        self.call();
    }

    /// Makes what was taken for a sandbox that of its account.
    pub fn open(&mut self, at_rest: u64, limit: u64) -> AccountId {
        let id = AccountId(self.opened);
        self.opened += 1;
        let account = Account {
            limit,
            at_rest,
            runs: 0,
            beside: 0,
        };
        self.accounts.insert(id, account);
        id
    }

    /// Says what it had beside its processes.
    pub fn close(&mut self, id: AccountId) -> u64 {
        let Some(account) = self.accounts.remove(&id) else {
            return 0;
        };
        self.taken.memory_bytes -= account.counts();
        self.beside -= account.beside;
        self.call();
        account.beside
    }

    /// What there is of a sandbox beside its processes, from now on. Says what that was.
    pub fn set_beside(&mut self, id: AccountId, bytes: impl FnOnce(u64) -> u64) -> (u64, u64) {
        let Some(account) = self.accounts.get_mut(&id) else {
            return (0, 0);
        };
        let before = account.beside;
        account.beside = bytes(before);
        let now = account.beside;
        self.beside = self.beside - before + now;
        if now < before {
            self.call();
        }
        (before, now)
    }

    /// What the sandbox uses now, or the most that it can.
    pub fn recount(&mut self, id: AccountId, used: u64) {
        let Some(account) = self.accounts.get_mut(&id) else {
            return;
        };
        let before = account.counts();
        account.at_rest = used.max(LEAST).min(account.limit);
        let now = account.counts();
        self.taken.memory_bytes = self.taken.memory_bytes - before + now;
        if now < before {
            self.call();
        }
    }

    /// How much more than the budget is in use, when kept sandboxes use `kept` together.
    pub fn excess(&self, kept: u64) -> u64 {
        let counted: u64 = self.accounts.values().map(Account::counts).sum();
        let others = self.taken.memory_bytes.saturating_sub(counted) + self.held + self.beside;
        kept.saturating_add(others)
            .saturating_sub(self.total.memory_bytes)
    }

    /// Whether the first in the line does so, which only those who are done can help.
    fn waits_for_memory(&self) -> bool {
        let first = self.line.front();
        first.is_some_and(|first| {
            self.whole(first.need, first.account).memory_bytes > self.room().memory_bytes
        })
    }

    /// Whether one for `account` may go before those in the line: where the first waits for memory, others have to go on to give some back.
    /// But not so that one sandbox is passed by others for ever.
    pub fn may_pass(&self, account: Option<AccountId>) -> bool {
        let Some(first) = self.line.front() else {
            return true;
        };
        let is_awake = self.whole(Need::NONE, account) == Need::NONE;
        account.is_some() && (first.account.is_none() || is_awake) && self.waits_for_memory()
    }

    /// Calls those for whom there is room: at the front, and behind one who waits for memory those who can help it.
    pub fn call(&mut self) {
        self.call_front();
        let mut at = 1;
        while self.waits_for_memory() && at < self.line.len() {
            let Waiter { need, account, .. } = self.line[at];
            if self.may_pass(account) && self.has_room(need, account) {
                if let Some(waiter) = self.line.remove(at)
                    && waiter.go.send(()).is_ok()
                {
                    self.take(need, account);
                }
            } else {
                at += 1;
            }
        }
    }

    fn call_front(&mut self) {
        while let Some(first) = self.line.front() {
            if !first.go.is_closed() && !self.has_room(first.need, first.account) {
                break;
            }
            let Some(first) = self.line.pop_front() else {
                break;
            };
            // One who has left in the meantime takes nothing.
            if first.go.send(()).is_ok() {
                self.take(first.need, first.account);
            }
        }
    }

    #[cfg(test)]
    pub fn taken(&self) -> Need {
        self.taken
    }
}
