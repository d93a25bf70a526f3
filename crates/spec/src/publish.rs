//! A port of a sandbox that the host listens for: `ADDRESS:PORT:INNER`, like `127.0.0.1:8080:8000`.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Error, shown};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Publish {
    /// On the host. Port 0 is any that is free.
    pub host: SocketAddr,
    /// Inside.
    pub port: u16,
}

impl FromStr for Publish {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parsed = || {
            let (host, port) = text.rsplit_once(':')?;
            let port = port.parse().ok().filter(|port| *port > 0)?;
            let host = host.parse().ok()?;
            Some(Self { host, port })
        };
        parsed().ok_or_else(|| Error::InvalidRequest {
            field: "publish".into(),
            given: shown(text),
            accepted:
                "give ADDRESS:PORT:INNER, like 127.0.0.1:8080:8000; port 0 is any that is free"
                    .into(),
        })
    }
}

impl fmt::Display for Publish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl Serialize for Publish {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Publish {
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
        for good in ["127.0.0.1:0:8000", "0.0.0.0:80:80", "[::1]:8080:1"] {
            assert_eq!(good.parse::<Publish>().unwrap().to_string(), good);
        }
        for bad in [
            "",
            "8000",
            "8080:8000",
            "127.0.0.1:0:0",
            "host:1:2",
            "127.0.0.1:65536:1",
            "1.2.3.4:1:2:3",
            "::1:1:2",
        ] {
            assert!(bad.parse::<Publish>().is_err(), "{bad}");
        }
    }
}
