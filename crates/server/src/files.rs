//! `/v1/sandboxes/{id}/files`: what is in a workspace.

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header::{
    ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, IF_RANGE,
    RANGE,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use belljar::{Entry, Files, Kind};
use belljar_spec::{Error, SandboxId, shown};
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;
use utoipa::{IntoParams, ToSchema};

use crate::app::{App, Shared};
use crate::body::{self, Pace};
use crate::clock;
use crate::failure::{ErrorBody, Failure, Id};
use crate::guard::Caller;
use crate::params::Params;
use crate::tenants::Tenant;
use crate::transfer::{Transfer, content, in_pages};

/// What is in our own memory of a file that comes in: a piece or two.
const HELD: u64 = 128 << 10;
const DEFAULT_LIMIT: usize = 1000;
const MOST: usize = 10_000;
/// Of the names in one answer.
const MOST_BYTES: usize = 1 << 20;

/// Work on files, off the threads that serve.
pub async fn off<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    spawn_blocking(work)
        .await
        .map_err(|error| Error::internal("files", error))?
}

/// The same for what looks at all of a directory, which code can make large: there are only so many at one time. Each has its
/// place until it is done, also if its client has left.
async fn off_in_turn<T: Send + 'static>(
    (app, tenant): (&App, &Tenant),
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let patience = app.config.budget.queue_timeout;
    let Some(turn) = app.listings.take(tenant, patience).await else {
        app.metrics.rejected("listings");
        return Err(Error::Overloaded {
            reason: "too many directories are being looked at".into(),
            retry_after_s: 2,
        });
    };
    off(move || {
        let done = work();
        drop(turn);
        done
    })
    .await
}

/// A file or a directory.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct FileEntry {
    /// Below the workspace. Bytes that are no UTF-8 show as replacement characters.
    pub path: String,
    /// `file`, `directory`, `link`, or `other`, which is neither read nor written.
    pub kind: String,
    pub bytes: u64,
    /// RFC 3339.
    pub modified_at: String,
    /// Permissions, like `644`.
    pub mode: String,
}

impl From<Entry> for FileEntry {
    fn from(entry: Entry) -> Self {
        let kind = match entry.kind {
            Kind::File => "file",
            Kind::Directory => "directory",
            Kind::Link => "link",
            Kind::Other => "other",
        };
        let seconds = u64::try_from(entry.modified).unwrap_or(0);
        Self {
            path: entry.path.to_string_lossy().into_owned(),
            kind: kind.into(),
            bytes: entry.bytes,
            modified_at: clock::format(seconds.min(clock::LAST_SECOND) * 1000),
            mode: format!("{:03o}", entry.mode),
        }
    }
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct FileList {
    /// Directories before what is in them, by name.
    pub files: Vec<FileEntry>,
    /// There are more, also where names are so long that fewer than `limit` are here: how many to skip to see them.
    pub next: Option<u64>,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct Listing {
    /// A directory; the workspace itself if absent.
    pub path: Option<String>,
    /// How many levels below it to go; 0 if absent.
    pub depth: Option<u16>,
    /// How many entries: 1 to 10 000, by default 1 000.
    #[param(minimum = 1, maximum = 10000)]
    pub limit: Option<u64>,
    /// How many to leave out at the beginning.
    pub skip: Option<u64>,
}

/// Files of a sandbox
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files", tag = "files", params(("id" = SandboxId, Path), Listing),
    responses((status = 200, body = FileList), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)))]
