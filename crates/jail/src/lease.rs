//! A keeper's lease: a locked file that says it lives, gives it user ids of its own, and lets others clean up after it.
//!
//! The kernel drops the lock when its holder dies, however it dies. Whoever starts next takes the lock, removes the cgroups
//! written down in the file, and then the file.

use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::{Uid, geteuid};

use crate::cgroup;
use crate::error::{Context, Error, Result, Step};
use crate::sys;

/// Above what systemd gives to containers (up to `0x6fff_ffff`) and below the sign bit.
const FIRST_UID: u32 = 0x7000_0000;
const UIDS_PER_KEEPER: u32 = 1 << 12;
const KEEPERS: u32 = 1 << 16;

pub struct Lease {
    path: PathBuf,
    _lock: File,
    slot: u32,
    /// Starts the names of this keeper's cgroups.
    pub token: String,
    used: Vec<bool>,
    next: usize,
    /// Something is left that this file tells about.
    stays: bool,
}

impl Lease {
    /// Takes a free slot.
    pub fn take(cgroup_bases: &[&Path]) -> Result<Self> {
        let dir = directory()?;
        for _ in 0..64 {
            let bits = sys::random_bits().during(Step::Keeper, "random bits")?;
            #[expect(
                clippy::cast_possible_truncation,
                reason = "the low bits are as random as the others"
            )]
            let (slot, token) = (
                bits as u32 % KEEPERS,
                format!("{:016x}", (bits >> 64) as u64),
            );
            let path = dir.join(format!("keeper-{slot:04x}"));
            let Some(mut lock) = lock_file(&path, true).during(Step::Keeper, path.display())?
            else {
                continue;
            };
            // A dead keeper's, which is swept by what it says.
            if lock.metadata().is_ok_and(|at| at.len() > 0) {
                continue;
            }
            let mut text = format!("{token}\n");
            for base in cgroup_bases {
                let _ = writeln!(text, "{}", base.display());
            }
            lock.write_all(text.as_bytes())
                .during(Step::Keeper, path.display())?;
            let used = vec![false; UIDS_PER_KEEPER as usize];
            return Ok(Self {
                path,
                _lock: lock,
                slot,
                token,
                used,
                next: 0,
                stays: false,
            });
        }
        Err(Error::because(
            Step::Keeper,
            dir.display(),
            "no free keeper slot was found",
        ))
    }

    /// Removes what dead keepers left.
    pub fn sweep_others(&self) {
        if let Some(dir) = self.path.parent() {
            sweep(dir);
        }
    }

    /// A user id that no other living sandbox on this host has. Given back with [`Lease::release_uid`].
    pub fn take_uid(&mut self) -> Option<u32> {
        let count = self.used.len();
        // Round robin: an id is reused as late as possible.
        let index = (0..count)
            .map(|step| (self.next + step) % count)
            .find(|index| !self.used[*index])?;
        self.used[index] = true;
        self.next = (index + 1) % count;
        Some(FIRST_UID + self.slot * UIDS_PER_KEEPER + u32::try_from(index).ok()?)
    }

    pub fn release_uid(&mut self, uid: u32) {
        let index = uid.wrapping_sub(FIRST_UID + self.slot * UIDS_PER_KEEPER) as usize;
        if let Some(used) = self.used.get_mut(index) {
            *used = false;
        }
    }

    /// Keeps the file when this keeper ends, so that the next one sweeps what this one could not.
    pub fn leave_to_the_next(&mut self) {
        self.stays = true;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.stays {
            return;
        }
        // Unlinked before the lock goes, so that nobody locks a file that is about to vanish unseen.
        let _ = fs::remove_file(&self.path);
    }
}

/// `/run/belljar` for root; else in the user's runtime directory, or a private one in `/tmp`, or, should somebody else have been
/// there first, at home.
fn directory() -> Result<PathBuf> {
    let uid = geteuid();
    if uid.is_root() {
        // A small container has none.
        let _ = DirBuilder::new().mode(0o755).create("/run");
        return own(PathBuf::from("/run/belljar"), uid);
    }
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let runtime = variable("XDG_RUNTIME_DIR")
        .filter(|dir| fs::metadata(dir).is_ok_and(|at| at.is_dir() && at.uid() == uid.as_raw()));
    if let Some(runtime) = runtime {
        return own(runtime.join("belljar"), uid);
    }
    let home = variable("HOME").filter(|home| home.is_absolute());
    let shared = PathBuf::from(format!("/tmp/belljar-{uid}"));
    first_own(shared, home.map(|home| home.join(".belljar")), uid)
}

fn first_own(first: PathBuf, otherwise: Option<PathBuf>, uid: Uid) -> Result<PathBuf> {
    own(first, uid).or_else(|taken| otherwise.map_or(Err(taken), |second| own(second, uid)))
}

/// Makes a directory, unless it is there, and makes sure that it is only its user's.
fn own(dir: PathBuf, uid: Uid) -> Result<PathBuf> {
    match DirBuilder::new().mode(0o700).create(&dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(Error::new(Step::Keeper, dir.display(), &error));
        }
        _ => {}
    }
    let found = fs::symlink_metadata(&dir).during(Step::Keeper, dir.display())?;
    if !found.is_dir() || found.uid() != uid.as_raw() || found.mode() & 0o022 != 0 {
        return Err(Error::because(
            Step::Keeper,
            dir.display(),
            "it must be a directory that only you can write to",
        ));
    }
    Ok(dir)
}

/// Opens and locks a lease. `None`: somebody holds it, or it vanished meanwhile.
fn lock_file(path: &Path, create: bool) -> io::Result<Option<File>> {
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create(create)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path);
    let file = match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !create => return Ok(None),
        opened => opened?,
    };
    match file.try_lock() {
        Err(fs::TryLockError::WouldBlock) => return Ok(None),
        Err(fs::TryLockError::Error(error)) => return Err(error),
        Ok(()) => {}
    }
    // A name that was unlinked between open and lock protects nothing.
    let linked = fs::symlink_metadata(path)
        .is_ok_and(|at| file.metadata().is_ok_and(|ours| at.ino() == ours.ino()));
    Ok(linked.then_some(file))
}

fn sweep(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        let Ok(Some(mut dead)) = lock_file(&path, false) else {
            continue;
        };
        let mut text = String::new();
        let _ = dead.read_to_string(&mut text);
        let mut lines = text.lines();
        let token = lines.next().unwrap_or_default();
        // A keeper that died before it wrote has made nothing yet.
        if token.len() == 16 && token.bytes().all(|b| b.is_ascii_hexdigit()) {
            lines.for_each(|base| cgroup::sweep(Path::new(base), token));
        }
        let _ = fs::remove_file(&path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_place_that_others_made_first_is_not_used() {
        let (uid, home) = (geteuid(), tempfile::tempdir().unwrap());
        let (first, second) = (home.path().join("first"), home.path().join("second"));
        let other = || Some(second.clone());
        fs::create_dir(&first).unwrap();
        fs::set_permissions(&first, fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(first_own(first.clone(), other(), uid).unwrap(), second);
        assert!(first_own(first.clone(), None, uid).is_err());
        fs::remove_dir(&first).unwrap();
        std::os::unix::fs::symlink(home.path(), &first).unwrap();
        assert_eq!(first_own(first.clone(), other(), uid).unwrap(), second);
        fs::remove_file(&first).unwrap();
        assert_eq!(first_own(first.clone(), other(), uid).unwrap(), first);
    }
}
