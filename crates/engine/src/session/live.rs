//! One run in a session: the code is sent to the kernel, and what comes back is heard until the run is over.

use std::io;
use std::time::{Duration, Instant};

use belljar_jail::{Exit, Outcome, Role, Signal, Stage};
use belljar_spec::{
    CodeRequest, Error, Limits, RunEvent, RunResult, State, Status, ToolAnswer, ToolCall,
};
use tokio::sync::mpsc;
use tokio::time::sleep_until;

use super::{Observer, Session, lock, outcome, sink};
use crate::clock;
use crate::command::{Feeder, Prepared, Stdin, pipe};
use crate::files::{InputFile, Snapshot, Source};
use crate::kernel::{self, Kernel, Reply, Request};
use crate::output::Stream;
use crate::verdict::{Finished, verdict};

/// How long an interpreter may take to come up.
const START_TIME: Duration = Duration::from_secs(30);
/// How long code that was interrupted has to yield before it is killed.
const GRACE: Duration = Duration::from_millis(250);
/// JSON and text of a run's value, each.
const VALUE_BYTES: u64 = 1 << 20;
const MAX_DISPLAYS: usize = 256;
const MAX_DISPLAY_BYTES: usize = 32 << 20;
const DEFAULT_TOOL_CALLS: u64 = 1_000;

/// The part of a session that one run at a time works with.
#[derive(Default)]
pub(super) struct Live {
    kernel: Option<Kernel>,
    /// It has said that it is ready, and has been told about the session.
    greeted: bool,
    runs: u64,
    /// What earlier runs left in the interpreter is gone, and nobody has been told yet.
    lost: bool,
    pub snapshot: Snapshot,
}

impl Live {
    pub fn begin(&mut self, kernel: Option<Kernel>) {
        self.kernel = kernel;
        self.greeted = false;
        self.runs = 0;
    }

    pub async fn ready(&mut self) -> Result<(), Error> {
        let Some(kernel) = &mut self.kernel else {
            return Ok(());
        };
        if !self.greeted {
            tokio::time::timeout(START_TIME, kernel.ready())
                .await
                .map_err(|_| Error::internal("kernel", "it took too long to start"))??;
            self.greeted = true;
        }
        Ok(())
    }
}

impl Session {
    /// An interpreter that waits for code: the one there is, or a fresh one.
    async fn kernel(&self, live: &mut Live) -> Result<(Kernel, bool), Error> {
        let worn_out = self.request.max_runs.is_some_and(|most| live.runs >= most);
        let dead = live.kernel.as_mut().is_none_or(Kernel::has_ended);
        if worn_out || dead {
            live.lost |= live.runs > 0;
            let sandbox = self.sandbox();
            // The old one must have gone: the new one would be killed with it.
            if let Some(mut old) = live.kernel.take() {
                let _ = old.signal(Signal::Kill);
                let _ = old.ended().await;
            }
            match self.furniture().kernel(&sandbox) {
                Ok(kernel) => live.begin(kernel),
                Err(_) => self.replace(live).await?,
            }
        }
        let fresh = live.runs == 0;
        if self.await_kernel(live).await.is_err() {
            // The sandbox around it has gone too, or it was in no state to start anything.
            self.replace(live).await?;
            self.await_kernel(live).await?;
        }
        let kernel = live.kernel.take();
        let kernel = kernel.ok_or_else(|| Error::internal("kernel", "there is none"))?;
        Ok((kernel, fresh))
    }

    /// A copy is as good as ready once it has been looked at. Another has to come up first, in time that is not the run's.
    async fn await_kernel(&self, live: &mut Live) -> Result<(), Error> {
        match &mut live.kernel {
            Some(kernel) if self.source.zygote.is_some() => kernel.started().await,
            _ => live.ready().await,
        }
    }

