//! From a layer's tar file to a directory.
//!
//! The archive is a stranger's. Nothing of it is trusted: names are made normal, links are never followed out of the tree,
//! sizes and numbers are bounded, and what has no place in a sandbox (devices, set-user-id bits, owners) is left out.
//! Everything belongs to whoever unpacks. What the image's own user may read, everyone may: the code is that user.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tar::{Archive, EntryType, Header};

use super::tree;
use crate::pax;

/// Names in headers of their own; the kernel's bound for a path is 4096.
const MOST_NAME_BYTES: u64 = 64 << 10;

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

/// What is to be known about an unpacked layer besides its files.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Layer {
    pub bytes: u64,
    pub entries: u64,
    /// Directories that only stand above something: what is below them counts, they do not.
    pub implied: Vec<PathBuf>,
    /// Hard links to files of a layer below, and to which.
    pub links: Vec<(PathBuf, PathBuf)>,
    /// What not everybody may read.
    pub private: Vec<Private>,
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
        known: HashSet::new(),
        times: Vec::new(),
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

struct Unpacking<'a> {
    root: &'a Path,
    /// Directories that are there, and are no links.
    known: HashSet<PathBuf>,
    /// Of directories: set when nothing is put into them any more.
    times: Vec<(PathBuf, SystemTime)>,
    layer: Layer,
    bounds: &'a mut Bounds,
}

impl Unpacking<'_> {
    fn count(&mut self) -> io::Result<()> {
        self.bounds.entries = self
            .bounds
            .entries
            .checked_sub(1)
            .ok_or_else(|| refused("it has more files than are allowed", Path::new("")))?;
        self.layer.entries += 1;
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
        if parent.as_os_str().is_empty() || self.known.contains(parent) {
            return Ok(path.to_owned());
        }
        let parent = tree::resolve(self.root, parent, true)?;
        let mut at = PathBuf::new();
        for part in parent.components() {
            at.push(part);
            if self.known.contains(&at) {
                continue;
            }
            match fs::symlink_metadata(self.root.join(&at)) {
                Ok(found) if found.is_dir() => {}
                Ok(_) => return Err(refused("a file in it stands where a directory should", &at)),
                Err(_) => {
                    make_directory(&self.root.join(&at))?;
                    self.count()?;
                    self.layer.implied.push(at.clone());
                }
            }
            self.known.insert(at.clone());
        }
        Ok(parent.join(name))
    }

    /// Makes way for an entry that comes later in the archive than another of its name.
    fn clear(&mut self, path: &Path) -> io::Result<()> {
        let at = self.root.join(path);
        match fs::symlink_metadata(&at) {
            Ok(found) => {
                if found.is_dir() {
                    self.known.clear();
                    self.times.retain(|(dir, _)| !dir.starts_with(path));
                    self.layer.implied.retain(|dir| !dir.starts_with(path));
                }
                self.layer.private.retain(|old| !old.path.starts_with(path));
                tree::remove(&at)
            }
            Err(_) => Ok(()),
        }
    }

    fn directory(&mut self, path: &Path, header: &Header) -> io::Result<()> {
        let at = self.root.join(path);
        match fs::symlink_metadata(&at) {
            Ok(found) if found.is_dir() => self.layer.implied.retain(|dir| dir != path),
            _ => {
                self.clear(path)?;
                make_directory(&at)?;
            }
        }
        self.known.insert(path.to_owned());
        self.times.push((path.to_owned(), time(header)));
        self.note(path, header, 0o005)
    }

    fn file(&mut self, path: &Path, header: &Header, content: &mut impl Read) -> io::Result<()> {
        self.clear(path)?;
        let size = header.entry_size()?;
        self.bounds.bytes = self.bounds.bytes.checked_sub(size).ok_or_else(|| {
            refused(
                "its files are larger together than is allowed",
                Path::new(""),
            )
        })?;
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
        if mode & open != open {
            self.layer.private.push(Private {
                path: path.to_owned(),
                uid: header.uid()?,
                gid: header.gid()?,
                mode,
            });
        }
        Ok(())
    }

    fn hard_link(&mut self, path: &Path, target: &[u8]) -> io::Result<()> {
        let target = tree::normal(target).map_err(|reason| refused(reason, path))?;
        // The link itself is linked to, should the target be one.
        let target = tree::resolve(self.root, &target, false)?;
        if target == path {
            return Err(refused("a link in it leads to itself", path));
        }
        match fs::symlink_metadata(self.root.join(&target)) {
            Ok(found) if found.is_dir() => Err(refused("it has a hard link to a directory", path)),
            Ok(_) => {
                self.clear(path)?;
                fs::hard_link(self.root.join(&target), self.root.join(path))?;
                let same = self.layer.private.iter().find(|known| known.path == target);
                if let Some(same) = same.cloned() {
                    let path = path.to_owned();
                    self.layer.private.push(Private { path, ..same });
                }
                Ok(())
            }
            Err(_) => {
                self.layer.links.push((path.to_owned(), target));
                Ok(())
            }
        }
    }

    fn finish(self) -> io::Result<Layer> {
        for (path, time) in self.times.iter().rev() {
            File::open(self.root.join(path))?.set_modified(*time)?;
        }
        Ok(self.layer)
    }
}

fn make_directory(at: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o755).create(at)?;
    fs::set_permissions(at, Permissions::from_mode(0o755))
}

fn time(header: &Header) -> SystemTime {
    // Beyond the year 9999 file systems disagree.
    let seconds = header.mtime().unwrap_or(0).min(253_402_300_799);
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}
