//! Files of a sandbox's workspace, reached from outside without ever following it out.
//!
//! The directory belongs to hostile code: every path is resolved by the kernel beneath a directory descriptor, links are
//! never followed, only regular files are opened, and nothing blocks on a FIFO.

mod walk;

use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, setfsgid, setfsuid, unlinkat};
use serde::{Deserialize, Serialize};

use crate::plan::Owner;
pub use walk::{Walk, by_path};

/// A regular file seen by a [`Walk`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Below the workspace. Any bytes a file name can have.
    pub path: PathBuf,
    pub bytes: u64,
    /// Changes whenever the file does.
    pub stamp: (u64, i64, i64),
}

/// What a walk may cost.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub files: usize,
    pub depth: usize,
    /// Of all paths together: code makes each as long as it may.
    pub path_bytes: usize,
}

/// The kernel takes paths of less than `PATH_MAX` (4096) bytes; code makes longer ones by going down.
const LONGEST: usize = 4000;

pub(crate) fn open(dir: BorrowedFd<'_>, path: &Path, flags: OFlag) -> io::Result<OwnedFd> {
    if path.as_os_str().len() > LONGEST {
        return open_in_parts(dir, path, flags);
    }
    let how = OpenHow::new()
        .flags(flags | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW)
        .mode(if flags.contains(OFlag::O_CREAT) {
            Mode::from_bits_truncate(0o644)
        } else {
            Mode::empty()
        })
        .resolve(
            ResolveFlag::RESOLVE_BENEATH
                | ResolveFlag::RESOLVE_NO_SYMLINKS
                | ResolveFlag::RESOLVE_NO_MAGICLINKS
                | ResolveFlag::RESOLVE_NO_XDEV,
        );
    resolve(dir, path, how)
}

/// The same for a path that is too long to be given at once.
fn open_in_parts(dir: BorrowedFd<'_>, path: &Path, flags: OFlag) -> io::Result<OwnedFd> {
    let mut at = dir.try_clone_to_owned()?;
    let mut part = PathBuf::new();
    for name in path.components() {
        if part.as_os_str().len() + name.as_os_str().len() >= LONGEST {
            at = open(at.as_fd(), &part, OFlag::O_PATH | OFlag::O_DIRECTORY)?;
            part.clear();
        }
        part.push(name);
    }
    // A single name of that length is longer than any there can be.
    if part.as_os_str().len() > LONGEST {
        return Err(Errno::ENAMETOOLONG.into());
    }
    open(at.as_fd(), &part, flags)
}

/// A rename that races with the resolution makes the kernel ask to try again. Whoever renames without end is not waited for.
pub(crate) fn resolve(dir: BorrowedFd<'_>, path: &Path, how: OpenHow) -> io::Result<OwnedFd> {
    const MOST: usize = 1000;
    for _ in 0..MOST {
        match openat2(dir, path, how) {
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            opened => return Ok(opened?),
        }
    }
    Err(Errno::EAGAIN.into())
}

/// Opens a regular file for reading. Anything else is an error, at once.
pub fn open_file(dir: BorrowedFd<'_>, path: &Path) -> io::Result<File> {
    let file = File::from(open(dir, path, OFlag::O_RDONLY | OFlag::O_NONBLOCK)?);
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        "not a regular file",
    ))
}

/// While this lives, what this thread does to files it does as the owner of the sandbox.
///
/// A workspace may be a file system of the sandbox's own user namespace: nobody whom that does not know, root included, can
/// make files there (`EOVERFLOW`).
#[must_use]
pub struct ActingAs {
    uid: Uid,
    gid: Gid,
}

pub fn acting_as(owner: Owner) -> ActingAs {
    // The group first: the user's right to change it goes with the user.
    let gid = setfsgid(Gid::from_raw(owner.gid));
    let uid = setfsuid(Uid::from_raw(owner.uid));
    ActingAs { uid, gid }
}

impl Drop for ActingAs {
    fn drop(&mut self) {
        setfsuid(self.uid);
        setfsgid(self.gid);
    }
}

