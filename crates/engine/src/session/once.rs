//! A session for a single program: a pristine interpreter that waits, instead of one that has to be started.
//!
//! What code and caller see is what they would of a program that was executed: arguments, input, exit handlers, exit
//! code. The process is not waited for once its kernel has said that all of that is over: the sandbox is ended.

use std::time::Instant;

use belljar_spec::{CodeRequest, Error, RunId, RunResult, State};

use super::live::{End, Order};
use super::{Observer, Session};
use crate::clock;
use crate::command::Stdin;
use crate::files::{InputFile, Snapshot, Source, put};

impl Session {
    /// Runs a whole program, after which this session must not be used again. Dropping the future ends the program.
    ///
    /// `main` is what the code's file is called in the workspace.
    pub async fn run_once(
        &self,
        (id, main): (RunId, &str),
        (code, stdin): (&CodeRequest, Stdin),
        received: Instant,
        observer: &mut dyn Observer,
    ) -> Result<RunResult, Error> {
        code.check()?;
        super::ability::check_run(&self.toolchain, code, &stdin)?;
        let failed = |error| Error::internal("session", error);
        let started_at = clock::now();
        let limits = self.run_limits(&code.limits)?;
        let mut live = self.live.lock().await;
        let (mut kernel, fresh) = self.kernel(&mut live).await?;
        let sandbox = self.sandbox();
        if self.files_allowed() {
            let file = InputFile {
                destination: main.to_owned(),
                content: Source::Bytes(code.code.clone().into_bytes()),
            };
            put(sandbox.workspace(), file, sandbox.owner)?;
        }
        let before = Snapshot::take(sandbox.workspace()).map_err(failed)?;
        let script = format!("{}/{main}", self.plan.workdir.to_string_lossy());
        let order = Order {
            id,
            code,
            stdin,
            script: Some(&script),
            fresh,
            greeted: live.greeted,
            limits,
            received,
        };
        let ended = self.conduct(&sandbox, &mut kernel, order, observer).await?;
        let mut result = self.program_result(&sandbox, None, Some(ended.finished), limits)?;
        result.id = id;
        result.started_at = started_at;
        result.state = State::None;
        let claim = match ended.end {
            End::Done(done) => Some(done),
            _ => ended.done,
        };
        ended.shown.fill_script(&mut result, claim);
        let collected = before.changes(sandbox.workspace()).map_err(failed)?;
        let (files, complete) = collected.listing_with(sandbox.workspace(), &code.collect);
        result.files = files;
        result.files_truncated = !complete;
        Ok(result)
    }
}
