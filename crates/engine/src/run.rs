//! One run in a sandbox of its own: stages, output, files, verdict.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use belljar_jail::{Command, Plan, Role, Stage as JailStage};
use belljar_spec::{
    Error, Limits, LimitsPatch, RunId, RunRequest, RunResult, SandboxId, Status, Weakening,
    source_of,
};

use crate::clock;
use crate::command::{Prepared, Setting, Stdin};
use crate::covered;
use crate::egress::{self, Log};
use crate::engine::Engine;
use crate::failure;
use crate::files::{Collected, InputFile, Snapshot, Source, copy_out};
use crate::host::{capacity, machine};
use crate::layout;
use crate::once;
use crate::output::Sink;
use crate::output_dir::OutputDirectory;
use crate::runtime::{Step, Toolchain};
use crate::sandbox::Sandbox;
use crate::stop::Stop;
use crate::verdict::{Done, verdict};

/// A request with everything that does not fit into one.
pub struct Task<'a> {
    /// See [`new_run_id`].
    pub id: RunId,
    pub request: RunRequest,
    pub toolchain: &'a Toolchain,
    /// What the code's file is called in the workspace.
    pub main: &'a str,
    pub files: Vec<InputFile>,
    pub stdin: Stdin,
    /// Where to copy the files that the code wrote.
    pub output_dir: Option<&'a OutputDirectory>,
    /// When the request came in.
    pub received: Instant,
    /// What ends it before its time.
    pub stop: Stop,
}

impl Engine {
    /// Runs code in a sandbox of its own. Dropping the future ends the run.
    ///
    /// When it returns every process of the sandbox is dead; its mounts and cgroups go away right after.
    pub async fn run(&self, task: Task<'_>, sink: &mut dyn Sink) -> Result<RunResult, Error> {
        if once::needs_a_kernel(&task.request) {
            return Box::pin(once::run(self, task, sink)).await;
        }
        let started_at = clock::now();
        let ids = (task.id, SandboxId::from_bits(random_bits()?));
        let furnished;
        let task = if task.request.packages.is_empty() {
            task
        } else {
            task.request.check()?;
            let wanted = &task.request.packages;
            furnished = self.with_packages(task.toolchain, wanted).await?;
            Task {
                toolchain: &furnished,
                ..task
            }
        };
        let job = Job::prepare(self, &task)?;
        let globs = task.request.collect.clone();
        let code = failure::for_hints(&task.request.code);
        let main = task.main.to_owned();
        let stop = task.stop.clone();
        let (done, sandbox) = job.carry_out(self, task, sink).await?;
        let (files, complete) = done.collected.listing_with(&sandbox, &globs).await;
        let mut result = done.into_result(ids, sandbox.report.clone());
        stop.tell(&mut result);
        result.files = files;
        result.files_truncated = !complete;
        result.started_at = started_at;
        result.error = failure::of_file(&main, &result.language, &code, &result);
        Ok(result)
    }
}

pub(crate) fn new_ids() -> Result<(RunId, SandboxId), Error> {
    Ok((new_run_id()?, SandboxId::from_bits(random_bits()?)))
}

/// A name for a run that nobody can guess.
pub fn new_run_id() -> Result<RunId, Error> {
    random_bits().map(RunId::from_bits)
}

/// 128 of them, from the kernel.
pub fn random_bits() -> Result<u128, Error> {
    belljar_jail::random_bits().map_err(|error| Error::internal("random bits", error))
}

/// A task resolved against this host.
struct Job {
    plan: Plan,
    limits: Limits,
    compile_limits: Option<Limits>,
    main: String,
    workdir: String,
    /// About packages.
    variables: BTreeMap<String, String>,
}

impl Job {
    fn prepare(engine: &Engine, task: &Task<'_>) -> Result<Self, Error> {
        let request = &task.request;
        request.check()?;
        check_weakenings(&request.weaken)?;
        let host = capacity();
        let limits = request.limits.resolve(&task.toolchain.limits, &host)?;
        // The compiler's limits are the manifest's: what the caller allows the program says nothing about it.
        let resolve = |step: &Step| LimitsPatch::default().resolve(&step.limits, &machine());
        let compile_limits = task.toolchain.compile.as_ref().map(resolve).transpose()?;
        let workdir = task.toolchain.workdir(request.workdir.as_deref());
        let volumes = &request.volumes;
        covered::check_main(volumes, Path::new(&workdir), task.main)?;
        let inline = request.files.keys().map(String::as_str);
        let files = inline.chain(covered::destinations(&task.files));
        covered::check_files(volumes, Path::new(&workdir), files)?;
        let plan = Plan {
            entries: layout::furnished(
                engine,
                task.toolchain,
                Path::new(&workdir),
                volumes,
                &request.weaken,
                &request.network,
            )?,
            files: if travels_with_the_plan(&request.code) {
                vec![(
                    PathBuf::from(task.main),
                    source_of(&request.code).to_owned(),
                )]
            } else {
                Vec::new()
            },
            workdir: PathBuf::from(&workdir),
            limits,
            writable: !request.read_only,
            kept: false,
            network: !request.network.is_none(),
            ports: egress::ports(&request.network),
            closed: None,
            weakened: request.weaken.iter().copied().collect(),
            image: task.toolchain.root(),
        };
        let main = format!("{workdir}/{}", task.main);
        let mut variables = engine.package_variables(&request.network);
        variables.extend(task.toolchain.variables.clone());
        Ok(Self {
            plan,
            limits,
            compile_limits,
            main,
            workdir,
            variables,
        })
    }

