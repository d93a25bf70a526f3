//! Sandboxes made ahead of time, and the warm interpreter that they are made from.
//!
//! A pool belongs to one toolchain and one kind of sandbox. It keeps a few pristine sessions ready; what is taken is never
//! given back. When there is none, or another kind is asked for, one is made on demand, still from the warm interpreter where the
//! language has one. The interpreter is replaced now and then, so that not all sandboxes share its memory layout and hash seed for ever; and once early,
//! when a scout has found out how its objects are best laid out, which is remembered for the next pool of the kind.

mod remembered;
mod warm;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use belljar_jail::{Command, Event, Laying, Plan, Request};
use belljar_spec::{CodeRequest, Error, LimitsPatch, Network, SandboxRequest, shown};
use tokio::sync::Notify;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::task::JoinSet;

use crate::command::environment;
use crate::engine::Engine;
use crate::host::capacity;
use crate::kernel::Source;
use crate::runtime::{Cache, Kernel, Place, Toolchain};
use crate::session::{Session, furnished, plan};
use remembered::Remembered;
use warm::{Asked, Cold, Events, Found, RETRY, Scouting, WARM_UP_TIME, Warm};

/// How a pool is kept.
#[derive(Debug, Clone)]
pub struct PoolConfig {
    /// How many sessions wait.
    pub ready: usize,
    /// Modules that the warm interpreter has loaded.
    pub preload: Vec<String>,
    /// The interpreter is replaced after so many copies,
    pub rotate_after_forks: u64,
    /// or so much time.
    pub rotate_after: Duration,
    /// Where is remembered how interpreters are best laid out.
    pub cache: Cache,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            ready: 4,
            preload: Vec::new(),
            // To come up and to learn what its copies need takes one as much processor time as some hundred copies.
            rotate_after_forks: 4_000,
            rotate_after: Duration::from_mins(10),
            cache: Cache::of_caller(),
        }
    }
}

/// The kind of sandbox is that of `request`; its files and environment are not used.
pub struct Pool(Arc<Inner>);

struct Inner {
    engine: Engine,
    toolchain: Arc<Toolchain>,
    request: SandboxRequest,
    config: PoolConfig,
    ready: Mutex<VecDeque<Session>>,
    zygote: Mutex<Option<Warm>>,
    scouting: Mutex<Scouting>,
    remembered: Remembered,
    /// As often as there are interpreters, scouts too, and once more.
    interpreters: Arc<()>,
    /// Told when a session was taken.
    taken: Notify,
    /// When somebody found none.
    missed: Mutex<Option<Instant>>,
    trouble: Mutex<Option<String>>,
}

/// Where many others run too, a scout takes a while.
const SCOUTING_TIME: Duration = Duration::from_mins(5);
/// It takes a second or two of a processor. A pool that is worth it has made so many copies,
const WORTH_SCOUTING: u64 = 16;
/// or is so old.
const SCOUT_AFTER: Duration = Duration::from_secs(2);
/// How often it is looked at when nothing happens.
const LOOK: Duration = Duration::from_secs(1);
/// As long after somebody found none, sessions are made as for one who waits: they are soon taken, and what is done with those that wait
/// longer, so that they answer sooner, would keep others from answering at all.
const PRESSED: Duration = Duration::from_millis(50);
/// How long filling up waits for the one who took a session.
const YIELD: Duration = Duration::from_millis(3);

/// In Python, of whose interpreter alone copies are made.
const IMPORT_EACH: &str = r#"
def cause():
    for name in names:
        try:
            __import__(name)
        except BaseException as error:
            return [name, f"{type(error).__name__}: {error}"]
cause()
"#;
/// How many characters are told of why a module cannot be imported.
const MOST_REASON: usize = 300;

