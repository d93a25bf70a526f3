//! Images from registries.
//!
//! A registry is a stranger too: everything it sends is held against a digest that was known before, and what it says about
//! sizes is held against what comes. A layer's download is kept when it breaks off, and goes on there the next time.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Duration;

use belljar_spec::{Error, shown};
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use oci_client::client::{BlobResponse, ClientConfig, ClientProtocol, SizedStream};
use oci_client::errors::{OciDistributionError, OciErrorCode};
use oci_client::manifest::OciDescriptor;
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, Reference};
use oci_spec::image::{ImageIndex, ImageManifest};
use tokio::io::AsyncWriteExt;

use super::config::Settings;
use super::credentials;
use super::digest::{Digest, Measured};
use super::import::MOST_DESCRIPTION;
use super::platform::{self, Platform};
use super::reference::Name;
use super::store::{Adding, Listed, Store};
use super::{archive, digest};

const ACCEPTED: [&str; 4] = [
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
];
const CONNECT_TIME: Duration = Duration::from_secs(15);
/// Between two pieces of an answer.
const READ_TIME: Duration = Duration::from_mins(1);
const AT_ONCE: usize = 3;
const ATTEMPTS: u32 = 5;
const MOST_LAYERS: usize = 512;
const LOG_IN: &str = "the registry wants to know who asks, or does not let you; log in with `docker login`, or put the \
     credentials into config.json in the directory that DOCKER_CONFIG names";

/// How far a pull has come.
#[derive(Debug, Clone, Copy)]
pub enum Progress<'a> {
    /// There is a layer of so many bytes, compressed.
    Layer {
        digest: &'a Digest,
        bytes: u64,
    },
    /// So much of it has come in all.
    Received {
        digest: &'a Digest,
        bytes: u64,
    },
    Unpacking {
        digest: &'a Digest,
    },
    /// It is here; maybe it was before.
    Ready {
        digest: &'a Digest,
    },
}

