//! One container: made with every protection, looked at before code is released, and ended.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use belljar_jail::{Counters, Exit, INNER_ID, Meter, Outcome, Plan, Stage, container, seccomp};
use belljar_spec::{Backend, Error, Limits, Mode, Report};
use bollard::models::{
    ContainerCreateBody, ContainerUpdateBody, HostConfig, HostConfigCgroupnsModeEnum,
    HostConfigLogConfig, Mount, MountType, ResourcesUlimits,
};
use bollard::query_parameters::{
    AttachContainerOptionsBuilder, CreateContainerOptions, InspectContainerOptions,
    KillContainerOptions, RemoveContainerOptionsBuilder, StartContainerOptions,
    StatsOptionsBuilder,
};
use futures_util::StreamExt;
use tokio::sync::watch;

use super::command::micros;
use super::events::News;
use super::image::Image;
use super::link::Link;
use super::{Docker, failed, volume};

/// How long the engine may take to tell that a container has died, and what of.
const NEWS_TIME: Duration = Duration::from_millis(1500);
/// How long the kernel's word about memory may take to get here through the engine.
const OOM_NEWS_TIME: Duration = Duration::from_millis(300);

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
}

/// What commands of a container share.
pub struct Inside {
    docker: Arc<Docker>,
    pub id: String,
    pub link: Link,
    /// Where this host runs the container; else the engine is asked.
    meter: Option<Meter>,
    news: watch::Receiver<News>,
    /// What the engine last said, where there is no meter.
    stats: Mutex<Counters>,
    used: AtomicU64,
    env: Vec<(String, String)>,
    limits: tokio::sync::Mutex<Limits>,
}

impl Docker {
    pub async fn open(self: &Arc<Self>, which: &Container, plan: &Plan) -> Result<Sandbox, Error> {
        refuse_what_it_cannot(plan)?;
        let patience = self.settings.start_timeout;
        tokio::time::timeout(patience, self.start(which, plan))
            .await
            .map_err(|_| {
                Error::internal(
                    "container",
                    format!("it did not start within {} ms", patience.as_millis()),
                )
            })?
    }

    async fn start(self: &Arc<Self>, which: &Container, plan: &Plan) -> Result<Sandbox, Error> {
        let volume = self.volumes.with(
            &self.client,
            which.kernel.as_deref(),
            &which.image.id,
            self.owner.labels(),
        );
        let body = self.body(which, plan, volume.await?);
        let wrong = |error: bollard::errors::Error| failed("container", &error);
        let made = self
            .client
            .create_container(None::<CreateContainerOptions>, body)
            .await
            .map_err(wrong)?;
        let unfinished = Unfinished(Arc::clone(self), Some(made.id.clone()));
        let news = self.events.follow(&made.id);
        let options = AttachContainerOptionsBuilder::default()
            .stream(true)
            .stdin(true)
            .stdout(true)
            .build();
        let attached = self
            .client
            .attach_container(&made.id, Some(options))
            .await
            .map_err(wrong)?;
        let link = Link::new(attached, &seccomp::filter_bytes(plan.network));
        self.client
            .start_container(&made.id, None::<StartContainerOptions>)
            .await
            .map_err(wrong)?;
        let status = link.ready().await.map_err(|_| {
            Error::internal("container", "its agent ended before it was ready; is the image made for this machine's processor?")
        })?;
        let inspected = self
            .client
            .inspect_container(&made.id, None::<InspectContainerOptions>)
            .await
            .map_err(wrong)?;
        let pid = inspected.state.and_then(|state| state.pid).unwrap_or(0);
        let seen = (pid > 0).then(|| container::look(pid, &made.id)).flatten();
        let host = inspected.host_config.unwrap_or_default();
        let (mut report, meter) = match seen {
            Some(seen) => (seen.report, Some(seen.meter)),
            // Another machine runs it: what its first process saw before there was any code must do.
            None => (container::report(&status), None),
        };
        self.complete(&mut report, &host, plan);
        check(&report, plan)?;
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
        let inside = Arc::new(Inside {
            docker: Arc::clone(self),
            id: made.id,
            link,
            meter,
            news,
            stats: Mutex::default(),
            used: AtomicU64::new(0),
            env: which.image.env.iter().filter_map(pair).collect(),
            limits: tokio::sync::Mutex::new(plan.limits),
        });
        unfinished.done();
        Ok(Sandbox { inside, report })
    }

