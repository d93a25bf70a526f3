//! The keeper: the only process that makes sandboxes, watches them from outside and cleans up after them.
//!
//! Theory of operation. Single-threaded, because it forks and the child goes on in Rust; one `poll` loop over the engine's
//! socket, each sandbox's control socket and process handle, and the nearest deadline. It never runs a tenant's
//! code and never waits for anything a tenant could hold up. When the engine is gone it kills everything and leaves.

mod command;
mod embryo;
mod sandbox;
mod zygote;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{getegid, geteuid, setsid};

use crate::cgroup::{Group, Tree};
use crate::channel::{self, Channel, Frame};
use crate::confine::{self, Mode, Namespaces, Network};
use crate::core::Cores;
use crate::error::{Context, Error, Result, Step};
use crate::lease::Lease;
use crate::plan::{Owner, Plan};
use crate::protocol::{Event, Handle, Request, ZygoteId};
use crate::sys::{self, Side};
use crate::verify::HostNamespaces;
use embryo::{Embryo, Kind};
use sandbox::Sandbox;
use zygote::{Answer, Zygote};

const INIT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/init"));

/// What every sandbox of this keeper needs.
pub(crate) struct Shared {
    /// `Err` where this user has no cgroups; a sandbox that does not give them up is then refused.
    cgroups: Result<Tree>,
    lease: Lease,
    mode: Mode,
    constants: Option<Constants>,
    /// Those that the engine may use, and so everyone below it.
    cores: Cores,
    /// Made ahead of the next request, which is then served sooner,
    embryo: Option<Embryo>,
    /// and of the kind that was asked for last.
    wanted: Option<Kind>,
    network: FirstNetwork,
    zygotes: BTreeMap<ZygoteId, Zygote>,
    /// Places of zygotes that have gone before their sandboxes.
    nests: Vec<Tree>,
    /// The keeper of an ordinary user has gone into a user namespace, so that its zygotes and sandboxes are below one.
    has_own_user_namespace: bool,
    names: u64,
}

/// What stays the same, and is not needed before the first sandbox is under way.
struct Constants {
    /// The program of init.
    init: OwnedFd,
    host: HostNamespaces,
}

/// The network namespace that the engine's process makes for the first sandbox, while everyone else is busy.
enum FirstNetwork {
    Awaited,
    Made(OwnedFd),
    None,
}

impl Shared {
    fn prepare(cores: Cores) -> Result<Self> {
        let cgroups = Tree::find();
        let lease = Lease::take(&cgroups.as_ref().map(Tree::bases).unwrap_or_default())?;
        let owner = Owner {
            uid: geteuid().as_raw(),
            gid: getegid().as_raw(),
        };
        let mode = if owner.uid == 0 {
            Mode::Root
        } else {
            Mode::Rootless(owner)
        };
        let mut shared = Self {
            cgroups,
            lease,
            mode,
            constants: None,
            cores,
            embryo: None,
            wanted: None,
            network: FirstNetwork::None,
            zygotes: BTreeMap::new(),
            nests: Vec::new(),
            has_own_user_namespace: false,
            names: 0,
        };
        let kind = Kind {
            mode,
            namespaces: Namespaces::ALL,
            with_group: shared.cgroups.is_ok(),
            zygote: None,
        };
        if mode == Mode::Root {
            shared.network = FirstNetwork::Awaited;
            shared.prepare_embryo(kind, Network::Given);
        } else {
            shared.prepare_embryo(kind, Network::Own);
        }
        Ok(shared)
    }

    fn constants(&mut self) -> Result<&Constants> {
        let constants = match self.constants.take() {
            Some(known) => known,
            None => Constants {
                init: sys::sealed_file(c"belljar-init", INIT).during(Step::Keeper, "init image")?,
                host: HostNamespaces::read()?,
            },
        };
        Ok(self.constants.insert(constants))
    }

    /// Makes the next sandbox's beginning ahead of time. Without one the next request says what is wrong.
    fn prepare_embryo(&mut self, kind: Kind, network: Network) {
        if self.embryo.is_none() {
            self.embryo = Embryo::fork(self, kind, network).ok();
        }
    }

    /// The one that was made ahead, if it is of that kind, or another.
    fn embryo(&mut self, kind: Kind) -> Result<Embryo> {
        self.wanted = Some(kind);
        match self.embryo.take() {
            Some(ready) if ready.is(kind) => Ok(ready),
            unfit => {
                if let Some(unfit) = unfit {
                    unfit.discard(self);
                }
                Embryo::fork(self, kind, Network::Own)
            }
        }
    }

