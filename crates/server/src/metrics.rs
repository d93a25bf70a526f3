//! Numbers for Prometheus.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use belljar::Totals;
use belljar_spec::{Error, RunResult};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RunLabels {
    status: String,
    language: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StageLabels {
    stage: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Direction {
    direction: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PoolLabels {
    pool: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HttpLabels {
    method: String,
    route: String,
    status: u16,
}

/// Why requests are sent away. Each is there from the start: what appears with its first one is no growth to whoever watches.
const REASONS: [&str; 13] = [
    "archives",
    "bodies",
    "connections",
    "installs",
    "large_bodies",
    "listings",
    "memory",
    "queue_full",
    "queue_timeout",
    "rate",
    "runs_at_once",
    "sandboxes",
    "uploads",
];

/// Cheap to clone: all clones count together.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    runs: Family<RunLabels, Counter>,
    stages: Family<StageLabels, Histogram>,
    rejections: Family<Reason, Counter>,
    requests: Family<HttpLabels, Counter>,
    egress: Family<Outcome, Counter>,
    traffic: Family<Direction, Counter>,
    pub running: Gauge,
    pub terminals: Gauge,
    pub waiting: Gauge,
    pub sandboxes: Gauge,
    pub evicted: Counter,
    pool: Gauge,
    depth: Family<PoolLabels, Gauge>,
    pub connections: Gauge,
    pub busy_seconds: Counter<f64, AtomicU64>,
}

impl Metrics {
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("belljar");
        // From a tenth of a millisecond to about seven minutes.
        let stages: Family<StageLabels, Histogram> =
            Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.0001, 2.0, 23)));
        let (runs, requests) = (Family::default(), Family::default());
        let rejections = Family::<Reason, Counter>::default();
        for reason in REASONS {
            drop(rejections.get_or_create(&Reason { reason }));
        }
        let gauge = |registry: &mut Registry, name: &str, help: &str| {
            let gauge = Gauge::default();
            registry.register(name, help, gauge.clone());
            gauge
        };
        registry.register(
            "runs",
            "Runs that ended, by status and language",
            runs.clone(),
        );
        registry.register_with_unit(
            "stage",
            "Time of each stage of a run: waiting for room, start, the run itself",
            Unit::Seconds,
            stages.clone(),
        );
        registry.register(
            "rejections",
            "Requests sent away with 429",
            rejections.clone(),
        );
        registry.register("requests", "HTTP requests", requests.clone());
        let (egress, traffic) = (Family::default(), Family::default());
        registry.register(
            "egress_connections",
            "Connections that sandboxes tried to make",
            egress.clone(),
        );
        registry.register_with_unit(
            "egress",
            "What passed through them",
            Unit::Bytes,
            traffic.clone(),
        );
        let evicted = Counter::default();
        registry.register(
            "evictions",
            "Sandboxes that were ended because they grew, with nothing running in them, beyond what there is for all",
            evicted.clone(),
        );
        let depth = Family::default();
        registry.register(
            "pool_depth",
            "Pristine sandboxes that are ready, by pool",
            depth.clone(),
        );
        let busy_seconds = Counter::<f64, AtomicU64>::default();
        registry.register_with_unit(
            "sandbox_cpu",
            "CPU time of runs that ended",
            Unit::Seconds,
            busy_seconds.clone(),
        );
        Self {
            running: gauge(&mut registry, "running", "Runs that are going"),
            terminals: gauge(&mut registry, "terminals", "Terminals that are open"),
            waiting: gauge(&mut registry, "waiting", "Runs that wait for room"),
            sandboxes: gauge(&mut registry, "sandboxes", "Sandboxes that are kept"),
            pool: gauge(&mut registry, "pool", "Pristine sandboxes that are ready"),
            connections: gauge(&mut registry, "connections", "Open connections"),
            registry: Arc::new(registry),
            runs,
            stages,
            rejections,
            requests,
            egress,
            traffic,
            depth,
            evicted,
            busy_seconds,
        }
    }

    fn stage(&self, stage: &'static str, seconds: f64) {
        self.stages
            .get_or_create(&StageLabels { stage })
            .observe(seconds);
    }

    pub fn waited(&self, time: Duration) {
        self.stage("queue", time.as_secs_f64());
    }

    pub fn ran(&self, result: &RunResult) {
        self.stage("start", result.usage.start_ms / 1000.0);
        self.stage("run", result.usage.wall_ms / 1000.0);
        let cpu_ms = result.usage.cpu_ms.unwrap_or(0.0);
        self.busy_seconds.inc_by(cpu_ms / 1000.0);
        self.ended(
            &crate::history::status_name(result.status),
            &result.language,
        );
    }

    pub fn ended(&self, status: &str, language: &str) {
        let labels = RunLabels {
            status: status.into(),
            language: language.into(),
        };
        self.runs.get_or_create(&labels).inc();
    }

    /// How many are ready in each pool that there is now.
    pub fn set_pools(&self, pools: Vec<(String, usize)>) {
        let count = |ready: usize| i64::try_from(ready).unwrap_or(i64::MAX);
        self.pool
            .set(count(pools.iter().map(|(_, ready)| ready).sum()));
        self.depth.clear();
        for (pool, ready) in pools {
            let labels = PoolLabels { pool };
            self.depth.get_or_create(&labels).set(count(ready));
        }
    }

    pub fn rejected(&self, reason: &'static str) {
        self.rejections.get_or_create(&Reason { reason }).inc();
    }

    /// `route` is the pattern, so that there are only so many.
    pub fn answered(&self, method: &str, route: &str, status: u16) {
        let method = match method {
            "GET" | "PUT" | "POST" | "PATCH" | "DELETE" | "HEAD" => method,
            _ => "other",
        };
        let labels = HttpLabels {
            method: method.into(),
            route: route.into(),
            status,
        };
        self.requests.get_or_create(&labels).inc();
    }

    /// What the engine has counted since it was started.
    pub fn set_traffic(&self, totals: Totals) {
        for (outcome, count) in [("allowed", totals.allowed), ("refused", totals.refused)] {
            let counter = self.egress.get_or_create(&Outcome { outcome });
            counter.inner().store(count, Ordering::Relaxed);
        }
        for (direction, bytes) in [
            ("sent", totals.bytes_sent),
            ("received", totals.bytes_received),
        ] {
            let counter = self.traffic.get_or_create(&Direction { direction });
            counter.inner().store(bytes, Ordering::Relaxed);
        }
    }

    pub fn text(&self) -> Result<String, Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry).map_err(|error| Error::internal("metrics", error))?;
        Ok(text)
    }
}
