//! `belljar cp`: files and directories into a sandbox of the daemon, and out of it.
//!
//! One rule both ways, that of `cp -r`: into a destination that is a directory, or is written like one, under the source's own
//! name; else the copy is the destination. What has no name, as `.` and the workspace, gives what is in it.

mod pack;

use std::fs::{self, File};
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use belljar_spec::WORKSPACE;
use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Response};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tar::{Archive, EntryType};
use tokio::net::unix::pipe::Receiver;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use self::pack::pack;
use crate::args::CopyArgs;
use crate::client::{Body, Client, encoded, read, whole};
use crate::remote::{print_json, query};

/// After so long without a word it is said what is waited for.
const PATIENCE: Duration = Duration::from_secs(2);
/// As many as go into a pipe.
const FIRST_BYTES: usize = 64 << 10;

/// How much was copied.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Copied {
    files: u64,
    bytes: u64,
}

pub async fn cp(args: &CopyArgs) -> Result<u8> {
    let client = Client::from_env()?;
    let copied = match (remote(&args.source), remote(&args.destination)) {
        (None, Some((id, path))) => upload(&client, &args.source, id, path).await?,
        (Some((id, path)), None) => download(&client, id, path, &args.destination).await?,
        _ => bail!("give one place as ID:PATH, in a sandbox, and the other as a path here"),
    };
    if args.json {
        print_json(&copied)?;
    }
    Ok(0)
}

/// `ID:PATH` is in a sandbox; everything else is here.
fn remote(text: &str) -> Option<(&str, &str)> {
    let (id, path) = text.split_once(':')?;
    id.starts_with("sbx_").then_some((id, below(path)))
}

/// As people write the directory that paths begin in.
fn below(path: &str) -> &str {
    let mut path = match path.strip_prefix(WORKSPACE) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => rest.trim_start_matches('/'),
        _ => path,
    };
    while let Some(rest) = path.strip_prefix("./") {
        path = rest;
    }
    match path {
        "." | "/" => "",
        path => path,
    }
}

/// What a copy is called where only a directory is given for it. `.`, and what ends in it, has no name.
fn own_name(path: &str) -> Option<&str> {
    let last = path.trim_end_matches('/').rsplit('/').next()?;
    (!["", ".", ".."].contains(&last)).then_some(last)
}

/// Where the copy goes; `into`, where the destination is a directory already.
fn target(destination: &str, into: bool, name: Option<&str>) -> String {
    let directory = destination.trim_end_matches('/');
    match name {
        Some(name) if destination.is_empty() => name.to_owned(),
        Some(name) if into || destination.ends_with('/') => format!("{directory}/{name}"),
        _ if directory.is_empty() => destination.to_owned(),
        _ => directory.to_owned(),
    }
}

/// Nothing but a directory can be listed.
async fn is_directory(client: &Client, id: &str, path: &str) -> bool {
    let shape = query(&[("path", Some(path)), ("limit", Some("1"))]);
    let url = format!("/v1/sandboxes/{}/files{shape}", encoded(id));
    let listed: Result<Value> = client.get(&url).await;
    listed.is_ok()
}

