//! A bridge that a container engine made for one container, seen from this host.
//!
//! A bridge without an address still hands what is meant for everybody (broadcasts, 224.0.0.1) up to this host, whose programs
//! that listen on all addresses hear it. So it is sealed: the kernel drops all that would come in from it, as the very first thing.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::thread;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::if_nametoindex;
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, SockaddrStorage, socket};

use crate::doors::namespace_of_process;
use crate::error::{Context, Result, Step};
use crate::netlink::{
    ACK, CREATE, EXCLUSIVE, Netlink, REQUEST, attribute, find, message, nested, text,
};

/// Of `linux/netfilter/nf_tables.h` and `nfnetlink.h`.
mod nft {
    const SUBSYSTEM: u16 = 10 << 8;
    pub const BEGIN: u16 = 0x10;
    pub const END: u16 = 0x11;
    pub const NEW_TABLE: u16 = SUBSYSTEM;
    pub const NEW_CHAIN: u16 = SUBSYSTEM | 3;
    pub const GET_CHAIN: u16 = SUBSYSTEM | 4;
    /// A family, a version, and in batches the part of the kernel that they are for.
    pub const NETDEV: [u8; 4] = [5, 0, 0, 0];
    pub const BATCH: [u8; 4] = [0, 0, 0, 10];
    pub const TABLE_NAME: u16 = 1;
    pub const TABLE_FLAGS: u16 = 2;
    /// The table goes with the socket that made it, and nobody else can change it. Linux 5.12.
    pub const OWNED: u32 = 2;
    pub const CHAIN_TABLE: u16 = 1;
    pub const CHAIN_NAME: u16 = 3;
    pub const CHAIN_HOOK: u16 = 4;
    pub const CHAIN_POLICY: u16 = 5;
    pub const CHAIN_TYPE: u16 = 7;
    pub const HOOK_NUMBER: u16 = 1;
    pub const HOOK_PRIORITY: u16 = 2;
    pub const HOOK_DEVICE: u16 = 3;
    pub const INGRESS: u32 = 0;
    /// Before what others may have there.
    pub const FIRST: i32 = -500;
    pub const DROP: u32 = 0;
}

/// Keeps this host deaf to a bridge for as long as it is kept.
pub struct Seal {
    netlink: Netlink,
    bridge: String,
    index: u32,
}

impl Seal {
    /// On a bridge in this process's network namespace.
    pub fn on(bridge: &str) -> Result<Self> {
        let make = || {
            // Since 6.16 a chain can be made for an interface that is not there, and then drops nothing.
            let index = if_nametoindex(bridge)?;
            let netlink = Netlink::open(SockProtocol::NetlinkNetFilter)?;
            let table = [
                text(nft::TABLE_NAME, bridge),
                attribute(nft::TABLE_FLAGS, &nft::OWNED.to_be_bytes()),
            ]
            .concat();
            let hook = [
                attribute(nft::HOOK_NUMBER, &nft::INGRESS.to_be_bytes()),
                attribute(nft::HOOK_PRIORITY, &nft::FIRST.to_be_bytes()),
                text(nft::HOOK_DEVICE, bridge),
            ]
            .concat();
            let chain = [
                chain_of(bridge),
                nested(nft::CHAIN_HOOK, &hook),
                attribute(nft::CHAIN_POLICY, &nft::DROP.to_be_bytes()),
                text(nft::CHAIN_TYPE, "filter"),
            ]
            .concat();
            let new = REQUEST | ACK | CREATE | EXCLUSIVE;
            let batch = [
                message(nft::BEGIN, REQUEST, &nft::BATCH, &[]),
                message(nft::NEW_TABLE, new, &nft::NETDEV, &table),
                message(nft::NEW_CHAIN, new, &nft::NETDEV, &chain),
                message(nft::END, REQUEST, &nft::BATCH, &[]),
            ]
            .concat();
            netlink.ask(&batch, 2)?;
            let bridge = bridge.to_owned();
            Ok::<_, io::Error>(Self {
                netlink,
                bridge,
                index,
            })
        };
        make().during(Step::Network, "seal on a bridge")
    }

