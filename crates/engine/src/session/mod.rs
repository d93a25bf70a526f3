//! A kept sandbox: code runs in it again and again, and finds what it left.
//!
//! A language with a kernel keeps its interpreter: variables, functions, open files. The others keep files only, and each run
//! starts the program anew. Runs of one session follow each other; commands may run beside them.

mod ability;
mod courtesy;
mod furniture;
mod live;
mod once;
mod outcome;
mod running;
mod terminal;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use belljar_jail::{Command, Counters, Plan, Role, Stage};
use belljar_spec::{
    CodeRequest, CommandRequest, Connection, Error, Limits, LimitsPatch, Network, Publish,
    RunEvent, RunResult, SandboxId, SandboxRequest, ToolAnswer,
};
use tokio::sync::{mpsc, watch};

use crate::command::{Prepared, Stdin, environment};
use crate::egress::{Inside, Log, Published};
use crate::engine::Engine;
use crate::failure;
use crate::files::Snapshot;
use crate::host::capacity;
use crate::kernel::Source as KernelSource;
use crate::output::Stream;
use crate::run::{check_weakenings, new_ids, new_run_id};
use crate::runtime::Toolchain;
use crate::sandbox::Sandbox;
use crate::stop::{Current, Stop};
use crate::workspace::Files;
use furniture::{Furniture, furnish};
pub(crate) use furniture::{furnished, plan};
use live::Live;
pub use once::Program;
pub use terminal::{Screen, Terminal};

/// Hears what happens while code runs. Must not block the engine for long.
pub trait Observer: Send {
    fn event(&mut self, event: RunEvent);

    /// Asked before a display of so many bytes is kept, which is told and in the result then. One that is refused is in neither.
    fn has_room(&mut self, _bytes: usize) -> bool {
        true
    }

    /// Whether somebody wants output while it comes. What nobody looks at may be told later, at the latest before the run is over.
    fn is_live(&self) -> bool {
        true
    }
}

/// Nobody looks on: the result has everything.
impl Observer for () {
    fn event(&mut self, _: RunEvent) {}

    fn is_live(&self) -> bool {
        false
    }
}

impl<F: FnMut(RunEvent) + Send> Observer for F {
    fn event(&mut self, event: RunEvent) {
        self(event);
    }
}

/// A kept sandbox. Dropping it ends everything in it.
pub struct Session {
    id: SandboxId,
    request: SandboxRequest,
    toolchain: Arc<Toolchain>,
    limits: Limits,
    plan: Plan,
    engine: Engine,
    /// What its interpreters are copies of.
    source: KernelSource,
    sandbox: Mutex<Arc<Sandbox>>,
    /// How often another took the place of that.
    replaced: watch::Sender<u64>,
    /// Held by the run that is going on.
    live: tokio::sync::Mutex<Live>,
    /// The run that holds it.
    current: Current,
    answers: Mutex<Option<mpsc::UnboundedSender<(u64, ToolAnswer)>>>,
    /// Whom it may reach now; what the request says may have been changed.
    network: Mutex<Network>,
    /// What was tried to reach, in all sandboxes that it has had.
    log: Log,
    /// Variables that its interpreter has not been told of.
    later: Mutex<BTreeMap<String, String>>,
    /// Held once more by each that waits to begin it anew.
    resets: Arc<()>,
    published: Vec<Published>,
    /// Where those lead.
    inside: Option<Inside>,
}

impl Session {
    /// Makes a sandbox and starts its interpreter, without waiting for that to come up.
    pub async fn open(
        engine: &Engine,
        toolchain: Arc<Toolchain>,
        request: SandboxRequest,
    ) -> Result<Self, Error> {
        Self::open_from(engine, toolchain, request, None, KernelSource::default()).await
    }