    async fn carry_out(
        &self,
        engine: &Engine,
        task: Task<'_>,
        sink: &mut dyn Sink,
    ) -> Result<(Done, Sandbox), Error> {
        let mut done = Done {
            language: task.toolchain.name.clone(),
            runtime: task.toolchain.version.clone(),
            compile: None,
            run: None,
            limits: self.limits,
            compile_limits: self.compile_limits,
            collected: Collected {
                files: Vec::new(),
                complete: true,
            },
            connections: Vec::new(),
            connections_omitted: 0,
        };
        let compile = task
            .toolchain
            .compile
            .as_ref()
            .zip(self.compile_limits.as_ref());
        let compile = compile.map(|(step, limits)| self.command(step, limits, &task, &[]));
        let run = self.command(&task.toolchain.run, &self.limits, &task, &task.request.args);
        let inline = task.request.files.iter().map(|(path, content)| InputFile {
            destination: path.clone(),
            content: Source::Bytes(content.as_bytes().to_vec()),
        });
        let large = (!travels_with_the_plan(&task.request.code)).then(|| InputFile {
            destination: task.main.to_owned(),
            content: Source::Bytes(source_of(&task.request.code).as_bytes().to_vec()),
        });
        let files: Vec<_> = large.into_iter().chain(inline).chain(task.files).collect();
        let container = task.toolchain.container.as_ref();
        let (first, then) = match compile {
            Some(compile) => (
                Prepared::new(compile, JailStage::Compile, Role::Alone)?,
                Some(run),
            ),
            None => (Prepared::new(run, JailStage::Run, Role::Alone)?, None),
        };
        let mut before = None;
        let (sandbox, mut process) = if files.is_empty() {
            // Opened, and its first command started, in one go.
            Sandbox::open_with(
                engine,
                container,
                self.plan.clone(),
                first.launch(&first.fds()),
            )
            .await?
        } else {
            let sandbox = Sandbox::open(engine, container, self.plan.clone()).await?;
            for file in files {
                sandbox.put(file).await?;
            }
            before = Some(Snapshot::of(sandbox.walk().await?.0));
            let process = sandbox.start(first.launch(&first.fds()))?;
            (sandbox, process)
        };
        let log = Log::default();
        sandbox.serve(&task.request.network, &log)?;
        let mut prepared = first;
        if let Some(run) = then {
            let mut silent = |_, _: &[u8]| {};
            let stage = prepared
                .finish_or_stop(
                    &mut process,
                    Stdin::Empty,
                    task.received,
                    &task.stop,
                    &mut silent,
                )
                .await?;
            let succeeded = verdict(&stage.outcome) == Status::Ok;
            done.compile = Some(stage);
            if !succeeded {
                (done.connections, done.connections_omitted) = log.all();
                return Ok((done, sandbox));
            }
            before = Some(Snapshot::of(sandbox.walk().await?.0));
            prepared = Prepared::of_compiled(run, Role::Alone)?;
            process = sandbox.start(prepared.launch(&prepared.fds()))?;
        }
        let before = before.unwrap_or_else(|| Snapshot::of(sandbox.inputs.clone()));
        let ended = prepared
            .finish_or_stop(&mut process, task.stdin, task.received, &task.stop, sink)
            .await?;
        let compiler = done.compile.as_mut();
        if compiler.is_some_and(|compiler| compiler.has_made_no_program(&ended.outcome)) {
            (done.connections, done.connections_omitted) = log.all();
            return Ok((done, sandbox));
        }
        done.run = Some(ended);
        sandbox.settle().await;
        (done.connections, done.connections_omitted) = log.all();
        done.collected = before.changes(sandbox.walk_after().await?);
        if let Some(to) = task.output_dir {
            done.collected.complete &=
                copy_out(&sandbox, &done.collected, to, self.limits.disk_bytes).await;
        }
        Ok((done, sandbox))
    }

    fn command(&self, step: &Step, limits: &Limits, task: &Task<'_>, args: &[String]) -> Command {
        let setting = Setting {
            toolchain: task.toolchain,
            workdir: &self.workdir,
            main: &self.main,
            variables: self.variables.clone(),
            network: &task.request.network,
            env: &task.request.env,
        };
        setting.command(step, limits, args)
    }
}

/// Messages to the keeper are bounded; what is larger is written into the workspace afterwards.
fn travels_with_the_plan(code: &str) -> bool {
    code.len() <= 1 << 20
}

/// An ordinary user has nothing at all without a user namespace, and no `/proc` without one for processes.
pub(crate) fn check_weakenings(weaken: &[Weakening]) -> Result<(), Error> {
    let inseparable = |given: &&Weakening| matches!(given, Weakening::Userns | Weakening::Pidns);
    match weaken.iter().find(inseparable) {
        Some(given) if !belljar_jail::host::is_root() => Err(Error::invalid_request(
            "weaken",
            given.name(),
            "only root can run without it",
        )),
        _ if [Weakening::Pidns, Weakening::Cgroups]
            .iter()
            .all(|one| weaken.contains(one)) =>
        {
            let accepted = "without cgroups as well nothing could end what the code leaves behind; give up one of the two";
            Err(Error::invalid_request(
                "weaken",
                Weakening::Pidns.name(),
                accepted,
            ))
        }
        _ => Ok(()),
    }
}
