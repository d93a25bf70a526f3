//! The channel to a kernel: length-prefixed JSON, or the plain form. What comes in is written by untrusted code.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::LazyLock;

use belljar_jail::{read_some, send_some};
use serde::Deserialize;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::plain;
use super::protocol::{Reply, Request};
use crate::socket::{Ready, Socket};

/// What a kernel may say in one go.
pub const MAX_INCOMING: usize = 16 << 20;
/// A kernel that has left more unread than this is told nothing else: it is not the kernel any more that reads, or does not.
const MAX_UNREAD: usize = 64 << 20;
const HEADER: usize = 4;
/// Most of what a kernel says fits; what does not is read in larger pieces.
const SMALL: usize = 4 << 10;
const LARGE: usize = 64 << 10;
/// So much is taken at a time, more than such a socket holds: others have their turn before the next, however fast code writes.
const AT_ONCE: usize = 256 << 10;

/// What is larger than this waits for its turn: it may take eighty times its length while it is read.
const HUGE: usize = 256 << 10;

/// There is one for each core.
static TURNS: LazyLock<Semaphore> = LazyLock::new(|| {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Semaphore::new(cores)
});

/// How a kernel speaks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    #[default]
    Json,
    /// For a language that has no JSON.
    Plain,
}

pub struct Frames {
    socket: Socket,
    form: Form,
    /// A plain one has said what it speaks.
    greeted: bool,
    incoming: Vec<u8>,
    /// Where the bytes begin that are no part of a frame yet handed out.
    taken: usize,
    outgoing: Line,
    /// To read a huge frame, which is in `incoming`.
    turn: Option<SemaphorePermit<'static>>,
    /// The memory of whoever is at the other end: there is no more that it can have to say, or room for.
    memory: usize,
}

/// What is to be sent.
#[derive(Default)]
struct Line {
    waiting: VecDeque<Outgoing>,
    bytes: usize,
}

struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    /// Travels with the first byte.
    fd: Option<OwnedFd>,
}

impl Frames {
    pub fn new(socket: OwnedFd, form: Form) -> io::Result<Self> {
        Ok(Self {
            socket: Socket::new(socket)?,
            form,
            greeted: false,
            incoming: Vec::new(),
            taken: 0,
            outgoing: Line::default(),
            turn: None,
            memory: usize::MAX,
        })
    }

    pub fn set_memory(&mut self, bytes: u64) {
        self.memory = usize::try_from(bytes).unwrap_or(usize::MAX);
    }

    fn most_incoming(&self) -> usize {
        MAX_INCOMING.min(self.memory)
    }

