//! One command in a container: carries what flows between the engine's pipes and the agent, keeps the deadline, and tells
//! the end as the keeper would.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_jail::terminal::{Window, pass_through};
use belljar_jail::{
    Command, Event, Exit, Outcome, Role, Stage, end_of_sending, receive_with, send_some,
};
use belljar_spec::Error;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::time::sleep_until;

use super::events::News;
use super::inside::Inside;
use super::link::{Credits, Gone, Item, Link};
use super::wire::{CHUNK, stream};
use crate::engine::Message;

/// How long the agent has to end a command before the container is ended instead.
const GRACE: Duration = Duration::from_secs(5);
/// Of `linux/wait.h`: it ended by itself.
const CLD_EXITED: i32 = 1;
const SIGKILL: u32 = 9;

const ALONE: u8 = 1;
const HAS_CHANNEL: u8 = 2;
const TERMINAL: u8 = 4;
const LONE: u8 = 8;

/// The engine's ends.
struct Ends {
    stdout: pipe::Sender,
    stderr: pipe::Sender,
    channel: Option<Arc<UnixStream>>,
}

/// What the agent is told, in its own form.
fn payload(
    command: &Command,
    env: &[(String, String)],
    role: Role,
    window: Option<Window>,
    lone: bool,
) -> Vec<u8> {
    let flags = match role {
        Role::Alone => ALONE,
        Role::Kernel => ALONE | HAS_CHANNEL,
        Role::Beside => 0,
        Role::Terminal => TERMINAL,
    };
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes();
    let mut bytes = vec![flags | if lone { LONE } else { 0 }];
    let (rows, cols) = window.map_or((0, 0), |window| (window.rows, window.cols));
    bytes.extend(rows.to_le_bytes());
    bytes.extend(cols.to_le_bytes());
    bytes.extend(count(command.argv.len()));
    bytes.extend(count(env.len()));
    let mut add = |text: &str| {
        // None has a NUL in it: `spec` sees to that.
        bytes.extend_from_slice(text.as_bytes());
        bytes.push(0);
    };
    add(&command.cwd.to_string_lossy());
    command.argv.iter().for_each(|word| add(word));
    for (name, value) in env {
        add(&format!("{name}={value}"));
    }
    bytes
}

/// A command to be started in a container.
pub struct Order<'a> {
    pub id: u32,
    pub command: Command,
    pub role: Role,
    pub stage: Stage,
    pub fds: &'a [BorrowedFd<'a>],
}

/// Starts a command; what becomes of it is told to `events`.
pub fn start(
    inside: &Arc<Inside>,
    order: Order<'_>,
    events: mpsc::UnboundedSender<Message>,
) -> Result<(), Error> {
    let failed = |error: io::Error| Error::internal("streams of a command", error);
    let own = |index: usize| {
        order
            .fds
            .get(index)
            .map(BorrowedFd::try_clone_to_owned)
            .transpose()
    };
    let missing = || io::Error::from(io::ErrorKind::InvalidInput);
    let stdin = own(0)
        .map_err(failed)?
        .ok_or_else(missing)
        .map_err(failed)?;
    // The terminal is one of the container's; that of this host passes on what happens at it.
    let at_terminal = order.role == Role::Terminal;
    let window = if at_terminal {
        pass_through(stdin.as_fd()).map_err(failed)?
    } else {
        None
    };
    // What is neither has nothing in it.
    let input = if at_terminal {
        pipe::Receiver::from_file_unchecked(stdin.into()).ok()
    } else {
        pipe::Receiver::from_owned_fd(stdin).ok()
    };
    let sender = |fd: io::Result<Option<OwnedFd>>| {
        let fd = fd.and_then(|fd| fd.ok_or_else(missing))?;
        if at_terminal {
            pipe::Sender::from_file_unchecked(fd.into())
        } else {
            pipe::Sender::from_owned_fd(fd)
        }
    };
    let channel = own(3).map_err(failed)?.map(|socket| {
        let socket = std::os::unix::net::UnixStream::from(socket);
        socket.set_nonblocking(true)?;
        UnixStream::from_std(socket).map(Arc::new)
    });
    let ends = Ends {
        stdout: sender(own(1)).map_err(failed)?,
        stderr: sender(own(2)).map_err(failed)?,
        channel: channel.transpose().map_err(failed)?,
    };
    let inside = Arc::clone(inside);
    let Order {
        id,
        command,
        role,
        stage,
        ..
    } = order;
    tokio::spawn(async move {
        let env = inside.environment(&command.env);
        let bytes = payload(&command, &env, role, window, inside.lone);
        let told = inside.told();
        inside.adjust(&command.limits, stage).await;
        let Ok((items, credits)) = inside.link.start(id, &bytes) else {
            let _ = events.send(ended(id, inside.lost(Instant::now(), told).await));
            return;
        };
        let feeders = Feeders::start(&inside.link, id, input, ends.channel.clone(), &credits);
        let deadline = (!matches!(role, Role::Kernel | Role::Terminal))
            .then(|| Instant::now() + Duration::from_millis(command.limits.timeout_ms));
        let running = Running {
            id,
            inside: &inside,
            ends,
            items,
            events: &events,
            deadline,
            told,
        };
        let outcome = running.attend().await;
        drop(feeders);
        inside.link.forget(id);
        let _ = events.send(ended(id, outcome));
    });
    Ok(())
}

