//! Sandboxes that are kept: whose they are, how long they stay, what they used.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use belljar::{Files, Session};
use belljar_spec::{Error, SandboxId, shown};
use tokio::sync::watch;

use crate::admission::{Admission, Place};
use crate::asked::Names;
use crate::channel::Channel;
use crate::clock;
use crate::config::Config;
use crate::ended::{Ended, Why};
use crate::job::tell_connection;
use crate::metrics::Metrics;
use crate::sandboxes::Sample;
use crate::tenants::Tenant;
use crate::transfer::pages;

/// How often usage is looked at, and how many looks are kept: ten minutes' worth.
pub const SAMPLE_EVERY: Duration = Duration::from_secs(5);
const SAMPLES: usize = 120;

/// One kept sandbox.
pub struct Kept {
    pub session: Session,
    pub tenant: String,
    pub created_ms: u64,
    pub channel: Channel,
    pub names: Names,
    pub runs: AtomicU64,
    created: Instant,
    /// Whatever keeps it from being idle: runs, commands, and files on their way.
    busy: AtomicUsize,
    /// Of that, runs and commands that are going, and those that wait for their turn.
    turns: AtomicUsize,
    /// The files of its request, as they are kept for when it is made anew.
    own_files: u64,
    put: Mutex<Put>,
    times: Mutex<Times>,
    samples: Mutex<VecDeque<Sample>>,
    peak: Mutex<Peak>,
    deleted: watch::Sender<bool>,
    /// The least memory that it was seen with since its last run ended.
    settled: AtomicU64,
    place: Place,
    /// Until it is deleted: whoever was told so may make another one, though somebody may still look at this one.
    reserved: Mutex<Option<Reservation>>,
}

struct Times {
    used: Instant,
    used_ms: u64,
    idle: Duration,
    /// From its creation.
    life: Option<Duration>,
}

/// What was put into its workspace from outside. The kernel counts that as this process's memory, not as the sandbox's.
struct Put {
    bytes: u64,
    /// How much is on its way there now.
    coming: usize,
}

/// The most memory that it was seen with. The kernel knows the peak of its own count only, without what was put into the workspace.
#[derive(Default)]
struct Peak {
    bytes: u64,
    /// How often the sandbox had been replaced then: another begins anew.
    replaced: u64,
}

/// As long as this is there, the sandbox is not idle.
pub struct Busy(Arc<Kept>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
        self.0.touch();
    }
}

/// As long as this is there, a run or a command has its place among those of the sandbox.
pub struct TurnTaken(Busy);

