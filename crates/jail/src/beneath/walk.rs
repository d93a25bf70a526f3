//! The regular files of a workspace, seen from outside, a part at a time.
//!
//! Every name is looked at in its own directory, which is open: a path from the top would be resolved anew for each file, and
//! code can make that long. No more directories are open at once than the walk may go deep.

use std::cmp::Ordering;
use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use rustix::fs::{AtFlags, FileType, RawDir, Statx, StatxAttributes, StatxFlags, statx};
use rustix::io::Errno;

use super::{Bounds, Found, open};

/// A walk that can be left and gone on with, on any thread.
pub struct Walk {
    bounds: Bounds,
    /// From the top down to where it is.
    levels: Vec<Level>,
    visited: usize,
    /// Bytes of the paths in it.
    path_bytes: usize,
    seen: Vec<Found>,
    complete: bool,
}

/// A directory on the way.
struct Level {
    directory: OwnedFd,
    path: PathBuf,
    is_listed: bool,
    /// Directories in it that have not been entered yet.
    pending: Vec<OsString>,
}

impl Walk {
    pub fn new(dir: BorrowedFd<'_>, bounds: Bounds) -> Self {
        let top = enter(dir, Path::new("."), PathBuf::new());
        Self {
            bounds,
            visited: 0,
            path_bytes: 0,
            seen: Vec::new(),
            complete: top.is_ok(),
            levels: top.into_iter().collect(),
        }
    }

    /// Goes on until `most` more names have been looked at, or a few more than that. `true`: there are no others.
    pub fn go_on(&mut self, most: usize) -> io::Result<bool> {
        let until = self.visited.saturating_add(most);
        while let Some(level) = self.levels.last_mut() {
            if self.visited >= until {
                return Ok(false);
            }
            if !level.is_listed {
                self.list_some()?;
            } else if let Some(name) = level.pending.pop() {
                let path = level.path.join(&name);
                match enter(level.directory.as_fd(), Path::new(&name), path) {
                    Ok(below) => self.levels.push(below),
                    // A mount of the caller's, whose files the code has not written to its workspace.
                    Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {}
                    // It has gone.
                    Err(_) => self.complete = false,
                }
            } else {
                self.levels.pop();
            }
        }
        Ok(true)
    }

    /// What was found, by path. `false`: there was more, or the bounds do not allow it.
    pub fn finish(mut self) -> (Vec<Found>, bool) {
        self.seen.sort_by(by_path);
        (self.seen, self.complete && self.levels.is_empty())
    }

    /// Looks at as many names of the lowest directory as the kernel gives at once.
    fn list_some(&mut self) -> io::Result<()> {
        let deepest = self.levels.len() > self.bounds.depth;
        let Some(level) = self.levels.last_mut() else {
            return Ok(());
        };
        // Not the C library's: that asks twice as much of the kernel and takes 32 KiB of memory, for a directory that is mostly empty.
        let mut room = [MaybeUninit::uninit(); 4096];
        let mut listing = RawDir::new(level.directory.as_fd(), &mut room);
        loop {
            let entry = match listing.next() {
                None => {
                    level.is_listed = true;
                    return Ok(());
                }
                // The directory itself has been removed.
                Some(Err(Errno::NOENT)) => {
                    level.is_listed = true;
                    self.complete = false;
                    return Ok(());
                }
                Some(entry) => entry?,
            };
            let name = entry.file_name();
            if !matches!(name.to_bytes(), b"." | b"..") {
                self.visited += 1;
                if self.visited > self.bounds.files {
                    self.complete = false;
                    self.levels.clear();
                    return Ok(());
                }
                let looked = match entry.file_type() {
                    FileType::RegularFile | FileType::Unknown => {
                        let flags = AtFlags::SYMLINK_NOFOLLOW;
                        let directory = level.directory.as_fd();
                        statx(directory, name, flags, StatxFlags::BASIC_STATS).map(Some)
                    }
                    _ => Ok(None),
                };
                let name = OsStr::from_bytes(name.to_bytes());
                let kind = match &looked {
                    Ok(Some(file)) => FileType::from_raw_mode(file.stx_mode.into()),
                    _ => entry.file_type(),
                };
                match (kind, looked) {
                    (FileType::Directory, _) if !deepest => level.pending.push(name.to_owned()),
                    (FileType::RegularFile, Ok(Some(file))) if !is_mount(&file) => {
                        let path = level.path.join(name);
                        self.path_bytes += path.as_os_str().len();
                        if self.path_bytes > self.bounds.path_bytes {
                            self.complete = false;
                            self.levels.clear();
                            return Ok(());
                        }
                        self.seen.push(found(path, &file));
                    }
                    (FileType::Directory, _) | (_, Err(_)) => self.complete = false,
                    _ => {}
                }
            }
            if listing.is_buffer_empty() {
                return Ok(());
            }
        }
    }
}

fn enter(above: BorrowedFd<'_>, name: &Path, path: PathBuf) -> io::Result<Level> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NONBLOCK;
    Ok(Level {
        directory: open(above, name, flags)?,
        path,
        is_listed: false,
        pending: Vec::new(),
    })
}

/// Of the caller's: code can mount nothing.
fn is_mount(file: &Statx) -> bool {
    file.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
}

fn found(path: PathBuf, file: &Statx) -> Found {
    let changed = (file.stx_ctime.tv_sec, file.stx_ctime.tv_nsec.into());
    Found {
        path,
        bytes: file.stx_size,
        stamp: (file.stx_ino, changed.0, changed.1),
    }
}