/// How far it has come, if somebody looks.
fn bar(bytes: Option<u64>) -> ProgressBar {
    let target = if io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(bytes, target);
    let style = match bytes {
        Some(_) => "{bar:30}  {bytes:>10} of {total_bytes:<10}  {bytes_per_sec:>12}",
        None => "{spinner}  {bytes:>10}  {bytes_per_sec:>12}",
    };
    bar.set_style(
        ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    bar
}

async fn upload(client: &Client, source: &str, id: &str, path: &str) -> Result<Copied> {
    let file = open(source).with_context(|| format!("cannot read {source}"))?;
    let about = file.metadata()?;
    let is_stream = source == "-" || about.file_type().is_fifo();
    if !is_stream && !about.is_file() && !about.is_dir() {
        bail!("{source} is neither a file nor a directory");
    }
    let name = own_name(source).filter(|_| !is_stream);
    let into = path.is_empty() || path.ends_with('/') || is_directory(client, id, path).await;
    let to = target(path, into, name);
    if about.is_dir() && !is_stream {
        return upload_directory(client, source, id, &to).await;
    }
    if into && name.is_none() {
        bail!("give the copy a name, like {id}:name");
    }
    let bar = bar((!is_stream).then_some(about.len()));
    let mut content = if is_stream {
        begun(file, source).await?
    } else {
        Box::new(file)
    };
    let body = piped(bar.clone(), move |out| {
        io::copy(&mut content, out).map(drop)
    });
    let url = format!("/v1/sandboxes/{}/files/{}", encoded(id), encoded(&to));
    client.ask(Method::PUT, &url, &[], body).await?;
    bar.finish_and_clear();
    Ok(Copied {
        files: 1,
        bytes: bar.position(),
    })
}

/// Does not wait for anybody who would write to a pipe.
fn open(source: &str) -> io::Result<File> {
    if source == "-" {
        return Ok(io::stdin().as_fd().try_clone_to_owned()?.into());
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::open(source, flags, Mode::empty())?.into())
}

/// Waits for the first of what comes, which the daemon would not do for long; of a pipe that nobody writes to, that is said.
async fn begun(mut file: File, source: &str) -> Result<Box<dyn Read + Send>> {
    if source == "-" {
        let reading = tokio::task::spawn_blocking(move || {
            let mut first = vec![0; FIRST_BYTES];
            let count = file.read(&mut first)?;
            first.truncate(count);
            io::Result::Ok(io::Cursor::new(first).chain(file))
        });
        return Ok(Box::new(reading.await??));
    }
    let pipe = Receiver::from_file(file)?;
    if timeout(PATIENCE, pipe.readable()).await.is_err() {
        eprintln!("belljar: waiting for something to be written to {source}");
        pipe.readable().await?;
    }
    Ok(Box::new(File::from(pipe.into_blocking_fd()?)))
}

async fn upload_directory(client: &Client, source: &str, id: &str, to: &str) -> Result<Copied> {
    let shape = query(&[("path", Some(to))]);
    let url = format!("/v1/sandboxes/{}/archive{shape}", encoded(id));
    let from = PathBuf::from(source);
    let bar = bar(None);
    let (sender, left_out) = oneshot::channel();
    let body = piped(bar.clone(), move |out| {
        let _ = sender.send(pack(&from, out)?);
        Ok(())
    });
    let headers = [(CONTENT_TYPE, "application/x-tar")];
    let answer = client.ask(Method::PUT, &url, &headers, body).await?;
    bar.finish_and_clear();
    if let Ok(left_out) = left_out.await {
        left_out.tell();
    }
    Ok(serde_json::from_slice(&read(answer.into_body()).await?)?)
}

/// What a thread of its own writes, as the body of a request.
fn piped(
    bar: ProgressBar,
    write: impl FnOnce(&mut Pipe) -> io::Result<()> + Send + 'static,
) -> Body {
    let (sender, receiver) = mpsc::channel::<io::Result<Frame<Bytes>>>(4);
    std::thread::spawn(move || {
        let mut pipe = Pipe {
            sender: sender.clone(),
            bar,
        };
        if let Err(error) = write(&mut pipe) {
            let _ = sender.blocking_send(Err(error));
        }
    });
    let pieces = futures_util::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|piece| (piece, receiver))
    });
    BodyExt::boxed(StreamBody::new(pieces))
}

struct Pipe {
    sender: mpsc::Sender<io::Result<Frame<Bytes>>>,
    bar: ProgressBar,
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = Frame::data(Bytes::copy_from_slice(bytes));
        self.sender
            .blocking_send(Ok(piece))
            .map_err(|_| io::ErrorKind::BrokenPipe)?;
        self.bar.inc(bytes.len() as u64);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

async fn download(client: &Client, id: &str, path: &str, destination: &str) -> Result<Copied> {
    if destination.is_empty() {
        bail!("give a path to copy to");
    }
    // The name that the caller typed, never one that the daemon sends.
    let name = own_name(path);
    let mut path = path.trim_end_matches('/');
    while let Some(rest) = path.strip_suffix("/.") {
        path = rest.trim_end_matches('/');
    }
    let sandbox = format!("/v1/sandboxes/{}", encoded(id));
    let listed = is_directory(client, id, path).await;
    let url = if listed {
        format!("{sandbox}/archive{}", query(&[("path", Some(path))]))
    } else {
        format!("{sandbox}/files/{}", encoded(path))
    };
    let answer = client.ask(Method::GET, &url, &[], whole("")).await?;
    if destination == "-" {
        return save(answer, &mut io::stdout()).await;
    }
    let into = Path::new(destination).is_dir();
    let to = PathBuf::from(target(destination, into, name));
    if listed {
        return unpacked(answer, Path::new(path).to_owned(), to).await;
    }
    to.parent().map_or(Ok(()), make)?;
    let file = File::create(&to).with_context(|| format!("cannot write {}", to.display()))?;
    save(answer, &mut { file }).await
}

/// With those above it.
fn make(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))
}

fn size(answer: &Response<Incoming>) -> Option<u64> {
    let length = answer.headers().get(hyper::header::CONTENT_LENGTH)?;
    length.to_str().ok()?.parse().ok()
}

