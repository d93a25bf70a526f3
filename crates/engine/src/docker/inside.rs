//! What goes on in one container: limits, usage, and how it ended.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use belljar_jail::{Counters, Exit, Meter, Outcome, Stage};
use belljar_spec::Limits;
use bollard::models::ContainerUpdateBody;
use bollard::query_parameters::{KillContainerOptions, StatsOptionsBuilder};
use futures_util::StreamExt;
use tokio::sync::watch;

use super::Docker;
use super::body::nanos;
use super::command::micros;
use super::events::News;
use super::link::Link;

/// How long the engine may take to tell that a container has died, and what of.
const NEWS_TIME: Duration = Duration::from_millis(1500);
/// How long the kernel's word about memory may take to get here through the engine.
const OOM_NEWS_TIME: Duration = Duration::from_secs(2);

/// What commands of a container share.
pub struct Inside {
    pub(super) docker: Arc<Docker>,
    pub id: String,
    pub link: Link,
    /// Where this host runs the container; else the engine is asked.
    pub(super) meter: Option<Meter>,
    pub(super) news: watch::Receiver<News>,
    /// What the engine last said, where there is no meter.
    pub(super) stats: Mutex<Counters>,
    pub(super) used: AtomicU64,
    pub(super) env: Vec<(String, String)>,
    pub(super) limits: tokio::sync::Mutex<InForce>,
    /// Commands can start no process.
    pub(super) lone: bool,
}

/// The limits that a container has now, and for which stage it was given them.
pub(super) struct InForce {
    limits: Limits,
    stage: Stage,
}

impl InForce {
    /// As it was made.
    pub fn new(limits: Limits) -> Self {
        let stage = Stage::Run;
        Self { limits, stage }
    }

    /// Whether a stage must be given others. A command beside others has none of its own, but what a compiler had is taken back.
    fn must_change(&self, wanted: &Limits, stage: Stage) -> bool {
        let same_memory = self.limits.memory_bytes == wanted.memory_bytes;
        let fits = same_memory
            && nanos(&self.limits) == nanos(wanted)
            && self.limits.processes == wanted.processes;
        let compile = stage == Stage::Compile || self.stage == Stage::Compile;
        !fits && (compile || !same_memory)
    }
}

impl Inside {
    /// What a command finds: its own, and of the image's what it does not have. The image knows best where its programs are.
    pub fn environment(&self, own: &[(String, String)]) -> Vec<(String, String)> {
        let usual = crate::command::PATH;
        let mut env: Vec<_> = own.to_vec();
        for (name, value) in &self.env {
            match env.iter_mut().find(|(known, _)| known == name) {
                None => env.push((name.clone(), value.clone())),
                Some((_, known)) if name == "PATH" && known == usual => value.clone_into(known),
                Some(_) => {}
            }
        }
        env
    }

    /// Gives a stage its own limits, where they differ from what is in force.
    pub async fn adjust(&self, wanted: &Limits, stage: Stage) {
        let mut now = self.limits.lock().await;
        if now.must_change(wanted, stage) {
            self.update(wanted).await;
            let limits = *wanted;
            *now = InForce { limits, stage };
        }
    }

    pub async fn limit(&self, wanted: Limits) {
        let mut now = self.limits.lock().await;
        self.update(&wanted).await;
        *now = InForce::new(wanted);
    }

    /// A container that cannot have the new limits is ended.
    async fn update(&self, limits: &Limits) {
        let whole = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let body = ContainerUpdateBody {
            memory: Some(whole(limits.memory_bytes)),
            memory_swap: Some(whole(limits.memory_bytes)),
            nano_cpus: Some(nanos(limits)),
            cpu_shares: limits.cpu_shares.map(i64::from),
            pids_limit: Some(whole(limits.processes) + 1),
            ..ContainerUpdateBody::default()
        };
        let client = &self.docker.client;
        if client.update_container(&self.id, body).await.is_err() {
            self.end().await;
        }
    }

    /// Kills the container.
    pub async fn end(&self) {
        let client = &self.docker.client;
        let _ = client
            .kill_container(&self.id, None::<KillContainerOptions>)
            .await;
        self.link.hang_up();
    }