    /// The same with a copy of a warm interpreter, and as was planned for others of its kind.
    pub(crate) async fn open_from(
        engine: &Engine,
        toolchain: Arc<Toolchain>,
        request: SandboxRequest,
        planned: Option<Plan>,
        source: KernelSource,
    ) -> Result<Self, Error> {
        request.check()?;
        check_weakenings(&request.weaken)?;
        let toolchain = furnished(engine, toolchain, &request).await?;
        ability::check_sandbox(&toolchain, &request)?;
        let limits = request.limits.resolve(&toolchain.limits, &capacity())?;
        let plan = match planned {
            Some(planned) => Plan { limits, ..planned },
            None => plan(engine, &toolchain, &request, limits)?,
        };
        let (_, id) = new_ids()?;
        let network = request.network.clone();
        let log = Log::default();
        let place = Furniture {
            engine,
            toolchain: &toolchain,
            request: &request,
            network: network.clone(),
            plan: &plan,
            limits: &limits,
            source,
            log: &log,
        };
        let (sandbox, kernel) = place.make().await?;
        let sandbox = Arc::new(sandbox);
        let mut published = Vec::new();
        let mut inside = None;
        if !request.publish.is_empty() {
            let led_to: Inside = Arc::new(Mutex::new(Arc::downgrade(&sandbox)));
            for wanted in &request.publish {
                let led_to = Arc::clone(&led_to);
                published.push(Published::open(*wanted, led_to, engine.world()).await?);
            }
            inside = Some(led_to);
        }
        let mut live = Live::default();
        live.begin(kernel);
        live.tools.clone_from(&request.tools);
        Ok(Self {
            id,
            request,
            toolchain,
            limits,
            plan,
            engine: engine.clone(),
            source: KernelSource {
                early: false,
                ..source
            },
            sandbox: Mutex::new(sandbox),
            replaced: watch::channel(0).0,
            live: tokio::sync::Mutex::new(live),
            current: Current::default(),
            answers: Mutex::new(None),
            network: Mutex::new(network),
            log,
            later: Mutex::default(),
            resets: Arc::default(),
            published,
            inside,
        })
    }

    /// Makes a session that nobody has used yet another caller's own.
    pub(crate) async fn adopt(mut self, request: SandboxRequest) -> Result<Self, Error> {
        request.check()?;
        ability::check_sandbox(&self.toolchain, &request)?;
        let limits = request
            .limits
            .resolve(&self.toolchain.limits, &capacity())?;
        let sandbox = self.sandbox();
        let counted = |limits: &Limits| {
            let memory = (limits.memory_bytes, limits.processes);
            (memory, limits.cpus, limits.cpu_shares)
        };
        if counted(&limits) != counted(&self.limits) {
            sandbox.limit(limits).await?;
        }
        self.limits = limits;
        self.plan.limits = limits;
        furnish(&sandbox, &request).await?;
        self.live.get_mut().tools.clone_from(&request.tools);
        self.request = request;
        Ok(self)
    }

    pub fn id(&self) -> SandboxId {
        self.id
    }

    pub fn request(&self) -> &SandboxRequest {
        &self.request
    }

