//! What comes into every container from us: the agent, and the files of the language's kernel, in a volume that is made once.
//!
//! A volume and not a directory of this host: the engine may be on another machine. It is named after what is in it, so
//! it never changes, and several versions of this program can use one engine.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use belljar_jail::container::AGENT;
use belljar_spec::Error;
use bollard::Docker;
use bollard::models::{
    ContainerCreateBody, HostConfig, Mount, MountType, MountVolumeOptions, VolumeCreateRequest,
};
use bollard::query_parameters::{
    ContainerArchiveInfoOptionsBuilder, CreateContainerOptions, RemoveVolumeOptions,
    UploadToContainerOptionsBuilder,
};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use super::{container, failed};
use crate::kernel;

/// Where a container has it.
pub const PLACE: &str = kernel::PLACE;
/// Written last: a volume without it was not finished.
const SEAL: &str = "complete";
/// How they are made, so that others get other names: earlier ones could have files of an image in them.
const MADE: &[u8] = b"of nothing else\n";
/// Its name once more. What the engine makes by itself, where a volume is asked for that is gone, does not have it.
const LABEL: &str = "belljar.volume";
/// How the names of those begin that are for one process.
const OWN: [&str; 2] = ["belljar-file-", "belljar-image-"];
/// How long somebody else's container may still hold one of those.
const HELD: Duration = Duration::from_secs(20);

/// Volumes that are known to be complete, by what is in them.
#[derive(Default)]
pub struct Volumes {
    ready: Mutex<HashMap<String, String>>,
    pub(super) making: tokio::sync::Mutex<()>,
}

impl Volumes {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, String>> {
        // Each change of the map is one call.
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn known(&self, key: &str) -> Option<String> {
        self.lock().get(key).cloned()
    }

    pub(super) fn keep(&self, key: &str, name: &str) {
        self.lock().insert(key.to_owned(), name.to_owned());
    }

    /// Whether there is one that only this process needs.
    pub fn has_own(&self) -> bool {
        let ready = self.lock();
        let own = |name: &String| OWN.iter().any(|kind| name.starts_with(kind));
        ready.values().any(own)
    }

    /// Those of these that somebody has removed since they were made.
    pub async fn lost(&self, client: &Docker, names: &[String]) -> Result<Vec<String>, Error> {
        let mut lost = Vec::new();
        for name in names {
            if found(client, name).await? != Some(true) {
                lost.push(name.clone());
            }
        }
        Ok(lost)
    }