    /// Removes a group that is empty, and lets the user id be used again. What could not be removed is left to whoever starts
    /// next, and so is the id.
    fn give_back(&mut self, group: Option<Group>, owner: Owner) {
        if let Some(Err(_)) = group.map(Group::remove) {
            self.lease.leave_to_the_next();
        } else if self.mode == Mode::Root {
            self.lease.release_uid(owner.uid);
        }
        self.sweep_nests();
    }

    /// Removes a zygote's place, now or when its last sandbox has gone.
    fn leave_nest(&mut self, nest: Tree) {
        if let Some(embryo) = self.embryo.take_if(|embryo| embryo.is_for_a_zygote()) {
            embryo.discard(self);
        }
        self.nests.push(nest);
        self.sweep_nests();
    }

    fn sweep_nests(&mut self) {
        self.nests.retain(|nest| !nest.try_remove());
    }

    /// Only a zygote in the namespace right above can enter what an ordinary user's sandbox is.
    fn enter_own_user_namespace(&mut self, owner: Owner) -> Result<()> {
        if self.has_own_user_namespace {
            return Ok(());
        }
        confine::enter_user_namespace(owner)?;
        self.has_own_user_namespace = true;
        self.constants = None;
        Ok(())
    }

    /// The mode of a sandbox that this zygote can enter, where the plan lets it.
    fn mode_for(&self, zygote: Option<ZygoteId>, plan: &Plan) -> (Mode, Option<ZygoteId>) {
        let found = zygote.and_then(|id| self.zygotes.get(&id));
        let plain = plan.weakened.is_empty() && !plan.writable;
        match (self.mode, found) {
            (Mode::Root, Some(found)) if plain => (Mode::Enterable { by: found.owner }, zygote),
            (mode, Some(_)) if plain => (mode, zygote),
            (mode, _) => (mode, None),
        }
    }

    /// A cgroup name that nobody has had.
    fn next_name(&mut self) -> String {
        self.names += 1;
        format!("{}-{}", self.lease.token, self.names)
    }
}

/// Forks a keeper off this process, which must still have a single thread. Returns the engine's end of the channel.
pub fn spawn() -> Result<Channel> {
    let threads = sys::thread_count().during(Step::Keeper, "/proc/self/task")?;
    if threads != 1 {
        return Err(Error::because(
            Step::Keeper,
            "by fork",
            format!("the process has {threads} threads, it must have one"),
        ));
    }
    let (ours, theirs) = channel::pair().during(Step::Keeper, "socket")?;
    let cores = Cores::allowed();
    match sys::fork(0, None).during(Step::Keeper, "by fork")? {
        Side::Parent { pid, .. } => {
            cores.push_away(pid);
            Ok(Channel::new(ours))
        }
        Side::Child => {
            drop(ours);
            std::process::exit(i32::from(serve(Channel::new(theirs), cores).is_err()))
        }
    }
}

/// Serves one engine until it hangs up, then leaves nothing.
fn serve(mut engine: Channel, cores: Cores) -> io::Result<()> {
    // Out of the terminal's reach: Ctrl-C is for the engine, and the end of the channel tells us about it.
    setsid()?;
    let mut shared = Shared::prepare(cores);
    let mut sandboxes = BTreeMap::<Handle, Sandbox>::new();
    // However it ends, an engine that vanished in the middle of a sentence included, everything is cleared away.
    let ended = attend(&mut engine, &mut shared, &mut sandboxes);
    clear(shared, sandboxes);
    ended
}

fn attend(
    engine: &mut Channel,
    shared: &mut Result<Shared>,
    sandboxes: &mut BTreeMap<Handle, Sandbox>,
) -> io::Result<()> {
    loop {
        match wait(engine, sandboxes, shared.as_ref().ok()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
            Ok(false) => {}
            Ok(true) => {
                if !engine.fill()? {
                    return Ok(());
                }
                // Only now is it certain that the engine has already pushed us away.
                if let Ok(shared) = shared {
                    shared.cores.restore();
                }
                while let Some(frame) = engine.next_frame()? {
                    handle(frame, shared, sandboxes, engine)?;
                }
            }
        }
        if let Ok(shared) = shared {
            hear_zygotes(shared, sandboxes, engine)?;
        }
        let now = Instant::now();
        for sandbox in sandboxes.values_mut() {
            sandbox.advance(now, shared);
            for (event, fd) in sandbox.take_events() {
                tell(engine, &event, fd.as_ref())?;
            }
        }
        retire(sandboxes, shared, engine)?;
        if let Ok(shared) = shared {
            prepare_next(shared, sandboxes);
        }
    }
}

