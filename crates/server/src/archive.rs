//! `/v1/sandboxes/{id}/archive`: a whole workspace as a tar file, in and out.
//!
//! An archive from outside is hostile: entries are bounded in number and in the size of their names, only files and
//! directories are taken, and every path goes through the same door as a single file. What goes out is made harmless
//! for whoever unpacks it: no links, no devices, no set-id bits, names without control characters.

mod chunks;
mod left_out;
mod pieces;

use std::io::{self, Read};
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use belljar::{Entry, Files, Kind, harmless, pax};
use belljar_spec::{Error, MAX_DEPTH, SandboxId, shown};
use bytes::Bytes;
use futures_util::stream;
use serde::{Deserialize, Serialize};
use tar::{Archive, Builder, EntryType, Header};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use utoipa::{IntoParams, ToSchema};

use crate::app::{App, Shared};
use crate::body::{self, Pace};
use crate::failure::{ErrorBody, Failure, Id};
use crate::files;
use crate::guard::Caller;
use crate::params::Params;
use crate::slots::Slot;
use crate::tenants::Tenant;
use crate::transfer::{Transfer, broken_off, in_pages, why};
use chunks::Chunks;

pub use left_out::LeftOut;
pub use pieces::Pieces;

const MEDIA: &str = "application/x-tar";
const MOST_ENTRIES: usize = 100_000;
/// Of all that is in an archive that goes out: they are in memory until it has left.
const MOST_PATH_BYTES: usize = 16 << 20;
/// A name that needs an entry of its own: more than any path that is accepted.
const MOST_NAME_BYTES: u64 = 64 << 10;
const CHUNK: usize = 128 << 10;
/// What is in our own memory of an archive that comes in: a few pieces.
const HELD: u64 = 1 << 20;

/// What was taken out of an archive.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Unpacked {
    pub files: u64,
    pub bytes: u64,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct Directory {
    /// A directory; the workspace itself if absent.
    pub path: Option<String>,
}

/// Each holds a thread while it lasts, so there are only so many.
async fn turn(app: &App, tenant: &Tenant) -> Result<Slot, Error> {
    let patience = app.config.budget.queue_timeout;
    if let Some(slot) = app.archives.take(tenant, patience).await {
        return Ok(slot);
    }
    app.metrics.rejected("archives");
    Err(Error::Overloaded {
        reason: "too many archives are on their way".into(),
        retry_after_s: 2,
    })
}

/// Read a workspace, or a directory of it, as a tar file
///
/// Files and directories; the header `belljar-left-out` says of what else there is how much it is, and of the first why it is left out.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/archive", tag = "files", params(("id" = SandboxId, Path), Directory),
    responses((status = 200, body = Vec<u8>, content_type = "application/x-tar"), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)))]
pub async fn read(
    State(app): State<Shared>,
    Caller(tenant): Caller,
    Id(id): Id,
    directory: Result<Params<Directory>, Failure>,
) -> Result<Response, Failure> {
    let kept = app.sandboxes.find(&tenant, &id)?;
    let Params(directory) = directory?;
    let path = files::directory(directory.path.as_deref()).to_owned();
    let turn = turn(&app, &tenant).await?;
    let transfer = Transfer::out_of(&kept);
    let files = transfer.files.clone();
    // Seen first, so that a directory that is not there is an error and not an empty archive.
    let (turn, files, (entries, bytes), left_out) = files::off(move || {
        let (entries, left_out) = entries(&files, &path)?;
        // Not given back before, also if the client has left.
        Ok((turn, files, entries, left_out))
    })
    .await?;
    let held = app.admission.hold(bytes as u64)?;
    let (sender, mut receiver) = mpsc::channel(4);
    let pace = Pace::new(app.config.http.write_timeout);
    let ended = Box::pin(async move { transfer.ended().await });
    let out = Chunks::new(sender, pace, ended);
    let packing = spawn_blocking(move || {
        let packed = pack(&files, entries, out).map_err(unpacked);
        drop((held, turn));
        packed.inspect_err(|error| tracing::debug!(%error, "an archive broke off"))
    });
    // What cannot even begin is an error.
    let Some(first) = receiver.recv().await else {
        return Err(Failure(why(packing.await)));
    };
    let chunks = stream::unfold(
        (Some(first), receiver),
        |(first, mut receiver)| async move {
            let next = match first {
                Some(first) => Some(first),
                None => receiver.recv().await,
            };
            let chunk = match next {
                Some(Some(chunk)) => Ok(chunk),
                Some(None) => return None,
                // The reader sees the stream break off, not a short archive.
                None => Err(broken_off().await),
            };
            Some((chunk, (None, receiver)))
        },
    );
    let mut response = Response::new(Body::from_stream(chunks));
    let media = HeaderValue::from_static(MEDIA);
    response.headers_mut().insert(CONTENT_TYPE, media);
    if let Some(left_out) = left_out.header() {
        response.headers_mut().insert(LeftOut::HEADER, left_out);
    }
    Ok(response)
}