    pub fn toolchain(&self) -> &Toolchain {
        &self.toolchain
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Waits until the interpreter is ready for code. Not needed before a run.
    pub async fn ready(&self) -> Result<(), Error> {
        self.live.lock().await.ready().await?;
        self.sandbox().prepare();
        Ok(())
    }

    /// Runs code. What it prints, shows and calls is told to the observer as it happens.
    ///
    /// Dropping the future ends the run and loses the interpreter's state.
    pub async fn run(
        &self,
        code: &CodeRequest,
        observer: &mut dyn Observer,
    ) -> Result<RunResult, Error> {
        let stdin = code.stdin.as_ref().map_or(Stdin::Empty, |content| {
            Stdin::Bytes(content.as_bytes().to_vec())
        });
        self.run_with(code, stdin, &Stop::default(), observer).await
    }

    /// The same, with standard input that may still be coming (the request's own is not looked at), and with what ends just this run.
    pub async fn run_with(
        &self,
        code: &CodeRequest,
        stdin: Stdin,
        stop: &Stop,
        observer: &mut dyn Observer,
    ) -> Result<RunResult, Error> {
        code.check()?;
        ability::check_run(&self.toolchain, code, &stdin)?;
        let received = Instant::now();
        let limits = self.run_limits(&code.limits)?;
        let mut live = tokio::select! {
            live = self.live.lock() => live,
            () = stop.stopped() => return Err(Stop::before_it_began()),
        };
        let _going = self.current.enter(stop);
        let began = self.log.mark();
        let mut result = if self.toolchain.kernel.is_some() {
            self.run_in_kernel(&mut live, (code, stdin, stop), limits, received, observer)
                .await
        } else {
            self.run_program((code, stdin, stop), limits, received, observer)
                .await
        }?;
        (result.connections, result.connections_omitted) = self.log.result(&began);
        result.error = failure::of(&result.language, &code.code, &result);
        Ok(result)
    }

    /// Runs a command beside whatever else runs.
    pub async fn command(
        &self,
        request: &CommandRequest,
        observer: &mut dyn Observer,
    ) -> Result<RunResult, Error> {
        self.command_with(request, &Stop::default(), observer).await
    }

    /// The same with what ends just this command.
    pub async fn command_with(
        &self,
        request: &CommandRequest,
        stop: &Stop,
        observer: &mut dyn Observer,
    ) -> Result<RunResult, Error> {
        request.check()?;
        ability::check_command(&self.request)?;
        let received = Instant::now();
        let limits = self.run_limits(&request.limits)?;
        let command = self.beside(request, limits);
        let prepared = Prepared::new(command, Stage::Run, Role::Beside)?;
        let sandbox = self.sandbox();
        let _going = self.current.enter(stop);
        let before = Snapshot::of(sandbox.walk().await?.0);
        let began = self.log.mark();
        let mut process = sandbox.start(prepared.launch(&prepared.fds()))?;
        let stdin = request.stdin.as_ref();
        let stdin = stdin.map_or(Stdin::Empty, |content| {
            Stdin::Bytes(content.as_bytes().to_vec())
        });
        let finished = prepared
            .finish_or_stop(&mut process, stdin, received, stop, &mut sink(observer))
            .await?;
        let id = new_run_id()?;
        let mut result = self.program_result(id, &sandbox, None, Some(finished), limits);
        stop.tell(&mut result);
        (result.connections, result.connections_omitted) = self.log.result(&began);
        let collected = before.changes(sandbox.walk_after().await?);
        let (files, complete) = collected.listing();
        (result.files, result.files_truncated) = (files, !complete);
        Ok(result)
    }

    /// A command with the session's environment and its own.
    fn beside(&self, request: &CommandRequest, limits: Limits) -> Command {
        let mut env = self.request.env.clone();
        env.extend(request.env.clone());
        Command {
            argv: request.words(),
            env: environment(
                self.toolchain.image.as_deref(),
                &self.furniture().variables(),
                &self.network(),
                &env,
            ),
            cwd: request
                .cwd
                .clone()
                .map_or_else(|| self.plan.workdir.clone(), PathBuf::from),
            limits,
        }
    }

    /// Ends the run and the commands that are going on, gently first. Without one nothing happens; those that wait for their turn,
    /// and what is done at terminals, are not touched.
    pub fn interrupt(&self) {
        self.current.stop();
    }

    /// Answers a call of the run that is going on; later ones are dropped.
    pub fn answer(&self, call: u64, answer: ToolAnswer) {
        if let Some(answers) = &*lock(&self.answers) {
            let _ = answers.send((call, answer));
        }
    }

    /// As if it were newly made: another sandbox with its first files and a fresh interpreter takes the place of this one.
    pub async fn reset(&self) -> Result<(), Error> {
        // Before the run hears of it, so that it does not say that what it leaves is kept.
        let waiting = Arc::clone(&self.resets);
        self.interrupt();
        let mut live = self.live.lock().await;
        drop(waiting);
        live.tools.clone_from(&self.request.tools);
        lock(&self.network).clone_from(&self.request.network);
        lock(&self.later).clear();
        self.replace(&mut live).await
    }

    /// What it uses now, as counted by the system's kernel. `None` where cgroups were given up.
    pub fn usage(&self) -> Option<Counters> {
        self.sandbox().counters()
    }

    /// Of that just the memory, which takes a sixth of the time.
    pub fn memory(&self) -> Option<u64> {
        self.sandbox().memory()
    }

    /// Its workspace.
    pub fn files(&self) -> Files {
        Files::new(self.sandbox(), &self.limits)
    }

    /// Whether these are still the files of its workspace: a sandbox that was replaced has gone with all that is in it.
    pub fn has(&self, files: &Files) -> bool {
        files.are_in(&self.sandbox())
    }

    /// Changes whenever its sandbox is replaced.
    pub fn replacements(&self) -> watch::Receiver<u64> {
        self.replaced.subscribe()
    }

    /// Changes whom it may reach, at once: connections that are no longer allowed are cut.
    pub async fn set_network(&self, network: &Network) -> Result<(), Error> {
        let without = || {
            Error::Conflict {
            reason: "the sandbox was made without a network and can have none; make one with network [] to open it later".into(),
        }
        };
        let sandbox = self.sandbox();
        sandbox.egress().ok_or_else(without)?;
        if network.intercept && !self.request.network.intercept {
            let reason = "the sandbox was made without intercept and does not trust our certificate; make one with it";
            return Err(Error::Conflict {
                reason: reason.into(),
            });
        }
        let before = self.furniture().kernel_environment(&sandbox);
        *lock(&self.network) = network.clone();
        // As it is now: one that takes its place later finds these rules.
        let sandbox = self.sandbox();
        let egress = sandbox.egress().ok_or_else(without)?;
        egress.change(network);
        let mut now = self.furniture().kernel_environment(&sandbox);
        now.retain(|name, value| before.get(name) != Some(value));
        lock(&self.later).extend(now);
        for port in egress.missing() {
            // A port that code inside has taken stays with it.
            if let Ok(door) = sandbox.socket(Some(port)).await {
                let _ = egress.open(door);
            }
        }
        Ok(())
    }

    /// Whom it may reach now.
    pub fn network(&self) -> Network {
        lock(&self.network).clone()
    }

    /// The connections that were tried in it, and how many more there were.
    pub fn connections(&self) -> (Vec<Connection>, u64) {
        self.log.all()
    }

    /// Those that are in no result yet, for whoever ends it.
    pub fn untold_connections(&self) -> (Vec<Connection>, u64) {
        self.log.untold()
    }

    /// Ports that the host listens for.
    pub fn published(&self) -> Vec<Publish> {
        self.published.iter().map(|one| one.at).collect()
    }

    /// Changes what the sandbox may use from now on.
    pub async fn set_limits(&self, patch: &LimitsPatch) -> Result<Limits, Error> {
        let patch = patch.clone().or(&self.request.limits);
        let limits = patch.resolve(&self.toolchain.limits, &capacity())?;
        self.sandbox().limit(limits).await?;
        Ok(limits)
    }

    pub(crate) fn sandbox(&self) -> Arc<Sandbox> {
        Arc::clone(&lock(&self.sandbox))
    }

    fn run_limits(&self, patch: &LimitsPatch) -> Result<Limits, Error> {
        let all = patch.clone().or(&self.request.limits);
        all.resolve(&self.toolchain.limits, &capacity())
    }

    fn furniture(&self) -> Furniture<'_> {
        Furniture {
            engine: &self.engine,
            toolchain: &self.toolchain,
            request: &self.request,
            network: self.network(),
            plan: &self.plan,
            limits: &self.limits,
            source: self.source,
            log: &self.log,
        }
    }