impl Drop for TurnTaken {
    fn drop(&mut self) {
        self.0.0.turns.fetch_sub(1, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Kept {
    /// What its threads tried after its last run is in no result, and would be gone with it.
    fn drop(&mut self) {
        let (connections, count) = self.session.untold_connections();
        let sandbox = self.session.id();
        for one in &connections {
            tell_connection(sandbox, &"none", one);
        }
        if count > 0 {
            tracing::warn!(%sandbox, count, "connections that are not in the list");
        }
    }
}

impl Kept {
    pub fn new(
        session: Session,
        tenant: &Tenant,
        (place, reserved): (Place, Reservation),
        config: &Config,
    ) -> Arc<Self> {
        let request = session.request();
        let settings = &config.sandboxes;
        let times = Times {
            used: Instant::now(),
            used_ms: clock::now_millis(),
            idle: request
                .idle_timeout_ms
                .map_or(settings.idle_timeout, Duration::from_millis),
            life: request
                .lifetime_ms
                .map(Duration::from_millis)
                .or((!settings.life.is_zero()).then_some(settings.life)),
        };
        let files = &request.files;
        let own_files = files.values().map(|one| one.as_bytes().len() as u64).sum();
        let put = Put {
            bytes: if session.files().are_ours() {
                pages(files)
            } else {
                0
            },
            coming: 0,
        };
        Arc::new(Self {
            tenant: tenant.name.clone(),
            created_ms: clock::now_millis(),
            created: Instant::now(),
            channel: Channel::default(),
            names: Names::default(),
            runs: AtomicU64::new(0),
            busy: AtomicUsize::new(0),
            turns: AtomicUsize::new(0),
            own_files,
            put: Mutex::new(put),
            times: Mutex::new(times),
            samples: Mutex::default(),
            peak: Mutex::default(),
            deleted: watch::channel(false).0,
            session,
            settled: AtomicU64::new(u64::MAX),
            place,
            reserved: Mutex::new(Some(reserved)),
        })
    }

    /// Something was done with it.
    pub fn touch(&self) {
        let mut times = lock(&self.times);
        times.used = Instant::now();
        times.used_ms = clock::now_millis();
    }

    /// Begins something that takes a while.
    pub fn begin(self: &Arc<Self>) -> Busy {
        let busy = Busy(Arc::clone(self));
        self.busy.fetch_add(1, Ordering::Relaxed);
        self.touch();
        busy
    }

    /// Begins a run or a command. At most `most` at one time.
    pub fn begin_turn(self: &Arc<Self>, most: usize) -> Result<TurnTaken, Error> {
        let turn = TurnTaken(self.begin());
        if self.turns.fetch_add(1, Ordering::Relaxed) >= most {
            return Err(Error::Overloaded {
                reason: format!("{most} runs of this sandbox are going or waiting"),
                retry_after_s: 1,
            });
        }
        Ok(turn)
    }

    pub fn place(&self) -> &Place {
        &self.place
    }

    /// A run has ended that had at most so much memory.
    pub fn at_rest(&self, memory_bytes: u64) {
        self.settled.store(memory_bytes, Ordering::Relaxed);
        self.place.recount(memory_bytes);
    }

    /// Something is on its way into it, until `put_ends`.
    pub fn put_begins(&self) {
        self.count_put();
        lock(&self.put).coming += 1;
    }

    pub fn put_ends(&self) {
        lock(&self.put).coming -= 1;
        self.count_put();
    }

    /// Room for so much that is about to be put into it.
    pub fn put(&self, files: &Files, bytes: u64) -> Result<(), Error> {
        if files.are_ours() {
            self.place.put(bytes)?;
            lock(&self.put).bytes += bytes;
            return Ok(());
        }
        // Something inside writes it: but by that it has not grown of itself.
        let more = |settled: u64| Some(settled.saturating_add(bytes));
        let _ = self
            .settled
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        Ok(())
    }

    /// Counts what is left of what was put into it: no more than all that is in its workspace. Of that, some may be the code's own,
    /// and count twice.
    pub fn count_put(&self) {
        let mut put = lock(&self.put);
        let left = if put.bytes == 0 {
            0
        } else {
            put.bytes.min(self.session.files().used())
        };
        if put.coming == 0 {
            put.bytes = left;
        }
        self.place.set_beside(self.own_files.saturating_add(left));
    }

    /// What is in its workspace and in no count of the kernel's.
    pub fn put_bytes(&self) -> u64 {
        self.count_put();
        lock(&self.put).bytes
    }

    /// The most that it was seen with, of which this is the latest.
    pub fn memory_peak(&self, seen: u64) -> u64 {
        let replaced = *self.session.replacements().borrow();
        let mut peak = lock(&self.peak);
        if peak.replaced != replaced {
            *peak = Peak { bytes: 0, replaced };
        }
        peak.bytes = peak.bytes.max(seen);
        peak.bytes
    }

    /// What it uses now, which is also what it counts as if nothing runs in it.
    fn weigh(&self) -> u64 {
        self.count_put();
        let Some(used) = self.session.memory() else {
            return 0;
        };
        self.settled.fetch_min(used, Ordering::Relaxed);
        self.place.recount(used);
        used
    }

    /// How much it has grown though nothing runs in it.
    fn grown(&self, used: u64) -> u64 {
        if self.is_busy() {
            return 0;
        }
        used.saturating_sub(self.settled.load(Ordering::Relaxed))
    }

    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed) > 0
    }

    /// Returns when it has been deleted.
    pub async fn gone(&self) {
        let _ = self.deleted.subscribe().wait_for(|gone| *gone).await;
    }

    pub fn is_gone(&self) -> bool {
        *self.deleted.borrow()
    }

    /// Why its time has come, if it has.
    fn is_over(&self) -> Option<Why> {
        let times = lock(&self.times);
        match times.life {
            Some(life) if self.created.elapsed() >= life => Some(Why::Old(life)),
            _ if !self.is_busy() && times.used.elapsed() >= times.idle => {
                Some(Why::Idle(times.idle))
            }
            _ => None,
        }
    }

    /// In no case does it live longer than `longest`.
    pub fn renew(
        &self,
        idle: Option<Duration>,
        life_from_now: Option<Duration>,
        longest: Option<Duration>,
    ) {
        let mut times = lock(&self.times);
        times.used = Instant::now();
        times.used_ms = clock::now_millis();
        if let Some(idle) = idle {
            times.idle = idle;
        }
        if let Some(life) = life_from_now {
            let life = self.created.elapsed().saturating_add(life);
            times.life = Some(longest.map_or(life, |longest| life.min(longest)));
        }
    }

    /// When it was last used, how long it may be idle, and when it ends at the latest; in milliseconds.
    pub fn schedule(&self) -> (u64, u64, Option<u64>) {
        let times = lock(&self.times);
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        (
            times.used_ms,
            millis(times.idle),
            times
                .life
                .map(|life| self.created_ms.saturating_add(millis(life))),
        )
    }

    pub fn sample(&self) -> Sample {
        let sample = Sample::take(self);
        let mut samples = lock(&self.samples);
        if samples.len() == SAMPLES {
            samples.pop_front();
        }
        samples.push_back(sample.clone());
        sample
    }

    pub fn samples(&self) -> Vec<Sample> {
        lock(&self.samples).iter().cloned().collect()
    }
}

/// All of them.
pub struct Sandboxes {
    kept: Mutex<HashMap<SandboxId, Arc<Kept>>>,
    /// With those that are being made.
    counts: Arc<Mutex<HashMap<String, usize>>>,
    ended: Ended,
    maximum: usize,
    metrics: Metrics,
}

/// That there may be one sandbox more. It is being made, or has been.
pub struct Reservation {
    counts: Arc<Mutex<HashMap<String, usize>>>,
    tenant: String,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(count) = lock(&self.counts).get_mut(&self.tenant) {
            *count -= 1;
        }
    }
}

