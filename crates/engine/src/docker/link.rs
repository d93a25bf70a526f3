//! The connection to the agent of one container: commands, streams and requests share it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use belljar_jail::terminal::Window;
use bollard::container::AttachContainerResults;
use futures_util::StreamExt;
use tokio::io::AsyncWriteExt;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use super::wire::{Decoder, Incoming, WINDOW, frame, kind, stream};

/// An answer is at most as long as the listing of a full workspace.
const MOST_REPLY: usize = 64 << 20;
/// The agent answers at once; a container that is held up for so long is as good as gone.
const PATIENCE: Duration = Duration::from_secs(30);

/// Cheap to clone. When the last one is dropped the connection ends, and everything in the container with it.
#[derive(Clone)]
pub struct Link(Arc<Inner>);

struct Inner {
    outgoing: mpsc::UnboundedSender<Vec<u8>>,
    shared: Arc<Shared>,
    next: AtomicU32,
}

struct Shared {
    /// `None` once the connection has ended.
    table: Mutex<Option<Table>>,
    /// What the agent said when it was ready, then whether it has gone.
    ready: watch::Sender<Option<Ready>>,
    gone: watch::Sender<bool>,
}

/// What an agent says of its container before there is any code in it.
#[derive(Debug, Clone)]
pub struct Ready {
    /// Its own `/proc/self/status`.
    pub status: String,
    /// The version of Landlock around commands.
    pub fence: Option<u32>,
}

#[derive(Default)]
struct Table {
    commands: HashMap<u32, Command>,
    replies: HashMap<u32, Pending>,
}

struct Command {
    items: mpsc::UnboundedSender<Item>,
    credits: Arc<Credits>,
    /// Bytes that have come and were not acknowledged, by stream.
    owed: [usize; 4],
}

struct Pending {
    bytes: Vec<u8>,
    done: oneshot::Sender<Result<Vec<u8>, i32>>,
}

/// What happens to a command, in order.
pub enum Item {
    Started,
    Failed { errno: i32 },
    Data { stream: u8, bytes: Vec<u8> },
    Ended { code: i32, status: i32 },
}

/// How much may still be sent into a command, by stream.
pub struct Credits([Semaphore; 5]);

impl Default for Credits {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Semaphore::new(WINDOW)))
    }
}

impl Credits {
    pub async fn take(&self, stream: u8, count: usize) {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        if let Some(Ok(permits)) = match self.0.get(usize::from(stream)) {
            Some(semaphore) => Some(semaphore.acquire_many(count).await),
            None => None,
        } {
            permits.forget();
        }
    }
}

/// The terminal of a command in a container.
pub struct Far {
    pub link: Link,
    pub id: u32,
}

impl Far {
    pub fn resize(&self, window: Window) {
        self.link.resize(self.id, window);
    }
}

/// The container, or the way to it, has gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gone;

