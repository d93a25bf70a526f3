//! Directories of a sandbox's workspace: listed, made, emptied from outside.
//!
//! As in `beneath`, every step goes through a descriptor that the kernel opened beneath the workspace. Code inside may rename
//! and link while we work: we may then see or remove something else of its own, never something outside.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Component, Path};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstatat, mkdirat};
use nix::sys::statvfs::fstatvfs;
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::beneath::open;
use crate::plan::Owner;

const DIRECTORY: OFlag = OFlag::O_RDONLY
    .union(OFlag::O_DIRECTORY)
    .union(OFlag::O_NONBLOCK);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
    Link,
    /// A FIFO, a socket, a device.
    Other,
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub name: OsString,
    pub kind: Kind,
    pub bytes: u64,
    /// Seconds since 1970.
    pub modified: i64,
    pub mode: u32,
}

fn item(name: &OsStr, stat: &FileStat) -> Item {
    let kind = match SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT {
        SFlag::S_IFREG => Kind::File,
        SFlag::S_IFDIR => Kind::Directory,
        SFlag::S_IFLNK => Kind::Link,
        _ => Kind::Other,
    };
    Item {
        name: name.to_owned(),
        kind,
        bytes: u64::try_from(stat.st_size).unwrap_or(0),
        modified: stat.st_mtime,
        mode: stat.st_mode & 0o777,
    }
}

/// A directory beneath `dir`; `dir` itself where the path is empty.
pub fn open_directory(dir: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    if path.as_os_str().is_empty() {
        return open(dir, Path::new("."), DIRECTORY);
    }
    open(dir, path, DIRECTORY)
}

/// What is there, without following links.
pub fn look(dir: BorrowedFd<'_>, path: &Path) -> io::Result<Item> {
    let handle = File::from(open(dir, path, OFlag::O_PATH)?);
    let metadata = handle.metadata()?;
    let kind = if metadata.is_file() {
        Kind::File
    } else if metadata.is_dir() {
        Kind::Directory
    } else if metadata.is_symlink() {
        Kind::Link
    } else {
        Kind::Other
    };
    Ok(Item {
        name: path.file_name().unwrap_or_default().to_owned(),
        kind,
        bytes: metadata.len(),
        modified: metadata.mtime(),
        mode: metadata.mode() & 0o777,
    })
}

/// The names in a directory, sorted; `None` where there are more than `most`.
pub fn list(directory: OwnedFd, most: usize) -> io::Result<Option<Vec<Item>>> {
    let mut listing = Dir::from_fd(directory)?;
    let mut names = Vec::new();
    for entry in listing.iter() {
        let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
        if name == "." || name == ".." {
            continue;
        }
        if names.len() == most {
            return Ok(None);
        }
        names.push(name);
    }
    names.sort_unstable();
    let mut items = Vec::with_capacity(names.len());
    for name in names {
        match fstatat(&listing, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => items.push(item(&name, &stat)),
            // Removed in the meantime.
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(Some(items))
}

/// Makes a directory and those above it. One that is there already is fine.
pub fn make(dir: BorrowedFd<'_>, path: &Path, owner: Owner) -> io::Result<OwnedFd> {
    let mut at = dir.try_clone_to_owned()?;
    for part in path.components() {
        let Component::Normal(name) = part else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let name = Path::new(name);
        match mkdirat(&at, name, Mode::from_bits_truncate(0o755)) {
            Ok(()) => {
                at = open(at.as_fd(), name, DIRECTORY)?;
                fchown(&at, Some(owner.uid), Some(owner.gid))?;
            }
            Err(Errno::EEXIST) => at = open(at.as_fd(), name, DIRECTORY)?,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(at)
}

/// Gives the file `from` the name `to`, in one directory. Replaces a file or a link of that name, never what a link leads to.
pub fn rename(directory: BorrowedFd<'_>, from: &OsStr, to: &OsStr) -> io::Result<()> {
    Ok(renameat(directory, from, directory, to)?)
}

/// Bytes in use in the file system that `dir` is in: all that the sandbox has written.
pub fn used(dir: BorrowedFd<'_>) -> io::Result<u64> {
    let stat = fstatvfs(dir)?;
    let blocks = stat.blocks().saturating_sub(stat.blocks_free());
    Ok(blocks.saturating_mul(stat.fragment_size()))
}

/// Bytes that are left for an ordinary user in the file system that `dir` is in, and how many it has at all.
pub fn free(dir: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    let stat = fstatvfs(dir)?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.fragment_size());
    Ok((bytes(stat.blocks_available()), bytes(stat.blocks())))
}

/// Removes a name and all beneath it. Stops with an error when it lies deeper, or is more, than the bounds.
pub fn remove(dir: BorrowedFd<'_>, path: &Path, depth: usize, most: &mut usize) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let parent = open_directory(dir, path.parent().unwrap_or(Path::new("")))?;
    remove_at(parent.as_fd(), name, depth, most)
}

fn remove_at(
    parent: BorrowedFd<'_>,
    name: &OsStr,
    depth: usize,
    most: &mut usize,
) -> io::Result<()> {
    let too_much = || io::Error::from(io::ErrorKind::QuotaExceeded);
    *most = most.checked_sub(1).ok_or_else(too_much)?;
    match unlinkat(parent, name, UnlinkatFlags::NoRemoveDir) {
        Err(Errno::EISDIR | Errno::EPERM) => {}
        done => return Ok(done?),
    }
    let depth = depth.checked_sub(1).ok_or_else(too_much)?;
    let inside = open(parent, Path::new(name), DIRECTORY)?;
    let listing = list(inside.try_clone()?, *most)?.ok_or_else(too_much)?;
    for item in listing {
        match remove_at(inside.as_fd(), &item.name, depth, most) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            done => done?,
        }
    }
    Ok(unlinkat(parent, name, UnlinkatFlags::RemoveDir)?)
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
    fn links_are_listed_and_removed_but_not_followed() {
        let (dir, handle, owner) = place();
        let outside = tempfile::tempdir().expect("tempdir");
        std::fs::write(outside.path().join("canary"), "x").expect("write");
        make(handle.as_fd(), Path::new("a/b"), owner).expect("make");
        symlink(outside.path(), dir.path().join("a/out")).expect("link");
        assert!(open_directory(handle.as_fd(), Path::new("a/out")).is_err());
        assert!(make(handle.as_fd(), Path::new("a/out/new"), owner).is_err());
        let inside = open_directory(handle.as_fd(), Path::new("a")).expect("open");
        let kinds: Vec<_> = list(inside, 10)
            .expect("list")
            .expect("few")
            .into_iter()
            .map(|item| item.kind)
            .collect();
        assert_eq!(kinds, [Kind::Directory, Kind::Link]);
        remove(handle.as_fd(), Path::new("a"), 5, &mut 10).expect("remove");
        assert!(outside.path().join("canary").exists() && !dir.path().join("a").exists());
        for path in ["", "..", "../x", "/etc"] {
            assert!(
                remove(handle.as_fd(), Path::new(path), 5, &mut 10).is_err(),
                "{path}"
            );
        }
    }

    #[test]
    fn bounds_hold() {
        let (_dir, handle, owner) = place();
        make(handle.as_fd(), Path::new("a/b/c/d"), owner).expect("make");
        assert!(remove(handle.as_fd(), Path::new("a"), 3, &mut 100).is_err());
        assert!(remove(handle.as_fd(), Path::new("a"), 10, &mut 2).is_err());
        let top = open_directory(handle.as_fd(), Path::new("")).expect("open");
        assert!(list(top, 0).expect("list").is_none());
    }
}