fn ended(command: u32, outcome: Outcome) -> Message {
    let event = Event::Ended {
        sandbox: 0,
        command,
        outcome,
    };
    (event, Vec::new())
}

struct Running<'a> {
    id: u32,
    inside: &'a Inside,
    ends: Ends,
    items: mpsc::UnboundedReceiver<Item>,
    events: &'a mpsc::UnboundedSender<Message>,
    deadline: Option<Instant>,
    /// Of the container, before it started.
    told: News,
}

impl Running<'_> {
    /// Until it has ended, and all it printed before that is in the pipes.
    async fn attend(mut self) -> Outcome {
        let started = Instant::now();
        let before = self.inside.counters();
        let mut pending: Option<(u8, Vec<u8>, usize)> = None;
        let mut killed: Option<Instant> = None;
        let far = started + Duration::from_hours(24 * 365);
        let exit = loop {
            let wake = match killed {
                None => self.deadline.unwrap_or(far),
                Some(at) => at + GRACE,
            };
            tokio::select! {
                item = self.items.recv(), if pending.is_none() => match item {
                    None => break None,
                    Some(Item::Started) => {
                        let event = Event::Started { sandbox: 0, command: self.id, cold: None };
                        let _ = self.events.send((event, Vec::new()));
                    }
                    Some(Item::Failed { errno }) => break Some(Exit::NotStarted { errno }),
                    Some(Item::Data { stream, bytes }) if bytes.is_empty() => {
                        if stream == stream::CHANNEL && let Some(channel) = &self.ends.channel {
                            end_of_sending(channel.as_fd());
                        }
                    }
                    Some(Item::Data { stream, bytes }) => pending = Some((stream, bytes, 0)),
                    Some(Item::Ended { code, status }) => break Some(match code {
                        _ if killed.is_some() => Exit::Killed,
                        CLD_EXITED => Exit::Code(status),
                        _ => Exit::Signal(status),
                    }),
                },
                written = write(&self.ends, pending.as_ref()), if pending.is_some() => {
                    if let Some((stream, bytes, at)) = &mut pending {
                        // What nobody reads any more is dropped.
                        let count = written.unwrap_or(bytes.len() - *at);
                        *at += count;
                        self.inside.link.acknowledge(self.id, *stream, count);
                        if *at == bytes.len() {
                            pending = None;
                        }
                    }
                }
                () = sleep_until(wake.into()) => {
                    if killed.is_some() {
                        // It does not even die: then everything around it does.
                        self.inside.end().await;
                        break None;
                    }
                    killed = Some(Instant::now());
                    self.inside.link.signal(self.id, SIGKILL);
                }
            }
        };
        let timed_out = killed.is_some();
        let Some(exit) = exit else {
            let mut outcome = self.inside.lost(started, self.told).await;
            outcome.timed_out = timed_out;
            return outcome;
        };
        let by_kill = matches!(exit, Exit::Signal(9));
        let oom_kills = self.inside.oom_kills_since(before.oom_kills, by_kill).await;
        let now = self.inside.counters();
        Outcome {
            exit,
            timed_out,
            oom_kills,
            wall_micros: micros(started.elapsed()),
            cpu_micros: Some(now.cpu_micros.saturating_sub(before.cpu_micros)),
            memory_peak: Some(now.memory_peak),
            processes_peak: Some(now.processes_peak),
        }
    }
}

pub fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Writes some of what is pending, as soon as it can be.
async fn write(ends: &Ends, pending: Option<&(u8, Vec<u8>, usize)>) -> io::Result<usize> {
    let Some((stream, bytes, at)) = pending else {
        return std::future::pending().await;
    };
    let bytes = &bytes[*at..];
    let again = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
    let pipe = match (*stream, &ends.channel) {
        (stream::STDOUT, _) => &ends.stdout,
        (stream::STDERR, _) => &ends.stderr,
        (_, Some(socket)) => loop {
            match socket.try_io(Interest::WRITABLE, || send_some(socket.as_fd(), bytes, &[])) {
                Err(error) if again(&error) => socket.writable().await?,
                sent => return sent,
            }
        },
        (_, None) => return Ok(bytes.len()),
    };
    loop {
        match pipe.try_write(bytes) {
            Err(error) if again(&error) => pipe.writable().await?,
            written => return written,
        }
    }
}

