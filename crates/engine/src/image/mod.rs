//! Container images: kept in a store of our own, unpacked once, used as the root of sandboxes. No Docker is needed.
//!
//! Theory of operation. [`Store`] keeps layers as directories and, for each image, one tree of hard links to their files. A
//! sandbox mounts what is at the top of that tree, read-only, in place of the host's programs; its own places (`/dev`,
//! `/proc`, `/tmp`, the workspace) stay its own. An [`Image`] is the right to do so: while it lives, it is not removed.
//! Everything in an image is a stranger's: it is unpacked as hostile, and no program of it ever runs outside a sandbox.

mod archive;
mod assemble;
mod config;
pub(crate) mod credentials;
mod digest;
mod import;
mod platform;
mod policy;
mod pull;
mod reference;
mod registry;
mod store;
mod tree;
mod unpack;
mod user;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use belljar_spec::Error;

pub use digest::Digest;
pub use platform::Platform;
pub use policy::{Pattern, Policy, Supply};
pub use pull::{Progress, Watcher};
pub use reference::Name;
pub use registry::Registries;
pub use store::{Collected, Listed, Store};
pub use unpack::Bounds;

/// An image that sandboxes can be made from.
#[derive(Debug)]
pub struct Image {
    pub name: Name,
    pub id: Digest,
    /// Where its root and what is known about it are.
    directory: PathBuf,
    settings: config::Settings,
    user: String,
    /// Held shared; whoever removes images needs it alone.
    _lock: File,
}

impl PartialEq for Image {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Image {
    fn new(
        listed: Listed,
        directory: PathBuf,
        record: store::Record,
        lock: File,
    ) -> Result<Self, Error> {
        let here = format!("linux/{}", architecture());
        if record.platform != here {
            return Err(Error::invalid_image(
                &listed.name.to_string(),
                format!(
                    "it is for {}, and this machine is {here}; get the one for {here}, if there is one",
                    record.platform
                ),
            ));
        }
        Ok(Self {
            name: listed.name,
            id: listed.id,
            directory,
            settings: record.settings,
            user: record.user,
            _lock: lock,
        })
    }

    /// Its root on this host.
    pub(crate) fn root(&self) -> PathBuf {
        self.directory.join("tree")
    }

    /// Where something may be remembered about it.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn env(&self) -> &BTreeMap<String, String> {
        &self.settings.env
    }

    /// What its user is called in a sandbox.
    pub(crate) fn user(&self) -> &str {
        &self.user
    }

    pub(crate) fn path(&self) -> &str {
        self.settings.path()
    }

    /// The workspace is there where the image wants to be run, if it has nothing of its own there.
    pub(crate) fn workdir(&self) -> Option<&str> {
        let wanted = self.settings.workdir.as_deref()?;
        belljar_spec::check_workdir(wanted).ok()?;
        let root = self.root();
        let relative = Path::new(wanted).strip_prefix("/").ok()?;
        let real = tree::resolve(&root, relative, true).ok()?;
        let is_empty = match fs::read_dir(root.join(&real)) {
            Ok(mut listing) => listing.next().is_none(),
            Err(_) => !root.join(&real).exists(),
        };
        (is_empty && real == relative).then_some(wanted)
    }

    /// The program at a path of the image, by the name it has there.
    pub(crate) fn program(&self, path: &Path) -> Option<PathBuf> {
        let real = tree::resolve(&self.root(), path, true).ok()?;
        let found = fs::symlink_metadata(self.root().join(real)).ok()?;
        (found.is_file() && found.permissions().mode() & 0o111 != 0).then(|| path.to_owned())
    }

    /// What the report of a run on it says.
    pub(crate) fn described(&self) -> String {
        format!("image {} ({})", self.name, self.id)
    }
}

/// This machine's, in the words of images.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