    /// Puts a request in line. It is sent by [`Frames::turn`], as fast as the kernel reads; one that does not is an error in the end.
    pub fn push(&mut self, request: &Request<'_>, fd: Option<OwnedFd>) -> io::Result<()> {
        let bytes = match self.form {
            Form::Json => frame(request)?,
            Form::Plain => plain::encode(request)?,
        };
        if self.outgoing.bytes > MAX_UNREAD.min(self.memory) {
            return Err(io::Error::other("the kernel does not read"));
        }
        self.outgoing.bytes += bytes.len();
        let waiting = &mut self.outgoing.waiting;
        waiting.push_back(Outgoing { bytes, sent: 0, fd });
        match self.outgoing.send(self.socket.as_fd()) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            sent => sent,
        }
    }

    /// Waits until something has been sent or has arrived, or until what has can be read. Can be cancelled at any time.
    pub async fn turn(&mut self) -> io::Result<()> {
        if self.is_huge_next() && self.turn.is_none() {
            let turn = TURNS.acquire().await.map_err(io::Error::other)?;
            self.turn = Some(turn);
            return Ok(());
        }
        if self.turn_once().await? {
            self.drain();
            // There may be more already, and who never has to wait would keep the thread to himself.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Whether more may have arrived than was taken.
    async fn turn_once(&mut self) -> io::Result<bool> {
        let ready = self.socket.ready(self.outgoing.bytes > 0).await?;
        let (mut arrived, mut chunk) = match ready {
            Ready::Send(mut room) => {
                let outgoing = &mut self.outgoing;
                let sent = room.try_io(|socket| outgoing.send(socket.as_fd()));
                return sent.unwrap_or(Ok(())).map(|()| false);
            }
            Ready::Receive(arrived) => (arrived, [0; SMALL]),
        };
        let Ok(read) = arrived.try_io(|socket| read_some(socket.as_fd(), &mut chunk)) else {
            return Ok(false);
        };
        let n = read?;
        if n < chunk.len() {
            // There was no more: asking once more can be left out.
            arrived.clear_ready();
        }
        if n == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.take_in(&chunk[..n])?;
        Ok(n == chunk.len())
    }

    /// Takes in what has arrived, straight from the kernel: the runtime may not have heard of it yet.
    pub fn drain(&mut self) {
        let mut chunk = vec![0; LARGE];
        let most = self.most_incoming().min(self.incoming.len() + AT_ONCE);
        while self.incoming.len() <= most {
            match read_some(self.socket.as_fd(), &mut chunk) {
                Ok(n) if n > 0 => self.incoming.extend_from_slice(&chunk[..n]),
                _ => return,
            }
        }
    }

    fn take_in(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.incoming.drain(..self.taken);
        self.taken = 0;
        if self.incoming.len() > self.most_incoming() + HEADER {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                "a frame is too long",
            ));
        }
        self.incoming.extend_from_slice(bytes);
        Ok(())
    }

    /// What the kernel has said next, if all of it has arrived and can be read now. What is not of the protocol is an error.
    pub async fn next(&mut self) -> io::Result<Option<Reply>> {
        if self.is_huge_next() && !self.has_turn() {
            return Ok(None);
        }
        let reply = match self.form {
            Form::Json => match self.next_frame()? {
                // To read it takes as long as code likes, up to a second.
                Some(frame) if frame.len() > LARGE => {
                    let frame = frame.to_vec();
                    let turn = self.turn.take();
                    let parse = move || {
                        let reply = Reply::parse(&frame);
                        drop(turn);
                        reply
                    };
                    let parsed = tokio::task::spawn_blocking(parse).await;
                    Some(parsed.map_err(io::Error::other)??)
                }
                Some(frame) => Some(Reply::parse(frame)?),
                None => None,
            },
            Form::Plain => {
                let rest = &self.incoming[self.taken..];
                plain::decode(rest, &mut self.greeted)?.map(|(reply, length)| {
                    self.taken += length;
                    reply
                })
            }
        };
        if self.taken == self.incoming.len() {
            // A session that waits for its next run does not keep what was needed for a large frame.
            self.taken = 0;
            self.incoming.clear();
            self.incoming.shrink_to(LARGE);
        }
        Ok(reply)
    }

    /// Whether what comes next has arrived as a whole, and has to wait for its turn to be read.
    pub fn is_huge_next(&self) -> bool {
        let rest = &self.incoming[self.taken..];
        let header = rest.first_chunk().filter(|_| self.form == Form::Json);
        let length = header.map_or(0, |header| u32::from_le_bytes(*header) as usize);
        length > HUGE && length <= self.most_incoming() && rest.len() >= HEADER + length
    }

    fn has_turn(&mut self) -> bool {
        if self.turn.is_none() {
            self.turn = TURNS.try_acquire().ok();
        }
        self.turn.is_some()
    }

    fn next_frame(&mut self) -> io::Result<Option<&[u8]>> {
        let rest = &self.incoming[self.taken..];
        let Some(header) = rest.first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*header) as usize;
        if length > self.most_incoming() {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                "a frame is too long",
            ));
        }
        if rest.len() < HEADER + length {
            return Ok(None);
        }
        let start = self.taken + HEADER;
        self.taken = start + length;
        Ok(Some(&self.incoming[start..start + length]))
    }
}

fn frame(request: &Request<'_>) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; HEADER];
    serde_json::to_writer(&mut bytes, request)?;
    let length = u32::try_from(bytes.len() - HEADER).map_err(io::Error::other)?;
    bytes[..HEADER].copy_from_slice(&length.to_le_bytes());
    Ok(bytes)
}

