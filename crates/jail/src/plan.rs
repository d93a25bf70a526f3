//! What a sandbox shall be: everything the jail needs to know, as data that can cross a socket.

use std::collections::BTreeSet;
use std::path::PathBuf;

use belljar_spec::{Limits, Weakening};
use serde::{Deserialize, Serialize};

/// The user that code sees itself as. Not 0: too many programs take that for permission.
pub const INNER_ID: u32 = 1000;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    pub entries: Vec<Entry>,
    /// Text files of the workspace that are there from the beginning; larger things are written later.
    pub files: Vec<(PathBuf, String)>,
    /// Where the private workspace is; the current directory of the code.
    pub workdir: PathBuf,
    pub limits: Limits,
    /// Lay a private writable layer over the whole root.
    pub writable: bool,
    /// It outlives its commands.
    pub kept: bool,
    /// Allow Internet sockets. There is no route out in either case.
    pub network: bool,
    /// Where to listen inside, beside the proxy's own ports, for whoever does not know of a proxy.
    pub ports: Vec<u16>,
    /// No files, and no processes but one for each command.
    pub closed: Option<Closed>,
    pub weakened: BTreeSet<Weakening>,
    /// The image whose root this is, in words for the report; else it is the host's.
    pub image: Option<String>,
}

impl Plan {
    pub fn keeps(&self, protection: Weakening) -> bool {
        !self.weakened.contains(&protection)
    }

    /// Whether it differs from the other in its limits at most.
    pub fn is_like(&self, other: &Self) -> bool {
        let Self {
            entries,
            files,
            workdir,
            limits: _,
            writable,
            kept,
            network,
            ports,
            closed,
            weakened,
            image,
        } = self;
        let places = (entries, files, workdir) == (&other.entries, &other.files, &other.workdir);
        let ways = (network, ports) == (&other.network, &other.ports);
        let kind = (writable, kept, image) == (&other.writable, &other.kept, &other.image);
        let rules = (closed, weakened) == (&other.closed, &other.weakened);
        places && ways && kind && rules
    }
}

/// What is left of the file system where code has none of it, and nothing of it can be written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closed {
    /// What the interpreter needs, with everything below.
    pub readable: Vec<PathBuf>,
    /// What init may execute: the interpreter, and what loads it. Not for a kernel that is a copy.
    pub executable: Vec<PathBuf>,
}

/// What a child that was forked ahead of time shall become.
#[derive(Debug, Serialize, Deserialize)]
pub struct Birth {
    /// Without entries where these are in a mould.
    pub plan: Plan,
    pub owner: Owner,
    pub brings: Brings,
}

/// What the descriptors are that travel with it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Brings {
    /// The plan's id maps.
    IdMaps,
    /// The entries' mounts, ready to be attached.
    Trees,
    /// A copy of the mould that has them all.
    Mould,
}

/// What such a child needs last, and what others make meanwhile. Travels with the descriptors, after that of init's image.
#[derive(Debug, Serialize, Deserialize)]
pub struct Place {
    /// Files by which it joins the cgroups it was not born into.
    pub cgroup_joins: usize,
    /// Its network namespace, if it has none of its own. Without this it makes one after all.
    pub network: bool,
    /// In place of those of the plan that it was born with, which may have been no more than foreseen.
    pub limits: Limits,
}

/// A user and group of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

/// Where compilers put what they make. Below `/tmp`, so that there is no further writable place.
pub const BUILD: &str = "/tmp/build";

/// One thing that is visible below the sandbox's root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// A directory or file of the system, read-only (or the lower side of a writable layer).
    System {
        path: PathBuf,
    },
    /// A directory or file of an image, read-only like those of the system.
    Image {
        source: PathBuf,
        target: PathBuf,
    },
    /// A directory or file of the caller.
    Volume {
        source: PathBuf,
        target: PathBuf,
        writable: bool,
    },
    Link {
        path: PathBuf,
        to: PathBuf,
    },
    File {
        path: PathBuf,
        content: String,
    },
}

/// One program to start in a sandbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Command {
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    pub cwd: PathBuf,
    /// Deadline, memory, CPU and processes of this stage.
    pub limits: Limits,
}
