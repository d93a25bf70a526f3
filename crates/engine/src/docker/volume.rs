//! What comes into every container from us: the agent, and the files of the language's kernel, in a volume that is made once.
//!
//! A volume and not a directory of this host: the engine may be on another machine. It is named after what is in it, so
//! it never changes, and several versions of this program can use one engine.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use belljar_jail::container::AGENT;
use belljar_spec::Error;
use bollard::Docker;
use bollard::models::{ContainerCreateBody, HostConfig, Mount, MountType, VolumeCreateRequest};
use bollard::query_parameters::{CreateContainerOptions, UploadToContainerOptionsBuilder};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use super::{container, failed};
use crate::kernel;

/// Where a container has it.
pub const PLACE: &str = kernel::PLACE;
/// Written last: a volume without it was not finished.
const SEAL: &str = "complete";

/// Volumes that are known to be complete, by what is in them.
#[derive(Default)]
pub struct Volumes {
    ready: Mutex<HashMap<String, String>>,
    making: tokio::sync::Mutex<()>,
}

impl Volumes {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, String>> {
        // Each change of the map is one call.
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of the volume for containers with this kernel. Any image will do to fill it: nothing of it is run.
    pub async fn with(
        &self,
        client: &Docker,
        kernel: Option<&str>,
        image: &str,
        labels: HashMap<String, String>,
    ) -> Result<String, Error> {
        let key = kernel.unwrap_or("none");
        let known = |volumes: &Self| volumes.lock().get(key).cloned();
        if let Some(name) = known(self) {
            return Ok(name);
        }
        let _one_at_a_time = self.making.lock().await;
        if let Some(name) = known(self) {
            return Ok(name);
        }
        let archive =
            archive(kernel).map_err(|error| Error::internal("files of a container", error))?;
        let name = ensure(client, key, image, labels, archive, HashMap::new()).await?;
        self.lock().insert(key.to_owned(), name.clone());
        Ok(name)
    }

    /// One with a file in it; other processes do not need it, so it goes when this one has gone.
    pub async fn file(
        &self,
        client: &Docker,
        path: &Path,
        content: &str,
        image: &str,
        labels: HashMap<String, String>,
    ) -> Result<String, Error> {
        let key = format!("file-{:x}", Sha256::digest(content));
        let known = |volumes: &Self| volumes.lock().get(&key).cloned();
        let _one_at_a_time = self.making.lock().await;
        if let Some(name) = known(self) {
            return Ok(name);
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let mut archive = Builder::new(Vec::new());
        let archive = add(&mut archive, &name, 0o444, content.as_bytes())
            .and_then(|()| archive.into_inner())
            .map_err(|error| Error::internal("files of a container", error))?;
        let name = ensure(client, "file", image, labels.clone(), archive, labels).await?;
        self.lock().insert(key, name.clone());
        Ok(name)
    }
}

/// A complete volume with this in it. `labels` are the helping container's, `own` the volume's.
async fn ensure(
    client: &Docker,
    kind: &str,
    image: &str,
    labels: HashMap<String, String>,
    archive: Vec<u8>,
    own: HashMap<String, String>,
) -> Result<String, Error> {
    let digest = format!("{:x}", Sha256::digest(&archive));
    let name = format!("belljar-{kind}-{}", &digest[..16]);
    if !is_complete(client, &name, image, &labels).await? {
        fill(client, &name, image, labels, archive, own).await?;
    }
    Ok(name)
}

/// A container that is never started, by which a volume is reached.
async fn handle(
    client: &Docker,
    volume: &str,
    image: &str,
    labels: HashMap<String, String>,
) -> Result<String, Error> {
    let mount = Mount {
        target: Some(PLACE.to_owned()),
        source: Some(volume.to_owned()),
        typ: Some(MountType::VOLUME),
        ..Mount::default()
    };
    let body = ContainerCreateBody {
        image: Some(image.to_owned()),
        entrypoint: Some(vec![format!("{PLACE}/agent")]),
        labels: Some(labels),
        host_config: Some(HostConfig {
            mounts: Some(vec![mount]),
            network_mode: Some("none".into()),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    };
    let made = client
        .create_container(None::<CreateContainerOptions>, body)
        .await
        .map_err(|error| failed("volume for containers", &error))?;
    Ok(made.id)
}

async fn is_complete(
    client: &Docker,
    name: &str,
    image: &str,
    labels: &HashMap<String, String>,
) -> Result<bool, Error> {
    if client.inspect_volume(name).await.is_err() {
        return Ok(false);
    }
    let id = handle(client, name, image, labels.clone()).await?;
    let options = bollard::query_parameters::ContainerArchiveInfoOptionsBuilder::default()
        .path(&format!("{PLACE}/{SEAL}"))
        .build();
    let found = client.get_container_archive_info(&id, Some(options)).await;
    container::remove(client, &id).await;
    Ok(found.is_ok())
}

async fn fill(
    client: &Docker,
    name: &str,
    image: &str,
    labels: HashMap<String, String>,
    archive: Vec<u8>,
    mut own: HashMap<String, String>,
) -> Result<(), Error> {
    own.insert("belljar.volume".to_owned(), name.to_owned());
    let wrong = |error: &bollard::errors::Error| failed("volume for containers", error);
    let request = VolumeCreateRequest {
        name: Some(name.to_owned()),
        labels: Some(own),
        ..VolumeCreateRequest::default()
    };
    client
        .create_volume(request)
        .await
        .map_err(|error| wrong(&error))?;
    let id = handle(client, name, image, labels).await?;
    let seal = sealed().map_err(|error| Error::internal("files of a container", error))?;
    let mut filled = Ok(());
    for part in [archive, seal] {
        let options = UploadToContainerOptionsBuilder::default()
            .path(PLACE)
            .build();
        let body = bollard::body_full(part.into());
        filled = client.upload_to_container(&id, Some(options), body).await;
        if filled.is_err() {
            break;
        }
    }
    container::remove(client, &id).await;
    filled.map_err(|error| wrong(&error))
}

fn archive(kernel: Option<&str>) -> std::io::Result<Vec<u8>> {
    let mut archive = Builder::new(Vec::new());
    add(&mut archive, "agent", 0o555, AGENT)?;
    let mut made: Vec<String> = Vec::new();
    for (path, text) in kernel.into_iter().flat_map(kernel::files_of) {
        let mut above = String::new();
        let parts: Vec<_> = path.split('/').collect();
        for part in &parts[..parts.len() - 1] {
            above = format!("{above}{part}/");
            if !made.contains(&above) {
                let mut header = Header::new_gnu();
                header.set_entry_type(EntryType::Directory);
                header.set_mode(0o555);
                header.set_size(0);
                archive.append_data(&mut header, &above, std::io::empty())?;
                made.push(above.clone());
            }
        }
        add(&mut archive, path, 0o444, text.as_bytes())?;
    }
    archive.into_inner()
}

fn sealed() -> std::io::Result<Vec<u8>> {
    let mut archive = Builder::new(Vec::new());
    add(&mut archive, SEAL, 0o444, b"")?;
    archive.into_inner()
}

fn add(
    archive: &mut Builder<Vec<u8>>,
    path: &str,
    mode: u32,
    content: &[u8],
) -> std::io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Regular);
    header.set_mode(mode);
    header.set_size(content.len() as u64);
    archive.append_data(&mut header, path, content)
}
