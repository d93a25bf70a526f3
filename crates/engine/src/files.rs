//! Files that go into a workspace before a run and come out of it afterwards.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use belljar_jail::Owner;
use belljar_jail::beneath::{self, Bounds, Found, Walk, by_path};
use belljar_spec::{Content, Error, FileInfo, fits_glob};
use tokio::sync::Semaphore;

use crate::output_dir::{LeftBehind, OutputDirectory};
use crate::sandbox::Sandbox;
use crate::workspace::Temporary;

/// How many files a workspace may have for all to be listed, and how deep they may lie.
pub(crate) const BOUNDS: Bounds = Bounds {
    files: 10_000,
    depth: belljar_spec::MAX_DEPTH,
    path_bytes: 4 << 20,
};

/// Of the paths in one result.
const MOST_PATH_BYTES: usize = 1 << 20;

/// How many files are looked at before other work gets its turn: a workspace that code has filled takes milliseconds.
const AT_ONCE: usize = 256;

/// Content of files in one result.
const MOST_GIVEN_BACK: u64 = 16 << 20;

/// A file to be put into the workspace.
pub struct InputFile {
    /// Below the workspace; checked by `spec`.
    pub destination: String,
    pub content: Source,
}

pub enum Source {
    Bytes(Vec<u8>),
    /// Streamed, so that a large file is never in memory as a whole.
    File(File),
}

/// What the code wrote.
#[derive(Debug)]
pub struct Collected {
    pub files: Vec<Found>,
    /// `false`: there was more than is listed.
    pub complete: bool,
}

impl Collected {
    /// The same with the content of those that the globs name. `false`: not all of that fits into an answer.
    pub async fn listing_with(&self, sandbox: &Sandbox, globs: &[String]) -> (Vec<FileInfo>, bool) {
        let (mut listing, mut complete) = self.listing();
        if globs.is_empty() {
            return (listing, complete);
        }
        let mut room = MOST_GIVEN_BACK;
        for (number, (found, info)) in self.files.iter().zip(&mut listing).enumerate() {
            if number % AT_ONCE == AT_ONCE - 1 {
                tokio::task::yield_now().await;
            }
            if !globs.iter().any(|glob| fits_glob(glob, &info.path)) {
                continue;
            }
            // Whoever still runs may have changed it since it was listed: no more is read than was seen.
            let mut content = Vec::new();
            let file = match sandbox.place() {
                _ if found.bytes > room => None,
                Ok(native) => beneath::open_file(native.workspace, &found.path).ok(),
                Err(remote) => Box::pin(remote.open(&found.path, room)).await.ok(),
            };
            let read =
                file.is_some_and(|file| file.take(found.bytes).read_to_end(&mut content).is_ok());
            if read {
                room -= found.bytes;
                info.content = Some(Content::from(content));
            } else {
                complete = false;
            }
        }
        (listing, complete)
    }

    /// As a result has it. `false`: there was more than is in it.
    pub fn listing(&self) -> (Vec<FileInfo>, bool) {
        let mut path_bytes = 0;
        let fits = |found: &&Found| {
            path_bytes += found.path.as_os_str().len();
            path_bytes <= MOST_PATH_BYTES
        };
        let info = |found: &Found| FileInfo {
            path: found.path.to_string_lossy().into_owned(),
            bytes: found.bytes,
            content: None,
        };
        let listed: Vec<_> = self.files.iter().take_while(fits).map(info).collect();
        let complete = self.complete && listed.len() == self.files.len();
        (listed, complete)
    }
}

/// The regular files in a workspace, by path, and whether those are all.
pub(crate) async fn walk(workspace: BorrowedFd<'_>) -> io::Result<(Vec<Found>, bool)> {
    /// However many sandboxes are full of files, most of the machine is there for the others.
    static TURNS: LazyLock<Semaphore> = LazyLock::new(|| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Semaphore::new((cores / 2).max(1))
    });
    let mut walk = Walk::new(workspace, BOUNDS);
    if walk.go_on(AT_ONCE)? {
        return Ok(walk.finish());
    }
    let _turn = TURNS.acquire().await.map_err(io::Error::other)?;
    let rest = move || {
        walk.go_on(usize::MAX)?;
        Ok(walk.finish())
    };
    tokio::task::spawn_blocking(rest).await?
}

