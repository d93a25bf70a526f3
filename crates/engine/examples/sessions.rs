//! Measures sessions from inside the engine's process; `bench/sessions.py` puts the figures beside those of bare interpreters.
//!
//! Prints one JSON object; times are in milliseconds, in the order in which they were taken. Each round does everything once,
//! with pauses in which the shelf fills up again, so that what else the machine does falls on all alike.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use belljar::runtime::{LanguageHint, Registry, Toolchain, discover};
use belljar::{Engine, Pool, PoolConfig, Session};
use belljar_spec::{Amount, CodeRequest, LimitsPatch, SandboxRequest};
use serde_json::{Map, Value, json};

const PYTHON: &str = "/usr/bin/python3";
const CLIENTS: usize = 8;
const READY: usize = 4;
/// Rounds that find nothing warm yet, and do not count.
const COLD: usize = 5;
const PAUSE: Duration = Duration::from_millis(30);
/// Runs in a live session, one after the other: the first finds nothing of it in the processor's caches.
const IN_A_ROW: usize = 4;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let starting = Engine::start()?;
    let mut args = std::env::args().skip(1);
    let mut number = |otherwise| args.next().map_or(Ok(otherwise), |text| text.parse());
    let (rounds, seconds, crowd) = (number(100)?, number(2)?, number(2000)?);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    // On the runtime's own threads, like a service: the main thread would be one more to wake for each event.
    let measured = runtime.spawn(async move {
        let engine = starting.finish()?;
        let bench = Bench::new(&engine)?;
        let mut figures = Map::new();
        eprintln!("latencies …");
        Box::pin(bench.latencies(rounds, &mut figures)).await?;
        eprintln!("throughput …");
        bench.throughput(seconds as u64, &mut figures).await?;
        eprintln!("preloaded …");
        bench.preloaded(rounds.min(20), &mut figures).await?;
        eprintln!("neighbours …");
        bench.neighbours(rounds, &mut figures).await?;
        // A virtual machine gets memory from its host when it first touches it, which takes longer than all the rest: only the
        // second crowd is about us.
        for name in ["first_crowd", "crowd"] {
            eprintln!("{name} …");
            figures.insert(name.into(), bench.crowd(crowd).await?);
        }
        println!("{}", Value::Object(figures));
        Ok(())
    });
    runtime.block_on(measured)?
}

struct Bench {
    engine: Engine,
    toolchain: Arc<Toolchain>,
}

impl Bench {
    fn new(engine: &Engine) -> Result<Self, Failure> {
        let registry = Registry::load()?;
        let python = discover(registry.find(&LanguageHint::default())?)?;
        Ok(Self {
            engine: engine.clone(),
            toolchain: Arc::new(python),
        })
    }

    async fn pool(&self, ready: usize, preload: &[&str]) -> Result<Pool, Failure> {
        let config = PoolConfig {
            ready,
            preload: preload.iter().map(ToString::to_string).collect(),
            ..PoolConfig::default()
        };
        let toolchain = Arc::clone(&self.toolchain);
        let pool = Pool::start(&self.engine, toolchain, SandboxRequest::default(), config).await?;
        match pool.trouble() {
            Some(trouble) => Err(format!("no warm interpreter: {trouble}").into()),
            None => Ok(pool),
        }
    }

    /// A bare interpreter, a sandbox from the shelf, one made on demand, runs in a live one: in each round.
    async fn latencies(&self, rounds: usize, out: &mut Map<String, Value>) -> Result<(), Failure> {
        let pool = self.pool(READY, &[]).await?;
        let live = pool.take(SandboxRequest::default()).await?;
        let mut times: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for round in 0..rounds + COLD {
            filled(&pool).await;
            let mut took = vec![
                ("bare", timed(async { bare_python() }).await?),
                ("pooled", fresh(&pool, SandboxRequest::default()).await?),
            ];
            let made = Box::pin(paused(fresh(&pool, unusual()))).await?;
            took.push(("on_demand", made));
            tokio::time::sleep(PAUSE).await;
            for number in 0..IN_A_ROW {
                let name = if number == 0 {
                    "live_after_a_pause"
                } else {
                    "live"
                };
                let run = timed(async { run(&live, "1 + 1").await });
                took.push((name, Box::pin(run).await?));
            }
            if round >= COLD {
                for (name, one) in took {
                    times.entry(name).or_default().push(one);
                }
            }
        }
        for (name, times) in times {
            out.insert(name.into(), json!(times));
        }
        Ok(())
    }

