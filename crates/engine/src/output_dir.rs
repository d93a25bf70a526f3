//! A directory of the host into which files of a sandbox come.
//!
//! It may lie in a volume that the code can write to, so its name means nothing once code runs: it is opened before, and
//! everything is put beneath the descriptor, by way of no link.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use belljar_jail::{beneath, directory};
use belljar_spec::{Error, Volume};

use crate::workspace::Temporary;

/// Where files are put that come out.
#[derive(Debug)]
pub struct OutputDirectory {
    directory: File,
    left_behind: Mutex<LeftBehind>,
}

/// What the code wrote and did not come out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftBehind {
    /// The first, by the names they would have, and why.
    pub first: Vec<(PathBuf, String)>,
    /// How many besides.
    pub more: usize,
    /// Which files were not even listed, if there were such.
    pub unlisted: Option<String>,
    /// Some could not be written where they were to go. The rest is owed to how many, how large, and called what they are.
    pub unwritten: bool,
}

impl LeftBehind {
    /// Nobody reads a longer list.
    const NAMED: usize = 5;

    pub fn is_empty(&self) -> bool {
        self.first.is_empty() && self.unlisted.is_none()
    }

    pub(crate) fn add(&mut self, name: PathBuf, reason: String) {
        if self.first.len() == Self::NAMED {
            self.more += 1;
        } else {
            self.first.push((name, reason));
        }
    }
}

impl From<File> for OutputDirectory {
    fn from(directory: File) -> Self {
        Self {
            directory,
            left_behind: Mutex::default(),
        }
    }
}