/// Opens a directory, and makes those on the way to it that are not there. With an owner, what is made becomes theirs.
pub fn create_directories(
    dir: BorrowedFd<'_>,
    path: &Path,
    owner: Option<Owner>,
) -> io::Result<OwnedFd> {
    let mut parent = dir.try_clone_to_owned()?;
    for name in path.components() {
        let name = Path::new(name.as_os_str());
        let made = match mkdirat(&parent, name, Mode::from_bits_truncate(0o755)) {
            Ok(()) => true,
            Err(Errno::EEXIST) => false,
            Err(errno) => return Err(errno.into()),
        };
        parent = open(parent.as_fd(), name, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
        if let Some(owner) = owner.filter(|_| made) {
            fchown(&parent, Some(owner.uid), Some(owner.gid))?;
        }
    }
    Ok(parent)
}

/// Creates a file, and the directories above it. An existing file is an error.
pub fn create_file(dir: BorrowedFd<'_>, path: &Path, owner: Option<Owner>) -> io::Result<File> {
    let above = path.parent().unwrap_or(Path::new(""));
    let parent = create_directories(dir, above, owner)?;
    let name = Path::new(path.file_name().ok_or(io::ErrorKind::InvalidInput)?);
    let file = File::from(open(
        parent.as_fd(),
        name,
        OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL,
    )?);
    if let Some(owner) = owner {
        fchown(&file, Some(owner.uid), Some(owner.gid))?;
    }
    Ok(file)
}

/// Removes a file, whatever kind of file it is; a link itself, never what it leads to.
pub fn remove_file(dir: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let directory = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
    let parent = match path.parent() {
        Some(parent) if parent != Path::new("") => open(dir, parent, directory)?,
        _ => dir.try_clone_to_owned()?,
    };
    Ok(unlinkat(&parent, name, UnlinkatFlags::NoRemoveDir)?)
}

/// Creates a file with this content.
pub fn write_file(
    dir: BorrowedFd<'_>,
    path: &Path,
    content: &[u8],
    owner: Owner,
) -> io::Result<Found> {
    let mut file = create_file(dir, path, Some(owner))?;
    file.write_all(content)?;
    Ok(found(path.to_owned(), &file.metadata()?))
}

fn found(path: PathBuf, metadata: &Metadata) -> Found {
    Found {
        path,
        bytes: metadata.len(),
        stamp: (metadata.ino(), metadata.ctime(), metadata.ctime_nsec()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn place() -> (tempfile::TempDir, File, Owner) {
        let dir = tempfile::tempdir().expect("tempdir");
        let handle = File::open(dir.path()).expect("open");
        let owner = Owner {
            uid: nix::unistd::geteuid().as_raw(),
            gid: nix::unistd::getegid().as_raw(),
        };
        (dir, handle, owner)
    }

    #[test]
    fn links_are_not_followed() {
        let (dir, handle, owner) = place();
        symlink("/etc", dir.path().join("out")).expect("link");
        symlink("/etc/passwd", dir.path().join("file")).expect("link");
        for path in ["out/passwd", "file", "../x", "/etc/passwd", "out/../file"] {
            assert!(
                open_file(handle.as_fd(), Path::new(path)).is_err(),
                "{path}"
            );
        }
        assert!(write_file(handle.as_fd(), Path::new("out/evil"), b"x", owner).is_err());
        assert!(write_file(handle.as_fd(), Path::new("file"), b"x", owner).is_err());
    }

    #[test]
    fn paths_may_be_longer_than_the_kernel_takes() {
        let (_dir, handle, owner) = place();
        let path: PathBuf = std::iter::repeat_n("d".repeat(250), 40).collect();
        let path = path.join("f");
        write_file(handle.as_fd(), &path, b"x", owner).expect("written");
        let file = open_file(handle.as_fd(), &path).expect("opened");
        assert_eq!(file.metadata().expect("metadata").len(), 1);
        let name = PathBuf::from("n".repeat(5000));
        assert!(open_file(handle.as_fd(), &name).is_err());
    }

    #[test]
    fn a_fifo_does_not_hang() {
        let (dir, handle, _) = place();
        nix::unistd::mkfifo(&dir.path().join("fifo"), Mode::S_IRWXU).expect("mkfifo");
        assert!(open_file(handle.as_fd(), Path::new("fifo")).is_err());
    }
}
