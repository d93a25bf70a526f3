//! One container: made with every protection, looked at before code is released, and ended.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use std::os::fd::OwnedFd;

use belljar_jail::{Plan, container, host, open_doors_in, seccomp};
use belljar_spec::{Backend, Error, Mode, Report, shown};
use bollard::models::HostConfig;
use bollard::query_parameters::{
    AttachContainerOptionsBuilder, InspectContainerOptions, RemoveContainerOptionsBuilder,
    StartContainerOptions,
};

use super::bridge::Bridge;
use super::image::Image;
use super::inside::{InForce, Inside};
use super::link::Link;
use super::pinned::Pinned;
use super::{Docker, declared, failed, fence, held};
use crate::advice;

/// How much longer the engine may take to make what nobody waits for.
const LATE: Duration = Duration::from_mins(2);
/// Which of the doors is for datagrams about names.
const NAMES: usize = 1;
const STARTED: &str = "the container engine started a container without it";

/// Which container a sandbox shall be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    pub(super) image: Image,
    /// As it was asked for.
    pub(super) reference: String,
    /// What runs it; `None`: what the engine usually does.
    pub(super) runtime: Option<String>,
    /// The language's kernel.
    pub(super) kernel: Option<String>,
}

impl Container {
    /// By its digest.
    pub(crate) fn image(&self) -> &str {
        &self.image.id
    }

    #[must_use]
    pub fn with_kernel(&self, kernel: Option<String>) -> Self {
        Self {
            kernel,
            ..self.clone()
        }
    }
}

/// A container whose agent is ready. Dropping it ends everything in it.
pub struct Sandbox {
    pub inside: Arc<Inside>,
    pub report: Report,
    /// The sockets of its network, as a native sandbox has them.
    pub doors: Vec<OwnedFd>,
    bridge: Option<Bridge>,
}

impl Docker {
    pub async fn open(self: &Arc<Self>, which: &Container, plan: &Plan) -> Result<Sandbox, Error> {
        self.refuse_what_it_cannot(plan)?;
        let patience = self.settings.start_timeout;
        let late = || {
            Error::internal(
                "container",
                format!("it did not start within {} ms", patience.as_millis()),
            )
        };
        let (docker, which, plan) = (Arc::clone(self), which.clone(), plan.clone());
        // In a task of its own, which goes on when nobody waits any more: what the engine makes after that has to be removed too.
        let starting = tokio::spawn(async move {
            let whole = patience.saturating_add(LATE);
            tokio::time::timeout(whole, docker.start(&which, &plan)).await
        });
        let started = tokio::time::timeout(patience, starting).await;
        started
            .map_err(|_| late())?
            .map_err(|error| Error::internal("container", error.to_string()))?
            .map_err(|_| late())?
    }

    async fn start(self: &Arc<Self>, which: &Container, plan: &Plan) -> Result<Sandbox, Error> {
        let wrong = |error: bollard::errors::Error| failed("container", &error);
        let pinned = Pinned::of(plan)?;
        let (made, asked) = self.create(which, plan).await?;
        let id = made.id().to_owned();
        let news = self.events.follow(&id);
        let options = AttachContainerOptionsBuilder::default()
            .stream(true)
            .stdin(true)
            .stdout(true)
            .build();
        let attached = self
            .client
            .attach_container(&id, Some(options))
            .await
            .map_err(wrong)?;
        let filter = seccomp::filter_bytes(plan.network);
        let link = Link::new(attached, &filter, &fence::rules(plan));
        self.client
            .start_container(&id, None::<StartContainerOptions>)
            .await
            .map_err(wrong)?;
        let said = link.ready().await.map_err(|_| {
            Error::internal("container", "its agent ended before it was ready; is the image made for this machine's processor?")
        })?;
        let inspected = self
            .client
            .inspect_container(&id, None::<InspectContainerOptions>)
            .await
            .map_err(wrong)?;
        let pid = inspected.state.as_ref().and_then(|state| state.pid);
        let pid = pid.unwrap_or(0);
        let seen = (pid > 0).then(|| container::look(pid, &id)).flatten();
        pinned.check(seen.is_some().then_some(pid))?;
        let doors = if plan.network {
            doors(pid, &id, &plan.ports).await?
        } else {
            Vec::new()
        };
        if let Some(bridge) = &made.bridge {
            let names = doors
                .get(NAMES)
                .ok_or_else(|| without("a network", STARTED))?;
            bridge.check(self, pid, &inspected, names).await?;
        }
        let host = inspected.host_config.unwrap_or_default();
        let (mut report, meter) = match seen {
            Some(seen) => (seen.report, Some(seen.meter)),
            // Another machine runs it: what its first process saw before there was any code must do.
            None => (container::report(&said.status), None),
        };
        report.landlock = said.fence;
        self.complete(&mut report, &host, plan, which);
        report.network = network(&host, plan, made.bridge.as_ref());
        report.bridge = made.bridge.as_ref().map(|bridge| bridge.name.clone());
        check(&report, &host, plan)?;
        if let Some(what) = held::missing(&asked, &host) {
            return Err(without(&what, STARTED));
        }
        let found = inspected.mounts.unwrap_or_default();
        if let Some(place) = declared::left_open(&asked, &found)
            && !plan.writable
        {
            return Err(without(&format!("a read-only {}", shown(place)), STARTED));
        }
        let workdir = plan.workdir.to_string_lossy();
        let root = link.ask(super::files::op::ROOT, &[workdir.as_bytes(), b"\0/tmp\0"]);
        root.await.map_err(|errno| {
            let reason = std::io::Error::from_raw_os_error(errno);
            Error::internal("workspace of a container", reason)
        })?;
        let pair = |text: &String| {
            let (name, value) = text.split_once('=')?;
            Some((name.to_owned(), value.to_owned()))
        };
        let (id, bridge) = made.done();
        let inside = Arc::new(Inside {
            docker: Arc::clone(self),
            id,
            link,
            meter,
            news,
            stats: Mutex::default(),
            used: AtomicU64::new(0),
            env: which.image.env.iter().filter_map(pair).collect(),
            limits: tokio::sync::Mutex::new(InForce::new(plan.limits)),
            lone: plan.closed.is_some(),
        });
        Ok(Sandbox {
            inside,
            report,
            doors,
            bridge,
        })
    }