    /// What it used so far, as counted by the kernel; of another machine's, as last heard.
    pub fn counters(&self) -> Counters {
        match &self.meter {
            Some(meter) => meter.read(),
            None => *self.stats.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    pub fn memory(&self) -> u64 {
        let meter = self.meter.as_ref();
        meter.map_or_else(|| self.counters().memory, belljar_jail::Meter::memory)
    }

    /// The same, asking where it has to be asked for.
    pub async fn fresh_counters(&self) -> Counters {
        if self.meter.is_none() {
            self.refresh().await;
        }
        self.counters()
    }

    /// Asks the engine what the container uses.
    async fn refresh(&self) {
        let options = StatsOptionsBuilder::default()
            .stream(false)
            .one_shot(true)
            .build();
        let mut stats = std::pin::pin!(self.docker.client.stats(&self.id, Some(options)));
        let Some(Ok(found)) = stats.next().await else {
            return;
        };
        let cpu = found.cpu_stats.and_then(|cpu| cpu.cpu_usage);
        let memory = found.memory_stats.unwrap_or_default();
        let pids = found.pids_stats.and_then(|pids| pids.current).unwrap_or(0);
        let mut known = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        let usage = memory.usage.unwrap_or(0);
        known.cpu_micros = cpu.and_then(|cpu| cpu.total_usage).unwrap_or(0) / 1000;
        known.memory = usage;
        known.memory_peak = memory
            .max_usage
            .unwrap_or(0)
            .max(usage)
            .max(known.memory_peak);
        // The agent is one that the caller's limit does not count.
        known.processes = pids.saturating_sub(1);
        known.processes_peak = known.processes_peak.max(known.processes);
        known.oom_kills = self.news.borrow().oom_kills;
    }

    /// Looks again in a while, without waiting for it.
    pub fn refresh_later(self: &Arc<Self>) {
        let inside = Arc::clone(self);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if inside.meter.is_none() {
                    inside.refresh().await;
                }
                let used = inside.link.ask(super::files::op::USED, &[]).await;
                if let Ok(bytes) = used
                    && let Some((used, _)) = super::wire::long(&bytes)
                {
                    inside.note_used(used);
                }
            });
        }
    }

    pub fn note_used(&self, bytes: u64) {
        self.used.store(bytes, Ordering::Relaxed);
    }

    /// Bytes in the workspace and `/tmp`, as last heard.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// How many processes the kernel has killed for want of memory since then. Where the engine tells that, it is waited for a
    /// moment if something was killed.
    pub async fn oom_kills_since(&self, before: u64, killed: bool) -> u64 {
        if let Some(meter) = &self.meter {
            return meter.read_brief().oom_kills.saturating_sub(before);
        }
        let mut news = self.news.clone();
        if killed {
            let more = news.wait_for(|news| news.oom_kills > before);
            let _ = tokio::time::timeout(OOM_NEWS_TIME, more).await;
        }
        self.refresh().await;
        self.news.borrow().oom_kills.saturating_sub(before)
    }

    /// What has been told of the container so far.
    pub fn told(&self) -> News {
        *self.news.borrow()
    }

    /// How a command ended whose container has gone. `before` is what had been told when it started.
    pub async fn lost(&self, started: Instant, before: News) -> Outcome {
        let mut news = self.news.clone();
        let dead = news.wait_for(|news| news.dead);
        let _ = tokio::time::timeout(NEWS_TIME, dead).await;
        gone(before, self.told(), started.elapsed())
    }
}

/// The end of a command between these two: what the kernel had killed before is not its business.
fn gone(before: News, now: News, time: Duration) -> Outcome {
    Outcome {
        exit: Exit::Killed,
        timed_out: false,
        oom_kills: now.oom_kills.saturating_sub(before.oom_kills),
        wall_micros: micros(time),
        cpu_micros: None,
        memory_peak: None,
        processes_peak: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_compiler_was_given_is_taken_back() {
        let limits = |cpus, processes| Limits {
            timeout_ms: 1000,
            memory_bytes: 1 << 30,
            cpus,
            processes,
            output_bytes: 1000,
            disk_bytes: 1 << 20,
            open_files: 64,
            cpu_shares: None,
        };
        let run = limits(0.25, 16);
        let compile = limits(2.0, 256);
        let made = InForce::new(run);
        assert!(!made.must_change(&run, Stage::Run));
        assert!(
            !made.must_change(&limits(1.0, 16), Stage::Run),
            "beside others"
        );
        assert!(made.must_change(&compile, Stage::Compile));
        let compiling = InForce {
            limits: compile,
            stage: Stage::Compile,
        };
        assert!(compiling.must_change(&run, Stage::Run));
        assert!(!compiling.must_change(&compile, Stage::Run));
    }

    #[test]
    fn what_was_killed_before_a_command_is_not_its_end() {
        let news = |oom_kills, dead| News { oom_kills, dead };
        let ended = |before, now| gone(before, now, Duration::ZERO).oom_kills;
        assert_eq!(ended(news(2, false), news(2, true)), 0);
        assert_eq!(ended(news(2, false), news(3, true)), 1);
        assert_eq!(ended(News::default(), news(1, true)), 1);
    }
}