    pub(super) async fn run_in_kernel(
        &self,
        live: &mut Live,
        (code, stdin): (&CodeRequest, Stdin),
        limits: Limits,
        received: Instant,
        observer: &mut dyn Observer,
    ) -> Result<RunResult, Error> {
        let started_at = clock::now();
        // Taken out while it runs: should the caller go away in the middle, it is dropped, and killed by that.
        let (mut kernel, fresh) = self.kernel(live).await?;
        let sandbox = self.sandbox();
        let (id, _) = super::new_ids()?;
        let (answers, mut incoming) = mpsc::unbounded_channel();
        *lock(&self.answers) = Some(answers);
        let before = sandbox.brief_counters();
        let started = Instant::now();
        kernel.output.begin(limits.output_bytes);
        let _feeder = self.send(&mut kernel, &id.to_string(), code, stdin, fresh)?;
        let mut run = Running {
            id: id.to_string(),
            session: self,
            deadline: started + Duration::from_millis(limits.timeout_ms),
            interrupted: None,
            timed_out: false,
            calls: 0,
            greeted: live.greeted,
            shown: outcome::Shown::default(),
            observer,
        };
        let end = run.attend(&mut kernel, &mut incoming).await?;
        *lock(&self.answers) = None;
        let wall = started.elapsed();
        let mut sink = sink(run.observer);
        let (stdout, stderr) = kernel.output.finish(&mut sink).map_err(failed)?;
        drop(sink);
        let now = sandbox.final_counters().await;
        let counted = now.unwrap_or_default();
        let exit = match &end {
            End::Done(done) => Exit::Code(done.exit_code.unwrap_or(i32::from(!done.ok))),
            End::Died(outcome) => outcome.exit.clone(),
            End::Killed | End::Forged => Exit::Killed,
        };
        let finished = Finished {
            outcome: Outcome {
                exit,
                timed_out: run.timed_out,
                oom_kills: counted.oom_kills.saturating_sub(before.oom_kills),
                wall_micros: u64::try_from(wall.as_micros()).unwrap_or(u64::MAX),
                cpu_micros: counted.cpu_micros.saturating_sub(before.cpu_micros),
                memory_peak: now.map(|counted| counted.memory_peak),
                processes_peak: now.map(|counted| counted.processes_peak),
            },
            stdout,
            stderr,
            start: started - received,
        };
        let kept = matches!(end, End::Done(_));
        live.greeted = true;
        live.runs += 1;
        if kept {
            live.kernel = Some(kernel);
        } else {
            live.lost = false;
            // The next run finds a fresh one that is already coming up.
            drop(kernel);
            match self.furniture().kernel(&sandbox) {
                Ok(fresh) => live.begin(fresh),
                Err(_) => live.begin(None),
            }
        }
        let mut result = self.program_result(&sandbox, None, Some(finished), limits)?;
        result.id = id;
        result.started_at = started_at;
        result.state = if kept && !std::mem::take(&mut live.lost) {
            State::Kept
        } else {
            State::Lost
        };
        run.shown.fill(&mut result, end, run.interrupted.is_some());
        let collected = live.snapshot.update(sandbox.walk().await?);
        result.files = collected.listing();
        result.files_truncated = !collected.complete;
        Ok(result)
    }

    /// Sends the code, and whatever it can read. What feeds it goes on until the run is over.
    fn send(
        &self,
        kernel: &mut Kernel,
        id: &str,
        code: &CodeRequest,
        stdin: Stdin,
        fresh: bool,
    ) -> Result<Option<Feeder>, Error> {
        let request = &self.request;
        let told = !request.env.is_empty() || request.imports.is_some() || !self.files_allowed();
        if fresh && told {
            let setup = Request::Setup {
                env: (!request.env.is_empty()).then(|| self.furniture().kernel_environment()),
                imports: self.request.imports.as_deref(),
                files: self.files_allowed(),
            };
            kernel.frames.push(&setup, None).map_err(failed)?;
        }
        let takes_descriptors = self
            .toolchain
            .kernel
            .as_ref()
            .is_some_and(|kernel| kernel.descriptors);
        let (mut feeder, mut reader, mut text) = (None, None, None);
        match stdin {
            Stdin::Empty => {}
            stdin if takes_descriptors => {
                let (from, to) = pipe()?;
                feeder = Some(Feeder::start(stdin, to));
                reader = Some(from);
            }
            Stdin::Bytes(bytes) => text = Some(String::from_utf8_lossy(&bytes).into_owned()),
            // Refused before.
            Stdin::Stream(_) => {}
        }
        let stdin = match (&reader, &text) {
            (Some(_), _) => Some(kernel::Stdin::Descriptor(true)),
            (None, Some(text)) => Some(kernel::Stdin::Text(text)),
            (None, None) => None,
        };
        let request = Request::Run {
            id,
            code: &code.code,
            name: &self.toolchain.main,
            args: &code.args,
            globals: &code.globals,
            tools: code.tools.as_deref(),
            stdin,
            last: false,
            value_bytes: VALUE_BYTES,
        };
        kernel.frames.push(&request, reader).map_err(failed)?;
        Ok(feeder)
    }

