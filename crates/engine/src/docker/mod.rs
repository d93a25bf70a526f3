//! Sandboxes made by a container engine, for those who want its runtimes: runc, gVisor, Kata.
//!
//! Theory of operation. A sandbox is one container whose first process is our agent, a static program that comes into the
//! container in a volume together with the language's kernel. The engine attaches to its standard streams once; all
//! commands, their streams and all work on files go as frames over that one connection, so a run costs a message and not a
//! process of the engine's. The container has no network but a loopback interface (and where the settings say so, a bridge that leads nowhere), no capabilities, a read-only root, and the same system call filter
//! and rules around files as a native sandbox. When the connection ends, so does everything in the container, and the engine removes it.

mod behind;
mod body;
mod bridge;
mod command;
mod container;
mod create;
mod declared;
mod doctor;
mod events;
mod fence;
mod files;
mod held;
mod image;
mod inside;
mod link;
mod names;
mod owner;
mod pinned;
mod runc;
mod seccomp;
mod sweep;
mod toolchain;
mod volume;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use belljar_spec::{Error, shown};
use tokio_util::task::TaskTracker;

use crate::cause::innermost;

pub use bridge::Network;
pub(crate) use command::{Order, start};
pub use container::Container;
pub(crate) use container::Sandbox;
pub use doctor::examine;
pub(crate) use files::{RemoteFiles, RemoteUpload};
pub use image::Pull;
pub(crate) use link::{Far, Link};
pub(crate) use sweep::for_ever as sweep;
pub(crate) use toolchain::Images;
pub use toolchain::Wish;

/// How the docker backend is used. What is `None` is left to the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where the engine listens; `DOCKER_HOST`, or its usual socket.
    pub host: Option<String>,
    /// For requests that name none.
    pub image: Option<String>,
    /// What runs containers, like `runsc`.
    pub runtime: Option<String>,
    /// Further ones that a request may ask for.
    pub runtimes: Vec<String>,
    pub pull: Pull,
    pub network: Network,
    /// From the request for a container to its agent's first word.
    pub start_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            host: None,
            image: None,
            runtime: None,
            runtimes: Vec::new(),
            pull: Pull::Missing,
            network: Network::Loopback,
            start_timeout: Duration::from_mins(1),
        }
    }
}

const USUAL_SOCKET: &str = "unix:///var/run/docker.sock";
/// A request to the engine that takes longer has failed.
const PATIENCE_SECONDS: u64 = 120;

/// An engine that answers at all may take so long, however little time a container is given.
const SOON: Duration = Duration::from_secs(1);

/// How long a process that begins or ends waits for containers to be removed.
const SETTLE: Duration = Duration::from_secs(10);

/// A container engine that answers.
pub struct Docker {
    client: bollard::Docker,
    settings: Settings,
    /// Like `docker 20.10.24`.
    name: String,
    owner: owner::Owner,
    volumes: volume::Volumes,
    events: Arc<events::Events>,
    /// Containers that are being removed while nobody waits for it.
    removals: TaskTracker,
}

impl Settings {
    fn address(&self) -> String {
        self.host
            .clone()
            .or_else(|| std::env::var("DOCKER_HOST").ok())
            .filter(|host| !host.is_empty())
            .unwrap_or_else(|| USUAL_SOCKET.to_owned())
    }

    /// Whether an engine can be spoken to at the address that is set, if one is.
    pub fn check(&self) -> Result<(), Error> {
        match &self.host {
            Some(_) => self.client().map(drop),
            None => Ok(()),
        }
    }

    /// Connects, without sending anything yet.
    fn client(&self) -> Result<bollard::Docker, Error> {
        let address = self.address();
        let version = bollard::API_DEFAULT_VERSION;
        let client = match address.split_once("://") {
            Some(("unix", _)) => {
                bollard::Docker::connect_with_unix(&address, PATIENCE_SECONDS, version)
            }
            Some(("tcp" | "http", _)) => {
                bollard::Docker::connect_with_http(&address, PATIENCE_SECONDS, version)
            }
            _ => {
                return Err(Error::invalid_request(
                    "DOCKER_HOST",
                    &address,
                    "give unix:///path or tcp://host:port",
                ));
            }
        };
        client.map_err(|error| unreachable(&address, &error))
    }
}

fn unreachable(address: &str, error: &dyn std::fmt::Display) -> Error {
    Error::UnsupportedHost {
        missing: "the docker backend".into(),
        reason: format!(
            "no container engine answers at {} ({error})",
            shown(address)
        ),
        fix: "start it (`systemctl start docker`, or `dockerd`), name its socket in DOCKER_HOST, or use the backend native"
            .into(),
        weaken: None,
    }
}

impl Docker {
    /// Connects, and removes what a process of ours that was killed has left there.
    pub async fn connect(settings: Settings) -> Result<Arc<Self>, Error> {
        let address = settings.address();
        let client = settings.client()?;
        let answered = async {
            let client = client.negotiate_version().await?;
            let version = client.version().await?;
            Ok::<_, bollard::errors::Error>((client, version))
        };
        let patience = settings.start_timeout.max(SOON);
        let (client, version) = tokio::time::timeout(patience, answered)
            .await
            .map_err(|_| {
                let silence = format!("nothing within {} ms", patience.as_millis());
                unreachable(&address, &silence)
            })?
            .map_err(|error| unreachable(&address, &innermost(&error)))?;
        let name = format!("docker {}", version.version.unwrap_or_default());
        let owner = owner::Owner::this();
        let events = events::Events::listen(&client, &owner);
        let docker = Arc::new(Self {
            client,
            settings,
            name,
            owner,
            volumes: volume::Volumes::default(),
            events,
            removals: TaskTracker::new(),
        });
        let sweep = sweep::once(&docker.client, &docker.owner);
        // Somebody waits for a container meanwhile; the next one to look finds what is left.
        let _ = tokio::time::timeout(SETTLE, sweep).await;
        Ok(docker)
    }

    /// Removes a container whose owner does not wait, and then its network.
    fn forget(self: &Arc<Self>, id: Option<String>, bridge: Option<bridge::Bridge>) {
        if let Some(id) = &id {
            self.events.forget(id);
        }
        // Where nobody is left to do it, the agent sees the end of its input, and the engine removes the container.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let docker = Arc::clone(self);
            let removal = async move {
                if let Some(id) = id {
                    container::remove(&docker.client, &id).await;
                }
                // Its seal goes last.
                if let Some(bridge) = bridge {
                    bridge::remove(&docker.client, &bridge.name).await;
                }
            };
            self.removals.spawn_on(removal, &runtime);
        }
    }

    /// Returns when the containers that were given up have gone, and the volumes that were for this process only, unless the engine
    /// stands still.
    pub async fn settled(&self) {
        self.removals.close();
        let gone = async {
            self.removals.wait().await;
            if self.volumes.has_own() {
                sweep::own_volumes(&self.client, &self.owner).await;
            }
        };
        let _ = tokio::time::timeout(SETTLE, gone).await;
    }
}

/// The engine refused or failed.
fn failed(step: &str, error: &bollard::errors::Error) -> Error {
    let reason = match error {
        bollard::errors::Error::DockerResponseServerError {
            status_code,
            message,
        } => format!("the container engine says: {message} ({status_code})"),
        other => other.to_string(),
    };
    Error::internal(step, reason)
}
