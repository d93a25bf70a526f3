//! One sandbox, from the engine's side: opened, used, closed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use belljar_jail::beneath::Found;
use belljar_jail::{
    Counters, Event, Handle, Meter, Owner, Plan, Request, ZygoteId, namespace_of, socket_in,
};
use belljar_spec::{Error, Limits, Network, Report};
use tokio::sync::mpsc;

use crate::advice;
use crate::docker::{self, Container, RemoteFiles};
use crate::egress::{Egress, Log};
use crate::engine::{Engine, Message, encode, keeper_gone};
use crate::files::{self, InputFile, Source};
use crate::process::{Launch, Master, Process};

/// A sandbox that was asked for. Whoever asked may go away before it is there: it is closed all the same.
struct Asked {
    engine: Engine,
    handle: Handle,
}

pub(crate) struct Sandbox {
    backend: Backend,
    next: AtomicU32,
    /// The plan's files as they were when they had been written.
    pub inputs: Vec<Found>,
    pub report: Report,
    /// Absent where cgroups were given up, and of a container.
    meter: Option<Meter>,
    /// The sockets of its network, until they are served.
    doors: Mutex<Vec<OwnedFd>>,
    egress: OnceLock<Egress>,
    /// So many sockets of its network were asked for.
    sockets: AtomicU64,
    /// We have had it put behind all others.
    behind: AtomicBool,
}

/// What isolates.
enum Backend {
    Native {
        asked: Asked,
        events: tokio::sync::Mutex<mpsc::UnboundedReceiver<Message>>,
        workspace: OwnedFd,
        owner: Owner,
    },
    Docker {
        made: Box<docker::Sandbox>,
        engine: Engine,
        /// Its namespace, if it has one that is served.
        network: Option<Arc<OwnedFd>>,
    },
}

/// What a native sandbox's workspace is on this host.
pub(crate) struct Native<'a> {
    pub workspace: BorrowedFd<'a>,
    pub owner: Owner,
}

impl Sandbox {
    /// A confined, verified sandbox with the plan's files in it.
    pub async fn open(
        engine: &Engine,
        container: Option<&Container>,
        plan: Plan,
    ) -> Result<Self, Error> {
        if let Some(container) = container {
            return Box::pin(Self::open_container(engine, container, plan)).await;
        }
        let (asked, events, open) = Asked::new(engine, plan, None)?;
        engine.give_early_network()?;
        engine.send(&open, &[])?;
        engine.give_network()?;
        Self::opened(asked, events).await
    }

    /// The same, and a command that is started as soon as that is so; wait for it with [`Process::started`].
    pub async fn open_with(
        engine: &Engine,
        container: Option<&Container>,
        plan: Plan,
        first: Launch<'_>,
    ) -> Result<(Self, Process), Error> {
        if let Some(container) = container {
            let sandbox = Box::pin(Self::open_container(engine, container, plan)).await?;
            let process = sandbox.start(first)?;
            return Ok((sandbox, process));
        }
        // Both are written before either is sent: the keeper may have to share this core, and then begins when we wait.
        let fds = first.fds;
        let (asked, events, open) = Asked::new(engine, plan, first.zygote)?;
        let (process, start) = Process::new_in(engine, asked.handle, 1, first)?;
        engine.give_early_network()?;
        engine.send(&open, &[])?;
        engine.send(&start, fds)?;
        engine.give_network()?;
        let sandbox = Self::opened(asked, events).await?;
        sandbox.next.store(2, Ordering::Relaxed);
        Ok((sandbox, process))
    }