    /// Whether somebody waits to begin it anew. What runs until then leaves nothing to those that follow.
    fn begins_anew(&self) -> bool {
        Arc::strong_count(&self.resets) > 1
    }

    /// Another sandbox in place of this one.
    async fn replace(&self, live: &mut Live) -> Result<(), Error> {
        let (sandbox, kernel) = self.furniture().make().await?;
        let sandbox = Arc::new(sandbox);
        if let Some(inside) = &self.inside {
            *lock(inside) = Arc::downgrade(&sandbox);
        }
        live.begin(kernel);
        let old = std::mem::replace(&mut *lock(&self.sandbox), Arc::clone(&sandbox));
        // Not before it is here: rules that are set meanwhile are found now, or whoever sets them finds it.
        if let Some(egress) = sandbox.egress() {
            egress.change(&lock(&self.network));
        }
        // Whoever sits at a terminal in it holds on to it.
        old.end();
        self.replaced.send_modify(|count| *count += 1);
        Ok(())
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::internal("session", error)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Each change of what these hold is one call, so a panic elsewhere leaves them whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Output of a program as events of a run.
fn sink(observer: &mut dyn Observer) -> impl FnMut(Stream, &[u8]) {
    move |stream, bytes: &[u8]| {
        observer.event(match stream {
            Stream::Stdout => RunEvent::Stdout(bytes.to_vec()),
            Stream::Stderr => RunEvent::Stderr(bytes.to_vec()),
        });
    }
}
