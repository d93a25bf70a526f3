//! What a sandbox shall be: everything the jail needs to know, as data that can cross a socket.

use std::collections::BTreeSet;
use std::path::PathBuf;

use belljar_spec::{Limits, Weakening};
use serde::{Deserialize, Serialize};

/// The user that code sees itself as. Not 0: too many programs take that for permission.
pub const INNER_ID: u32 = 1000;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Random; names the cgroups.
    pub id: String,
    pub entries: Vec<Entry>,
    /// Where the private workspace is; the current directory of the code.
    pub workdir: PathBuf,
    /// A private place for what a compiler makes, apart from the workspace.
    pub build: Option<PathBuf>,
    pub limits: Limits,
    /// Lay a private writable layer over the whole root.
    pub writable: bool,
    /// Allow Internet sockets. There is no route out in either case.
    pub network: bool,
    pub weakened: BTreeSet<Weakening>,
}

impl Plan {
    pub fn keeps(&self, protection: Weakening) -> bool {
        !self.weakened.contains(&protection)
    }
}

/// One thing that is visible below the sandbox's root.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// A directory or file of the system, read-only (or the lower side of a writable layer).
    System { path: PathBuf },
    /// A directory or file of the caller.
    Volume { source: PathBuf, target: PathBuf, writable: bool },
    Link { path: PathBuf, to: PathBuf },
    File { path: PathBuf, content: String },
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
