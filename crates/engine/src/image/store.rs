//! Where images are kept.
//!
//! ```text
//! images/names/…        which image a name stands for, one small file each
//!        layers/SHA/    a layer, unpacked once, named by the digest of its tar file
//!        roots/SHA/     an image's root, made of links to its layers' files, named by the digest of its configuration
//!        partial/SHA    a layer that is being downloaded; the next attempt goes on where this one ended
//!        tmp/…          what is not finished; of no use to anyone after a crash
//! ```
//! Whatever has its final name is whole: it was made aside, flushed to disk, and renamed. Whoever adds something holds the
//! lock shared; whoever takes something away holds it alone. A root in use is locked too, and not taken away.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_spec::{Error, nearest, shown};
use serde::{Deserialize, Serialize};

use super::config::Settings;
use super::digest::Digest;
use super::reference::Name;
use super::unpack::{Bounds, Layer};
use super::{Image, assemble, tree, unpack, user::User};
use crate::clock;
use crate::egress::RESOLV_CONF;

/// A download that nobody has gone on with for so long.
const STALE: Duration = Duration::from_hours(168);
/// Raised when roots are made otherwise; those that were made before are made anew. 1: without what the user may not read.
const MADE: u32 = 1;
/// Of what is written down about a layer or an image: as much as the unpacker remembers, and what JSON adds to it.
const MOST_RECORD_BYTES: u64 = 512 << 20;

/// The images of one user of this machine.
#[derive(Debug, Clone)]
pub struct Store {
    directory: PathBuf,
    bounds: Bounds,
}

/// What a name stands for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Listed {
    pub name: Name,
    /// The digest of its configuration.
    pub id: Digest,
    /// What the registry calls it, if it came from one.
    pub digest: Option<Digest>,
    /// Like `linux/amd64`.
    pub platform: String,
    /// Of its files, unpacked; layers may be shared with other images.
    pub bytes: u64,
    pub layers: usize,
    pub added_at: String,
}

/// What was found to be of no use, and removed.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Collected {
    pub images: usize,
    pub layers: usize,
    pub downloads: usize,
    pub bytes: u64,
    /// Images without a name that something still runs on.
    pub in_use: usize,
}

/// An image's root as it is written down.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Record {
    pub layers: Vec<Digest>,
    pub bytes: u64,
    pub platform: String,
    pub settings: Settings,
    /// What the sandbox's user is called.
    pub user: String,
    /// How it was made of its layers: [`MADE`], or earlier.
    #[serde(default)]
    made: u32,
}

/// Somebody adds something: nothing is taken away meanwhile.
pub(super) struct Adding {
    _lock: File,
    pub place: Temporary,
}

/// A directory that is removed with this.
pub(super) struct Temporary(pub PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = tree::remove(&self.0);
    }
}

impl Store {
    /// The store below a state directory. Made if it is not there.
    pub fn open(state: &Path) -> Result<Self, Error> {
        let store = Self {
            directory: state.join("images"),
            bounds: Bounds::default(),
        };
        for name in ["names", "layers", "roots", "partial", "tmp"] {
            let at = store.directory.join(name);
            let made = DirBuilder::new().recursive(true).mode(0o700).create(&at);
            made.map_err(|error| store.failed(&at.display().to_string(), &error))?;
        }
        Ok(store)
    }

