//! What a container is held to, as the engine is told it.

use std::collections::HashMap;

use belljar_jail::{Entry, INNER_ID, Plan};
use belljar_spec::{Error, Limits};
use bollard::models::{
    ContainerCreateBody, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount,
    MountBindOptions, MountBindOptionsPropagationEnum, MountType, ResourcesUlimits,
};

use super::bridge::Bridge;
use super::container::Container;
use super::{Docker, declared, fence, volume};

/// The engine's memory for sharing between processes.
const SHARED: &str = "/dev/shm";

impl Docker {
    /// Everything the container is held to. The agent takes the place of the engine's init, and reaps as that would.
    pub(super) fn body(
        &self,
        which: &Container,
        plan: &Plan,
        mounts: Vec<Mount>,
        bridge: Option<&Bridge>,
    ) -> ContainerCreateBody {
        let limits = &plan.limits;
        let user = format!("{INNER_ID}:{INNER_ID}");
        // Together they are what the caller allows; one file system for both places is nothing the engine can make.
        let tmp = (limits.disk_bytes / 4)
            .max(1 << 20)
            .min(limits.disk_bytes / 2);
        let space = |bytes: u64| {
            // A file costs memory of the host's, however empty: as many as natively.
            let files = (bytes / 4096).clamp(4096, 1 << 20);
            format!(
                "rw,exec,nosuid,nodev,size={bytes},nr_inodes={files},mode=0755,uid={INNER_ID},gid={INNER_ID}"
            )
        };
        let workdir = plan.workdir.to_string_lossy().into_owned();
        let whole = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let ulimit = |name: &str, most: i64| ResourcesUlimits {
            name: Some(name.to_owned()),
            soft: Some(most),
            hard: Some(most),
        };
        let mut tmpfs = HashMap::from([
            (workdir, space(limits.disk_bytes - tmp)),
            ("/tmp".to_owned(), space(tmp)),
        ]);
        // Else an image that declares it as a volume would have it on the engine's disk.
        if which.image.volumes.iter().any(|place| place == SHARED) {
            tmpfs.insert(SHARED.to_owned(), space(tmp));
        }
        let host = HostConfig {
            tmpfs: Some(tmpfs),
            mounts: Some(mounts),
            memory: Some(whole(limits.memory_bytes)),
            memory_swap: Some(whole(limits.memory_bytes)),
            nano_cpus: Some(nanos(limits)),
            cpu_shares: limits.cpu_shares.map(i64::from),
            // The agent is one.
            pids_limit: Some(whole(limits.processes) + 1),
            ulimits: Some(vec![
                ulimit("nofile", whole(limits.open_files)),
                // Of one file. On a root that can be written nothing else bounds what is outside of the workspace.
                ulimit("fsize", whole(limits.disk_bytes)),
                ulimit("core", 0),
                ulimit("memlock", 0),
                ulimit("msgqueue", 64 << 10),
                ulimit("sigpending", 4096),
            ]),
            cap_drop: Some(vec!["ALL".into()]),
            security_opt: Some(vec![
                "no-new-privileges".into(),
                format!("seccomp={}", super::seccomp::profile(plan.network)),
            ]),
            readonly_rootfs: Some(!plan.writable),
            masked_paths: Some(fence::hidden()),
            readonly_paths: Some(fence::read_only()),
            network_mode: Some(bridge.map_or("none", |bridge| &bridge.name).into()),
            dns: plan.network.then(|| vec!["127.0.0.1".into()]),
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
            // Else there is a file that says who is asked for names, and still no network.
            network_disabled: Some(!plan.network),
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

    /// What a container sees besides its image.
    pub(super) async fn mounts(&self, which: &Container, plan: &Plan) -> Result<Vec<Mount>, Error> {
        let volumes = &self.volumes;
        let (client, image) = (&self.client, &which.image.id);
        let kernel = which.kernel.as_deref();
        let volume = |source: String, target: String| Mount {
            target: Some(target),
            source: Some(source),
            typ: Some(MountType::VOLUME),
            read_only: Some(true),
            volume_options: Some(volume::options(false)),
            ..Mount::default()
        };
        let own = volumes.with(client, kernel, image, self.owner.labels());
        let mut mounts = vec![volume(own.await?, volume::PLACE.to_owned())];
        for entry in &plan.entries {
            match entry {
                Entry::File { path, content } => {
                    let above = path.parent().unwrap_or(path).to_string_lossy().into_owned();
                    let file = volumes.file(client, path, content, image, self.owner.labels());
                    mounts.push(volume(file.await?, above));
                }
                Entry::Volume {
                    source,
                    target,
                    writable,
                } => mounts.push(Mount {
                    target: Some(target.to_string_lossy().into_owned()),
                    source: Some(source.to_string_lossy().into_owned()),
                    typ: Some(MountType::BIND),
                    read_only: Some(!writable),
                    bind_options: Some(MountBindOptions {
                        propagation: Some(MountBindOptionsPropagationEnum::PRIVATE),
                        non_recursive: Some(true),
                        ..MountBindOptions::default()
                    }),
                    ..Mount::default()
                }),
                Entry::System { .. } | Entry::Image { .. } | Entry::Link { .. } => {}
            }
        }
        // A root that can be written has them as a part of it.
        if !plan.writable && !which.image.volumes.is_empty() {
            let mut taken: Vec<_> = mounts.iter().filter_map(|one| one.target.clone()).collect();
            let workdir = plan.workdir.to_string_lossy().into_owned();
            taken.extend([workdir, "/tmp".to_owned(), SHARED.to_owned()]);
            for part in declared::parts(image, &which.image.volumes, &taken) {
                let made = volumes.part(client, &part, self.owner.labels());
                mounts.push(volume(made.await?, part.place().to_owned()));
            }
        }
        Ok(mounts)
    }

    pub(super) fn refuse_what_it_cannot(&self, plan: &Plan) -> Result<(), Error> {
        let mut entries = plan.entries.iter();
        let volumes = entries.any(|entry| matches!(entry, Entry::Volume { .. }));
        let refused = |what: &str, reason: &str| Error::NotSupported {
            what: what.into(),
            reason: reason.into(),
        };
        if volumes && !self.settings.address().starts_with("unix:") {
            return Err(refused(
                "a volume, or packages,",
                "the container engine is on another machine, which has no directory of this one; copy files in, put packages into the image, or use the backend native",
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
}

pub fn nanos(limits: &Limits) -> i64 {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "far below 2^63 for any number of processors"
    )]
    let nanos = (limits.cpus * 1e9) as i64;
    nanos
}