/// Tasks that read the engine's ends. They end when this is dropped.
struct Feeders(Vec<tokio::task::JoinHandle<()>>);

impl Drop for Feeders {
    fn drop(&mut self) {
        self.0.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

impl Feeders {
    fn start(
        link: &Link,
        id: u32,
        input: Option<pipe::Receiver>,
        channel: Option<Arc<UnixStream>>,
        credits: &Arc<Credits>,
    ) -> Self {
        let stdin = feed(link.clone(), id, stream::STDIN, input, Arc::clone(credits));
        let mut tasks = vec![tokio::spawn(stdin)];
        if let Some(channel) = channel {
            tasks.push(tokio::spawn(speak(
                link.clone(),
                id,
                channel,
                Arc::clone(credits),
            )));
        }
        Self(tasks)
    }
}

/// Passes a pipe on until it ends.
async fn feed(
    link: Link,
    id: u32,
    stream: u8,
    from: Option<pipe::Receiver>,
    credits: Arc<Credits>,
) {
    if let Some(receiver) = from {
        let mut buffer = vec![0; CHUNK];
        while receiver.readable().await.is_ok() {
            match receiver.try_read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => {
                    credits.take(stream, n).await;
                    link.data(id, stream, false, &buffer[..n]);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
    }
    link.data(id, stream, false, &[]);
}

/// Passes on what the engine says to a kernel. A descriptor that travels along is read here, and fed to the kernel there.
async fn speak(link: Link, id: u32, channel: Arc<UnixStream>, credits: Arc<Credits>) {
    let mut buffer = vec![0; CHUNK];
    let mut frames = Boundaries::default();
    let mut input: Option<tokio::task::JoinHandle<()>> = None;
    while channel.readable().await.is_ok() {
        let received = channel.try_io(Interest::READABLE, || {
            receive_with(channel.as_fd(), &mut buffer)
        });
        match received {
            Ok((0, _)) => break,
            Ok((n, fd)) => {
                credits.take(stream::CHANNEL, n).await;
                let last_start = frames.follow(&buffer[..n]);
                let (before, with_it) = match &fd {
                    Some(_) => buffer[..n].split_at(last_start),
                    None => (&buffer[..n], &[][..]),
                };
                if !before.is_empty() {
                    link.data(id, stream::CHANNEL, false, before);
                }
                if let Some(fd) = fd {
                    link.data(id, stream::CHANNEL, true, with_it);
                    if let Some(old) = input.take() {
                        old.abort();
                    }
                    let from = pipe::Receiver::from_owned_fd(fd).ok();
                    let feed = feed(link.clone(), id, stream::INPUT, from, Arc::clone(&credits));
                    input = Some(tokio::spawn(feed));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    if let Some(input) = input {
        input.abort();
    }
}

/// Where frames begin in what is said to a kernel: a descriptor belongs to the last one that began in what came with it.
#[derive(Default)]
struct Boundaries {
    header: Vec<u8>,
    left: usize,
}

impl Boundaries {
    /// Where the last frame in these bytes begins; their end if none does.
    fn follow(&mut self, bytes: &[u8]) -> usize {
        let (mut at, mut last) = (0, bytes.len());
        while at < bytes.len() {
            if self.left > 0 {
                let step = self.left.min(bytes.len() - at);
                self.left -= step;
                at += step;
                continue;
            }
            if self.header.is_empty() {
                last = at;
            }
            self.header.push(bytes[at]);
            at += 1;
            if let Some(length) = self.header.first_chunk::<4>() {
                self.left = u32::from_le_bytes(*length) as usize;
                self.header.clear();
            }
        }
        last
    }
}

impl From<Gone> for Error {
    fn from(_: Gone) -> Self {
        Error::internal("container", "it has ended")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_followed() {
        let mut boundaries = Boundaries::default();
        let two = [&[3, 0, 0, 0][..], b"abc", &[2, 0, 0, 0], b"x"].concat();
        assert_eq!(boundaries.follow(&two), 7);
        assert_eq!(boundaries.follow(b"y"), 1);
        assert_eq!(boundaries.follow(&[0, 0]), 0);
        assert_eq!(boundaries.follow(&[0, 0, 9]), 2);
    }
}
