//! One run in a sandbox of its own: stages, output, files, verdict.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::fchown;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belljar_jail::{Command, Exit, Outcome, Plan, Stage as JailStage};
use belljar_spec::{
    Backend, Error, Limits, LimitsPatch, RunId, RunRequest, RunResult, SandboxId, Stage, State, Status, Usage, WORKSPACE,
    output_text,
};
use tokio::io::{AsyncRead, AsyncWriteExt};
use tokio::net::unix::pipe::Sender;

use crate::clock;
use crate::engine::Engine;
use crate::files::{self, Collected, InputFile, Snapshot, Source, copy_out};
use crate::host::capacity;
use crate::layout;
use crate::output::{Captured, Sink, capture};
use crate::runtime::{Place, Step, Toolchain};
use crate::sandbox::Sandbox;

/// Where compilers put what they make.
const BUILD: &str = "/build";

/// What the program can read on its standard input.
pub enum Stdin {
    Empty,
    Bytes(Vec<u8>),
    Stream(Box<dyn AsyncRead + Send + Unpin>),
}

/// A request with everything that does not fit into one.
pub struct Task<'a> {
    pub request: RunRequest,
    pub toolchain: &'a Toolchain,
    /// What the code's file is called in the workspace.
    pub main: &'a str,
    pub files: Vec<InputFile>,
    pub stdin: Stdin,
    /// Where to copy the files that the code wrote.
    pub output_dir: Option<PathBuf>,
    /// When the request came in.
    pub received: Instant,
}

impl Engine {
    /// Runs code in a sandbox of its own. Dropping the future ends the run.
    pub async fn run(&self, task: Task<'_>, sink: &mut dyn Sink) -> Result<RunResult, Error> {
        let started_at = clock::now();
        let ids = new_ids()?;
        let job = Job::prepare(&task, ids.1)?;
        let mut sandbox = Sandbox::open(self, job.plan.clone()).await?;
        let outcome = job.carry_out(task, &mut sandbox, sink).await;
        let report = sandbox.report.clone();
        sandbox.close().await;
        let mut result = outcome?.into_result(ids, report);
        result.started_at = started_at;
        Ok(result)
    }
}

fn new_ids() -> Result<(RunId, SandboxId), Error> {
    let bits = || belljar_jail::random_bits().map_err(|error| Error::internal("random bits", error));
    Ok((RunId::from_bits(bits()?), SandboxId::from_bits(bits()?)))
}

/// A task resolved against this host.
struct Job {
    plan: Plan,
    limits: Limits,
    compile_limits: Option<Limits>,
    main: String,
    workdir: String,
}

/// What came of the stages.
struct Done {
    language: String,
    runtime: String,
    compile: Option<Finished>,
    run: Option<Finished>,
    limits: Limits,
    compile_limits: Option<Limits>,
    collected: Collected,
}

/// One stage that has ended.
struct Finished {
    outcome: Outcome,
    stdout: Captured,
    stderr: Captured,
    start: Duration,
}

impl Job {
    fn prepare(task: &Task<'_>, id: SandboxId) -> Result<Self, Error> {
        let request = &task.request;
        request.check()?;
        let host = capacity();
        let limits = request.limits.resolve(&task.toolchain.limits, &host)?;
        let compile_limits = task.toolchain.compile.as_ref();
        // The compiler's limits are the manifest's: what the caller allows the program says nothing about it.
        let compile_limits =
            compile_limits.map(|step| LimitsPatch::default().resolve(&step.limits, &host)).transpose()?;
        let workdir = request.workdir.clone().unwrap_or_else(|| WORKSPACE.to_owned());
        let plan = Plan {
            id: id.to_string(),
            entries: layout::entries(&task.toolchain.mounts, request)?,
            workdir: PathBuf::from(&workdir),
            build: compile_limits.as_ref().map(|_| PathBuf::from(BUILD)),
            limits: limits.clone(),
            writable: !request.read_only,
            network: false,
            weakened: request.weaken.iter().copied().collect(),
        };
        let main = format!("{workdir}/{}", task.main);
        Ok(Self { plan, limits, compile_limits, main, workdir })
    }