    async fn opened(
        asked: Asked,
        mut events: mpsc::UnboundedReceiver<Message>,
    ) -> Result<Self, Error> {
        let error = match events.recv().await {
            Some((Event::Opened { opened, .. }, fds)) if !fds.is_empty() => {
                let mut doors = fds;
                let workspace = doors.remove(0);
                let backend = Backend::Native {
                    asked,
                    events: tokio::sync::Mutex::new(events),
                    workspace,
                    owner: Owner {
                        uid: opened.uid,
                        gid: opened.gid,
                    },
                };
                return Ok(Self {
                    backend,
                    next: AtomicU32::new(1),
                    inputs: opened.inputs,
                    report: opened.report,
                    meter: opened.meter,
                    doors: Mutex::new(doors),
                    egress: OnceLock::new(),
                    sockets: AtomicU64::new(0),
                    behind: AtomicBool::new(false),
                });
            }
            Some((Event::Refused { error, .. }, _)) => advice::explain(&error),
            _ => keeper_gone(),
        };
        asked.close(&mut events).await;
        Err(error)
    }

    async fn open_container(
        engine: &Engine,
        container: &Container,
        plan: Plan,
    ) -> Result<Self, Error> {
        let opened = engine.docker().await?.open(container, &plan).await;
        if opened.is_err() {
            // What its name means may have changed.
            engine.images().forget(container);
        }
        let mut made = opened?;
        let door = made.doors.first().map(AsFd::as_fd);
        let network = door.and_then(|door| namespace_of(door).ok()).map(Arc::new);
        let mut sandbox = Self {
            next: AtomicU32::new(1),
            inputs: Vec::new(),
            report: made.report.clone(),
            meter: None,
            doors: Mutex::new(std::mem::take(&mut made.doors)),
            egress: OnceLock::new(),
            sockets: AtomicU64::new(0),
            behind: AtomicBool::new(false),
            backend: Backend::Docker {
                made: Box::new(made),
                engine: engine.clone(),
                network,
            },
        };
        let files = plan.files;
        for (path, text) in &files {
            let file = InputFile {
                destination: path.to_string_lossy().into_owned(),
                content: Source::Bytes(text.clone().into_bytes()),
            };
            sandbox.put(file).await?;
        }
        if !files.is_empty() {
            sandbox.inputs = sandbox.walk().await?.0;
        }
        Ok(sandbox)
    }

