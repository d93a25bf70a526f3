//! The engine as a library. Its keeper is forked before there are threads, so these tests have a `main` of their own.
#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]

mod suite;

use std::process::ExitCode;
use std::sync::Arc;

use belljar::Engine;
use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let starting = Engine::start().expect("a keeper");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let engine = runtime
        .block_on(async { starting.finish() })
        .expect("an engine");
    let runtime = Arc::new(runtime);
    let trials = suite::all()
        .into_iter()
        .map(|(name, test)| {
            let (runtime, engine) = (Arc::clone(&runtime), engine.clone());
            Trial::test(name, move || {
                runtime.block_on(test(engine));
                Ok(())
            })
        })
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
