//! Who may be reached: a name or address with a port, before and after it was looked up.

use std::net::IpAddr;

use belljar_spec::{Allow, HostRule, Network, Target, is_host_name};

use super::address::closed;

/// A host as the code named it, in its one plain form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    Name(String),
    Address(IpAddr),
}

impl Host {
    /// `None` for whatever is neither a name nor an address as everyone writes it.
    pub fn parse(text: &str) -> Option<Self> {
        let bare = match text.strip_prefix('[') {
            Some(rest) => {
                let inside = rest.strip_suffix(']')?;
                return inside
                    .parse()
                    .ok()
                    .map(|six| Self::Address(IpAddr::V6(six)));
            }
            None => text,
        };
        if let Ok(address) = bare.parse() {
            return Some(Self::Address(address));
        }
        let name = bare.strip_suffix('.').unwrap_or(bare);
        is_host_name(name).then(|| Self::Name(name.to_ascii_lowercase()))
    }
}

impl std::fmt::Display for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// Why not, in words for whoever wrote the code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal(pub String);

fn no_rule(what: &dyn std::fmt::Display, port: Option<u16>) -> Refusal {
    let port = port.map_or_else(String::new, |port| format!(":{port}"));
    Refusal(format!("no rule allows {what}{port}"))
}

fn is_any(rule: &HostRule) -> bool {
    rule.target == Target::Any
}

/// Whether a name may be looked up: some port of it may be reached.
pub fn may_look_up(network: &Network, name: &str) -> Result<(), Refusal> {
    let open = match &network.allow {
        Allow::None => false,
        Allow::All => true,
        Allow::Only(rules) => rules
            .iter()
            .any(|rule| is_any(rule) || rule.target.names(name)),
    };
    if open {
        Ok(())
    } else {
        Err(no_rule(&name, None))
    }
}

/// Whether a host and port may be tried at all.
pub fn may_try(network: &Network, host: &Host, port: u16) -> Result<(), Refusal> {
    let fits = |rule: &HostRule| {
        rule.covers_port(port)
            && match host {
                Host::Name(name) => rule.target.names(name) || is_any(rule),
                Host::Address(address) => rule.target.holds(*address) || is_any(rule),
            }
    };
    let open = match &network.allow {
        Allow::None => false,
        Allow::All => true,
        Allow::Only(rules) => rules.iter().any(fits),
    };
    if open {
        Ok(())
    } else {
        Err(match host {
            Host::Address(IpAddr::V6(six)) => no_rule(&format!("[{six}]"), Some(port)),
            _ => no_rule(host, Some(port)),
        })
    }
}

/// Whether this address may be what that host is.
pub fn may_reach(
    network: &Network,
    host: &Host,
    address: IpAddr,
    port: u16,
) -> Result<(), Refusal> {
    may_try(network, host, port)?;
    let Some(kind) = closed(address) else {
        return Ok(());
    };
    let names_itself = |rule: &HostRule| {
        let by_address = rule.target.holds(address);
        // Whoever writes `localhost` means it.
        let by_name = address.is_loopback() && rule.target == Target::Name("localhost".into());
        rule.covers_port(port) && (by_address || by_name && *host == Host::Name("localhost".into()))
    };
    if network.rules().iter().any(names_itself) {
        return Ok(());
    }
    Err(Refusal(match host {
        Host::Name(name) => {
            format!("{name} is {address}, which is {kind}; a rule would have to name the address")
        }
        Host::Address(_) => {
            format!("{address} is {kind}; a rule would have to name it")
        }
    }))
}

/// The rule whose headers go along to a host.
pub fn with_headers<'a>(network: &'a Network, host: &Host, port: u16) -> Option<&'a HostRule> {
    let Host::Name(name) = host else { return None };
    network
        .rules()
        .iter()
        .find(|rule| !rule.headers.is_empty() && rule.covers_port(port) && rule.target.names(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        text.parse().unwrap()
    }

    fn reach(rules: &str, host: &str, address: &str, port: u16) -> bool {
        let host = Host::parse(host).unwrap();
        may_reach(&network(rules), &host, address.parse().unwrap(), port).is_ok()
    }

    #[test]
    fn hosts_have_one_form() {
        for (given, plain) in [
            ("Example.ORG", "example.org"),
            ("example.org.", "example.org"),
            ("[::1]", "::1"),
            ("10.0.0.1", "10.0.0.1"),
        ] {
            assert_eq!(Host::parse(given).unwrap().to_string(), plain);
        }
        for odd in [
            "127.1",
            "2130706433",
            "0x7f000001",
            "0177.0.0.1",
            "127.0.0.01",
            "a@b",
            "a b",
            "[127.0.0.1]",
            "[::1",
            "",
            ".",
            "a..b",
            "bücher.example",
            "a%00b",
            "::1%lo",
            "[fe80::1%25lo]",
        ] {
            assert_eq!(Host::parse(odd), None, "{odd}");
        }
    }

    #[test]
    fn names_are_not_addresses() {
        assert!(reach("a.com", "a.com", "8.8.8.8", 443));
        assert!(!reach("a.com", "a.com", "8.8.8.8", 22));
        assert!(!reach("a.com", "b.com", "8.8.8.8", 443));
        // A name that leads inside is refused unless the address is named as well.
        for private in [
            "10.0.0.1",
            "127.0.0.1",
            "169.254.169.254",
            "::1",
            "::ffff:8.8.8.8",
        ] {
            assert!(!reach("a.com", "a.com", private, 443), "{private}");
            assert!(!reach("all", "a.com", private, 443), "{private}");
            assert!(!reach("all", private, private, 443), "{private}");
        }
        assert!(reach("a.com,10.0.0.0/8", "a.com", "10.0.0.1", 443));
        assert!(!reach("a.com,10.0.0.0/8:5432", "a.com", "10.0.0.1", 443));
        assert!(!reach("10.0.0.0/8", "a.com", "10.0.0.1", 443));
        assert!(reach("10.0.0.1:22", "10.0.0.1", "10.0.0.1", 22));
        assert!(reach("localhost:8080", "localhost", "127.0.0.1", 8080));
        assert!(!reach("localhost:8080", "127.0.0.1", "127.0.0.1", 8080));
        assert!(!reach("localhost,a.com", "a.com", "127.0.0.1", 80));
    }

    #[test]
    fn all_is_every_public_port() {
        assert!(reach("all", "a.com", "8.8.8.8", 22));
        assert!(reach("all", "8.8.8.8", "8.8.8.8", 53));
        assert!(reach("all,10.0.0.1", "10.0.0.1", "10.0.0.1", 80));
        assert!(!reach("none", "a.com", "8.8.8.8", 80));
        let six = Host::parse("[::1]").unwrap();
        let refusal = may_try(&network("a.com"), &six, 80).unwrap_err();
        assert_eq!(refusal.0, "no rule allows [::1]:80");
        let nothing: Network = Allow::Only(Vec::new()).into();
        assert!(may_look_up(&nothing, "a.com").is_err());
    }
}