/// Hears of it. Called from within the pull, so it must be quick.
pub type Watcher<'a> = &'a (dyn Fn(Progress<'_>) + Send + Sync);

/// How registries are spoken to.
#[derive(Debug, Clone, Default)]
pub struct Registries {
    /// Those that are spoken to without TLS, besides those on this machine.
    pub insecure: Vec<String>,
}

impl Registries {
    fn is_insecure(&self, registry: &str) -> bool {
        let host = registry.rsplit_once(':').map_or(registry, |(host, _)| host);
        let address = host.trim_start_matches('[').trim_end_matches(']');
        let local = address
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback());
        host == "localhost" || local || self.insecure.iter().any(|known| known == registry)
    }
}

/// Why a pull failed: what the registry did, or our own disk.
enum Failure {
    Registry(String),
    /// What need not be tried again.
    Lie(String),
    Disk(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}

impl From<OciDistributionError> for Failure {
    fn from(error: OciDistributionError) -> Self {
        use OciDistributionError as E;
        let says = |error: &E, codes: &[OciErrorCode]| match error {
            E::RegistryError { envelope, .. } => {
                envelope.errors.iter().any(|one| codes.contains(&one.code))
            }
            _ => false,
        };
        let unknown = [OciErrorCode::ManifestUnknown, OciErrorCode::NameUnknown];
        let text = match error {
            error if says(&error, &unknown) => "the registry has no such image".into(),
            error if says(&error, &[OciErrorCode::Unauthorized]) => LOG_IN.into(),
            E::AuthenticationFailure(_) | E::UnauthorizedError { .. } => LOG_IN.into(),
            E::ImageManifestNotFoundError(_) => "the registry has no such image".into(),
            E::RequestError(error) if error.is_connect() => {
                format!("the registry cannot be reached: {}", innermost(&error))
            }
            E::RequestError(error) => innermost(&error),
            E::IoError(error) => return Self::Disk(error),
            error => error.to_string(),
        };
        Self::Registry(plain(&text))
    }
}

fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(cause) = error.source() {
        error = cause;
    }
    error.to_string()
}

/// A stranger's words for a line of a terminal.
fn plain(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(300).collect()
}

fn lie(text: impl Into<String>) -> Failure {
    Failure::Registry(text.into())
}

impl Store {
    /// Fetches an image, with those of its layers that are not here yet.
    pub async fn pull(
        &self,
        name: &Name,
        wanted: &Platform,
        registries: &Registries,
        watcher: Watcher<'_>,
    ) -> Result<Listed, Error> {
        // The one whose library both the daemon and this use; somebody may have said so before.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let pulled = self.try_pull(name, wanted, registries, watcher).await;
        pulled.map_err(|failure| match failure {
            Failure::Registry(reason) | Failure::Lie(reason) => Error::PullFailed {
                given: shown(&name.to_string()),
                reason,
            },
            Failure::Disk(error) => self.failed(&name.to_string(), &error),
        })
    }

    async fn try_pull(
        &self,
        name: &Name,
        wanted: &Platform,
        registries: &Registries,
        watcher: Watcher<'_>,
    ) -> Result<Listed, Failure> {
        let adding = self.add()?;
        let session = Session::open(self, name, registries)?;
        let (digest, manifest) = session.manifest(name, wanted).await?;
        if manifest.layers().len() > MOST_LAYERS {
            return Err(lie("it has too many layers"));
        }
        let config = session.config(&manifest).await?;
        let settings = Settings::parse(&config).map_err(|error| lie(error.to_string()))?;
        let parts = parts(&settings, &manifest, self.bounds().bytes)?;
        let mut bounds = self
            .left(&settings.layers)
            .map_err(|error| lie(error.to_string()))?;
        for part in &parts {
            let (digest, bytes) = (&part.blob, part.bytes);
            watcher(Progress::Layer { digest, bytes });
            if self.layer(&part.layer).is_some() {
                watcher(Progress::Ready { digest });
            }
        }
        let mut downloads = Vec::new();
        for part in parts {
            if self.layer(&part.layer).is_none() {
                downloads.push(session.download(&adding, part, watcher).boxed());
            }
        }
        let downloads = stream::iter(downloads).buffered(AT_ONCE);
        let files: Vec<_> = downloads.try_collect().await?;
        let store = self.clone();
        let name = name.clone();
        let unpacking = move |told: &dyn Fn(Digest, bool)| {
            for (part, file, path) in files {
                told(part.blob, false);
                let content = archive::decompress(BufReader::new(file))?;
                store.add_layer(&adding, content, Some(&part.layer), &mut bounds)?;
                fs::remove_file(path)?;
                told(part.blob, true);
            }
            store.add_image(&adding, &name, &config, Some(digest), &settings.layers)
        };
        // Told across threads, because the watcher is borrowed and what blocks is not.
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
        let done = tokio::task::spawn_blocking(move || {
            unpacking(&|digest, ready| {
                let _ = sender.send((digest, ready));
            })
        });
        while let Some((digest, ready)) = receiver.recv().await {
            let digest = &digest;
            watcher(if ready {
                Progress::Ready { digest }
            } else {
                Progress::Unpacking { digest }
            });
        }
        let done = done.await.map_err(|error| lie(error.to_string()))?;
        done.map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => lie(error.to_string()),
            _ => Failure::Disk(error),
        })
    }
}

/// A layer as the registry has it, and what must be in it.
#[derive(Clone, Copy)]
struct Part {
    blob: Digest,
    bytes: u64,
    layer: Digest,
}

fn parts(settings: &Settings, manifest: &ImageManifest, most: u64) -> Result<Vec<Part>, Failure> {
    if settings.layers.len() != manifest.layers().len() {
        return Err(lie("its configuration has another number of layers"));
    }
    let mut total: u64 = 0;
    let mut parts: Vec<Part> = Vec::new();
    for (layer, blob) in settings.layers.iter().zip(manifest.layers()) {
        total = total.saturating_add(blob.size());
        let part = Part {
            blob: blob.digest().to_string().parse().map_err(lie)?,
            bytes: blob.size(),
            layer: *layer,
        };
        // An empty one may be there more than once.
        if !parts.iter().any(|known| known.layer == part.layer) {
            parts.push(part);
        }
    }
    if total > most {
        let reason = format!("it has {total} bytes, compressed; at most {most} are allowed");
        return Err(lie(reason));
    }
    Ok(parts)
}

