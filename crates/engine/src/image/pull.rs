//! Images from registries.
//!
//! A registry is a stranger too: everything it sends is held against a digest that was known before, and what it says about
//! sizes is held against what comes. A layer's download is kept when it breaks off, and goes on there the next time.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
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
use super::registry::{Failure, LEAST_BYTES, Pace, Registries, Registry, lie};
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
            begun: Mutex::default(),
        };
        let pulled = session.pull(adding, name, wanted, watcher).await;
        if let Err(Failure::Disk(error)) = &pulled
            && is_full(error)
        {
            // Others need the room, and the next attempt does too.
            session.forget();
        }
        pulled
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
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
    /// Files of layers that this pull may have begun.
    begun: Mutex<Vec<PathBuf>>,
}

impl Session<'_> {
    async fn pull(
        &self,
        adding: Adding,
        name: &Name,
        wanted: &Platform,
        watcher: Watcher<'_>,
    ) -> Result<Listed, Failure> {
        let (digest, manifest) = self.manifest(name, wanted).await?;
        if manifest.layers().len() > MOST_LAYERS {
            return Err(lie("it has too many layers"));
        }
        let config = self.config(&manifest).await?;
        let settings = Settings::parse(&config).map_err(|error| lie(error.to_string()))?;
        wanted.check(&settings.platform).map_err(lie)?;
        let parts = parts(&settings, &manifest, self.store.bounds().bytes)?;
        let mut bounds = self
            .store
            .left(&settings.layers)
            .map_err(|error| lie(error.to_string()))?;
        for part in &parts {
            let (digest, bytes) = (&part.blob, part.bytes);
            watcher(Progress::Layer { digest, bytes });
            if self.store.layer(&part.layer).is_some() {
                watcher(Progress::Ready { digest });
            }
        }
        let mut downloads = Vec::new();
        for part in parts {
            if self.store.layer(&part.layer).is_none() {
                downloads.push(self.download(&adding, part, watcher).boxed());
            }
        }
        let downloads = stream::iter(downloads).buffered(AT_ONCE);
        let files: Vec<_> = downloads.try_collect().await?;
        let store = self.store.clone();
        let name = name.clone();
        let unpacking = move |told: &dyn Fn(Digest, bool)| {
            for (part, begun) in files {
                told(part.blob, false);
                let content = archive::decompress(BufReader::new(begun.file.try_clone()?))?;
                store.add_layer(&adding, content, Some(&part.layer), &mut bounds)?;
                begun.remove()?;
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
    ) -> Result<(Part, Begun), Failure> {
        let begun = Begun::open(
            &self.store.at("partial", &part.blob),
            &adding.place.0.join(part.blob.hex()),
        )?;
        self.noted().push(begun.path.clone());
        let mut file = begun.file.try_clone()?;
        if file.metadata()?.len() > part.bytes {
            file.set_len(0)?;
        }
        // What an earlier attempt has left may be damaged; what comes now is the registry's alone.
        let mut is_old = file.metadata()?.len() > 0;
        loop {
            self.complete(&mut file, &part, watcher).await?;
            file.rewind()?;
            let hashed = file.try_clone()?;
            let found = tokio::task::spawn_blocking(move || {
                Measured::new(BufReader::with_capacity(1 << 18, hashed), u64::MAX).finish()
            });
            let found = found.await.map_err(|error| lie(error.to_string()))??;
            if found == part.blob {
                file.rewind()?;
                return Ok((part, begun));
            }
            if !is_old {
                begun.remove()?;
                return Err(wrong(&part.blob));
            }
            file.set_len(0)?;
            is_old = false;
        }
    }

    /// Fetches what is not there yet of a layer.
    async fn complete(
        &self,
        file: &mut File,
        part: &Part,
        watcher: Watcher<'_>,
    ) -> Result<(), Failure> {
        let mut attempt = 0;
        loop {
            let have = file.seek(SeekFrom::End(0))?;
            let digest = &part.blob;
            watcher(Progress::Received {
                digest,
                bytes: have,
            });
            if have == part.bytes {
                return Ok(());
            }
            let failure = match self.fetch(file, have, part, watcher).await {
                Ok(()) if file.metadata()?.len() == part.bytes => return Ok(()),
                Ok(()) => lie("the registry hung up early"),
                Err(failure @ Failure::Registry(_)) => failure,
                Err(failure) => return Err(failure),
            };
            // A large layer may break off often, as long as it gets on.
            if file.metadata()?.len() >= have + LEAST_BYTES {
                attempt = 0;
            }
            attempt += 1;
            if attempt == ATTEMPTS {
                return Err(failure);
            }
            tokio::time::sleep(Duration::from_millis(200) * 2_u32.pow(attempt)).await;
        }
    }

    fn noted(&self) -> std::sync::MutexGuard<'_, Vec<PathBuf>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes what this pull has begun. Somebody else who is at it by now keeps the file, only without its name.
    fn forget(&self) {
        for path in self.noted().drain(..) {
            let _ = fs::remove_file(path);
        }
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

/// A layer's file that nobody else writes to: locked until it has no name any more.
struct Begun {
    file: File,
    path: PathBuf,
}

impl Begun {
    /// What is there of it already, unless somebody else is at that.
    fn open(shared: &Path, own: &Path) -> io::Result<Self> {
        match Self::lock(shared)? {
            Some(begun) => Ok(begun),
            None => Ok(Self {
                file: Self::file(own)?,
                path: own.to_owned(),
            }),
        }
    }

    fn file(path: &Path) -> io::Result<File> {
        OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)
    }

    fn lock(path: &Path) -> io::Result<Option<Self>> {
        loop {
            let file = Self::file(path)?;
            if file.try_lock().is_err() {
                return Ok(None);
            }
            // Whoever had it locked may have finished with it between the two.
            let ours = file.metadata()?;
            let there = fs::symlink_metadata(path);
            if there.is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())) {
                let path = path.to_owned();
                return Ok(Some(Self { file, path }));
            }
        }
    }

    /// The lock goes after the name.
    fn remove(self) -> io::Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

fn wrong(digest: &digest::Digest) -> Failure {
    lie(format!(
        "what the registry sent for {} has another digest; nothing of it is kept",
        digest.short()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Many who want the same layer: one has its file, and that file has the name until it is done.
    #[test]
    fn a_layer_that_many_begin() {
        let dir = tempfile::tempdir().unwrap();
        let shared = dir.path().join("shared");
        std::thread::scope(|scope| {
            for number in 0..4 {
                let (own, shared) = (dir.path().join(number.to_string()), &shared);
                scope.spawn(move || {
                    for _ in 0..500 {
                        let begun = Begun::open(shared, &own).unwrap();
                        let ours = begun.file.metadata().unwrap();
                        let there = fs::metadata(&begun.path).unwrap();
                        assert_eq!((ours.ino(), ours.len()), (there.ino(), 0));
                        begun.file.set_len(1).unwrap();
                        begun.remove().unwrap();
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
