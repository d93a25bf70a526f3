//! What volumes are made of: directories and files of the host.
//!
//! Whoever may write to a volume can put a link in the place of a directory below it, at any time. So a path is resolved once,
//! when it is decided whether it may be named. From then on nothing in it is a link, or it is not mounted.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag};
use nix::sys::stat::Mode;

use crate::beneath;

/// Opens it as a place only. A link anywhere in the path is an error (`ELOOP`).
pub fn open(path: &Path) -> io::Result<File> {
    resolve(AT_FDCWD, path, ResolveFlag::RESOLVE_NO_SYMLINKS)
}

/// What is at a path of another root. Links lead where they lead for those who have that root.
pub fn open_in(root: &File, path: &Path) -> io::Result<File> {
    resolve(root.as_fd(), path, ResolveFlag::RESOLVE_IN_ROOT)
}

fn resolve(from: BorrowedFd<'_>, path: &Path, how: ResolveFlag) -> io::Result<File> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .mode(Mode::empty())
        .resolve(how | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    beneath::resolve(from, path, how).map(File::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_link_anywhere_is_refused() {
        let place = std::env::temp_dir().join(format!("belljar-source-{}", std::process::id()));
        fs::create_dir_all(place.join("real/below")).unwrap();
        let place = place.canonicalize().unwrap();
        symlink("real", place.join("link")).unwrap();
        assert!(
            open(&place.join("real/below"))
                .unwrap()
                .metadata()
                .unwrap()
                .is_dir()
        );
        for path in ["link", "link/below"] {
            let error = open(&place.join(path)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(40), "{path}: {error}");
        }
        symlink("/real/below", place.join("absolute")).unwrap();
        let root = File::open(&place).unwrap();
        let found = open_in(&root, Path::new("/absolute")).unwrap();
        assert!(found.metadata().unwrap().is_dir());
        fs::remove_dir_all(place).unwrap();
    }
}
