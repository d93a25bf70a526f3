//! What is remembered between runs, in small files: what probes said, one for each runtime, and what others put here.
//!
//! A record holds as long as every file it came from is the same file, unchanged. A record that cannot be read, is not
//! ours, or says something else than expected does not exist; a record that cannot be written is no error.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use belljar_jail::host;
use serde::{Deserialize, Serialize};

const MAX_RECORD: u64 = 256 << 10;
const SYSTEM_DIRECTORY: &str = "/var/cache/belljar";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    /// Of the manifest and of what the probe reads of the environment.
    pub hash: u64,
    /// Candidates that were on the host, in order of preference, up to the one that answered.
    pub candidates: Vec<PathBuf>,
    /// Which alternative of the manifest the last candidate belongs to.
    pub alternative: usize,
    pub program: PathBuf,
    pub mounts: Vec<PathBuf>,
    pub vars: BTreeMap<String, String>,
    /// Files that must not have changed.
    pub stamps: Vec<Stamp>,
}

/// A file as it was; absence counts, so that what appears later is seen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stamp {
    path: PathBuf,
    /// Device, inode, size, time of change.
    seen: Option<(u64, u64, u64, i64, i64)>,
}

impl Stamp {
    pub fn of(path: &Path) -> Self {
        let seen = fs::metadata(path).ok().map(|meta| {
            (
                meta.dev(),
                meta.ino(),
                meta.len(),
                meta.mtime(),
                meta.mtime_nsec(),
            )
        });
        Self {
            path: path.to_owned(),
            seen,
        }
    }

    fn holds(&self) -> bool {
        Self::of(&self.path) == *self
    }
}

/// Where records are kept, if anywhere.
#[derive(Debug, Clone)]
pub struct Cache {
    directory: Option<PathBuf>,
    uid: Option<u32>,
}

impl Cache {
    /// `/var/cache/belljar` for root, else `$XDG_CACHE_HOME/belljar` or `~/.cache/belljar`.
    pub fn of_caller() -> Self {
        let uid = host::effective_user();
        let directory = if uid == 0 {
            Some(PathBuf::from(SYSTEM_DIRECTORY))
        } else {
            let absolute = |name| {
                std::env::var_os(name)
                    .map(PathBuf::from)
                    .filter(|path| path.is_absolute())
            };
            absolute("XDG_CACHE_HOME")
                .or_else(|| Some(absolute("HOME")?.join(".cache")))
                .map(|dir| dir.join("belljar"))
        };
        Self {
            directory,
            uid: Some(uid),
        }
    }

    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: Some(directory.into()),
            uid: Some(host::effective_user()),
        }
    }

    /// Our own directory, if we have one that nobody else can write to.
    pub(crate) fn private(&self) -> Option<&Path> {
        let directory = self.directory.as_deref()?;
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .ok()?;
        self.is_ours(&fs::symlink_metadata(directory).ok()?)
            .then_some(directory)
    }

    pub fn none() -> Self {
        Self {
            directory: None,
            uid: None,
        }
    }

    pub(super) fn load(&self, name: &str, hash: u64) -> Option<Record> {
        let (bytes, _) = self.get(&file_name(name))?;
        let record: Record = serde_json::from_slice(&bytes).ok()?;
        (record.hash == hash && record.stamps.iter().all(Stamp::holds)).then_some(record)
    }

    pub(super) fn store(&self, name: &str, record: &Record) {
        if let Ok(bytes) = serde_json::to_vec(record) {
            self.put(&file_name(name), &bytes);
        }
    }

    /// What was put there, if nobody else can have, and when.
    pub(crate) fn get(&self, file: &str) -> Option<(Vec<u8>, SystemTime)> {
        let directory = self.directory.as_ref()?;
        if !self.is_ours(&fs::symlink_metadata(directory).ok()?) {
            return None;
        }
        let file = File::open(directory.join(file)).ok()?;
        let meta = file.metadata().ok()?;
        if !meta.is_file() || !self.is_ours(&meta) {
            return None;
        }
        // Sized, or the reads would grow from 32 bytes on.
        let mut bytes = Vec::with_capacity(usize::try_from(meta.len().min(MAX_RECORD)).ok()? + 1);
        file.take(MAX_RECORD).read_to_end(&mut bytes).ok()?;
        Some((bytes, meta.modified().ok()?))
    }

    /// That it cannot be put there is no error.
    pub(crate) fn put(&self, file: &str, bytes: &[u8]) {
        let _ = self.try_put(file, bytes);
    }

    fn try_put(&self, name: &str, bytes: &[u8]) -> Option<()> {
        let directory = self.private()?;
        // Written aside and renamed: a reader sees the old record or the new one.
        let aside = directory.join(format!(".{name}.{}", std::process::id()));
        let _ = fs::remove_file(&aside);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&aside)
            .ok()?;
        let written = file.write_all(bytes);
        if written
            .and_then(|()| fs::rename(&aside, directory.join(name)))
            .is_err()
        {
            let _ = fs::remove_file(&aside);
        }
        Some(())
    }

    /// Whoever else could write here would choose which program is run and what is mounted.
    fn is_ours(&self, meta: &fs::Metadata) -> bool {
        Some(meta.uid()) == self.uid && meta.mode() & 0o022 == 0 && !meta.is_symlink()
    }
}

