//! The keeper: the only process that makes sandboxes, watches them from outside and cleans up after them.
//!
//! Theory of operation. Single-threaded, because it forks and the child goes on in Rust; one `epoll` loop over the engine's
//! socket, each sandbox's control socket and process handle, and the nearest deadline. It never runs a tenant's
//! code and never waits for anything a tenant could hold up. When the engine is gone it kills everything and leaves.

mod command;
mod departed;
mod embryo;
mod networks;
mod nursery;
mod pace;
mod sandbox;
mod shared;
mod timers;
mod watch;
mod zygote;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::unistd::setsid;

use crate::channel::{self, Channel, Frame};
use crate::confine::{Mode, Network};
use crate::core::Cores;
use crate::error::{Context, Error, Result, Step};
use crate::host;
use crate::protocol::{Event, Handle, Request, ZygoteId};
use crate::sys::{self, Side};
use sandbox::Sandbox;
use shared::{FirstNetwork, Shared};
use timers::Timers;
use watch::{Watch, Who};
use zygote::{Answer, Waiting, Zygote};

/// The end of the channel tells that the engine has gone, and then all is cleared away. Should a keeper be stuck in something and
/// not hear of it, the kernel ends it after this time, with all its sandboxes; their groups are left to the next start.
const LAST_SECONDS: u32 = 60;
/// How often is looked for children that nobody has told us of, while there may be some.
const STRAY_PAUSE: Duration = Duration::from_millis(20);

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
    let parent = nix::unistd::getpid().as_raw();
    match sys::fork(0, None).during(Step::Keeper, "by fork")? {
        Side::Parent { pid, .. } => {
            cores.push_away(pid);
            Ok(Channel::new(ours))
        }
        Side::Child => {
            drop(ours);
            let served = sys::end_after_parent(parent, LAST_SECONDS)
                .and_then(|()| serve(Channel::new(theirs), cores));
            std::process::exit(i32::from(served.is_err()))
        }
    }
}

/// Serves one engine until it hangs up, then leaves nothing.
fn serve(mut engine: Channel, cores: Cores) -> io::Result<()> {
    // Out of the terminal's reach: Ctrl-C is for the engine, and the end of the channel tells us about it.
    setsid()?;
    // What is forked from here has none of the operator's secrets in its memory. These say where leases are.
    sys::blank_environment(&["HOME", "XDG_RUNTIME_DIR"]);
    // Some for each sandbox; what is forked from here gets limits of its own.
    host::raise_open_files();
    host::raise_counts_of_users();
    let mut shared = Shared::prepare(cores);
    let watch = Watch::new()?;
    watch.add(engine.as_fd(), Who::Engine);
    // If it has spoken, its plan comes first.
    if let Ok(shared) = &mut shared
        && shared.mode == Mode::Root
        && watch.wait(Some(Duration::ZERO))?.is_empty()
    {
        shared.prepare_rest();
    }
    let mut sandboxes = Sandboxes::new();
    // However it ends, an engine that vanished in the middle of a sentence included, everything is cleared away.
    let ended = attend(&mut engine, &mut shared, &mut sandboxes, &watch);
    watch.remove(engine.as_fd());
    clear(shared, sandboxes, &watch);
    ended
}

type Sandboxes = BTreeMap<Handle, Sandbox>;