impl Sandboxes {
    pub fn new(config: &Config, metrics: Metrics) -> Self {
        Self {
            kept: Mutex::default(),
            counts: Arc::default(),
            ended: Ended::default(),
            maximum: config.sandboxes.maximum,
            metrics,
        }
    }

    /// Before anything is made.
    pub fn reserve(&self, tenant: &Tenant) -> Result<Reservation, Error> {
        let mut counts = lock(&self.counts);
        let total: usize = counts.values().sum();
        let own = counts.entry(tenant.name.clone()).or_default();
        let quota = tenant.quotas.sandboxes;
        if total >= self.maximum || quota.is_some_and(|most| *own >= most) {
            self.metrics.rejected("sandboxes");
            let most = quota.filter(|most| *own >= *most).unwrap_or(self.maximum);
            return Err(Error::Overloaded {
                reason: format!("all {most} sandboxes are in use; delete some"),
                retry_after_s: 5,
            });
        }
        *own += 1;
        Ok(Reservation {
            counts: Arc::clone(&self.counts),
            tenant: tenant.name.clone(),
        })
    }

    pub fn insert(&self, kept: Arc<Kept>) {
        let mut all = lock(&self.kept);
        all.insert(kept.session.id(), kept);
        self.metrics
            .sandboxes
            .set(i64::try_from(all.len()).unwrap_or(0));
    }