    /// Its workspace: a directory of this host, or what a container's agent makes of one.
    pub fn place(&self) -> Result<Native<'_>, RemoteFiles> {
        match &self.backend {
            Backend::Native {
                workspace, owner, ..
            } => Ok(Native {
                workspace: workspace.as_fd(),
                owner: *owner,
            }),
            Backend::Docker { made, .. } => Err(RemoteFiles::new(Arc::clone(&made.inside))),
        }
    }

    /// Of a container.
    pub fn remote(&self) -> Result<RemoteFiles, Error> {
        match self.place() {
            Ok(_) => Err(Error::internal("sandbox", "it is no container")),
            Err(remote) => Ok(remote),
        }
    }

    pub fn start(&self, launch: Launch<'_>) -> Result<Process, Error> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        match &self.backend {
            Backend::Native { asked, .. } => {
                Process::start(&asked.engine, asked.handle, id, launch)
            }
            Backend::Docker { made, .. } => {
                let (sender, events) = mpsc::unbounded_channel();
                let order = docker::Order {
                    id,
                    command: launch.command,
                    role: launch.role,
                    stage: launch.stage,
                    fds: launch.fds,
                };
                docker::start(&made.inside, order, sender)?;
                Ok(Process::new(
                    Master::Agent(made.inside.link.clone()),
                    id,
                    events,
                ))
            }
        }
    }

    /// What it used so far, as counted by the kernel.
    pub fn counters(&self) -> Option<Counters> {
        match &self.backend {
            Backend::Native { .. } => self.meter.as_ref().map(Meter::read),
            Backend::Docker { made, .. } => {
                made.inside.refresh_later();
                Some(made.inside.counters())
            }
        }
    }

    pub fn meter(&self) -> Option<&Meter> {
        self.meter.as_ref()
    }

    /// Others come first from now on, or no longer. Nothing depends on it.
    pub fn put_behind(&self, behind: bool) {
        if let Backend::Native { asked, .. } = &self.backend {
            let sandbox = asked.handle;
            self.behind.store(behind, Ordering::Relaxed);
            let _ = asked.engine.ask(&Request::Behind { sandbox, behind }, &[]);
        }
    }

    pub fn is_behind(&self) -> bool {
        self.behind.load(Ordering::Relaxed)
    }

    /// Just the memory that it holds.
    pub fn memory(&self) -> Option<u64> {
        match &self.backend {
            Backend::Native { .. } => self.meter.as_ref().map(Meter::memory),
            Backend::Docker { made, .. } => {
                made.inside.refresh_later();
                Some(made.inside.memory())
            }
        }
    }

    /// What it used, as exactly as can be, after something has ended.
    pub async fn final_counters(&self) -> Option<Counters> {
        match &self.backend {
            Backend::Native { .. } => self.meter.as_ref().map(Meter::read_final),
            Backend::Docker { made, .. } => Some(Box::pin(made.inside.fresh_counters()).await),
        }
    }

    /// Opens what is read around each run, so that the first has nothing to open.
    pub fn prepare(&self) {
        if let Some(meter) = &self.meter {
            meter.prepare();
        }
    }

    /// Just CPU time and kills for want of memory.
    pub fn brief_counters(&self) -> Counters {
        match &self.backend {
            Backend::Native { .. } => self.meter.as_ref().map(Meter::read_brief),
            Backend::Docker { made, .. } => Some(made.inside.counters()),
        }
        .unwrap_or_default()
    }

    pub async fn put(&self, file: InputFile) -> Result<(), Error> {
        match self.place() {
            Ok(native) => files::put(native.workspace, file, native.owner),
            Err(remote) => Box::pin(remote.put(file, false)).await,
        }
    }

    /// In place of what may be there.
    pub async fn replace(&self, file: InputFile) -> Result<(), Error> {
        match self.place() {
            Ok(native) => files::replace(native.workspace, file, native.owner),
            Err(remote) => Box::pin(remote.put(file, true)).await,
        }
    }

    /// The regular files in its workspace, and whether those are all.
    pub async fn walk(&self) -> Result<(Vec<Found>, bool), Error> {
        let walked = match self.place() {
            Ok(native) => files::walk(native.workspace).await,
            Err(remote) => Box::pin(remote.walk(files::BOUNDS)).await,
        };
        walked.map_err(|error| Error::internal("listing the workspace", error))
    }

    /// The same after code has run. A container that somebody has ended takes its files along, which is no reason not to tell how the
    /// code ended.
    pub async fn walk_after(&self) -> Result<(Vec<Found>, bool), Error> {
        match (self.walk().await, &self.backend) {
            (Err(_), Backend::Docker { made, .. }) if made.inside.link.is_gone() => {
                Ok((Vec::new(), false))
            }
            (walked, _) => walked,
        }
    }

    /// Begins to serve its network, if it has one. What was tried meanwhile has waited.
    pub fn serve(&self, network: &Network, log: &Log) -> Result<(), Error> {
        let mut doors = self.doors.lock().unwrap_or_else(PoisonError::into_inner);
        if doors.is_empty() {
            return Ok(());
        }
        let world = match &self.backend {
            Backend::Native { asked, .. } => asked.engine.world(),
            Backend::Docker { engine, .. } => engine.world(),
        };
        let egress = Egress::serve(std::mem::take(&mut *doors), network, world, log.clone())
            .map_err(|error| Error::internal("network", error))?;
        let _ = self.egress.set(egress);
        Ok(())
    }

    /// What a process finds that is given this: a container's image has variables of its own.
    pub fn environment(&self, own: Vec<(String, String)>) -> Vec<(String, String)> {
        match &self.backend {
            Backend::Native { .. } => own,
            Backend::Docker { made, .. } => made.inside.environment(&own),
        }
    }

    /// A socket in its network: to be connected to what listens inside, or one that listens there at a port.
    pub async fn socket(&self, listen: Option<u16>) -> Result<OwnedFd, Error> {
        let failed = |error: &dyn std::fmt::Display| Error::internal("network", error);
        let (asked, events) = match &self.backend {
            Backend::Native { asked, events, .. } => (asked, events),
            Backend::Docker { network, .. } => {
                let none = || failed(&"the sandbox has none of its own");
                let namespace = network.clone().ok_or_else(none)?;
                let work = move || socket_in(&namespace, listen);
                let made = tokio::task::spawn_blocking(work).await;
                let made = made.map_err(|error| failed(&error))?;
                return made.map_err(|error| failed(&error));
            }
        };
        let mut events = events.lock().await;
        let id = self.sockets.fetch_add(1, Ordering::Relaxed);
        let request = Request::Socket {
            sandbox: asked.handle,
            id,
            listen,
        };
        asked.engine.ask(&request, &[])?;
        loop {
            match events.recv().await {
                Some((Event::Socket { id: of, error, .. }, mut fds)) if of == id => {
                    return match error {
                        None => fds.pop().ok_or_else(keeper_gone),
                        Some(error) => Err(failed(&error)),
                    };
                }
                // Of someone who asked and did not wait.
                Some((Event::Socket { .. } | Event::Limited { .. }, _)) => {}
                _ => return Err(keeper_gone()),
            }
        }
    }

    /// What serves its network, if it has one.
    pub fn egress(&self) -> Option<&Egress> {
        self.egress.get()
    }

    /// Waits until what its programs have sent before they ended has been passed on; not for long.
    pub async fn settle(&self) {
        if let Some(egress) = self.egress() {
            egress.settle().await;
        }
    }

    /// Ends everything in it, also if others hold on to it: those who wait for something in it hear how that ended.
    pub fn end(&self) {
        match &self.backend {
            Backend::Native { asked, .. } => {
                let (sandbox, told) = (asked.handle, true);
                // One whose keeper has gone has ended.
                let _ = asked.engine.ask(&Request::Close { sandbox, told }, &[]);
            }
            Backend::Docker { made, .. } => made.inside.link.hang_up(),
        }
    }

    /// Changes what the sandbox may use; returns when that holds. A sandbox that cannot have the new limits is ended.
    pub async fn limit(&self, limits: Limits) -> Result<(), Error> {
        let (asked, events) = match &self.backend {
            Backend::Native { asked, events, .. } => (asked, events),
            Backend::Docker { made, .. } => {
                Box::pin(made.inside.limit(limits)).await;
                return Ok(());
            }
        };
        let mut events = events.lock().await;
        let request = Request::Limit {
            sandbox: asked.handle,
            limits,
        };
        asked.engine.ask(&request, &[])?;
        loop {
            match events.recv().await {
                Some((Event::Limited { .. }, _)) => return Ok(()),
                Some((Event::Refused { error, .. }, _)) => return Err(advice::explain(&error)),
                Some((Event::Socket { .. }, _)) => {}
                _ => return Err(keeper_gone()),
            }
        }
    }
}

