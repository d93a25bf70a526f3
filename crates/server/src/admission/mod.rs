//! Who may start now, who waits, who is sent away.
//!
//! Every run is counted by what its limits allow it, before it begins. A sandbox that is kept counts as its limit while something runs in
//! it, and as what it uses in between. What does not fit waits in one line, first come, first served, so that a large request is not
//! passed by small ones for ever. The line is bounded in length and time.
//!
//! Beside that counts what is there already: sandboxes that wait ready, bodies that are on their way, and answers that their clients
//! have not taken.
//! Runs in sandboxes that are kept pass those who wait for memory: that comes from sandboxes whose runs are done.

mod budget;
mod quota;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use belljar_spec::{Error, HostCapacity, Limits};
use tokio::sync::oneshot;

use crate::config::Config;
use crate::metrics::Metrics;
use crate::tenants::Tenant;
pub use budget::Need;
use budget::{AccountId, Budget, LEAST, Waiter};

/// One part in so many of the budget is the most that requests and answers on their way may have, and that sandboxes which wait ready count as:
/// the rest is always there for runs.
const SHARE: u64 = 4;

/// Answers that are smaller are not worth counting.
pub const SMALL: usize = 64 << 10;

/// What an installation of packages may use, and which part of the budget it counts as at most: one in so many.
const INSTALLATION: u64 = 2 << 30;
const INSTALLATION_SHARE: u64 = 8;

#[derive(Clone)]
pub struct Admission {
    budget: Arc<Mutex<Budget>>,
    total: Need,
    longest_line: usize,
    longest_wait: Duration,
    /// By several tenants.
    is_shared: bool,
    metrics: Metrics,
}

/// What somebody wants leave for.
struct Wish {
    need: Need,
    /// What it counts as among the quotas of its tenant.
    quota_bytes: u64,
    is_run: bool,
    account: Option<AccountId>,
}

/// Leave to run. Gives back what it counted as when it is dropped.
#[must_use]
pub struct Ticket {
    admission: Admission,
    tenant: String,
    wish: Wish,
    /// As long as it stands in the line. Whoever calls it counts its need as taken, under the same lock that `drop` takes.
    turn: Option<oneshot::Receiver<()>>,
    /// How long it had to be waited for.
    pub waited: Duration,
}

/// Memory for an installation of packages.
#[must_use]
pub struct Room {
    _ticket: Ticket,
}

/// Leave for a sandbox that is kept.
#[must_use]
pub struct Place {
    ticket: Ticket,
    account: AccountId,
    /// What its tenant may have altogether.
    quota_bytes: Option<u64>,
}

