//! Which hosts a sandbox may reach: nobody, everybody, or a list; and how much may pass.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use crate::{Amount, Error, Unit, shown};

mod json;

const MAX_RULES: usize = 256;
const MAX_HEADERS: usize = 16;
const MAX_HEADER_BYTES: usize = 8 << 10;
/// Where web servers are; what a rule without a port means.
pub const DEFAULT_PORTS: [u16; 2] = [80, 443];

/// What may be reached, and how much of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Network {
    pub allow: Allow,
    pub caps: NetworkCaps,
    /// The sandbox trusts our certificate, so that headers of rules can be added to what is encrypted too.
    pub intercept: bool,
}

/// `"none"`, `"all"`, or a list of rules. An empty list allows nothing, and can be changed while the sandbox lives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Allow {
    #[default]
    None,
    All,
    Only(Vec<HostRule>),
}

/// `host`, `*.host` (any name below it), an address, or a block of addresses like `10.0.0.0/8`; each with `:port` if need be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRule {
    pub target: Target,
    /// Web ports if `None`, any port for `all`.
    pub port: Option<u16>,
    /// Added to requests on their way out. Never seen inside.
    pub headers: BTreeMap<String, Secret>,
    /// A variable that is set inside to a placeholder, for programs that insist on having a key.
    pub env: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Any public address, by whatever name.
    Any,
    Name(String),
    /// Names below this one, and not this one itself.
    Below(String),
    Block {
        address: IpAddr,
        bits: u8,
    },
}

/// A value that is never written anywhere: it shows as `…` wherever it is printed or serialized.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// For the one place that sends it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// How much of the network one sandbox may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetworkCaps {
    /// At one time.
    pub connections: u64,
    /// Sent and received together, as long as the sandbox lives.
    pub bytes: u64,
    pub bytes_per_second: u64,
}

/// Name, unit, default and maximum of each.
const CAPS: [(&str, Unit, u64, u64); 3] = [
    ("connections", Unit::Count, 256, 4096),
    ("bytes", Unit::BinaryBytes, 16 << 30, 1 << 50),
    ("bytes_per_second", Unit::BinaryBytes, 1 << 30, 1 << 40),
];

impl Default for NetworkCaps {
    fn default() -> Self {
        Self {
            connections: CAPS[0].2,
            bytes: CAPS[1].2,
            bytes_per_second: CAPS[2].2,
        }
    }
}

fn refused(given: &str, accepted: impl Into<String>) -> Error {
    Error::InvalidNetwork {
        given: shown(given),
        accepted: accepted.into(),
    }
}

impl FromStr for HostRule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let error = || refused(text, remedy(text));
        let plain = |target, port| Self {
            target,
            port,
            headers: BTreeMap::new(),
            env: None,
        };
        if text == "all" {
            return Ok(plain(Target::Any, None));
        }
        let (host, port) = split_port(text).ok_or_else(error)?;
        if ["all", "none"].contains(&host.to_ascii_lowercase().as_str()) {
            let accepted =
                format!("{host} is no host, and stands alone; name the hosts to give a port");
            return Err(refused(text, accepted));
        }
        let target = target(host).ok_or_else(error)?;
        Ok(plain(target, port))
    }
}

/// What to write instead.
fn remedy(text: &str) -> &'static str {
    let host = text.split_once(':').map_or(text, |(host, _)| host);
    if !text.is_ascii() {
        return "give the name as the name system has it, in punycode: xn--bcher-kva.example for bücher.example";
    }
    if host.strip_suffix('.').is_some_and(is_host_name) {
        return "give the name without the dot at its end";
    }
    "give none, all, or hosts like example.org, *.example.org, example.org:443, 10.0.0.0/8"
}

fn target(host: &str) -> Option<Target> {
    if let Some(name) = host.strip_prefix("*.") {
        return is_host_name(name).then(|| Target::Below(name.to_ascii_lowercase()));
    }
    let (address, bits) = match host.split_once('/') {
        Some((address, bits)) => {
            let digits = bits.bytes().all(|b| b.is_ascii_digit());
            (address, Some(bits.parse::<u8>().ok().filter(|_| digits)?))
        }
        None => (host, None),
    };
    match (address.parse::<IpAddr>(), bits) {
        (Ok(address), bits) => {
            let most = if address.is_ipv4() { 32 } else { 128 };
            let bits = bits.unwrap_or(most);
            // A whole family is no rule about addresses; that is `all`.
            let block = Target::Block {
                address: masked(address, bits),
                bits,
            };
            ((1..=most).contains(&bits) && masked(address, bits) == address).then_some(block)
        }
        (Err(_), None) if is_host_name(address) => Some(Target::Name(address.to_ascii_lowercase())),
        _ => None,
    }
}

fn masked(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(four) => {
            let mask = u32::MAX
                .checked_shl(32 - u32::from(bits.min(32)))
                .unwrap_or(0);
            IpAddr::V4((u32::from(four) & mask).into())
        }
        IpAddr::V6(six) => {
            let mask = u128::MAX
                .checked_shl(128 - u32::from(bits.min(128)))
                .unwrap_or(0);
            IpAddr::V6((u128::from(six) & mask).into())
        }
    }
}

impl Target {
    /// Whether this names the address itself.
    pub fn holds(&self, given: IpAddr) -> bool {
        match self {
            Self::Block { address, bits } => {
                address.is_ipv4() == given.is_ipv4() && masked(given, *bits) == *address
            }
            _ => false,
        }
    }

    /// Whether this is a rule about a name, in lower case and without a dot at the end.
    pub fn names(&self, given: &str) -> bool {
        match self {
            Self::Name(name) => given == name,
            Self::Below(name) => given
                .strip_suffix(name.as_str())
                .and_then(|above| above.strip_suffix('.'))
                .is_some_and(|above| !above.is_empty()),
            Self::Any | Self::Block { .. } => false,
        }
    }
}