impl Pool {
    /// Returns when the first interpreter is warm, or has been found not to be possible.
    pub async fn start(
        engine: &Engine,
        toolchain: Arc<Toolchain>,
        request: SandboxRequest,
        config: PoolConfig,
    ) -> Result<Self, Error> {
        request.check()?;
        // Ahead of everything, so that the warm interpreter can load them.
        let mut toolchain = furnished(engine, toolchain, &request).await?;
        // No copies are made in containers: each has an interpreter of its own, which loads them ahead of time.
        if toolchain.container.is_some() {
            Arc::make_mut(&mut toolchain).preload(&config.preload);
        }
        let kernel = toolchain.kernel.as_ref();
        let cache = config.cache.clone();
        let remembered = Remembered::of(cache, &toolchain, kernel, &config.preload);
        let inner = Arc::new(Inner {
            engine: engine.clone(),
            toolchain,
            request,
            config,
            ready: Mutex::default(),
            zygote: Mutex::default(),
            scouting: Mutex::new(Scouting::knowing(remembered.load())),
            remembered,
            interpreters: Arc::default(),
            taken: Notify::new(),
            missed: Mutex::default(),
            trouble: Mutex::default(),
        });
        let warm = warm_up(Arc::downgrade(&inner)).await;
        tokio::spawn(refill(Arc::downgrade(&inner), warm));
        Ok(Self(inner))
    }

    /// A session for this request: a ready one if it fits, else one made now.
    pub async fn take(&self, request: SandboxRequest) -> Result<Session, Error> {
        if self.0.fits(&request) {
            let ready = lock(&self.0.ready).pop_front();
            self.0.taken.notify_one();
            if let Some(session) = ready {
                return Box::pin(session.adopt(request)).await;
            }
            *lock(&self.0.missed) = Some(Instant::now());
        }
        Box::pin(self.0.make(request, false)).await
    }

    /// Whether its sessions are where this toolchain's would be. Its packages are looked at when one is taken.
    pub fn is_of(&self, toolchain: &Toolchain) -> bool {
        let own = &self.0.toolchain;
        let place = |one: &Toolchain| (one.name.clone(), one.image.clone(), one.container.clone());
        place(own) == place(toolchain)
    }

    /// Its toolchain, if that has the packages of this request and a session waits that has them: whoever keeps it keeps them.
    pub fn furnished(&self, request: &SandboxRequest) -> Option<Arc<Toolchain>> {
        let same = request.packages == self.0.request.packages;
        (same && self.ready() > 0).then(|| Arc::clone(&self.0.toolchain))
    }

    /// How many sessions wait now.
    pub fn ready(&self) -> usize {
        lock(&self.0.ready).len()
    }

    /// What those that wait use, as counted by the system's kernel.
    pub fn memory(&self) -> u64 {
        let ready = lock(&self.0.ready);
        let counted = ready.iter().filter_map(Session::usage);
        counted.map(|counters| counters.memory).sum()
    }

    /// How many interpreters there are that are not sandboxes: the warm one, one that is to take its place, a scout.
    pub fn interpreters(&self) -> usize {
        Arc::strong_count(&self.0.interpreters) - 1
    }

    /// How many should wait.
    pub fn wanted(&self) -> usize {
        self.0.config.ready
    }

    /// Why interpreters start cold, if they do.
    pub fn trouble(&self) -> Option<String> {
        lock(&self.0.trouble).clone()
    }
}

impl Inner {
    /// `early`: for the shelf.
    async fn make(&self, request: SandboxRequest, early: bool) -> Result<Session, Error> {
        let like_the_others = self.has_the_plan_of(&request);
        let mut zygote = None;
        let mut planned = None;
        if let Some(warm) = lock(&self.zygote).as_mut() {
            warm.forks += 1;
            zygote = Some(warm.asked.id);
            planned = like_the_others.then(|| warm.plan.clone());
        }
        let mut toolchain = Arc::clone(&self.toolchain);
        if request.packages != self.request.packages {
            // Other packages than the warm interpreter sees.
            let bare = Toolchain {
                layers: Vec::new(),
                in_use: None,
                variables: std::collections::BTreeMap::new(),
                ..(*toolchain).clone()
            };
            (toolchain, zygote) = (Arc::new(bare), None);
        }
        let source = Source { zygote, early };
        Session::open_from(&self.engine, toolchain, request, planned, source).await
    }

