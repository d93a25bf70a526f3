//! Files of a kept sandbox, read and written from outside while code may be running inside.
//!
//! All calls block on the file system, for a bounded time: nothing but regular files is opened.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_jail::directory::{self, Item};
use belljar_jail::{Owner, beneath};
use belljar_spec::{Error, Limits, check_destination, shown};

pub use belljar_jail::directory::Kind;

use crate::docker::{RemoteFiles, RemoteUpload};
use crate::run::random_bits;
use crate::sandbox::{Native, Sandbox};

/// What one answer may cost.
const MOST_IN_DIRECTORY: usize = 100_000;
const MOST_REMOVED: usize = 100_000;
const DEEPEST: usize = belljar_spec::MAX_DEPTH;

/// Names of files that are on their way into some workspace. Code may give a file of its own such a name: that one is no secret.
static ON_THEIR_WAY: Mutex<BTreeSet<OsString>> = Mutex::new(BTreeSet::new());

/// What a file is called until it is complete. Lists leave it out as long as this is there.
pub(crate) struct Temporary(OsString);

impl Temporary {
    pub fn new() -> Result<Self, Error> {
        let name = OsString::from(format!(".belljar-{:032x}", random_bits()?));
        Self::all().insert(name.clone());
        Ok(Self(name))
    }

    pub fn name(&self) -> &OsStr {
        &self.0
    }

    /// Whether a file has the name of one that is on its way.
    pub fn is(name: &OsStr) -> bool {
        name.as_encoded_bytes().starts_with(b".belljar-") && Self::all().contains(name)
    }

    fn all() -> MutexGuard<'static, BTreeSet<OsString>> {
        ON_THEIR_WAY.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        Self::all().remove(&self.0);
    }
}

/// The workspace of a session.
#[derive(Clone)]
pub struct Files {
    sandbox: Arc<Sandbox>,
    disk_bytes: u64,
    memory_bytes: u64,
}

/// Something in the workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub path: PathBuf,
    pub kind: Kind,
    pub bytes: u64,
    /// Seconds since 1970.
    pub modified: i64,
    pub mode: u32,
}

impl Files {
    pub(crate) fn new(sandbox: Arc<Sandbox>, limits: &Limits) -> Self {
        Self {
            sandbox,
            disk_bytes: limits.disk_bytes,
            memory_bytes: limits.memory_bytes,
        }
    }

    pub(crate) fn are_in(&self, sandbox: &Arc<Sandbox>) -> bool {
        Arc::ptr_eq(&self.sandbox, sandbox)
    }

    /// Whether what is put into it takes memory that is not counted as the sandbox's: the kernel counts a page of a tmpfs as that of
    /// whoever writes it first, and here that is this process.
    pub fn are_ours(&self) -> bool {
        self.sandbox.place().is_ok()
    }

    /// Whether so many bytes more may be put into it: as much as would fit if they were the code's own.
    pub fn check_room(&self, path: &str, bytes: u64) -> Result<(), Error> {
        if self.are_ours() && self.used().saturating_add(bytes) > self.memory_bytes {
            return Err(Error::DiskFull {
                path: shown(path),
                limit: "memory_bytes",
            });
        }
        Ok(())
    }

    /// A regular file, to be read.
    pub fn open(&self, path: &str) -> Result<File, Error> {
        check_destination("path", path)?;
        self.open_at(Path::new(path))
            .map_err(|error| failed(path, &error))
    }

    /// One that a walk has found, whatever its name is made of; `None` if it is gone, or no regular file any more.
    pub fn open_found(&self, found: &Entry) -> Result<Option<File>, Error> {
        match self.open_at(&found.path) {
            Ok(file) => Ok(Some(file)),
            Err(error) => changed(&found.path, &error).map(|()| None),
        }
    }

    fn open_at(&self, at: &Path) -> io::Result<File> {
        match self.sandbox.place() {
            Ok(native) => beneath::open_file(native.workspace, at),
            // A copy: no larger than what the sandbox may hold.
            Err(remote) => RemoteFiles::wait(remote.open(at, self.disk_bytes)),
        }
    }

    /// What is there; the workspace itself where the path is empty.
    pub fn look(&self, path: &str) -> Result<Entry, Error> {
        check(path)?;
        let looked = match self.sandbox.place() {
            Ok(native) => {
                let at = if path.is_empty() { "." } else { path };
                directory::look(native.workspace, Path::new(at))
            }
            Err(remote) => RemoteFiles::wait(remote.look(Path::new(path))),
        };
        looked
            .map(|item| entry(PathBuf::from(path), &item))
            .map_err(|error| failed(path, &error))
    }

