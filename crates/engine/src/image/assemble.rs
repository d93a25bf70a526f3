//! From unpacked layers to one root: a tree of hard links to the layers' files, which are thus shared by all images.
//!
//! One tree, so that a sandbox is made from an image with as few mounts as from the host, for an ordinary user too.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::tree::{self, Steps};
use super::unpack::{Access, Layer, below, make_directory};
use super::user::User;

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

/// A root that is being made of layers, the lowest first.
pub(super) struct Root<'a> {
    at: &'a Path,
    /// What not everybody may read of what is in it now, as the topmost layer that has it says.
    private: BTreeMap<PathBuf, Access>,
    steps: Steps,
}

impl<'a> Root<'a> {
    /// In a directory that is there and empty.
    pub fn new(at: &'a Path) -> Self {
        Self {
            at,
            private: BTreeMap::new(),
            steps: Steps::new(),
        }
    }

    /// Lays a layer over what is there already.
    pub fn lay(&mut self, layer: &Path, record: &Layer) -> io::Result<()> {
        self.steps.allow(record.entries);
        // What it takes away was below it, also where a link leads to what it brings: so that comes first, everywhere.
        self.take_away(layer, record)?;
        self.bring(layer, record)?;
        for (path, target) in &record.links {
            self.link(path, target)?;
        }
        Ok(())
    }

    fn take_away(&mut self, layer: &Path, record: &Layer) -> io::Result<()> {
        let mut pending = vec![(PathBuf::new(), PathBuf::new())];
        while let Some((from, to)) = pending.pop() {
            let mut names = names(&layer.join(&from))?;
            names.sort_by_key(|name| !name.as_bytes().starts_with(WHITEOUT));
            for name in names {
                if name.as_bytes() == OPAQUE {
                    match fs::read_dir(self.at.join(&to)) {
                        Ok(listing) => {
                            for entry in listing {
                                self.remove(&to.join(entry?.file_name()))?;
                            }
                        }
                        // What led here may have been taken away meanwhile.
                        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                        Err(error) => return Err(error),
                    }
                } else if let Some(hidden) = name.as_bytes().strip_prefix(WHITEOUT) {
                    if !hidden.is_empty() && hidden != b"." && hidden != b".." {
                        self.remove(&to.join(OsStr::from_bytes(hidden)))?;
                    }
                } else if fs::symlink_metadata(layer.join(&from).join(&name))?.is_dir() {
                    let (from, to) = (from.join(&name), to.join(&name));
                    if let Some(to) = self.existing(&to, record.implied.contains(&from))? {
                        pending.push((from, to));
                    }
                }
            }
        }
        Ok(())
    }

    fn bring(&mut self, layer: &Path, record: &Layer) -> io::Result<()> {
        let mut pending = vec![(PathBuf::new(), PathBuf::new())];
        while let Some((from, to)) = pending.pop() {
            for name in names(&layer.join(&from))? {
                if name.as_bytes().starts_with(WHITEOUT) {
                    continue;
                }
                let (from, to) = (from.join(&name), to.join(&name));
                let source = layer.join(&from);
                if fs::symlink_metadata(&source)?.is_dir() {
                    let implied = record.implied.contains(&from);
                    let to = self.directory(to, implied)?;
                    if !implied {
                        self.note(&to, record.access(&from));
                    }
                    pending.push((from, to));
                } else {
                    self.remove(&to)?;
                    fs::hard_link(&source, self.at.join(&to))?;
                    self.note(&to, record.access(&from));
                }
            }
        }
        Ok(())
    }

