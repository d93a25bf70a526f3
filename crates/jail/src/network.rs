//! Empty network namespaces, made ahead of the sandbox that will live in them.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use nix::sched::{CloneFlags, setns, unshare};

/// A new, empty network namespace of the host's user namespace. Only for root.
///
/// It takes as long to make as half of all the rest, so whoever is idle meanwhile does it. The calling thread steps in and
/// back out; if it could not get back it must not go on, which is the error.
pub fn empty() -> io::Result<OwnedFd> {
    let here = || File::open("/proc/thread-self/ns/net");
    let home = here()?;
    unshare(CloneFlags::CLONE_NEWNET)?;
    let made = here();
    setns(home, CloneFlags::CLONE_NEWNET)?;
    made.map(Into::into)
}
