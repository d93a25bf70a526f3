//! A run or a command in a kept sandbox, from a checked request to a recorded result.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use belljar::{Observer, Session, Stdin, Stop, Stream, failure};
use belljar_spec::{
    CodeRequest, CommandRequest, Content, Error, RunEvent, RunId, Status, ToolAnswer,
};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::admission::{Held, Need, Ticket};
use crate::answer::Done;
use crate::app::{App, Shared};
use crate::asked::Asked;
use crate::clock;
use crate::events::Outbox;
use crate::history::{Record, omit_large};
use crate::job::{self, digest};
use crate::kept::{Kept, TurnTaken};
use crate::remains::End;
use crate::sandboxes::{deleted, stopping};
use crate::tenants::Tenant;

/// Runs and commands of one sandbox that go or wait at one time.
const AT_ONCE: usize = 32;

pub enum Work {
    Code(CodeRequest),
    Command(CommandRequest),
    /// The same at a terminal.
    Terminal(CommandRequest),
}

/// Leave to run in a sandbox.
pub struct Turn {
    asked: Asked,
    work: Work,
    record: Record,
    _taken: TurnTaken,
    ticket: Ticket,
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

    /// Of files that come back with the result.
    fn given_back(&self) -> u64 {
        match self {
            Self::Code(code) if !code.collect.is_empty() => job::GIVEN_BACK,
            _ => 0,
        }
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
                line(command),
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
        // Now: it is in memory until the run is over.
        omit_large(&mut outline);
        Ok((digest, keeps_code.then_some(code), outline))
    }
}

impl Turn {
    pub async fn new(app: &App, tenant: &Tenant, asked: Asked, work: Work) -> Result<Self, Error> {
        work.check()?;
        app.history.check()?;
        let kept = &asked.kept;
        let taken = kept.begin_turn(AT_ONCE)?;
        // Beside the sandbox, which counts as a whole while this goes on.
        let need = match &work {
            // Nothing is kept of what it shows, and mostly it waits for somebody to type.
            Work::Terminal(_) => Need {
                memory_bytes: 1 << 20,
                cpus: 0,
            },
            _ => Need {
                memory_bytes: Need::answer(work.output_bytes(kept)?)
                    .saturating_add(work.given_back()),
                ..Need::of(kept.session.limits())
            },
        };
        let need = match &work {
            Work::Code(code) => need.with(&code.globals),
            Work::Command(_) | Work::Terminal(_) => need,
        };
        let ticket = tokio::select! {
            ticket = app.admission.run_inside(tenant, kept.place(), need) => ticket?,
            () = kept.gone() => return Err(deleted()),
            () = asked.stop.stopped() => return Err(Stop::before_it_began()),
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
            shortened: false,
        };
        Ok(Self {
            asked,
            work,
            record,
            _taken: taken,
            ticket,
        })
    }

    /// Until it is done, or the sandbox is deleted. When this returns a result, it is in the history.
    ///
    /// Without somebody to hear it, calls of tools fail inside. Once `gone` hears that nobody waits for it any more, this one is
    /// ended and no other: an interpreter is interrupted, what has nothing to keep is killed, and what waits never begins.
    pub async fn carry_out(
        mut self,
        app: Shared,
        stdin: Option<Stdin>,
        outbox: Option<Outbox>,
        gone: Option<oneshot::Receiver<()>>,
    ) -> Result<Done, Error> {
        let kept = Arc::clone(&self.asked.kept);
        let stop = self.asked.stop.clone();
        let mut teller = Teller {
            outbox,
            run: None,
            session: &kept.session,
            shown: app.admission.nothing_shown(&kept.tenant),
        };
        let stdin = stdin.unwrap_or_else(|| self.work.take_stdin());
        app.metrics.running.inc();
        let mut running = Box::pin(async {
            match &self.work {
                Work::Code(code) => {
                    let running = kept.session.run_with(code, stdin, &stop, &mut teller);
                    running.await
                }
                Work::Command(command) | Work::Terminal(command) => {
                    let running = kept.session.command_with(command, &stop, &mut teller);
                    running.await
                }
            }
        });
        let keeps_state =
            matches!(self.work, Work::Code(_)) && kept.session.toolchain().kernel.is_some();
        let unwanted = async {
            nobody_waits(gone).await;
            if keeps_state {
                stop.stop();
            } else {
                stop.kill();
            }
            std::future::pending::<()>().await;
        };
        let ended = tokio::select! {
            result = &mut running => Some(result),
            () = kept.gone() => None,
            () = app.ended() => None,
            () = unwanted => None,
        };
        let ended = End::of(&app, ended, &stop, &mut running).await;
        drop(running);
        let done = self.finish(&app, ended).await;
        app.metrics.running.dec();
        done
    }