    async fn carry_out(&self, task: Task<'_>, sandbox: &mut Sandbox, sink: &mut dyn Sink) -> Result<Done, Error> {
        let code = InputFile {
            destination: task.main.to_owned(),
            content: Source::Bytes(task.request.code.clone().into_bytes()),
        };
        let inline = task.request.files.iter().map(|(path, content)| InputFile {
            destination: path.clone(),
            content: Source::Bytes(content.as_bytes().to_vec()),
        });
        for file in std::iter::once(code).chain(inline).chain(task.files) {
            files::put(sandbox.workspace(), file, sandbox.owner)?;
        }
        let mut done = Done {
            language: task.toolchain.name.clone(),
            runtime: task.toolchain.version.clone(),
            compile: None,
            run: None,
            limits: self.limits.clone(),
            compile_limits: self.compile_limits.clone(),
            collected: Collected::default(),
        };
        if let (Some(step), Some(limits)) = (&task.toolchain.compile, &self.compile_limits) {
            let command = self.command(step, limits, &task.request, &[]);
            let mut silent = |_, _: &[u8]| {};
            let stage = stage(sandbox, command, JailStage::Compile, Stdin::Empty, task.received, &mut silent).await?;
            let succeeded = verdict(&stage.outcome) == Status::Ok;
            done.compile = Some(stage);
            if !succeeded {
                return Ok(done);
            }
        }
        let listing = |error: io::Error| Error::internal("listing the workspace", error);
        let before = Snapshot::take(sandbox.workspace()).map_err(listing)?;
        let command = self.command(&task.toolchain.run, &self.limits, &task.request, &task.request.args);
        done.run = Some(stage(sandbox, command, JailStage::Run, task.stdin, task.received, sink).await?);
        done.collected = before.changes(sandbox.workspace()).map_err(listing)?;
        if let Some(to) = &task.output_dir {
            copy_out(sandbox.workspace(), &done.collected, to)?;
        }
        Ok(done)
    }