    /// They are looked for again by whoever needs them next.
    pub fn forget(&self, names: &[String]) {
        self.lock().retain(|_, name| !names.contains(name));
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
        if let Some(name) = self.known(key) {
            return Ok(name);
        }
        let _one_at_a_time = self.making.lock().await;
        if let Some(name) = self.known(key) {
            return Ok(name);
        }
        let archive =
            archive(kernel).map_err(|error| Error::internal("files of a container", error))?;
        let name = ensure(client, key, image, labels, archive, HashMap::new()).await?;
        self.keep(key, &name);
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
        let _one_at_a_time = self.making.lock().await;
        if let Some(name) = self.known(&key) {
            return Ok(name);
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let mut archive = Builder::new(Vec::new());
        let archive = add(&mut archive, &name, 0o444, content.as_bytes())
            .and_then(|()| archive.into_inner())
            .map_err(|error| Error::internal("files of a container", error))?;
        let name = ensure(client, "file", image, labels.clone(), archive, labels).await?;
        self.keep(&key, &name);
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
    let digest = Sha256::new().chain_update(MADE).chain_update(&archive);
    let digest = format!("{:x}", digest.finalize());
    let name = format!("belljar-{kind}-{}", &digest[..16]);
    let found = found(client, &name).await?;
    if found == Some(false) {
        discard(client, &name).await?;
    }
    if found != Some(true) || !is_sealed(client, &name, image, &labels).await? {
        fill(client, &name, image, labels, archive, own).await?;
    }
    Ok(name)
}

/// A container that is never started, by which a volume is reached. With `copied` an empty one gets what the image has at that place.
pub(super) async fn handle(
    client: &Docker,
    (volume, place): (&str, &str),
    copied: bool,
    image: &str,
    labels: HashMap<String, String>,
) -> Result<String, Error> {
    let mount = Mount {
        target: Some(place.to_owned()),
        source: Some(volume.to_owned()),
        typ: Some(MountType::VOLUME),
        volume_options: Some(options(copied)),
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

/// What everybody gets must have nothing in it that one image has.
pub(super) fn options(copied: bool) -> MountVolumeOptions {
    MountVolumeOptions {
        no_copy: Some(!copied),
        ..MountVolumeOptions::default()
    }
}

/// Where a volume of ours is reached in a container that is not started: no image can have a link there.
fn apart() -> Result<String, Error> {
    Ok(format!("{PLACE}-{:032x}", crate::run::random_bits()?))
}

/// Whether a volume is there, and whether it was made by us.
pub(super) async fn found(client: &Docker, name: &str) -> Result<Option<bool>, Error> {
    match client.inspect_volume(name).await {
        Ok(volume) => Ok(Some(volume.labels.contains_key(LABEL))),
        Err(error) if status(&error) == Some(404) => Ok(None),
        Err(error) => Err(failed("volume for containers", &error)),
    }
}

fn status(error: &bollard::errors::Error) -> Option<u16> {
    match error {
        bollard::errors::Error::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}

/// Removes an empty one of the engine's. Whose containers have it notice that too, and give them up.
pub(super) async fn discard(client: &Docker, name: &str) -> Result<(), Error> {
    let since = Instant::now();
    loop {
        match client
            .remove_volume(name, None::<RemoveVolumeOptions>)
            .await
        {
            Ok(()) => return Ok(()),
            Err(error) if status(&error) == Some(404) => return Ok(()),
            Err(error) if status(&error) != Some(409) || since.elapsed() > HELD => {
                return Err(failed("volume for containers", &error));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn is_sealed(
    client: &Docker,
    name: &str,
    image: &str,
    labels: &HashMap<String, String>,
) -> Result<bool, Error> {
    let place = apart()?;
    let id = handle(client, (name, &place), false, image, labels.clone()).await?;
    let sealed = holds(client, &id, &format!("{place}/{SEAL}")).await;
    container::remove(client, &id).await;
    Ok(sealed)
}

/// Whether a container has something at a path.
pub(super) async fn holds(client: &Docker, id: &str, path: &str) -> bool {
    let options = ContainerArchiveInfoOptionsBuilder::default().path(path);
    let options = options.build();
    let found = client.get_container_archive_info(id, Some(options)).await;
    found.is_ok()
}

async fn fill(
    client: &Docker,
    name: &str,
    image: &str,
    labels: HashMap<String, String>,
    archive: Vec<u8>,
    own: HashMap<String, String>,
) -> Result<(), Error> {
    make(client, name, own).await?;
    let place = apart()?;
    let id = handle(client, (name, &place), false, image, labels).await?;
    let seal = sealed().map_err(|error| Error::internal("files of a container", error))?;
    let mut filled = Ok(());
    for part in [archive, seal] {
        filled = upload(client, &id, &place, part).await;
        if filled.is_err() {
            break;
        }
    }
    container::remove(client, &id).await;
    filled
}

/// An empty one with our mark on it.
pub(super) async fn make(
    client: &Docker,
    name: &str,
    mut labels: HashMap<String, String>,
) -> Result<(), Error> {
    labels.insert(LABEL.to_owned(), name.to_owned());
    let request = VolumeCreateRequest {
        name: Some(name.to_owned()),
        labels: Some(labels),
        ..VolumeCreateRequest::default()
    };
    let made = client.create_volume(request).await;
    made.map(drop)
        .map_err(|error| failed("volume for containers", &error))
}

/// Unpacks an archive at a place in a container.
pub(super) async fn upload(
    client: &Docker,
    id: &str,
    place: &str,
    archive: Vec<u8>,
) -> Result<(), Error> {
    let options = UploadToContainerOptionsBuilder::default().path(place);
    let body = bollard::body_full(archive.into());
    let uploaded = client.upload_to_container(id, Some(options.build()), body);
    uploaded
        .await
        .map_err(|error| failed("volume for containers", &error))
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
                add_directory(&mut archive, &above, 0o555)?;
                made.push(above.clone());
            }
        }
        add(&mut archive, path, 0o444, text.as_bytes())?;
    }
    archive.into_inner()
}

pub(super) fn add_directory(
    archive: &mut Builder<Vec<u8>>,
    path: &str,
    mode: u32,
) -> std::io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Directory);
    header.set_mode(mode);
    header.set_size(0);
    archive.append_data(&mut header, path, std::io::empty())
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
