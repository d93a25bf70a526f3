//! `belljar cp`: files and directories into a sandbox of the daemon, and out of it.
//!
//! One rule both ways, that of `cp -r`: into a destination that is a directory, or is written like one, under the source's own
//! name; else the copy is the destination. What has no name, as `.` and the workspace, gives what is in it.

mod pack;
mod unpack;

use std::fs::{self, File};
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use belljar_server::LeftOut;
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
use tokio::net::unix::pipe::Receiver;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use self::pack::pack;
use self::unpack::unpacked;
use crate::args::CopyArgs;
use crate::client::{Body, Client, Refusal, encoded, read, whole};
use crate::remote::{print_json, query};
use crate::terminal::{heard, note};

/// After so long without a word it is said what is waited for.
const PATIENCE: Duration = Duration::from_secs(2);
/// As many as go into a pipe.
const FIRST_BYTES: usize = 64 << 10;

/// How much was copied.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Copied {
    files: u64,
    bytes: u64,
    /// Links, and whatever else is neither a file nor a directory, or lies too deep.
    #[serde(default)]
    left_out: u64,
}

pub async fn cp(args: &CopyArgs) -> Result<u8> {
    if args.json && args.destination == "-" {
        bail!(
            "--json and the copy would both be written to standard output; give a path to copy to"
        );
    }
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
async fn is_directory(client: &Client, id: &str, path: &str) -> Result<bool> {
    let shape = query(&[("path", Some(path)), ("limit", Some("1"))]);
    let url = format!("/v1/sandboxes/{}/files{shape}", encoded(id));
    let listed: Result<Value> = client.get(&url).await;
    let Err(error) = listed else {
        return Ok(true);
    };
    let code = error.downcast_ref().map(|told: &Refusal| &*told.code);
    match code {
        // Of the workspace itself it would mean that there is no such sandbox.
        Some("invalid_path" | "not_found") if !path.is_empty() => Ok(false),
        _ => Err(error),
    }
}

/// What was left out, by name as far as somebody would read it.
fn tell(left_out: &LeftOut) {
    for entry in &left_out.first {
        note(format_args!("left out {}: {}", entry.path, entry.reason));
    }
    let more = left_out.count.saturating_sub(left_out.first.len() as u64);
    if more > 0 {
        note(format_args!("left out {more} more like these"));
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

async fn upload(client: &Client, source: &str, id: &str, path: &str) -> Result<Copied> {
    let file = open(source).with_context(|| format!("cannot read {source}"))?;
    let about = file.metadata()?;
    let is_stream = source == "-" || about.file_type().is_fifo();
    if !is_stream && !about.is_file() && !about.is_dir() {
        bail!("{source} is neither a file nor a directory");
    }
    let name = own_name(source).filter(|_| !is_stream);
    let into = path.is_empty() || path.ends_with('/') || is_directory(client, id, path).await?;
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
        left_out: 0,
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
        note(format_args!(
            "waiting for something to be written to {source}"
        ));
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
    let mut copied: Copied = serde_json::from_slice(&read(answer.into_body()).await?)?;
    if let Ok(left_out) = left_out.await {
        tell(&left_out);
        copied.left_out = left_out.count;
    }
    Ok(copied)
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
    let listed = is_directory(client, id, path).await?;
    let url = if listed {
        format!("{sandbox}/archive{}", query(&[("path", Some(path))]))
    } else {
        format!("{sandbox}/files/{}", encoded(path))
    };
    let answer = client.ask(Method::GET, &url, &[], whole("")).await?;
    let mut left_out = left_out(&answer);
    if destination == "-" {
        let copied = save(answer, &mut io::stdout()).await?;
        tell(&left_out);
        return Ok(copied);
    }
    let into = Path::new(destination).is_dir();
    let to = PathBuf::from(target(destination, into, name));
    if listed {
        let (mut copied, here) = unpacked(answer, Path::new(path).to_owned(), to).await?;
        left_out.count += here.count;
        left_out.first.extend(here.first);
        tell(&left_out);
        copied.left_out = left_out.count;
        return Ok(copied);
    }
    to.parent().map_or(Ok(()), make)?;
    let file = File::create(&to).with_context(|| format!("cannot write {}", to.display()))?;
    save(answer, &mut { file }).await
}

/// What the daemon says is not in its archive.
fn left_out(answer: &Response<Incoming>) -> LeftOut {
    let told = answer.headers().get(LeftOut::HEADER);
    let told = told.and_then(|told| serde_json::from_slice(told.as_bytes()).ok());
    told.unwrap_or_default()
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
            let written = to.write_all(&data);
            // Whoever reads it has had enough, as under `| head`.
            if matches!(&written, Err(error) if error.kind() == io::ErrorKind::BrokenPipe) {
                break;
            }
            written.context("the copy could not be written")?;
            bar.inc(data.len() as u64);
        }
    }
    heard(to.flush()).context("the copy could not be written")?;
    bar.finish_and_clear();
    Ok(Copied {
        files: 1,
        bytes: bar.position(),
        left_out: 0,
    })
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