    /// Everything the container is held to. The agent takes the place of the engine's init, and reaps as that would.
    fn body(&self, which: &Container, plan: &Plan, volume: String) -> ContainerCreateBody {
        let limits = &plan.limits;
        let user = format!("{INNER_ID}:{INNER_ID}");
        // Together they are what the caller allows; one file system for both places is nothing the engine can make.
        let tmp = (limits.disk_bytes / 4)
            .max(1 << 20)
            .min(limits.disk_bytes / 2);
        let space = |bytes: u64| {
            format!("rw,exec,nosuid,nodev,size={bytes},mode=0755,uid={INNER_ID},gid={INNER_ID}")
        };
        let workdir = plan.workdir.to_string_lossy().into_owned();
        let mount = Mount {
            target: Some(volume::PLACE.to_owned()),
            source: Some(volume),
            typ: Some(MountType::VOLUME),
            read_only: Some(true),
            ..Mount::default()
        };
        let whole = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let ulimit = |name: &str, most: i64| ResourcesUlimits {
            name: Some(name.to_owned()),
            soft: Some(most),
            hard: Some(most),
        };
        let host = HostConfig {
            tmpfs: Some(HashMap::from([
                (workdir.clone(), space(limits.disk_bytes - tmp)),
                ("/tmp".to_owned(), space(tmp)),
            ])),
            mounts: Some(vec![mount]),
            memory: Some(whole(limits.memory_bytes)),
            memory_swap: Some(whole(limits.memory_bytes)),
            nano_cpus: Some(nanos(limits)),
            // The agent is one.
            pids_limit: Some(whole(limits.processes) + 1),
            ulimits: Some(vec![
                ulimit("nofile", whole(limits.open_files)),
                ulimit("core", 0),
                ulimit("memlock", 8 << 20),
            ]),
            cap_drop: Some(vec!["ALL".into()]),
            security_opt: Some(vec![
                "no-new-privileges".into(),
                format!("seccomp={}", super::seccomp::profile(plan.network)),
            ]),
            readonly_rootfs: Some(!plan.writable),
            network_mode: Some("none".into()),
            ipc_mode: Some("private".into()),
            cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
            privileged: Some(false),
            init: Some(false),
            auto_remove: Some(true),
            shm_size: Some(whole(tmp)),
            runtime: which
                .runtime
                .clone()
                .or_else(|| self.settings.runtime.clone()),
            log_config: Some(HostConfigLogConfig {
                typ: Some("none".into()),
                config: None,
            }),
            ..HostConfig::default()
        };
        ContainerCreateBody {
            image: Some(which.image.id.clone()),
            entrypoint: Some(vec![format!("{}/agent", volume::PLACE)]),
            cmd: Some(Vec::new()),
            user: Some(user),
            working_dir: Some("/".into()),
            hostname: Some("sandbox".into()),
            network_disabled: Some(true),
            attach_stdin: Some(true),
            attach_stdout: Some(true),
            attach_stderr: Some(false),
            open_stdin: Some(true),
            // When our connection ends, so does the agent's input, and with it the container.
            stdin_once: Some(true),
            tty: Some(false),
            healthcheck: Some(bollard::models::HealthConfig {
                test: Some(vec!["NONE".into()]),
                ..Default::default()
            }),
            labels: Some(self.owner.labels()),
            host_config: Some(host),
            ..ContainerCreateBody::default()
        }
    }

    /// What only the engine can say.
    fn complete(&self, report: &mut Report, host: &HostConfig, plan: &Plan) {
        let runtime = host.runtime.clone().unwrap_or_default();
        report.backend = Backend::Docker;
        report.engine = Some(format!("{}, {runtime}", self.name));
        report.mode = Mode::Root;
        report.filesystem = "workspace".into();
        report.read_only_root = host.readonly_rootfs == Some(true);
        report.network = if host.network_mode.as_deref() == Some("none") {
            "none".into()
        } else {
            host.network_mode.clone().unwrap_or_default()
        };
        report.weakened = plan.weakened.iter().map(|w| w.name().to_owned()).collect();
    }
}

