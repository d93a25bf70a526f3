//! A session that is easy to use.

use std::sync::Arc;

use belljar::runtime::{LanguageHint, Registry, discover};
use belljar::{Engine, Session};
use belljar_spec::{CodeRequest, RunEvent, RunResult, SandboxRequest};

pub async fn open(engine: &Engine, request: SandboxRequest) -> Session {
    let registry = Registry::load();
    let hint = LanguageHint {
        language: request.language.as_deref(),
        file_name: None,
    };
    let toolchain = discover(registry.find(&hint).expect("language")).expect("toolchain");
    Session::open(engine, Arc::new(toolchain), request)
        .await
        .expect("session")
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