async fn save(answer: Response<Incoming>, to: &mut dyn Write) -> Result<Copied> {
    let bar = bar(size(&answer));
    let mut body = answer.into_body();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            to.write_all(&data)?;
            bar.inc(data.len() as u64);
        }
    }
    to.flush()?;
    bar.finish_and_clear();
    Ok(Copied {
        files: 1,
        bytes: bar.position(),
    })
}

async fn unpacked(answer: Response<Incoming>, from: PathBuf, to: PathBuf) -> Result<Copied> {
    let (sender, receiver) = mpsc::channel::<Bytes>(4);
    let work = tokio::task::spawn_blocking(move || {
        let source = Pieces {
            receiver,
            piece: Bytes::new(),
        };
        unpack(source, &from, &to)
    });
    let bar = bar(size(&answer));
    let mut body = answer.into_body();
    let mut whole = Ok(());
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => {
                let Ok(data) = frame.into_data() else {
                    continue;
                };
                bar.inc(data.len() as u64);
                // Whoever takes them says why it has stopped.
                if sender.send(data).await.is_err() {
                    break;
                }
            }
            Err(error) => {
                whole = Err(error);
                break;
            }
        }
    }
    drop(sender);
    bar.finish_and_clear();
    let copied = work.await?;
    whole.context("the daemon broke off")?;
    copied
}

struct Pieces {
    receiver: mpsc::Receiver<Bytes>,
    piece: Bytes,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.receiver.blocking_recv() {
                None => return Ok(0),
                Some(piece) => self.piece = piece,
            }
        }
        let count = buffer.len().min(self.piece.len());
        buffer[..count].copy_from_slice(&self.piece.split_to(count));
        Ok(count)
    }
}

/// The files and directories of an archive, whose names begin with that of the directory that was asked for. What is in it was
/// written by strangers: nothing else is taken out of it, and nothing gets outside of `to`.
fn unpack(source: impl Read, from: &Path, to: &Path) -> Result<Copied> {
    make(to)?;
    let from: PathBuf = from.components().filter(is_name).collect();
    let mut copied = Copied::default();
    for entry in Archive::new(source).entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let inner = path.strip_prefix(&from).unwrap_or(&path);
        if !inner.components().all(|part| is_name(&part)) {
            bail!("the archive has a file {} in it", path.display());
        }
        let target = to.join(inner);
        match entry.header().entry_type() {
            EntryType::Directory => make(&target)?,
            EntryType::Regular => {
                target.parent().map_or(Ok(()), make)?;
                let mode = 0o666 | entry.header().mode()? & 0o111;
                let mut options = File::options();
                options.write(true).create(true).truncate(true).mode(mode);
                let file = options.open(&target);
                let mut file =
                    file.with_context(|| format!("cannot write {}", target.display()))?;
                copied.bytes += io::copy(&mut entry, &mut file)?;
                copied.files += 1;
            }
            _ => {}
        }
    }
    Ok(copied)
}

fn is_name(part: &Component<'_>) -> bool {
    matches!(part, Component::Normal(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_by_all_its_names() {
        for (text, path) in [
            ("sbx_1:a/b", "a/b"),
            ("sbx_1:", ""),
            ("sbx_1:.", ""),
            ("sbx_1:./", ""),
            ("sbx_1:/", ""),
            ("sbx_1:./a", "a"),
            ("sbx_1:/workspace", ""),
            ("sbx_1:/workspace/", ""),
            ("sbx_1:/workspace/a/", "a/"),
            ("sbx_1:/workspaces", "/workspaces"),
            ("sbx_1:/etc/x", "/etc/x"),
        ] {
            assert_eq!(remote(text), Some(("sbx_1", path)), "{text}");
        }
        assert_eq!(remote("a:b"), None);
        assert_eq!(remote("/a/b"), None);
    }

    #[test]
    fn where_a_copy_goes() {
        for (source, destination, into, to) in [
            ("a.txt", "b.txt", false, "b.txt"),
            ("a.txt", "d", true, "d/a.txt"),
            ("a.txt", "new/", false, "new/a.txt"),
            ("a.txt", "", true, "a.txt"),
            ("a.txt", "/", true, "/a.txt"),
            ("x/d/", "e", false, "e"),
            ("x/d", "e", true, "e/d"),
            ("x/d/.", "e", true, "e"),
            (".", "e/", false, "e"),
            ("..", "", true, ""),
            ("", "e", true, "e"),
        ] {
            let made = target(destination, into, own_name(source));
            assert_eq!(made, to, "{source} {destination}");
        }
    }
}
