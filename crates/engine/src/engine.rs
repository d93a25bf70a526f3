//! The engine's end of the keeper's socket: sends requests, hands each sandbox its events.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use belljar_jail::{Channel, CommandId, Event, Handle, Request, host, keeper};
use belljar_spec::{Error, Network};
use tokio::sync::{Notify, mpsc};

use crate::advice;
use crate::docker::{Docker, Images, Settings};
use crate::egress::{Outside, Totals, World};
use crate::packages::{PackageSettings, Packages};
use crate::runtime::Toolchain;
use crate::socket::{Ready, Socket};

/// A keeper that runs, before the async runtime does.
///
/// Made while the process has a single thread; turned into an [`Engine`] inside the runtime.
#[must_use]
pub struct Starting(Channel);

/// Makes sandboxes. Cheap to clone; when the last one is dropped the keeper ends, and everything in it.
#[derive(Clone)]
pub struct Engine(Arc<Last>);

/// Hangs up on the keeper when it is dropped, although the dispatcher still holds the socket.
struct Last(Arc<Inner>);

impl Drop for Last {
    fn drop(&mut self) {
        if !self.0.leaving.load(Ordering::Relaxed) {
            lock(&self.0.channel).shut_down();
        }
    }
}

struct Inner {
    channel: Mutex<Channel>,
    /// Told when the socket has not taken all of a request.
    behind: Notify,
    /// Told when the keeper has closed its end.
    gone: Notify,
    sandboxes: Mutex<Table>,
    /// The keeper waits for a network namespace.
    owes_network: AtomicBool,
    /// As often as there are programs under way, and once more.
    programs: Arc<()>,
    /// This process is about to end, and the keeper clears up then.
    leaving: AtomicBool,
    /// The other backend, once somebody needs it.
    docker: tokio::sync::OnceCell<Arc<Docker>>,
    docker_settings: OnceLock<Settings>,
    images: Images,
    /// The way out, for sandboxes that have one.
    world: OnceLock<Arc<World>>,
    packages: OnceLock<Packages>,
}

#[derive(Default)]
struct Table {
    next: Handle,
    /// `None` once the keeper has gone.
    events: Option<HashMap<Subject, mpsc::UnboundedSender<Message>>>,
}

/// Whom an event is about: a sandbox, or a command in it.
type Subject = (Handle, Option<CommandId>);