impl OutputDirectory {
    /// What did not get here, once files have been copied.
    pub fn left_behind(&self) -> LeftBehind {
        let left = self.left_behind.lock();
        left.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn note(&self, left: LeftBehind) {
        let noted = self.left_behind.lock();
        *noted.unwrap_or_else(PoisonError::into_inner) = left;
    }

    /// Opens it, makes it if need be, and sees that files can be put there: when the program has ended it is too late to say that
    /// they cannot. Links in volumes that code may write to are not followed: an earlier run may have left them.
    pub fn open(path: &Path, volumes: &[Volume]) -> Result<Self, Error> {
        let failed = |error: &io::Error| {
            Error::invalid_file("--output-dir", &path.to_string_lossy(), reason(error))
        };
        let directory = find(path, volumes).map_err(|error| failed(&error))?;
        directory.try_out().map_err(|error| failed(&error))?;
        Ok(directory)
    }

    /// A new file, and the directories above it.
    pub fn create(&self, name: &Path) -> io::Result<File> {
        beneath::create_file(self.directory.as_fd(), name, None)
    }

    /// One that takes the place of a file or link that may be there, when it is complete. Until then, and if it never is, that stays.
    pub(crate) fn replace(&self, name: &Path) -> io::Result<Replacement> {
        let above = name.parent().unwrap_or(Path::new(""));
        let parent = beneath::create_directories(self.directory.as_fd(), above, None)?;
        let name = name.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let temporary = Temporary::new().map_err(io::Error::other)?;
        let file = beneath::create_file(parent.as_fd(), Path::new(temporary.name()), None)?;
        Ok(Replacement {
            file,
            parent,
            temporary,
            name: name.to_owned(),
            done: false,
        })
    }

    fn try_out(&self) -> io::Result<()> {
        let probe = format!(".belljar-{}", std::process::id());
        match self.create(Path::new(&probe)) {
            Ok(_) => beneath::remove_file(self.directory.as_fd(), Path::new(&probe)),
            // Whoever left it could write there too.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// A file that does not have its name yet. Dropped before that, it leaves nothing.
pub(crate) struct Replacement {
    file: File,
    parent: OwnedFd,
    temporary: Temporary,
    name: OsString,
    done: bool,
}

impl Replacement {
    /// All has been written to it.
    pub fn finish(mut self) -> io::Result<()> {
        directory::rename(self.parent.as_fd(), self.temporary.name(), &self.name)?;
        self.done = true;
        Ok(())
    }
}

impl Write for Replacement {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if !self.done {
            let _ = beneath::remove_file(self.parent.as_fd(), Path::new(self.temporary.name()));
        }
    }
}

fn find(path: &Path, volumes: &[Volume]) -> io::Result<OutputDirectory> {
    let wanted = plain(path)?;
    for volume in volumes.iter().filter(|volume| volume.writable) {
        // One that is not there is refused by whoever mounts it.
        let Ok(source) = fs::canonicalize(&volume.source) else {
            continue;
        };
        if let Some(below) = below(&wanted, &source) {
            let source = File::open(source)?;
            let opened = beneath::create_directories(source.as_fd(), &below, None)?;
            return Ok(File::from(opened).into());
        }
    }
    fs::create_dir_all(path)?;
    File::open(path).map(OutputDirectory::from)
}

/// How to get from a volume to a path that lies in it. Links are followed until it is reached, and not from there on.
fn below(wanted: &Path, volume: &Path) -> Option<PathBuf> {
    let mut ancestors: Vec<_> = wanted.ancestors().collect();
    ancestors.reverse();
    ancestors.into_iter().find_map(|ancestor| {
        let real = fs::canonicalize(ancestor).ok()?;
        let way = real.strip_prefix(volume).ok()?;
        Some(way.join(wanted.strip_prefix(ancestor).ok()?))
    })
}

/// Absolute and without `.` and `..`, by its letters alone.
fn plain(path: &Path) -> io::Result<PathBuf> {
    let mut plain = PathBuf::new();
    for part in std::path::absolute(path)?.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    Ok(plain)
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
            "a file is in the way, or a link that code may have made; give a directory".into()
        }
        io::ErrorKind::PermissionDenied => "you may not write there".into(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_in_writable_volumes_are_not_followed() {
        let dir = tempfile::tempdir().expect("tempdir");
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("volume/kept")).expect("directories");
        fs::create_dir_all(at("victim")).expect("directories");
        symlink(at("victim"), at("volume/out")).expect("link");
        symlink(at("volume"), at("another")).expect("link");
        let volume = |writable| Volume {
            source: at("volume").to_string_lossy().into(),
            destination: "/data".into(),
            writable,
        };
        for name in [
            "volume/out",
            "volume/out/deeper",
            "another/out",
            "victim/../volume/out",
        ] {
            let refused = OutputDirectory::open(&at(name), &[volume(true)]);
            let message = refused.expect_err(name).to_string();
            assert!(
                message.contains("a link that code may have made"),
                "{message}"
            );
        }
        assert_eq!(fs::read_dir(at("victim")).expect("victim").count(), 0);
        // Nobody but the caller can have made that one.
        OutputDirectory::open(&at("volume/out"), &[volume(false)]).expect("a link of the caller");
        for name in ["another/kept", "volume/new/deep", "volume"] {
            OutputDirectory::open(&at(name), &[volume(true)]).expect(name);
        }
    }

    #[test]
    fn it_is_the_directory_that_was_opened() {
        let dir = tempfile::tempdir().expect("tempdir");
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("victim")).expect("directories");
        let opened = OutputDirectory::open(&at("out"), &[]).expect("directory");
        fs::rename(at("out"), at("moved")).expect("rename");
        symlink(at("victim"), at("out")).expect("link");
        symlink(at("victim"), at("moved/linked")).expect("link");
        symlink(at("victim/file"), at("moved/file")).expect("link");
        let mut file = opened.replace(Path::new("file")).expect("a file");
        file.write_all(b"x").expect("written");
        file.finish().expect("its name");
        let deeper = opened.replace(Path::new("a/b")).expect("a file");
        deeper.finish().expect("its name");
        assert!(opened.replace(Path::new("linked/file")).is_err());
        assert_eq!(fs::read(at("moved/file")).expect("file"), b"x");
        assert_eq!(fs::read_dir(at("victim")).expect("victim").count(), 0);
    }

    #[test]
    fn what_is_not_finished_leaves_the_earlier_file() {
        let dir = tempfile::tempdir().expect("tempdir");
        let opened = OutputDirectory::open(dir.path(), &[]).expect("directory");
        let name = Path::new("out.txt");
        fs::write(dir.path().join(name), "earlier").expect("written");
        let mut file = opened.replace(name).expect("a file");
        file.write_all(b"la").expect("written");
        drop(file);
        let names: Vec<_> = fs::read_dir(dir.path()).expect("listed").collect();
        assert_eq!(names.len(), 1);
        let now = fs::read_to_string(dir.path().join(name)).expect("read");
        assert_eq!(now, "earlier");
    }
}
