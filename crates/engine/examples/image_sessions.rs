//! Measures sessions from an image beside sessions from the host; `bench/images.py` prepares the image and compares.
//!
//! Takes a state directory, an image's name and a number of rounds. Prints one JSON object with latencies in milliseconds.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar::image::Store;
use belljar::runtime::{LanguageHint, Registry, Toolchain, discover};
use belljar::{Engine, Pool, PoolConfig, Session};
use belljar_spec::{CodeRequest, RunEvent, SandboxRequest};
use serde_json::{Value, json};

type Failure = Box<dyn std::error::Error>;

/// Rounds that do not count: they find nothing warm.
const FIRST: usize = 5;

fn main() -> Result<(), Failure> {
    let starting = Engine::start()?;
    let mut args = std::env::args().skip(1);
    let mut next = |what: &str| args.next().ok_or_else(|| format!("give {what}"));
    let (state, name) = (next("a state directory")?, next("an image")?);
    let rounds: usize = next("a number of rounds")?.parse()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async move {
        let engine = starting.finish()?;
        let registry = Registry::load()?;
        let manifest = registry.find(&LanguageHint::default())?;
        let image = Arc::new(Store::open(Path::new(&state))?.image(&name)?);
        let host = Arc::new(discover(manifest)?);
        let image = Arc::new(engine.toolchain_in(&image, manifest, &[]).await?);
        println!("{}", measure(&engine, &[host, image], rounds).await?);
        engine.shut_down().await;
        Ok(())
    })
}

async fn measure(
    engine: &Engine,
    toolchains: &[Arc<Toolchain>; 2],
    rounds: usize,
) -> Result<Value, Failure> {
    let mut pools = Vec::new();
    for toolchain in toolchains {
        for ready in [2, 0] {
            let config = PoolConfig {
                ready,
                ..PoolConfig::default()
            };
            let request = SandboxRequest::default();
            pools.push(Pool::start(engine, Arc::clone(toolchain), request, config).await?);
        }
    }
    let mut times = [[vec![], vec![]], [vec![], vec![]], [vec![], vec![]]];
    for round in 0..rounds + FIRST {
        for turn in 0..2 {
            // Each comes first as often as the other.
            let which = (turn + round) % 2;
            let (shelf, workshop) = (&pools[2 * which], &pools[2 * which + 1]);
            while shelf.ready() < 2 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
            let took = [
                timed(shelf.take(SandboxRequest::default())).await?,
                timed(workshop.take(SandboxRequest::default())).await?,
                // Cold ones take long; fewer will do.
                if round % 4 == 0 {
                    let toolchain = Arc::clone(&toolchains[which]);
                    timed(Session::open(engine, toolchain, SandboxRequest::default())).await?
                } else {
                    0.0
                },
            ];
            for (kind, took) in took.into_iter().enumerate() {
                if round >= FIRST && took > 0.0 {
                    times[kind][which].push(took);
                }
            }
        }
    }
    let both = |[host, image]: &[Vec<f64>; 2]| json!({ "host": host, "image": image });
    let trouble: Vec<_> = pools.iter().filter_map(Pool::trouble).collect();
    Ok(json!({
        "pooled": both(&times[0]), "on_demand": both(&times[1]), "cold": both(&times[2]), "trouble": trouble,
    }))
}

/// From nothing to the answer of the first line.
async fn timed(
    session: impl Future<Output = Result<Session, belljar_spec::Error>>,
) -> Result<f64, Failure> {
    let mut silent = |_: RunEvent| {};
    let started = Instant::now();
    let session = session.await?;
    let result = session.run(&CodeRequest::new("1 + 1"), &mut silent).await?;
    let took = started.elapsed().as_secs_f64() * 1000.0;
    assert_eq!(result.value, Some(2.into()), "{:?}", result.error);
    drop(session);
    tokio::time::sleep(Duration::from_millis(10)).await;
    Ok(took)
}