pub async fn list(
    State(app): State<Shared>,
    Caller(tenant): Caller,
    Id(id): Id,
    listing: Result<Params<Listing>, Failure>,
) -> Result<Json<FileList>, Failure> {
    let kept = app.sandboxes.find(&tenant, &id)?;
    let Params(listing) = listing?;
    kept.touch();
    let limit = listing.limit.unwrap_or(DEFAULT_LIMIT as u64);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    if !(1..=MOST).contains(&limit) {
        return Err(Failure(Error::invalid_request(
            "limit",
            &limit.to_string(),
            format!("give a number from 1 to {MOST}"),
        )));
    }
    let skip = usize::try_from(listing.skip.unwrap_or(0)).unwrap_or(usize::MAX);
    let files = kept.session.files();
    let walked = off_in_turn((&app, &tenant), move || {
        let path = directory(listing.path.as_deref());
        let (mut seen, mut found, mut more) = (0_usize, Vec::new(), false);
        let mut bytes = 0;
        files.walk(path, listing.depth.unwrap_or(0).into(), &mut |entry| {
            seen += 1;
            if seen <= skip {
                return true;
            }
            more = found.len() == limit || bytes > MOST_BYTES;
            if !more {
                bytes += entry.path.as_os_str().len();
                found.push(FileEntry::from(entry));
            }
            !more
        })?;
        Ok((found, more))
    });
    let (files, more) = walked.await?;
    let next = more.then_some((skip + files.len()) as u64);
    Ok(Json(FileList { files, next }))
}

/// As it is asked for: with the slash by which people tell a directory from a file, or without.
pub fn directory(path: Option<&str>) -> &str {
    let path = path.unwrap_or_default();
    path.strip_suffix('/')
        .filter(|path| !path.is_empty())
        .unwrap_or(path)
}

type FilePath = Result<Path<(String, String)>, PathRejection>;

/// Read a file
///
/// Ranges of bytes can be asked for. A file that grows meanwhile ends where it ended at first.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files/{*path}", tag = "files", params(("id" = SandboxId, Path), ("path" = String, Path), ("range" = Option<String>, Header)),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream"), (status = 206, body = Vec<u8>, content_type = "application/octet-stream"),
        (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)))]
pub async fn read(
    State(app): State<Shared>,
    Caller(tenant): Caller,
    path: FilePath,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let Path((id, path)) = path?;
    let kept = app.sandboxes.find(&tenant, &id)?;
    let transfer = Transfer::out_of(&kept);
    let files = transfer.files.clone();
    let (file, size) = off(move || {
        let file = files.open(&path)?;
        let size = file
            .metadata()
            .map_err(|error| Error::internal("files", error))?
            .len();
        Ok((file, size))
    })
    .await?;
    // A part is for whoever has the rest, and what a file was before has no name by which to ask whether it still is.
    let range = headers
        .get(RANGE)
        .filter(|_| !headers.contains_key(IF_RANGE));
    let range = range.map(|range| range.to_str().unwrap_or(""));
    let wanted = range.map(|range| part(range, size)).transpose()?.flatten();
    let (start, length) = wanted.unwrap_or((0, size));
    let pace = Pace::new(app.config.http.write_timeout);
    let content = content(transfer, file, (start, length), pace).await?;
    let mut response = Response::new(content);
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/octet-stream"),
    );
    headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    if wanted.is_some() {
        let range = format!("bytes {start}-{}/{size}", start + length - 1);
        if let Ok(range) = HeaderValue::from_str(&range) {
            headers.insert(CONTENT_RANGE, range);
        }
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    Ok(response)
}

