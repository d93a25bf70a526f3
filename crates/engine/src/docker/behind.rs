//! What is seen of a bridge and of the container behind it, before there is any code: no way to this host, to others, or for names.

use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::OwnedFd;

use belljar_jail::bridge::{addresses, datagrams_in, take_default_routes};
use belljar_spec::Error;
use bollard::models::{ContainerInspectResponse, NetworkInspect};
use bollard::query_parameters::InspectNetworkOptions;

use super::bridge::Bridge;
use super::{Docker, failed, names};
use crate::advice;

const LOOPBACK: &str = "lo";
const SIX: &str = "if_inet6";

pub fn refused(reason: &str) -> Error {
    Error::UnsupportedHost {
        missing: "a bridge without a way to this host".into(),
        reason: reason.into(),
        fix: "use a Docker engine of this host (20.10 or later, but not 23.0.11, 25.0.5, or 26.0.0 to 26.1.2), run Belljar as root in \
              the same network namespace, on a kernel with nf_tables; or leave the containers' network as \"loopback\""
            .into(),
        weaken: None,
    }
}

impl Bridge {
    /// Fails closed. `door` is the one for questions about names, which nobody serves yet.
    pub(super) async fn check(
        &self,
        docker: &Docker,
        pid: i64,
        container: &ContainerInspectResponse,
        door: &OwnedFd,
    ) -> Result<(), Error> {
        let network = docker
            .client
            .inspect_network(&self.name, None::<InspectNetworkOptions>)
            .await
            .map_err(|error| failed("bridge for a container", &error))?;
        engine_says(&network, container, &self.name).map_err(refused)?;
        let pid = i32::try_from(pid).map_err(|_| refused("the engine names no process"))?;
        let door = door
            .try_clone()
            .map_err(|error| Error::internal("network", error))?;
        let device = self.device.clone();
        let looked =
            tokio::task::spawn_blocking(move || look(pid, &device, &UdpSocket::from(door)));
        looked
            .await
            .map_err(|error| Error::internal("network", error))??;
        if !self.seal.holds() {
            return Err(refused("it is not sealed"));
        }
        Ok(())
    }
}

/// What the engine has to say of it.
fn engine_says(
    network: &NetworkInspect,
    container: &ContainerInspectResponse,
    name: &str,
) -> Result<(), &'static str> {
    let on_it = network.containers.iter().flatten();
    let on_it: Vec<_> = on_it.map(|(id, _)| Some(id.as_str())).collect();
    let has = container
        .network_settings
        .iter()
        .flat_map(|settings| settings.networks.iter().flatten());
    let has: Vec<_> = has.map(|(name, _)| name.as_str()).collect();
    let host = container.host_config.as_ref();
    let asks = host
        .and_then(|host| host.dns.as_deref())
        .unwrap_or_default();
    let held = [
        (
            network.driver.as_deref() == Some("bridge"),
            "it is no bridge",
        ),
        (network.internal == Some(true), "it is not internal"),
        (network.enable_ipv6 != Some(true), "it has IPv6"),
        (on_it == [container.id.as_deref()], "others are on it"),
        (has == [name], "the container has other networks"),
        (asks == ["127.0.0.1"], "names are asked for elsewhere"),
    ];
    match held.iter().find(|(held, _)| !held) {
        None => Ok(()),
        Some((_, wrong)) => Err(wrong),
    }
}

/// What the kernel has to say.
fn look(pid: i32, device: &str, door: &UdpSocket) -> Result<(), Error> {
    let own = |error: &belljar_jail::Error| advice::explain(error);
    take_default_routes(pid).map_err(|error| own(&error))?;
    let read = |name: &str| {
        let path = format!("/proc/{pid}/net/{name}");
        match fs::read_to_string(&path) {
            // A kernel without IPv6 has no list of its addresses.
            Err(error) if name == SIX && error.kind() == ErrorKind::NotFound => Ok(String::new()),
            read => read.map_err(|error| Error::internal(path, error)),
        }
    };
    let six = read(SIX)?;
    let subnet = inside(&read("dev")?, &read("route")?, &six).map_err(refused)?;
    let all = addresses().map_err(|error| Error::internal("addresses of this host", error))?;
    outside(&all, device, subnet).map_err(|reason| refused(&reason))?;
    match ports(device) {
        Some(1) => {}
        Some(_) => return Err(refused("others are connected to it")),
        None => return Err(refused("/sys is not of this network namespace")),
    }
    let asking = datagrams_in(pid).map_err(|error| own(&error))?;
    if names::come_by(&UdpSocket::from(asking), door)? {
        return Ok(());
    }
    Err(refused(
        "the container engine's name server does not ask the one that it was told to",
    ))
}