    /// Fresh sandboxes, and bare interpreters, per second with several clients; in turns.
    async fn throughput(&self, seconds: u64, out: &mut Map<String, Value>) -> Result<(), Failure> {
        let pool = Arc::new(self.pool(CLIENTS, &[]).await?);
        let span = Duration::from_secs(seconds).div_f64(2.0);
        let (mut bare, mut sandboxes) = (Vec::new(), Vec::new());
        for _ in 0..4 {
            let work = || async { tokio::task::spawn_blocking(bare_python).await? };
            bare.push(per_second(span, work).await?);
            let shared = &pool;
            let work = move || {
                let pool = Arc::clone(shared);
                async move { fresh(&pool, SandboxRequest::default()).await.map(drop) }
            };
            sandboxes.push(per_second(span, work).await?);
        }
        out.insert("bare_per_second".into(), json!(bare));
        out.insert("fresh_per_second".into(), json!(sandboxes));
        Ok(())
    }

    /// The first data frame in a fresh sandbox whose interpreter was copied with pandas in it.
    async fn preloaded(&self, rounds: usize, out: &mut Map<String, Value>) -> Result<(), Failure> {
        let pool = self.pool(1, &["pandas"]).await?;
        let code = "import pandas as pd\nint(pd.DataFrame({'a': range(100), 'b': 1}).groupby('b').a.sum()[1])";
        let mut times = Vec::new();
        for _ in 0..rounds {
            filled(&pool).await;
            let session = pool.take(SandboxRequest::default()).await?;
            let started = Instant::now();
            let value = run(&session, code).await?;
            times.push(started.elapsed().as_secs_f64() * 1000.0);
            if value != json!(4950) {
                return Err(format!("pandas said {value}").into());
            }
        }
        out.insert("first_data_frame".into(), json!(times));
        Ok(())
    }