/// Start and length of one range; `None` for what is to be ignored: several ranges, other units.
fn part(range: &str, size: u64) -> Result<Option<(u64, u64)>, Error> {
    let Some((first, last)) = range
        .strip_prefix("bytes=")
        .and_then(|range| range.trim().split_once('-'))
    else {
        return Ok(None);
    };
    let (start, end) = match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(start), Ok(last)) if start <= last => (start, last.saturating_add(1).min(size)),
        (Ok(start), Err(_)) if last.is_empty() => (start, size),
        (Err(_), Ok(count)) if first.is_empty() => (size.saturating_sub(count), size),
        _ => return Ok(None),
    };
    if start >= end {
        return Err(Error::InvalidRange {
            given: shown(range),
            bytes: size,
        });
    }
    Ok(Some((start, end - start)))
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct Target {
    /// `file` or `directory`; a file if absent.
    #[param(inline)]
    pub kind: Option<TargetKind>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum TargetKind {
    File,
    Directory,
}

/// Write a file, or make a directory
///
/// The file takes its place when it has come completely, with the directories above it. A link of that name is replaced.
#[utoipa::path(put, path = "/v1/sandboxes/{id}/files/{*path}", tag = "files", params(("id" = SandboxId, Path), ("path" = String, Path), Target),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 201, body = FileEntry), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)))]
pub async fn write(
    State(app): State<Shared>,
    Caller(tenant): Caller,
    path: FilePath,
    target: Result<Params<Target>, Failure>,
    headers: HeaderMap,
    mut body: Body,
) -> Result<(StatusCode, Json<FileEntry>), Failure> {
    let Path((id, path)) = path?;
    let Params(target) = target?;
    let kept = app.sandboxes.find(&tenant, &id)?;
    body::check_encoding(&headers)?;
    body::check_whole(&headers)?;
    let transfer = Transfer::into(&kept)?;
    let files = transfer.files.clone();
    if target.kind == Some(TargetKind::Directory) {
        transfer.put(in_pages(0))?;
        let made = off(move || {
            files.make_directory(&path)?;
            files.look(&path)
        });
        let made = made.await?;
        transfer.check()?;
        return Ok((StatusCode::CREATED, Json(made.into())));
    }
    let most = kept.session.limits().disk_bytes;
    let announced = body::announced(&headers);
    if announced.is_some_and(|bytes| bytes > most) {
        return Err(Failure(Error::BodyTooLarge { max: most }));
    }
    transfer.put(in_pages(0))?;
    let begun = path.clone();
    let _held = app.admission.hold(HELD)?;
    let (files, mut upload) = off(move || {
        files.check_room(&begun, announced.unwrap_or(0))?;
        let upload = files.upload(&begun)?;
        Ok((files, upload))
    })
    .await?;
    let pace = Pace::new(app.config.http.read_timeout);
    let mut come = 0;
    loop {
        let next = tokio::select! {
            next = body::next(&mut body, pace.deadline(come)) => next?,
            error = transfer.ended() => return Err(Failure(error)),
        };
        let Some(bytes) = next else {
            break;
        };
        come += bytes.len() as u64;
        transfer.put(bytes.len() as u64)?;
        upload = off(move || {
            upload.write(&bytes)?;
            Ok(upload)
        })
        .await?;
    }
    let entry = off(move || finish(&files, upload, &path)).await;
    // Whatever became of it there, it is not in what took the sandbox's place.
    transfer.check()?;
    Ok((StatusCode::CREATED, Json(entry?.into())))
}

fn finish(files: &Files, upload: belljar::Upload, path: &str) -> Result<Entry, Error> {
    upload.finish()?;
    files.look(path)
}

/// Delete a file, or a directory with all that is in it
#[utoipa::path(delete, path = "/v1/sandboxes/{id}/files/{*path}", tag = "files", params(("id" = SandboxId, Path), ("path" = String, Path)),
    responses((status = 204), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)))]
pub async fn delete(
    State(app): State<Shared>,
    Caller(tenant): Caller,
    path: FilePath,
) -> Result<StatusCode, Failure> {
    let Path((id, path)) = path?;
    let kept = app.sandboxes.find(&tenant, &id)?;
    kept.touch();
    let files = kept.session.files();
    off_in_turn((&app, &tenant), move || {
        let removed = files.remove(&path);
        kept.count_put();
        removed
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::part;
    use proptest::prelude::*;

    proptest! {
        /// A range that is served lies within the file.
        #[test]
        fn fuzz_ranges(range in "(bytes=)?[-0-9, ]{0,24}", any: String, size: u64) {
            for text in [range, any] {
                if let Ok(Some((start, length))) = part(&text, size) {
                    prop_assert!(length > 0 && start.checked_add(length).is_some_and(|end| end <= size));
                }
            }
        }
    }

    #[test]
    fn ranges() {
        for (range, wanted) in [
            ("bytes=0-0", Some((0, 1))),
            ("bytes=5-", Some((5, 5))),
            ("bytes=-3", Some((7, 3))),
            ("bytes=-30", Some((0, 10))),
            ("bytes=2-100", Some((2, 8))),
            ("bytes=0-1,3-4", None),
            ("lines=0-1", None),
            ("bytes=4-2", None),
            ("bytes=x", None),
        ] {
            assert_eq!(part(range, 10).unwrap(), wanted, "{range}");
        }
        for range in ["bytes=10-", "bytes=10-12", "bytes=-0"] {
            assert!(part(range, 10).is_err(), "{range}");
        }
        assert!(part("bytes=0-", 0).is_err());
    }
}