/// Why an archive could not be made.
fn unpacked(error: io::Error) -> Error {
    let ours = |error| Error::internal("archive", error);
    error.downcast::<Error>().unwrap_or_else(ours)
}

/// And what they take of our memory; and what is not among them.
fn entries(files: &Files, path: &str) -> Result<((Vec<Entry>, usize), LeftOut), Error> {
    let mut entries = Vec::new();
    let mut left_out = LeftOut::default();
    let (mut too_many, mut path_bytes) = (false, 0);
    // From the workspace on, as in an archive that comes in.
    let names = |path: &std::path::Path| path.components().count();
    let deepest = MAX_DEPTH.saturating_sub(names(path.as_ref()));
    files.walk(path, deepest, &mut |entry| {
        match entry.kind {
            Kind::Directory if names(&entry.path) > MAX_DEPTH => {
                left_out.add_below(files, &entry.path);
            }
            Kind::File | Kind::Directory => {}
            Kind::Link => left_out.add(&entry.path, "it is a symbolic link"),
            Kind::Other => left_out.add(&entry.path, "it is neither a file nor a directory"),
        }
        if matches!(entry.kind, Kind::File | Kind::Directory) {
            too_many = entries.len() == MOST_ENTRIES;
            path_bytes += entry.path.as_os_str().len();
            entries.push(entry);
        }
        !too_many && path_bytes <= MOST_PATH_BYTES
    })?;
    let conflict = |reason| Err(Error::Conflict { reason });
    if too_many {
        return conflict(format!("there are more than {MOST_ENTRIES} files"));
    }
    if path_bytes > MOST_PATH_BYTES {
        let most = MOST_PATH_BYTES >> 20;
        return conflict(format!(
            "the paths of its files have more than {most} MiB together; ask for parts of it"
        ));
    }
    let bytes = path_bytes + entries.len() * size_of::<Entry>();
    Ok(((entries, bytes), left_out))
}

fn pack(files: &Files, entries: Vec<Entry>, out: Chunks) -> io::Result<()> {
    let mut archive = Builder::new(out);
    for entry in entries {
        let mut header = Header::new_gnu();
        header.set_mtime(u64::try_from(entry.modified).unwrap_or(0));
        let name = harmless(&entry.path);
        if entry.kind == Kind::Directory {
            header.set_entry_type(EntryType::Directory);
            header.set_size(0);
            header.set_mode(0o755);
            archive.append_data(&mut header, name, io::empty())?;
            continue;
        }
        // Gone or replaced in the meantime: then it is not in the archive.
        let found = files.open_found(&entry).map_err(io::Error::other)?;
        let Some(file) = found else {
            continue;
        };
        let size = file.metadata()?.len();
        header.set_size(size);
        // Whoever unpacks it can read it, whatever the code did to its mode.
        header.set_mode(0o644 | (entry.mode & 0o111));
        // Neither more nor less than the header says, whatever the code does to the file.
        let content = file.take(size).chain(io::repeat(0)).take(size);
        archive.append_data(&mut header, name, content)?;
    }
    archive.into_inner()?.finish()
}