impl HostRule {
    pub fn covers_port(&self, port: u16) -> bool {
        match (self.port, &self.target) {
            (Some(own), _) => own == port,
            (None, Target::Any) => true,
            (None, _) => DEFAULT_PORTS.contains(&port),
        }
    }

    pub fn check(&self) -> Result<(), Error> {
        let text = self.to_string();
        if self.headers.len() > MAX_HEADERS {
            return Err(refused(
                &text,
                format!("give at most {MAX_HEADERS} headers"),
            ));
        }
        if !self.headers.is_empty() && !matches!(self.target, Target::Name(_) | Target::Below(_)) {
            return Err(refused(&text, "headers go to a host that is named"));
        }
        for (name, value) in &self.headers {
            let fits = !name.is_empty() && name.len() <= 128 && name.bytes().all(is_token);
            let reserved = [
                "host",
                "connection",
                "content-length",
                "transfer-encoding",
                "upgrade",
            ];
            if !fits || reserved.contains(&name.to_ascii_lowercase().as_str()) {
                return Err(refused(
                    name,
                    "give the name of a header that a caller may set",
                ));
            }
            if value.0 == "…" {
                let accepted = "… stands for a value that is not shown; give the value itself";
                return Err(refused(name, accepted));
            }
            let printable = |b: u8| b == b'\t' || (0x20..0x7f).contains(&b) || b >= 0x80;
            if value.0.len() > MAX_HEADER_BYTES || !value.0.bytes().all(printable) {
                let accepted =
                    format!("its value must be one line of at most {MAX_HEADER_BYTES} bytes");
                return Err(refused(name, accepted));
            }
        }
        if let Some(name) = &self.env {
            crate::check_env(&BTreeMap::from([(name.clone(), String::new())]))?;
        }
        Ok(())
    }
}

fn is_token(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)
}

/// Host and port; `None` where the port is none. IPv6 needs brackets only to have a port.
fn split_port(text: &str) -> Option<(&str, Option<u16>)> {
    let (bare, _) = text.split_once('/').unwrap_or((text, ""));
    if bare.parse::<Ipv6Addr>().is_ok()
        && !text
            .rsplit('/')
            .next()
            .is_some_and(|bits| bits != bare && bits.contains(':'))
    {
        return Some((text, None));
    }
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((inside, rest)) => {
            inside.split('/').next()?.parse::<Ipv6Addr>().ok()?;
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

/// A name of a host, and nothing that some resolver would take for an address.
pub fn is_host_name(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    // Only digits in the last label would be an address in some resolvers' eyes (`127.1`, `0x7f.1`).
    let last_is_number = |label: &str| {
        label.starts_with("0x")
            || label.starts_with("0X")
            || label.bytes().all(|b| b.is_ascii_digit())
    };
    name.len() <= 253
        && name.split('.').all(is_label)
        && !name.rsplit('.').next().is_none_or(last_is_number)
}

impl fmt::Display for HostRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = match &self.target {
            Target::Any => "all".to_owned(),
            Target::Name(name) => name.clone(),
            Target::Below(name) => format!("*.{name}"),
            Target::Block { address, bits }
                if *bits == if address.is_ipv4() { 32 } else { 128 } =>
            {
                address.to_string()
            }
            Target::Block { address, bits } => format!("{address}/{bits}"),
        };
        match self.port {
            Some(port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Some(port) => write!(f, "{host}:{port}"),
            None => f.write_str(&host),
        }
    }
}

/// As the CLI takes it: `none`, `all`, or rules with commas between.
impl FromStr for Network {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let allow = match text {
            "none" => Allow::None,
            "all" => Allow::All,
            rules => Allow::only(
                rules
                    .split(',')
                    .map(|rule| rule.trim().parse())
                    .collect::<Result<_, _>>()?,
            )?,
        };
        Ok(allow.into())
    }
}

impl From<Allow> for Network {
    fn from(allow: Allow) -> Self {
        Self {
            allow,
            ..Self::default()
        }
    }
}

impl Allow {
    fn only(rules: Vec<HostRule>) -> Result<Self, Error> {
        if rules.len() > MAX_RULES {
            return Err(Error::InvalidNetwork {
                given: format!("a list of {}", rules.len()),
                accepted: format!("give at most {MAX_RULES} hosts"),
            });
        }
        rules.iter().try_for_each(HostRule::check)?;
        Ok(Self::Only(rules))
    }
}

impl Network {
    /// There is none, and there can be none later.
    pub fn is_none(&self) -> bool {
        self.allow == Allow::None
    }

    pub fn rules(&self) -> &[HostRule] {
        match &self.allow {
            Allow::Only(rules) => rules,
            Allow::None | Allow::All => &[],
        }
    }
}

impl NetworkCaps {
    fn set(&mut self, name: &str, given: Option<&Amount>) -> Result<(), Error> {
        let Some((index, (_, unit, _, most))) =
            CAPS.iter().enumerate().find(|(_, row)| row.0 == name)
        else {
            let accepted = "give allow, connections, bytes, bytes_per_second, intercept";
            return Err(refused(name, accepted));
        };
        let Some(given) = given else {
            return Ok(());
        };
        let value = given
            .value(*unit)
            .filter(|value| (1..=*most).contains(value));
        let value = value.ok_or_else(|| Error::InvalidNetwork {
            given: format!("{name} {given}"),
            accepted: format!("give {} from 1 to {}", unit.accepted(), unit.text(*most)),
        })?;
        *[
            &mut self.connections,
            &mut self.bytes,
            &mut self.bytes_per_second,
        ][index] = value;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
