//! One run in a session: the code is sent to the kernel, and what comes back is heard until the run is over.

use std::time::{Duration, Instant};

use belljar_jail::{Exit, Outcome, Role, Signal, Stage};
use belljar_spec::{CodeRequest, Error, Limits, RunId, RunResult, State, Status, Tool, source_of};
use tokio::sync::mpsc;

use super::running::{End, Running};
use super::{Observer, Session, ability, failed, lock, outcome, sink};
use crate::clock;
use crate::command::{Feeder, Prepared, Stdin, pipe};
use crate::files::{InputFile, Snapshot, Source};
use crate::kernel::{self, Kernel, Request};
use crate::output::Stream;
use crate::run::new_run_id;
use crate::sandbox::Sandbox;
use crate::stop::Stop;
use crate::verdict::{Finished, verdict};

/// How long an interpreter may take to come up.
const START_TIME: Duration = Duration::from_secs(30);

/// The part of a session that one run at a time works with.
#[derive(Default)]
pub(super) struct Live {
    pub kernel: Option<Kernel>,
    /// It has said that it is ready, and has been told about the session.
    pub greeted: bool,
    runs: u64,
    /// What earlier runs left in the interpreter is gone, and nobody has been told yet.
    lost: bool,
    /// Of the latest run that named any, or of the sandbox; a fresh interpreter gets them too.
    pub tools: Vec<Tool>,
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
    pub(super) async fn kernel(&self, live: &mut Live) -> Result<(Kernel, bool), Error> {
        let dead = live.kernel.as_mut().is_none_or(Kernel::has_ended);
        if dead {
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
        (code, stdin, stop): (&CodeRequest, Stdin, &Stop),
        limits: Limits,
        received: Instant,
        observer: &mut dyn Observer,
    ) -> Result<RunResult, Error> {
        let started_at = clock::now();
        let tools = code.tools.as_deref().unwrap_or(&live.tools);
        ability::check_names(&self.toolchain, &code.globals, tools)?;
        // Taken out while it runs: should the caller go away in the middle, it is dropped, and killed by that.
        let (mut kernel, fresh) = self.kernel(live).await?;
        let (_program, is_alone) = self.engine.begin_program();
        let sandbox = self.sandbox();
        let before = Snapshot::of(sandbox.walk().await?.0);
        let id = new_run_id()?;
        if let Some(tools) = &code.tools {
            live.tools.clone_from(tools);
        }
        let order = Order {
            id,
            code,
            stdin,
            stop,
            tools: &live.tools,
            script: None,
            fresh,
            greeted: live.greeted,
            is_alone,
            limits,
            received,
        };
        let ended = self.conduct(&sandbox, &mut kernel, order, observer).await?;
        live.greeted = true;
        live.runs += 1;
        // One that has served for long enough is replaced now, so that the next run does not have to wait for it.
        let worn_out = self.request.max_runs.is_some_and(|most| live.runs >= most);
        let kept = matches!(ended.end, End::Done(_)) && !worn_out;
        if kept {
            live.kernel = Some(kernel);
        } else {
            live.lost = false;
            // The next run finds a fresh one that is already coming up. The old one must have gone: that would be killed with it.
            if matches!(ended.end, End::Done(_)) {
                kernel.signal(Signal::Kill)?;
                kernel.ended().await?;
            }
            drop(kernel);
            match self.furniture().kernel(&sandbox) {
                Ok(fresh) => live.begin(fresh),
                Err(_) => live.begin(None),
            }
        }
        let mut result = self.program_result(id, &sandbox, None, Some(ended.finished), limits);
        result.started_at = started_at;
        result.state = if kept && !std::mem::take(&mut live.lost) && !self.begins_anew() {
            State::Kept
        } else {
            State::Lost
        };
        ended.shown.fill(&mut result, ended.end, ended.interrupted);
        let collected = before.changes(sandbox.walk_after().await?);
        let (files, complete) = collected.listing_with(&sandbox, &code.collect).await;
        result.files = files;
        result.files_truncated = !complete;
        Ok(result)
    }

    /// Sends an order to an interpreter and hears it until that is carried out.
    pub(super) async fn conduct(
        &self,
        sandbox: &Sandbox,
        kernel: &mut Kernel,
        order: Order<'_>,
        observer: &mut dyn Observer,
    ) -> Result<Ended, Error> {
        let (answers, mut incoming) = mpsc::unbounded_channel();
        *lock(&self.answers) = Some(answers);
        let before = sandbox.brief_counters();
        let (limits, received) = (order.limits, order.received);
        let started = Instant::now();
        kernel.output.begin(limits.output_bytes);
        kernel.frames.set_memory(self.limits.memory_bytes);
        let deadline = started + Duration::from_millis(limits.timeout_ms);
        let id = order.id.to_string();
        let run = Running::new(
            (self, sandbox),
            (id.clone(), order.stop),
            deadline,
            order.greeted,
            observer,
        );
        let names = order.tools.iter().map(|tool| tool.name.clone());
        let mut run = run
            .script(order.script.is_some())
            .alone(order.is_alone)
            .with_tools(names.collect());
        let _feeder = self.send(kernel, &id, order)?;
        let end = run.attend(kernel, &mut incoming).await?;
        *lock(&self.answers) = None;
        let wall = started.elapsed();
        if !run.observer.is_live() {
            kernel.output.turn_away().map_err(failed)?;
        }
        let mut sink = sink(run.observer);
        let (stdout, stderr) = kernel.output.finish(&mut sink).map_err(failed)?;
        drop(sink);
        let now = sandbox.final_counters().await;
        let counted = now.unwrap_or_default();
        let exit = match &end {
            End::Done(done) => Exit::Code(done.exit_code.unwrap_or(i32::from(!done.ok))),
            End::Died(outcome) | End::Became(outcome) => outcome.exit.clone(),
            End::Killed | End::Forged => Exit::Killed,
        };
        let finished = Finished {
            outcome: Outcome {
                exit,
                timed_out: run.timed_out,
                oom_kills: counted.oom_kills.saturating_sub(before.oom_kills),
                wall_micros: u64::try_from(wall.as_micros()).unwrap_or(u64::MAX),
                cpu_micros: now.map(|counted| counted.cpu_micros.saturating_sub(before.cpu_micros)),
                memory_peak: now.map(|counted| counted.memory_peak),
                processes_peak: now.map(|counted| counted.processes_peak),
            },
            stdout,
            stderr,
            start: started - received,
        };
        Ok(Ended {
            end,
            done: run.take_done(),
            finished,
            interrupted: run.interrupted.is_some(),
            shown: run.shown,
        })
    }

    /// Sends the code, and whatever it can read. What feeds it goes on until the run is over.
    fn send(
        &self,
        kernel: &mut Kernel,
        id: &str,
        order: Order<'_>,
    ) -> Result<Option<Feeder>, Error> {
        let Order {
            code,
            stdin,
            tools,
            script,
            fresh,
            ..
        } = order;
        let tools = (fresh || code.tools.is_some()).then_some(tools);
        let request = &self.request;
        // What its packages want was in its environment from the beginning.
        let env = !request.env.is_empty() || !request.network.is_none();
        let told = env || request.imports.is_some() || !self.files_allowed();
        let later = std::mem::take(&mut *lock(&self.later));
        // A fresh one has them among the others.
        if !fresh && !later.is_empty() {
            let more = Request::Env { env: later };
            kernel.frames.push(&more, None).map_err(failed)?;
        }
        if fresh && told {
            let setup = Request::Setup {
                env: env.then(|| self.furniture().kernel_environment(&self.sandbox())),
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
            code: source_of(&code.code),
            name: script.unwrap_or(&self.toolchain.main),
            args: &code.args,
            globals: &code.globals,
            tools,
            stdin,
            last: script.is_some(),
            value_bytes: kernel::VALUE_BYTES,
        };
        kernel.frames.push(&request, reader).map_err(failed)?;
        Ok(feeder)
    }

    pub(super) fn files_allowed(&self) -> bool {
        self.request.filesystem == belljar_spec::Filesystem::Workspace
    }

    /// A language without a kernel: the code is a file, the stages are commands beside others.
    pub(super) async fn run_program(
        &self,
        (code, stdin, stop): (&CodeRequest, Stdin, &Stop),
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
            content: Source::Bytes(source_of(&code.code).as_bytes().to_vec()),
        };
        sandbox.replace(file).await?;
        let mut stages = Vec::new();
        if let Some(step) = &self.toolchain.compile {
            let limits = belljar_spec::LimitsPatch::default()
                .resolve(&step.limits, &crate::host::machine())?;
            stages.push((Stage::Compile, step, limits));
        }
        stages.push((Stage::Run, &self.toolchain.run, limits));
        let before = Snapshot::of(sandbox.walk().await?.0);
        let (mut compile, mut run) = (None, None);
        for (stage, step, limits) in stages {
            let args = if stage == Stage::Run {
                &code.args[..]
            } else {
                &[]
            };
            let command = self.furniture().command(step, main, &limits, args);
            let prepared = if compile.is_some() {
                Prepared::of_compiled(command, Role::Beside)?
            } else {
                Prepared::new(command, stage, Role::Beside)?
            };
            let mut process = sandbox.start(prepared.launch(&prepared.fds()))?;
            if stage == Stage::Compile {
                let mut silent = |_: Stream, _: &[u8]| {};
                let finished = prepared
                    .finish_or_stop(&mut process, Stdin::Empty, received, stop, &mut silent)
                    .await?;
                let succeeded = verdict(&finished.outcome) == Status::Ok;
                compile = Some((finished, limits));
                if !succeeded {
                    break;
                }
            } else {
                let stdin = stdin.take().unwrap_or(Stdin::Empty);
                let mut sink = sink(observer);
                let ended = prepared.finish_or_stop(&mut process, stdin, received, stop, &mut sink);
                let ended = ended.await?;
                let compiler: Option<&mut (Finished, Limits)> = compile.as_mut();
                let has_failed =
                    compiler.is_some_and(|(it, _)| it.has_made_no_program(&ended.outcome));
                run = (!has_failed).then_some(ended);
            }
        }
        let mut result = self.program_result(new_run_id()?, &sandbox, compile, run, limits);
        stop.tell(&mut result);
        result.started_at = started_at;
        let collected = before.changes(sandbox.walk_after().await?);
        let (files, complete) = collected.listing_with(&sandbox, &code.collect).await;
        result.files = files;
        result.files_truncated = !complete;
        Ok(result)
    }
}

/// What an interpreter is told to do.
pub(super) struct Order<'a> {
    pub id: RunId,
    pub code: &'a CodeRequest,
    pub stdin: Stdin,
    pub stop: &'a Stop,
    /// What it may call.
    pub tools: &'a [Tool],
    /// The file that the code is, if it is a whole program after which the interpreter ends.
    pub script: Option<&'a str>,
    /// The interpreter has been told nothing yet.
    pub fresh: bool,
    /// It has said that it is ready.
    pub greeted: bool,
    /// No other run is under way.
    pub is_alone: bool,
    pub limits: Limits,
    pub received: Instant,
}

/// What came of it.
pub(super) struct Ended {
    pub end: End,
    /// Of a script: what the kernel said about it before it ended.
    pub done: Option<Box<kernel::Done>>,
    pub finished: Finished,
    pub interrupted: bool,
    pub shown: outcome::Shown,
}
