//! Files on their way into a workspace or out of it.
//!
//! What is on its way holds on to the sandbox, and to memory of its workspace. So it ends with the sandbox, when that is deleted or
//! another takes its place, however slow the client is.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

use axum::body::Body;
use belljar::Files;
use belljar_spec::{Backend, Content, Error, Filesystem, Limits, shown};
use bytes::Bytes;
use futures_util::stream;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::timeout_at;

use crate::body::Pace;
use crate::kept::{Busy, Kept};
use crate::sandboxes::deleted;

/// What is in memory of a file that goes out, a few times over.
const CHUNK: u64 = 128 << 10;
const PAGE: u64 = 4096;

/// What files of a request take in the workspace of a sandbox.
pub fn pages(files: &BTreeMap<String, Content>) -> u64 {
    let sizes = files.values().map(|one| one.as_bytes().len() as u64);
    sizes.map(in_pages).sum()
}

/// Each file has pages of its own, and the kernel takes something for the file itself.
pub fn in_pages(bytes: u64) -> u64 {
    (bytes / PAGE + 1).saturating_mul(PAGE)
}

/// Files that a request brings along are in memory, as are those that code writes, but are not counted as its own: that they fit has
/// to be seen beforehand. In a container it is something inside that writes them.
pub fn check_files(
    files: &BTreeMap<String, Content>,
    limits: &Limits,
    backend: Option<Backend>,
) -> Result<(), Error> {
    if backend == Some(Backend::Docker) || pages(files) <= limits.memory_bytes {
        return Ok(());
    }
    let largest = files.iter().max_by_key(|(_, one)| one.as_bytes().len());
    Err(Error::DiskFull {
        path: shown(largest.map_or("", |(path, _)| path)),
        limit: "memory_bytes",
    })
}

/// Something that is on its way. As long as it is, the sandbox is not idle.
pub struct Transfer {
    pub files: Files,
    kept: Arc<Kept>,
    replaced: watch::Receiver<u64>,
    is_upload: bool,
    _busy: Busy,
}

impl Transfer {
    pub fn out_of(kept: &Arc<Kept>) -> Self {
        // In this order: what takes the sandbox's place after its files were taken is heard of.
        let replaced = kept.session.replacements();
        Self {
            files: kept.session.files(),
            replaced,
            kept: Arc::clone(kept),
            is_upload: false,
            _busy: kept.begin(),
        }
    }

    pub fn into(kept: &Arc<Kept>) -> Result<Self, Error> {
        if kept.session.request().filesystem == Filesystem::None {
            return Err(Error::InvalidRequest {
                field: "filesystem".into(),
                given: "none together with files".into(),
                accepted: "make the sandbox with workspace to put files into it".into(),
            });
        }
        kept.put_begins();
        let mut transfer = Self::out_of(kept);
        transfer.is_upload = true;
        Ok(transfer)
    }

    /// Room for so much that is about to be written.
    pub fn put(&self, bytes: u64) -> Result<(), Error> {
        self.kept.put(&self.files, bytes)
    }

    /// Returns when there is nothing left to write to or to read from, with the reason.
    pub async fn ended(&self) -> Error {
        let mut replaced = self.replaced.clone();
        tokio::select! {
            () = self.kept.gone() => deleted(),
            _ = replaced.changed() => made_anew(),
        }
    }

    /// Whether the sandbox still has what was written.
    pub fn check(&self) -> Result<(), Error> {
        if self.kept.is_gone() {
            return Err(deleted());
        }
        if self.kept.session.has(&self.files) {
            return Ok(());
        }
        Err(made_anew())
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if self.is_upload {
            self.kept.put_ends();
        }
    }
}

fn made_anew() -> Error {
    Error::Conflict {
        reason: "the sandbox has been made anew meanwhile, without what was in it".into(),
    }
}