/// Unpack a tar file into a workspace, or a directory of it
///
/// Only files and directories are taken; anything else in it is refused, as is a path that leaves the workspace. Of a file's mode only
/// counts whether it can be executed.
#[utoipa::path(put, path = "/v1/sandboxes/{id}/archive", tag = "files", params(("id" = SandboxId, Path), Directory),
    request_body(content = Vec<u8>, content_type = "application/x-tar"),
    responses((status = 200, body = Unpacked), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)))]
pub async fn write(
    State(app): State<Shared>,
    Caller(tenant): Caller,
    Id(id): Id,
    directory: Result<Params<Directory>, Failure>,
    headers: HeaderMap,
    mut body: Body,
) -> Result<Json<Unpacked>, Failure> {
    let kept = app.sandboxes.find(&tenant, &id)?;
    let Params(directory) = directory?;
    body::check_encoding(&headers)?;
    let turn = turn(&app, &tenant).await?;
    let transfer = Arc::new(Transfer::into(&kept)?);
    let _held = app.admission.hold(HELD)?;
    let (sender, source) = Pieces::new(4);
    let path = files::directory(directory.path.as_deref()).to_owned();
    let into = Arc::clone(&transfer);
    let unpacking = spawn_blocking(move || {
        let done = unpack(&into, &path, source);
        drop(turn);
        done
    });
    let pace = Pace::new(app.config.http.read_timeout);
    let mut come = 0;
    loop {
        let next = tokio::select! {
            next = body::next(&mut body, pace.deadline(come)) => next,
            error = transfer.ended() => Err(error),
        };
        let piece = match next {
            Ok(Some(bytes)) => Ok(bytes),
            Ok(None) => break,
            Err(error) => Err(error),
        };
        come += piece.as_ref().map_or(0, Bytes::len) as u64;
        let broken = piece.is_err();
        // Whoever unpacks may have had enough already.
        if sender.send(piece).await.is_err() || broken {
            break;
        }
    }
    drop(sender);
    let unpacked = unpacking
        .await
        .map_err(|error| Error::internal("archive", error))?;
    transfer.check()?;
    Ok(Json(unpacked?))
}

fn malformed(error: io::Error) -> Error {
    match error.downcast::<Error>() {
        Ok(error) => error,
        Err(error) => Error::MalformedRequest {
            reason: format!("this is no tar file: {}", shown(&error.to_string())),
        },
    }
}

fn unpack(into: &Transfer, below: &str, source: impl Read) -> Result<Unpacked, Error> {
    let files = &into.files;
    let mut done = Unpacked::default();
    walk(below, source, |path, content| {
        // By what it says of itself; more than that is not read of it.
        let size = content.as_ref().map_or(0, |content| content.size);
        files.check_room(path, size)?;
        into.put(in_pages(size))?;
        match content {
            None => files.make_directory(path)?,
            Some(mut content) => {
                done.bytes += copy(&mut content, files, path)?;
                done.files += 1;
            }
        }
        Ok(())
    })?;
    Ok(done)
}

/// What an archive says of a file.
struct Content<'a> {
    bytes: &'a mut dyn Read,
    size: u64,
    executable: bool,
}