fn file_name(name: &str) -> String {
    format!("runtime-{name}.json")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn record(watched: &Path) -> Record {
        Record {
            hash: 7,
            candidates: vec!["/usr/bin/toy".into()],
            alternative: 0,
            program: "/usr/bin/toy".into(),
            mounts: vec![],
            vars: BTreeMap::new(),
            stamps: vec![Stamp::of(watched)],
        }
    }

    #[test]
    fn a_record_holds_until_a_file_changes() {
        let home = tempfile::tempdir().unwrap();
        let watched = home.path().join("toy");
        fs::write(&watched, "1").unwrap();
        let cache = Cache::at(home.path().join("cache"));
        assert_eq!(cache.load("toy", 7), None);
        cache.store("toy", &record(&watched));
        assert_eq!(cache.load("toy", 7), Some(record(&watched)));
        assert_eq!(cache.load("toy", 8), None, "another manifest");
        assert_eq!(cache.load("boy", 7), None, "another name");
        fs::write(&watched, "22").unwrap();
        assert_eq!(cache.load("toy", 7), None, "the file changed");
        cache.store("toy", &record(&watched));
        assert!(cache.load("toy", 7).is_some());
        fs::remove_file(&watched).unwrap();
        assert_eq!(cache.load("toy", 7), None, "the file is gone");
        cache.store("toy", &record(&watched));
        assert!(cache.load("toy", 7).is_some(), "gone is what it was");
        fs::write(&watched, "3").unwrap();
        assert_eq!(cache.load("toy", 7), None, "the file is there again");
        assert_eq!(
            fs::read_dir(home.path().join("cache")).unwrap().count(),
            1,
            "nothing left aside"
        );
    }

    #[test]
    fn what_is_not_ours_or_not_whole_does_not_exist() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("cache");
        let cache = Cache::at(&directory);
        cache.store("toy", &record(home.path()));
        let file = directory.join(file_name("toy"));
        // The directory's own stamp must be taken after the cache was made in it.
        cache.store("toy", &record(home.path()));
        assert!(cache.load("toy", 7).is_some());

        let set = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        set(&file, 0o666);
        assert_eq!(cache.load("toy", 7), None, "others may write it");
        set(&file, 0o600);
        set(&directory, 0o777);
        assert_eq!(cache.load("toy", 7), None, "others may replace it");
        set(&directory, 0o700);
        assert!(cache.load("toy", 7).is_some());
        let other = Cache {
            uid: Some(54_321),
            ..cache.clone()
        };
        assert_eq!(other.load("toy", 7), None, "somebody else's");
        let text = fs::read(&file).unwrap();
        for bad in [&text[..text.len() / 2], b"", b"[]", b"\xff\xff"] {
            fs::write(&file, bad).unwrap();
            assert_eq!(cache.load("toy", 7), None);
        }
        assert_eq!(Cache::none().load("toy", 7), None);
        Cache::at("/proc/nowhere").store("toy", &record(home.path()));
    }
}