    /// Whether the kernel has it, on that bridge and without exceptions: there are no rules, and none can be added.
    pub fn holds(&self) -> bool {
        let get = message(
            nft::GET_CHAIN,
            REQUEST | ACK,
            &nft::NETDEV,
            &chain_of(&self.bridge),
        );
        let answers = self.netlink.ask(&get, 1).unwrap_or_default();
        let attributes = answers.first().and_then(|answer| answer.get(4..));
        attributes.is_some_and(|attributes| drops_all_from(attributes, &self.bridge))
            && if_nametoindex(self.bridge.as_str()) == Ok(self.index)
    }
}

fn chain_of(bridge: &str) -> Vec<u8> {
    let table = text(nft::CHAIN_TABLE, bridge);
    [table, text(nft::CHAIN_NAME, bridge)].concat()
}

fn drops_all_from(chain: &[u8], bridge: &str) -> bool {
    let device = find(chain, nft::CHAIN_HOOK).and_then(|hook| find(hook, nft::HOOK_DEVICE));
    find(chain, nft::CHAIN_POLICY) == Some(&nft::DROP.to_be_bytes())
        && device.and_then(|name| name.strip_suffix(b"\0")) == Some(bridge.as_bytes())
}

/// Takes the default routes from the network of another process. Engines before 25.0 make one on internal networks too, to an address
/// that nobody has.
pub fn take_default_routes(pid: i32) -> Result<()> {
    in_network_of(pid, "routes", || {
        let mut header = [0; 12];
        // An rtmsg: of IPv4, in the main table, of any scope, to everywhere.
        (header[0], header[4], header[6]) = (2, libc::RT_TABLE_MAIN, libc::RT_SCOPE_NOWHERE);
        let netlink = Netlink::open(SockProtocol::NetlinkRoute)?;
        let order = message(libc::RTM_DELROUTE, REQUEST | ACK, &header, &[]);
        // Each order takes one; an engine makes one.
        for _ in 0..16 {
            match netlink.ask(&order, 1) {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("there is no end of default routes"))
    })
}

/// A socket for datagrams in the network of another process.
pub fn datagrams_in(pid: i32) -> Result<OwnedFd> {
    in_network_of(pid, "sockets", || {
        let kind = (SockType::Datagram, SockFlag::SOCK_CLOEXEC);
        Ok(socket(AddressFamily::Inet, kind.0, kind.1, None)?)
    })
}

fn in_network_of<T: Send + 'static>(
    pid: i32,
    what: &str,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T> {
    let namespace = namespace_of_process(pid, "net")?;
    // On a thread of its own, since that one stays there.
    let done = thread::spawn(move || {
        setns(namespace, CloneFlags::CLONE_NEWNET)?;
        work()
    });
    done.join()
        .unwrap_or_else(|_| Err(io::Error::other("the thread ended")))
        .during(Step::Network, what)
}

/// The addresses of this host, with the names of their interfaces.
pub fn addresses() -> io::Result<Vec<(String, IpAddr)>> {
    let address =
        |storage: SockaddrStorage| match (storage.as_sockaddr_in(), storage.as_sockaddr_in6()) {
            (Some(four), _) => Some(IpAddr::V4(four.ip())),
            (_, Some(six)) => Some(IpAddr::V6(six.ip())),
            _ => None,
        };
    let all = getifaddrs()?;
    Ok(all
        .filter_map(|one| Some((one.interface_name, address(one.address?)?)))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_that_lets_something_through_is_no_seal() {
        let chain = |device: &str, policy: u32| {
            let hook = nested(nft::CHAIN_HOOK, &text(nft::HOOK_DEVICE, device));
            [hook, attribute(nft::CHAIN_POLICY, &policy.to_be_bytes())].concat()
        };
        assert!(drops_all_from(&chain("bj-1", 0), "bj-1"));
        assert!(!drops_all_from(&chain("bj-1", 1), "bj-1"));
        assert!(!drops_all_from(&chain("bj-12", 0), "bj-1"));
        assert!(!drops_all_from(&[], "bj-1"));
    }

    #[test]
    fn this_host_has_a_loopback_interface() {
        let all = addresses().unwrap();
        assert!(
            all.contains(&("lo".into(), [127, 0, 0, 1].into())),
            "{all:?}"
        );
    }
}
