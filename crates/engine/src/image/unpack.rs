//! From a layer's tar file to a directory.
//!
//! The archive is a stranger's. Nothing of it is trusted: names are made normal, links are never followed out of the tree,
//! sizes and numbers are bounded, and what has no place in a sandbox (devices, set-user-id bits, owners) is left out.
//! Everything belongs to whoever unpacks. What the image's own user may read, everyone may: the code is that user.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tar::{Archive, EntryType, Header};

use super::tree::{self, Steps};
use crate::pax;

/// Names in headers of their own; the kernel's bound for a path is 4096.
const MOST_NAME_BYTES: u64 = 64 << 10;
/// Of what is remembered about a layer's entries, in memory and in its record: a million of paths that are not unusual.
const MOST_REMEMBERED_BYTES: usize = 256 << 20;

/// What an image may be at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Of all its files together, unpacked.
    pub bytes: u64,
    pub entries: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            bytes: 16 << 30,
            entries: 1 << 20,
        }
    }
}

impl Bounds {
    /// Takes from them what a layer has, and says so if that is more than is left.
    pub(super) fn take(&mut self, bytes: u64, entries: u64) -> io::Result<()> {
        let none = Path::new("");
        self.bytes = self
            .bytes
            .checked_sub(bytes)
            .ok_or_else(|| refused("its files are larger together than is allowed", none))?;
        self.entries = self
            .entries
            .checked_sub(entries)
            .ok_or_else(|| refused("it has more files than are allowed", none))?;
        Ok(())
    }
}

/// What is to be known about an unpacked layer besides its files.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Layer {
    pub bytes: u64,
    pub entries: u64,
    /// Directories that only stand above something: what is below them counts, they do not.
    pub implied: BTreeSet<PathBuf>,
    /// Hard links to files of a layer below, and to which.
    pub links: Vec<(PathBuf, PathBuf)>,
    /// What not everybody may read, sorted.
    pub private: Vec<Private>,
}

impl Layer {
    /// Of something in it, if not everybody may read that.
    pub fn access(&self, path: &Path) -> Option<Access> {
        let private = &self.private;
        let at = private.binary_search_by(|one| one.path.as_path().cmp(path));
        let Private { uid, gid, mode, .. } = private[at.ok()?];
        Some(Access { uid, gid, mode })
    }
}

/// Whose something really is, and who may do what with it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Access {
    pub uid: u64,
    pub gid: u64,
    pub mode: u32,
}

/// A file or directory with its real owner and mode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Private {
    pub path: PathBuf,
    pub uid: u64,
    pub gid: u64,
    pub mode: u32,
}

/// Why an archive cannot be unpacked: what is wrong with it, or with our disk.
pub(super) type Failure = io::Error;