/// How many interfaces are connected to a bridge of this host; `None`: there is no such bridge.
fn ports(device: &str) -> Option<usize> {
    let listed = fs::read_dir(format!("/sys/class/net/{device}/brif")).ok()?;
    Some(listed.count())
}

type Subnet = (Ipv4Addr, Ipv4Addr);

/// A container has a loopback interface and another one, which leads to the addresses beside its own and nowhere else, without IPv6.
fn inside(devices: &str, routes: &str, six: &str) -> Result<Subnet, &'static str> {
    let names = devices.lines().filter_map(|line| line.split_once(':'));
    let others: Vec<_> = names
        .map(|(name, _)| name.trim())
        .filter(|name| *name != LOOPBACK)
        .collect();
    let [interface] = others[..] else {
        return Err("the container does not have one interface besides loopback");
    };
    let others = |line: &str| line.split_whitespace().next_back() != Some(LOOPBACK);
    // By its link-local addresses IPv6 would lead to this host.
    if six.lines().any(others) {
        return Err("the container has IPv6");
    }
    let mut lines = routes.lines().skip(1);
    let (Some(line), None) = (lines.next(), lines.next()) else {
        return Err("the container has other routes than to its own subnet");
    };
    let fields: Vec<_> = line.split_whitespace().collect();
    // The kernel prints the four bytes as one number of this machine.
    let address = |at: usize| {
        let bits = u32::from_str_radix(fields.get(at)?, 16).ok()?;
        Some(Ipv4Addr::from(bits.to_ne_bytes()))
    };
    match (address(1), address(2), address(7)) {
        (Some(to), Some(Ipv4Addr::UNSPECIFIED), Some(mask))
            if fields[0] == interface && mask.octets()[0] == 255 =>
        {
            Ok((to, mask))
        }
        _ => Err("the container has a route that leads further than to its own subnet"),
    }
}