/// One registry that is being asked for one image.
struct Session<'a> {
    store: &'a Store,
    client: Client,
    auth: RegistryAuth,
    reference: Reference,
}

impl<'a> Session<'a> {
    fn open(store: &'a Store, name: &Name, registries: &Registries) -> Result<Self, Failure> {
        let registry = name.registry().to_owned();
        let auth = credentials::find(&registry).map_err(lie)?;
        let protocol = if registries.is_insecure(&registry) {
            ClientProtocol::HttpsExcept(vec![registry])
        } else {
            ClientProtocol::Https
        };
        let config = ClientConfig {
            protocol,
            connect_timeout: Some(CONNECT_TIME),
            read_timeout: Some(READ_TIME),
            user_agent: concat!("belljar/", env!("CARGO_PKG_VERSION")),
            ..ClientConfig::default()
        };
        Ok(Self {
            store,
            client: Client::new(config),
            auth,
            reference: name.reference(),
        })
    }

    async fn description(&self, reference: &Reference) -> Result<(Digest, Vec<u8>), Failure> {
        let asked = self
            .client
            .pull_manifest_raw(reference, &self.auth, &ACCEPTED);
        let (text, said) = tokio::time::timeout(READ_TIME, asked)
            .await
            .map_err(|_| lie("the registry did not answer in time"))??;
        if text.len() as u64 > MOST_DESCRIPTION {
            return Err(lie("its manifest is too large"));
        }
        let digest = Digest::of(&text);
        if said.parse() != Ok(digest) {
            return Err(lie(
                "the registry sent a manifest with another digest than it says",
            ));
        }
        Ok((digest, text.to_vec()))
    }

    /// The manifest for the platform, and what the registry calls the image.
    async fn manifest(
        &self,
        name: &Name,
        wanted: &Platform,
    ) -> Result<(Digest, ImageManifest), Failure> {
        let unknown = |error: serde_json::Error| lie(format!("its manifest is broken: {error}"));
        let (digest, text) = self.description(&self.reference).await?;
        if name.digest().is_some_and(|asked| *asked != digest) {
            return Err(lie("the registry sent a manifest with another digest"));
        }
        if let Ok(manifest) = serde_json::from_slice::<ImageManifest>(&text) {
            return Ok((digest, manifest));
        }
        let index: ImageIndex = serde_json::from_slice(&text).map_err(unknown)?;
        let chosen = platform::choose(index.manifests(), wanted).map_err(lie)?;
        let asked: Digest = chosen.digest().to_string().parse().map_err(lie)?;
        let reference = self.reference.clone_with_digest(asked.to_string());
        let (found, text) = self.description(&reference).await?;
        if found != asked {
            return Err(lie("the registry sent a manifest with another digest"));
        }
        Ok((digest, serde_json::from_slice(&text).map_err(unknown)?))
    }

    async fn config(&self, manifest: &ImageManifest) -> Result<Vec<u8>, Failure> {
        let digest: Digest = manifest
            .config()
            .digest()
            .to_string()
            .parse()
            .map_err(lie)?;
        let mut stream = self
            .client
            .pull_blob_stream(&self.reference, &descriptor(&digest))
            .await?;
        let mut text = Vec::new();
        while let Some(piece) = stream
            .stream
            .try_next()
            .await
            .map_err(|error| broken(&error))?
        {
            if text.len() as u64 + piece.len() as u64 > MOST_DESCRIPTION {
                return Err(lie("its configuration is too large"));
            }
            text.extend_from_slice(&piece);
        }
        if Digest::of(&text) != digest {
            return Err(wrong(&digest));
        }
        Ok(text)
    }