/// Whoever makes one sandbox that a zygote enters makes more. Only when nobody waits for anything that we do.
fn prepare_next(shared: &mut Shared, sandboxes: &BTreeMap<Handle, Sandbox>) {
    let Some(kind) = shared.wanted.filter(|kind| kind.zygote.is_some()) else {
        return;
    };
    let zygote = kind.zygote.and_then(|id| shared.zygotes.get(&id));
    let idle = zygote.is_some_and(Zygote::is_idle) && !sandboxes.values().any(Sandbox::is_coming);
    if idle {
        shared.prepare_embryo(kind, Network::Own);
    }
}

fn clear(mut shared: Result<Shared>, mut sandboxes: BTreeMap<Handle, Sandbox>) {
    if let Ok(shared) = &mut shared {
        if let Some(embryo) = shared.embryo.take() {
            embryo.discard(shared);
        }
        for (_, zygote) in std::mem::take(&mut shared.zygotes) {
            zygote.discard(shared);
        }
    }
    for sandbox in sandboxes.values_mut() {
        sandbox.close();
    }
    while !sandboxes.is_empty() {
        let _ = wait_sandboxes(&sandboxes);
        // Copies that a zygote made without having told us. Nobody asks any more how anything has ended.
        while sys::reap_any() {}
        for sandbox in sandboxes.values_mut() {
            sandbox.advance(Instant::now(), &mut shared);
        }
        for (_, sandbox) in sandboxes.extract_if(.., |_, sandbox| sandbox.is_gone()) {
            sandbox.remove(&mut shared);
        }
    }
}

fn handle(
    frame: Frame,
    shared: &mut Result<Shared>,
    sandboxes: &mut BTreeMap<Handle, Sandbox>,
    engine: &Channel,
) -> io::Result<()> {
    let request: Request = serde_json::from_slice(&frame.bytes).map_err(io::Error::other)?;
    match request {
        Request::Open {
            sandbox,
            plan,
            zygote,
        } => {
            let opened = shared
                .as_mut()
                .map_err(|error| error.clone())
                .and_then(|shared| Sandbox::open(sandbox, *plan, zygote, shared));
            match opened {
                Ok(opened) => drop(sandboxes.insert(sandbox, opened)),
                Err(error) => {
                    let command = None;
                    let refused = Event::Refused {
                        sandbox,
                        command,
                        error,
                    };
                    tell(engine, &refused, None)?;
                }
            }
        }
        Request::Network => {
            if let Ok(shared) = shared {
                let made = frame.fds.into_iter().next();
                shared.network = made.map_or(FirstNetwork::None, FirstNetwork::Made);
                for sandbox in sandboxes.values_mut() {
                    sandbox.settle(shared);
                }
                let awaited = shared.embryo.as_ref();
                if awaited.is_none_or(|embryo| embryo.network == Network::Own) {
                    shared.network = FirstNetwork::None;
                }
            }
        }
        Request::Start { sandbox, start } => {
            if let (Some(sandbox), Ok(shared)) = (sandboxes.get_mut(&sandbox), shared) {
                sandbox.start(*start, frame.fds, shared);
            }
        }
        Request::Signal {
            sandbox,
            command,
            signal,
        } => {
            if let Some(sandbox) = sandboxes.get_mut(&sandbox) {
                sandbox.signal(command, signal);
            }
        }
        Request::Limit { sandbox, limits } => {
            if let Some(sandbox) = sandboxes.get_mut(&sandbox) {
                sandbox.limit(limits);
            }
        }
        Request::Warm {
            zygote,
            plan,
            command,
        } => {
            let started = shared
                .as_mut()
                .map_err(|error| error.clone())
                .and_then(|shared| {
                    let started = Zygote::start(shared, &plan, &command)?;
                    shared.zygotes.insert(zygote, started);
                    Ok(())
                });
            if let Err(error) = started {
                tell(engine, &Event::Cooled { zygote, error }, None)?;
            }
        }
        Request::Cool { zygote } => {
            if let Ok(shared) = shared
                && let Some(cooled) = shared.zygotes.get_mut(&zygote)
            {
                cooled.retired = true;
            }
        }
        Request::Close { sandbox } => match sandboxes.get_mut(&sandbox) {
            Some(sandbox) => sandbox.close(),
            None => tell(engine, &Event::Closed { sandbox }, None)?,
        },
    }
    Ok(())
}