/// Each directory and each file of an archive, the latter with its content.
fn walk(
    below: &str,
    source: impl Read,
    mut each: impl FnMut(&str, Option<Content<'_>>) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut archive = Archive::new(source);
    let mut long_name = None;
    let mut last_made: Option<String> = None;
    // Raw: names of any length would otherwise be read into memory.
    let entries = archive.entries().map_err(malformed)?.raw(true);
    for (count, entry) in entries.enumerate() {
        let mut entry = entry.map_err(malformed)?;
        if count == MOST_ENTRIES {
            return Err(refused("it has too many entries", ""));
        }
        let kind = entry.header().entry_type();
        match kind {
            EntryType::GNULongName | EntryType::XHeader | EntryType::XGlobalHeader => {
                let size = entry.header().entry_size().map_err(malformed)?;
                if size > MOST_NAME_BYTES {
                    return Err(refused("it has a name that is too long", ""));
                }
                let mut text = Vec::new();
                entry.read_to_end(&mut text).map_err(malformed)?;
                match kind {
                    EntryType::GNULongName => {
                        long_name = Some(
                            text.split(|byte| *byte == 0)
                                .next()
                                .unwrap_or_default()
                                .to_vec(),
                        );
                    }
                    EntryType::XHeader => long_name = extended_name(&text)?.or(long_name),
                    _ => {}
                }
                continue;
            }
            _ => {}
        }
        let name = long_name
            .take()
            .unwrap_or_else(|| entry.header().path_bytes().into_owned());
        let Some(path) = inside(below, &name)? else {
            continue;
        };
        match kind {
            // Said twice in a row it is there already.
            EntryType::Directory if last_made.as_ref() == Some(&path) => {}
            EntryType::Directory => {
                each(&path, None)?;
                last_made = Some(path);
            }
            EntryType::Regular | EntryType::Continuous => {
                let header = entry.header();
                let (size, mode) = (header.entry_size().map_err(malformed)?, header.mode());
                let content = Content {
                    bytes: &mut entry,
                    size,
                    executable: mode.is_ok_and(|mode| mode & 0o100 != 0),
                };
                each(&path, Some(content))?;
            }
            _ => {
                return Err(refused(
                    "only files and directories are unpacked, but there is something else at",
                    &path,
                ));
            }
        }
    }
    Ok(())
}

fn refused(reason: &str, path: &str) -> Error {
    let at = if path.is_empty() {
        String::new()
    } else {
        format!(" {}", shown(path))
    };
    Error::MalformedRequest {
        reason: format!("archive: {reason}{at}"),
    }
}

/// The path of an entry below the workspace; `None` for the directory that the archive is of.
fn inside(below: &str, name: &[u8]) -> Result<Option<String>, Error> {
    let name = std::str::from_utf8(name)
        .map_err(|_| refused("names must be UTF-8", &String::from_utf8_lossy(name)))?;
    let name = name.trim_end_matches('/');
    let name = name.strip_prefix("./").unwrap_or(name);
    if name.is_empty() || name == "." {
        return Ok(None);
    }
    let path = if below.is_empty() {
        name.to_owned()
    } else {
        format!("{below}/{name}")
    };
    belljar_spec::check_destination("archive", &path)?;
    Ok(Some(path))
}

/// The path in an extended header.
fn extended_name(text: &[u8]) -> Result<Option<Vec<u8>>, Error> {
    let broken = || refused("an extended header is broken", "");
    let mut name = None;
    for (key, value) in pax::records(text).ok_or_else(broken)? {
        if key == b"path" {
            name = Some(value.to_vec());
        }
        // It would say how far the next entry reaches, against what the entry says.
        if key == b"size" || key.starts_with(b"GNU.sparse") {
            return Err(refused(
                "files with holes or of more than 8 GiB are not unpacked",
                "",
            ));
        }
    }
    Ok(name)
}

fn copy(content: &mut Content<'_>, files: &Files, path: &str) -> Result<u64, Error> {
    let mut upload = files.upload(path)?;
    if content.executable {
        upload.make_executable()?;
    }
    let mut buffer = vec![0; CHUNK];
    let mut total = 0;
    loop {
        let count = content.bytes.read(&mut buffer).map_err(malformed)?;
        if count == 0 {
            break;
        }
        upload.write(&buffer[..count])?;
        total += count as u64;
    }
    // The archive ends within it: half of a file replaces none.
    if total < content.size {
        return Err(refused("it is cut off in", path));
    }
    upload.finish()?;
    Ok(total)
}

#[cfg(test)]
mod tests;
