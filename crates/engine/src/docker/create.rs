//! Asks the engine for a container, and sees to it that what comes into it from us is whole.

use std::sync::Arc;

use belljar_jail::Plan;
use belljar_spec::Error;
use bollard::models::{HostConfig, MountType};
use bollard::query_parameters::CreateContainerOptions;

use super::bridge::Bridge;
use super::container::{Container, remove, without};
use super::{Docker, failed, held, image};

/// Volumes can go while containers are made, but hardly as often as this.
const ATTEMPTS: usize = 5;

/// A container that is removed again unless it comes up.
pub struct Unfinished {
    docker: Arc<Docker>,
    id: Option<String>,
    /// What it has for a network besides loopback.
    pub bridge: Option<Bridge>,
}

impl Unfinished {
    pub fn id(&self) -> &str {
        self.id.as_deref().unwrap_or_default()
    }

    /// It is somebody else's to remove now.
    pub fn done(mut self) -> (String, Option<Bridge>) {
        (self.id.take().unwrap_or_default(), self.bridge.take())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if self.id.is_some() || self.bridge.is_some() {
            self.docker.forget(self.id.take(), self.bridge.take());
        }
    }
}

impl Docker {
    /// A container that is not started yet, and what was asked for it.
    pub(super) async fn create(
        self: &Arc<Self>,
        which: &Container,
        plan: &Plan,
    ) -> Result<(Unfinished, HostConfig), Error> {
        let mut unfinished = Unfinished {
            docker: Arc::clone(self),
            id: None,
            bridge: self.bridge(plan).await?,
        };
        for _ in 0..ATTEMPTS {
            let mounts = self.mounts(which, plan).await?;
            let named = mounts
                .iter()
                .filter(|mount| mount.typ == Some(MountType::VOLUME));
            let volumes: Vec<_> = named.filter_map(|mount| mount.source.clone()).collect();
            let body = self.body(which, plan, mounts, unfinished.bridge.as_ref());
            let asked = body.host_config.clone().unwrap_or_default();
            let made = self
                .client
                .create_container(None::<CreateContainerOptions>, body)
                .await
                .map_err(|error| {
                    if image::is_gone(&error) {
                        image::absent(&which.reference, "the container engine has it no more")
                    } else {
                        failed("container", &error)
                    }
                })?;
            unfinished.id = Some(made.id);
            if let Some(warning) = held::warned(&made.warnings) {
                return Err(without(
                    "a limit",
                    &format!("the container engine says: {warning}"),
                ));
            }
            // Only now: what a container holds nobody can remove. In place of what was gone the engine has put something empty.
            let lost = self.volumes.lost(&self.client, &volumes).await?;
            if lost.is_empty() {
                return Ok((unfinished, asked));
            }
            remove(&self.client, unfinished.id()).await;
            unfinished.id = None;
            self.volumes.forget(&lost);
        }
        let reason = "it goes as often as it is made";
        Err(Error::internal("volume for containers", reason))
    }
}