/// Takes in what the zygotes have to say.
fn hear_zygotes(
    shared: &mut Shared,
    sandboxes: &mut BTreeMap<Handle, Sandbox>,
    engine: &Channel,
) -> io::Result<()> {
    let mut ended = Vec::new();
    let answers: Vec<_> = shared
        .zygotes
        .iter_mut()
        .flat_map(|(id, zygote)| zygote.advance().into_iter().map(|answer| (*id, answer)))
        .collect();
    for (zygote, answer) in answers {
        match answer {
            Answer::Ready => tell(engine, &Event::Warmed { zygote }, None)?,
            Answer::Forked(waiting, pid) => match sandboxes.get_mut(&waiting.sandbox) {
                Some(sandbox) => sandbox.take_copy(waiting.start.id, pid, shared),
                None => sys::end_child(pid),
            },
            Answer::Failed(waiting, error) => {
                if let Some(sandbox) = sandboxes.get_mut(&waiting.sandbox) {
                    sandbox.start_cold(&waiting.start, &waiting.fds, Some(error), shared);
                }
            }
            Answer::Ended => ended.push(zygote),
        }
    }
    let over = shared.zygotes.extract_if(.., |_, zygote| zygote.is_over());
    for (_, zygote) in over.collect::<Vec<_>>() {
        zygote.discard(shared);
    }
    for zygote in ended {
        if let Some(gone) = shared.zygotes.remove(&zygote) {
            gone.discard(shared);
            let error = Error::because(Step::Zygote, "the interpreter", "it has ended");
            tell(engine, &Event::Cooled { zygote, error }, None)?;
        }
    }
    Ok(())
}

/// Removes what is closed and empty.
fn retire(
    sandboxes: &mut BTreeMap<Handle, Sandbox>,
    shared: &mut Result<Shared>,
    engine: &Channel,
) -> io::Result<()> {
    let closed: Vec<_> = sandboxes
        .iter()
        .filter(|(_, sandbox)| sandbox.is_closed())
        .map(|(handle, _)| *handle)
        .collect();
    for handle in closed {
        if let Some(sandbox) = sandboxes.remove(&handle) {
            sandbox.remove(shared);
        }
        tell(engine, &Event::Closed { sandbox: handle }, None)?;
    }
    Ok(())
}

fn tell(engine: &Channel, event: &Event, fd: Option<&OwnedFd>) -> io::Result<()> {
    let bytes = serde_json::to_vec(event).map_err(io::Error::other)?;
    let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
    engine.send(&bytes, &fds)
}

/// Waits for the next thing to do. `true`: the engine has something to say.
fn wait(
    engine: &Channel,
    sandboxes: &BTreeMap<Handle, Sandbox>,
    shared: Option<&Shared>,
) -> io::Result<bool> {
    let mut wanted = vec![PollFd::new(engine.as_fd(), PollFlags::POLLIN)];
    let zygotes = shared.iter().flat_map(|shared| shared.zygotes.values());
    wanted.extend(zygotes.map(|zygote| PollFd::new(zygote.wanted(), PollFlags::POLLIN)));
    wanted.extend(sandboxes.values().flat_map(Sandbox::wanted));
    poll(&mut wanted, timeout(sandboxes))?;
    Ok(wanted[0].any().unwrap_or(true))
}

fn wait_sandboxes(sandboxes: &BTreeMap<Handle, Sandbox>) -> io::Result<()> {
    let mut wanted: Vec<_> = sandboxes.values().flat_map(Sandbox::wanted).collect();
    poll(&mut wanted, PollTimeout::from(20_u16))?;
    Ok(())
}

fn timeout(sandboxes: &BTreeMap<Handle, Sandbox>) -> PollTimeout {
    let Some(next) = sandboxes.values().filter_map(Sandbox::deadline).min() else {
        return PollTimeout::NONE;
    };
    let left = next.saturating_duration_since(Instant::now());
    // Rounded up, so that we do not wake just before the deadline and spin.
    PollTimeout::try_from(left.as_millis() + 1).unwrap_or(PollTimeout::MAX)
}
