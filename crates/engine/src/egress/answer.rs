//! The head of an answer, as it came: of all that is in it, only what is said about the connection is changed.

/// What a server says first.
#[derive(Debug, PartialEq, Eq)]
pub enum Part {
    /// There will be another one.
    Interim,
    /// From here on it is another protocol, as the client had asked.
    Switched,
    Final,
    /// No answer of HTTP/1.
    Other,
}

/// What this begins with, and how long its head is; `None` as long as the head is not whole.
pub fn next(bytes: &[u8]) -> Option<(Part, usize)> {
    const VERSION: &[u8] = b"HTTP/1.";
    if !bytes.starts_with(&VERSION[..bytes.len().min(VERSION.len())]) {
        return Some((Part::Other, 0));
    }
    let length = length(bytes)?;
    let part = match bytes.get(..12) {
        Some(b"HTTP/1.1 101") => Part::Switched,
        Some([.., b' ', b'1', b'0'..=b'9', b'0'..=b'9']) => Part::Interim,
        _ => Part::Final,
    };
    Some((part, length))
}

/// With its empty line. There are servers that end lines without a carriage return.
fn length(bytes: &[u8]) -> Option<usize> {
    let ends = bytes.iter().enumerate().filter(|(_, b)| **b == b'\n');
    let mut ends = ends.map(|(at, _)| at + 1);
    ends.find_map(|at| match &bytes[at..] {
        [b'\n', ..] => Some(at + 1),
        [b'\r', b'\n', ..] => Some(at + 2),
        _ => None,
    })
}

/// The same head, except that the connection ends with this answer. Clients that would keep it take another one then, instead of
/// finding this one closed.
pub fn closing(head: &[u8]) -> Vec<u8> {
    let mut lines = head.split_inclusive(|b| *b == b'\n');
    let mut changed = lines.next().unwrap_or_default().to_vec();
    changed.extend(b"Connection: close\r\n");
    let mut dropped = false;
    for line in lines {
        // A line that begins with a space belongs to the one before.
        if !line.starts_with(b" ") && !line.starts_with(b"\t") {
            let name = line.split(|b| *b == b':').next().unwrap_or_default();
            let name = name.trim_ascii().to_ascii_lowercase();
            let about: [&[u8]; 3] = [b"connection", b"keep-alive", b"proxy-connection"];
            dropped = about.contains(&name.as_slice());
        }
        if !dropped {
            changed.extend(line);
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts() {
        for (text, part) in [
            ("", None),
            ("HTTP/1.1 10", None),
            ("HTTP/1.1 101 Switching\r\n", None),
            (
                "HTTP/1.1 101 Switching\r\n\r\nx",
                Some((Part::Switched, 26)),
            ),
            ("HTTP/1.1 100 Continue\r\n\r\nH", Some((Part::Interim, 25))),
            ("HTTP/1.1 200 x\r\nA: b\r\n\r\n", Some((Part::Final, 24))),
            ("HTTP/1.0 200 x\nA: b\n\nbody", Some((Part::Final, 21))),
            ("HTTP/1.0 404\n\r\n", Some((Part::Final, 15))),
            ("hello", Some((Part::Other, 0))),
            ("HTTP/2", Some((Part::Other, 0))),
        ] {
            assert_eq!(next(text.as_bytes()), part, "{text:?}");
        }
    }

    #[test]
    fn only_what_is_about_the_connection_changes() {
        let head = b"HTTP/1.1 200 OK\r\nA: \xff\r\nconnection : keep-alive,\r\n x\r\nKeep-Alive: timeout=5\r\n\
                     Set-Cookie: a\r\nSet-Cookie: b\r\n\r\n";
        let changed = b"HTTP/1.1 200 OK\r\nConnection: close\r\nA: \xff\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n\r\n";
        assert_eq!(closing(head), changed);
    }
}