    pub fn work(&self) -> &Work {
        &self.work
    }

    /// Records how it ended.
    pub async fn finish(mut self, app: &App, ended: End) -> Result<Done, Error> {
        let ending = *app.ending.borrow();
        let (left, from_outside) = match ended {
            End::Itself(Err(error)) => return Err(error),
            // What the daemon's own end has killed may be told before that end itself.
            End::Itself(Ok(result)) => {
                let killed = ending && result.status == Status::Killed;
                (Some(result), killed)
            }
            End::FromOutside(left) => (left, true),
        };
        let mut done = None;
        match left {
            Some(mut result) => {
                self.asked.kept.runs.fetch_add(1, Ordering::Relaxed);
                // Of code, the engine has told it: this is no error of the sandbox's interpreter.
                if let Work::Command(command) | Work::Terminal(command) = &self.work {
                    result.language.clone_from(&self.record.language);
                    result.error = failure::of(&result.language, &line(command), &result);
                }
                if result.started_at.is_empty() {
                    result.started_at.clone_from(&self.record.started_at);
                }
                app.metrics.ran(&result);
                job::tell_connections(&result);
                self.asked
                    .kept
                    .at_rest(result.usage.memory_peak_bytes.unwrap_or(u64::MAX));
                self.record.id = result.id;
                self.record.status = result.status;
                self.record.started_at.clone_from(&result.started_at);
                done = (!from_outside).then(|| result.clone());
                self.record.result = Some(result);
            }
            None => app.metrics.ended("killed", &self.record.language),
        }
        app.history.add(self.record).await?;
        done.map(|result| (result, self.ticket))
            .ok_or_else(|| if ending { stopping() } else { deleted() })
    }
}

fn line(command: &CommandRequest) -> String {
    let shell = command.shell.clone();
    shell.unwrap_or_else(|| typed(&command.words()))
}

/// Words as somebody would type them for a shell.
fn typed(words: &[impl AsRef<str>]) -> String {
    let plain = |c: char| c.is_alphanumeric() || "_@%+=:,./-".contains(c);
    let quoted = |word: &str| {
        if !word.is_empty() && word.chars().all(plain) {
            return word.to_owned();
        }
        format!("'{}'", word.replace('\'', r"'\''"))
    };
    let words = words.iter().map(|word| quoted(word.as_ref()));
    words.collect::<Vec<_>>().join(" ")
}

async fn nobody_waits(gone: Option<oneshot::Receiver<()>>) {
    match gone {
        Some(gone) => drop(gone.await),
        None => std::future::pending().await,
    }
}

/// Passes on what happens. Without somebody to hear it, calls of tools fail inside.
pub struct Teller<'a> {
    pub outbox: Option<Outbox>,
    /// Said with each call, where answers have to name it.
    pub run: Option<RunId>,
    pub session: &'a Session,
    /// What counts the displays until the answer does, of which they are a part. Where there is no room they are not kept.
    pub shown: Held,
}

impl Observer for Teller<'_> {
    fn is_live(&self) -> bool {
        self.outbox.is_some()
    }

    fn has_room(&mut self, bytes: usize) -> bool {
        // In the result, and in its text.
        self.shown.grow(2 * bytes as u64).is_ok()
    }

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
                let body = json!({ "display": display });
                outbox.map(|outbox| outbox.offer("display", &body, &self.shown));
            }
            RunEvent::ToolCall(call) => {
                let number = call.call;
                let mut body = json!(call);
                if let Some(run) = self.run {
                    body["run"] = json!(run);
                }
                let offer = |outbox: &Outbox| outbox.offer("tool_call", &body, &self.shown);
                let told = outbox.is_some_and(offer);
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

#[cfg(test)]
mod tests {
    use super::typed;

    #[test]
    fn words_as_they_are_typed() {
        for (words, line) in [
            (&["ls", "-l", "a/b.txt"][..], "ls -l a/b.txt"),
            (
                &["sh", "-c", "echo out; exit 3"],
                "sh -c 'echo out; exit 3'",
            ),
            (&["echo", "", "it's"], r"echo '' 'it'\''s'"),
        ] {
            assert_eq!(typed(words), line);
        }
    }
}