fn attend(
    engine: &mut Channel,
    shared: &mut Result<Shared>,
    sandboxes: &mut Sandboxes,
    watch: &Watch,
) -> io::Result<()> {
    let mut timers = Timers::default();
    let mut spoken = false;
    loop {
        let mut touched = BTreeSet::new();
        for who in watch.wait(time_left(&timers, shared))? {
            match who {
                Who::Engine => {
                    if !engine.fill()? {
                        return Ok(());
                    }
                    spoken = true;
                    if let Ok(shared) = shared {
                        make_room(shared, sandboxes);
                    }
                    while let Some(frame) = engine.next_frame()? {
                        touched.extend(handle(frame, shared, sandboxes, engine, watch)?);
                    }
                }
                Who::Zygote(_) => {
                    if let Ok(shared) = shared {
                        touched.extend(hear_zygotes(shared, sandboxes, engine, watch)?);
                    }
                }
                Who::Sandbox(handle) => drop(touched.insert(handle)),
            }
        }
        let now = Instant::now();
        if let Ok(shared) = shared
            && give_up_silent(shared, now)
        {
            touched.extend(hear_zygotes(shared, sandboxes, engine, watch)?);
        }
        touched.extend(timers.due(now));
        for handle in touched {
            let Some(sandbox) = sandboxes.get_mut(&handle) else {
                timers.set(handle, None);
                continue;
            };
            sandbox.advance(now, shared);
            sandbox.adopt(shared, watch);
            sandbox.register(watch);
            timers.set(handle, sandbox.deadline());
            for (event, fds) in sandbox.take_events() {
                tell(engine, &event, &fds)?;
            }
            sandbox.let_go();
            if sandbox.is_closed()
                && let Some(sandbox) = sandboxes.remove(&handle)
            {
                timers.set(handle, None);
                sandbox.remove(shared, watch);
                tell(engine, &Event::Closed { sandbox: handle }, &[])?;
            }
        }
        if let Ok(shared) = shared {
            reap_strays(shared, sandboxes, now);
            if spoken && shared.aside && !sandboxes.values().any(Sandbox::is_coming) {
                shared.come_back();
            }
            prepare_next(shared, sandboxes, now);
        }
    }
}

/// A child that is on its way has a core for itself, as far as we are concerned. Else whatever is forked has our cores.
fn make_room(shared: &mut Shared, sandboxes: &Sandboxes) {
    match shared.embryo.as_ref().and_then(|embryo| embryo.apart) {
        Some(core) => {
            if Cores::here() == Some(core) {
                shared.step_aside();
            }
        }
        None => {
            if !sandboxes.values().any(Sandbox::is_coming) {
                shared.come_back();
            }
        }
    }
}

/// Whoever makes one sandbox that a zygote enters makes more. Only when nobody waits for anything that we do.
fn prepare_next(shared: &mut Shared, sandboxes: &Sandboxes, now: Instant) {
    let kind = shared.wanted.filter(|kind| {
        let zygote = kind.zygote.and_then(|id| shared.zygotes.get(&id));
        zygote.is_some_and(Zygote::is_idle)
            && shared.embryo.is_none()
            && !sandboxes.values().any(Sandbox::is_coming)
    });
    let Some(kind) = kind else {
        shared.pace.leave_off();
        return;
    };
    if shared.pace.want(now) <= now {
        shared.prepare_with_root(kind);
        shared.pace.tried(shared.embryo.is_some(), now);
    }
}

fn clear(mut shared: Result<Shared>, mut sandboxes: Sandboxes, watch: &Watch) {
    if let Ok(shared) = &mut shared {
        shared.nursery = None;
        if let Some(embryo) = shared.embryo.take() {
            embryo.discard(shared);
        }
        for (_, zygote) in std::mem::take(&mut shared.zygotes) {
            zygote.discard(shared);
        }
    }
    for sandbox in sandboxes.values_mut() {
        sandbox.close(false);
    }
    while !sandboxes.is_empty() || shared.as_mut().is_ok_and(Shared::clear_after_zygotes) {
        // Copies that a zygote made without having told us keep their sandbox from ending, and no event tells of them.
        let _ = watch.wait(Some(Duration::from_millis(4)));
        // Nobody asks any more how anything has ended.
        while matches!(sys::reap(-1), Ok(Some(_))) {}
        for sandbox in sandboxes.values_mut() {
            sandbox.advance(Instant::now(), &mut shared);
            // Init hangs up before it has ended: whoever went on listening would spin until then.
            sandbox.register(watch);
        }
        for (_, sandbox) in sandboxes.extract_if(.., |_, sandbox| sandbox.is_gone()) {
            sandbox.remove(&mut shared, watch);
        }
    }
    if let Ok(shared) = &mut shared {
        shared.remove_spares();
    }
}