    /// A file that takes its place when it is complete. Makes the directories above it.
    pub fn upload(&self, path: &str) -> Result<Upload, Error> {
        check_destination("path", path)?;
        let fail = |error: io::Error| failed(path, &error);
        let target = Path::new(path);
        let Native { workspace, owner } = match self.sandbox.place() {
            Ok(native) => native,
            Err(remote) => {
                let begun = RemoteFiles::wait(remote.create(target, true)).map_err(fail)?;
                return Ok(Upload {
                    files: self.clone(),
                    path: path.to_owned(),
                    to: Target::Remote(begun),
                });
            }
        };
        let name = target.file_name().unwrap_or_default().to_owned();
        let above = target.parent().unwrap_or(Path::new(""));
        let _as_owner = beneath::acting_as(owner);
        let parent = directory::make(workspace, above, owner).map_err(fail)?;
        let temporary = Temporary::new()?;
        let file = beneath::create_file(parent.as_fd(), Path::new(temporary.name()), Some(owner))
            .map_err(fail)?;
        Ok(Upload {
            files: self.clone(),
            path: path.to_owned(),
            to: Target::Native(Begun {
                file,
                parent,
                owner,
                temporary,
                name,
                done: false,
            }),
        })
    }

    /// Bytes written to the workspace and `/tmp` together.
    pub fn used(&self) -> u64 {
        match self.sandbox.place() {
            Ok(native) => directory::used(native.workspace).unwrap_or(0),
            Err(remote) => remote.used(),
        }
    }

    pub fn make_directory(&self, path: &str) -> Result<(), Error> {
        check_destination("path", path)?;
        let made = match self.sandbox.place() {
            Ok(Native { workspace, owner }) => {
                let _as_owner = beneath::acting_as(owner);
                directory::make(workspace, Path::new(path), owner).map(drop)
            }
            Err(remote) => RemoteFiles::wait(remote.make_directory(Path::new(path))),
        };
        made.map_err(|error| failed(path, &error))
    }

    /// A file, or a directory with all that is in it.
    pub fn remove(&self, path: &str) -> Result<(), Error> {
        check_destination("path", path)?;
        let (at, mut most) = (Path::new(path), MOST_REMOVED);
        let removed = match self.sandbox.place() {
            Ok(native) => directory::remove(native.workspace, at, DEEPEST, &mut most),
            Err(remote) => RemoteFiles::wait(remote.remove(at, DEEPEST, most)),
        };
        removed.map_err(|error| failed(path, &error))
    }

    /// Everything in a directory, by name, and `depth` levels below it, until `visit` says it has seen enough. Directories
    /// come before what is in them.
    pub fn walk(
        &self,
        path: &str,
        depth: usize,
        visit: &mut dyn FnMut(Entry) -> bool,
    ) -> Result<(), Error> {
        check(path)?;
        let (depth, mut levels) = (depth.min(DEEPEST), Vec::<Level>::new());
        let mut next = Some(PathBuf::from(path));
        while let Some(at) = next.take() {
            let listed = self.list(levels.last(), &at);
            let (directory, items) = match listed {
                Ok((directory, Some(items))) => (directory, items),
                Ok((_, None)) => {
                    return Err(Error::Conflict {
                        reason: format!(
                            "{} has more than {MOST_IN_DIRECTORY} names in it",
                            shown(&at.to_string_lossy())
                        ),
                    });
                }
                // What is below the first may change while we look.
                Err(error) if !levels.is_empty() => {
                    changed(&at, &error)?;
                    next = Level::next(&mut levels);
                    continue;
                }
                Err(error) => return Err(failed(path, &error)),
            };
            let mut below = Vec::new();
            let complete = |item: &Item| !Temporary::is(&item.name);
            for item in items.into_iter().filter(complete) {
                let found = entry(at.join(&item.name), &item);
                if item.kind == Kind::Directory && levels.len() < depth {
                    below.push(item.name);
                }
                if !visit(found) {
                    return Ok(());
                }
            }
            below.reverse();
            levels.push(Level {
                directory,
                path: at,
                pending: below,
            });
            next = Level::next(&mut levels);
        }
        Ok(())
    }

    /// The names in a directory, which is looked for in the one above: a path from the top may be longer than the kernel takes.
    fn list(&self, above: Option<&Level>, at: &Path) -> io::Result<(Option<OwnedFd>, Listed)> {
        let native = match self.sandbox.place() {
            Ok(native) => native,
            Err(remote) => {
                let listed = RemoteFiles::wait(remote.list(at, MOST_IN_DIRECTORY))?;
                return Ok((None, listed));
            }
        };
        let opened = match above.and_then(|above| above.directory.as_ref()) {
            Some(above) => {
                let name = at.file_name().unwrap_or_default();
                directory::open_directory(above.as_fd(), Path::new(name))?
            }
            None => directory::open_directory(native.workspace, at)?,
        };
        let listed = directory::list(opened.try_clone()?, MOST_IN_DIRECTORY)?;
        Ok((Some(opened), listed))
    }
}