    /// A hard link to a file of a layer below, with that file's owner and mode.
    fn link(&mut self, path: &Path, target: &Path) -> io::Result<()> {
        let target = self.steps.resolve(self.at, target, false)?;
        let parent = path.parent().unwrap_or(Path::new(""));
        let parent = self.steps.resolve(self.at, parent, true)?;
        let to = parent.join(path.file_name().unwrap_or_default());
        let found = fs::symlink_metadata(self.at.join(&target));
        if !found.is_ok_and(|found| !found.is_dir()) {
            let text = format!(
                "it has a hard link to what is not there: {}",
                belljar_spec::shown(&path.to_string_lossy())
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        if to == target {
            return Ok(());
        }
        let access = self.private.get(&target).copied();
        self.remove(&to)?;
        fs::hard_link(self.at.join(target), self.at.join(&to))?;
        self.note(&to, access);
        Ok(())
    }

    fn note(&mut self, path: &Path, access: Option<Access>) {
        match access {
            Some(access) => drop(self.private.insert(path.to_owned(), access)),
            None => drop(self.private.remove(path)),
        }
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        let private = self.private.range(path.to_owned()..);
        for gone in below(private.map(|(at, _)| at), path) {
            self.private.remove(&gone);
        }
        tree::remove(&self.at.join(path))
    }

    /// The directory of the root that one of a layer is laid over. One that only stands above something may be a link there.
    fn existing(&mut self, to: &Path, implied: bool) -> io::Result<Option<PathBuf>> {
        match fs::symlink_metadata(self.at.join(to)) {
            Ok(found) if found.is_dir() => Ok(Some(to.to_owned())),
            Ok(found) if found.is_symlink() && implied => {
                let real = self.steps.resolve(self.at, to, true)?;
                let found = fs::symlink_metadata(self.at.join(&real));
                Ok(found.is_ok_and(|found| found.is_dir()).then_some(real))
            }
            _ => Ok(None),
        }
    }

    fn directory(&mut self, to: PathBuf, implied: bool) -> io::Result<PathBuf> {
        if let Some(real) = self.existing(&to, implied)? {
            return Ok(real);
        }
        self.remove(&to)?;
        make_directory(&self.at.join(&to))?;
        Ok(to)
    }

    /// Takes out what the image's user may not read: no mode would keep it from code that owns its files, or has a layer
    /// of its own over them. Root-only images stay as they are: that user reads all.
    pub fn hide(&self, user: &User) -> io::Result<()> {
        // A file with many names is still one.
        let mut hidden: HashMap<u64, PathBuf> = HashMap::new();
        let mut closed: Option<&Path> = None;
        for (path, access) in &self.private {
            // Sorted by their parts: what is below a directory follows it.
            if closed.is_some_and(|closed| path.starts_with(closed)) {
                continue;
            }
            let at = self.at.join(path);
            let found = fs::symlink_metadata(&at)?;
            if found.is_dir() {
                if !user.may_pass(*access) {
                    tree::remove(&at)?;
                    DirBuilder::new().mode(0o700).create(&at)?;
                    closed = Some(path);
                } else if !user.may_read(*access) {
                    fs::set_permissions(&at, Permissions::from_mode(0o711))?;
                }
            } else if !user.may_read(*access) {
                // The file itself is shared with other images.
                fs::remove_file(&at)?;
                if let Some(other) = hidden.get(&found.ino())
                    && fs::hard_link(other, &at).is_ok()
                {
                    continue;
                }
                hidden.insert(found.ino(), at.clone());
                let mut empty = OpenOptions::new();
                empty.write(true).create_new(true).mode(0o600).open(&at)?;
            }
        }
        Ok(())
    }
}

fn names(directory: &Path) -> io::Result<Vec<OsString>> {
    let listing = fs::read_dir(directory)?;
    let names = listing.map(|entry| entry.map(|entry| entry.file_name()));
    names.collect()
}

/// Times of the layers' directories, once nothing is put into them any more.
pub(super) fn copy_times(layer: &Path, root: &Path) -> io::Result<()> {
    let mut pending = vec![PathBuf::new()];
    while let Some(at) = pending.pop() {
        for entry in fs::read_dir(layer.join(&at))? {
            let entry = entry?;
            if !entry.file_type()?.is_dir() {
                continue;
            }
            let path = at.join(entry.file_name());
            let ours = root.join(&path);
            if fs::symlink_metadata(&ours).is_ok_and(|found| found.is_dir()) {
                File::open(&ours)?.set_modified(entry.metadata()?.modified()?)?;
                pending.push(path);
            }
        }
    }
    Ok(())
}

/// Puts a file of ours into a root, in place of the image's.
pub(super) fn put(root: &Path, path: &str, content: &str) -> io::Result<()> {
    let at = Path::new(path);
    let parent = tree::resolve(root, at.parent().unwrap_or(Path::new("")), true)?;
    let parent = root.join(parent);
    if !parent.is_dir() {
        tree::remove(&parent)?;
        fs::create_dir_all(&parent)?;
    }
    let at = parent.join(at.file_name().unwrap_or_default());
    tree::remove(&at)?;
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(at)?
        .write_all(content.as_bytes())
}