fn nanos(limits: &Limits) -> i64 {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "far below 2^63 for any number of processors"
    )]
    let nanos = (limits.cpus * 1e9) as i64;
    nanos
}

fn refuse_what_it_cannot(plan: &Plan) -> Result<(), Error> {
    let volumes = plan
        .entries
        .iter()
        .any(|entry| matches!(entry, belljar_jail::Entry::Volume { .. }));
    let refused = |what: &str, reason: &str| Error::NotSupported {
        what: what.into(),
        reason: reason.into(),
    };
    if volumes {
        return Err(refused(
            "a volume",
            "the container engine may be on another machine; copy files in instead, or use the backend native",
        ));
    }
    if plan.network {
        return Err(refused(
            "a network",
            "containers have none; use the backend native",
        ));
    }
    if plan.closed.is_some() {
        return Err(refused(
            "filesystem none",
            "it takes a fence around files that a container does not have; use the backend native",
        ));
    }
    match plan.weakened.iter().next() {
        Some(weakening) => Err(refused(
            &format!("leaving out {}", weakening.name()),
            "containers have every protection; leave --weaken out",
        )),
        None => Ok(()),
    }
}

/// Fails closed: what was asked of the engine has to be there.
fn check(report: &Report, plan: &Plan) -> Result<(), Error> {
    let held = [
        (report.no_new_privs, "no_new_privs"),
        (report.capabilities == "none", "no capabilities"),
        (report.seccomp.mode == "filter", "a system call filter"),
        (report.uid != 0, "an ordinary user"),
        (report.read_only_root != plan.writable, "a read-only root"),
        (report.network == "none", "no network"),
    ];
    match held.iter().find(|(held, _)| !held) {
        None => Ok(()),
        Some((_, what)) => Err(Error::UnsupportedHost {
            missing: (*what).into(),
            reason: "the container engine started a container without it".into(),
            fix: "see `belljar doctor`, or name another runtime".into(),
        }),
    }
}

/// Removed again unless it comes up.
struct Unfinished(Arc<Docker>, Option<String>);

impl Unfinished {
    fn done(mut self) {
        self.1 = None;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(id) = self.1.take() {
            let docker = Arc::clone(&self.0);
            docker.events.forget(&id);
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                runtime.spawn(async move { remove(&docker.client, &id).await });
            }
        }
    }
}

/// Ends a container and removes it. One that is gone already is fine.
pub async fn remove(client: &bollard::Docker, id: &str) {
    let options = RemoveContainerOptionsBuilder::default().force(true).build();
    let _ = client.remove_container(id, Some(options)).await;
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let inside = Arc::clone(&self.inside);
        inside.link.hang_up();
        inside.docker.events.forget(&inside.id);
        // Where nobody is left to do it, the agent sees the end of its input, and the engine removes the container.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { remove(&inside.docker.client, &inside.id).await });
        }
    }
}

impl Inside {
    /// What a command finds: its own, and of the image's what it does not have. The image knows best where its programs are.
    pub fn environment(&self, own: &[(String, String)]) -> Vec<(String, String)> {
        let usual = crate::command::PATH;
        let mut env: Vec<_> = own.to_vec();
        for (name, value) in &self.env {
            match env.iter_mut().find(|(known, _)| known == name) {
                None => env.push((name.clone(), value.clone())),
                Some((_, known)) if name == "PATH" && known == usual => value.clone_into(known),
                Some(_) => {}
            }
        }
        env
    }

    /// Gives a stage its own limits, where they differ from what is in force.
    pub async fn adjust(&self, wanted: &Limits, stage: Stage) {
        let mut limits = self.limits.lock().await;
        let fits = limits.memory_bytes == wanted.memory_bytes
            && nanos(&limits) == nanos(wanted)
            && limits.processes == wanted.processes;
        // A command beside others has no limits of its own.
        if !fits && (stage == Stage::Compile || limits.memory_bytes != wanted.memory_bytes) {
            self.update(wanted).await;
            *limits = *wanted;
        }
    }

    pub async fn limit(&self, wanted: Limits) {
        let mut limits = self.limits.lock().await;
        self.update(&wanted).await;
        *limits = wanted;
    }

