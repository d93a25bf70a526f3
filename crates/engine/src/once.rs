//! A single run of code that needs more of its interpreter than a script does: it goes through the language's kernel.

use std::sync::Arc;

use belljar_spec::{Error, Filesystem, RunEvent, RunRequest, RunResult};

use crate::engine::Engine;
use crate::output::{Sink, Stream};
use crate::run::Task;
use crate::session::{Program, Session};

/// Whether a script could not have what is asked for.
pub(crate) fn needs_a_kernel(request: &RunRequest) -> bool {
    request.imports.is_some()
        || !request.globals.is_empty()
        || request.filesystem == Filesystem::None
}

pub(crate) async fn run(
    engine: &Engine,
    task: Task<'_>,
    sink: &mut dyn Sink,
) -> Result<RunResult, Error> {
    let request = task.request;
    let files_given = !task.files.is_empty() || task.output_dir.is_some();
    if request.filesystem == Filesystem::None && files_given {
        return Err(Error::InvalidRequest {
            field: "filesystem".into(),
            given: "none together with files".into(),
            accepted: "give no files and no directory for them, or give workspace".into(),
        });
    }
    let toolchain = Arc::new(task.toolchain.clone());
    let (place, code) = request.into_parts();
    let session = Session::open(engine, toolchain, place).await?;
    let program = Program {
        id: task.id,
        main: task.main,
        files: task.files,
        output_dir: task.output_dir,
        received: task.received,
        stop: &task.stop,
    };
    let mut observer = |event: RunEvent| match event {
        RunEvent::Stdout(bytes) => sink.output(Stream::Stdout, &bytes),
        RunEvent::Stderr(bytes) => sink.output(Stream::Stderr, &bytes),
        RunEvent::Display(_) | RunEvent::ToolCall(_) | RunEvent::Result(_) => {}
    };
    session
        .run_once(program, (&code, task.stdin), &mut observer)
        .await
}