pub(crate) fn put(workspace: BorrowedFd<'_>, file: InputFile, owner: Owner) -> Result<(), Error> {
    let path = Path::new(&file.destination);
    let _as_owner = beneath::acting_as(owner);
    let written = match file.content {
        Source::Bytes(bytes) => beneath::write_file(workspace, path, &bytes, owner).map(drop),
        Source::File(mut source) => beneath::create_file(workspace, path, Some(owner))
            .and_then(|mut target| io::copy(&mut source, &mut target).map(drop)),
    };
    written.map_err(|error| refused(&file.destination, &error))
}

/// Puts a file into a workspace in place of what may be there.
pub(crate) fn replace(
    workspace: BorrowedFd<'_>,
    file: InputFile,
    owner: Owner,
) -> Result<(), Error> {
    let removed = beneath::remove_file(workspace, Path::new(&file.destination));
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(refused(&file.destination, &error))
        }
        _ => put(workspace, file, owner),
    }
}

/// `ENFILE` and `EMFILE`.
const TOO_MANY_OPEN: [i32; 2] = [23, 24];

/// Why a file could not be put into a workspace.
pub(crate) fn refused(destination: &str, error: &io::Error) -> Error {
    // Ours, and no fault of the file.
    if error
        .raw_os_error()
        .is_some_and(|code| TOO_MANY_OPEN.contains(&code))
    {
        return Error::Overloaded {
            reason: "there are too many open files".into(),
            retry_after_s: 1,
        };
    }
    let reason = match error.kind() {
        io::ErrorKind::StorageFull => {
            "it does not fit into the workspace; raise the limit disk_bytes (--disk)".into()
        }
        io::ErrorKind::AlreadyExists => "another file of this run has the same destination".into(),
        _ => error.to_string(),
    };
    Error::invalid_file("file", destination, reason)
}

/// The state of a workspace, to tell later what has changed: its files by path.
pub(crate) struct Snapshot(Vec<Found>);

impl Snapshot {
    /// Of a workspace in which there is just this.
    pub fn of(mut inputs: Vec<Found>) -> Self {
        inputs.sort_by(by_path);
        Self(inputs)
    }

    /// The files that are new or different now. Both are in the same order, so that nothing has to be looked up.
    pub fn changes(&self, (mut files, complete): (Vec<Found>, bool)) -> Collected {
        let mut before = self.0.iter().peekable();
        files.retain(|found| {
            while before.next_if(|one| by_path(one, found).is_lt()).is_some() {}
            let same = before.next_if(|one| one.path.as_os_str() == found.path.as_os_str());
            let is_whole = !found.path.file_name().is_some_and(Temporary::is);
            is_whole && same.is_none_or(|one| one.stamp != found.stamp)
        });
        Collected { files, complete }
    }
}

/// Copies collected files into a directory of the host. Existing files are replaced, links never followed.
///
/// `false`: not all came out, and the directory knows what did not. The code chose names, modes and sizes, so one file that cannot be copied is no error, two whose
/// names become the same do not overwrite each other, and holes do not make more of them than the disk limit allows.
pub(crate) async fn copy_out(
    sandbox: &Sandbox,
    collected: &Collected,
    to: &OutputDirectory,
    mut budget: u64,
) -> bool {
    let mut left = LeftBehind::default();
    if !collected.complete {
        let Bounds { files, depth, .. } = BOUNDS;
        left.unlisted = Some(format!(
            "what is beyond {files} names, or more than {depth} directories deep"
        ));
    }
    let mut written = HashSet::new();
    for found in &collected.files {
        // The code is dead by now: nobody changes the workspace under us any more.
        let name = harmless(&found.path);
        if found.bytes > budget {
            left.add(name, "more than the limit disk_bytes would come out".into());
            continue;
        }
        if !written.insert(name.clone()) {
            left.add(name, "another file has this name too".into());
            continue;
        }
        let source = match sandbox.place() {
            Ok(native) => beneath::open_file(native.workspace, &found.path),
            Err(remote) => Box::pin(remote.open(&found.path, budget)).await,
        };
        let source = match source {
            Ok(source) => source,
            Err(error) => {
                left.add(name, error.to_string());
                continue;
            }
        };
        match copy_one(source, found, to, &name) {
            Ok(()) => budget -= found.bytes,
            Err(error) => {
                left.unwritten |= !is_about_names(&error);
                left.add(name, in_the_way(&error));
            }
        }
    }
    let complete = left.is_empty();
    to.note(left);
    complete
}

/// Whether the name that the code chose is why its file could not be written.
fn is_about_names(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::AlreadyExists
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::InvalidFilename
    )
}

