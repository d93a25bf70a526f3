//! Who may start now, who waits, who is sent away.
//!
//! Every sandbox is counted by what its limits allow it, before it is made. What does not fit waits in one line, first come,
//! first served, so that a large request is not passed by small ones for ever. The line is bounded in length and time.
//!
//! Runs in sandboxes that are kept pass those who wait for memory: that comes from sandboxes whose runs are done.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use belljar_spec::{Error, HostCapacity, Limits, Unit};
use tokio::sync::oneshot;

use crate::config::Config;
use crate::metrics::Metrics;
use crate::tenants::Tenant;

/// What a run or a sandbox counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    pub memory_bytes: u64,
    /// Thousandths of a core.
    pub cpus: u64,
}

impl Need {
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
                .saturating_add(limits.output_bytes.saturating_mul(2)),
            cpus,
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

    fn fits(self, free: Self) -> bool {
        self.memory_bytes <= free.memory_bytes && self.cpus <= free.cpus
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = self.memory_bytes >> 20;
        write!(f, "{mib} MiB and {} cores", Unit::Cores.text(self.cpus))
    }
}

/// What a tenant has at the moment.
#[derive(Debug, Default)]
struct Share {
    runs: usize,
    memory_bytes: u64,
    /// Starts that are left, and since when that is so.
    starts: Option<(f64, Instant)>,
}

struct Waiter {
    need: Need,
    /// Its sandbox is there already, and counted.
    is_inside: bool,
    go: oneshot::Sender<()>,
}

struct Inner {
    free: Need,
    line: VecDeque<Waiter>,
    shares: HashMap<String, Share>,
}

#[derive(Clone)]
pub struct Admission {
    inner: Arc<Mutex<Inner>>,
    total: Need,
    longest_line: usize,
    longest_wait: Duration,
    metrics: Metrics,
}

/// Leave to run. Gives back what it counted as when it is dropped.
#[must_use]
pub struct Ticket {
    admission: Admission,
    tenant: String,
    need: Need,
    counts_as_run: bool,
    /// As long as it stands in the line. Whoever calls it counts its need as taken, under the same lock that `drop` takes.
    turn: Option<oneshot::Receiver<()>>,
    /// How long it had to be waited for.
    pub waited: Duration,
}