    #[must_use]
    pub fn with_bounds(mut self, bounds: Bounds) -> Self {
        self.bounds = bounds;
        self
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// What is left of the bounds for an image, some of whose layers may be there already.
    pub(super) fn left(&self, layers: &[Digest]) -> io::Result<Bounds> {
        let mut bounds = self.bounds;
        for layer in layers.iter().filter_map(|digest| self.layer(digest)) {
            bounds.take(layer.bytes, layer.entries)?;
        }
        Ok(bounds)
    }

    /// Whether an image that is here, maybe by somebody with other bounds, is within those of this store.
    pub(super) fn check_size(&self, image: &Listed) -> Result<(), Error> {
        let (bytes, most) = (image.bytes, self.bounds.bytes);
        if bytes <= most {
            return Ok(());
        }
        Err(Error::Forbidden {
            reason: format!(
                "the image {} has {bytes} bytes, and the settings of this daemon allow {most} (images.bytes)",
                shown(&image.name.to_string())
            ),
        })
    }

    pub(super) fn at(&self, kind: &str, digest: &Digest) -> PathBuf {
        self.directory.join(kind).join(digest.hex())
    }

    fn lock(&self) -> io::Result<File> {
        OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(self.directory.join("lock"))
    }

    /// Begins to add something: with a place of its own for what is not finished.
    pub(super) fn add(&self) -> io::Result<Adding> {
        let lock = self.lock()?;
        if lock.try_lock().is_ok() {
            // Nobody else is at it, so what is there is of somebody who died.
            self.clear_temporary()?;
            lock.unlock()?;
        }
        lock.lock_shared()?;
        let bits = belljar_jail::random_bits()?;
        let place = self.directory.join("tmp").join(format!("{bits:032x}"));
        DirBuilder::new().mode(0o700).create(&place)?;
        Ok(Adding {
            _lock: lock,
            place: Temporary(place),
        })
    }

    fn clear_temporary(&self) -> io::Result<()> {
        for entry in fs::read_dir(self.directory.join("tmp"))? {
            tree::remove(&entry?.path())?;
        }
        Ok(())
    }

    /// Gives a finished directory its name. Somebody may have been faster.
    fn commit(&self, made: &Path, name: &Path) -> io::Result<()> {
        belljar_jail::sync_file_system(&File::open(made)?)?;
        match fs::rename(made, name) {
            Err(_) if name.exists() => Ok(()),
            renamed => {
                renamed?;
                File::open(name.parent().unwrap_or(&self.directory))?.sync_all()
            }
        }
    }

    /// A layer that is there already.
    pub(super) fn layer(&self, digest: &Digest) -> Option<Layer> {
        read_json(&self.at("layers", digest).join("layer.json"))
    }

    /// Unpacks a layer, unless it is there. What it must be is said by the image's configuration, if there is one.
    pub(super) fn add_layer(
        &self,
        adding: &Adding,
        source: impl io::Read,
        expected: Option<&Digest>,
        bounds: &mut Bounds,
    ) -> io::Result<Digest> {
        let aside = adding.place.0.join("layer");
        tree::remove(&aside)?;
        let files = aside.join("tree");
        DirBuilder::new().mode(0o700).create(&aside)?;
        DirBuilder::new().mode(0o755).create(&files)?;
        // Headers and padding take room in the archive too.
        let most = bounds
            .bytes
            .saturating_add(bounds.entries.saturating_mul(2048));
        let mut source = super::digest::Measured::new(source, most);
        let layer = unpack::unpack(&mut source, &files, bounds)?;
        let digest = source.finish()?;
        if let Some(expected) = expected.filter(|expected| **expected != digest) {
            let text =
                format!("a layer has the digest {digest} where its configuration says {expected}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        write_json(&aside.join("layer.json"), &layer)?;
        self.commit(&aside, &self.at("layers", &digest))?;
        tree::remove(&aside)?;
        Ok(digest)
    }

    /// Makes an image of layers that are there, and gives it a name.
    pub(super) fn add_image(
        &self,
        adding: &Adding,
        name: &Name,
        config: &[u8],
        digest: Option<Digest>,
        layers: &[Digest],
    ) -> io::Result<Listed> {
        let settings = Settings::parse(config)?;
        self.left(layers)?;
        let id = Digest::of(config);
        let root = self.at("roots", &id);
        let record = if let Some(record) = read_json(&root.join("root.json")) {
            self.renew(adding, &root, record)?
        } else {
            let (aside, record) = self.assemble(adding, settings, layers)?;
            self.commit(&aside, &root)?;
            record
        };
        let listed = Listed {
            name: name.clone(),
            id,
            digest,
            platform: record.platform,
            bytes: record.bytes,
            layers: record.layers.len(),
            added_at: clock::now(),
        };
        let aside = adding.place.0.join("name");
        write_json(&aside, &listed)?;
        File::open(&aside)?.sync_all()?;
        fs::rename(&aside, self.name_file(name))?;
        File::open(self.directory.join("names"))?.sync_all()?;
        Ok(listed)
    }

    /// A root as this version makes it. One that something runs on stays as it is until the next time.
    fn renew(&self, adding: &Adding, root: &Path, record: Record) -> io::Result<Record> {
        let at = root.join("root.json");
        if record.made == MADE {
            return Ok(record);
        }
        let lock = File::open(root.join("lock"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(record),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // Somebody may have been faster.
        if let Some(found) = read_json::<Record>(&at).filter(|found| found.made == MADE) {
            return Ok(found);
        }
        let (aside, renewed) = self.assemble(adding, record.settings, &record.layers)?;
        belljar_jail::sync_file_system(&File::open(&aside)?)?;
        // Under its lock, and the record last: should this be the end of it, it is made anew once more.
        tree::remove(&root.join("tree"))?;
        fs::rename(aside.join("tree"), root.join("tree"))?;
        fs::rename(aside.join("root.json"), &at)?;
        File::open(root)?.sync_all()?;
        Ok(renewed)
    }

    /// A root with its record, aside.
    fn assemble(
        &self,
        adding: &Adding,
        settings: Settings,
        layers: &[Digest],
    ) -> io::Result<(PathBuf, Record)> {
        let aside = adding.place.0.join("root");
        tree::remove(&aside)?;
        let files = aside.join("tree");
        DirBuilder::new().mode(0o700).create(&aside)?;
        DirBuilder::new().mode(0o755).create(&files)?;
        fs::set_permissions(&files, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        let mut records = Vec::new();
        let mut made = assemble::Root::new(&files);
        for digest in layers {
            let layer = self.layer(digest).ok_or_else(|| {
                io::Error::other(format!("layer {} has gone meanwhile", digest.short()))
            })?;
            let at = self.at("layers", digest).join("tree");
            made.lay(&at, &layer)?;
            records.push((at, layer.bytes));
        }
        // These are read before anything is taken out.
        let user = User::find(&files, settings.user.as_deref());
        let (passwd, group) = (user.passwd(&files), user.group(&files));
        made.hide(&user)?;
        for (layer, _) in &records {
            assemble::copy_times(layer, &files)?;
        }
        assemble::put(&files, "/etc/passwd", &passwd)?;
        assemble::put(&files, "/etc/group", &group)?;
        assemble::put(&files, "/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n")?;
        // With a network, that is where names are asked for; without one there is nobody to ask.
        assemble::put(&files, "/etc/resolv.conf", RESOLV_CONF)?;
        let record = Record {
            layers: layers.to_vec(),
            bytes: records.iter().map(|(_, bytes)| bytes).sum(),
            platform: settings.platform.clone(),
            user: user.called().to_owned(),
            made: MADE,
            settings,
        };
        write_json(&aside.join("root.json"), &record)?;
        File::create(aside.join("lock"))?;
        Ok((aside, record))
    }

    fn name_file(&self, name: &Name) -> PathBuf {
        let digest = Digest::of(name.whole().as_bytes());
        self.directory.join("names").join(digest.hex())
    }

    /// All names, sorted.
    pub fn list(&self) -> Result<Vec<Listed>, Error> {
        let at = self.directory.join("names");
        let read = || -> io::Result<Vec<Listed>> {
            let mut all = Vec::new();
            for entry in fs::read_dir(&at)? {
                all.extend(read_json(&entry?.path()));
            }
            Ok(all)
        };
        let mut all = read().map_err(|error| self.failed("names", &error))?;
        all.sort_by(|one: &Listed, other| one.name.cmp(&other.name));
        Ok(all)
    }

    /// By a name, or by an id of which at least 12 digits are given.
    pub fn find(&self, given: &str) -> Result<Listed, Error> {
        let name = given.parse::<Name>();
        if let Ok(name) = &name
            && let Some(found) = read_json::<Listed>(&self.name_file(name))
        {
            return Ok(found);
        }
        let all = self.list()?;
        let digits = given.strip_prefix("sha256:").unwrap_or(given);
        if digits.len() >= 12
            && let Some(found) = all.iter().find(|one| one.id.hex().starts_with(digits))
        {
            return Ok(found.clone());
        }
        name?;
        let known: Vec<_> = all.iter().map(|one| one.name.to_string()).collect();
        Err(Error::NotFound {
            what: "image",
            given: shown(given),
            nearest: nearest(given, known.iter().map(String::as_str)).map(str::to_owned),
        })
    }

    /// An image to run on. As long as this lives, it is not removed.
    pub fn image(&self, given: &str) -> Result<Image, Error> {
        let listed = self.find(given)?;
        let at = self.at("roots", &listed.id);
        let open = || -> io::Result<(File, Record)> {
            if let Some(record) = read_json::<Record>(&at.join("root.json"))
                && record.made != MADE
            {
                self.renew(&self.add()?, &at, record)?;
            }
            let lock = File::open(at.join("lock"))?;
            lock.lock_shared()?;
            let record = read_json(&at.join("root.json"));
            Ok((lock, record.ok_or(io::ErrorKind::NotFound)?))
        };
        let (lock, record) = open().map_err(|error| self.failed(given, &error))?;
        Image::new(listed, at, record, lock)
    }

    /// Takes a name away, or all those of an id, and with it what nothing else needs.
    pub fn remove(&self, given: &str) -> Result<Collected, Error> {
        let listed = self.find(given)?;
        let is_name = given.parse().is_ok_and(|name: Name| name == listed.name);
        for one in self.list()? {
            if one.id == listed.id && (!is_name || one.name == listed.name) {
                let removed = fs::remove_file(self.name_file(&one.name));
                removed.map_err(|error| self.failed(given, &error))?;
            }
        }
        self.collect(false)
    }

    /// Removes what no name leads to: roots, layers, leftovers; and downloads that have ended, or all of them.
    pub fn collect(&self, all_downloads: bool) -> Result<Collected, Error> {
        let lock = self.lock().map_err(|error| self.failed("lock", &error))?;
        match lock.try_lock() {
            Ok(()) => {}
            // Somebody adds an image. What is left over goes with the next that is removed.
            Err(TryLockError::WouldBlock) => return Ok(Collected::default()),
            Err(TryLockError::Error(error)) => return Err(self.failed("lock", &error)),
        }
        let named: BTreeSet<_> = self.list()?.into_iter().map(|one| one.id).collect();
        self.sweep(&named, all_downloads)
            .map_err(|error| self.failed("garbage", &error))
    }

    fn sweep(&self, named: &BTreeSet<Digest>, all_downloads: bool) -> io::Result<Collected> {
        self.clear_temporary()?;
        let mut done = Collected::default();
        let mut needed = BTreeSet::new();
        for entry in fs::read_dir(self.directory.join("roots"))? {
            let at = entry?.path();
            let id = at
                .file_name()
                .and_then(|name| Digest::from_hex(name.to_str()?));
            let record: Option<Record> = read_json(&at.join("root.json"));
            let wanted = id.is_some_and(|id| named.contains(&id));
            let lock = File::open(at.join("lock"));
            let used = lock.as_ref().is_ok_and(|lock| lock.try_lock().is_err());
            done.in_use += usize::from(used && !wanted);
            if wanted || used {
                needed.extend(record.into_iter().flat_map(|record| record.layers));
            } else {
                self.discard(&at)?;
                done.images += 1;
            }
        }
        for entry in fs::read_dir(self.directory.join("layers"))? {
            let at = entry?.path();
            let id = at
                .file_name()
                .and_then(|name| Digest::from_hex(name.to_str()?));
            if !id.is_some_and(|id| needed.contains(&id)) {
                let layer: Option<Layer> = read_json(&at.join("layer.json"));
                done.bytes += layer.map_or(0, |layer| layer.bytes);
                done.layers += 1;
                self.discard(&at)?;
            }
        }
        for entry in fs::read_dir(self.directory.join("partial"))? {
            let entry = entry?;
            let found = entry.metadata()?;
            let age = found.modified()?.elapsed().unwrap_or_default();
            if all_downloads || age > STALE {
                done.bytes += found.blocks() * 512;
                done.downloads += 1;
                fs::remove_file(entry.path())?;
            }
        }
        Ok(done)
    }

    /// First out of the way, so that nobody ever finds half of it.
    fn discard(&self, at: &Path) -> io::Result<()> {
        let bits = belljar_jail::random_bits()?;
        let aside = self.directory.join("tmp").join(format!("{bits:032x}"));
        fs::rename(at, &aside)?;
        tree::remove(&aside)
    }

    /// Says what to do where that is known.
    pub(super) fn failed(&self, what: &str, error: &io::Error) -> Error {
        let at = self.directory.display();
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::invalid_image(
                what,
                format!(
                    "the disk is full at {at}, and nothing of it was kept; make room, for example with `belljar image rm` or \
                     `belljar image prune`"
                ),
            ),
            io::ErrorKind::PermissionDenied => Error::invalid_image(
                what,
                format!(
                    "{at} cannot be used ({error}); name another directory in BELLJAR_STATE_DIR"
                ),
            ),
            io::ErrorKind::NotFound => Error::invalid_image(
                what,
                format!(
                    "it is not whole at {at}; get it again with `belljar image pull` or `import`"
                ),
            ),
            _ => Error::invalid_image(what, error),
        }
    }
}

pub(super) fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Option<T> {
    let found = fs::symlink_metadata(path).ok()?;
    if !found.is_file() || found.len() > MOST_RECORD_BYTES {
        return None;
    }
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

pub(super) fn write_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    write_at_most(path, value, MOST_RECORD_BYTES)
}

/// What is longer would not be read again.
fn write_at_most(path: &Path, value: &impl Serialize, most: u64) -> io::Result<()> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    let mut out = BufWriter::new(&file);
    serde_json::to_writer(&mut out, value)?;
    out.flush()?;
    if file.metadata()?.len() > most {
        let text = "what is to be written down about its files is more than is allowed: they have too many long names";
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_not_be_read_again_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record.json");
        write_at_most(&path, &"four", 6).unwrap();
        assert_eq!(read_json(&path), Some("four".to_owned()));
        let error = write_at_most(&path, &"fours", 6).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains("long names"), "{error}");
    }
}
