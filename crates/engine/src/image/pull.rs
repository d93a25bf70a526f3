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
use oci_spec::image::{ImageIndex, ImageManifest};
use tokio::io::AsyncWriteExt;

use super::config::Settings;
use super::digest::{Digest, Measured};
use super::import::MOST_DESCRIPTION;
use super::platform::{self, Platform};
use super::reference::Name;
use super::registry::{Failure, Pace, Registries, Registry, lie};
use super::store::{Adding, Listed, Store};
use super::{archive, digest};

const AT_ONCE: usize = 3;
const ATTEMPTS: u32 = 5;
const MOST_LAYERS: usize = 512;

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
        let session = Session {
            store: self,
            registry: Registry::open(name, registries).await?,
        };
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

/// A registry that is asked for an image on behalf of a store.
struct Session<'a> {
    store: &'a Store,
    registry: Registry,
}

impl Session<'_> {
    /// A manifest or an index, by a tag or a digest.
    async fn description(&self, version: &str) -> Result<(Digest, Vec<u8>), Failure> {
        let path = format!("manifests/{version}");
        let (text, said) = self.registry.description(&path, MOST_DESCRIPTION).await?;
        let digest = Digest::of(&text);
        if said.is_some_and(|said| said.parse() != Ok(digest)) {
            return Err(lie(
                "the registry sent a manifest with another digest than it says",
            ));
        }
        Ok((digest, text))
    }

    /// The manifest for the platform, and what the registry calls the image.
    async fn manifest(
        &self,
        name: &Name,
        wanted: &Platform,
    ) -> Result<(Digest, ImageManifest), Failure> {
        let unknown = |error: serde_json::Error| lie(format!("its manifest is broken: {error}"));
        let reference = name.reference();
        let version = reference.digest().or(reference.tag());
        let (digest, text) = self.description(version.unwrap_or("latest")).await?;
        if name.digest().is_some_and(|asked| *asked != digest) {
            return Err(lie("the registry sent a manifest with another digest"));
        }
        if let Ok(manifest) = serde_json::from_slice::<ImageManifest>(&text) {
            return Ok((digest, manifest));
        }
        let index: ImageIndex = serde_json::from_slice(&text).map_err(unknown)?;
        let chosen = platform::choose(index.manifests(), wanted).map_err(lie)?;
        let asked: Digest = chosen.digest().to_string().parse().map_err(lie)?;
        let (found, text) = self.description(&asked.to_string()).await?;
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
        let path = format!("blobs/{digest}");
        let (text, _) = self.registry.description(&path, MOST_DESCRIPTION).await?;
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
        let path = format!("blobs/{}", part.blob);
        let mut have = have;
        let answer = self.registry.get(&path, have).await?;
        if have > 0 && answer.status() != reqwest::StatusCode::PARTIAL_CONTENT {
            // All of it, then.
            file.set_len(0)?;
            have = 0;
        }
        let mut pieces = answer.bytes_stream();
        let mut pace = Pace::new();
        let mut out = tokio::fs::File::from_std(file.try_clone()?);
        let digest = &part.blob;
        loop {
            let piece = match pace.next(&mut pieces).await {
                Ok(None) => break,
                Ok(Some(piece)) => piece,
                Err(failure) => {
                    out.flush().await?;
                    return Err(failure);
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

fn wrong(digest: &digest::Digest) -> Failure {
    lie(format!(
        "what the registry sent for {} has another digest; nothing of it is kept",
        digest.short()
    ))
}
