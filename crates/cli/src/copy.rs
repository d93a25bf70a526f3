//! `belljar cp`: files and directories into a sandbox of the daemon, and out of it.

use std::ffi::OsStr;
use std::fs::{self, File, FileType};
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};
use belljar::harmless;
use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Response};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::fs::{Dir, Mode, OFlags, ResolveFlags, openat2};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tar::{Archive, Builder, EntryType, Header};
use tokio::sync::{mpsc, oneshot};

use crate::args::CopyArgs;
use crate::client::{Body, Client, encoded, read, whole};
use crate::remote::{print_json, query};

/// How much was copied.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Copied {
    files: u64,
    bytes: u64,
}

pub async fn cp(args: &CopyArgs) -> Result<u8> {
    let client = Client::from_env()?;
    let copied = match (remote(&args.source), remote(&args.destination)) {
        (None, Some((id, path))) => upload(&client, Path::new(&args.source), id, path).await?,
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
    let (id, mut path) = text.split_once(':')?;
    // As people write the directory that paths begin in.
    while let Some(rest) = path.strip_prefix("./") {
        path = rest;
    }
    let path = if path == "." { "" } else { path };
    id.starts_with("sbx_").then_some((id, path))
}

/// A name for the copy where only a directory was given.
fn within(path: &str, name: &str) -> String {
    match path {
        "" | "/" => name.to_owned(),
        path if path.ends_with('/') => format!("{path}{name}"),
        path => path.to_owned(),
    }
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

async fn upload(client: &Client, source: &Path, id: &str, path: &str) -> Result<Copied> {
    let shown = source.display();
    let mut file = File::open(source).with_context(|| format!("cannot read {shown}"))?;
    let about = file.metadata()?;
    let whole_path = source.canonicalize()?;
    let name = whole_path.file_name().and_then(|name| name.to_str());
    let to = within(path, name.unwrap_or("file"));
    if about.is_dir() {
        let shape = query(&[("path", Some(to.trim_end_matches('/')))]);
        let url = format!("/v1/sandboxes/{}/archive{shape}", encoded(id));
        let from = source.to_owned();
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
        return Ok(serde_json::from_slice(&read(answer.into_body()).await?)?);
    }
    if !about.is_file() {
        bail!("{shown} is neither a file nor a directory");
    }
    let bar = bar(Some(about.len()));
    let body = piped(bar.clone(), move |out| io::copy(&mut file, out).map(drop));
    let url = format!("/v1/sandboxes/{}/files/{}", encoded(id), encoded(&to));
    client.ask(Method::PUT, &url, &[], body).await?;
    bar.finish_and_clear();
    Ok(Copied {
        files: 1,
        bytes: bar.position(),
    })
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

/// What is neither a file nor a directory, and so is not copied.
#[derive(Default)]
struct LeftOut {
    first: Vec<(PathBuf, &'static str)>,
    more: usize,
}

impl LeftOut {
    /// Nobody reads a longer list.
    const SHOWN: usize = 10;

    fn add(&mut self, name: PathBuf, kind: FileType) {
        if self.first.len() == Self::SHOWN {
            self.more += 1;
            return;
        }
        let what = if kind.is_symlink() {
            "a symbolic link"
        } else {
            "neither a file nor a directory"
        };
        self.first.push((name, what));
    }

    fn tell(&self) {
        for (name, what) in &self.first {
            eprintln!(
                "belljar: left out {}: it is {what}",
                harmless(name).display()
            );
        }
        if self.more > 0 {
            eprintln!("belljar: left out {} more like these", self.more);
        }
    }
}

/// The files and directories below one, as a tar file. Links and whatever else there is stay here.
///
/// Code may be writing there, where the directory is a sandbox's volume: nothing is reached by a name that could have become a link
/// since it was looked at.
fn pack(directory: &Path, out: &mut Pipe) -> io::Result<LeftOut> {
    let mut left_out = LeftOut::default();
    let mut archive = Builder::new(io::BufWriter::with_capacity(256 << 10, out));
    let root = File::open(directory)?;
    let mut to_do = vec![PathBuf::new()];
    while let Some(below) = to_do.pop() {
        let here = if below.as_os_str().is_empty() {
            Path::new(".")
        } else {
            &below
        };
        for entry in Dir::new(open_below(&root, here, OFlags::DIRECTORY)?)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let name = below.join(OsStr::from_bytes(name));
            let about = open_below(&root, &name, OFlags::PATH)?.metadata()?;
            let mut header = Header::new_gnu();
            if about.is_dir() {
                header.set_metadata(&about);
                archive.append_data(&mut header, &name, io::empty())?;
                to_do.push(name);
            } else if about.is_file() {
                let file = open_below(&root, &name, OFlags::NONBLOCK)?;
                let about = file.metadata()?;
                if !about.is_file() {
                    left_out.add(name, about.file_type());
                    continue;
                }
                header.set_metadata(&about);
                // As long as it was said to be, whoever writes to it.
                let content = file
                    .take(about.len())
                    .chain(io::repeat(0))
                    .take(about.len());
                archive.append_data(&mut header, &name, content)?;
            } else {
                left_out.add(name, about.file_type());
            }
        }
    }
    archive.into_inner()?.flush()?;
    Ok(left_out)
}

fn open_below(root: &File, path: &Path, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let no_links = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    Ok(openat2(root, path, flags, Mode::empty(), no_links)?.into())
}

async fn download(client: &Client, id: &str, path: &str, destination: &str) -> Result<Copied> {
    let sandbox = format!("/v1/sandboxes/{}", encoded(id));
    let path = path.trim_end_matches('/');
    let shape = query(&[("path", Some(path)), ("limit", Some("1"))]);
    // Nothing but a directory can be listed.
    let listed: Result<Value> = client.get(&format!("{sandbox}/files{shape}")).await;
    let url = if listed.is_ok() {
        format!("{sandbox}/archive{}", query(&[("path", Some(path))]))
    } else {
        format!("{sandbox}/files/{}", encoded(path))
    };
    let answer = client.ask(Method::GET, &url, &[], whole("")).await?;
    // The name that the caller typed, never one that the daemon sends.
    let name = Path::new(path).file_name().and_then(|name| name.to_str());
    let mut to = PathBuf::from(destination);
    if to.is_dir() {
        match name {
            Some(name) => to.push(name),
            None if listed.is_ok() => {}
            None => bail!("give the name of a file"),
        }
    }
    if destination == "-" {
        save(answer, &mut io::stdout()).await
    } else if listed.is_ok() {
        unpacked(answer, Path::new(path).to_owned(), to).await
    } else {
        let file = File::create(&to).with_context(|| format!("cannot write {}", to.display()))?;
        save(answer, &mut { file }).await
    }
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
    let make = |path: &Path| {
        fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()))
    };
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
    use std::os::unix::fs::symlink;

    #[test]
    fn what_became_a_link_is_not_followed() {
        let place = tempfile::tempdir().expect("tempdir");
        fs::write(place.path().join("file"), "x").expect("write");
        symlink("/etc", place.path().join("out")).expect("link");
        symlink("/etc/passwd", place.path().join("link")).expect("link");
        let root = File::open(place.path()).expect("open");
        assert!(open_below(&root, Path::new("file"), OFlags::NONBLOCK).is_ok());
        for path in ["out", "out/passwd", "link", "../x", "/etc/passwd"] {
            let opened = open_below(&root, Path::new(path), OFlags::NONBLOCK);
            assert!(opened.is_err(), "{path}");
        }
    }
}