/// `None`: there are too many.
type Listed = Option<Vec<Item>>;

/// A directory on the way of a walk.
struct Level {
    /// Where it is one of this host.
    directory: Option<OwnedFd>,
    path: PathBuf,
    /// Directories in it that have not been looked at yet, the last first.
    pending: Vec<OsString>,
}

impl Level {
    /// Where a walk goes next: as far down as there is something left.
    fn next(levels: &mut Vec<Self>) -> Option<PathBuf> {
        while let Some(level) = levels.last_mut() {
            if let Some(name) = level.pending.pop() {
                return Some(level.path.join(name));
            }
            levels.pop();
        }
        None
    }
}

fn entry(path: PathBuf, item: &Item) -> Entry {
    Entry {
        path,
        kind: item.kind,
        bytes: item.bytes,
        modified: item.modified,
        mode: item.mode,
    }
}

fn check(path: &str) -> Result<(), Error> {
    if path.is_empty() {
        return Ok(());
    }
    check_destination("path", path)
}

/// A file on its way into the workspace. Dropped before it is finished, it leaves nothing.
pub struct Upload {
    files: Files,
    path: String,
    to: Target,
}

enum Target {
    Native(Begun),
    Remote(RemoteUpload),
}

/// A file in a directory of this host that does not have its name yet.
struct Begun {
    file: File,
    parent: OwnedFd,
    owner: Owner,
    temporary: Temporary,
    name: OsString,
    done: bool,
}

impl Upload {
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.files.check_room(&self.path, bytes.len() as u64)?;
        let written = match &mut self.to {
            Target::Native(begun) => begun.file.write_all(bytes),
            Target::Remote(begun) => RemoteFiles::wait(begun.write(bytes)),
        };
        written.map_err(|error| failed(&self.path, &error))
    }

    /// For everybody; no other bit of a mode comes from outside. A container's agent does not know of modes.
    pub fn make_executable(&mut self) -> Result<(), Error> {
        let Target::Native(begun) = &self.to else {
            return Ok(());
        };
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        let done = begun.file.set_permissions(mode);
        done.map_err(|error| failed(&self.path, &error))
    }

    /// Takes the place of what has the name now.
    pub fn finish(mut self) -> Result<(), Error> {
        let finished = match &mut self.to {
            Target::Native(begun) => begun.finish(),
            Target::Remote(begun) => RemoteFiles::wait(begun.finish()),
        };
        finished.map_err(|error| failed(&self.path, &error))
    }
}

impl Begun {
    fn finish(&mut self) -> io::Result<()> {
        let _as_owner = beneath::acting_as(self.owner);
        directory::rename(self.parent.as_fd(), self.temporary.name(), &self.name)?;
        self.done = true;
        Ok(())
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if !self.done {
            let _ = beneath::remove_file(self.parent.as_fd(), Path::new(self.temporary.name()));
        }
    }
}

/// Whether something cannot be used because the code has taken it away or put another in its place; else the error is ours.
fn changed(path: &Path, error: &io::Error) -> Result<(), Error> {
    match failed(&path.to_string_lossy(), error) {
        Error::NotFound { .. } | Error::InvalidPath { .. } => Ok(()),
        error => Err(error),
    }
}

/// These have no name in the standard library.
const ENXIO: i32 = 6;
const ELOOP: i32 = 40;

fn failed(path: &str, error: &io::Error) -> Error {
    let refused = |accepted: &str| Error::invalid_path("path", path, accepted);
    match error.kind() {
        io::ErrorKind::NotFound => Error::NotFound {
            what: "file",
            given: shown(path),
            nearest: None,
        },
        io::ErrorKind::InvalidInput => refused("it is no regular file"),
        io::ErrorKind::IsADirectory => refused("it is a directory"),
        io::ErrorKind::NotADirectory => refused("a part of it is no directory"),
        io::ErrorKind::PermissionDenied => refused("its permissions do not let it be used"),
        io::ErrorKind::CrossesDevices => {
            refused("it leads into a volume; give the path of a file in the workspace")
        }
        io::ErrorKind::QuotaExceeded => refused(
            "it is too large or too deep to be removed at once; remove it by a command in the sandbox",
        ),
        io::ErrorKind::FileTooLarge => refused("it is larger than all that the sandbox may hold"),
        io::ErrorKind::InvalidFilename => refused("it is too long"),
        io::ErrorKind::StorageFull => Error::DiskFull {
            path: shown(path),
            limit: "disk_bytes",
        },
        _ => match error.raw_os_error() {
            // A socket, or a device that is not there.
            Some(ENXIO) => refused("it is no regular file"),
            Some(ELOOP) => refused("it is a link or leads through one"),
            _ => Error::internal("files", error),
        },
    }
}
