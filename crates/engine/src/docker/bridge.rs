//! A network of the engine's for one container, where the settings ask for bridges.
//!
//! It is internal, and this host has no address on it and hears nothing from it. How code gets out stays the same: the doors on the
//! container's loopback interface. `behind` looks whether that is so before there is any code.

use std::collections::HashMap;
use std::str::FromStr;
use std::time::Duration;

use belljar_jail::bridge::Seal;
use belljar_jail::{Plan, host};
use belljar_spec::Error;
use bollard::models::NetworkCreateRequest;
use serde::Deserialize;

use super::{Docker, behind, failed};

/// What a container has for a network, where one is asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// A loopback interface.
    #[default]
    Loopback,
    /// Besides, a bridge of its own.
    Bridge,
}

impl FromStr for Network {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "loopback" => Ok(Self::Loopback),
            "bridge" => Ok(Self::Bridge),
            _ => Err(Error::invalid_request(
                "container network",
                text,
                "give loopback or bridge",
            )),
        }
    }
}

/// The network of one container.
pub struct Bridge {
    /// As the engine knows it.
    pub name: String,
    /// As the kernel does.
    pub device: String,
    pub(super) seal: Seal,
}

/// How often the engine is asked to remove a network whose container it is still busy with, and how long it is left alone in between.
const ATTEMPTS: usize = 50;
const PAUSE: Duration = Duration::from_millis(100);
const ENODEV: i32 = 19;
/// What others may have freed by then.
const RETRY_SECONDS: u32 = 10;

impl Docker {
    /// The network that a sandbox shall have from the engine, if any.
    pub(super) async fn bridge(&self, plan: &Plan) -> Result<Option<Bridge>, Error> {
        if !plan.network || self.settings.network == Network::Loopback {
            return Ok(None);
        }
        let refused = |reason: &str| Error::NotSupported {
            what: "a network on a bridge".into(),
            reason: reason.into(),
        };
        if !self.settings.address().starts_with("unix:") {
            return Err(refused(
                "the container engine is on another machine, where nobody looks at it; use an engine of this host, or the backend native",
            ));
        }
        if !host::is_root() {
            return Err(refused(
                "only root can seal it off from this host; run belljar as root, or use the backend native",
            ));
        }
        let number = crate::run::random_bits()?;
        let name = format!("belljar-net-{number:032x}");
        let device = device(number);
        let made = self
            .client
            .create_network(request(&name, &device, self.owner.labels()));
        made.await.map_err(|error| unmade(&error))?;
        match sealed(&device) {
            Ok(seal) => Ok(Some(Bridge { name, device, seal })),
            Err(error) => {
                remove(&self.client, &name).await;
                Err(error)
            }
        }
    }
}

/// A name of an interface has at most 15 bytes.
fn device(number: u128) -> String {
    format!("bj-{:012x}", number & 0xffff_ffff_ffff)
}

fn sealed(device: &str) -> Result<Seal, Error> {
    Seal::on(device).map_err(|error| match error.errno {
        Some(ENODEV) => {
            behind::refused("the container engine's bridges are not in this network namespace")
        }
        _ => behind::refused(&error.to_string()),
    })
}

/// Containers of one bridge can reach each other, for whoever connects another one to it; by itself it has but one. This host has no address
/// on it (`inhibit_ipv4`, since 20.10), and carries nothing from it elsewhere.
fn request(name: &str, device: &str, labels: HashMap<String, String>) -> NetworkCreateRequest {
    let options = [
        ("name", device),
        ("inhibit_ipv4", "true"),
        ("enable_ip_masquerade", "false"),
    ];
    let option = |(name, value): (&str, &str)| {
        let name = format!("com.docker.network.bridge.{name}");
        (name, value.to_owned())
    };
    NetworkCreateRequest {
        name: name.to_owned(),
        driver: Some("bridge".into()),
        internal: Some(true),
        enable_ipv6: Some(false),
        options: Some(options.into_iter().map(option).collect()),
        labels: Some(labels),
        ..NetworkCreateRequest::default()
    }
}

/// Engines have some thirty networks by default. How they say that there are no more: first those before 27.0, then those since.
fn unmade(error: &bollard::errors::Error) -> Error {
    let text = error.to_string();
    let full = [
        "could not find an available, non-overlapping",
        "predefined address pools have been fully subnetted",
    ];
    if full.iter().any(|words| text.contains(words)) {
        return Error::Overloaded {
            reason: "the container engine has no addresses left for another bridge; delete sandboxes, or give it more and smaller \
                     networks (in its daemon.json: \"default-address-pools\": [{\"base\": \"10.210.0.0/16\", \"size\": 29}])"
                .into(),
            retry_after_s: RETRY_SECONDS,
        };
    }
    failed("bridge for a container", error)
}

/// Removes a network whose container has gone, or is about to. One that is gone already is fine.
pub async fn remove(client: &bollard::Docker, name: &str) {
    for _ in 0..ATTEMPTS {
        match client.remove_network(name).await {
            Err(bollard::errors::Error::DockerResponseServerError { status_code, .. })
                if status_code != 404 =>
            {
                tokio::time::sleep(PAUSE).await;
            }
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_without_addresses_says_what_to_do() {
        let error = |message: &str| bollard::errors::Error::DockerResponseServerError {
            status_code: 500,
            message: message.into(),
        };
        for message in [
            "could not find an available, non-overlapping IPv4 address pool among the defaults to assign to the network",
            "all predefined address pools have been fully subnetted",
        ] {
            let told = unmade(&error(message));
            assert!(matches!(told, Error::Overloaded { .. }), "{told}");
            assert!(told.to_string().contains("default-address-pools"), "{told}");
        }
        let told = unmade(&error("no such driver")).to_string();
        assert!(told.contains("no such driver"), "{told}");
    }

    #[test]
    fn names_fit() {
        let device = device(u128::MAX);
        assert_eq!(device.len(), 15);
        let asked = request("n", &device, HashMap::new());
        assert_eq!(
            (asked.internal, asked.enable_ipv6),
            (Some(true), Some(false))
        );
        let options = asked.options.unwrap();
        assert_eq!(options["com.docker.network.bridge.inhibit_ipv4"], "true");
    }

    #[test]
    fn the_word_is_one_of_two() {
        assert_eq!("bridge".parse::<Network>().unwrap(), Network::Bridge);
        let error = "host".parse::<Network>().unwrap_err().to_string();
        assert!(error.contains("loopback or bridge"), "{error}");
    }
}