impl Asked {
    /// With the words in which the keeper is to be asked.
    fn new(
        engine: &Engine,
        plan: Plan,
        zygote: Option<ZygoteId>,
    ) -> Result<(Self, mpsc::UnboundedReceiver<Message>, Vec<u8>), Error> {
        let (handle, events) = engine.register()?;
        let asked = Self {
            engine: engine.clone(),
            handle,
        };
        let request = Request::Open {
            sandbox: handle,
            plan: Box::new(plan),
            zygote,
        };
        Ok((asked, events, encode(&request)?))
    }

    /// Returns when there is no trace of it.
    async fn close(&self, events: &mut mpsc::UnboundedReceiver<Message>) {
        let sandbox = self.handle;
        let told = false;
        let close = Request::Close { sandbox, told };
        if self.engine.ask(&close, &[]).is_ok() {
            while let Some((event, _)) = events.recv().await {
                if matches!(event, Event::Closed { .. }) {
                    break;
                }
            }
        }
    }
}

impl Drop for Asked {
    /// Asks the keeper to leave no trace of it, and does not wait for that.
    fn drop(&mut self) {
        if self.engine.is_leaving() {
            return;
        }
        let sandbox = self.handle;
        let told = false;
        let _ = self.engine.ask(&Request::Close { sandbox, told }, &[]);
        self.engine.forget((sandbox, None));
    }
}
