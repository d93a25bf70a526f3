//! A run or a command in a kept sandbox, from a checked request to a recorded result.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use belljar::{Observer, Session, Stdin, Stream};
use belljar_spec::{
    CodeRequest, CommandRequest, Content, Error, RunEvent, RunId, RunResult, Status, ToolAnswer,
};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::admission::{Need, Ticket};
use crate::app::{App, Shared};
use crate::clock;
use crate::events::Outbox;
use crate::history::Record;
use crate::job::{self, digest};
use crate::kept::{Busy, Kept};
use crate::sandboxes::deleted;
use crate::tenants::Tenant;

/// Runs and commands of one sandbox that go or wait at one time.
const AT_ONCE: usize = 32;
/// An interrupt in the first moment of a run may go unnoticed, so one that nobody wants any more is told again.
const AGAIN: Duration = Duration::from_millis(500);

pub enum Work {
    Code(CodeRequest),
    Command(CommandRequest),
    /// The same at a terminal.
    Terminal(CommandRequest),
}

/// Leave to run in a sandbox.
pub struct Turn {
    kept: Arc<Kept>,
    work: Work,
    record: Record,
    _busy: Busy,
    _ticket: Ticket,
}

impl Work {
    fn check(&self) -> Result<(), Error> {
        match self {
            Self::Code(code) => code.check(),
            Self::Command(command) | Self::Terminal(command) => command.check(),
        }
    }

    fn output_bytes(&self, kept: &Kept) -> Result<u64, Error> {
        let patch = match self {
            Self::Code(code) => &code.limits,
            Self::Command(command) | Self::Terminal(command) => &command.limits,
        };
        let session = &kept.session;
        let all = patch.clone().or(&session.request().limits);
        let limits = all.resolve(&session.toolchain().limits, &belljar::capacity())?;
        Ok(limits.output_bytes)
    }

    fn take_stdin(&mut self) -> Stdin {
        let stdin = match self {
            Self::Code(code) => code.stdin.take(),
            Self::Command(_) | Self::Terminal(_) => None,
        };
        match stdin {
            None => Stdin::Empty,
            Some(Content::Text(text)) => Stdin::Bytes(text.into_bytes()),
            Some(Content::Bytes(bytes)) => Stdin::Bytes(bytes),
        }
    }

    /// What is kept of it: the words of a command count as code.
    fn outline(&self, keeps_code: bool) -> Result<(String, Option<String>, Value), Error> {
        let failed = |error| Error::internal("history", error);
        let (digest, code, mut outline) = match self {
            Self::Code(code) => (
                digest(code)?,
                code.code.clone(),
                serde_json::to_value(code).map_err(failed)?,
            ),
            Self::Command(command) | Self::Terminal(command) => (
                digest(command)?,
                command
                    .shell
                    .clone()
                    .unwrap_or_else(|| command.words().join(" ")),
                serde_json::to_value(command).map_err(failed)?,
            ),
        };
        if let Some(fields) = outline.as_object_mut() {
            for field in ["code", "shell", "argv", "stdin", "env"] {
                fields.remove(field);
            }
            if !keeps_code {
                fields.remove("args");
                fields.remove("globals");
            }
            fields.retain(|_, value| !value.is_null());
        }
        Ok((digest, keeps_code.then_some(code), outline))
    }
}

impl Turn {
    pub async fn new(
        app: &App,
        tenant: &Tenant,
        kept: Arc<Kept>,
        work: Work,
    ) -> Result<Self, Error> {
        work.check()?;
        let busy = kept.begin(AT_ONCE)?;
        // The sandbox's memory is counted as long as it lives.
        let need = match &work {
            // Nothing is kept of what it shows, and mostly it waits for somebody to type.
            Work::Terminal(_) => Need {
                memory_bytes: 1 << 20,
                cpus: 0,
            },
            _ => Need {
                memory_bytes: work.output_bytes(&kept)?.saturating_mul(2),
                ..Need::of(kept.session.limits())
            },
        };
        let ticket = tokio::select! {
            ticket = app.admission.run_inside(tenant, need) => ticket?,
            () = kept.gone() => return Err(deleted()),
        };
        app.metrics.waited(ticket.waited);
        let (digest, code, request) = work.outline(app.config.history.code)?;
        let record = Record {
            id: belljar::new_run_id()?,
            tenant: kept.tenant.clone(),
            sandbox: Some(kept.session.id()),
            language: match &work {
                Work::Code(_) => kept.session.toolchain().name.clone(),
                Work::Command(_) => "command".into(),
                Work::Terminal(_) => "terminal".into(),
            },
            status: Status::Killed,
            started_at: clock::now(),
            queue_ms: ticket.waited.as_secs_f64() * 1000.0,
            digest,
            labels: kept.session.request().labels.clone(),
            code,
            request,
            result: None,
        };
        Ok(Self {
            kept,
            work,
            record,
            _busy: busy,
            _ticket: ticket,
        })
    }

