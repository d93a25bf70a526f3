//! A process that does nothing but fork: it bears the children of a keeper that makes many.
//!
//! Who forks shares all its memory with the child, and pays for every page of it that it writes to next; it copies all its descriptors
//! too, and a keeper of a thousand sandboxes has many thousand. The nursery is the keeper as it was at the beginning, with one
//! socket, and stays that way. Its children are the keeper's: the kernel makes them siblings.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::wait::waitpid;
use nix::unistd::{Pid, getpid};
use serde::{Deserialize, Serialize};

use super::networks::Networks;
use super::shared::Shared;
use crate::channel::{self, Channel};
use crate::confine::{Embryo, Mode, Namespaces, Network};
use crate::control::Control;
use crate::core::Cores;
use crate::error::{Context, Result, Step};
use crate::seccomp;
use crate::sys::{self, Side};

/// The number at which the nursery has its socket, above the standard ones. It has no other descriptors.
const ORDERS_FD: i32 = 3;
/// It sees the end of its socket before that.
const LAST_SECONDS: u32 = 1;

/// What a child is to become.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct Seed {
    pub mode: Mode,
    pub namespaces: Namespaces,
    pub network: Network,
}

/// Where it is to be born.
pub(super) struct Soil<'a> {
    /// Its end of the socket to the keeper.
    pub control: &'a OwnedFd,
    /// A cgroup.
    pub birthplace: Option<BorrowedFd<'a>>,
    pub network: Option<BorrowedFd<'a>>,
}

impl Seed {
    /// Forks. The caller has to leave the child what it shall not have, and then [`Seed::grow`].
    pub fn sow(self, soil: &Soil<'_>, networks: &mut Networks, flags: i32) -> Result<Side> {
        let flags = flags | self.mode.cloned(self.namespaces);
        if let Some(network) = soil.network {
            // Last, so that nothing else fails while we are there; the control socket is no socket of that network.
            networks
                .enter(network)
                .during(Step::Namespaces, "of a network")?;
        }
        let side = match self.mode {
            Mode::Enterable { by } => sys::fork_as(by.uid, flags, soil.birthplace),
            _ => sys::fork(flags, soil.birthplace),
        };
        if soil.network.is_some() && !matches!(side, Ok(Side::Child)) {
            networks.leave();
        }
        side.during(Step::Namespaces, "for the sandbox")
    }

    /// In the child. `filtered`: whoever forked it has the early part of the filter.
    pub fn grow(self, control: OwnedFd, cores: Cores, filtered: bool) -> ! {
        Embryo {
            mode: self.mode,
            namespaces: self.namespaces,
            network: self.network,
            filtered,
            control: Control::new(control),
            cores,
        }
        .grow()
    }
}

/// A seed, and which descriptors came with it besides the control socket.
#[derive(Serialize, Deserialize)]
struct Order {
    seed: Seed,
    has_birthplace: bool,
    has_network: bool,
}

/// The nursery, as its keeper sees it.
pub(super) struct Nursery {
    pid: i32,
    orders: Channel,
}

impl Nursery {
    pub fn open(cores: Cores) -> io::Result<Self> {
        let (ours, theirs) = channel::pair()?;
        let keeper = getpid();
        match sys::fork(0, None)? {
            Side::Parent { pid, .. } => Ok(Self {
                pid,
                orders: Channel::new(ours),
            }),
            Side::Child => {
                let served = sys::end_after_parent(keeper.as_raw(), LAST_SECONDS)
                    .and_then(|()| leave_all_but(theirs))
                    .and_then(|orders| lock_early_part().map(|()| orders))
                    .and_then(|orders| serve(Channel::new(orders), cores));
                std::process::exit(i32::from(served.is_err()))
            }
        }
    }

    /// Whether this is its process.
    pub fn is(&self, pid: i32) -> bool {
        self.pid == pid
    }

    /// Has a child born, if there is a nursery. One that has gone is replaced, once.
    pub fn bear_for(
        shared: &mut Shared,
        seed: Seed,
        soil: &Soil<'_>,
    ) -> Option<Result<(i32, OwnedFd)>> {
        if let Ok(born) = shared.nursery.as_mut()?.bear(seed, soil) {
            return Some(born);
        }
        // It may have borne one of which nobody was told, and which ends when nobody listens to it.
        shared.expect_strays();
        shared.replace_nursery();
        shared.nursery.as_mut()?.bear(seed, soil).ok()
    }

    /// An error of the outer kind: it has gone.
    fn bear(&mut self, seed: Seed, soil: &Soil<'_>) -> io::Result<Result<(i32, OwnedFd)>> {
        let order = Order {
            seed,
            has_birthplace: soil.birthplace.is_some(),
            has_network: soil.network.is_some(),
        };
        let fds: Vec<_> = [Some(soil.control.as_fd()), soil.birthplace, soil.network]
            .into_iter()
            .flatten()
            .collect();
        self.orders.send(&serde_json::to_vec(&order)?, &fds)?;
        let gone = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let answer = self.orders.wait()?.ok_or_else(gone)?;
        let born: Result<i32> = serde_json::from_slice(&answer.bytes)?;
        match (born, answer.fds.into_iter().next()) {
            (Ok(pid), Some(pidfd)) => Ok(Ok((pid, pidfd))),
            (Ok(_), None) => Err(gone()),
            (Err(error), _) => Ok(Err(error)),
        }
    }
}

impl Drop for Nursery {
    fn drop(&mut self) {
        self.orders.shut_down();
        let _ = waitpid(Pid::from_raw(self.pid), None);
    }
}

/// In the nursery: has nothing of the keeper's but this.
fn leave_all_but(socket: OwnedFd) -> io::Result<OwnedFd> {
    sys::place_descriptor(&socket, ORDERS_FD)?;
    sys::leave_descriptors_from(ORDERS_FD + 1)?;
    // Its old number is closed, or is the new one.
    std::mem::forget(socket);
    sys::adopt(ORDERS_FD)
}

/// In the nursery: for all that it bears, so that each has only the rest to have translated.
fn lock_early_part() -> io::Result<()> {
    sys::no_new_privileges()?;
    sys::add_seccomp_filter(seccomp::early())
}

/// In the nursery: until the keeper has gone.
fn serve(mut orders: Channel, cores: Cores) -> io::Result<()> {
    let mut networks = Networks::default();
    while let Some(frame) = orders.wait()? {
        let order: Order = serde_json::from_slice(&frame.bytes)?;
        let mut fds = frame.fds.into_iter();
        let control = fds.next().ok_or(io::ErrorKind::InvalidData)?;
        let mut next_if = |has: bool| has.then(|| fds.next()).flatten();
        let birthplace = next_if(order.has_birthplace);
        let network = next_if(order.has_network);
        let seed = order.seed;
        let soil = Soil {
            control: &control,
            birthplace: birthplace.as_ref().map(AsFd::as_fd),
            network: network.as_ref().map(AsFd::as_fd),
        };
        match seed.sow(&soil, &mut networks, libc::CLONE_PARENT) {
            Ok(Side::Child) => {
                drop((orders, birthplace, network, networks));
                seed.grow(control, cores, true)
            }
            Ok(Side::Parent { pid, pidfd }) => {
                let born: Result<i32> = Ok(pid);
                orders.send(&serde_json::to_vec(&born)?, &[pidfd.as_fd()])?;
            }
            Err(error) => {
                let failed: Result<i32> = Err(error);
                orders.send(&serde_json::to_vec(&failed)?, &[])?;
            }
        }
    }
    Ok(())
}