    fn files_allowed(&self) -> bool {
        self.request.filesystem == belljar_spec::Filesystem::Workspace
    }

    /// A language without a kernel: the code is a file, the stages are commands beside others.
    pub(super) async fn run_program(
        &self,
        live: &mut Live,
        (code, stdin): (&CodeRequest, Stdin),
        limits: Limits,
        received: Instant,
        observer: &mut dyn Observer,
    ) -> Result<RunResult, Error> {
        let mut stdin = Some(stdin);
        let started_at = clock::now();
        let sandbox = self.sandbox();
        let main = &self.toolchain.main;
        let file = InputFile {
            destination: main.to_owned(),
            content: Source::Bytes(code.code.clone().into_bytes()),
        };
        sandbox.replace(file).await?;
        let mut stages = Vec::new();
        if let Some(step) = &self.toolchain.compile {
            let limits = belljar_spec::LimitsPatch::default()
                .resolve(&step.limits, &crate::host::capacity())?;
            stages.push((Stage::Compile, step, limits));
        }
        stages.push((Stage::Run, &self.toolchain.run, limits));
        live.snapshot.update(sandbox.walk().await?);
        let (mut compile, mut run) = (None, None);
        for (stage, step, limits) in stages {
            let args = if stage == Stage::Run {
                &code.args[..]
            } else {
                &[]
            };
            let command = self.furniture().command(step, main, &limits, args);
            let prepared = Prepared::new(command, stage, Role::Beside)?;
            let mut process = sandbox.start(prepared.launch(&prepared.fds()))?;
            if stage == Stage::Compile {
                let mut silent = |_: Stream, _: &[u8]| {};
                let finished = prepared
                    .finish(&mut process, Stdin::Empty, received, &mut silent)
                    .await?;
                let succeeded = verdict(&finished.outcome) == Status::Ok;
                compile = Some((finished, limits));
                if !succeeded {
                    break;
                }
            } else {
                let stdin = stdin.take().unwrap_or(Stdin::Empty);
                let mut sink = sink(observer);
                let ended = prepared.finish(&mut process, stdin, received, &mut sink);
                run = Some(ended.await?);
            }
        }
        let mut result = self.program_result(&sandbox, compile, run, limits)?;
        result.started_at = started_at;
        let collected = live.snapshot.update(sandbox.walk().await?);
        result.files = collected.listing();
        result.files_truncated = !collected.complete;
        Ok(result)
    }
}

fn failed(error: io::Error) -> Error {
    Error::internal("session", error)
}

/// How a run in a kernel ended.
pub(super) enum End {
    /// As the kernel says.
    Done(Box<kernel::Done>),
    /// The interpreter ended instead of answering.
    Died(Outcome),
    /// It did not yield in time.
    Killed,
    /// Something spoke on the channel that was not the kernel.
    Forged,
}

/// A run that is going on.
struct Running<'a> {
    id: String,
    session: &'a Session,
    deadline: Instant,
    /// When the code was asked to stop.
    interrupted: Option<Instant>,
    timed_out: bool,
    calls: u64,
    /// The kernel has said that it is ready, which it does once.
    greeted: bool,
    shown: outcome::Shown,
    observer: &'a mut dyn Observer,
}