impl Admission {
    pub fn new(config: &Config, host: &HostCapacity, metrics: Metrics) -> Self {
        let (memory_bytes, cpus) = config.budget_on(host);
        let total = Need { memory_bytes, cpus };
        let inner = Inner {
            free: total,
            line: VecDeque::new(),
            shares: HashMap::new(),
        };
        Self {
            inner: Arc::new(Mutex::new(inner)),
            total,
            longest_line: config.budget.queue,
            longest_wait: config.budget.queue_timeout,
            metrics,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.lock().line.len()
    }

    /// Leave for one run. Dropping the future gives the place in the line to the next.
    pub async fn run(&self, tenant: &Tenant, need: Need) -> Result<Ticket, Error> {
        self.enter(tenant, need, true, false).await
    }

    /// The same for one in a sandbox that is kept.
    pub async fn run_inside(&self, tenant: &Tenant, need: Need) -> Result<Ticket, Error> {
        self.enter(tenant, need, true, true).await
    }

    /// Leave for a sandbox that is kept. Its memory counts as long as it lives; CPU counts for its runs.
    pub async fn sandbox(&self, tenant: &Tenant, memory_bytes: u64) -> Result<Ticket, Error> {
        let need = Need {
            memory_bytes,
            cpus: 0,
        };
        self.enter(tenant, need, false, false).await
    }

    async fn enter(
        &self,
        tenant: &Tenant,
        need: Need,
        is_run: bool,
        is_inside: bool,
    ) -> Result<Ticket, Error> {
        if !need.fits(self.total) {
            return Err(Error::InvalidLimit {
                field: "memory_bytes and cpus".into(),
                given: need.to_string(),
                accepted: format!("this daemon has {} for all sandboxes together", self.total),
            });
        }
        let since = Instant::now();
        let mut ticket = self.book(tenant, need, is_run, is_inside)?;
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
    fn book(
        &self,
        tenant: &Tenant,
        need: Need,
        is_run: bool,
        is_inside: bool,
    ) -> Result<Ticket, Error> {
        let mut inner = self.lock();
        let share = inner.shares.entry(tenant.name.clone()).or_default();
        let quotas = &tenant.quotas;
        if is_run && quotas.runs_at_once.is_some_and(|most| share.runs >= most) {
            let reason = "all runs that you may have at once are going".into();
            return Err(self.rejected("runs_at_once", reason, 1));
        }
        if let Some(most) = quotas.memory_bytes
            && share.memory_bytes.saturating_add(need.memory_bytes) > most
        {
            let reason = format!("you may have {} MiB of memory at one time", most >> 20);
            return Err(self.rejected("memory", reason, 1));
        }
        if let (true, Some(rate)) = (is_run, quotas.runs_per_minute)
            && let Err(wait) = take_start(share, rate)
        {
            let reason = format!("you may start {rate} runs in a minute");
            return Err(self.rejected("rate", reason, wait));
        }
        let first = inner.line.is_empty() || (is_inside && inner.waits_for_memory());
        let fits = first && need.fits(inner.free);
        if !fits && inner.line.len() >= self.longest_line {
            let length = inner.line.len();
            let reason = format!("{length} runs wait already");
            let retry = 1 + u32::try_from(length / 200).unwrap_or(30);
            return Err(self.rejected("queue_full", reason, retry));
        }
        if let Some(share) = inner.shares.get_mut(&tenant.name) {
            share.runs += usize::from(is_run);
            share.memory_bytes += need.memory_bytes;
        }
        let turn = if fits {
            inner.take(need);
            None
        } else {
            let (go, turn) = oneshot::channel();
            inner.line.push_back(Waiter {
                need,
                is_inside,
                go,
            });
            Some(turn)
        };
        Ok(Ticket {
            admission: self.clone(),
            tenant: tenant.name.clone(),
            need,
            counts_as_run: is_run,
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

/// A token bucket that holds a minute's worth.
fn take_start(share: &mut Share, per_minute: u32) -> Result<(), u32> {
    let now = Instant::now();
    let full = f64::from(per_minute);
    let (left, since) = share.starts.unwrap_or((full, now));
    let left = (left + (now - since).as_secs_f64() * full / 60.0).min(full);
    share.starts = Some((left, now));
    if left >= 1.0 {
        share.starts = Some((left - 1.0, now));
        return Ok(());
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "at most 60 divided by one"
    )]
    let wait = ((1.0 - left) * 60.0 / full.max(1.0)).ceil() as u32;
    Err(wait.max(1))
}

impl Inner {
    fn take(&mut self, need: Need) {
        self.free.memory_bytes -= need.memory_bytes;
        self.free.cpus -= need.cpus;
    }

    fn give_back(&mut self, need: Need) {
        self.free.memory_bytes += need.memory_bytes;
        self.free.cpus += need.cpus;
        self.call();
    }

    /// Whether the first in the line does so, which only those who are done can help.
    fn waits_for_memory(&self) -> bool {
        let first = self.line.front();
        first.is_some_and(|first| first.need.memory_bytes > self.free.memory_bytes)
    }

    /// Calls those for whom there is room: at the front, and behind one who waits for memory those who can help it.
    fn call(&mut self) {
        self.call_front();
        let mut at = 1;
        while self.waits_for_memory() && at < self.line.len() {
            let waiter = &self.line[at];
            if waiter.is_inside && waiter.need.fits(self.free) {
                if let Some(waiter) = self.line.remove(at)
                    && waiter.go.send(()).is_ok()
                {
                    self.take(waiter.need);
                }
            } else {
                at += 1;
            }
        }
    }

    fn call_front(&mut self) {
        while let Some(first) = self.line.front() {
            if !first.go.is_closed() && !first.need.fits(self.free) {
                break;
            }
            let Some(first) = self.line.pop_front() else {
                break;
            };
            // One who has left in the meantime takes nothing.
            if first.go.send(()).is_ok() {
                self.take(first.need);
            }
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut inner = self.admission.lock();
        if let Some(share) = inner.shares.get_mut(&self.tenant) {
            share.runs -= usize::from(self.counts_as_run);
            share.memory_bytes -= self.need.memory_bytes;
        }
        let called = |turn: &mut oneshot::Receiver<()>| turn.try_recv().is_ok();
        if self.turn.as_mut().is_none_or(called) {
            inner.give_back(self.need);
        } else {
            self.turn = None;
            inner.line.retain(|waiter| !waiter.go.is_closed());
            inner.call();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenants::Quotas;

    const HOST: HostCapacity = HostCapacity {
        memory_bytes: 10 << 20,
        cpus: 2,
    };

    fn admission(queue: usize) -> Admission {
        let mut config = Config::default();
        config.budget.memory_bytes = Some(1000);
        config.budget.queue = queue;
        config.budget.queue_timeout = Duration::from_millis(50);
        Admission::new(&config, &HOST, Metrics::new())
    }

    fn tenant(quotas: Quotas) -> Tenant {
        Tenant {
            name: "t".into(),
            admin: false,
            quotas,
        }
    }

    fn need(memory_bytes: u64) -> Need {
        Need {
            memory_bytes,
            cpus: 1,
        }
    }

    fn code<T>(result: Result<T, Error>) -> &'static str {
        result.map_or_else(|error| error.code(), |_| "ok")
    }

    #[tokio::test]
    async fn what_does_not_fit_waits_its_turn_and_leaves_in_time() {
        let admission = admission(1);
        let tenant = tenant(Quotas::default());
        let first = admission.run(&tenant, need(800)).await.unwrap();
        assert_eq!(
            code(admission.run(&tenant, need(1001)).await),
            "invalid_limit"
        );
        assert_eq!(code(admission.run(&tenant, need(300)).await), "overloaded");
        assert_eq!(admission.waiting(), 0);
        let (admission2, tenant2) = (admission.clone(), tenant.clone());
        let waits = tokio::spawn(async move { admission2.run(&tenant2, need(300)).await });
        while admission.waiting() == 0 {
            tokio::task::yield_now().await;
        }
        // Small enough, but somebody came before; and the line is full.
        assert_eq!(code(admission.run(&tenant, need(1)).await), "overloaded");
        drop(first);
        let second = waits.await.unwrap().unwrap();
        assert_eq!(admission.lock().free.memory_bytes, 700);
        drop(second);
        assert_eq!(admission.lock().free, admission.total);
    }

    #[tokio::test]
    async fn one_who_leaves_the_line_leaves_nothing_behind() {
        let admission = admission(10);
        let tenant = tenant(Quotas::default());
        let first = admission.run(&tenant, need(900)).await.unwrap();
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let mut first = Some(first);
        for called in [false, true] {
            let mut waits = Box::pin(admission.run(&tenant, need(950)));
            assert!(waits.as_mut().poll(&mut context).is_pending());
            if called {
                // Called, and gone before it heard of it.
                first = None;
                assert_eq!(admission.lock().free.memory_bytes, 50);
            }
            drop(waits);
            assert_eq!(admission.waiting(), 0);
        }
        drop(first);
        assert_eq!(admission.lock().free, admission.total);
        assert_eq!(admission.lock().shares["t"].runs, 0);
    }

    #[tokio::test]
    async fn who_can_make_room_passes_who_waits_for_it() {
        let admission = admission(10);
        let tenant = tenant(Quotas::default());
        let kept = admission.sandbox(&tenant, 900).await.unwrap();
        let mut waits = Box::pin(admission.sandbox(&tenant, 500));
        assert!(futures_util::poll!(&mut waits).is_pending());
        // Others stand behind it, but runs of the sandbox that is there do not.
        let mut other = Box::pin(admission.run(&tenant, need(10)));
        assert!(futures_util::poll!(&mut other).is_pending());
        drop(other);
        let cores = Need {
            memory_bytes: 10,
            cpus: admission.total.cpus,
        };
        let run = admission.run_inside(&tenant, cores).await.unwrap();
        // Also those for whom there is no core at first.
        let mut next = Box::pin(admission.run_inside(&tenant, cores));
        assert!(futures_util::poll!(&mut next).is_pending());
        drop(run);
        drop(next.await.unwrap());
        drop(kept);
        drop(waits.await.unwrap());
        assert_eq!(admission.lock().free, admission.total);
    }

    #[tokio::test]
    async fn quotas_hold() {
        let admission = admission(10);
        let tenant = tenant(Quotas {
            runs_at_once: Some(2),
            runs_per_minute: Some(4),
            memory_bytes: Some(500),
            sandboxes: None,
        });
        let first = admission.run(&tenant, need(300)).await.unwrap();
        assert_eq!(code(admission.run(&tenant, need(300)).await), "overloaded");
        let second = admission.run(&tenant, need(100)).await.unwrap();
        assert_eq!(code(admission.run(&tenant, need(1)).await), "overloaded");
        drop((first, second));
        drop(admission.run(&tenant, need(1)).await.unwrap());
        drop(admission.run(&tenant, need(1)).await.unwrap());
        let error = admission.run(&tenant, need(1)).await.map(drop).unwrap_err();
        assert!(
            matches!(
                error,
                Error::Overloaded {
                    retry_after_s: 1..=60,
                    ..
                }
            ),
            "{error}"
        );
    }
}
