//! Keeps an engine busy with sessions until it is told to stop by the end of its standard input. For `chaos/run.py`.
//!
//! Whatever dies meanwhile, it goes on as long as its keeper lives: an error of one session is no error of another. A number as
//! its argument says how many idle sessions it has besides.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use belljar::runtime::{LanguageHint, Registry, discover};
use belljar::{Engine, Pool, PoolConfig};
use belljar_spec::{CodeRequest, CommandRequest, RunEvent, SandboxRequest};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const CLIENTS: usize = 4;
const CODES: [&str; 5] = [
    "x = 1\nx + 1",
    "import subprocess; subprocess.run(['sleep', '0.05'])",
    "open('a', 'w').write('x' * 10000)",
    "import time; time.sleep(0.05)",
    "sum(range(200000))",
];

fn main() -> Result<(), Failure> {
    let starting = Engine::start()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let engine = runtime.block_on(async { starting.finish() })?;
    let toolchain = Arc::new(discover(Registry::load()?.find(&LanguageHint::default())?)?);
    let pool = Pool::start(
        &engine,
        toolchain,
        SandboxRequest::default(),
        PoolConfig::default(),
    );
    let pool = Arc::new(runtime.block_on(pool)?);
    let crowd = std::env::args().nth(1).map_or(Ok(0), |n| n.parse())?;
    let mut idle = Vec::new();
    for _ in 0..crowd {
        idle.push(runtime.block_on(pool.take(SandboxRequest::default()))?);
    }
    for client in 0..CLIENTS {
        let pool = Arc::clone(&pool);
        runtime.spawn(async move {
            for round in client.. {
                if use_one(&pool, round).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        });
    }
    println!("ready");
    let _ = std::io::stdin().read(&mut [0]);
    drop((pool, idle));
    runtime.block_on(engine.shut_down());
    Ok(())
}

async fn use_one(pool: &Pool, round: usize) -> Result<(), Failure> {
    let session = pool.take(SandboxRequest::default()).await?;
    let mut silent = |_: RunEvent| {};
    for code in CODES.iter().cycle().skip(round).take(2) {
        session.run(&CodeRequest::new(*code), &mut silent).await?;
    }
    if round.is_multiple_of(4) {
        let command = CommandRequest {
            shell: Some("sleep 0.02 & ls".into()),
            ..CommandRequest::default()
        };
        session.command(&command, &mut silent).await?;
    }
    Ok(())
}