    /// Until it is done, or the sandbox is deleted. When this returns a result, it is in the history.
    ///
    /// Without somebody to hear it, calls of tools fail inside. When `unwanted` hears something, or that nobody is left to
    /// say anything, this one is ended and no other: code that goes on is interrupted, and what waits for its turn never begins.
    pub async fn carry_out(
        mut self,
        app: Shared,
        stdin: Option<Stdin>,
        outbox: Option<Outbox>,
        unwanted: Option<oneshot::Receiver<()>>,
    ) -> Result<RunResult, Error> {
        let kept = Arc::clone(&self.kept);
        let mut teller = Teller {
            outbox,
            run: None,
            session: &kept.session,
        };
        let stdin = stdin.unwrap_or_else(|| self.work.take_stdin());
        app.metrics.running.inc();
        let interruptible = AtomicBool::new(false);
        let mut given_up = false;
        let ended = {
            let mut running = pin!(async {
                match &self.work {
                    Work::Code(code) => {
                        let _turn = kept.turn.lock().await;
                        let keeps = kept.session.toolchain().kernel.is_some();
                        interruptible.store(keeps, Ordering::Relaxed);
                        kept.session.run_with(code, stdin, &mut teller).await
                    }
                    Work::Command(command) | Work::Terminal(command) => {
                        kept.session.command(command, &mut teller).await
                    }
                }
            });
            let mut unwanted = pin!(said(unwanted));
            loop {
                tokio::select! {
                    result = &mut running => break Some(result),
                    () = kept.gone() => break None,
                    () = app.ended() => break None,
                    () = &mut unwanted, if !given_up => given_up = true,
                    () = sleep(AGAIN), if given_up => {}
                }
                if given_up {
                    if !interruptible.load(Ordering::Relaxed) {
                        // Dropping it ends it.
                        break None;
                    }
                    kept.session.interrupt();
                }
            }
        };
        app.metrics.running.dec();
        let result = self.finish(&app, ended).await;
        if given_up {
            result.map_err(|_| Error::Conflict {
                reason: "the run was given up".into(),
            })
        } else {
            result
        }
    }

    pub fn work(&self) -> &Work {
        &self.work
    }

    /// Records how it ended; `None`: the sandbox has been deleted, or the daemon stops.
    pub async fn finish(
        mut self,
        app: &App,
        ended: Option<Result<RunResult, Error>>,
    ) -> Result<RunResult, Error> {
        match ended {
            Some(Ok(mut result)) => {
                self.kept.runs.fetch_add(1, Ordering::Relaxed);
                if !matches!(self.work, Work::Code(_)) {
                    result.language.clone_from(&self.record.language);
                }
                if result.started_at.is_empty() {
                    result.started_at.clone_from(&self.record.started_at);
                }
                app.metrics.ran(&result);
                job::tell_connections(&result);
                self.record.id = result.id;
                self.record.status = result.status;
                self.record.started_at.clone_from(&result.started_at);
                self.record.result = Some(result.clone());
                app.history.add(self.record).await?;
                Ok(result)
            }
            Some(Err(error)) => Err(error),
            None => {
                app.metrics.ended("killed", &self.record.language);
                app.history.add(self.record).await?;
                Err(deleted())
            }
        }
    }
}

async fn said(unwanted: Option<oneshot::Receiver<()>>) {
    match unwanted {
        Some(unwanted) => {
            let _ = unwanted.await;
        }
        None => std::future::pending().await,
    }
}

/// Passes on what happens. Without somebody to hear it, calls of tools fail inside.
pub struct Teller<'a> {
    pub outbox: Option<Outbox>,
    /// Said with each call, where answers have to name it.
    pub run: Option<RunId>,
    pub session: &'a Session,
}

impl Observer for Teller<'_> {
    fn event(&mut self, event: RunEvent) {
        let outbox = self.outbox.as_ref();
        match event {
            RunEvent::Stdout(bytes) => {
                outbox.inspect(|outbox| outbox.output(Stream::Stdout, &bytes));
            }
            RunEvent::Stderr(bytes) => {
                outbox.inspect(|outbox| outbox.output(Stream::Stderr, &bytes));
            }
            RunEvent::Display(display) => {
                // It is in the result as well.
                outbox.map(|outbox| outbox.offer("display", json!({ "display": display })));
            }
            RunEvent::ToolCall(call) => {
                let number = call.call;
                let mut body = json!(call);
                if let Some(run) = self.run {
                    body["run"] = json!(run);
                }
                let told = outbox.is_some_and(|outbox| outbox.offer("tool_call", body));
                if !told {
                    let answer = ToolAnswer::Error {
                        kind: "RuntimeError".into(),
                        message: "nobody is there to answer calls of tools".into(),
                    };
                    self.session.answer(number, answer);
                }
            }
            // The result is returned.
            RunEvent::Result(_) => {}
        }
    }
}
