//! Roots that are made once: all of a sandbox's root but what it has to itself, to be copied for each.
//!
//! Theory of operation. A mould is a tree of mounts that is attached nowhere, only held: a small tmpfs with directories, links,
//! the few files of `/etc`, devices, and the toolchain mounted inside. To copy it all is one system call, to attach the copy in a
//! sandbox another; what the sandbox can write, and its processes, are mounted over empty directories of it.
//!
//! What is in it is the same for everyone who gets a copy, to the inode, so it must be nobody's: it is only for plans whose
//! entries are equal, belongs to root, who is no user of any sandbox, and its file system is read-only itself, whatever a mount
//! says. A zygote's moulds go with it. Before that, one is made anew when something on the host has been put in the place of
//! something that it shows.
//!
//! Kernels before 6.15 can neither mount on a tree that is attached nowhere nor copy one. There, and for plans with anything but
//! the system's own, each sandbox makes its root itself.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::stat::{Mode, umask};

use crate::error::{Context, Result, Step};
use crate::plan::{Entry, Plan};
use crate::root;
use crate::sys::{self, FileSystem};
use crate::verify;

/// With and without network, and what else there may be. The oldest goes.
const MOST: usize = 4;
/// What was seen on the host so lately is taken to be so still: where sandboxes are made in a row, most of the looking is for nothing.
const SEEN: Duration = Duration::from_millis(10);

/// Those of one zygote.
#[derive(Default)]
pub struct Moulds {
    kept: VecDeque<Mould>,
    /// One could not be made: this kernel cannot, or something is in the way. Whoever makes a root the other way says what.
    given_up: bool,
    /// How many were made.
    made: u64,
}

/// Which mould a copy is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Serial(u64);

impl Moulds {
    /// A root for this plan, without what is private to the sandbox. `None`: it has to be made.
    pub fn copy_for(&mut self, plan: &Plan) -> Option<(OwnedFd, Serial)> {
        if self.given_up || !suits(plan) {
            return None;
        }
        let known = self.kept.iter().position(|kept| kept.is_for(plan));
        if known.is_some_and(|at| !self.kept[at].is_current(Instant::now())) {
            self.kept.clear();
        }
        let known = known.and_then(|at| self.kept.get(at)).map(Mould::copy);
        let copied = known.unwrap_or_else(|| {
            self.made += 1;
            let made = Mould::make(plan, Serial(self.made))?;
            let copy = made.copy();
            self.kept.truncate(MOST - 1);
            self.kept.push_front(made);
            copy
        });
        self.given_up = copied.is_err();
        copied.ok()
    }

    /// Whether one is there already that shows what this plan does.
    pub fn has_one_for(&self, plan: &Plan) -> bool {
        !self.given_up && suits(plan) && self.kept.iter().any(|kept| kept.is_for(plan))
    }

    /// Whether a copy of this one is what a new copy would be.
    pub fn still_have(&mut self, serial: Serial) -> bool {
        let mould = self.kept.iter_mut().find(|kept| kept.serial == serial);
        mould.is_some_and(|mould| mould.is_current(Instant::now()))
    }
}

/// Whether all that it shows is the system's, and nothing of that lies in a private place or the other way round.
pub fn suits(plan: &Plan) -> bool {
    let private = root::private_places(plan).map(|(_, target, ..)| target);
    let apart = |path: &Path| {
        let apart = |place: &Path| !path.starts_with(place) && !place.starts_with(path);
        private.into_iter().all(apart)
    };
    let shared = |entry: &Entry| match entry {
        Entry::Volume { .. } => false,
        Entry::System { path }
        | Entry::Image { target: path, .. }
        | Entry::Link { path, .. }
        | Entry::File { path, .. } => apart(path),
    };
    // Otherwise it could not be seen from outside that this alone can be written to.
    let seen = verify::is_plain(&plan.workdir);
    seen && plan.weakened.is_empty() && !plan.writable && plan.entries.iter().all(shared)
}

struct Mould {
    serial: Serial,
    tree: OwnedFd,
    entries: Vec<Entry>,
    workdir: PathBuf,
    /// What was mounted in it, by where it was on the host,
    shown: Vec<(PathBuf, Identity)>,
    /// and when that was seen last.
    seen: Instant,
}

/// Device and inode. As long as a mould shows a file its number is not given to another.
type Identity = (u64, u64);

impl Mould {
    fn make(plan: &Plan, serial: Serial) -> Result<Self> {
        let source = |entry: &Entry| match entry {
            Entry::System { path } | Entry::Image { source: path, .. } => Some(path.clone()),
            Entry::Volume { .. } | Entry::Link { .. } | Entry::File { .. } => None,
        };
        // Before they are mounted: what changes meanwhile is then found to have changed.
        let identified = |path: PathBuf| {
            let identity = identify(&path).during(Step::Mount, path.display())?;
            Ok((path, identity))
        };
        let seen = Instant::now();
        let sources = plan.entries.iter().filter_map(source);
        let shown = sources.map(identified).collect::<Result<_>>()?;
        Ok(Self {
            serial,
            tree: make_tree(plan)?,
            entries: plan.entries.clone(),
            workdir: plan.workdir.clone(),
            shown,
            seen,
        })
    }

    fn is_for(&self, plan: &Plan) -> bool {
        self.workdir == plan.workdir && self.entries == plan.entries
    }

    /// Whether what it shows is still what is there on the host.
    fn is_current(&mut self, now: Instant) -> bool {
        if now.duration_since(self.seen) < SEEN {
            return true;
        }
        let same =
            |(path, seen): &(PathBuf, Identity)| identify(path).is_ok_and(|now| now == *seen);
        let current = self.shown.iter().all(same);
        self.seen = now;
        current
    }

    fn copy(&self) -> Result<(OwnedFd, Serial)> {
        let copy = sys::clone_tree_of(self.tree.as_fd()).during(Step::Mount, "the mould")?;
        Ok((copy, self.serial))
    }
}

fn make_tree(plan: &Plan) -> Result<OwnedFd> {
    let options = [
        (c"source", c"belljar"),
        (c"mode", c"755"),
        // Room for the certificates of a proxy.
        (c"size", c"4m"),
    ];
    let made = FileSystem::create(c"tmpfs", &options, sys::NOSUID | sys::NODEV);
    let made = made.during(Step::Mount, "the mould")?;
    let at = PathBuf::from(format!("/proc/self/fd/{}", made.mount.as_raw_fd()));
    let before = umask(Mode::from_bits_truncate(0o022));
    let placed = root::place_shared(plan, at);
    umask(before);
    placed?;
    sys::set_attributes_of_first(made.mount.as_fd(), sys::RDONLY)
        .and_then(|()| made.make_read_only())
        .during(Step::Mount, "the mould read-only")?;
    Ok(made.mount)
}

fn identify(path: &Path) -> io::Result<Identity> {
    let found = fs::metadata(path)?;
    Ok((found.dev(), found.ino()))
}

#[cfg(test)]
mod tests;
