//! A directory of the host, seen inside: `SRC:DEST`, read-only, or `SRC:DEST:rw`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Error, check_mount_point, shown};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// On the host. May be relative for the CLI; whoever decides what may be named makes it absolute and free of links, once.
    pub source: String,
    /// Inside, absolute.
    pub destination: String,
    pub writable: bool,
}

impl FromStr for Volume {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let error = |accepted: &str| Error::InvalidVolume {
            given: shown(text),
            accepted: accepted.into(),
        };
        let shape = "give SRC:DEST, or SRC:DEST:rw to let the code write there";
        let mut parts = text.split(':');
        let (Some(source), Some(destination), mode, None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(error(shape));
        };
        let writable = match mode {
            None | Some("ro") => false,
            Some("rw") => true,
            Some(_) => return Err(error(shape)),
        };
        if source.is_empty() || source.contains('\0') {
            return Err(error("give a directory of the host before the colon"));
        }
        check_mount_point("volume", destination)?;
        Ok(Self {
            source: source.into(),
            destination: destination.into(),
            writable,
        })
    }
}

impl fmt::Display for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}{}",
            self.source,
            self.destination,
            if self.writable { ":rw" } else { "" }
        )
    }
}

impl Serialize for Volume {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Volume {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes() {
        let volume: Volume = "/srv/data:/data".parse().unwrap();
        assert!(!volume.writable && volume.source == "/srv/data" && volume.destination == "/data");
        assert!("data:/data:rw".parse::<Volume>().unwrap().writable);
        assert_eq!("a:/b:ro".parse::<Volume>().unwrap().to_string(), "a:/b");
        for bad in [
            "",
            "/a",
            ":/b",
            "/a:",
            "/a:b",
            "/a:/",
            "/a:/etc",
            "/a:/b:wr",
            "/a:/b:rw:x",
            "/a:/b/../etc",
            "a\0:/b",
        ] {
            assert!(bad.parse::<Volume>().is_err(), "{bad}");
        }
    }
}
