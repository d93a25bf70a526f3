//! A single run of code that needs more of its interpreter than a script does: it goes through the language's kernel.

use std::sync::Arc;

use belljar_spec::{
    CodeRequest, Error, Filesystem, RunEvent, RunRequest, RunResult, SandboxRequest,
};

use crate::engine::Engine;
use crate::files::{InputFile, Snapshot, Source, copy_out};
use crate::output::{Sink, Stream};
use crate::run::Task;
use crate::session::Session;

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
    let mut toolchain = task.toolchain.clone();
    task.main.clone_into(&mut toolchain.main);
    let toolchain = Arc::new(toolchain);
    let sandbox = SandboxRequest::of_run(&request);
    let session = Session::open(engine, toolchain, sandbox).await?;
    let place = session.sandbox();
    let own = (request.filesystem == Filesystem::Workspace).then(|| InputFile {
        destination: task.main.to_owned(),
        content: Source::Bytes(request.code.clone().into_bytes()),
    });
    for file in own.into_iter().chain(task.files) {
        place.put(file).await?;
    }
    let before = Snapshot::of(&place.walk().await?.0);
    let code = CodeRequest {
        code: request.code,
        args: request.args,
        globals: request.globals,
        ..CodeRequest::default()
    };
    let mut observer = |event: RunEvent| match event {
        RunEvent::Stdout(bytes) => sink.output(Stream::Stdout, &bytes),
        RunEvent::Stderr(bytes) => sink.output(Stream::Stderr, &bytes),
        RunEvent::Display(_) | RunEvent::ToolCall(_) | RunEvent::Result(_) => {}
    };
    let run = session.run_last(&code, task.stdin, task.received, &mut observer);
    let mut result = run.await?;
    result.id = task.id;
    let mut collected = before.changes(place.walk().await?);
    if let Some(to) = &task.output_dir {
        collected.complete &= copy_out(&place, &collected, to, result.limits.disk_bytes).await?;
    }
    result.files = collected.listing();
    result.files_truncated = !collected.complete;
    Ok(result)
}
