//! Questions and orders to the kernel's network parts, by netlink (man 7 netlink).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket,
};
use nix::sys::time::{TimeVal, TimeValLike};

/// The kernel answers at once; whoever waits longer waits for nothing.
const PATIENCE_SECONDS: i64 = 5;
const HEADER: usize = 16;

/// Of `linux/netlink.h`.
const ERROR: u16 = 2;
const NESTED: u16 = 0x8000;
pub const REQUEST: u16 = 1;
pub const ACK: u16 = 4;
pub const EXCLUSIVE: u16 = 0x200;
pub const CREATE: u16 = 0x400;

/// A connection to one part of the kernel, in the network namespace of whoever opened it.
pub struct Netlink(OwnedFd);

impl Netlink {
    pub fn open(part: SockProtocol) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, part)?;
        setsockopt(&socket, ReceiveTimeout, &TimeVal::seconds(PATIENCE_SECONDS))?;
        Ok(Self(socket))
    }

    /// Sends messages, and returns what comes back before as many of them are acknowledged.
    pub fn ask(&self, messages: &[u8], acks: usize) -> io::Result<Vec<Vec<u8>>> {
        send(self.0.as_raw_fd(), messages, MsgFlags::empty())?;
        let mut answers = Vec::new();
        let mut left = acks;
        let mut buffer = vec![0; 32 << 10];
        while left > 0 {
            let length = recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
            let mut rest = &buffer[..length];
            while let Some((kind, body, after)) = first(rest) {
                if kind == ERROR {
                    let errno = body.first_chunk().map_or(libc::EIO, |code| {
                        i32::from_ne_bytes(*code).checked_neg().unwrap_or(libc::EIO)
                    });
                    if errno != 0 {
                        return Err(io::Error::from_raw_os_error(errno));
                    }
                    left = left.saturating_sub(1);
                } else {
                    answers.push(body.to_vec());
                }
                rest = after;
            }
        }
        Ok(answers)
    }
}

/// The first message: its kind, what is in it, and what comes after.
fn first(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(*bytes.first_chunk()?);
    let length = usize::try_from(length).ok()?;
    let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    let body = bytes.get(HEADER..length)?;
    let after = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, body, after))
}

/// One message: a header of netlink's, one of the part that it is for, and attributes.
pub fn message(kind: u16, flags: u16, header: &[u8], attributes: &[u8]) -> Vec<u8> {
    let length = HEADER + header.len() + attributes.len();
    let mut bytes = u32::try_from(length)
        .unwrap_or(u32::MAX)
        .to_ne_bytes()
        .to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    // Numbers of message and sender, which the kernel fills in or nobody needs.
    bytes.extend([0; 8]);
    bytes.extend(header);
    bytes.extend(attributes);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

pub fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

pub fn nested(kind: u16, attributes: &[u8]) -> Vec<u8> {
    attribute(kind | NESTED, attributes)
}

pub fn text(kind: u16, value: &str) -> Vec<u8> {
    attribute(kind, &[value.as_bytes(), b"\0"].concat())
}

/// The value of the first attribute of this kind.
pub fn find(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16::from_ne_bytes(*attributes.first_chunk()?));
        let kind = u16::from_ne_bytes(*attributes.get(2..)?.first_chunk()?);
        let value = attributes.get(4..length)?;
        if kind & !NESTED == wanted {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_again() {
        let inner = [text(3, "bj-0"), attribute(1, &[0; 4])].concat();
        let all = [attribute(1, b"x"), nested(4, &inner)].concat();
        assert_eq!(all.len() % 4, 0);
        assert_eq!(find(&all, 1), Some(&b"x"[..]));
        assert_eq!(find(find(&all, 4).unwrap(), 3), Some(&b"bj-0\0"[..]));
        assert_eq!(find(&all, 9), None);
        // Cut off anywhere, or with a length of nothing.
        for end in 0..all.len() {
            let _ = find(&all[..end], 9);
        }
        assert_eq!(find(&[0; 16], 9), None);
    }

    #[test]
    fn messages_follow_each_other() {
        let two = [
            message(7, REQUEST, b"head", b"odd"),
            message(8, 0, b"", b""),
        ]
        .concat();
        let (kind, body, rest) = first(&two).unwrap();
        assert_eq!((kind, body), (7, &b"headodd"[..]));
        let (kind, body, rest) = first(rest).unwrap();
        assert_eq!((kind, body, rest), (8, &b""[..], &b""[..]));
        assert!(first(&two[..10]).is_none());
    }

    #[test]
    fn the_kernel_says_what_is_wrong() {
        let netlink = Netlink::open(SockProtocol::NetlinkRoute).unwrap();
        // No interface has this number: RTM_GETLINK, with an ifinfomsg.
        let mut header = [0; 16];
        header[4..8].copy_from_slice(&i32::MAX.to_ne_bytes());
        let asked = netlink.ask(&message(18, REQUEST | ACK, &header, &[]), 1);
        assert_eq!(asked.unwrap_err().raw_os_error(), Some(libc::ENODEV));
        header[4..8].copy_from_slice(&1_i32.to_ne_bytes());
        let asked = netlink.ask(&message(18, REQUEST | ACK, &header, &[]), 1);
        let answers = asked.unwrap();
        // IFLA_IFNAME.
        assert_eq!(find(&answers[0][16..], 3), Some(&b"lo\0"[..]));
    }
}