/// Does what the engine asks. Returns the sandboxes that it was about.
fn handle(
    frame: Frame,
    shared: &mut Result<Shared>,
    sandboxes: &mut Sandboxes,
    engine: &Channel,
    watch: &Watch,
) -> io::Result<Vec<Handle>> {
    let request: Request = serde_json::from_slice(&frame.bytes).map_err(io::Error::other)?;
    let about = match &request {
        Request::Open { sandbox, .. }
        | Request::Start { sandbox, .. }
        | Request::Signal { sandbox, .. }
        | Request::Limit { sandbox, .. }
        | Request::Behind { sandbox, .. }
        | Request::Socket { sandbox, .. }
        | Request::Close { sandbox, .. } => Some(*sandbox),
        // For the first sandbox, whichever that is.
        Request::Network => sandboxes.keys().next().copied(),
        Request::Warm { .. } | Request::Cool { .. } => None,
    };
    match request {
        Request::Open {
            sandbox,
            plan,
            zygote,
        } => {
            let shared = shared.as_mut().map_err(|error| error.clone());
            match shared.and_then(|shared| Sandbox::open(sandbox, *plan, zygote, shared)) {
                Ok(opened) => drop(sandboxes.insert(sandbox, opened)),
                Err(error) => {
                    let command = None;
                    let refused = Event::Refused {
                        sandbox,
                        command,
                        error,
                    };
                    tell(engine, &refused, &[])?;
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
        Request::Limit { sandbox, limits } => match sandboxes.get_mut(&sandbox) {
            Some(sandbox) => sandbox.limit(limits),
            None => tell(engine, &Event::Closed { sandbox }, &[])?,
        },
        Request::Behind { sandbox, behind } => {
            put_behind(sandboxes.get_mut(&sandbox), behind, shared);
        }
        Request::Socket {
            sandbox,
            id,
            listen,
        } => match sandboxes.get_mut(&sandbox) {
            Some(sandbox) => sandbox.socket(id, listen),
            None => tell(engine, &Event::Closed { sandbox }, &[])?,
        },
        Request::Warm {
            zygote,
            plan,
            command,
            laying,
        } => {
            let warm = |shared: &mut Shared| shared.warm(zygote, &plan, &command, &laying, watch);
            if let Err(error) = shared
                .as_mut()
                .map_err(|error| error.clone())
                .and_then(warm)
            {
                tell(engine, &Event::Cooled { zygote, error }, &[])?;
            }
        }
        Request::Cool { zygote } => return cool(zygote, shared, sandboxes, engine, watch),
        Request::Close { sandbox, told } => match sandboxes.get_mut(&sandbox) {
            Some(sandbox) => sandbox.close(told),
            None => tell(engine, &Event::Closed { sandbox }, &[])?,
        },
    }
    Ok(about.into_iter().collect())
}

fn cool(
    zygote: ZygoteId,
    shared: &mut Result<Shared>,
    sandboxes: &mut Sandboxes,
    engine: &Channel,
    watch: &Watch,
) -> io::Result<Vec<Handle>> {
    let Ok(shared) = shared else {
        return Ok(Vec::new());
    };
    let Some(cooled) = shared.zygotes.get_mut(&zygote) else {
        return Ok(Vec::new());
    };
    cooled.retired = true;
    // Others may have answered meanwhile, and what they said is heard only once.
    hear_zygotes(shared, sandboxes, engine, watch)
}

fn put_behind(sandbox: Option<&mut Sandbox>, behind: bool, shared: &Result<Shared>) {
    if let (Some(sandbox), Ok(shared)) = (sandbox, shared) {
        sandbox.put_behind(behind, shared.cores);
    }
}

/// Takes in what the zygotes have to say. Returns the sandboxes that it was about.
fn hear_zygotes(
    shared: &mut Shared,
    sandboxes: &mut Sandboxes,
    engine: &Channel,
    watch: &Watch,
) -> io::Result<Vec<Handle>> {
    let mut ended = Vec::new();
    let mut touched = Vec::new();
    let answers: Vec<_> = shared
        .zygotes
        .iter_mut()
        .flat_map(|(id, zygote)| zygote.advance().into_iter().map(|answer| (*id, answer)))
        .collect();
    for (zygote, answer) in answers {
        match answer {
            Answer::Ready(layout) => {
                let single = shared
                    .zygotes
                    .get(&zygote)
                    .is_some_and(Zygote::has_one_thread);
                if single {
                    tell(engine, &Event::Warmed { zygote, layout }, &[])?;
                } else {
                    let why = "what it loads ahead starts threads, and so it cannot be copied";
                    ended.push((zygote, why));
                }
            }
            Answer::Forked(waiting, pid) => {
                touched.push(waiting.sandbox);
                match sandboxes.get_mut(&waiting.sandbox) {
                    Some(sandbox) => sandbox.take_copy(waiting.start.id, pid),
                    // With the sandbox everything in it has ended.
                    None => shared.expect_strays(),
                }
            }
            Answer::Failed(waiting, error) => {
                touched.push(waiting.sandbox);
                if let Some(sandbox) = sandboxes.get_mut(&waiting.sandbox) {
                    let Waiting { start, fds, .. } = *waiting;
                    sandbox.start_cold(start, fds, Some(error), shared);
                }
            }
            Answer::Lost(waiting, error) => {
                touched.push(waiting.sandbox);
                shared.expect_strays();
                if let Some(sandbox) = sandboxes.get_mut(&waiting.sandbox) {
                    sandbox.lose_copy(waiting.start.id, error);
                }
            }
            Answer::Ended => ended.push((zygote, "it has ended")),
        }
    }
    let over = shared.zygotes.extract_if(.., |_, zygote| zygote.is_over());
    for (_, zygote) in over.collect::<Vec<_>>() {
        watch.remove(zygote.control());
        zygote.discard(shared);
    }
    for (zygote, why) in ended {
        if let Some(gone) = shared.zygotes.remove(&zygote) {
            watch.remove(gone.control());
            gone.discard(shared);
            let error = Error::because(Step::Zygote, "the interpreter", why);
            tell(engine, &Event::Cooled { zygote, error }, &[])?;
        }
    }
    Ok(touched)
}

fn tell(engine: &Channel, event: &Event, fds: &[OwnedFd]) -> io::Result<()> {
    let bytes = serde_json::to_vec(event).map_err(io::Error::other)?;
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    engine.send(&bytes, &fds)
}

/// Whether there were zygotes that have not answered in time.
fn give_up_silent(shared: &mut Shared, now: Instant) -> bool {
    let mut any = false;
    for zygote in shared.zygotes.values_mut() {
        if zygote.deadline().is_some_and(|deadline| deadline <= now) {
            zygote.give_up();
            any = true;
        }
    }
    any
}

/// Reaps what is a child of ours and nobody's else: as long as it waits for that, its sandbox cannot end.
fn reap_strays(shared: &mut Shared, sandboxes: &Sandboxes, now: Instant) {
    shared.clear_after_zygotes();
    if shared.strays.take_if(|until| *until <= now).is_none() && shared.strays.is_none() {
        return;
    }
    while let Ok(Some(pid)) = sys::ended_child() {
        if shared
            .nursery
            .as_ref()
            .is_some_and(|nursery| nursery.is(pid))
        {
            shared.replace_nursery();
            continue;
        }
        let known = shared.is_own(pid) || sandboxes.values().any(|sandbox| sandbox.is_own(pid));
        if known {
            // Its own end is looked at in its turn, and only after that can be seen who comes behind it.
            return;
        }
        let _ = sys::reap(pid);
    }
}

/// Until the nearest deadline.
fn time_left(timers: &Timers, shared: &Result<Shared>) -> Option<Duration> {
    let zygotes = shared.iter().flat_map(|shared| shared.zygotes.values());
    let deadlines = zygotes.filter_map(Zygote::deadline);
    let embryo = shared.iter().filter_map(|shared| shared.pace.deadline());
    let next = deadlines.chain(timers.next()).chain(embryo).min();
    let left = next.map(|next| next.saturating_duration_since(Instant::now()));
    // No event tells of those.
    let expects = |shared: &Shared| shared.strays.is_some() || shared.awaits_departure();
    let strays = shared.as_ref().is_ok_and(expects);
    left.into_iter().chain(strays.then_some(STRAY_PAUSE)).min()
}
