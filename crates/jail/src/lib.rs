//! From a plan, become the confined process.
//!
//! Theory of operation. A *keeper* (single-threaded, the only privileged process) takes requests from the engine over a
//! socket. For each sandbox it makes cgroups, forks a child with new namespaces, and the child walks down the list in
//! `confine`: join the cgroups, build and enter an empty root, change user, limit resources, drop every capability, lock
//! Landlock and seccomp, and execute a tiny *init* from a sealed memory file. The keeper then reads from outside that all
//! of it holds, and only then is a program started. Deadlines, kills and counts are the keeper's: nothing inside is trusted.
//!
//! Sync and free of an async runtime. `unsafe` is in `sys` alone (and in the `sys` of the init program).
pub mod beneath;
pub mod bridge;
mod cgroup;
mod channel;
mod confine;
pub mod container;
mod control;
mod core;
pub mod directory;
mod doors;
mod error;
pub mod host;
mod idmap;
mod insistence;
pub mod keeper;
mod kernel_file;
mod landlock;
mod lease;
mod mould;
mod netlink;
mod outbox;
mod plan;
mod protocol;
mod root;
pub mod seccomp;
pub mod source;
mod sys;
pub mod terminal;
mod verify;
mod warm;

pub use cgroup::{Counters, Meter};
pub use channel::{
    Channel, Frame, end_of_sending, pair, read_some, receive_with, send_some, set_nonblocking,
};
pub use confine::make_network;
pub use doors::{MAX_PORTS, PROXY_PORT, namespace_of, open_in as open_doors_in, socket_in};
pub use error::{Error, Result, Step};
pub use insistence::Insistence;
pub use landlock::DEVICES;
pub use plan::{BUILD, Closed, Command, Entry, INNER_ID, Owner, Plan};
pub use protocol::{
    CommandId, Event, Exit, Handle, Laying, Layout, Opened, Outcome, Request, Role, Signal, Stage,
    Start, ZygoteId,
};
pub use sys::has_early_network;
pub use sys::{gather_code, heed_children, leave, random_bits};
pub use warm::COPIER;

/// Flushes the file system that a file is on: cheaper than each of thousands of files.
pub fn sync_file_system(on: &std::fs::File) -> std::io::Result<()> {
    Ok(nix::unistd::syncfs(on)?)
}