/// In the order of paths, name by name; `Path` would take each of them apart for that.
pub fn by_path(a: &Found, b: &Found) -> Ordering {
    const PIECE: usize = 16;
    let (a, b) = (a.path.as_os_str().as_bytes(), b.path.as_os_str().as_bytes());
    let pieces = a.chunks_exact(PIECE).zip(b.chunks_exact(PIECE));
    let same = PIECE * pieces.take_while(|(a, b)| a == b).count();
    // What separates names is below all that a name can have.
    let rank = |byte: &u8| if *byte == b'/' { 0 } else { *byte };
    a[same..].iter().map(rank).cmp(b[same..].iter().map(rank))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs::{self, File};
    use std::os::unix::fs::symlink;

    fn walk(dir: &File, files: usize, depth: usize) -> (Vec<Found>, bool) {
        let bounds = Bounds {
            files,
            depth,
            path_bytes: 1 << 20,
        };
        let mut walk = Walk::new(dir.as_fd(), bounds);
        while !walk.go_on(1).expect("a walk") {}
        walk.finish()
    }

    fn place() -> (tempfile::TempDir, File) {
        let dir = tempfile::tempdir().expect("tempdir");
        let handle = File::open(dir.path()).expect("open");
        (dir, handle)
    }

    #[test]
    fn only_regular_files_count() {
        let (dir, handle) = place();
        symlink("/etc", dir.path().join("out")).expect("link");
        symlink("/etc/passwd", dir.path().join("file")).expect("link");
        let mode = nix::sys::stat::Mode::S_IRWXU;
        nix::unistd::mkfifo(&dir.path().join("fifo"), mode).expect("mkfifo");
        assert_eq!(walk(&handle, 100, 10), (Vec::new(), true));
    }

    #[test]
    fn walks_are_bounded() {
        let (dir, handle) = place();
        let deep: PathBuf = std::iter::repeat_n("d", 30).collect();
        fs::create_dir_all(dir.path().join(&deep)).expect("directories");
        fs::write(dir.path().join(deep.join("f")), "x").expect("write");
        fs::write(dir.path().join("top"), "xy").expect("write");
        let (found, complete) = walk(&handle, 100, 5);
        assert_eq!((found.len(), found[0].bytes, complete), (1, 2, false));
        assert!(!walk(&handle, 3, 50).1);
        let (found, complete) = walk(&handle, 32, 30);
        assert_eq!((found[0].path.clone(), complete), (deep.join("f"), true));
        assert!(!walk(&handle, 32, 29).1);
    }

    /// A path from the top would be longer than the kernel takes (4096 bytes).
    #[test]
    fn names_may_be_long() {
        let (_dir, handle) = place();
        let path: PathBuf = std::iter::repeat_n("d".repeat(255), 30).collect();
        super::super::create_file(handle.as_fd(), &path.join("f"), None).expect("file");
        let (found, complete) = walk(&handle, 100, 30);
        assert_eq!((found[0].path.clone(), complete), (path.join("f"), true));
    }

    /// Each may be long: what they take together is bounded.
    #[test]
    fn paths_are_bounded_together() {
        let (dir, handle) = place();
        for name in 0..10 {
            fs::write(dir.path().join(format!("{name:0>100}")), "").expect("write");
        }
        for (path_bytes, count) in [(1000, 10), (999, 9), (50, 0)] {
            let bounds = Bounds {
                files: 100,
                depth: 10,
                path_bytes,
            };
            let mut walk = Walk::new(handle.as_fd(), bounds);
            while !walk.go_on(1).expect("a walk") {}
            let (found, complete) = walk.finish();
            assert_eq!((found.len(), complete), (count, count == 10));
        }
    }

    /// In pieces, and in the order that paths have.
    #[test]
    fn all_of_a_tree_is_found() {
        let (dir, handle) = place();
        let mut expected = Vec::new();
        for directory in ["", "a", "a.b", "a/b", "z/y/x"] {
            let at = dir.path().join(directory);
            fs::create_dir_all(&at).expect("directories");
            for number in 0..200 {
                let name = format!("file with a longer name {number}");
                fs::write(at.join(&name), "").expect("write");
                expected.push(Path::new(directory).join(name));
            }
        }
        expected.sort();
        let (found, complete) = walk(&handle, 10_000, 10);
        let paths: Vec<_> = found.into_iter().map(|found| found.path).collect();
        assert!(complete && paths == expected);
    }

    /// Code may remove a directory at any moment: what is known of the rest is told.
    #[test]
    fn a_directory_may_go() {
        let (dir, handle) = place();
        fs::create_dir(dir.path().join("d")).expect("directory");
        fs::write(dir.path().join("f"), "").expect("write");
        let bounds = Bounds {
            files: 10,
            depth: 10,
            path_bytes: 100,
        };
        let mut walk = Walk::new(handle.as_fd(), bounds);
        while !walk.levels[0].is_listed {
            walk.list_some().expect("a listing");
        }
        let top = &mut walk.levels[0];
        let name = top.pending.pop().expect("a directory");
        let below = enter(top.directory.as_fd(), Path::new(&name), "d".into());
        walk.levels.push(below.expect("entered"));
        fs::remove_dir(dir.path().join("d")).expect("removed");
        assert!(walk.go_on(10).expect("no error"));
        let (found, complete) = walk.finish();
        assert_eq!((found.len(), complete), (1, false));
    }

    proptest! {
        #[test]
        fn paths_are_ordered_as_paths(a in "[ab./]{0,40}", b in "[ab./]{0,40}") {
            let plain = |text: &str| -> PathBuf { text.split('/').filter(|part| !part.is_empty() && *part != ".").collect() };
            let found = |path: PathBuf| Found { path, bytes: 0, stamp: (0, 0, 0) };
            let (a, b) = (plain(&a), plain(&b));
            prop_assert_eq!(by_path(&found(a.clone()), &found(b.clone())), a.cmp(&b));
        }
    }
}