/// A part of a file, read as it is sent. A task has the file, and lets go of it in time, also while nobody asks for more. What
/// cannot even begin is an error.
pub async fn content(
    transfer: Transfer,
    file: File,
    part: (u64, u64),
    pace: Pace,
) -> Result<Body, Error> {
    let length = part.1;
    if length == 0 {
        return Ok(Body::empty());
    }
    let (sender, mut receiver) = mpsc::channel(1);
    let sending = tokio::spawn(async move {
        let sent = tokio::select! {
            sent = send(file, part, &sender, pace) => sent.map_err(cut_short),
            error = transfer.ended() => Err(error),
        };
        sent.inspect_err(|error| tracing::debug!(%error, "a file broke off"))
    });
    let Some(first) = receiver.recv().await else {
        return Err(why(sending.await));
    };
    let rest = (Some(first), receiver, length);
    let chunks = stream::try_unfold(rest, |(first, mut receiver, left)| async move {
        if left == 0 {
            return Ok(None);
        }
        let next = match first {
            Some(first) => Some(first),
            None => receiver.recv().await,
        };
        let chunk: Bytes = match next {
            Some(chunk) => chunk,
            // The reader sees the stream break off: what was promised cannot be kept.
            None => return Err(broken_off().await),
        };
        let left = left.saturating_sub(chunk.len() as u64);
        Ok::<_, io::Error>(Some((chunk, (None, receiver, left))))
    });
    Ok(Body::from_stream(chunks))
}

/// The end of a body that cannot go on. What has been said before goes out first: who hears of the error at once throws that away, the
/// head of the answer included.
pub async fn broken_off() -> io::Error {
    tokio::task::yield_now().await;
    io::Error::from(io::ErrorKind::BrokenPipe)
}

fn cut_short(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Error::Conflict {
            reason: "the file has been cut short meanwhile".into(),
        },
        _ => Error::internal("files", error),
    }
}

/// Why something broke off before its first byte.
pub fn why(ended: Result<Result<(), Error>, JoinError>) -> Error {
    match ended {
        Ok(Err(error)) => error,
        Ok(Ok(())) => Error::internal("files", "nothing was sent"),
        Err(error) => Error::internal("files", error),
    }
}

async fn send(
    mut file: File,
    (start, length): (u64, u64),
    to: &mpsc::Sender<Bytes>,
    pace: Pace,
) -> io::Result<()> {
    let mut sent = 0;
    while sent < length {
        let read = spawn_blocking(move || {
            let mut chunk = Vec::new();
            file.seek(SeekFrom::Start(start + sent))?;
            let most = CHUNK.min(length - sent);
            Read::by_ref(&mut file).take(most).read_to_end(&mut chunk)?;
            // It has become shorter.
            if chunk.is_empty() {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
            Ok((file, chunk))
        });
        let (same, chunk) = read.await.map_err(io::Error::other)??;
        file = same;
        let bytes = chunk.len() as u64;
        match timeout_at(pace.deadline(sent), to.send(chunk.into())).await {
            Ok(Ok(())) => sent += bytes,
            Ok(Err(_)) => return Err(io::ErrorKind::BrokenPipe.into()),
            Err(_) => return Err(io::ErrorKind::TimedOut.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn what_breaks_off_has_begun() {
        let answer = || async {
            let chunks = stream::try_unfold(true, |first| async move {
                if first {
                    return Ok(Some((Bytes::from_static(b"first"), false)));
                }
                Err(broken_off().await)
            });
            Body::from_stream(chunks)
        };
        let app = axum::Router::new().route("/", axum::routing::get(answer));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a socket");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async { axum::serve(listener, app).await });
        let connection = tokio::net::TcpStream::connect(address).await;
        let mut connection = connection.expect("a connection");
        let request = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n";
        connection.write_all(request).await.expect("sent");
        let mut heard = Vec::new();
        let _ = connection.read_to_end(&mut heard).await;
        let heard = String::from_utf8_lossy(&heard);
        assert!(heard.starts_with("HTTP/1.1 200"), "{heard:?}");
        assert!(
            heard.contains("first") && !heard.ends_with("0\r\n\r\n"),
            "{heard:?}"
        );
    }
}
