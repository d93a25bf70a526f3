//! What kind of place an address is. Only public ones may be reached without being named in a rule.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// Why an address is not for everyone; `None` for those that are: public, and not this machine's own.
pub fn closed(address: IpAddr) -> Option<&'static str> {
    reserved(address).or_else(|| is_own(address).then_some("this machine's own"))
}

/// Whether what is sent there stays here. The kernel says so without anything being sent: it would then come from the same
/// address, or from loopback where a whole block is local.
fn is_own(address: IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let from = || {
        let socket = UdpSocket::bind((any, 0))?;
        // Any port will do.
        socket.connect((address, 9))?;
        socket.local_addr()
    };
    // Where there is no way there, it is not here.
    from().is_ok_and(|from| from.ip() == address || from.ip().is_loopback())
}

/// Why an address is not public; `None` for those that are.
fn reserved(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(four) => reserved_four(four),
        IpAddr::V6(six) => reserved_six(six),
    }
}

fn reserved_four(address: Ipv4Addr) -> Option<&'static str> {
    let [a, b, c, d] = address.octets();
    Some(match (a, b) {
        (0, _) => "of this network",
        (127, _) => "loopback",
        (169, 254) if (c, d) == (169, 254) => "a metadata service",
        // Alibaba's and Oracle's metadata services are in ranges of their own.
        (100, 100) if (c, d) == (100, 200) => "a metadata service",
        (192, 0) if (c, d) == (0, 192) => "a metadata service",
        (168, 63) if (c, d) == (129, 16) => "a metadata service",
        (169, 254) => "link-local",
        (10, _) | (172, 16..=31) | (192, 168) => "private",
        (100, 64..=127) => "shared by a carrier (CGNAT)",
        (192, 0) if c == 0 || c == 2 => "reserved",
        (192, 88) if c == 99 => "6to4",
        (198, 18 | 19) => "for benchmarks",
        (198, 51) if c == 100 => "for documentation",
        (203, 0) if c == 113 => "for documentation",
        (224..=239, _) => "multicast",
        (240..=255, _) => "reserved",
        _ => return None,
    })
}

fn reserved_six(address: Ipv6Addr) -> Option<&'static str> {
    let words = address.segments();
    // Those that carry an IPv4 address are refused as such: what they lead to depends on the network, not on us.
    Some(match words {
        [0, 0, 0, 0, 0, 0, 0, 0] => "of this network",
        [0, 0, 0, 0, 0, 0, 0, 1] => "loopback",
        [0, 0, 0, 0, 0, 0xffff, ..] => "an IPv4 address in IPv6 (mapped)",
        [0, 0, 0, 0, 0xffff, 0, ..] => "an IPv4 address in IPv6 (translated)",
        [0, 0, 0, 0, 0, 0, ..] => "an IPv4 address in IPv6 (compatible)",
        [0x64, 0xff9b, ..] => "NAT64",
        [0x100, 0, 0, 0, ..] => "a black hole",
        [0x2001, 0, ..] => "Teredo",
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => "for documentation",
        [0x2001, low, ..] if low < 0x200 => "reserved",
        [0x2002, ..] => "6to4",
        [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254] => "a metadata service",
        [first, ..] if first & 0xfe00 == 0xfc00 => "private",
        [first, ..] if first & 0xffc0 == 0xfe80 => "link-local",
        [first, ..] if first & 0xffc0 == 0xfec0 => "private",
        [first, ..] if first & 0xff00 == 0xff00 => "multicast",
        // Only 2000::/3 has been given out.
        [first, ..] if first & 0xe000 != 0x2000 => "reserved",
        // ISATAP: an interface identifier that is an IPv4 address.
        [_, _, _, _, 0 | 0x200, 0x5efe, ..] => "an IPv4 address in IPv6 (ISATAP)",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_here() {
        assert!(is_own("127.0.0.1".parse().unwrap()));
        assert!(!is_own("192.0.2.77".parse().unwrap()));
        let routed = UdpSocket::bind("0.0.0.0:0").unwrap();
        // The address by which this machine would go out, if it has one.
        if routed.connect("192.0.2.77:9").is_ok() {
            assert!(is_own(routed.local_addr().unwrap().ip()));
        }
    }

    #[test]
    fn what_is_public() {
        for public in [
            "1.1.1.1",
            "8.8.8.8",
            "93.184.216.34",
            "172.15.0.1",
            "172.32.0.1",
            "100.63.0.1",
            "100.128.0.1",
            "192.0.1.1",
            "223.255.255.255",
            "2606:4700::1111",
            "2a00:1450:4001::1",
            "2001:4860:4860::8888",
        ] {
            assert_eq!(reserved(public.parse().unwrap()), None, "{public}");
        }
        for (address, what) in [
            ("0.0.0.0", "this network"),
            ("127.0.0.1", "loopback"),
            ("127.255.255.254", "loopback"),
            ("10.1.2.3", "private"),
            ("172.16.0.1", "private"),
            ("172.31.255.255", "private"),
            ("192.168.1.1", "private"),
            ("169.254.169.254", "metadata"),
            ("169.254.1.1", "link-local"),
            ("100.64.0.1", "CGNAT"),
            ("100.100.100.200", "metadata"),
            ("192.0.0.192", "metadata"),
            ("168.63.129.16", "metadata"),
            ("192.0.2.1", "reserved"),
            ("198.18.0.1", "benchmarks"),
            ("198.51.100.1", "documentation"),
            ("203.0.113.1", "documentation"),
            ("192.88.99.1", "6to4"),
            ("224.0.0.1", "multicast"),
            ("255.255.255.255", "reserved"),
            ("::", "this network"),
            ("::1", "loopback"),
            ("::ffff:127.0.0.1", "mapped"),
            ("::ffff:8.8.8.8", "mapped"),
            ("::127.0.0.1", "compatible"),
            ("::ffff:0:127.0.0.1", "translated"),
            ("64:ff9b::7f00:1", "NAT64"),
            ("64:ff9b:1::1", "NAT64"),
            ("100::1", "black hole"),
            ("2001::1", "Teredo"),
            ("2001:db8::1", "documentation"),
            ("2001:20::1", "reserved"),
            ("2002:7f00:1::", "6to4"),
            ("fc00::1", "private"),
            ("fd00:ec2::254", "metadata"),
            ("fd12::1", "private"),
            ("fe80::1", "link-local"),
            ("fec0::1", "private"),
            ("ff02::1", "multicast"),
            ("4000::1", "reserved"),
            ("2606:4700::200:5efe:7f00:1", "ISATAP"),
        ] {
            let seen = reserved(address.parse().unwrap()).unwrap_or("public");
            assert!(seen.contains(what), "{address} is {seen}, not {what}");
        }
    }
}