    /// Whether what is asked for has the root, the network and the rights that the pool's own have, so that it is planned like them.
    fn has_the_plan_of(&self, request: &SandboxRequest) -> bool {
        let own = &self.request;
        request.volumes.is_empty()
            && own.volumes.is_empty()
            && request.weaken == own.weaken
            && request.read_only == own.read_only
            && request.workdir == own.workdir
            && request.network == own.network
            && request.packages == own.packages
            && request.filesystem == own.filesystem
            && request.image == own.image
            && request.backend == own.backend
            && request.container_runtime == own.container_runtime
    }

    /// Whether a ready session can become what is asked for: everything that was fixed when it was made is the same.
    fn fits(&self, request: &SandboxRequest) -> bool {
        let own = &self.request;
        let fixed = |patch: &LimitsPatch| {
            patch
                .resolve(&self.toolchain.limits, &capacity())
                .ok()
                .map(|limits| (limits.disk_bytes, limits.open_files, limits.processes))
        };
        (request.language.is_none() || request.language == own.language)
            && self.has_the_plan_of(request)
            && request.weaken.is_empty()
            && request.publish.is_empty()
            && fixed(&request.limits) == fixed(&own.limits)
    }

    /// What can be started ahead of time so that copies of it are made.
    fn can_be_warm(&self) -> Option<&Kernel> {
        let kernel = self.toolchain.kernel.as_ref();
        // A container has its interpreter started in it, ahead of time.
        kernel.filter(|kernel| kernel.zygote.is_some() && self.toolchain.container.is_none())
    }

    /// How the next interpreter is to be laid out.
    fn laying(&self) -> Laying {
        match &lock(&self.scouting).found {
            Found::Layout(layout) => Laying::Laid(layout.clone()),
            _ => Laying::Plain,
        }
    }

    /// Has copies made of this one from now on.
    fn replace(&self, fresh: Warm) {
        if fresh.laid {
            lock(&self.scouting).succeed();
        }
        let _old = lock(&self.zygote).replace(fresh);
        *lock(&self.trouble) = None;
    }

    /// Why it did not come up. It says nothing itself: so a sandbox is asked whether the modules can be imported.
    async fn with_cause(&self, trouble: String) -> String {
        if self.config.preload.is_empty() {
            return trouble;
        }
        match tokio::time::timeout(WARM_UP_TIME, Box::pin(self.not_imported())).await {
            Ok(Ok(Some((name, reason)))) => {
                let name = shown(&name);
                format!("{trouble}; the module {name} cannot be imported ({reason})")
            }
            _ => format!(
                "{trouble}; one of the modules to preload may be missing or broken: {}",
                self.config.preload.join(", ")
            ),
        }
    }

    /// The first module that cannot be imported, with the reason, as it tells that.
    async fn not_imported(&self) -> Result<Option<(String, String)>, Error> {
        let request = SandboxRequest {
            imports: None,
            ..self.request.clone()
        };
        let toolchain = Arc::clone(&self.toolchain);
        let session = Session::open(&self.engine, toolchain, request).await?;
        let mut code = CodeRequest::new(IMPORT_EACH);
        let names = self.config.preload.clone().into();
        code.globals.insert("names".into(), names);
        let result = session.run(&code, &mut ()).await?;
        let told: Option<(String, String)> = result
            .value
            .and_then(|value| serde_json::from_value(value).ok());
        let in_one_line = |c: &char| !c.is_control();
        Ok(told.map(|(name, reason)| {
            let reason = reason.chars().filter(in_one_line).take(MOST_REASON);
            (name, reason.collect())
        }))
    }

