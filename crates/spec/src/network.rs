//! Which hosts a sandbox may reach: nobody, everybody, or a list.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};

use crate::{Error, shown};

const MAX_RULES: usize = 256;

/// `"none"`, `"all"`, or a list of rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Network {
    #[default]
    None,
    All,
    Only(Vec<HostRule>),
}

/// `host`, `*.host` (any name below it), or either with `:port`. Hosts are lower-case names or IP addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRule {
    /// The name or address, without `*.`.
    pub host: String,
    /// Names below `host`, and not `host` itself.
    pub subdomains: bool,
    /// Any port if `None`.
    pub port: Option<u16>,
}

impl HostRule {
    fn error(given: &str) -> Error {
        Error::InvalidNetwork {
            given: shown(given),
            accepted: "give none, all, or hosts like example.org, *.example.org, example.org:443"
                .into(),
        }
    }
}

impl FromStr for HostRule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let error = || Self::error(text);
        let (host, port) = split_port(text).ok_or_else(error)?;
        let (subdomains, name) = match host.strip_prefix("*.") {
            Some(name) => (true, name),
            None => (false, host),
        };
        let address = name
            .trim_start_matches('[')
            .trim_end_matches(']')
            .parse::<IpAddr>();
        let host = match address {
            Ok(_) if subdomains => return Err(error()),
            Ok(address) => address.to_string(),
            Err(_) if is_host_name(name) => name.to_ascii_lowercase(),
            Err(_) => return Err(error()),
        };
        Ok(Self {
            host,
            subdomains,
            port,
        })
    }
}

/// Host and port; `None` where the port is none. IPv6 needs brackets only to have a port.
fn split_port(text: &str) -> Option<(&str, Option<u16>)> {
    if text.parse::<Ipv6Addr>().is_ok() {
        return Some((text, None));
    }
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((inside, rest)) => {
            inside.parse::<Ipv6Addr>().ok()?;
            (
                inside,
                if rest.is_empty() {
                    None
                } else {
                    Some(rest.strip_prefix(':')?)
                },
            )
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let Some(port) = port else {
        return Some((host, None));
    };
    // `u16::from_str` takes a plus sign.
    let digits = port.bytes().all(|b| b.is_ascii_digit());
    port.parse::<u16>()
        .ok()
        .filter(|&port| digits && port > 0)
        .map(|port| (host, Some(port)))
}

fn is_host_name(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    // Only digits in the last label would be an address in some resolvers' eyes (`127.1`, `0x7f.1`).
    let last_is_number =
        |label: &str| label.starts_with("0x") || label.bytes().all(|b| b.is_ascii_digit());
    name.len() <= 253
        && name.split('.').all(is_label)
        && !name.rsplit('.').next().is_none_or(last_is_number)
}

impl fmt::Display for HostRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.subdomains {
            f.write_str("*.")?;
        }
        match self.port {
            Some(port) if self.host.contains(':') => write!(f, "[{}]:{port}", self.host),
            Some(port) => write!(f, "{}:{port}", self.host),
            None => f.write_str(&self.host),
        }
    }
}

/// As the CLI takes it: `none`, `all`, or rules with commas between.
impl FromStr for Network {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "none" => Ok(Self::None),
            "all" => Ok(Self::All),
            rules => Self::only(rules.split(',').map(str::trim)),
        }
    }
}

impl Network {
    fn only<'a>(rules: impl IntoIterator<Item = &'a str>) -> Result<Self, Error> {
        let rules = rules
            .into_iter()
            .map(str::parse)
            .collect::<Result<Vec<HostRule>, _>>()?;
        if rules.is_empty() || rules.len() > MAX_RULES {
            return Err(Error::InvalidNetwork {
                given: format!("a list of {}", rules.len()),
                accepted: format!("give 1 to {MAX_RULES} hosts, or none"),
            });
        }
        Ok(Self::Only(rules))
    }
}

impl Serialize for Network {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => serializer.serialize_str("none"),
            Self::All => serializer.serialize_str("all"),
            Self::Only(rules) => serializer.collect_seq(rules.iter().map(ToString::to_string)),
        }
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NetworkVisitor;

        impl<'de> Visitor<'de> for NetworkVisitor {
            type Value = Network;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"none\", \"all\" or a list of hosts")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Network, E> {
                match text {
                    "none" => Ok(Network::None),
                    "all" => Ok(Network::All),
                    other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Network, A::Error> {
                let mut rules: Vec<String> = Vec::new();
                while let Some(rule) = seq.next_element()? {
                    if rules.len() > MAX_RULES {
                        break;
                    }
                    rules.push(rule);
                }
                Network::only(rules.iter().map(String::as_str)).map_err(de::Error::custom)
            }
        }

        deserializer.deserialize_any(NetworkVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rules() {
        for (given, shown) in [
            ("example.org", "example.org"),
            ("Example.ORG:443", "example.org:443"),
            ("*.example.org", "*.example.org"),
            ("*.example.org:8080", "*.example.org:8080"),
            ("localhost", "localhost"),
            ("10.0.0.1:80", "10.0.0.1:80"),
            ("::1", "::1"),
            ("[::1]:80", "[::1]:80"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ] {
            assert_eq!(given.parse::<HostRule>().unwrap().to_string(), shown);
        }
        for bad in [
            "",
            "*",
            "*.",
            "a b",
            "http://example.org",
            "example.org/",
            "example.org:",
            "example.org:0",
            "example.org:+80",
            "example.org:65536",
            "example.org:80:80",
            "a.*.b",
            "-a.org",
            "a..b",
            "*.10.0.0.1",
            "*.::1",
            "127.1",
            "0x7f.1",
            "2130706433",
            "bücher.example",
            "a\0b",
            "[::1",
            "[::1]80",
            "[10.0.0.1]:80",
            "all,none,",
            "user@host",
        ] {
            assert!(bad.parse::<HostRule>().is_err(), "{bad}");
        }
    }

    #[test]
    fn as_flag_and_as_json() {
        assert_eq!("none".parse(), Ok(Network::None));
        assert_eq!("all".parse(), Ok(Network::All));
        let list: Network = "pypi.org, *.pythonhosted.org:443".parse().unwrap();
        let json = serde_json::to_string(&list).unwrap();
        assert_eq!(json, r#"["pypi.org","*.pythonhosted.org:443"]"#);
        assert_eq!(serde_json::from_str::<Network>(&json).unwrap(), list);
        assert_eq!("".parse::<Network>().unwrap_err().code(), "invalid_network");
        for bad in ["[]", "\"some\"", "1", "null", "[1]", "[\"a b\"]", "{}"] {
            assert!(serde_json::from_str::<Network>(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn rules_come_back(text in "[a-z0-9.:*\\[\\]-]{0,16}") {
            if let Ok(rule) = text.parse::<HostRule>() {
                prop_assert_eq!(rule.to_string().parse::<HostRule>(), Ok(rule));
            }
        }
    }
}