/// This host has no address on the bridge, nor one elsewhere that is of its subnet: a host answers for any address that it has. What the kernel
/// gives every interface, a link-local address of IPv6, nobody can use who has no IPv6, and what would arrive there is dropped.
fn outside(all: &[(String, IpAddr)], device: &str, (to, mask): Subnet) -> Result<(), String> {
    let reachable = |(name, address): &&(String, IpAddr)| match address {
        IpAddr::V4(four) => name == device || (*four & mask) == to,
        IpAddr::V6(six) => name == device && !six.is_unicast_link_local(),
    };
    match all.iter().find(reachable) {
        None => Ok(()),
        Some((name, address)) => Err(format!("this host is there as {address} ({name})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bollard::models::{EndpointResource, EndpointSettings, HostConfig, NetworkSettings};
    use std::collections::HashMap;

    const DEVICES: &str = "Inter-|   Receive\n face |bytes\n    lo:  0 0\n  eth0: 200 2\n";
    const HEAD: &str = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n";

    /// A line of `/proc/net/route`.
    fn route(interface: &str, to: [u8; 4], gateway: [u8; 4], mask: [u8; 4]) -> String {
        let hex = |bytes| format!("{:08X}", u32::from_ne_bytes(bytes));
        let (to, gateway, mask) = (hex(to), hex(gateway), hex(mask));
        format!("{interface}\t{to}\t{gateway}\t0001\t0\t0\t0\t{mask}\t0\t0\t0\n")
    }

    #[test]
    fn a_container_leads_nowhere() {
        let own = route("eth0", [172, 18, 0, 0], [0; 4], [255, 255, 0, 0]);
        let seen = |devices: &str, routes: &str, six: &str| {
            inside(devices, &format!("{HEAD}{routes}"), six)
        };
        let subnet = (Ipv4Addr::new(172, 18, 0, 0), Ipv4Addr::new(255, 255, 0, 0));
        let loopback = "00000000000000000000000000000001 01 80 10 80       lo\n";
        assert_eq!(seen(DEVICES, &own, ""), Ok(subnet));
        assert_eq!(seen(DEVICES, &own, loopback), Ok(subnet));
        let local = "fe80000000000000004200fffe110002 02 40 20 80     eth0\n";
        assert!(seen(DEVICES, &own, &format!("{loopback}{local}")).is_err());
        assert!(seen("    lo: 0\n", &own, "").is_err());
        assert!(seen(&format!("{DEVICES}  eth1: 0\n"), &own, "").is_err());
        let default = route("eth0", [0; 4], [172, 18, 0, 1], [0; 4]);
        let wide = route("eth0", [0; 4], [0; 4], [0; 4]);
        let half = route("eth0", [128, 0, 0, 0], [0; 4], [128, 0, 0, 0]);
        let by = route("eth0", [10, 0, 0, 0], [172, 18, 0, 1], [255, 0, 0, 0]);
        let other = route("eth1", [172, 18, 0, 0], [0; 4], [255, 255, 0, 0]);
        for wrong in ["", &default, &wide, &half, &by, &other, "eth0 x\n"] {
            assert!(seen(DEVICES, wrong, "").is_err(), "{wrong}");
        }
        assert!(seen(DEVICES, &format!("{own}{default}"), "").is_err());
    }

    #[test]
    fn this_host_is_not_on_the_bridge() {
        let subnet = (Ipv4Addr::new(172, 18, 0, 0), Ipv4Addr::new(255, 255, 0, 0));
        let check = |name: &str, address: &str| {
            let all = [
                ("lo".to_owned(), IpAddr::from([127, 0, 0, 1])),
                (name.to_owned(), address.parse().unwrap()),
            ];
            outside(&all, "bj-1", subnet)
        };
        for (name, address, fine) in [
            ("eth0", "192.0.2.2", true),
            ("bj-1", "fe80::1", true),
            ("bj-1", "fd00::1", false),
            ("bj-1", "10.0.0.1", false),
            // Hosts answer for what they have anywhere.
            ("eth0", "172.18.9.9", false),
            ("eth0", "172.19.0.1", true),
        ] {
            assert_eq!(check(name, address).is_ok(), fine, "{name} {address}");
        }
    }

    #[test]
    fn what_the_engine_says_counts() {
        type Change = fn(&mut NetworkInspect, &mut ContainerInspectResponse);
        let made = || {
            let network = NetworkInspect {
                driver: Some("bridge".into()),
                internal: Some(true),
                containers: Some(HashMap::from([("c".into(), EndpointResource::default())])),
                ..NetworkInspect::default()
            };
            let networks = HashMap::from([("n".into(), EndpointSettings::default())]);
            let container = ContainerInspectResponse {
                id: Some("c".into()),
                host_config: Some(HostConfig {
                    dns: Some(vec!["127.0.0.1".into()]),
                    ..HostConfig::default()
                }),
                network_settings: Some(NetworkSettings {
                    networks: Some(networks),
                    ..NetworkSettings::default()
                }),
                ..ContainerInspectResponse::default()
            };
            (network, container)
        };
        let (network, container) = made();
        assert_eq!(engine_says(&network, &container, "n"), Ok(()));
        let changes: [Change; 7] = [
            |network, _| network.internal = None,
            |network, _| network.driver = Some("macvlan".into()),
            |network, _| network.enable_ipv6 = Some(true),
            |network, _| network.containers = None,
            |network, _| {
                let all = network.containers.as_mut().unwrap();
                all.insert("d".into(), EndpointResource::default());
            },
            |_, container| container.network_settings = None,
            |_, container| container.host_config = None,
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let (mut network, mut container) = made();
            change(&mut network, &mut container);
            assert!(engine_says(&network, &container, "n").is_err(), "{number}");
        }
    }
}