    /// Another tenant's is as absent as none.
    pub fn find(&self, tenant: &Tenant, id: &str) -> Result<Arc<Kept>, Error> {
        let parsed: SandboxId = id.parse()?;
        let found = lock(&self.kept).get(&parsed).cloned();
        let found = found.filter(|kept| tenant.sees(&kept.tenant));
        found.ok_or_else(|| {
            let given = shown(id);
            match self.ended.why(parsed, |name| tenant.sees(name)) {
                Some(why) => Error::Gone {
                    what: "sandbox",
                    given,
                    reason: why.told(),
                },
                None => Error::NotFound {
                    what: "sandbox",
                    given,
                    nearest: None,
                },
            }
        })
    }

    pub fn list(&self, tenant: &Tenant) -> Vec<Arc<Kept>> {
        let mut list: Vec<_> = lock(&self.kept)
            .values()
            .filter(|kept| tenant.sees(&kept.tenant))
            .cloned()
            .collect();
        list.sort_by_key(|kept| (kept.created_ms, kept.session.id()));
        list
    }

    /// Whoever takes it out ends it; all others do not find it any more.
    pub fn delete(&self, tenant: &Tenant, id: &str) -> Result<(), Error> {
        let kept = self.find(tenant, id)?;
        if self.end(kept.session.id(), Why::Deleted) {
            return Ok(());
        }
        Err(Error::NotFound {
            what: "sandbox",
            given: shown(id),
            nearest: None,
        })
    }

    fn end(&self, id: SandboxId, why: Why) -> bool {
        let mut all = lock(&self.kept);
        let removed = all.remove(&id);
        self.metrics
            .sandboxes
            .set(i64::try_from(all.len()).unwrap_or(0));
        drop(all);
        removed.is_some_and(|kept| {
            self.ended.remember(id, &kept.tenant, why);
            drop(lock(&kept.reserved).take());
            kept.deleted.send_replace(true);
            true
        })
    }

    /// Ends those whose time has come; looks at what the others use if `sample`.
    pub fn tidy(&self, sample: bool) {
        let all: Vec<_> = lock(&self.kept).values().cloned().collect();
        for kept in all {
            if let Some(why) = kept.is_over() {
                tracing::info!(sandbox = %kept.session.id(), tenant = kept.tenant, "expired");
                self.end(kept.session.id(), why);
            } else if sample {
                kept.sample();
            }
        }
    }

    /// Counts what each of them uses. If that is more than there is, those are ended that have grown since their last run, the ones that
    /// grew most first: runs are admitted by their limits, and what goes on after them is not.
    pub fn weigh(&self, admission: &Admission) {
        let all: Vec<_> = lock(&self.kept).values().cloned().collect();
        let mut weighed: Vec<_> = all.into_iter().map(|kept| (kept.weigh(), kept)).collect();
        let mut excess = admission.excess(weighed.iter().map(|(used, _)| used).sum());
        if excess == 0 {
            return;
        }
        weighed.sort_by_key(|(used, kept)| std::cmp::Reverse(kept.grown(*used)));
        for (used, kept) in weighed {
            if excess == 0 || kept.grown(used) == 0 {
                break;
            }
            excess = excess.saturating_sub(used);
            tracing::warn!(sandbox = %kept.session.id(), tenant = kept.tenant, used, "ended: it grew with nothing running in it, beyond what there is for all");
            self.metrics.evicted.inc();
            self.end(kept.session.id(), Why::Grown);
        }
    }

    pub fn is_empty(&self) -> bool {
        lock(&self.kept).is_empty()
    }

    pub fn end_all(&self) {
        let all: Vec<_> = lock(&self.kept).keys().copied().collect();
        for id in all {
            self.end(id, Why::Stopped);
        }
    }
}
