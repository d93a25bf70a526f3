//! Packages: installed once, in a jar, into a layer that is named by what is in it, and mounted read-only wherever it is asked for.
//!
//! A *set* is what was asked for: language, interpreter, index, packages. Its file tells which *layer* it became. The installer
//! runs in a sandbox whose rules allow the index and nothing else; what packages do while they are installed is done there.

mod index;
mod install;
mod layer;
mod lock;

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use belljar_spec::{Error, HostRule, Network, shown};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::Mutex as Turn;

use crate::docker::Container;
use crate::egress::may_try;
use crate::engine::Engine;
use crate::runtime::Toolchain;
use crate::unused;

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
}

impl PackageSettings {
    pub fn at(place: PathBuf) -> Self {
        Self {
            place,
            python: None,
            javascript: None,
            hosts: Vec::new(),
            timeout: Duration::from_mins(10),
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
    turns: Mutex<HashMap<String, Arc<Turn<()>>>>,
    /// Layers that have been seen to be whole. Nobody removes them while this process uses them.
    verified: Mutex<HashMap<String, File>>,
}

/// What a set became.
#[derive(Debug, Serialize, Deserialize)]
struct Set {
    layer: String,
    wanted: Vec<String>,
    index: String,
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
                all.insert(name.to_owned(), index.url);
            }
        }
        all
    }

    pub fn new(settings: PackageSettings) -> Self {
        Self {
            settings,
            turns: Mutex::default(),
            verified: Mutex::default(),
        }
    }

    /// The toolchain with these packages, which are installed if nobody has asked for them before.
    pub async fn add(
        &self,
        engine: &Engine,
        toolchain: &Toolchain,
        wanted: &[String],
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
        let turn = {
            let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(turns.entry(key.clone()).or_default())
        };
        let _turn = turn.lock().await;
        let layer = if let Some(layer) = self.known(&key) {
            layer
        } else {
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
            self.make(engine, toolchain, &key, &set).await?
        };
        Ok(toolchain.with_packages(&layer, installer))
    }

    fn layers(&self) -> PathBuf {
        self.settings.place.join("layers")
    }

    fn set_file(&self, key: &str) -> PathBuf {
        self.settings.place.join("sets").join(key)
    }

    /// The layer of a set that was installed before and is still what it was.
    fn known(&self, key: &str) -> Option<PathBuf> {
        let text = fs::read_to_string(self.set_file(key)).ok()?;
        let set: Set = serde_json::from_str(&text).ok()?;
        let plain = set.layer.len() == 64 && set.layer.bytes().all(|b| b.is_ascii_hexdigit());
        let path = self.layers().join(&set.layer);
        if !plain || !path.is_dir() {
            return None;
        }
        let verified = |all: &Mutex<HashMap<String, File>>| {
            let all = all.lock().unwrap_or_else(PoisonError::into_inner);
            all.contains_key(&set.layer)
        };
        if !verified(&self.verified) {
            let held = unused::hold(&path).ok()?;
            if layer::digest(&path).ok()? != set.layer {
                return None;
            }
            let mut all = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
            all.insert(set.layer, held);
        }
        Some(path)
    }

    /// Removes layers that no process has used for long, with the sets that became them, and what killed installations left.
    fn collect(place: &Path) {
        unused::sweep(&place.join("layers"), "", unused::KEPT);
        unused::sweep(&place.join("making"), "", LONGEST);
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
    ) -> Result<PathBuf, Error> {
        let failed = |error: io::Error| Error::internal("packages", error);
        for name in ["sets", "layers", "making", "locks"] {
            fs::create_dir_all(self.settings.place.join(name)).map_err(failed)?;
        }
        // Another process may install the same.
        let lock = self.settings.place.join("locks").join(key);
        let _lock = lock::wait(&lock, self.settings.timeout)
            .await
            .map_err(failed)?;
        if let Some(layer) = self.known(key) {
            return Ok(layer);
        }
        let making = Making::new(&self.settings.place.join("making")).map_err(failed)?;
        install::run(engine, toolchain, set, &self.settings, &making.0).await?;
        let place = making.0.clone();
        let digest = tokio::task::spawn_blocking(move || layer::seal(&place)).await;
        let digest = digest.map_err(io::Error::other).flatten().map_err(failed)?;
        let layer = self.layers().join(&digest);
        // The same content by another way is as good; one that was tampered with is not.
        if layer.exists() && layer::digest(&layer).ok().as_ref() != Some(&digest) {
            layer::remove(&layer);
        }
        if !layer.exists() {
            fs::rename(&making.0, &layer).map_err(failed)?;
        }
        let text = serde_json::to_string(&Set {
            layer: digest,
            wanted: set.names.to_vec(),
            index: set.index.shown(),
        });
        let text = text.map_err(|error| Error::internal("packages", error))?;
        let file = self.set_file(key);
        let fresh = file.with_extension("new");
        fs::write(&fresh, text).map_err(failed)?;
        fs::rename(&fresh, &file).map_err(failed)?;
        let place = self.settings.place.clone();
        tokio::task::spawn_blocking(move || Self::collect(&place));
        self.known(key).ok_or_else(|| {
            Error::internal("packages", "the layer is not what was written a moment ago")
        })
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
mod tests {
    use super::*;

    #[test]
    fn a_set_that_somebody_writes_is_left_alone() {
        let place = tempfile::tempdir().unwrap();
        for name in ["sets", "locks", "layers/whole"] {
            fs::create_dir_all(place.path().join(name)).unwrap();
        }
        let set = |name: &str, layer: &str| {
            let text = format!(r#"{{"layer": "{layer}", "wanted": [], "index": ""}}"#);
            let path = place.path().join("sets").join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let (whole, gone) = (set("a", "whole"), set("b", "gone"));
        let (busy, fresh) = (set("c", "gone"), set("c.new", "gone"));
        let held = lock::attempt(&place.path().join("locks/c")).unwrap();
        assert!(held.is_some());
        Packages::collect(place.path());
        assert!(whole.exists() && !gone.exists());
        assert!(busy.exists() && fresh.exists());
        drop(held);
        Packages::collect(place.path());
        assert!(whole.exists() && !busy.exists() && !fresh.exists());
    }

    #[test]
    fn only_what_an_index_has() {
        let hash = format!("a==1 --hash=sha256:{}", "0".repeat(64));
        for good in [
            "numpy",
            "numpy==2.*",
            "numpy >= 2, < 3",
            "a[b,c]~=1.0",
            &hash,
        ] {
            assert!(check(Installer::Pip, &[good.into()]).is_ok(), "{good}");
        }
        for good in ["lodash", "lodash@4", "@types/node", "@types/node@^20.1.0"] {
            assert!(check(Installer::Npm, &[good.into()]).is_ok(), "{good}");
        }
        for bad in [
            "-e.",
            "--index-url=http://x",
            "./x",
            "/etc/passwd",
            "a @ https://x/y",
            "git+https://x",
            "a;b",
            "a\nb",
            "",
            "a --hash=sha256:1",
            "a --no-deps",
            "a -r/etc/passwd",
        ] {
            assert!(check(Installer::Pip, &[bad.into()]).is_err(), "{bad}");
        }
        for bad in [
            "-g",
            "user/repo",
            "a@npm:b",
            "file:x",
            "../x",
            "@a",
            "@a/b/c",
            "https://x",
            "a b",
            "",
        ] {
            assert!(check(Installer::Npm, &[bad.into()]).is_err(), "{bad}");
        }
    }
}
