//! Network namespaces that can be used again.
//!
//! To make one and to take it apart is a tenth of what a fresh sandbox costs. A sandbox without a network leaves its own as it found it: the
//! filter lets code open sockets of the local kind only, nobody in it has a right over it, its loopback is down, and what it could
//! leave behind is a socket. So one whose sandbox has ended, and in which the kernel counts no socket of any kind, is as good as
//! new. At every moment it is the network of one sandbox at most.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use nix::sched::{CloneFlags, setns};

use crate::kernel_file;
use crate::plan::Owner;

/// So many wait to be used again; when more sandboxes end at once, theirs end with them.
const MOST: usize = 16;
/// Each is a descriptor, also while a sandbox has it: of a thousand sandboxes, most take their network with them.
const MOST_HELD: usize = 64;
/// What it says is about the network namespace that whoever opens it is in.
const SOCKETS: &str = "/proc/thread-self/net/sockstat";

#[derive(Default)]
pub(super) struct Networks {
    /// Where whoever has these is at home.
    home: Option<OwnedFd>,
    /// By the zygote whose user namespaces they belong to: no other can enter them.
    spare: Vec<Reusable>,
    /// As many references to it as there are of those.
    held: Rc<()>,
}

/// A network that a sandbox has, and another may have after it.
pub(super) struct Reusable {
    by: Owner,
    pub network: OwnedFd,
    _held: Rc<()>,
}

impl Networks {
    pub fn take(&mut self, by: Owner) -> Option<Reusable> {
        let found = self.spare.iter().position(|spare| spare.by == by)?;
        Some(self.spare.swap_remove(found))
    }

    /// Whether another one should be held on to.
    pub fn has_room(&self) -> bool {
        self.spare.len() < MOST && Rc::strong_count(&self.held) <= MOST_HELD
    }

    /// One that a sandbox has, and that is not known here yet.
    pub fn hold(&self, by: Owner, network: OwnedFd) -> Reusable {
        Reusable {
            by,
            network,
            _held: Rc::clone(&self.held),
        }
    }

    /// For others, if nothing is left in it. Everything that was in its sandbox must have ended.
    pub fn keep(&mut self, used: Reusable) {
        if self.spare.len() >= MOST || self.enter(used.network.as_fd()).is_err() {
            return;
        }
        let sockets = kernel_file::read(SOCKETS);
        self.leave();
        if sockets.is_ok_and(|text| counts_none(&text)) {
            self.spare.push(used);
        }
    }

    /// When nobody can enter them any more.
    pub fn forget(&mut self, by: Owner) {
        self.spare.retain(|spare| spare.by != by);
    }

    /// What is forked from here on is born in it, until `leave`. For root only.
    pub fn enter(&mut self, network: BorrowedFd<'_>) -> io::Result<()> {
        if self.home.is_none() {
            self.home = Some(File::open("/proc/thread-self/ns/net")?.into());
        }
        Ok(setns(network, CloneFlags::CLONE_NEWNET)?)
    }

    /// Back home. Who could not go there must not go on.
    pub fn leave(&self) {
        let home = self.home.as_ref();
        if home.is_none_or(|home| setns(home, CloneFlags::CLONE_NEWNET).is_err()) {
            std::process::abort();
        }
    }
}

/// Of every family, in any state: the kernel's own are not counted.
fn counts_none(text: &str) -> bool {
    text.lines().next() == Some("sockets: used 0")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::confine::make_network;

    const BY: Owner = Owner { uid: 7, gid: 7 };

    fn fresh(networks: &Networks) -> Reusable {
        networks.hold(BY, make_network().expect("as root"))
    }

    #[test]
    fn one_with_a_socket_in_it_is_not_used_again() {
        let mut networks = Networks::default();
        let one = fresh(&networks);
        networks.enter(one.network.as_fd()).expect("entered");
        let left = std::os::unix::net::UnixDatagram::unbound().expect("socket");
        networks.leave();
        networks.keep(one);
        assert!(networks.take(BY).is_none());
        drop(left);
        let another = fresh(&networks);
        networks.keep(another);
        let other = Owner { uid: 8, gid: 8 };
        assert!(networks.take(other).is_none());
        assert!(networks.take(BY).is_some());
        assert!(networks.take(BY).is_none());
    }

    #[test]
    fn there_is_an_end_to_them() {
        let mut networks = Networks::default();
        for _ in 0..MOST + 3 {
            let another = fresh(&networks);
            networks.keep(another);
        }
        assert_eq!(networks.spare.len(), MOST);
        networks.forget(BY);
        assert!(networks.has_room());
        let mut lent: Vec<_> = (0..MOST_HELD).map(|_| fresh(&networks)).collect();
        assert!(!networks.has_room());
        lent.pop();
        assert!(networks.has_room());
    }
}