impl Admission {
    pub fn new(config: &Config, host: &HostCapacity, metrics: Metrics) -> Self {
        let (memory_bytes, cpus) = config.budget.on(host);
        let total = Need { memory_bytes, cpus };
        Self {
            budget: Arc::new(Mutex::new(Budget::new(total))),
            total,
            longest_line: config.budget.queue,
            longest_wait: config.budget.queue_timeout,
            is_shared: !config.tenants.is_empty(),
            metrics,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Budget> {
        self.budget.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.lock().line.len()
    }

    /// Leave for one run. Dropping the future gives the place in the line to the next.
    pub async fn run(&self, tenant: &Tenant, need: Need) -> Result<Ticket, Error> {
        self.fits(need)?;
        tenant.may_ever_have(need.memory_bytes)?;
        let wish = Wish {
            need,
            quota_bytes: need.memory_bytes,
            is_run: true,
            account: None,
        };
        self.enter(tenant, wish).await
    }

    /// The same for one in a sandbox that is kept. `need` is what it takes beside the sandbox.
    pub async fn run_inside(
        &self,
        tenant: &Tenant,
        place: &Place,
        need: Need,
    ) -> Result<Ticket, Error> {
        self.fits(need)?;
        let wish = Wish {
            need,
            quota_bytes: need.memory_bytes,
            is_run: true,
            account: Some(place.account),
        };
        self.enter(tenant, wish).await
    }

    /// Leave for a sandbox that is kept, with so many bytes beside what runs in it. Among the quotas its whole limit counts as long
    /// as it lives.
    pub async fn sandbox(
        &self,
        tenant: &Tenant,
        limits: &Limits,
        beside: u64,
    ) -> Result<Place, Error> {
        let mut most = Need::of(limits);
        most.memory_bytes = most.memory_bytes.saturating_add(beside);
        self.fits(most)?;
        let (limit, at_rest) = (limits.memory_bytes, limits.memory_bytes.min(LEAST));
        let wish = Wish {
            need: Need {
                memory_bytes: at_rest + beside,
                ..Need::NONE
            },
            quota_bytes: limit.saturating_add(beside),
            is_run: false,
            account: None,
        };
        let mut ticket = self.enter(tenant, wish).await?;
        let mut budget = self.lock();
        // From here on they are the account's.
        ticket.wish.need = Need::NONE;
        ticket.wish.quota_bytes = limit;
        let account = budget.open(at_rest, limit);
        budget.untake(beside);
        budget.set_beside(account, |_| beside);
        drop(budget);
        Ok(Place {
            ticket,
            account,
            quota_bytes: tenant.quotas.memory_bytes,
        })
    }

    /// Memory for an installation of packages. It is no run, and takes nothing of its tenant's quotas.
    pub async fn installation(&self, tenant: &Tenant) -> Result<Room, Error> {
        let most = self.total.memory_bytes / INSTALLATION_SHARE;
        let wish = Wish {
            need: Need {
                memory_bytes: INSTALLATION.min(most),
                ..Need::NONE
            },
            quota_bytes: 0,
            is_run: false,
            account: None,
        };
        let ticket = self.enter(tenant, wish).await?;
        Ok(Room { _ticket: ticket })
    }

    pub fn installs_too_much(&self) -> Error {
        let reason = "other packages are being installed".into();
        self.rejected("installs", reason, 5)
    }

    /// What sandboxes that wait ready use now.
    pub fn set_ready(&self, bytes: u64) {
        let mut budget = self.lock();
        budget.ready = bytes.min(self.total.memory_bytes / SHARE);
        budget.call();
    }

    /// How much more than the budget is in use, when sandboxes that are kept use `kept` together.
    pub fn excess(&self, kept: u64) -> u64 {
        self.lock().excess(kept)
    }

    /// Room for so much of a request or an answer that is on its way. Nothing waits for it: all together may have their share.
    pub fn hold(&self, bytes: u64) -> Result<Held, Error> {
        let mut held = self.nothing();
        held.grow(bytes)?;
        Ok(held)
    }

    /// Of what is yet to come.
    fn nothing(&self) -> Held {
        Held {
            admission: self.clone(),
            most: self.total.memory_bytes / SHARE,
            shown_by: None,
            bytes: 0,
        }
    }

    /// Of what code shows, and calls. All of that together leaves half of the share to requests and to other answers, and all of one
    /// tenant's half of that to the others.
    pub fn nothing_shown(&self, tenant: &str) -> Held {
        let mut held = self.nothing();
        held.most /= 2;
        held.shown_by = Some(tenant.to_owned());
        held
    }

    fn fits(&self, need: Need) -> Result<(), Error> {
        if need.fits(self.total) {
            return Ok(());
        }
        Err(Error::InvalidLimit {
            field: "memory_bytes and cpus".into(),
            given: need.to_string(),
            accepted: format!("this daemon has {} for all sandboxes together", self.total),
        })
    }

    async fn enter(&self, tenant: &Tenant, wish: Wish) -> Result<Ticket, Error> {
        let since = Instant::now();
        let mut ticket = self.book(tenant, wish)?;
        if let Some(turn) = &mut ticket.turn {
            let called = tokio::time::timeout(self.longest_wait, turn).await;
            if !matches!(called, Ok(Ok(()))) {
                return Err(self.rejected("queue_timeout", "there was no room in time".into(), 2));
            }
            ticket.turn = None;
        }
        ticket.waited = since.elapsed();
        Ok(ticket)
    }

    /// Checks the quotas, then takes room or a place in the line.
    fn book(&self, tenant: &Tenant, wish: Wish) -> Result<Ticket, Error> {
        let mut budget = self.lock();
        let (need, account) = (wish.need, wish.account);
        let share = budget.shares.entry(tenant.name.clone()).or_default();
        share
            .admit(&tenant.quotas, wish.quota_bytes, wish.is_run)
            .map_err(|over| self.rejected(over.kind, over.reason, over.retry_after_s))?;
        let fits = budget.may_pass(account) && budget.has_room(need, account);
        if !fits && budget.line.len() >= self.longest_line {
            let length = budget.line.len();
            let reason = format!("{length} runs wait already");
            let retry = 1 + u32::try_from(length / 200).unwrap_or(30);
            return Err(self.rejected("queue_full", reason, retry));
        }
        if let Some(share) = budget.shares.get_mut(&tenant.name) {
            share.runs += usize::from(wish.is_run);
            share.memory_bytes += wish.quota_bytes;
        }
        let turn = if fits {
            budget.take(need, account);
            None
        } else {
            let (go, turn) = oneshot::channel();
            budget.line.push_back(Waiter { need, account, go });
            Some(turn)
        };
        Ok(Ticket {
            admission: self.clone(),
            tenant: tenant.name.clone(),
            wish,
            turn,
            waited: Duration::ZERO,
        })
    }

    fn rejected(&self, kind: &'static str, reason: String, retry_after_s: u32) -> Error {
        self.metrics.rejected(kind);
        Error::Overloaded {
            reason,
            retry_after_s,
        }
    }
}

impl Place {
    /// What the sandbox uses now, or the most that it can.
    pub fn recount(&self, used: u64) {
        self.ticket.admission.lock().recount(self.account, used);
    }

    /// Room for so much more that is put into it from outside. Nothing waits for it: all together may have their share of the budget,
    /// and beyond that what is free.
    pub fn put(&self, bytes: u64) -> Result<(), Error> {
        let admission = &self.ticket.admission;
        let mut budget = admission.lock();
        let own = budget.shares.get(&self.ticket.tenant);
        let own = own.map_or(0, |share| share.memory_bytes);
        if let Some(most) = self.quota_bytes
            && own.saturating_add(bytes) > most
        {
            drop(budget);
            let reason = format!("you may have {} MiB of memory at one time", most >> 20);
            return Err(admission.rejected("memory", reason, 1));
        }
        let share = admission.total.memory_bytes / SHARE;
        if budget.beside.saturating_add(bytes) > share && bytes > budget.room().memory_bytes {
            drop(budget);
            let reason = "there is no room for more in sandboxes".into();
            return Err(admission.rejected("uploads", reason, 2));
        }
        budget.set_beside(self.account, |before| before + bytes);
        budget.count(&self.ticket.tenant, 0, bytes);
        Ok(())
    }

    /// What there is of that.
    pub fn set_beside(&self, bytes: u64) {
        let mut budget = self.ticket.admission.lock();
        let (before, now) = budget.set_beside(self.account, |_| bytes);
        budget.count(&self.ticket.tenant, before, now);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut budget = self.ticket.admission.lock();
        let beside = budget.close(self.account);
        budget.count(&self.ticket.tenant, beside, 0);
    }
}

/// Memory of a request or an answer that is on its way. Gives it back when it is dropped.
pub struct Held {
    admission: Admission,
    /// Of all together, for this to grow.
    most: u64,
    /// The tenant whose code shows it, if that is what it is.
    shown_by: Option<String>,
    bytes: u64,
}

impl Held {
    pub fn grow(&mut self, bytes: u64) -> Result<(), Error> {
        let mut budget = self.admission.lock();
        let shown = budget.shown_by(self.shown_by.as_deref());
        let most = self.most / if self.admission.is_shared { 2 } else { 1 };
        let is_too_much = shown.is_some_and(|shown| shown.saturating_add(bytes) > most);
        if is_too_much || budget.held.saturating_add(bytes) > self.most {
            drop(budget);
            let reason = "too much is on its way in requests and answers".into();
            return Err(self.admission.rejected("bodies", reason, 2));
        }
        if let Some(shown) = budget.shown_by(self.shown_by.as_deref()) {
            *shown += bytes;
        }
        budget.held += bytes;
        self.bytes += bytes;
        Ok(())
    }

    /// Room of the same kind for something else.
    pub fn another(&self, bytes: u64) -> Result<Self, Error> {
        let mut held = Self {
            admission: self.admission.clone(),
            most: self.most,
            shown_by: self.shown_by.clone(),
            bytes: 0,
        };
        held.grow(bytes)?;
        Ok(held)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut budget = self.admission.lock();
        if let Some(shown) = budget.shown_by(self.shown_by.as_deref()) {
            *shown -= self.bytes;
        }
        budget.held -= self.bytes;
        budget.call();
    }
}

impl Ticket {
    /// The run is over, and what is left of it is an answer of so many bytes. They count until whoever holds this has sent them.
    /// `None`: they are not worth counting.
    pub fn into_answer(mut self, bytes: usize) -> Option<Box<Self>> {
        if bytes < SMALL {
            return None;
        }
        let left = Wish {
            need: Need {
                memory_bytes: bytes as u64,
                ..Need::NONE
            },
            quota_bytes: bytes as u64,
            is_run: false,
            account: None,
        };
        let mut budget = self.admission.lock();
        budget.take(left.need, None);
        if let Some(share) = budget.shares.get_mut(&self.tenant) {
            share.memory_bytes += left.quota_bytes;
        }
        let run = std::mem::replace(&mut self.wish, left);
        budget.end(&self.tenant, &run);
        drop(budget);
        Some(Box::new(self))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut budget = self.admission.lock();
        let called = |turn: &mut oneshot::Receiver<()>| turn.try_recv().is_ok();
        if self.turn.as_mut().is_none_or(called) {
            budget.end(&self.tenant, &self.wish);
        } else {
            self.turn = None;
            budget.release(&self.tenant, &self.wish);
            budget.line.retain(|waiter| !waiter.go.is_closed());
            budget.call();
        }
    }
}

impl Budget {
    /// What a tenant's code shows and calls at this moment.
    fn shown_by(&mut self, tenant: Option<&str>) -> Option<&mut u64> {
        let shares = &mut self.shares;
        tenant.map(|name| &mut shares.entry(name.to_owned()).or_default().shown)
    }

    /// Among the quotas of a tenant.
    fn count(&mut self, tenant: &str, before: u64, now: u64) {
        if let Some(share) = self.shares.get_mut(tenant) {
            share.memory_bytes = share.memory_bytes - before + now;
        }
    }

    /// Gives back what was counted among the quotas of a tenant.
    fn release(&mut self, tenant: &str, wish: &Wish) {
        if let Some(share) = self.shares.get_mut(tenant) {
            share.runs -= usize::from(wish.is_run);
            share.memory_bytes -= wish.quota_bytes;
        }
    }

    /// And what was taken.
    fn end(&mut self, tenant: &str, wish: &Wish) {
        self.release(tenant, wish);
        self.give_back(wish.need, wish.account);
    }
}

#[cfg(test)]
mod tests;
