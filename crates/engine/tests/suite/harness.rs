//! A session that is easy to use.

use std::sync::Arc;

use belljar::runtime::{LanguageHint, Registry, Toolchain, discover};
use belljar::{Engine, Pool, PoolConfig, Session};
use belljar_spec::{CodeRequest, RunEvent, RunResult, SandboxRequest};

pub fn toolchain(language: Option<&str>) -> Arc<Toolchain> {
    let registry = Registry::load().expect("manifests");
    let hint = LanguageHint {
        language,
        file_name: None,
    };
    Arc::new(discover(registry.find(&hint).expect("language")).expect("toolchain"))
}

pub async fn open(engine: &Engine, request: SandboxRequest) -> Session {
    let toolchain = toolchain(request.language.as_deref());
    Session::open(engine, toolchain, request)
        .await
        .expect("session")
}

pub async fn pool(engine: &Engine, config: PoolConfig) -> Pool {
    pool_of(engine, SandboxRequest::default(), config).await
}

pub async fn pool_of(engine: &Engine, request: SandboxRequest, config: PoolConfig) -> Pool {
    let toolchain = toolchain(request.language.as_deref());
    Pool::start(engine, toolchain, request, config)
        .await
        .expect("pool")
}

/// Waits until as many sessions wait in it.
pub async fn fills_to(pool: &Pool, count: usize) {
    for _ in 0..6_000 {
        if pool.ready() == count {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(pool.ready(), count, "{:?}", pool.trouble());
}

/// A session of another language.
pub async fn speaking(engine: &Engine, language: &str) -> Session {
    let request = SandboxRequest {
        language: Some(language.into()),
        ..SandboxRequest::default()
    };
    open(engine, request).await
}

pub async fn python(engine: &Engine) -> Session {
    open(engine, SandboxRequest::default()).await
}

pub async fn run(session: &Session, code: &str) -> RunResult {
    run_request(session, &CodeRequest::new(code)).await
}

pub async fn run_request(session: &Session, request: &CodeRequest) -> RunResult {
    let mut silent = |_: RunEvent| {};
    session.run(request, &mut silent).await.expect("a result")
}

/// Waits until no more than `count` processes are left: what was killed takes a moment to go.
pub async fn settles_at(session: &Session, count: u64) {
    let processes = || session.usage().expect("cgroups").processes;
    for _ in 0..6_000 {
        if processes() == count {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(processes(), count);
}