    /// One that will be warm, or a scout.
    fn ask_for_zygote(&self, kernel: &Kernel, laying: Laying) -> Result<Warm, Error> {
        let limits = self
            .request
            .limits
            .resolve(&self.toolchain.limits, &capacity())?;
        let plan = plan(&self.engine, &self.toolchain, &self.request, limits)?;
        let command = self.zygote_command(kernel, &plan);
        let (asked, events) = Asked::new(&self.engine, &self.interpreters)?;
        let laid = matches!(laying, Laying::Laid(_));
        let request = Request::Warm {
            zygote: asked.id,
            plan: Box::new(plan.clone()),
            command: Box::new(command),
            laying,
        };
        self.engine.ask(&request, &[])?;
        Ok(Warm {
            asked,
            events,
            plan,
            forks: 0,
            since: Instant::now(),
            laid,
        })
    }

    /// Sends a scout, if there is none yet and what it finds will be of use.
    fn scout(self: &Arc<Self>) {
        let worth = lock(&self.zygote).as_ref().is_some_and(|warm| {
            warm.forks >= WORTH_SCOUTING || warm.since.elapsed() >= SCOUT_AFTER
        });
        let mut scouting = lock(&self.scouting);
        if !worth || !scouting.is_due() {
            return;
        }
        let kernel = self.can_be_warm();
        let scout = kernel.and_then(|kernel| self.ask_for_zygote(kernel, Laying::Scout).ok());
        let Some(Warm { asked, events, .. }) = scout else {
            scouting.fail();
            return;
        };
        tokio::spawn(hear_scout(Arc::downgrade(self), events));
        scouting.found = Found::Begun { _scout: asked };
    }

    fn zygote_command(&self, kernel: &Kernel, plan: &Plan) -> Command {
        let place = Place {
            main: "",
            workspace: "",
            out: "",
            memory_bytes: plan.limits.memory_bytes,
            cpus: plan.limits.cpus,
        };
        let step = kernel.zygote.as_ref().unwrap_or(&kernel.step);
        let mut limits = plan.limits;
        // It holds what its copies share; what they change is theirs.
        limits.memory_bytes = limits
            .memory_bytes
            .max(2 << 30)
            .min(capacity().memory_bytes);
        Command {
            argv: step.argv(&place, &self.config.preload),
            env: environment(
                self.toolchain.image.as_deref(),
                &{
                    let mut all = self.toolchain.variables.clone();
                    all.extend(step.env(&place));
                    all
                },
                &Network::default(),
                &std::collections::BTreeMap::new(),
            ),
            cwd: PathBuf::from("/"),
            limits,
        }
    }

    /// Lets go of a warm interpreter that has ended. How long it has served, if there was one.
    fn let_go_of_ended(&self) -> Option<Duration> {
        let ended = |warm: &mut Warm| !matches!(warm.events.try_recv(), Err(TryRecvError::Empty));
        let gone = lock(&self.zygote).take_if(ended)?;
        *lock(&self.trouble) = Some("the warm interpreter has ended".into());
        Some(gone.since.elapsed())
    }

    /// Whether another warm interpreter is wanted: there is none, or it has served for long enough.
    fn is_worn(&self) -> bool {
        let known = matches!(lock(&self.scouting).found, Found::Layout(_));
        let worn = |warm: &Warm| {
            warm.forks >= self.config.rotate_after_forks
                || warm.since.elapsed() >= self.config.rotate_after
                || known && !warm.laid
        };
        self.can_be_warm().is_some() && lock(&self.zygote).as_ref().is_none_or(worn)
    }
}

/// Waits for what a scout has to say.
async fn hear_scout(pool: Weak<Inner>, mut events: Events) {
    let heard = tokio::time::timeout(SCOUTING_TIME, events.recv()).await;
    let Some(inner) = pool.upgrade() else { return };
    let mut scouting = lock(&inner.scouting);
    let found = match heard {
        Ok(Some((Event::Warmed { layout, .. }, _))) => layout,
        _ => None,
    };
    // Either way the scout is let go of.
    match found {
        Some(layout) => {
            inner.remembered.store(&layout);
            scouting.found = Found::Layout(layout);
        }
        None => drop(scouting.fail()),
    }
    inner.taken.notify_one();
}