    /// What only the engine can say.
    fn complete(&self, report: &mut Report, host: &HostConfig, plan: &Plan, which: &Container) {
        let runtime = host.runtime.clone().unwrap_or_default();
        report.backend = Backend::Docker;
        report.engine = Some(format!("{}, {runtime}", self.name));
        report.mode = Mode::Root;
        report.filesystem = match plan.closed {
            Some(_) => "none".into(),
            None => "workspace".into(),
        };
        report.read_only_root = host.readonly_rootfs == Some(true);
        report.root = format!("image {} ({})", which.reference, which.image.id);
        report.weakened = plan.weakened.iter().map(|w| w.name().to_owned()).collect();
    }
}

/// A network is a loopback interface with our sockets on it. Besides there is none, or the bridge that was looked at.
fn network(host: &HostConfig, plan: &Plan, bridge: Option<&Bridge>) -> String {
    let besides = bridge.map_or("none", |bridge| &bridge.name);
    match host.network_mode.as_deref() {
        Some(mode) if plan.network && mode == besides => "proxy".into(),
        mode => mode.unwrap_or_default().to_owned(),
    }
}

/// Fails closed: what was asked of the engine has to be there.
fn check(report: &Report, host: &HostConfig, plan: &Plan) -> Result<(), Error> {
    if plan.closed.is_some() && report.landlock.is_none() {
        return Err(Error::NotSupported {
            what: "filesystem none".into(),
            reason: "it takes Landlock, which the container's kernel does not have; use another runtime, or the backend native".into(),
        });
    }
    let hides = |wanted: Vec<String>, found: Option<&Vec<String>>| {
        found.is_some_and(|found| wanted.iter().all(|path| found.contains(path)))
    };
    let held = [
        (report.no_new_privs, "no_new_privs"),
        (report.capabilities == "none", "no capabilities"),
        (report.seccomp.mode == "filter", "a system call filter"),
        (report.uid != 0, "an ordinary user"),
        (report.read_only_root != plan.writable, "a read-only root"),
        (
            hides(fence::hidden(), host.masked_paths.as_ref()),
            "masks over files of the kernel",
        ),
        (
            hides(fence::read_only(), host.readonly_paths.as_ref()),
            "a read-only /dev",
        ),
        (
            report.network == if plan.network { "proxy" } else { "none" },
            "no network of the engine's",
        ),
    ];
    match held.iter().find(|(held, _)| !held) {
        None => Ok(()),
        Some((_, what)) => Err(without(what, STARTED)),
    }
}

pub fn without(what: &str, reason: &str) -> Error {
    Error::UnsupportedHost {
        missing: what.into(),
        reason: reason.into(),
        fix: "see `belljar doctor`, or name another runtime".into(),
        weaken: None,
    }
}

/// The sockets by which code in a container reaches the world, made in its own network namespace.
async fn doors(pid: i64, id: &str, ports: &[u16]) -> Result<Vec<OwnedFd>, Error> {
    let refused = |reason: &str| Error::NotSupported {
        what: "a network".into(),
        reason: reason.into(),
    };
    if container::look(pid, id).is_none() {
        return Err(refused(
            "the container engine is on another machine, where nobody serves it; use an engine of this host, or the backend native",
        ));
    }
    if !host::is_root() {
        return Err(refused(
            "only root can enter a container to serve its network; run belljar as root, or use the backend native",
        ));
    }
    let number = i32::try_from(pid).map_err(|_| refused("the engine names no process"))?;
    let ports = ports.to_vec();
    let made = tokio::task::spawn_blocking(move || open_doors_in(number, &ports))
        .await
        .map_err(|error| Error::internal("network", error))?
        .map_err(|error| advice::explain(&error))?;
    // Still the same process: then it was its namespace.
    let seen = container::look(pid, id);
    let apart = seen.is_some_and(|seen| seen.report.namespaces.iter().any(|name| name == "net"));
    if !apart {
        return Err(Error::internal("network", "the container has ended"));
    }
    Ok(made)
}

/// Ends a container and removes it, with the volumes that the engine made for it alone. One that is gone already is fine.
pub async fn remove(client: &bollard::Docker, id: &str) {
    let options = RemoveContainerOptionsBuilder::default().force(true).v(true);
    let options = options.build();
    let _ = client.remove_container(id, Some(options)).await;
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.inside.link.hang_up();
        let id = self.inside.id.clone();
        self.inside.docker.forget(Some(id), self.bridge.take());
    }
}
