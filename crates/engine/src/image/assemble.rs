//! From unpacked layers to one root: a tree of hard links to the layers' files, which are thus shared by all images.
//!
//! One tree, so that a sandbox is made from an image with as few mounts as from the host, for an ordinary user too.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::tree;
use super::unpack::{Layer, Private};
use super::user::User;

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

/// Lays a layer over what is in `root` already.
pub(super) fn lay(layer: &Path, record: &Layer, root: &Path) -> io::Result<()> {
    let mut pending = vec![(PathBuf::new(), PathBuf::new())];
    while let Some((from, to)) = pending.pop() {
        let mut names: Vec<_> = fs::read_dir(layer.join(&from))?
            .map(|entry| entry.map(|entry| entry.file_name()))
            .collect::<io::Result<_>>()?;
        // What the layer takes away was below it; so that comes before what it brings.
        names.sort_by_key(|name| !name.as_bytes().starts_with(WHITEOUT));
        for name in names {
            let source = layer.join(&from).join(&name);
            if name.as_bytes() == OPAQUE {
                for entry in fs::read_dir(root.join(&to))? {
                    tree::remove(&entry?.path())?;
                }
                continue;
            }
            if let Some(hidden) = name.as_bytes().strip_prefix(WHITEOUT) {
                if !hidden.is_empty() && hidden != b"." && hidden != b".." {
                    tree::remove(&root.join(&to).join(std::ffi::OsStr::from_bytes(hidden)))?;
                }
                continue;
            }
            let (from, to) = (from.join(&name), to.join(&name));
            let found = fs::symlink_metadata(&source)?;
            if found.is_dir() {
                let implied = record.implied.contains(&from);
                pending.push((from, directory(root, to, implied)?));
            } else {
                tree::remove(&root.join(&to))?;
                fs::hard_link(&source, root.join(&to))?;
            }
        }
    }
    for (path, target) in &record.links {
        let target = root.join(tree::resolve(root, target, false)?);
        let parent = path.parent().unwrap_or(Path::new(""));
        let at = tree::resolve(root, parent, true)?.join(path.file_name().unwrap_or_default());
        if !fs::symlink_metadata(&target).is_ok_and(|found| !found.is_dir()) {
            let text = format!(
                "it has a hard link to what is not there: {}",
                belljar_spec::shown(&path.to_string_lossy())
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        tree::remove(&root.join(&at))?;
        fs::hard_link(target, root.join(&at))?;
    }
    Ok(())
}

/// The directory of the root that one of a layer becomes. One that only stands above something may be a link there.
fn directory(root: &Path, to: PathBuf, implied: bool) -> io::Result<PathBuf> {
    let at = root.join(&to);
    match fs::symlink_metadata(&at) {
        Ok(found) if found.is_dir() => return Ok(to),
        Ok(found) if found.is_symlink() && implied => {
            let real = tree::resolve(root, &to, true)?;
            if fs::symlink_metadata(root.join(&real)).is_ok_and(|found| found.is_dir()) {
                return Ok(real);
            }
            tree::remove(&at)?;
        }
        Ok(_) => tree::remove(&at)?,
        Err(_) => {}
    }
    DirBuilder::new().mode(0o755).create(&at)?;
    Ok(to)
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

/// Takes from everyone what the image's user may not read. Files of root-only images stay as they are: that user reads all.
pub(super) fn hide(root: &Path, layer: &Path, private: &[Private], user: &User) -> io::Result<()> {
    // A file with many names is still one.
    let mut copies: HashMap<u64, PathBuf> = HashMap::new();
    for entry in private.iter().filter(|entry| !user.may_read(entry)) {
        // A layer above may have put a link in the place of a directory, and links lead anywhere.
        if tree::resolve(root, &entry.path, true)? != entry.path {
            continue;
        }
        let (at, source) = (root.join(&entry.path), layer.join(&entry.path));
        let (Ok(ours), Ok(theirs)) = (fs::symlink_metadata(&at), fs::symlink_metadata(&source))
        else {
            continue;
        };
        if ours.is_dir() {
            fs::set_permissions(&at, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
        } else if same(&ours, &theirs) {
            // The file itself is shared with other images.
            let mut content = File::open(&source)?;
            fs::remove_file(&at)?;
            if let Some(copy) = copies.get(&theirs.ino())
                && fs::hard_link(copy, &at).is_ok()
            {
                continue;
            }
            copies.insert(theirs.ino(), at.clone());
            let mut copy = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&at)?;
            io::copy(&mut content, &mut copy)?;
        }
    }
    Ok(())
}

fn same(one: &fs::Metadata, other: &fs::Metadata) -> bool {
    one.is_file() && (one.dev(), one.ino()) == (other.dev(), other.ino())
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