/// Starts an interpreter and waits until it is warm; the one before it serves until then. Whether that is as it should be, or another
/// attempt is to be made later.
///
/// The pool may be dropped meanwhile, and whoever waits may stop: then the interpreter is ended.
async fn warm_up(pool: Weak<Inner>) -> bool {
    let mut plain = false;
    loop {
        let Some(inner) = pool.upgrade() else {
            return false;
        };
        let Some(kernel) = inner.can_be_warm() else {
            return true;
        };
        let laying = if plain { Laying::Plain } else { inner.laying() };
        let laid = laying != Laying::Plain;
        let asked = inner.ask_for_zygote(kernel, laying);
        drop(inner);
        let warmed = match asked {
            Ok(next) => next.come_up().await,
            Err(error) => Err(Cold::Failed(error)),
        };
        let Some(inner) = pool.upgrade() else {
            return false;
        };
        match warmed {
            Ok(warm) => {
                inner.replace(warm);
                // One that is plain only because the other kind did not come up serves until that does.
                return !plain;
            }
            Err(_) if laid => {
                if lock(&inner.scouting).fail() {
                    inner.remembered.forget();
                }
                let _ = inner.let_go_of_ended();
                // The one before it goes on serving.
                if lock(&inner.zygote).is_some() {
                    return false;
                }
                plain = true;
            }
            Err(why) => {
                let trouble = match why {
                    Cold::Failed(error) => inner.with_cause(error.to_string()).await,
                    Cold::Silent => "the warm interpreter took too long to come up".into(),
                };
                *lock(&inner.trouble) = Some(trouble);
                return false;
            }
        }
    }
}

/// Keeps the shelf full and the interpreter fresh until the pool is dropped. `warm`: whether the first one is.
async fn refill(pool: Weak<Inner>, warm: bool) {
    let mut pause = LOOK;
    let soon = |warm: bool| Instant::now() + if warm { Duration::ZERO } else { RETRY };
    let mut not_before = soon(warm);
    // How many have ended one after the other that had hardly served.
    let mut brief = 0_u32;
    // One at a time. It is ended with this.
    let mut renewal = JoinSet::new();
    loop {
        let Some(inner) = pool.upgrade() else { return };
        if let Some(ended) = renewal.try_join_next() {
            not_before = soon(matches!(ended, Ok(true)));
        }
        if renewal.is_empty() {
            if let Some(served) = inner.let_go_of_ended() {
                // Once may have been chance; what kept another from coming up may not keep the next.
                brief = if served < RETRY { brief + 1 } else { 0 };
                not_before = soon(brief <= 1);
            }
            if Instant::now() >= not_before && inner.is_worn() {
                renewal.spawn(warm_up(pool.clone()));
            }
        }
        inner.scout();
        let missing = lock(&inner.ready).len() < inner.config.ready;
        if missing {
            let missed = *lock(&inner.missed);
            let pressed = missed.is_some_and(|at| at.elapsed() < PRESSED);
            let made = Box::pin(inner.make(inner.request.clone(), !pressed)).await;
            let made = match made {
                Ok(session) => session.ready().await.map(|()| session),
                Err(error) => Err(error),
            };
            match made {
                Ok(session) => {
                    lock(&inner.ready).push_back(session);
                    continue;
                }
                Err(error) => {
                    *lock(&inner.trouble) = Some(error.to_string());
                    pause = RETRY;
                }
            }
        }
        let taken = inner.taken.notified();
        tokio::select! {
            () = taken => {
                // Whoever took it runs first. An empty shelf is filled at once.
                if inner.config.ready > 1 && !lock(&inner.ready).is_empty() {
                    tokio::time::sleep(YIELD).await;
                }
            }
            () = tokio::time::sleep(pause) => {}
        }
        pause = LOOK;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change of what these hold is one call, so a panic elsewhere leaves them whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
