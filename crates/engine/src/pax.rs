//! The extended headers of tar archives, as strictly as they are described.

/// The records of a header, each `LENGTH KEY=VALUE` and a line's end, where the length counts the whole record.
/// `None` if it is anything else.
pub fn records(text: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let (mut rest, mut found) = (text, Vec::new());
    while !rest.is_empty() {
        let space = rest.iter().position(|byte| *byte == b' ')?;
        let digits = std::str::from_utf8(&rest[..space]).ok()?;
        let length: usize = digits.parse().ok()?;
        if !(space + 2..=rest.len()).contains(&length) {
            return None;
        }
        let record = &rest[space + 1..length - 1];
        let equals = record.iter().position(|byte| *byte == b'=')?;
        found.push((&record[..equals], &record[equals + 1..]));
        rest = &rest[length..];
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_split_by_their_lengths() {
        let text = b"12 path=a=b\n8 x=\n1\n\n";
        let found: [(&[u8], &[u8]); 2] = [(b"path", b"a=b"), (b"x", b"\n1\n")];
        assert_eq!(records(text), Some(found.to_vec()));
        assert_eq!(records(b""), Some(Vec::new()));
    }

    #[test]
    fn anything_else_is_refused() {
        for broken in [
            "x",
            " path=a\n",
            "-1 path=a\n",
            "3 path=a\n",
            "99 path=a\n",
            "8 pathab\n",
            "99999999999999999999 a=b\n",
        ] {
            assert_eq!(records(broken.as_bytes()), None, "{broken:?}");
        }
    }
}
