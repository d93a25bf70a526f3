//! What the keeper gives to a child that builds a root.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use belljar_spec::Weakening;

use crate::error::{Context, Error, Result, Step};
use crate::idmap::IdMaps;
use crate::plan::{Brings, Entry, Plan};
use crate::{source, sys};

pub enum Provided {
    IdMaps(IdMaps),
    /// The mounts of all entries that have one, in their order: made by a keeper whose child may not go where they are.
    Trees(VecDeque<OwnedFd>),
    /// A root that has them all, and is read-only.
    Mould(OwnedFd),
}

impl Provided {
    pub fn from_fds(mut fds: Vec<OwnedFd>, brings: Brings) -> Result<Self> {
        Ok(match brings {
            Brings::IdMaps => Self::IdMaps(IdMaps::from_fds(fds)),
            Brings::Trees => Self::Trees(fds.into()),
            Brings::Mould => {
                let missing = || Error::because(Step::Mount, "the mould", "it is missing");
                Self::Mould(fds.pop().ok_or_else(missing)?)
            }
        })
    }

    /// The mounts of a plan that is not writable, with their attributes.
    pub fn trees(plan: &Plan, id_maps: &IdMaps) -> Result<Self> {
        let tree = |entry: &Entry| match entry {
            Entry::System { path } | Entry::Image { source: path, .. } => {
                Some(system_tree(plan, path))
            }
            Entry::Volume {
                source, writable, ..
            } => Some(volume_tree(plan, source, *writable, id_maps)),
            Entry::Link { .. } | Entry::File { .. } => None,
        };
        let trees = plan.entries.iter().filter_map(tree);
        trees.collect::<Result<_>>().map(Self::Trees)
    }

    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Self::IdMaps(maps) => maps.fds(),
            Self::Trees(trees) => trees.iter().map(AsFd::as_fd).collect(),
            Self::Mould(tree) => vec![tree.as_fd()],
        }
    }

    pub fn mould(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Mould(tree) => Some(tree.as_fd()),
            Self::IdMaps(_) | Self::Trees(_) => None,
        }
    }

    pub fn brings(&self) -> Brings {
        match self {
            Self::IdMaps(_) => Brings::IdMaps,
            Self::Trees(_) => Brings::Trees,
            Self::Mould(_) => Brings::Mould,
        }
    }
}

pub(super) fn system_tree(plan: &Plan, path: &Path) -> Result<OwnedFd> {
    let tree = sys::clone_tree(path).during(Step::Mount, path.display())?;
    let read_only = if plan.keeps(Weakening::Mounts) {
        sys::RDONLY
    } else {
        0
    };
    sys::set_mount_attributes(tree.as_fd(), read_only | sys::NOSUID | sys::NODEV, None)
        .during(Step::Mount, path.display())?;
    Ok(tree)
}

pub(super) fn volume_tree(
    plan: &Plan,
    source: &Path,
    writable: bool,
    id_maps: &IdMaps,
) -> Result<OwnedFd> {
    let place = source::open(source).during(Step::Volume, source.display())?;
    let tree = sys::clone_tree_of(place.as_fd()).during(Step::Volume, source.display())?;
    let map = id_maps.for_volume(plan, source);
    let read_only = if writable { 0 } else { sys::RDONLY };
    sys::set_mount_attributes(tree.as_fd(), read_only | sys::NOSUID | sys::NODEV, map)
        .during(Step::Volume, source.display())?;
    Ok(tree)
}