fn refused(reason: &str, path: &Path) -> Failure {
    let text = if path.as_os_str().is_empty() {
        reason.to_owned()
    } else {
        format!("{reason}: {}", belljar_spec::shown(&path.to_string_lossy()))
    };
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Unpacks into a directory that is there and empty.
pub(super) fn unpack(source: impl Read, into: &Path, bounds: &mut Bounds) -> io::Result<Layer> {
    let mut unpacking = Unpacking {
        root: into,
        known: BTreeSet::new(),
        times: BTreeMap::new(),
        private: BTreeMap::new(),
        links: BTreeMap::new(),
        remembered: 0,
        steps: Steps::new(),
        layer: Layer::default(),
        bounds,
    };
    let mut archive = Archive::new(source);
    // Raw: names of any length would otherwise be read into memory.
    let entries = archive.entries()?.raw(true);
    let mut long = Long::default();
    for entry in entries {
        let mut entry = entry?;
        let kind = entry.header().entry_type();
        unpacking.count()?;
        if long.take_in(kind, &mut entry)? {
            continue;
        }
        let Long { name, link } = std::mem::take(&mut long);
        let name = name.unwrap_or_else(|| entry.header().path_bytes().into_owned());
        let link = match link {
            Some(link) => link,
            None => entry
                .header()
                .link_name_bytes()
                .unwrap_or_default()
                .into_owned(),
        };
        let header = entry.header().clone();
        unpacking.place(&header, &name, &link, &mut entry)?;
    }
    unpacking.finish()
}

/// What headers of their own say about the next entry.
#[derive(Default)]
struct Long {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
}

impl Long {
    /// Whether that was such a header.
    fn take_in(
        &mut self,
        kind: EntryType,
        entry: &mut tar::Entry<'_, impl Read>,
    ) -> io::Result<bool> {
        let plain = |text: Vec<u8>| text.split(|byte| *byte == 0).next().map(<[u8]>::to_vec);
        match kind {
            EntryType::GNULongName => self.name = plain(text_of(entry)?),
            EntryType::GNULongLink => self.link = plain(text_of(entry)?),
            EntryType::XHeader => {
                let text = text_of(entry)?;
                let broken = || refused("an extended header is broken", Path::new(""));
                for (key, value) in pax::records(&text).ok_or_else(broken)? {
                    match key {
                        b"path" => self.name = Some(value.to_vec()),
                        b"linkpath" => self.link = Some(value.to_vec()),
                        // They would say how far the next entry reaches, against what the entry says.
                        b"size" => {
                            return Err(refused("a file in it has more than 8 GiB", Path::new("")));
                        }
                        key if key.starts_with(b"GNU.sparse") => {
                            return Err(refused("it has files with holes", Path::new("")));
                        }
                        _ => {}
                    }
                }
            }
            EntryType::XGlobalHeader => drop(text_of(entry)?),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn text_of(entry: &mut tar::Entry<'_, impl Read>) -> io::Result<Vec<u8>> {
    if entry.header().entry_size()? > MOST_NAME_BYTES {
        return Err(refused("a name in it is too long", Path::new("")));
    }
    let mut text = Vec::new();
    entry.read_to_end(&mut text)?;
    Ok(text)
}

/// What is remembered is sorted by path: an archive may have a million entries, and what is below a directory is then
/// found without a look at all the others.
struct Unpacking<'a> {
    root: &'a Path,
    /// Directories that are there, and are no links.
    known: BTreeSet<PathBuf>,
    /// Of directories: set when nothing is put into them any more.
    times: BTreeMap<PathBuf, SystemTime>,
    /// Becomes the layer's: owner, group and mode of what not everybody may read.
    private: BTreeMap<PathBuf, (u64, u64, u32)>,
    /// Becomes the layer's: hard links to what is not in it.
    links: BTreeMap<PathBuf, PathBuf>,
    /// How many bytes all of that takes, about.
    remembered: usize,
    steps: Steps,
    layer: Layer,
    bounds: &'a mut Bounds,
}

impl Unpacking<'_> {
    fn count(&mut self) -> io::Result<()> {
        self.bounds.take(0, 1)?;
        self.steps.allow(1);
        self.layer.entries += 1;
        Ok(())
    }

    /// Before a path is kept.
    fn remember(&mut self, path: &Path) -> io::Result<()> {
        const AROUND: usize = 64;
        self.remembered += path.as_os_str().len() + AROUND;
        if self.remembered > MOST_REMEMBERED_BYTES {
            let reason = "the names in it are longer together than is allowed";
            return Err(refused(reason, Path::new("")));
        }
        Ok(())
    }

    fn place(
        &mut self,
        header: &Header,
        name: &[u8],
        link: &[u8],
        content: &mut impl Read,
    ) -> io::Result<()> {
        let path = tree::normal(name)
            .map_err(|reason| refused(reason, Path::new(std::ffi::OsStr::from_bytes(name))))?;
        let kind = header.entry_type();
        if path.as_os_str().is_empty() {
            return Ok(());
        }
        let path = self.real(&path)?;
        match kind {
            EntryType::Directory => self.directory(&path, header)?,
            EntryType::Regular | EntryType::Continuous => self.file(&path, header, content)?,
            EntryType::Symlink => {
                if link.is_empty() || link.len() > 4095 || link.contains(&0) {
                    return Err(refused("a link in it leads nowhere", &path));
                }
                self.clear(&path)?;
                symlink(std::ffi::OsStr::from_bytes(link), self.root.join(&path))?;
            }
            EntryType::Link => self.hard_link(&path, link)?,
            // A sandbox has devices of its own and no others; a pipe that nobody serves is of no use.
            EntryType::Char | EntryType::Block | EntryType::Fifo => {}
            _ => return Err(refused("it has an entry of an unknown kind", &path)),
        }
        Ok(())
    }

    /// Where an entry belongs, with everything above it in place.
    fn real(&mut self, path: &Path) -> io::Result<PathBuf> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(refused("a path in it is empty", path));
        };
        if self.is_known(parent) {
            return Ok(path.to_owned());
        }
        let parent = self.steps.resolve(self.root, parent, true)?;
        let mut at = PathBuf::new();
        for part in parent.components() {
            at.push(part);
            if self.known.contains(&at) {
                continue;
            }
            match fs::symlink_metadata(self.root.join(&at)) {
                Ok(found) if found.is_dir() => {}
                Ok(_) => return Err(refused("a file in it stands where a directory should", &at)),
                Err(_) if self.links.contains_key(&at) => {
                    return Err(refused("a file in it stands where a directory should", &at));
                }
                Err(_) => {
                    make_directory(&self.root.join(&at))?;
                    self.count()?;
                    self.remember(&at)?;
                    self.layer.implied.insert(at.clone());
                }
            }
            self.remember(&at)?;
            self.known.insert(at.clone());
        }
        Ok(parent.join(name))
    }

    fn is_known(&self, directory: &Path) -> bool {
        directory.as_os_str().is_empty() || self.known.contains(directory)
    }

    /// Makes way for an entry that comes later in the archive than another of its name.
    fn clear(&mut self, path: &Path) -> io::Result<()> {
        for gone in below(self.links.range(path.to_owned()..).map(|(at, _)| at), path) {
            self.links.remove(&gone);
        }
        let at = self.root.join(path);
        match fs::symlink_metadata(&at) {
            Ok(found) => {
                if found.is_dir() {
                    for gone in below(self.known.range(path.to_owned()..), path) {
                        self.known.remove(&gone);
                    }
                    for gone in below(self.layer.implied.range(path.to_owned()..), path) {
                        self.layer.implied.remove(&gone);
                    }
                    let times = self.times.range(path.to_owned()..);
                    for gone in below(times.map(|(at, _)| at), path) {
                        self.times.remove(&gone);
                    }
                }
                let private = self.private.range(path.to_owned()..);
                for gone in below(private.map(|(at, _)| at), path) {
                    self.private.remove(&gone);
                }
                tree::remove(&at)
            }
            Err(_) => Ok(()),
        }
    }

    fn directory(&mut self, path: &Path, header: &Header) -> io::Result<()> {
        let at = self.root.join(path);
        match fs::symlink_metadata(&at) {
            Ok(found) if found.is_dir() => drop(self.layer.implied.remove(path)),
            _ => {
                self.clear(path)?;
                make_directory(&at)?;
            }
        }
        self.remember(path)?;
        self.known.insert(path.to_owned());
        self.remember(path)?;
        self.times.insert(path.to_owned(), time(header));
        self.note(path, header, 0o005)
    }

    fn file(&mut self, path: &Path, header: &Header, content: &mut impl Read) -> io::Result<()> {
        self.clear(path)?;
        let size = header.entry_size()?;
        self.bounds.take(size, 0)?;
        self.layer.bytes += size;
        let runs = header.mode()? & 0o111 != 0;
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(if runs { 0o755 } else { 0o644 })
            .open(self.root.join(path))?;
        let copied = io::copy(&mut content.take(size), &mut file)?;
        if copied != size {
            return Err(refused("it ends in the middle of a file", path));
        }
        if runs {
            // The umask may have taken it away.
            file.set_permissions(Permissions::from_mode(0o755))?;
        }
        // Interpreters compare it with that of what they have compiled.
        file.set_modified(time(header))?;
        self.note(path, header, if runs { 0o005 } else { 0o004 })
    }

    fn note(&mut self, path: &Path, header: &Header, open: u32) -> io::Result<()> {
        let mode = header.mode()? & 0o777;
        if mode & open == open {
            // A directory may be there a second time, open now.
            self.private.remove(path);
        } else {
            self.remember(path)?;
            let who = (header.uid()?, header.gid()?, mode);
            self.private.insert(path.to_owned(), who);
        }
        Ok(())
    }

    fn hard_link(&mut self, path: &Path, target: &[u8]) -> io::Result<()> {
        let target = tree::normal(target).map_err(|reason| refused(reason, path))?;
        // The link itself is linked to, should the target be one.
        let target = if target.parent().is_some_and(|parent| self.is_known(parent)) {
            target
        } else {
            self.steps.resolve(self.root, &target, false)?
        };
        if target == path {
            return Err(refused("a link in it leads to itself", path));
        }
        match fs::symlink_metadata(self.root.join(&target)) {
            Ok(found) if found.is_dir() => Err(refused("it has a hard link to a directory", path)),
            Ok(_) => {
                self.clear(path)?;
                fs::hard_link(self.root.join(&target), self.root.join(path))?;
                if let Some(who) = self.private.get(&target).copied() {
                    self.remember(path)?;
                    self.private.insert(path.to_owned(), who);
                }
                Ok(())
            }
            Err(_) => {
                // The target may be such a link itself, and be replaced later.
                let target = self.links.get(&target).cloned().unwrap_or(target);
                self.clear(path)?;
                self.remember(path)?;
                self.remember(&target)?;
                self.links.insert(path.to_owned(), target);
                Ok(())
            }
        }
    }

    fn finish(mut self) -> io::Result<Layer> {
        for (path, time) in &self.times {
            File::open(self.root.join(path))?.set_modified(*time)?;
        }
        let private = self.private.into_iter();
        let private = private.map(|(path, (uid, gid, mode))| Private {
            path,
            uid,
            gid,
            mode,
        });
        self.layer.private = private.collect();
        self.layer.links = self.links.into_iter().collect();
        Ok(self.layer)
    }
}

