//! What an archive does not have of a directory, told to whoever asked for it.

use std::path::Path;

use axum::http::HeaderValue;
use belljar::{Files, harmless};
use belljar_spec::MAX_DEPTH;
use serde::{Deserialize, Serialize};

/// Entries that were left out: how many, and the first of them.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct LeftOut {
    pub count: u64,
    pub first: Vec<Entry>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Entry {
    pub path: String,
    pub reason: String,
}

impl LeftOut {
    /// JSON, in ASCII. It is known before the first byte of the archive, and a tar file has no place for it.
    pub const HEADER: &str = "belljar-left-out";
    /// Nobody reads a longer list.
    const NAMED: usize = 10;
    /// Many programs take no longer header than 8 KiB, and six bytes may stand for a character.
    const MOST_BYTES: usize = 1 << 10;

    pub fn add(&mut self, path: &Path, reason: impl Into<String>) {
        self.count += 1;
        let path = harmless(path).to_string_lossy().into_owned();
        let bytes: usize = self.first.iter().map(|entry| entry.path.len()).sum();
        if self.first.len() < Self::NAMED && bytes + path.len() <= Self::MOST_BYTES {
            let reason = reason.into();
            self.first.push(Entry { path, reason });
        }
    }

    /// A directory that is not entered, unless nothing is in it.
    pub(super) fn add_below(&mut self, files: &Files, directory: &Path) {
        let mut has_some = false;
        let looked = directory.to_str().map(|path| {
            files.walk(path, 0, &mut |_| {
                has_some = true;
                false
            })
        });
        // What cannot be looked into may have something in it.
        if has_some || !matches!(looked, Some(Ok(()))) {
            let reason = format!("what is in it lies more than {MAX_DEPTH} directories deep");
            self.add(directory, reason);
        }
    }

    /// `None`: nothing was.
    pub(super) fn header(&self) -> Option<HeaderValue> {
        if self.count == 0 {
            return None;
        }
        let json = serde_json::to_string(self).ok()?;
        let mut ascii = String::with_capacity(json.len());
        for c in json.chars() {
            if c.is_ascii() {
                ascii.push(c);
            } else {
                let mut room = [0; 2];
                let units = c.encode_utf16(&mut room).iter();
                ascii.extend(units.map(|unit| format!("\\u{unit:04x}")));
            }
        }
        HeaderValue::from_str(&ascii).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_names_there_are_it_is_a_header() {
        let mut left_out = LeftOut::default();
        assert!(left_out.header().is_none());
        for name in ["plain", "näme 🎈\n\"x\"", &"🎈".repeat(60)] {
            for _ in 0..5 {
                left_out.add(Path::new(name), "it is a symbolic link");
            }
        }
        let header = left_out.header().expect("a header");
        assert!(header.len() < 8 << 10, "{}", header.len());
        let read: LeftOut = serde_json::from_slice(header.as_bytes()).expect("JSON");
        assert_eq!((read.count, read.first.len()), (15, 10));
        assert_eq!(read.first[5].path, "näme 🎈%0A\"x\"");
    }
}