impl Running<'_> {
    async fn attend(
        &mut self,
        kernel: &mut Kernel,
        answers: &mut mpsc::UnboundedReceiver<(u64, ToolAnswer)>,
    ) -> Result<End, Error> {
        let interrupts = &self.session.interrupts;
        let mut interrupt = std::pin::pin!(interrupts.notified());
        loop {
            match self.hear(kernel) {
                Ok(Some(end)) => return Ok(end),
                Ok(None) => {}
                Err(_) => return kill(kernel, End::Forged).await,
            }
            let wake = self.interrupted.map_or(self.deadline, |at| at + GRACE);
            let (process, frames, output) = kernel.parts();
            let mut sink = sink(self.observer);
            tokio::select! {
                turned = frames.turn() => {
                    // Its end is told by the keeper, with how it came about.
                    if turned.is_err() {
                        return lost(kernel).await;
                    }
                }
                read = output.read(&mut sink) => read.map_err(failed)?,
                outcome = process.ended() => return Ok(End::Died(outcome?)),
                Some((call, answer)) = answers.recv() => {
                    let id = &self.id;
                    let answer = Request::Answer { id, call, answer: &answer };
                    frames.push(&answer, None).map_err(failed)?;
                }
                () = &mut interrupt, if self.interrupted.is_none() => {
                    self.interrupted = Some(Instant::now());
                    process.signal(Signal::Interrupt)?;
                }
                () = sleep_until(wake.into()) => {
                    if self.interrupted.is_some() {
                        return kill(kernel, End::Killed).await;
                    }
                    self.timed_out = true;
                    self.interrupted = Some(Instant::now());
                    process.signal(Signal::Interrupt)?;
                }
            }
        }
    }

    /// Takes in what the kernel has said. `Err`: it was not the kernel.
    fn hear(&mut self, kernel: &mut Kernel) -> io::Result<Option<End>> {
        let forged = || io::Error::from(io::ErrorKind::InvalidData);
        while let Some(reply) = kernel.frames.next()? {
            match reply {
                Reply::Done(done) if done.id == self.id => return Ok(Some(End::Done(done))),
                Reply::Display { id, data } if id == self.id => {
                    if let Some(display) = self.shown.add(&data, MAX_DISPLAYS, MAX_DISPLAY_BYTES) {
                        self.observer.event(RunEvent::Display(display));
                    }
                }
                Reply::Call {
                    id,
                    call,
                    tool,
                    args,
                    kwargs,
                } if id == self.id => {
                    self.calls += 1;
                    let most = self.session.request.max_tool_calls;
                    let most = most.unwrap_or(DEFAULT_TOOL_CALLS);
                    if self.calls > most {
                        let answer = ToolAnswer::Error {
                            kind: "RuntimeError".into(),
                            message: format!("the limit of {most} tool calls is reached"),
                        };
                        let answer = Request::Answer {
                            id: &self.id,
                            call,
                            answer: &answer,
                        };
                        kernel.frames.push(&answer, None)?;
                    } else {
                        self.observer.event(RunEvent::ToolCall(ToolCall {
                            call,
                            tool,
                            args,
                            kwargs,
                        }));
                    }
                }
                Reply::Ready {} if !std::mem::replace(&mut self.greeted, true) => {}
                _ => return Err(forged()),
            }
        }
        Ok(None)
    }
}

/// The channel has ended: either so has the interpreter, or the code has closed it.
async fn lost(kernel: &mut Kernel) -> Result<End, Error> {
    let ended = tokio::time::timeout(GRACE, kernel.ended()).await;
    match ended {
        Ok(outcome) => Ok(End::Died(outcome?)),
        Err(_) => kill(kernel, End::Forged).await,
    }
}

async fn kill(kernel: &mut Kernel, end: End) -> Result<End, Error> {
    kernel.signal(Signal::Kill)?;
    kernel.ended().await?;
    Ok(end)
}
