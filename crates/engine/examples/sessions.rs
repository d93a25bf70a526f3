//! Measures sessions from inside the engine's process; `bench/run.py` puts the figures beside those of bare interpreters.
//!
//! Prints one JSON object with latencies in milliseconds.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar::runtime::{LanguageHint, Registry, Toolchain, discover};
use belljar::{Engine, Pool, PoolConfig};
use belljar_spec::{CodeRequest, RunEvent, SandboxRequest};
use serde_json::{Value, json};

const PYTHON: &str = "/usr/bin/python3";

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let starting = Engine::start()?;
    let rounds = std::env::args()
        .nth(1)
        .map_or(Ok(100), |text| text.parse())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async move {
        let engine = starting.finish()?;
        let figures = measure(&engine, rounds).await?;
        println!("{figures}");
        Ok(())
    })
}

fn toolchain() -> Result<Arc<Toolchain>, Failure> {
    let registry = Registry::load();
    Ok(Arc::new(discover(
        registry.find(&LanguageHint::default())?,
    )?))
}

async fn measure(engine: &Engine, rounds: usize) -> Result<Value, Failure> {
    let toolchain = toolchain()?;
    let start = |ready| {
        let config = PoolConfig {
            ready,
            ..PoolConfig::default()
        };
        Pool::start(
            engine,
            Arc::clone(&toolchain),
            SandboxRequest::default(),
            config,
        )
    };
    let (shelf, workshop) = (start(2).await?, start(0).await?);
    let live = workshop.take(SandboxRequest::default()).await?;
    let code = CodeRequest::new("1 + 1");
    let mut silent = |_: RunEvent| {};
    let (mut bare, mut pooled, mut made, mut warm) = (vec![], vec![], vec![], vec![]);
    for round in 0..rounds + 5 {
        let mut times = [0.0; 4];
        times[0] = timed(async { bare_python() }).await.0;
        while shelf.ready() < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
        for (time, pool) in [(1, &shelf), (2, &workshop)] {
            let (took, result) = timed(async {
                let session = pool.take(SandboxRequest::default()).await?;
                let result = session.run(&code, &mut silent).await?;
                Ok::<_, Failure>((session, result))
            })
            .await;
            let (session, result) = result?;
            assert_eq!(result.value, Some(2.into()), "{:?}", result.error);
            drop(session);
            times[time] = took;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let (took, result) = timed(session_run(&live, &code)).await;
        result?;
        times[3] = took;
        // The first ones find nothing warm.
        if round >= 5 {
            bare.push(times[0]);
            pooled.push(times[1]);
            made.push(times[2]);
            warm.push(times[3]);
        }
    }
    Ok(
        json!({ "bare": bare, "pooled": pooled, "on_demand": made, "live": warm, "trouble": shelf.trouble() }),
    )
}

async fn session_run(session: &belljar::Session, code: &CodeRequest) -> Result<(), Failure> {
    let mut silent = |_: RunEvent| {};
    session.run(code, &mut silent).await?;
    Ok(())
}

fn bare_python() -> bool {
    let run = Command::new(PYTHON)
        .args(["-c", "pass"])
        .stdin(Stdio::null())
        .status();
    run.is_ok_and(|status| status.success())
}

async fn timed<T>(what: impl Future<Output = T>) -> (f64, T) {
    let started = Instant::now();
    let value = what.await;
    (started.elapsed().as_secs_f64() * 1000.0, value)
}