/// An event of the keeper with the descriptors that came along.
pub(crate) type Message = (Event, Vec<OwnedFd>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves these tables whole: each change is one call.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// Starts the keeper. Must be called before the process has a second thread.
    pub fn start() -> Result<Starting, Error> {
        keeper::spawn()
            .map(Starting)
            .map_err(|error| advice::explain(&error))
    }

    /// Hangs up, and returns when the keeper has left nothing on the host and has gone, and no container is left.
    pub async fn shut_down(&self) {
        self.containers_gone().await;
        lock(&self.0.0.channel).hang_up();
        self.0.0.gone.notified().await;
    }

    /// The process ends with its next run. That tells the keeper enough, and nobody waits until it has been told sandbox by sandbox.
    pub fn leave(&self) {
        self.0.0.leaving.store(true, Ordering::Relaxed);
    }

    /// Nobody needs it any more, although this process goes on: everything is ended now.
    pub fn hang_up(&self) {
        lock(&self.0.0.channel).shut_down();
    }

    /// A program is under way while this is kept. Also whether it is the only one.
    pub(crate) fn begin_program(&self) -> (Arc<()>, bool) {
        let program = Arc::clone(&self.0.0.programs);
        let is_alone = Arc::strong_count(&program) == 2;
        (program, is_alone)
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.0.0.leaving.load(Ordering::Relaxed)
    }

    /// Returns when no container is left, nor what was made for one.
    pub async fn containers_gone(&self) {
        if let Some(docker) = self.0.0.docker.get() {
            docker.settled().await;
        }
    }

    /// Whether the keeper is still there. Once it is not, nothing can run any more.
    pub fn is_alive(&self) -> bool {
        lock(&self.0.0.sandboxes).events.is_some()
    }

    /// How containers are made. Counts if it comes before the first of them.
    pub fn set_docker(&self, settings: Settings) {
        let _ = self.0.0.docker_settings.set(settings);
    }

    pub fn docker_settings(&self) -> Settings {
        self.0.0.docker_settings.get().cloned().unwrap_or_default()
    }

    /// The container engine; an error says what to start.
    pub(crate) async fn docker(&self) -> Result<&Arc<Docker>, Error> {
        let connect = || Docker::connect(self.docker_settings());
        self.0.0.docker.get_or_try_init(connect).await
    }

    /// Removes containers that killed processes of ours have left with the container engine, now and for as long as this is polled.
    pub async fn sweep_containers(&self) {
        crate::docker::sweep(self.docker_settings()).await;
    }

    pub(crate) fn images(&self) -> &Images {
        &self.0.0.images
    }

    /// How sandboxes reach the outside. Before the first that does.
    pub fn set_outside(&self, outside: &Outside) {
        let _ = self.0.0.world.set(Arc::new(World::new(outside)));
    }

    /// Where packages are kept and come from. Before the first are asked for.
    pub fn set_packages(&self, settings: PackageSettings) {
        let _ = self.0.0.packages.set(Packages::new(settings));
    }

    /// The toolchain with packages, installed now if they were never before.
    pub async fn with_packages(
        &self,
        toolchain: &Toolchain,
        wanted: &[String],
    ) -> Result<Toolchain, Error> {
        let leave = std::future::ready(Ok(()));
        self.with_packages_after(toolchain, wanted, leave).await
    }

    /// The same. To install takes `leave`, which is not asked for otherwise.
    pub async fn with_packages_after<L>(
        &self,
        toolchain: &Toolchain,
        wanted: &[String],
        leave: impl Future<Output = Result<L, Error>>,
    ) -> Result<Toolchain, Error> {
        let packages = self.0.0.packages.get();
        let packages = packages.ok_or_else(|| Error::NotSupported {
            what: "packages".into(),
            reason: "there is no directory to keep them in".into(),
        })?;
        Box::pin(packages.add(self, toolchain, wanted, leave)).await
    }

    /// What tells installers inside a sandbox where packages are.
    pub(crate) fn package_variables(&self, network: &Network) -> BTreeMap<String, String> {
        if network.is_none() {
            return BTreeMap::new();
        }
        let packages = self.0.0.packages.get();
        packages
            .map(|packages| packages.variables(network))
            .unwrap_or_default()
    }

    pub(crate) fn world(&self) -> Arc<World> {
        let make = || Arc::new(World::new(&Outside::default()));
        Arc::clone(self.0.0.world.get_or_init(make))
    }

    /// What all sandboxes together have done in the network.
    pub fn traffic(&self) -> Totals {
        let world = self.0.0.world.get();
        world.map(|world| world.totals()).unwrap_or_default()
    }

    pub(crate) fn register(&self) -> Result<(Handle, mpsc::UnboundedReceiver<Message>), Error> {
        let handle = {
            let mut table = lock(&self.0.0.sandboxes);
            table.next += 1;
            table.next
        };
        Ok((handle, self.listen((handle, None))?))
    }

    /// Everything the keeper says about a sandbox or a command, from now on until it is forgotten.
    pub(crate) fn listen(
        &self,
        subject: Subject,
    ) -> Result<mpsc::UnboundedReceiver<Message>, Error> {
        let mut table = lock(&self.0.0.sandboxes);
        let events = table.events.as_mut().ok_or_else(keeper_gone)?;
        let (sender, receiver) = mpsc::unbounded_channel();
        events.insert(subject, sender);
        Ok(receiver)
    }

    pub(crate) fn forget(&self, subject: Subject) {
        if let Some(events) = &mut lock(&self.0.0.sandboxes).events {
            events.remove(&subject);
        }
    }

    /// The first sandbox's network namespace, if it has been made already.
    pub(crate) fn give_early_network(&self) -> Result<(), Error> {
        let owed = || self.0.0.owes_network.swap(false, Ordering::Relaxed);
        if !belljar_jail::has_early_network() || !owed() {
            return Ok(());
        }
        self.send_network()
    }

    /// Makes the first sandbox's network namespace, while the keeper and the sandbox make the rest. Later ones make their own.
    pub(crate) fn give_network(&self) -> Result<(), Error> {
        if !self.0.0.owes_network.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        // The keeper first, should it share this core: it has but to pass on the plan.
        std::thread::yield_now();
        self.send_network()
    }

    fn send_network(&self) -> Result<(), Error> {
        // Where it cannot be made, the sandbox tries and says why.
        let made = belljar_jail::make_network().ok();
        let fds: Vec<_> = made.iter().map(AsFd::as_fd).collect();
        self.ask(&Request::Network, &fds)
    }

    pub(crate) fn ask(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        self.send(&encode(request)?, fds)
    }

    /// Sends a request that has been written already.
    pub(crate) fn send(&self, request: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        // Never waits: the keeper may itself be waiting for us to read.
        let all = lock(&self.0.0.channel).offer(request, fds);
        if !all.map_err(|_| keeper_gone())? {
            self.0.0.behind.notify_one();
        }
        Ok(())
    }
}

