//! Whether the engine's own name server asks nobody but ours.
//!
//! A network of the engine's brings one, at 127.0.0.11 of the container. What it does not know it hands on to whom it was told to ask:
//! 127.0.0.1 of the container, where our door for names is. That is tried with a name that nobody has, before there is any code.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use belljar_spec::Error;

const ENGINE: (Ipv4Addr, u16) = (Ipv4Addr::new(127, 0, 0, 11), 53);
/// How long a question may take through the engine.
const PATIENCE: Duration = Duration::from_secs(5);

/// Whether what is asked of the engine's comes in by the door. If it does not, it went elsewhere, or nowhere.
pub fn come_by(asking: &UdpSocket, door: &UdpSocket) -> Result<bool, Error> {
    let label = format!("{:032x}", crate::run::random_bits()?);
    let wrong = |error: io::Error| Error::internal("names of a container", error);
    asking.send_to(&question(&label), ENGINE).map_err(wrong)?;
    let came = wait(door, &label);
    door.set_read_timeout(None).map_err(wrong)?;
    Ok(came)
}

fn wait(door: &UdpSocket, label: &str) -> bool {
    let end = Instant::now() + PATIENCE;
    let mut bytes = [0; 512];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || door.set_read_timeout(Some(left)).is_err() {
            return false;
        }
        let Ok((length, from)) = door.recv_from(&mut bytes) else {
            return false;
        };
        let asked = &bytes[..length];
        let mut parts = asked.windows(label.len());
        if parts.any(|part| part == label.as_bytes()) {
            // Else the engine would wait for it.
            let _ = door.send_to(&denial(asked), from);
            return true;
        }
    }
}

/// For the address of a name that cannot be (RFC 6761).
fn question(label: &str) -> Vec<u8> {
    let mut bytes = vec![0xbe, 0x11, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for part in [label, "invalid"] {
        bytes.push(u8::try_from(part.len()).unwrap_or(0));
        bytes.extend(part.as_bytes());
    }
    bytes.extend([0, 0, 1, 0, 1]);
    bytes
}

/// The same as an answer: there is no such name, says one who must know.
fn denial(question: &[u8]) -> Vec<u8> {
    let mut bytes = question.to_vec();
    if let Some(flags) = bytes.get_mut(2..4) {
        flags.copy_from_slice(&[0x85, 0x83]);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_known_again() {
        let door = UdpSocket::bind("127.0.0.1:0").unwrap();
        let asking = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = door.local_addr().unwrap();
        for label in ["another", "this"] {
            asking.send_to(&question(label), to).unwrap();
        }
        assert!(wait(&door, "this"));
        let mut answer = [0; 512];
        let length = asking.recv(&mut answer).unwrap();
        assert_eq!(answer[..4], [0xbe, 0x11, 0x85, 0x83]);
        assert_eq!(answer[4..length], question("this")[4..]);
        assert!(denial(&[0; 3]).len() == 3);
    }
}