    fn command(&self, step: &Step, limits: &Limits, request: &RunRequest, args: &[String]) -> Command {
        let place = Place {
            main: &self.main,
            workspace: &self.workdir,
            out: BUILD,
            memory_bytes: limits.memory_bytes,
            cpus: limits.cpus,
        };
        let mut env: BTreeMap<String, String> = [
            ("PATH", "/usr/local/bin:/usr/bin:/bin"),
            ("HOME", "/tmp"),
            ("TMPDIR", "/tmp"),
            ("USER", "sandbox"),
            ("LANG", "C.UTF-8"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        env.extend(step.env(&place));
        env.extend(request.env.clone());
        Command {
            argv: step.argv(&place, args),
            env: env.into_iter().collect(),
            cwd: PathBuf::from(&self.workdir),
            limits: limits.clone(),
        }
    }
}

/// Starts a command, feeds and reads it until everything has ended.
async fn stage(
    sandbox: &mut Sandbox,
    command: Command,
    stage: JailStage,
    stdin: Stdin,
    received: Instant,
    sink: &mut dyn Sink,
) -> Result<Finished, Error> {
    let failed = |error: io::Error| Error::internal("pipes", error);
    let owner = sandbox.owner;
    let pipe = || -> io::Result<(OwnedFd, OwnedFd)> {
        let (reader, writer) = io::pipe()?;
        // Otherwise code could not reopen its own output as /dev/stdout.
        fchown(&writer, Some(owner.uid), Some(owner.gid))?;
        Ok((reader.into(), writer.into()))
    };
    let (stdin_reader, stdin_writer) = pipe().map_err(failed)?;
    let (stdout_reader, stdout_writer) = pipe().map_err(failed)?;
    let (stderr_reader, stderr_writer) = pipe().map_err(failed)?;
    let limit = usize::try_from(command.limits.output_bytes).unwrap_or(usize::MAX);
    let program = command.argv.first().cloned().unwrap_or_default();
    sandbox.start(command, stage, [stdin_reader.as_fd(), stdout_writer.as_fd(), stderr_writer.as_fd()]).await?;
    let start = received.elapsed();
    drop((stdin_reader, stdout_writer, stderr_writer));
    let feeder = tokio::spawn(feed(stdin, stdin_writer));
    let (captured, outcome) = tokio::join!(capture(stdout_reader, stderr_reader, limit, sink), sandbox.ended());
    feeder.abort();
    let ((stdout, stderr), outcome) = (captured.map_err(failed)?, outcome?);
    if let Exit::NotStarted { errno } = outcome.exit {
        let reason = io::Error::from_raw_os_error(errno);
        return Err(Error::internal(format!("starting {} in the sandbox", Path::new(&program).display()), reason));
    }
    Ok(Finished { outcome, stdout, stderr, start })
}

/// Writes the program's input. That nobody reads it is not our business.
async fn feed(stdin: Stdin, writer: OwnedFd) {
    let Ok(mut pipe) = Sender::from_owned_fd(writer) else { return };
    match stdin {
        Stdin::Empty => {}
        Stdin::Bytes(bytes) => drop(pipe.write_all(&bytes).await),
        Stdin::Stream(mut stream) => drop(tokio::io::copy(&mut stream, &mut pipe).await),
    }
}

fn verdict(outcome: &Outcome) -> Status {
    match outcome.exit {
        // The kernel's word comes first: a program may die of it, hang on, or carry on without the child it lost.
        _ if outcome.oom_kills > 0 => Status::OutOfMemory,
        _ if outcome.timed_out => Status::TimedOut,
        Exit::Code(0) => Status::Ok,
        Exit::Code(_) | Exit::Signal(_) | Exit::NotStarted { .. } => Status::Failed,
        Exit::Killed => Status::Killed,
    }
}

fn exit_numbers(exit: &Exit) -> (Option<i32>, Option<i32>) {
    match exit {
        Exit::Code(code) => (Some(*code), None),
        Exit::Signal(signal) => (None, Some(*signal)),
        Exit::Killed => (None, Some(9)),
        Exit::NotStarted { .. } => (None, None),
    }
}

fn usage(stage: &Finished) -> Usage {
    #[expect(clippy::cast_precision_loss, reason = "microseconds of a run are far below 2^52")]
    let millis = |micros: u64| micros as f64 / 1000.0;
    Usage {
        wall_ms: millis(stage.outcome.wall_micros),
        cpu_ms: millis(stage.outcome.cpu_micros),
        memory_peak_bytes: stage.outcome.memory_peak,
        processes_peak: stage.outcome.processes_peak,
        start_ms: millis(u64::try_from(stage.start.as_micros()).unwrap_or(u64::MAX)),
    }
}

impl Done {
    fn into_result(self, (id, sandbox): (RunId, SandboxId), report: belljar_spec::Report) -> RunResult {
        let compile = self.compile.zip(self.compile_limits).map(|(stage, limits)| into_stage(stage, limits));
        // Where the compiler failed, the run has no output and no end of its own.
        let (run, status) = match self.run {
            Some(run) => {
                let status = verdict(&run.outcome);
                (Some(into_stage(run, self.limits.clone())), status)
            }
            None => (None, Status::CompileFailed),
        };
        let failed_compile = if run.is_none() { compile.as_ref() } else { None };
        let (exit_code, signal) = run.as_ref().or(failed_compile).map_or((None, None), |s| (s.exit_code, s.signal));
        let run = run.unwrap_or_else(|| Stage { usage: compile.as_ref().map(|c| c.usage).unwrap_or_default(), ..empty_stage(&self.limits) });
        RunResult {
            id,
            sandbox,
            language: self.language,
            runtime: self.runtime,
            backend: Backend::Native,
            status,
            success: status == Status::Ok,
            exit_code,
            signal,
            stdout: run.stdout,
            stderr: run.stderr,
            stdout_base64: run.stdout_base64,
            stderr_base64: run.stderr_base64,
            stdout_truncated: run.stdout_truncated,
            stderr_truncated: run.stderr_truncated,
            compile,
            value: None,
            value_text: None,
            displays: Vec::new(),
            error: None,
            state: State::None,
            usage: run.usage,
            limits: self.limits,
            report,
            files: self.collected.listing(),
            started_at: String::new(),
        }
    }
}

fn into_stage(stage: Finished, limits: Limits) -> Stage {
    let usage = usage(&stage);
    let (exit_code, signal) = exit_numbers(&stage.outcome.exit);
    let (stdout_truncated, stderr_truncated) = (stage.stdout.truncated, stage.stderr.truncated);
    let (stdout, stdout_base64) = output_text(stage.stdout.bytes);
    let (stderr, stderr_base64) = output_text(stage.stderr.bytes);
    Stage {
        status: verdict(&stage.outcome),
        exit_code,
        signal,
        stdout,
        stderr,
        stdout_base64,
        stderr_base64,
        stdout_truncated,
        stderr_truncated,
        usage,
        limits,
    }
}

fn empty_stage(limits: &Limits) -> Stage {
    Stage {
        status: Status::CompileFailed,
        exit_code: None,
        signal: None,
        stdout: String::new(),
        stderr: String::new(),
        stdout_base64: None,
        stderr_base64: None,
        stdout_truncated: false,
        stderr_truncated: false,
        usage: Usage::default(),
        limits: limits.clone(),
    }
}