/// Of paths that begin with a directory's or come after it: its own, and those below it.
pub(super) fn below<'a>(
    sorted: impl Iterator<Item = &'a PathBuf>,
    directory: &Path,
) -> Vec<PathBuf> {
    let below = sorted.take_while(|path| path.starts_with(directory));
    below.cloned().collect()
}

pub(super) fn make_directory(at: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o755).create(at)?;
    fs::set_permissions(at, Permissions::from_mode(0o755))
}

fn time(header: &Header) -> SystemTime {
    // Beyond the year 9999 file systems disagree.
    let seconds = header.mtime().unwrap_or(0).min(253_402_300_799);
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn entry(tar: &mut tar::Builder<Vec<u8>>, kind: EntryType, name: &str, link: &str) {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(if kind == EntryType::Directory {
            0o700
        } else {
            0o600
        });
        header.set_size(0);
        header.set_uid(0);
        header.set_gid(0);
        if link.is_empty() {
            tar.append_data(&mut header, name, io::empty()).unwrap();
        } else {
            tar.append_link(&mut header, name, link).unwrap();
        }
    }

    fn unpacked(tar: tar::Builder<Vec<u8>>) -> io::Result<Layer> {
        let bytes = tar.into_inner().unwrap();
        let dir = tempfile::tempdir().unwrap();
        unpack(&bytes[..], dir.path(), &mut Bounds::default())
    }

    /// The time it takes grows with the number of entries, not with its square.
    #[test]
    fn many_entries() {
        const MANY: usize = 15_000;
        let (done, ended) = mpsc::channel();
        std::thread::spawn(move || {
            let mut tar = tar::Builder::new(Vec::new());
            for at in 0..MANY {
                entry(&mut tar, EntryType::Regular, &format!("d/{at}"), "");
            }
            for at in 0..MANY {
                let (name, to) = (format!("links/{at}"), format!("d/{at}"));
                entry(&mut tar, EntryType::Link, &name, &to);
            }
            for at in 0..MANY {
                entry(&mut tar, EntryType::Regular, &format!("d/{at}"), "");
            }
            done.send(unpacked(tar)).unwrap();
        });
        let layer = ended.recv_timeout(Duration::from_mins(5));
        let layer = layer.expect("unpacking ends").unwrap();
        assert_eq!(layer.private.len(), 2 * MANY);
    }

    /// Each path through a few links takes many steps, and all of them together too many.
    #[test]
    fn links_that_lead_far() {
        let mut tar = tar::Builder::new(Vec::new());
        entry(&mut tar, EntryType::Directory, "d", "");
        let mut to = String::new();
        for at in 0..20 {
            let name = format!("l{at}");
            let link = format!("{}{to}", "d/../".repeat(24));
            entry(&mut tar, EntryType::Symlink, &name, &link);
            to = name;
        }
        for at in 0..2000 {
            entry(&mut tar, EntryType::Regular, &format!("l19/{at}"), "");
        }
        let error = unpacked(tar).unwrap_err();
        assert!(error.to_string().contains("too many links"), "{error}");
    }

    /// What is remembered of a directory goes with it, and nothing else does.
    #[test]
    fn a_directory_that_is_replaced() {
        let mut tar = tar::Builder::new(Vec::new());
        entry(&mut tar, EntryType::Regular, "a/b/one", "");
        entry(&mut tar, EntryType::Directory, "a/c", "");
        entry(&mut tar, EntryType::Regular, "a-b", "");
        entry(&mut tar, EntryType::Regular, "ab/c", "");
        entry(&mut tar, EntryType::Regular, "a", "");
        let layer = unpacked(tar).unwrap();
        let private: Vec<_> = layer.private.iter().map(|one| one.path.clone()).collect();
        assert_eq!(private, ["a", "a-b", "ab/c"].map(PathBuf::from));
        assert_eq!(layer.implied, BTreeSet::from(["ab".into()]));
    }
}