    /// A layer's file, whole and verified, open at its beginning.
    async fn download(
        &self,
        adding: &Adding,
        part: Part,
        watcher: Watcher<'_>,
    ) -> Result<(Part, File, PathBuf), Failure> {
        let (mut file, path) = self.partial(adding, &part)?;
        let mut attempt = 0;
        loop {
            let have = file.seek(SeekFrom::End(0))?;
            let digest = &part.blob;
            watcher(Progress::Received {
                digest,
                bytes: have,
            });
            if have == part.bytes {
                break;
            }
            let failure = match self.fetch(&mut file, have, &part, watcher).await {
                Ok(()) if file.metadata()?.len() == part.bytes => break,
                Ok(()) => lie("the registry hung up early"),
                Err(failure @ Failure::Registry(_)) => failure,
                Err(failure) => return Err(failure),
            };
            attempt += 1;
            if attempt == ATTEMPTS {
                return Err(failure);
            }
            tokio::time::sleep(Duration::from_millis(200) * 2_u32.pow(attempt)).await;
        }
        file.rewind()?;
        let hashed = file.try_clone()?;
        let found = tokio::task::spawn_blocking(move || {
            Measured::new(BufReader::with_capacity(1 << 18, hashed), u64::MAX).finish()
        });
        let found = found.await.map_err(|error| lie(error.to_string()))??;
        if found != part.blob {
            fs::remove_file(&path)?;
            return Err(wrong(&part.blob));
        }
        file.rewind()?;
        Ok((part, file, path))
    }

    /// Where the layer is put: what is there of it already, unless somebody else is at that.
    fn partial(&self, adding: &Adding, part: &Part) -> io::Result<(File, PathBuf)> {
        let open = |path: &PathBuf| {
            OpenOptions::new()
                .read(true)
                .append(true)
                .create(true)
                .mode(0o600)
                .open(path)
        };
        let path = self.store.at("partial", &part.blob);
        let file = open(&path)?;
        if file.try_lock().is_ok() {
            if file.metadata()?.len() > part.bytes {
                file.set_len(0)?;
            }
            return Ok((file, path));
        }
        let path = adding.place.0.join(part.blob.hex());
        Ok((open(&path)?, path))
    }

    async fn fetch(
        &self,
        file: &mut File,
        have: u64,
        part: &Part,
        watcher: Watcher<'_>,
    ) -> Result<(), Failure> {
        let layer = descriptor(&part.blob);
        let client = &self.client;
        let mut have = have;
        let stream: SizedStream = if have == 0 {
            client.pull_blob_stream(&self.reference, &layer).await?
        } else {
            let answer = client.pull_blob_stream_partial(&self.reference, &layer, have, None);
            match answer.await? {
                BlobResponse::Partial(stream) => stream,
                BlobResponse::Full(stream) => {
                    file.set_len(0)?;
                    have = 0;
                    stream
                }
            }
        };
        let mut pieces = stream.stream;
        let mut out = tokio::fs::File::from_std(file.try_clone()?);
        let digest = &part.blob;
        loop {
            let piece = match pieces.try_next().await {
                Ok(None) => break,
                Ok(Some(piece)) => piece,
                Err(error) => {
                    out.flush().await?;
                    return Err(broken(&error));
                }
            };
            have += piece.len() as u64;
            if have > part.bytes {
                out.flush().await?;
                file.set_len(0)?;
                let reason = "the registry sends more of a layer than it said there is";
                return Err(Failure::Lie(reason.into()));
            }
            out.write_all(&piece).await?;
            watcher(Progress::Received {
                digest,
                bytes: have,
            });
        }
        out.flush().await?;
        Ok(())
    }
}

/// Without the addresses it may name: a layer comes from its registry, or not at all.
fn descriptor(digest: &Digest) -> OciDescriptor {
    OciDescriptor {
        digest: digest.to_string(),
        ..OciDescriptor::default()
    }
}

fn wrong(digest: &digest::Digest) -> Failure {
    lie(format!(
        "what the registry sent for {} has another digest; nothing of it is kept",
        digest.short()
    ))
}

fn broken(error: &io::Error) -> Failure {
    lie(plain(&format!(
        "the download broke off: {}",
        error
            .get_ref()
            .map_or_else(|| error.to_string(), |inner| innermost(inner))
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_spoken_to_in_the_clear() {
        let registries = Registries {
            insecure: vec!["r.example:5000".into()],
        };
        for clear in [
            "localhost:5000",
            "localhost",
            "127.0.0.1:1",
            "[::1]:5000",
            "r.example:5000",
        ] {
            assert!(registries.is_insecure(clear), "{clear}");
        }
        for other in [
            "docker.io",
            "r.example",
            "127.0.0.1.example:5",
            "localhost.example",
            "10.0.0.1:5000",
        ] {
            assert!(!registries.is_insecure(other), "{other}");
        }
    }
}
