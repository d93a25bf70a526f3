//! The sockets by which a sandbox reaches the world: made inside its own network namespace, served from outside.
//!
//! The namespace has nothing but a loopback interface, so whatever code does, it ends at one of these or nowhere.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::Duration;

use nix::sched::{CloneFlags, setns};

use crate::error::{Context, Result, Step};
use crate::sys;

/// Where the proxy is found inside.
pub const PROXY_PORT: u16 = 3128;
const DNS_PORT: u16 = 53;
const CONNECT_TIME: Duration = Duration::from_secs(5);
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
    let path = format!("/proc/{pid}/ns/net");
    let namespace = File::open(&path).during(Step::Network, &path)?;
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

/// Connects to a port of a namespace's own loopback interface.
pub fn connect_in(namespace: &OwnedFd, port: u16) -> io::Result<TcpStream> {
    let namespace = namespace.try_clone()?;
    let connected = thread::spawn(move || {
        setns(namespace, CloneFlags::CLONE_NEWNET)?;
        let at = (Ipv4Addr::LOCALHOST, port).into();
        TcpStream::connect_timeout(&at, CONNECT_TIME)
    });
    connected
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("the thread ended")))
}

/// Another door, for a port that programs inside may connect to as if it were that of a host.
pub fn listen_in(namespace: &OwnedFd, port: u16) -> io::Result<OwnedFd> {
    let namespace = namespace.try_clone()?;
    let made = thread::spawn(move || {
        setns(namespace, CloneFlags::CLONE_NEWNET)?;
        TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).map(OwnedFd::from)
    });
    made.join()
        .unwrap_or_else(|_| Err(io::Error::other("the thread ended")))
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