impl Starting {
    /// Goes on inside a runtime.
    pub fn finish(self) -> Result<Engine, Error> {
        let failed = |error: io::Error| Error::internal("keeper socket", error);
        let socket = self.0.as_fd().try_clone_to_owned().map_err(failed)?;
        let socket = Socket::new(socket).map_err(failed)?;
        let table = Table {
            next: 0,
            events: Some(HashMap::new()),
        };
        let inner = Arc::new(Inner {
            channel: Mutex::new(self.0),
            behind: Notify::new(),
            gone: Notify::new(),
            sandboxes: Mutex::new(table),
            owes_network: AtomicBool::new(host::is_root()),
            programs: Arc::default(),
            leaving: AtomicBool::new(false),
            docker: tokio::sync::OnceCell::new(),
            docker_settings: OnceLock::new(),
            images: Images::default(),
            world: OnceLock::new(),
            packages: OnceLock::new(),
        });
        tokio::spawn(dispatch(Arc::clone(&inner), socket));
        Ok(Engine(Arc::new(Last(inner))))
    }
}

/// Reads the keeper's events, and sends what had to wait, until either side hangs up. The socket is the channel's once more, to wait on.
async fn dispatch(inner: Arc<Inner>, mut socket: Socket) {
    loop {
        let owes = lock(&inner.channel).is_behind();
        let ready = tokio::select! {
            ready = socket.ready(owes) => ready,
            () = inner.behind.notified() => continue,
        };
        let read = match ready {
            Err(_) => break,
            Ok(Ready::Send(mut room)) => match room.try_io(|_| lock(&inner.channel).flush()) {
                Ok(Err(_)) => break,
                _ => continue,
            },
            Ok(Ready::Receive(mut arrived)) => arrived.try_io(|_| lock(&inner.channel).fill()),
        };
        match read {
            Ok(Ok(true)) => {}
            // It was not there after all.
            Err(_) => continue,
            _ => break,
        }
        while let Some(frame) = lock(&inner.channel).next_frame().unwrap_or(None) {
            deliver(&inner, &frame.bytes, frame.fds);
        }
    }
    // Every sandbox that waits for an event sees the end of its queue.
    lock(&inner.sandboxes).events = None;
    inner.gone.notify_one();
}

fn deliver(inner: &Inner, bytes: &[u8], fds: Vec<OwnedFd>) {
    let Ok(event) = serde_json::from_slice::<Event>(bytes) else {
        return;
    };
    let subject = match event {
        Event::Opened { sandbox, .. }
        | Event::Limited { sandbox }
        | Event::Socket { sandbox, .. }
        | Event::Closed { sandbox } => (sandbox, None),
        Event::Refused {
            sandbox, command, ..
        } => (sandbox, command),
        Event::Started {
            sandbox, command, ..
        }
        | Event::Ended {
            sandbox, command, ..
        } => (sandbox, Some(command)),
        Event::Warmed { zygote, .. } | Event::Cooled { zygote, .. } => (zygote, None),
    };
    if let Some(events) = &lock(&inner.sandboxes).events
        && let Some(sender) = events.get(&subject)
    {
        let _ = sender.send((event, fds));
    }
}

pub(crate) fn encode(request: &Request) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(request).map_err(|error| Error::internal("request to the keeper", error))
}

pub(crate) fn keeper_gone() -> Error {
    Error::internal("keeper", "the process that keeps the sandboxes has ended")
}
