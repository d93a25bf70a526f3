//! Packages: installed once, in a jar, into a layer that is named by what is in it, and mounted read-only wherever it is asked for.
//!
//! A *set* is what was asked for: language, interpreter, index, packages. Its file tells which *layer* it became. The installer
//! runs in a sandbox whose rules allow the index and nothing else; what packages do while they are installed is done there.

mod index;
mod install;
mod layer;
mod lock;
mod room;
mod turn;

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use belljar_spec::{Error, HostRule, Network, shown};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::docker::Container;
use crate::egress::may_try;
use crate::engine::Engine;
use crate::runtime::Toolchain;
use crate::unused;
use turn::Turns;

/// Where packages are kept, and where they come from.
#[derive(Debug, Clone)]
pub struct PackageSettings {
    pub place: PathBuf,
    /// The index for Python; what pip on the host uses if `None`.
    pub python: Option<String>,
    /// The registry for JavaScript; what npm on the host uses if `None`.
    pub javascript: Option<String>,
    /// Where else files of packages are.
    pub hosts: Vec<HostRule>,
    /// For one installation.
    pub timeout: Duration,
    /// The most that one set may take, also while it is installed.
    pub bytes: u64,
    /// Beyond that, those that nobody uses and that were not used for longest go.
    pub store_bytes: u64,
}

impl PackageSettings {
    pub fn at(place: PathBuf) -> Self {
        Self {
            place,
            python: None,
            javascript: None,
            hosts: Vec::new(),
            timeout: Duration::from_mins(10),
            bytes: 4 << 30,
            store_bytes: 32 << 30,
        }
    }
}

/// Where packages are seen inside.
pub(crate) const PACKAGES: &str = "/packages";

/// No installation takes longer.
const LONGEST: Duration = Duration::from_hours(24);

/// Who installs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Installer {
    Pip,
    Npm,
}

pub(crate) struct Packages {
    settings: PackageSettings,
    /// One installation of a set at a time; whoever comes meanwhile waits for it.
    turns: Turns,
    verified: Arc<Verified>,
}

/// Layers that have been seen to be whole. No other process removes them, and this one only for want of space, if nobody uses them.
#[derive(Default)]
struct Verified(Mutex<HashMap<String, Arc<File>>>);