impl Line {
    /// Sends straight to the kernel: the runtime may not know yet that the socket is writable.
    fn send(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        while let Some(first) = self.waiting.front_mut() {
            let fds: Vec<_> = first.fd.iter().map(AsFd::as_fd).collect();
            let sent = send_some(socket, &first.bytes[first.sent..], &fds)?;
            first.sent += sent;
            self.bytes -= sent;
            first.fd = None;
            if first.sent == first.bytes.len() {
                self.waiting.pop_front();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use std::io::Write as _;
    use std::os::unix::net::UnixStream as StdStream;

    fn channel() -> (Frames, StdStream) {
        let (ours, theirs) = belljar_jail::pair().expect("sockets");
        (
            Frames::new(ours, Form::Json).expect("frames"),
            theirs.into(),
        )
    }

    #[tokio::test]
    async fn a_frame_may_come_in_pieces() {
        let (mut frames, mut kernel) = channel();
        kernel.write_all(&[2, 0, 0]).expect("write");
        frames.turn().await.expect("turn");
        assert!(frames.next_frame().expect("next").is_none());
        kernel.write_all(b"\0{}\x01").expect("write");
        frames.turn().await.expect("turn");
        assert_eq!(frames.next_frame().expect("next"), Some(&b"{}"[..]));
        assert!(frames.next_frame().expect("next").is_none());
    }

    #[tokio::test]
    async fn a_lying_length_is_an_error() {
        let (mut frames, mut kernel) = channel();
        kernel.write_all(&[0xff; 8]).expect("write");
        frames.turn().await.expect("turn");
        assert!(frames.next().await.is_err());
    }

    #[tokio::test]
    async fn the_end_is_an_error() {
        let (mut frames, kernel) = channel();
        drop(kernel);
        assert!(frames.turn().await.is_err());
    }

    #[tokio::test]
    async fn a_kernel_that_does_not_read_holds_up_nobody() {
        let (mut frames, _kernel) = channel();
        let large = "x".repeat(8 << 20);
        let env = [("large".to_owned(), large)].into();
        let setup = Request::Setup {
            env: Some(env),
            imports: None,
            files: true,
        };
        frames.push(&setup, None).expect("push");
        assert!(frames.outgoing.bytes > 0);
        // Nor is there an end of memory for it.
        let pushed = (0..100).take_while(|_| frames.push(&setup, None).is_ok());
        assert_eq!(pushed.count(), 8);
    }

    /// Nobody has more to say, or takes in more, than fits into its memory.
    #[tokio::test]
    async fn what_waits_is_bounded_by_memory() {
        let (mut frames, mut kernel) = channel();
        frames.set_memory(1 << 20);
        let env = [("large".to_owned(), "x".repeat(1 << 19))].into();
        let setup = Request::Setup {
            env: Some(env),
            imports: None,
            files: true,
        };
        let pushed = (0..100).take_while(|_| frames.push(&setup, None).is_ok());
        assert!(pushed.count() <= 4);
        let length = (1 << 20) + 1_u32;
        kernel.write_all(&length.to_le_bytes()).expect("write");
        while frames.incoming.is_empty() {
            frames.turn().await.expect("turn");
        }
        assert!(frames.next().await.is_err());
    }

    /// It waits where it is, and what waits for it can do something else.
    #[tokio::test]
    async fn a_huge_frame_waits_for_its_turn() {
        let (mut frames, _kernel) = channel();
        let mut frame = br#"{"op":"ready"}"#.to_vec();
        frame.resize(HUGE + 1, b' ');
        let length = u32::try_from(frame.len()).expect("a length");
        frames.incoming.extend_from_slice(&length.to_le_bytes());
        frames.incoming.extend_from_slice(&frame);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let cores = u32::try_from(cores).expect("a number");
        let all = TURNS.acquire_many(cores).await.expect("turns");
        assert!(frames.is_huge_next());
        assert!(frames.next().await.expect("waits").is_none());
        let soon = std::time::Duration::from_millis(20);
        let turned = tokio::time::timeout(soon, frames.turn()).await;
        assert!(turned.is_err() && frames.is_huge_next());
        drop(all);
        frames.turn().await.expect("its turn");
        let next = frames.next().await.expect("a frame");
        assert!(matches!(next, Some(Reply::Ready {})));
        assert!(!frames.is_huge_next() && frames.turn.is_none());
    }

    #[tokio::test]
    async fn what_a_large_frame_needed_is_given_back() {
        let (mut frames, mut kernel) = channel();
        let mut frame = br#"{"op":"ready"}"#.to_vec();
        frame.resize(1 << 20, b' ');
        let length = u32::try_from(frame.len()).expect("a length");
        let writer = std::thread::spawn(move || {
            kernel.write_all(&length.to_le_bytes()).expect("write");
            kernel.write_all(&frame).expect("write");
            kernel
        });
        while frames.next().await.expect("a frame").is_none() {
            frames.turn().await.expect("turn");
        }
        assert!(frames.incoming.capacity() <= LARGE);
        drop(writer.join());
    }

    #[tokio::test]
    async fn a_large_frame_is_read_elsewhere() {
        let (mut frames, _kernel) = channel();
        for (length, is_large) in [(LARGE, false), (LARGE + 1, true)] {
            let mut frame = br#"{"op":"ready"}"#.to_vec();
            frame.resize(length, b' ');
            let length = u32::try_from(length).expect("a length");
            let mut waited = false;
            // Another thread may be done with one of them before it is asked.
            for _ in 0..100 {
                frames.incoming.extend_from_slice(&length.to_le_bytes());
                frames.incoming.extend_from_slice(&frame);
                let mut next = std::pin::pin!(frames.next());
                let first = std::future::poll_fn(|context| {
                    std::task::Poll::Ready(next.as_mut().poll(context))
                });
                let reply = match first.await {
                    std::task::Poll::Ready(reply) => reply,
                    std::task::Poll::Pending => {
                        waited = true;
                        next.await
                    }
                };
                assert!(matches!(reply, Ok(Some(Reply::Ready {}))));
            }
            assert_eq!(waited, is_large);
        }
    }

    /// However much code writes, others on its thread have their turns.
    #[tokio::test]
    async fn a_kernel_that_never_stops_leaves_time_to_others() {
        const TURNS: usize = 20;
        let (mut frames, mut kernel) = channel();
        let body = br#"{"op":"display","id":"r","data":{"x":1}}"#;
        let one = [
            &[u8::try_from(body.len()).expect("short"), 0, 0, 0],
            &body[..],
        ]
        .concat();
        let flood = one.repeat(1000);
        let writer = std::thread::spawn(move || while kernel.write_all(&flood).is_ok() {});
        let turns = std::rc::Rc::new(std::cell::Cell::new(0));
        let counted = std::rc::Rc::clone(&turns);
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async move {
                let others = tokio::task::spawn_local(async move {
                    loop {
                        counted.set(counted.get() + 1);
                        tokio::task::yield_now().await;
                    }
                });
                let mut most = 0;
                for _ in 0..TURNS {
                    let before = turns.get();
                    while turns.get() == before {
                        frames.turn().await.expect("turn");
                        most = most.max(frames.incoming.len());
                        while frames.next().await.expect("frames").is_some() {}
                    }
                }
                assert!(most < 2 * AT_ONCE, "{most} bytes at once");
                others.abort();
            })
            .await;
        drop(local);
        writer.join().expect("a writer");
    }

    proptest! {
        /// Whatever code writes to its interpreter's channel: replies or an error.
        #[test]
        fn fuzz_json_frames(bytes in prop::collection::vec(any::<u8>(), 0..400), length in 0_u32..200, op in "done|call|display|ready|exit|x") {
            let body = format!("{{\"op\":\"{op}\",\"id\":\"r\",\"call\":1}}").into_bytes();
            for content in [bytes.clone(), [length.to_le_bytes().to_vec(), bytes].concat(), [u32::try_from(body.len()).unwrap_or(0).to_le_bytes().to_vec(), body].concat()] {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
                runtime.block_on(async {
                    let (mut frames, mut theirs) = channel();
                    theirs.write_all(&content).expect("written");
                    drop(theirs);
                    frames.drain();
                    while let Ok(Some(_)) = frames.next().await {}
                });
            }
        }
    }
}
