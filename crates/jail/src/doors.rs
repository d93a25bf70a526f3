//! The sockets by which a sandbox reaches the world: made inside its own network namespace, served from outside.
//!
//! The namespace has nothing but a loopback interface, so whatever code does, it ends at one of these or nowhere.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;

use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::error::{Context, Result, Step};
use crate::sys::{self, Side};
use crate::{channel, host};

/// Where the proxy is found inside.
pub const PROXY_PORT: u16 = 3128;
const DNS_PORT: u16 = 53;
/// Listeners beyond the first three are for programs that know no proxy.
pub const MAX_PORTS: usize = 16;

/// In this order: the proxy, names by datagram, names by stream, then one listener for each of `ports`.
///
/// Those listen on every address: all of 127.0.0.0/8 is here, and which one was meant tells which host was.
pub fn open(ports: &[u16]) -> Result<Vec<OwnedFd>> {
    make(ports).during(Step::Network, "sockets")
}

/// The same in the network namespace of another process, which root can enter. On a thread of its own, since that one stays there.
pub fn open_in(pid: i32, ports: &[u16]) -> Result<Vec<OwnedFd>> {
    let namespace = namespace_of_process(pid, "net")?;
    let ports = ports.to_vec();
    let made = thread::spawn(move || {
        setns(namespace, CloneFlags::CLONE_NEWNET)?;
        make(&ports)
    });
    let made = made
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("the thread ended")));
    made.during(Step::Network, "sockets")
}

/// The network namespace of a socket that was made in it.
pub fn namespace_of(door: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    sys::namespace_of(door)
}

/// A socket in a network namespace: another door, for a port that programs inside may connect to as if it were that of a host; or one
/// that can be connected to a port of theirs.
pub fn socket_in(namespace: &OwnedFd, listen: Option<u16>) -> io::Result<OwnedFd> {
    let namespace = namespace.try_clone()?;
    let made = thread::spawn(move || enter_and_make(namespace, listen));
    made.join()
        .unwrap_or_else(|_| Err(io::Error::other("the thread ended")))
}

fn enter_and_make(namespace: OwnedFd, listen: Option<u16>) -> io::Result<OwnedFd> {
    setns(namespace, CloneFlags::CLONE_NEWNET)?;
    match listen {
        Some(port) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).map(OwnedFd::from),
        None => Ok(socket(
            AddressFamily::Inet,
            SockType::Stream,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            None,
        )?),
    }
}

/// The same for a process with a single thread, in the network of a sandbox's `init`: in a child, because whoever is not root has to
/// enter the user namespace first that the network belongs to, and nobody comes back from there.
pub fn socket_of(init: i32, listen: Option<u16>) -> Result<OwnedFd> {
    let users = (!host::is_root()).then(|| namespace_of_process(init, "user"));
    let users = users.transpose()?;
    let namespace = namespace_of_process(init, "net")?;
    let make = || {
        let (ours, theirs) = channel::pair()?;
        match sys::fork(0, None)? {
            Side::Child => {
                let made = users.map_or(Ok(()), |users| setns(users, CloneFlags::CLONE_NEWUSER));
                let made = made.map_err(Into::into);
                let made = made.and_then(|()| enter_and_make(namespace, listen));
                let errno = |error: io::Error| error.raw_os_error().unwrap_or(libc::EIO);
                let told = match made {
                    Ok(socket) => channel::send_some(theirs.as_fd(), &[0; 4], &[socket.as_fd()]),
                    Err(error) => {
                        channel::send_some(theirs.as_fd(), &errno(error).to_ne_bytes(), &[])
                    }
                };
                std::process::exit(i32::from(told.is_err()));
            }
            Side::Parent { pid, .. } => {
                drop(theirs);
                nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid), None)?;
                let mut errno = [0; 4];
                match channel::receive_with(ours.as_fd(), &mut errno)? {
                    (4, Some(socket)) => Ok(socket),
                    (4, None) => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno))),
                    _ => Err(io::ErrorKind::UnexpectedEof.into()),
                }
            }
        }
    };
    make().during(Step::Network, "a socket")
}

pub fn namespace_of_process(pid: i32, kind: &str) -> Result<OwnedFd> {
    let path = format!("/proc/{pid}/ns/{kind}");
    let namespace = File::open(&path).during(Step::Network, &path)?;
    Ok(namespace.into())
}

fn make(ports: &[u16]) -> io::Result<Vec<OwnedFd>> {
    let here = Ipv4Addr::LOCALHOST;
    let names = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    sys::raise_loopback(names.as_fd())?;
    let mut sockets: Vec<OwnedFd> = vec![
        TcpListener::bind((here, PROXY_PORT))?.into(),
        UdpSocket::bind((here, DNS_PORT))?.into(),
        TcpListener::bind((here, DNS_PORT))?.into(),
    ];
    for port in ports.iter().take(MAX_PORTS) {
        if ![PROXY_PORT, DNS_PORT].contains(port) {
            sockets.push(TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port))?.into());
        }
    }
    Ok(sockets)
}