impl Verified {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<File>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A layer for as long as somebody uses it.
#[derive(Debug, Clone)]
pub struct InUse(#[expect(dead_code, reason = "a lock that is held")] Arc<File>);

impl PartialEq for InUse {
    /// Which one it is, its place says.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// What a set became.
#[derive(Debug, Serialize, Deserialize)]
struct Set {
    layer: String,
    wanted: Vec<String>,
    index: String,
    /// What it takes on the disk.
    bytes: Option<u64>,
}

impl Packages {
    /// What tells the installers inside a sandbox where packages are, if its rules let it go there.
    pub fn variables(&self, network: &Network) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        for (installer, name) in [
            (Installer::Pip, "PIP_INDEX_URL"),
            (Installer::Npm, "npm_config_registry"),
        ] {
            // Where nobody has configured one, the installer inside has the same of its own as that of the host.
            let Some(url) = index::configured(installer, &self.settings) else {
                continue;
            };
            let index = index::Index { url, files: None };
            let open = index
                .host()
                .is_some_and(|(host, port)| may_try(network, &host, port));
            // A password is not for code that is not trusted.
            if open && !index.url.contains('@') {
                if installer == Installer::Pip
                    && index.url.starts_with("http://")
                    && let Some((host, _)) = index.host()
                {
                    // Else pip passes over an index without TLS.
                    all.insert("PIP_TRUSTED_HOST".to_owned(), host);
                }
                all.insert(name.to_owned(), index.url);
            }
        }
        all
    }

    pub fn new(settings: PackageSettings) -> Self {
        Self {
            settings,
            turns: Turns::default(),
            verified: Arc::default(),
        }
    }

    /// The toolchain with these packages, which are installed if nobody has asked for them before. That takes `leave`, which is
    /// asked for then, and kept until they are there.
    pub async fn add<L>(
        &self,
        engine: &Engine,
        toolchain: &Toolchain,
        wanted: &[String],
        leave: impl Future<Output = Result<L, Error>>,
    ) -> Result<Toolchain, Error> {
        let installer = match toolchain.name.as_str() {
            "python" => Installer::Pip,
            "javascript" | "typescript" => Installer::Npm,
            other => {
                return Err(Error::NotSupported {
                    what: "packages".into(),
                    reason: format!("{other} has none; they are for python and javascript"),
                });
            }
        };
        check(installer, wanted)?;
        let mut wanted = wanted.to_vec();
        wanted.sort();
        wanted.dedup();
        let configured = index::configured(installer, &self.settings);
        let key = key(toolchain, &wanted, configured.as_deref());
        let place = self.turns.of(&key);
        let turn = tokio::time::timeout(self.settings.timeout, place.come()).await;
        let late = |_| Error::Overloaded {
            reason: "the same packages are being installed for others, which takes long".into(),
            retry_after_s: 5,
        };
        let mut turn = turn.map_err(late)??;
        let (layer, in_use) = if let Some(known) = self.known(&key).await {
            known
        } else {
            let _leave = leave.await?;
            // Of images too it is this host's that counts.
            let apart = toolchain.image.is_some() || toolchain.container.is_some();
            let python = if apart {
                Path::new("/usr/bin/python3")
            } else {
                &toolchain.program
            };
            let index = index::find(installer, python, &self.settings).await?;
            let set = Wanted {
                installer,
                names: &wanted,
                index: &index,
            };
            let made = self.make(engine, toolchain, &key, &set).await;
            made.inspect_err(|error| turn.failed(error))?
        };
        Ok(toolchain.with_packages(&layer, in_use, installer))
    }

    fn layers(&self) -> PathBuf {
        self.settings.place.join("layers")
    }

    fn set_file(&self, key: &str) -> PathBuf {
        self.settings.place.join("sets").join(key)
    }

    /// The layer of a set that was installed before and is still what it was. To see that, all of it may have to be read.
    async fn known(&self, key: &str) -> Option<(PathBuf, InUse)> {
        let (file, layers) = (self.set_file(key), self.layers());
        let verified = Arc::clone(&self.verified);
        let found = tokio::task::spawn_blocking(move || Self::find(&file, &layers, &verified));
        found.await.ok().flatten()
    }

    fn find(file: &Path, layers: &Path, all: &Verified) -> Option<(PathBuf, InUse)> {
        let text = fs::read_to_string(file).ok()?;
        let set: Set = serde_json::from_str(&text).ok()?;
        let plain = set.layer.len() == 64 && set.layer.bytes().all(|b| b.is_ascii_hexdigit());
        let path = layers.join(&set.layer);
        if !plain || !path.is_dir() {
            return None;
        }
        let verified = all.lock().get(&set.layer).cloned();
        if let Some(held) = verified {
            // Those that were not used for longest go first.
            let _ = held.set_modified(SystemTime::now());
            return Some((path, InUse(held)));
        }
        let held = Arc::new(unused::hold(&path).ok()?);
        if layer::digest(&path).ok()? != set.layer {
            return None;
        }
        all.lock().insert(set.layer, Arc::clone(&held));
        Some((path, InUse(held)))
    }

    /// Removes layers that nobody uses until the rest is no more than `most` bytes.
    fn make_room(place: &Path, verified: &Verified, most: u64) {
        let listing = |name: &str| {
            let listing = fs::read_dir(place.join(name));
            listing.into_iter().flatten().flatten()
        };
        let mut sizes = HashMap::new();
        for entry in listing("sets") {
            let text = fs::read_to_string(entry.path()).unwrap_or_default();
            if let Ok(set) = serde_json::from_str::<Set>(&text)
                && let Some(bytes) = set.bytes
            {
                sizes.insert(set.layer, bytes);
            }
        }
        let mut layers = Vec::new();
        for entry in listing("layers") {
            let name = entry.file_name().to_string_lossy().into_owned();
            let used = entry.metadata().and_then(|found| found.modified());
            let known = sizes.get(&name).copied();
            let bytes = known.unwrap_or_else(|| room::size(&entry.path()).unwrap_or(0));
            layers.push((used.unwrap_or(SystemTime::UNIX_EPOCH), bytes, name));
        }
        layers.sort();
        let mut total = layers.iter().map(|(_, bytes, _)| bytes).sum::<u64>();
        for (_, bytes, name) in layers {
            if total <= most {
                return;
            }
            {
                let mut verified = verified.lock();
                match verified.get(&name) {
                    Some(held) if Arc::strong_count(held) > 1 => continue,
                    _ => verified.remove(&name),
                };
            }
            if unused::remove_if_unused(&place.join("layers").join(&name), Duration::ZERO) {
                total -= bytes;
            }
        }
    }

    /// Removes layers that no process has used for long or that are too many, with the sets that became them, and what killed
    /// installations left.
    fn collect(place: &Path, verified: &Verified, most: u64) {
        unused::sweep(&place.join("layers"), "", unused::KEPT);
        unused::sweep(&place.join("making"), "", LONGEST);
        Self::make_room(place, verified, most);
        for entry in fs::read_dir(place.join("sets"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let path = entry.path();
            let is_whole = || {
                let text = fs::read_to_string(&path).unwrap_or_default();
                let layer = serde_json::from_str::<Set>(&text).map(|set| set.layer);
                layer.is_ok_and(|layer| place.join("layers").join(layer).is_dir())
            };
            if is_whole() {
                continue;
            }
            // Whoever holds the lock is about to write it anew, or has done so since it was looked at.
            let lock = place
                .join("locks")
                .join(path.file_stem().unwrap_or_default());
            if let Ok(Some(_held)) = lock::attempt(&lock)
                && !is_whole()
            {
                let _ = fs::remove_file(&path);
                let _ = fs::remove_file(&lock);
            }
        }
    }

    async fn make(
        &self,
        engine: &Engine,
        toolchain: &Toolchain,
        key: &str,
        set: &Wanted<'_>,
    ) -> Result<(PathBuf, InUse), Error> {
        let failed = |error: io::Error| Error::internal("packages", error);
        for name in ["sets", "layers", "making", "locks"] {
            fs::create_dir_all(self.settings.place.join(name)).map_err(failed)?;
        }
        // Another process may install the same.
        let lock = self.settings.place.join("locks").join(key);
        let _lock = lock::wait(&lock, self.settings.timeout)
            .await
            .map_err(failed)?;
        if let Some(layer) = self.known(key).await {
            return Ok(layer);
        }
        let making = Making::new(&self.settings.place.join("making")).map_err(failed)?;
        install::run(engine, toolchain, set, &self.settings, &making.0).await?;
        let place = making.0.clone();
        let sealed = move || Ok((layer::seal(&place)?, room::size(&place)?));
        let sealed = tokio::task::spawn_blocking(sealed).await;
        let sealed: io::Result<_> = sealed.map_err(io::Error::other).flatten();
        let (digest, bytes) = sealed.map_err(failed)?;
        let layer = self.layers().join(&digest);
        // The same content by another way is as good; one that was tampered with is not.
        let (there, name) = (layer.clone(), digest.clone());
        let checked = move || {
            if there.exists() && layer::digest(&there).ok().as_ref() != Some(&name) {
                layer::remove(&there);
            }
        };
        let checked = tokio::task::spawn_blocking(checked).await;
        checked.map_err(|error| failed(io::Error::other(error)))?;
        if !layer.exists() {
            fs::rename(&making.0, &layer).map_err(failed)?;
        }
        let text = serde_json::to_string(&Set {
            layer: digest,
            wanted: set.names.to_vec(),
            index: set.index.shown(),
            bytes: Some(bytes),
        });
        let text = text.map_err(|error| Error::internal("packages", error))?;
        let file = self.set_file(key);
        let fresh = file.with_extension("new");
        fs::write(&fresh, text).map_err(failed)?;
        fs::rename(&fresh, &file).map_err(failed)?;
        let made = self.known(key).await.ok_or_else(|| {
            Error::internal("packages", "the layer is not what was written a moment ago")
        });
        let (place, most) = (self.settings.place.clone(), self.settings.store_bytes);
        let verified = Arc::clone(&self.verified);
        tokio::task::spawn_blocking(move || Self::collect(&place, &verified, most));
        made
    }
}

pub(crate) struct Wanted<'a> {
    pub installer: Installer,
    pub names: &'a [String],
    pub index: &'a index::Index,
}

/// A directory for one installation, gone with it unless it has become a layer.
struct Making(PathBuf);

impl Making {
    fn new(below: &Path) -> io::Result<Self> {
        let name = format!("{:032x}", belljar_jail::random_bits()?);
        let path = below.join(name);
        fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        if self.0.exists() {
            layer::remove(&self.0);
        }
    }
}

fn key(toolchain: &Toolchain, wanted: &[String], index: Option<&str>) -> String {
    let mut hash = Sha256::new();
    let program = toolchain.program.to_string_lossy();
    let image = toolchain.image.as_ref().map(|image| image.id.to_string());
    let container = toolchain.container.as_ref().map(Container::image);
    let parts = [
        &toolchain.name,
        &toolchain.version,
        program.as_ref(),
        index.unwrap_or("the installer's own"),
        image.as_deref().or(container).unwrap_or("the host"),
    ];
    for part in parts
        .into_iter()
        .map(str::as_bytes)
        .chain(wanted.iter().map(String::as_bytes))
    {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    format!("{:x}", hash.finalize())
}

/// Names and versions from an index: no path, no address, no option of the installer.
fn check(installer: Installer, wanted: &[String]) -> Result<(), Error> {
    for text in wanted {
        let (name, hashes) = text.split_once(" --hash=sha256:").unwrap_or((text, ""));
        let hex = |one: &str| one.len() == 64 && one.bytes().all(|b| b.is_ascii_hexdigit());
        let hashes_fit = name.len() == text.len()
            || installer == Installer::Pip && hashes.split(" --hash=sha256:").all(hex);
        let fits = match installer {
            Installer::Pip => {
                name.starts_with(|c: char| c.is_ascii_alphanumeric())
                    && !name.contains(" -")
                    && name
                        .bytes()
                        .all(|b| b.is_ascii_alphanumeric() || b"._-[]<>=!~,*+ ".contains(&b))
            }
            Installer::Npm => {
                let bare = name.strip_prefix('@');
                let slashes = name.matches('/').count();
                bare.unwrap_or(name)
                    .starts_with(|c: char| c.is_ascii_alphanumeric())
                    && slashes == usize::from(bare.is_some())
                    && name
                        .bytes()
                        .all(|b| b.is_ascii_alphanumeric() || b"._-@/^~<>=*+".contains(&b))
            }
        };
        if !fits || !hashes_fit {
            let accepted = match installer {
                Installer::Pip => {
                    "give names and versions of the index, like numpy or \"numpy>=2,<3\""
                }
                Installer::Npm => {
                    "give names and versions of the registry, like lodash or lodash@4"
                }
            };
            return Err(Error::invalid_request("packages", &shown(text), accepted));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