    /// A container that cannot have the new limits is ended.
    async fn update(&self, limits: &Limits) {
        let whole = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let body = ContainerUpdateBody {
            memory: Some(whole(limits.memory_bytes)),
            memory_swap: Some(whole(limits.memory_bytes)),
            nano_cpus: Some(nanos(limits)),
            pids_limit: Some(whole(limits.processes) + 1),
            ..ContainerUpdateBody::default()
        };
        let client = &self.docker.client;
        if client.update_container(&self.id, body).await.is_err() {
            self.end().await;
        }
    }

    /// Kills the container.
    pub async fn end(&self) {
        let client = &self.docker.client;
        let _ = client
            .kill_container(&self.id, None::<KillContainerOptions>)
            .await;
        self.link.hang_up();
    }

    /// What it used so far, as counted by the kernel; of another machine's, as last heard.
    pub fn counters(&self) -> Counters {
        match &self.meter {
            Some(meter) => meter.read(),
            None => *self.stats.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// The same, asking where it has to be asked for.
    pub async fn fresh_counters(&self) -> Counters {
        if self.meter.is_none() {
            self.refresh().await;
        }
        self.counters()
    }

    /// Asks the engine what the container uses.
    async fn refresh(&self) {
        let options = StatsOptionsBuilder::default()
            .stream(false)
            .one_shot(true)
            .build();
        let mut stats = std::pin::pin!(self.docker.client.stats(&self.id, Some(options)));
        let Some(Ok(found)) = stats.next().await else {
            return;
        };
        let cpu = found.cpu_stats.and_then(|cpu| cpu.cpu_usage);
        let memory = found.memory_stats.unwrap_or_default();
        let pids = found.pids_stats.and_then(|pids| pids.current).unwrap_or(0);
        let mut known = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        let usage = memory.usage.unwrap_or(0);
        known.cpu_micros = cpu.and_then(|cpu| cpu.total_usage).unwrap_or(0) / 1000;
        known.memory = usage;
        known.memory_peak = memory
            .max_usage
            .unwrap_or(0)
            .max(usage)
            .max(known.memory_peak);
        // The agent is one that the caller's limit does not count.
        known.processes = pids.saturating_sub(1);
        known.processes_peak = known.processes_peak.max(known.processes);
        known.oom_kills = self.news.borrow().oom_kills;
    }

    /// Looks again in a while, without waiting for it.
    pub fn refresh_later(self: &Arc<Self>) {
        let inside = Arc::clone(self);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if inside.meter.is_none() {
                    inside.refresh().await;
                }
                let used = inside.link.ask(super::files::op::USED, &[]).await;
                if let Ok(bytes) = used
                    && let Some((used, _)) = super::wire::long(&bytes)
                {
                    inside.note_used(used);
                }
            });
        }
    }

    pub fn note_used(&self, bytes: u64) {
        self.used.store(bytes, Ordering::Relaxed);
    }

    /// Bytes in the workspace and `/tmp`, as last heard.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// How many processes the kernel has killed for want of memory since then. Where the engine tells that, it is waited for a
    /// moment if something was killed.
    pub async fn oom_kills_since(&self, before: u64, killed: bool) -> u64 {
        if let Some(meter) = &self.meter {
            return meter.read_brief().oom_kills.saturating_sub(before);
        }
        let mut news = self.news.clone();
        if killed {
            let more = news.wait_for(|news| news.oom_kills > before);
            let _ = tokio::time::timeout(OOM_NEWS_TIME, more).await;
        }
        self.refresh().await;
        self.news.borrow().oom_kills.saturating_sub(before)
    }

    /// How a command ended whose container has gone.
    pub async fn lost(&self, started: Instant) -> Outcome {
        let mut news = self.news.clone();
        let dead = news.wait_for(|news| news.dead);
        let _ = tokio::time::timeout(NEWS_TIME, dead).await;
        let told = self.news.borrow().oom_kills;
        Outcome {
            exit: Exit::Killed,
            timed_out: false,
            oom_kills: told,
            wall_micros: micros(started.elapsed()),
            cpu_micros: 0,
            memory_peak: None,
            processes_peak: None,
        }
    }
}
