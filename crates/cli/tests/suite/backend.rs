//! The tests of the daemon hold for every backend: `BELLJAR_TEST_BACKEND=docker` runs them on the other one.
//!
//! `scripts/test-docker` starts an engine for that and says where it is.

use std::env;
use std::process::Command;

use super::harness::belljar;

/// Whether this run of the tests is about containers.
pub fn is_docker() -> bool {
    env::var("BELLJAR_TEST_BACKEND").is_ok_and(|name| name == "docker")
}

/// The image that containers are made from.
pub fn image() -> String {
    env::var("BELLJAR_TEST_IMAGE").unwrap_or_else(|_| {
        panic!(
            "run this by scripts/test-docker, which starts a container engine and makes an image"
        )
    })
}

/// What containers have for a network: `BELLJAR_TEST_NETWORK=bridge` is the other kind.
fn network() -> String {
    env::var("BELLJAR_TEST_NETWORK").unwrap_or_else(|_| "loopback".into())
}

/// `belljar run` on this backend.
pub fn run() -> Command {
    let mut command = belljar();
    command.arg("run");
    if is_docker() {
        let image = image();
        command.args(["--backend", "docker", "--pull", "never", "--image", &image]);
        command.args(["--container-network", &network()]);
    }
    command
}

/// A test's settings, with those of the backend.
pub fn settings(own: &str) -> String {
    // The tests of this backend alone say all of it themselves.
    if !is_docker() || own.contains("[docker]") {
        return own.to_owned();
    }
    let (image, network) = (image(), network());
    format!(
        "backend = \"docker\"\n{own}\n[docker]\nimage = \"{image}\"\npull = \"never\"\nnetwork = \"{network}\"\n"
    )
}
