//! A session for a single program: its interpreter may have waited for it, instead of having to be started.
//!
//! What code and caller see is what they would of a program that was executed: arguments, input, exit handlers, exit
//! code. The process is not waited for once its kernel has said that all of that is over: the sandbox is ended, at the latest
//! before files are collected.

use std::time::Instant;

use belljar_jail::Signal;
use belljar_spec::{CodeRequest, Error, RunId, RunResult, State, source_of};

use super::live::Order;
use super::running::End;
use super::{Observer, Session};
use crate::clock;
use crate::command::Stdin;
use crate::covered;
use crate::failure;
use crate::files::{InputFile, Snapshot, Source, copy_out};
use crate::output_dir::OutputDirectory;
use crate::stop::Stop;

/// What makes code a program.
pub struct Program<'a> {
    pub id: RunId,
    /// What the code's file is called in the workspace.
    pub main: &'a str,
    /// Others besides those that the sandbox was made with.
    pub files: Vec<InputFile>,
    /// Where to copy the files that the code wrote.
    pub output_dir: Option<&'a OutputDirectory>,
    /// When the request came in.
    pub received: Instant,
    /// What ends it before its time.
    pub stop: &'a Stop,
}

impl Session {
    /// Runs a whole program, after which this session must not be used again. Dropping the future ends the program.
    pub async fn run_once(
        &self,
        program: Program<'_>,
        (code, stdin): (&CodeRequest, Stdin),
        observer: &mut dyn Observer,
    ) -> Result<RunResult, Error> {
        code.check()?;
        super::ability::check_run(&self.toolchain, code, &stdin)?;
        let started_at = clock::now();
        let (volumes, workdir) = (&self.request.volumes, &self.plan.workdir);
        covered::check_main(volumes, workdir, program.main)?;
        covered::check_files(volumes, workdir, covered::destinations(&program.files))?;
        let limits = self.run_limits(&code.limits)?;
        let mut live = self.live.lock().await;
        let (mut kernel, fresh) = self.kernel(&mut live).await?;
        let (_program, is_alone) = self.engine.begin_program();
        // Where others run too there is no core that sleeps.
        if is_alone {
            kernel.announce()?;
        }
        let sandbox = self.sandbox();
        let own = self.files_allowed().then(|| InputFile {
            destination: program.main.to_owned(),
            content: Source::Bytes(source_of(&code.code).as_bytes().to_vec()),
        });
        for file in own.into_iter().chain(program.files) {
            sandbox.put(file).await?;
        }
        let before = Snapshot::of(sandbox.walk().await?.0);
        let script = format!("{}/{}", self.plan.workdir.to_string_lossy(), program.main);
        let order = Order {
            id: program.id,
            code,
            stdin,
            stop: program.stop,
            tools: code.tools.as_deref().unwrap_or_default(),
            script: Some(&script),
            fresh,
            greeted: live.greeted,
            is_alone,
            limits,
            received: program.received,
        };
        let ended = self.conduct(&sandbox, &mut kernel, order, observer).await?;
        let mut result =
            self.program_result(program.id, &sandbox, None, Some(ended.finished), limits);
        program.stop.tell(&mut result);
        result.started_at = started_at;
        result.state = State::None;
        sandbox.settle().await;
        (result.connections, result.connections_omitted) = self.log.all();
        let (claim, is_over) = match ended.end {
            End::Done(done) => (Some(done), false),
            _ => (ended.done, true),
        };
        ended.shown.fill_script(&mut result, claim);
        let mut collected = before.changes(sandbox.walk_after().await?);
        // What the code has left running may still write. It is ended where there is something to collect, and just there: that takes time.
        let is_nothing = collected.files.is_empty() && collected.complete;
        if !is_over && !is_nothing {
            kernel.signal(Signal::Kill)?;
            kernel.ended().await?;
            collected = before.changes(sandbox.walk_after().await?);
        }
        if let Some(to) = program.output_dir {
            collected.complete &= copy_out(&sandbox, &collected, to, limits.disk_bytes).await;
        }
        let (files, complete) = collected.listing_with(&sandbox, &code.collect).await;
        result.files = files;
        result.files_truncated = !complete;
        result.error = failure::of(&result.language, &code.code, &result);
        // Goes with the session: to end what has said that it is over can wait, its caller can not.
        live.kernel = Some(kernel);
        Ok(result)
    }
}