fn lock(shared: &Shared) -> MutexGuard<'_, Option<Table>> {
    // Each change of the table is one call, so a panic elsewhere leaves it whole.
    shared.table.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link {
    /// Takes over both directions of a container's standard streams. `filter` is what the agent puts on first, `fence` what it puts
    /// around commands.
    pub fn new(attached: AttachContainerResults, filter: &[u8], fence: &[u8]) -> Self {
        let (outgoing, mut queue) = mpsc::unbounded_channel::<Vec<u8>>();
        let shared = Arc::new(Shared {
            table: Mutex::new(Some(Table::default())),
            ready: watch::channel(None).0,
            gone: watch::channel(false).0,
        });
        let AttachContainerResults {
            mut output,
            mut input,
        } = attached;
        let of_reader = Arc::clone(&shared);
        let reader = tokio::spawn(async move {
            let mut decoder = Decoder::default();
            while let Some(Ok(chunk)) = output.next().await {
                decoder.add(&chunk.into_bytes());
                if !hear(&of_reader, &mut decoder) {
                    break;
                }
            }
            *lock(&of_reader) = None;
            of_reader.gone.send_replace(true);
        });
        let of_writer = Arc::clone(&shared);
        tokio::spawn(async move {
            let mut gone = of_writer.gone.subscribe();
            while let Some(bytes) = tokio::select! {
                bytes = queue.recv() => bytes,
                _ = gone.wait_for(|gone| *gone) => None,
            } {
                let mut sent = input.write_all(&bytes).await;
                while let (Ok(()), Ok(more)) = (&sent, queue.try_recv()) {
                    sent = input.write_all(&more).await;
                }
                if sent.is_err() || input.flush().await.is_err() {
                    break;
                }
            }
            // Nobody holds the link any more: the end of its input tells the agent.
            let _ = input.shutdown().await;
            reader.abort();
        });
        let link = Self(Arc::new(Inner {
            outgoing,
            shared,
            next: AtomicU32::new(1),
        }));
        link.send(frame(kind::FILTER, 0, &[filter]));
        link.send(frame(kind::FENCE, 0, &[fence]));
        link
    }

    fn send(&self, bytes: Vec<u8>) {
        // One that cannot be sent any more is seen by the reader.
        let _ = self.0.outgoing.send(bytes);
    }

    /// What the agent says once it is ready.
    pub async fn ready(&self) -> Result<Ready, Gone> {
        let mut ready = self.0.shared.ready.subscribe();
        let said = tokio::select! {
            said = ready.wait_for(Option::is_some) => said.map_err(|_| Gone)?.clone(),
            () = self.gone() => None,
        };
        said.ok_or(Gone)
    }

    /// Returns when the connection has ended.
    pub async fn gone(&self) {
        let _ = self.0.shared.gone.subscribe().wait_for(|gone| *gone).await;
    }

    /// Ends it, although others may still hold it.
    pub fn hang_up(&self) {
        *lock(&self.0.shared) = None;
        self.0.shared.gone.send_replace(true);
    }

    pub fn is_gone(&self) -> bool {
        lock(&self.0.shared).is_none()
    }

    /// Asks for a command to be started; the payload is the agent's.
    pub fn start(
        &self,
        id: u32,
        payload: &[u8],
    ) -> Result<(mpsc::UnboundedReceiver<Item>, Arc<Credits>), Gone> {
        let (items, receiver) = mpsc::unbounded_channel();
        let credits = Arc::new(Credits::default());
        let command = Command {
            items,
            credits: Arc::clone(&credits),
            owed: [0; 4],
        };
        lock(&self.0.shared)
            .as_mut()
            .ok_or(Gone)?
            .commands
            .insert(id, command);
        self.send(frame(kind::START, id, &[payload]));
        Ok((receiver, credits))
    }

    pub fn forget(&self, id: u32) {
        if let Some(table) = &mut *lock(&self.0.shared) {
            table.commands.remove(&id);
        }
    }

    pub fn signal(&self, id: u32, signal: u32) {
        self.send(frame(kind::SIGNAL, id, &[&signal.to_le_bytes()]));
    }

    /// The terminal of a command has another size now.
    pub fn resize(&self, id: u32, window: Window) {
        let (rows, cols) = (window.rows.to_le_bytes(), window.cols.to_le_bytes());
        self.send(frame(kind::RESIZE, id, &[&rows, &cols]));
    }

    /// Bytes into a stream of a command; the credit for them has been taken. None at all are its end.
    pub fn data(&self, id: u32, stream: u8, brings_input: bool, bytes: &[u8]) {
        let head = [stream, u8::from(brings_input)];
        self.send(frame(kind::DATA, id, &[&head, bytes]));
    }

    /// So many bytes of a stream have been passed on.
    pub fn acknowledge(&self, id: u32, stream: u8, count: usize) {
        if let Some(table) = &mut *lock(&self.0.shared)
            && let Some(command) = table.commands.get_mut(&id)
            && let Some(owed) = command.owed.get_mut(usize::from(stream))
        {
            *owed = owed.saturating_sub(count);
        }
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.send(frame(kind::ACK, id, &[&[stream], &count.to_le_bytes()]));
    }

    /// Asks something about files. `Err` has the error's number; a container that has gone answers `ESHUTDOWN`.
    pub fn ask(
        &self,
        op: u8,
        parts: &[&[u8]],
    ) -> impl Future<Output = Result<Vec<u8>, i32>> + Send + use<> {
        const ESHUTDOWN: i32 = 108;
        let id = self.0.next.fetch_add(1, Ordering::Relaxed);
        let (done, answer) = oneshot::channel();
        if let Some(table) = &mut *lock(&self.0.shared) {
            let pending = Pending {
                bytes: Vec::new(),
                done,
            };
            table.replies.insert(id, pending);
            let op = [op];
            let mut all: Vec<&[u8]> = vec![&op];
            all.extend(parts);
            self.send(frame(kind::FILE, id, &all));
        }
        async move {
            match tokio::time::timeout(PATIENCE, answer).await {
                Ok(Ok(answer)) => answer,
                _ => Err(ESHUTDOWN),
            }
        }
    }
}

/// Hands on what has come. `false`: it was not the agent.
fn hear(shared: &Shared, decoder: &mut Decoder) -> bool {
    loop {
        let incoming = match decoder.next() {
            Ok(Some(incoming)) => incoming,
            Ok(None) => return true,
            Err(_) => return false,
        };
        let mut guard = lock(shared);
        let Some(table) = guard.as_mut() else {
            return false;
        };
        let (id, item) = match incoming {
            Incoming::Ready { status, fence } => {
                let fence = Some(fence).filter(|version| *version > 0);
                shared.ready.send_replace(Some(Ready { status, fence }));
                continue;
            }
            Incoming::Reply {
                id,
                errno,
                more,
                bytes,
            } => {
                if !reply(table, id, errno, more, &bytes) {
                    return false;
                }
                continue;
            }
            Incoming::Ack { id, stream, count } => {
                if let Some(command) = table.commands.get(&id)
                    && let Some(semaphore) = command.credits.0.get(usize::from(stream))
                {
                    let room = WINDOW.saturating_sub(semaphore.available_permits());
                    semaphore.add_permits(count.min(room));
                }
                continue;
            }
            Incoming::Data { id, stream, bytes } => {
                let owes = table.commands.get_mut(&id).is_none_or(|command| {
                    let owed = command.owed.get_mut(usize::from(stream));
                    owed.is_some_and(|owed| {
                        *owed += bytes.len();
                        *owed <= WINDOW
                    })
                });
                if !owes || stream == self::stream::STDIN {
                    return false;
                }
                (id, Item::Data { stream, bytes })
            }
            Incoming::Started { id } => (id, Item::Started),
            Incoming::Failed { id, errno } => (id, Item::Failed { errno }),
            Incoming::Ended { id, code, status } => (id, Item::Ended { code, status }),
        };
        if let Some(command) = table.commands.get(&id) {
            let _ = command.items.send(item);
        }
    }
}

fn reply(table: &mut Table, id: u32, errno: i32, more: bool, bytes: &[u8]) -> bool {
    let Some(pending) = table.replies.get_mut(&id) else {
        // Whoever asked has left.
        return true;
    };
    pending.bytes.extend_from_slice(bytes);
    if pending.bytes.len() > MOST_REPLY {
        return false;
    }
    if !more && let Some(pending) = table.replies.remove(&id) {
        let answer = if errno == 0 {
            Ok(pending.bytes)
        } else {
            Err(errno)
        };
        let _ = pending.done.send(answer);
    }
    true
}
