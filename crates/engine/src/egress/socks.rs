//! SOCKS5, without a password: a greeting, a request, a reply.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Desk;
use super::front::Next;
use super::tunnel::{self, NoWay, Up};

pub const VERSION: u8 = 5;
/// In answer to a greeting.
pub const NO_WAY_IN: [u8; 2] = [VERSION, 0xff];
const CONNECT: u8 = 1;
const GRANTED: u8 = 0;
const NOT_ALLOWED: u8 = 2;
const UNREACHABLE: u8 = 4;
const NO_SUCH_COMMAND: u8 = 7;
const NO_SUCH_ADDRESS: u8 = 8;

/// Reads greeting and request. `None`: it was told that it cannot be served.
pub async fn request(
    stream: &mut TcpStream,
    buffer: &mut Vec<u8>,
) -> io::Result<Option<(String, u16)>> {
    let methods = take(stream, buffer, 2).await?[1];
    let methods = take(stream, buffer, usize::from(methods)).await?;
    if !methods.contains(&0) {
        stream.write_all(&NO_WAY_IN).await?;
        return Ok(None);
    }
    stream.write_all(&[VERSION, 0]).await?;
    let request = take(stream, buffer, 4).await?;
    let host = match request[3] {
        1 => {
            let bytes = take(stream, buffer, 4).await?;
            let octets: [u8; 4] = bytes.try_into().map_err(|_| io::ErrorKind::InvalidData)?;
            IpAddr::V4(Ipv4Addr::from(octets)).to_string()
        }
        4 => {
            let bytes = take(stream, buffer, 16).await?;
            let octets: [u8; 16] = bytes.try_into().map_err(|_| io::ErrorKind::InvalidData)?;
            IpAddr::V6(Ipv6Addr::from(octets)).to_string()
        }
        3 => {
            let length = take(stream, buffer, 1).await?[0];
            let bytes = take(stream, buffer, usize::from(length)).await?;
            // Brackets are for URLs.
            String::from_utf8_lossy(&bytes).replace('[', "?")
        }
        _ => {
            stream.write_all(&reply(NO_SUCH_ADDRESS)).await?;
            return Ok(None);
        }
    };
    let port = take(stream, buffer, 2).await?;
    if request[..2] != [VERSION, CONNECT] {
        stream.write_all(&reply(NO_SUCH_COMMAND)).await?;
        return Ok(None);
    }
    Ok(Some((host, u16::from_be_bytes([port[0], port[1]]))))
}

pub async fn connect(
    desk: &Desk,
    stream: &mut TcpStream,
    early: Vec<u8>,
    host: &str,
    port: u16,
) -> Next {
    match tunnel::connect(desk, host, port).await {
        Ok(line) => {
            stream.write_all(&reply(GRANTED)).await?;
            Ok(Some((early, Up::Unknown, line)))
        }
        Err(no_way) => {
            let refused = matches!(no_way, NoWay::Refused(_));
            let code = if refused { NOT_ALLOWED } else { UNREACHABLE };
            stream.write_all(&reply(code)).await?;
            Ok(None)
        }
    }
}

fn reply(code: u8) -> [u8; 10] {
    [VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0]
}

async fn take(stream: &mut TcpStream, buffer: &mut Vec<u8>, count: usize) -> io::Result<Vec<u8>> {
    while buffer.len() < count {
        if stream.read_buf(buffer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let rest = buffer.split_off(count);
    Ok(std::mem::replace(buffer, rest))
}