/// Why a file did not come out.
fn in_the_way(error: &io::Error) -> String {
    match error.kind() {
        // Files and links are replaced.
        io::ErrorKind::AlreadyExists | io::ErrorKind::IsADirectory => {
            "a directory has this name there".into()
        }
        io::ErrorKind::NotADirectory => "a file or link is there in place of its directory".into(),
        io::ErrorKind::InvalidFilename => "its path is too long".into(),
        io::ErrorKind::StorageFull => "the disk is full".into(),
        _ => error.to_string(),
    }
}

/// A path whose names cannot play tricks on a terminal or a script: control and direction characters, and bytes that are not
/// UTF-8, as `%XX`. What gets too long by that is cut.
pub fn harmless(path: &Path) -> PathBuf {
    path.components()
        .map(|name| harmless_name(name.as_os_str().as_encoded_bytes()))
        .collect()
}

fn harmless_name(name: &[u8]) -> String {
    const LONGEST: usize = 255;
    let tricky = |c: char| {
        let turns_text = matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        c.is_control() || turns_text
    };
    let escaped = |bytes: &[u8]| {
        bytes
            .iter()
            .map(|byte| format!("%{byte:02X}"))
            .collect::<Vec<_>>()
    };
    let mut parts = Vec::new();
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            let bytes = c.to_string();
            if tricky(c) {
                parts.extend(escaped(bytes.as_bytes()));
            } else {
                parts.push(bytes);
            }
        }
        parts.extend(escaped(chunk.invalid()));
    }
    let mut out = String::new();
    for part in parts {
        if out.len() + part.len() > LONGEST {
            break;
        }
        out.push_str(&part);
    }
    out
}

fn copy_one(source: File, found: &Found, to: &OutputDirectory, name: &Path) -> io::Result<()> {
    let mut copy = to.replace(name)?;
    io::copy(&mut source.take(found.bytes), &mut copy)?;
    copy.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::fd::AsFd;
    use std::os::unix::ffi::OsStrExt;

    #[tokio::test]
    async fn a_large_workspace_is_walked_elsewhere() {
        let dir = tempfile::tempdir().expect("tempdir");
        let handle = File::open(dir.path()).expect("open");
        for (count, at_once) in [(10, true), (AT_ONCE * 4, false)] {
            for name in 0..count {
                File::create(dir.path().join(name.to_string())).expect("file");
            }
            let mut walk = std::pin::pin!(walk(handle.as_fd()));
            let walked = tokio::select! {
                biased;
                walked = &mut walk => Some(walked),
                () = std::future::ready(()) => None,
            };
            assert_eq!(walked.is_some(), at_once, "{count}");
            let walked = match walked {
                Some(walked) => walked,
                None => walk.await,
            };
            let (found, complete) = walked.expect("a walk");
            assert_eq!((found.len(), complete), (count, true));
        }
    }

    #[test]
    fn changes_are_what_is_new_or_different() {
        let found = |path: &str, inode| Found {
            path: path.into(),
            bytes: 0,
            stamp: (inode, 0, 0),
        };
        let before = vec![
            found("b", 1),
            found("a/x", 2),
            found("a.x", 3),
            found("c", 4),
        ];
        let after = vec![
            found("a", 4),
            found("a/x", 2),
            found("a.x", 9),
            found("c", 4),
        ];
        let changes = Snapshot::of(before).changes((after, true));
        let (listed, complete) = changes.listing();
        let paths: Vec<_> = listed.into_iter().map(|info| info.path).collect();
        assert_eq!((paths, complete), (vec!["a".into(), "a.x".into()], true));
    }

    /// Code makes names as long as it likes: what a result has of them is bounded, and it says so.
    #[test]
    fn names_in_a_result_are_bounded() {
        let files: Vec<_> = (0..2000)
            .map(|number| Found {
                path: format!("{number:0>1000}").into(),
                bytes: 0,
                stamp: (0, 0, 0),
            })
            .collect();
        let all = Collected {
            files,
            complete: true,
        };
        let (listed, complete) = all.listing();
        assert_eq!((listed.len(), complete), (MOST_PATH_BYTES / 1000, false));
    }

    #[test]
    fn names_lose_their_tricks() {
        let shown = |bytes: &[u8]| harmless(Path::new(OsStr::from_bytes(bytes))).into_os_string();
        assert_eq!(shown("plain/näme.txt".as_bytes()), "plain/näme.txt");
        assert_eq!(shown(b"a\nb\x1b[2J"), "a%0Ab%1B[2J");
        assert_eq!(shown("x\u{202e}gpj".as_bytes()), "x%E2%80%AEgpj");
        assert_eq!(shown(b"\xff/y"), "%FF/y");
    }
}
