//! Paths inside a directory tree that a stranger made, resolved as a process whose root it is would.
//!
//! Nobody else writes to these trees while we do: they lie in a directory of our own. So it is enough that no step goes
//! through a link of theirs; each part of a path is looked at before the next is appended.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// As many as the kernel follows.
const MOST_LINKS: usize = 40;
/// Parts of one path, with those of the links in it.
const MOST_STEPS: u64 = 1024;
const MOST_BYTES: usize = 4096;
const DEEPEST: usize = 256;

/// A path below a root, without `.`, `..` or a leading slash. May be empty: the root itself.
///
/// A path that would leave the root is an error, also where a link is what it goes through.
pub(super) fn normal(path: &[u8]) -> Result<PathBuf, &'static str> {
    if path.len() > MOST_BYTES {
        return Err("a path in it is too long");
    }
    if path.contains(&0) {
        return Err("a path in it has a NUL byte");
    }
    let mut normal = PathBuf::new();
    for part in Path::new(OsStr::from_bytes(path)).components() {
        match part {
            // Archives of whole systems are often made with absolute names.
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) if name.len() > 255 => {
                return Err("a name in it is too long");
            }
            Component::Normal(name) => normal.push(name),
            Component::ParentDir | Component::Prefix(_) => {
                return Err("a path in it leads out of it");
            }
        }
    }
    if normal.components().count() > DEEPEST {
        return Err("its directories are too deep");
    }
    Ok(normal)
}

/// How many steps the paths of a whole archive may take: a few links can lead each of them through thousands of parts.
#[derive(Debug)]
pub(super) struct Steps {
    left: u64,
}

impl Steps {
    const FIRST: u64 = 1 << 20;
    const FOR_EACH: u64 = 64;

    pub fn new() -> Self {
        Self { left: Self::FIRST }
    }

    /// With so many entries more.
    pub fn allow(&mut self, entries: u64) {
        let more = entries.saturating_mul(Self::FOR_EACH);
        self.left = self.left.saturating_add(more);
    }

    /// As the function of that name, of these steps.
    pub fn resolve(&mut self, root: &Path, path: &Path, last: bool) -> io::Result<PathBuf> {
        let mut taken = 0;
        let resolved = walk(root, path, last, &mut taken);
        self.left = self.left.checked_sub(taken).ok_or_else(|| {
            let text = "the paths in it lead through too many links and directories";
            io::Error::new(io::ErrorKind::InvalidData, text)
        })?;
        resolved
    }
}

/// What a path below `root` really is: links on the way are followed inside, and the last one too if `last`.
///
/// Parts that do not exist are taken as they are. The answer is below the root and goes through no link.
pub(super) fn resolve(root: &Path, path: &Path, last: bool) -> io::Result<PathBuf> {
    walk(root, path, last, &mut 0)
}

fn walk(root: &Path, path: &Path, last: bool, taken: &mut u64) -> io::Result<PathBuf> {
    let mut pending: VecDeque<OsString> = parts(path);
    let mut at = PathBuf::new();
    let mut links = 0;
    while let Some(part) = pending.pop_front() {
        *taken += 1;
        if *taken > MOST_STEPS {
            return Err(io::Error::from_raw_os_error(40));
        }
        if part == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&part);
        let follow = last || !pending.is_empty();
        match fs::read_link(root.join(&next)) {
            Ok(to) if follow => {
                links += 1;
                if links > MOST_LINKS {
                    return Err(io::Error::from_raw_os_error(40));
                }
                if to.has_root() {
                    at = PathBuf::new();
                }
                let mut ahead = parts(&to);
                ahead.append(&mut pending);
                pending = ahead;
                // Before more of it is copied around.
                if pending.len() as u64 > MOST_STEPS {
                    return Err(io::Error::from_raw_os_error(40));
                }
            }
            _ => at = next,
        }
        if at.as_os_str().len() > MOST_BYTES {
            return Err(io::Error::from_raw_os_error(36));
        }
    }
    Ok(at)
}

fn parts(path: &Path) -> VecDeque<OsString> {
    let part = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    };
    path.components().filter_map(part).collect()
}

/// Removes whatever is there, without following a link. What is not there is no error.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn normal_paths() {
        let at = |text: &str| normal(text.as_bytes()).map(|path| path.display().to_string());
        assert_eq!(at("./usr//bin/"), Ok("usr/bin".into()));
        assert_eq!(at("/etc/passwd"), Ok("etc/passwd".into()));
        assert_eq!(at("./"), Ok(String::new()));
        for bad in [
            "..",
            "a/../../b",
            "a/..",
            "x\0y",
            &"n".repeat(256),
            &"d/".repeat(300),
        ] {
            assert!(at(bad).is_err(), "{bad:?}");
        }
        assert!(normal(&[b'a'; 5000]).is_err());
    }

    #[test]
    fn links_stay_inside() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir_all(root.join("usr/lib")).unwrap();
        let link = |to: &str, at: &str| symlink(to, root.join(at)).unwrap();
        link("usr/lib", "lib");
        link("/etc", "out");
        link("../../../../etc", "up");
        link("loop", "loop");
        link("/lib/x", "usr/abs");
        let at = |path: &str| {
            resolve(root, Path::new(path), true).map(|path| path.display().to_string())
        };
        assert_eq!(at("/lib/a").unwrap(), "usr/lib/a");
        assert_eq!(at("out/passwd").unwrap(), "etc/passwd");
        assert_eq!(at("up/passwd").unwrap(), "etc/passwd");
        assert_eq!(at("usr/abs").unwrap(), "usr/lib/x");
        assert_eq!(at("nothing/../lib").unwrap(), "usr/lib");
        assert_eq!(at("loop").unwrap_err().raw_os_error(), Some(40));
        // Few links, but each through many directories.
        link(&"usr/../".repeat(400), "long");
        link(&format!("{}long", "usr/../".repeat(400)), "longer");
        assert_eq!(at("long/lib").unwrap(), "usr/lib");
        assert_eq!(at("longer/lib").unwrap_err().raw_os_error(), Some(40));
        let mut steps = Steps { left: 5 };
        steps.allow(1);
        let path = Path::new("usr/lib/a");
        let taken = (0..100).take_while(|_| steps.resolve(root, path, true).is_ok());
        assert_eq!(taken.count(), 23);
        let unfollowed = resolve(root, Path::new("usr/abs"), false).unwrap();
        assert_eq!(unfollowed, Path::new("usr/abs"));
    }
}