    /// Runs in a live session: alone, and beside sandboxes that misbehave.
    async fn neighbours(&self, rounds: usize, out: &mut Map<String, Value>) -> Result<(), Failure> {
        const BOMBS: [(&str, &str); 4] = [
            ("alone", ""),
            (
                "fork_bomb",
                "import os\nwhile True:\n try: os.fork()\n except OSError: pass",
            ),
            (
                "memory_bomb",
                "a = []\nwhile True: a.append(bytearray(1 << 20))",
            ),
            (
                "output_flood",
                "import os\nwhile True: os.write(1, b'x' * 65536)",
            ),
        ];
        let pool = self.pool(1, &[]).await?;
        let live = pool.take(SandboxRequest::default()).await?;
        let mut all = Map::new();
        for (name, bomb) in BOMBS {
            eprintln!("  {name}");
            let noise = pool.take(SandboxRequest::default()).await?;
            let stop = Arc::new(AtomicUsize::new(0));
            let told = Arc::clone(&stop);
            let noise = tokio::spawn(async move {
                while !bomb.is_empty() && told.load(Ordering::Relaxed) == 0 {
                    let mut request = CodeRequest::new(bomb);
                    request.limits.timeout_ms = Some(Amount::Integer(500));
                    if noise.run(&request, &mut ()).await.is_err() {
                        break;
                    }
                }
            });
            tokio::time::sleep(PAUSE).await;
            let mut times = Vec::new();
            for _ in 0..rounds * 2 {
                times.push(timed(async { run(&live, "sum(range(1000))").await }).await?);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            stop.store(1, Ordering::Relaxed);
            noise.await?;
            all.insert(name.into(), json!(times));
        }
        out.insert("neighbour".into(), Value::Object(all));
        Ok(())
    }

    /// Many live sessions at once: how long each took to be made, and what each idle one holds.
    async fn crowd(&self, count: usize) -> Result<Value, Failure> {
        let before = descendants(std::process::id()).len();
        let pool = self.pool(0, &[]).await?;
        let mut sessions = Vec::with_capacity(count);
        let mut times = Vec::new();
        for _ in 0..count {
            let started = Instant::now();
            let session = pool.take(SandboxRequest::default()).await?;
            run(&session, "x = 1").await?;
            times.push(started.elapsed().as_secs_f64() * 1000.0);
            sessions.push(session);
        }
        let pss: u64 = descendants(std::process::id())
            .iter()
            .map(|&pid| pss_kilobytes(pid))
            .sum();
        drop((sessions, pool));
        let until = Instant::now() + Duration::from_mins(1);
        while descendants(std::process::id()).len() > before && Instant::now() < until {
            tokio::time::sleep(PAUSE).await;
        }
        Ok(json!({ "made": times, "pss_kb": pss / count.max(1) as u64 }))
    }
}

/// Does not fit what waits on the shelf, so that it is made now.
fn unusual() -> SandboxRequest {
    SandboxRequest {
        limits: LimitsPatch {
            processes: Some(Amount::Integer(77)),
            ..LimitsPatch::default()
        },
        ..SandboxRequest::default()
    }
}

/// From the request to the result of a first run, in a sandbox of its own.
async fn fresh(pool: &Pool, request: SandboxRequest) -> Result<f64, Failure> {
    let started = Instant::now();
    let session = pool.take(request).await?;
    let value = run(&session, "1 + 1").await?;
    let took = started.elapsed().as_secs_f64() * 1000.0;
    (value == json!(2))
        .then_some(took)
        .ok_or_else(|| format!("1 + 1 was {value}").into())
}

async fn run(session: &Session, code: &str) -> Result<Value, Failure> {
    let result = session.run(&CodeRequest::new(code), &mut ()).await?;
    match result.error {
        Some(error) => Err(format!("{}: {}", error.kind, error.message).into()),
        None => Ok(result.value.unwrap_or_default()),
    }
}

async fn filled(pool: &Pool) {
    let until = Instant::now() + Duration::from_secs(5);
    while pool.ready() < pool.wanted() && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(PAUSE).await;
}

async fn paused<T>(what: impl Future<Output = T>) -> T {
    tokio::time::sleep(PAUSE).await;
    what.await
}

async fn timed<T>(what: impl Future<Output = Result<T, Failure>>) -> Result<f64, Failure> {
    let started = Instant::now();
    what.await?;
    Ok(started.elapsed().as_secs_f64() * 1000.0)
}

async fn per_second<W: Future<Output = Result<(), Failure>> + Send + 'static>(
    span: Duration,
    work: impl Fn() -> W,
) -> Result<f64, Failure> {
    let started = Instant::now();
    let mut done = 0_u32;
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        clients.spawn(work());
    }
    while let Some(finished) = clients.join_next().await {
        finished??;
        done += 1;
        if started.elapsed() < span {
            clients.spawn(work());
        }
    }
    Ok(f64::from(done) / started.elapsed().as_secs_f64())
}

fn bare_python() -> Result<(), Failure> {
    let run = Command::new(PYTHON)
        .args(["-c", "pass"])
        .stdin(Stdio::null())
        .status();
    run?.success()
        .then_some(())
        .ok_or_else(|| "bare Python failed".into())
}

/// All processes below this one, by their parents.
fn descendants(root: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid: u32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let parent = stat
                .rsplit_once(')')?
                .1
                .split_whitespace()
                .nth(1)?
                .parse()
                .ok()?;
            Some((pid, parent))
        })
        .collect();
    let mut found = vec![root];
    let mut next = 0;
    while next < found.len() {
        let above = found[next];
        found.extend(
            parents
                .iter()
                .filter(|(_, parent)| *parent == above)
                .map(|(pid, _)| *pid),
        );
        next += 1;
    }
    found.split_off(1)
}

fn pss_kilobytes(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    text.lines()
        .find_map(|line| {
            line.strip_prefix("Pss:")?
                .trim()
                .trim_end_matches(" kB")
                .parse()
                .ok()
        })
        .unwrap_or(0)
}
