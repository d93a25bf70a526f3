//! A directory that is named by what is in it.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, lchown};
use std::path::{Path, PathBuf};

use belljar_jail::host;
use sha2::{Digest, Sha256};

/// Far more than any set of packages has.
const MAX_ENTRIES: usize = 1_000_000;

/// Everything below `place` as it shall stay, and its digest.
pub fn seal(place: &Path) -> io::Result<String> {
    for (path, kind) in walk(place)? {
        // An installer in a container has a user of its own, of whom there may be another one on this host.
        if host::is_root() {
            lchown(&path, Some(0), Some(0))?;
        }
        let mode = match kind {
            Kind::Directory => 0o755,
            Kind::File => 0o644 | (fs::symlink_metadata(&path)?.permissions().mode() & 0o111),
            Kind::Link => continue,
            // Nothing of an index has a socket or a device in it.
            Kind::Other => {
                fs::remove_file(&path)?;
                continue;
            }
        };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
    }
    fs::set_permissions(place, fs::Permissions::from_mode(0o755))?;
    digest(place)
}

/// Over names, kinds, modes and contents, in the order of names.
pub fn digest(place: &Path) -> io::Result<String> {
    let mut all = walk(place)?;
    all.sort_by(|a, b| a.0.cmp(&b.0));
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 256 << 10];
    for (path, kind) in all {
        let name = path.strip_prefix(place).unwrap_or(&path);
        let mode = fs::symlink_metadata(&path)?.permissions().mode() & 0o7777;
        let mut field = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        field(name.as_os_str().as_bytes());
        match kind {
            Kind::Directory => field(b"d"),
            Kind::Other => field(b"o"),
            Kind::Link => {
                field(b"l");
                field(fs::read_link(&path)?.as_os_str().as_bytes());
            }
            Kind::File => {
                field(b"f");
                field(&mode.to_le_bytes());
                let mut file = File::open(&path)?;
                field(&file.metadata()?.len().to_le_bytes());
                loop {
                    let length = file.read(&mut buffer)?;
                    if length == 0 {
                        break;
                    }
                    hash.update(&buffer[..length]);
                }
            }
        }
    }
    Ok(format!("{:x}", hash.finalize()))
}

#[derive(Clone, Copy)]
enum Kind {
    Directory,
    File,
    Link,
    Other,
}

/// Without following links, and without recursion: an installer may have been asked to go deep.
fn walk(place: &Path) -> io::Result<Vec<(PathBuf, Kind)>> {
    let mut found = Vec::new();
    let mut left = vec![place.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            let path = entry.path();
            let kind = if kind.is_dir() {
                left.push(path.clone());
                Kind::Directory
            } else if kind.is_symlink() {
                Kind::Link
            } else if kind.is_file() {
                Kind::File
            } else {
                Kind::Other
            };
            found.push((path, kind));
            if found.len() > MAX_ENTRIES {
                return Err(io::Error::other("the packages have too many files"));
            }
        }
    }
    Ok(found)
}

/// Whatever modes an installer has left.
pub fn remove(place: &Path) {
    if fs::remove_dir_all(place).is_err() {
        for (path, kind) in walk(place).unwrap_or_default() {
            if matches!(kind, Kind::Directory) {
                let _ = fs::set_permissions(&path, fs::Permissions::from_mode(0o700));
            }
        }
        let _ = fs::remove_dir_all(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn every_change_shows() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        fs::create_dir(at("a")).unwrap();
        fs::write(at("a/b.py"), "x = 1").unwrap();
        symlink("b.py", at("a/link")).unwrap();
        let first = seal(place.path()).unwrap();
        assert_eq!(digest(place.path()).unwrap(), first);
        let mut seen = vec![first];
        let mut changed = |what: &str| {
            let now = digest(place.path()).unwrap();
            assert!(!seen.contains(&now), "{what}");
            seen.push(now);
        };
        fs::write(at("a/b.py"), "x = 2").unwrap();
        changed("content");
        fs::rename(at("a/b.py"), at("a/c.py")).unwrap();
        changed("name");
        fs::set_permissions(at("a/c.py"), fs::Permissions::from_mode(0o755)).unwrap();
        changed("mode");
        fs::remove_file(at("a/link")).unwrap();
        symlink("/etc/passwd", at("a/link")).unwrap();
        changed("link");
        fs::create_dir(at("d")).unwrap();
        changed("directory");
    }
}
