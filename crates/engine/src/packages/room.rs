//! What an installation takes of the host's disk. It writes into a directory of the host, which no limit of a sandbox bounds.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belljar_jail::directory::free;

/// Space that is reserved is gone at once, so the file system is asked often; that costs nothing.
const GLANCE: Duration = Duration::from_millis(20);
/// The files are counted at least so often.
const COUNT: Duration = Duration::from_millis(250);
/// Far more than any set of packages has.
const MAX_ENTRIES: usize = 1_000_000;

/// Returns when more than `most` bytes are below `place`, or when its file system is about to be full, and says which.
pub async fn exceeded(place: PathBuf, most: u64) -> String {
    let Ok(directory) = File::open(&place) else {
        return "their directory is gone".into();
    };
    let free = || free(directory.as_fd()).unwrap_or((u64::MAX, u64::MAX));
    let (at_first, whole) = free();
    // Files that have no name any more are not counted, but the disk has them.
    let reserve = (whole / 20).min(at_first / 2);
    let (mut seen, mut counted) = (at_first, Instant::now());
    loop {
        tokio::time::sleep(GLANCE).await;
        let (left, _) = free();
        if left < reserve {
            return format!("the disk was about to be full: {} MiB are left", left >> 20);
        }
        if counted.elapsed() < COUNT && seen.saturating_sub(left) < most / 4 {
            continue;
        }
        let below = place.clone();
        let found = tokio::task::spawn_blocking(move || fits(&below, most)).await;
        if let Ok(Err(excess)) = found {
            return excess;
        }
        (seen, counted) = (left, Instant::now());
    }
}

/// Whether what is below `place` is no more than `most` bytes; else why it is too much.
pub fn fits(place: &Path, most: u64) -> Result<(), String> {
    match size(place) {
        Ok(bytes) if bytes <= most => Ok(()),
        Ok(_) => Err(format!(
            "they take more than {} MiB, which is the most for one set (packages.bytes of the settings)",
            most >> 20
        )),
        Err(error) => Err(format!("their size cannot be told: {error}")),
    }
}

/// Bytes below a directory, reserved ones and those of holes too. A directory that cannot be looked into is an error.
pub fn size(place: &Path) -> io::Result<u64> {
    let gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let (mut bytes, mut entries) = (0_u64, 0_usize);
    let mut left = vec![place.to_owned()];
    while let Some(directory) = left.pop() {
        let listing = match fs::read_dir(&directory) {
            Err(error) if gone(&error) => continue,
            listing => listing?,
        };
        for entry in listing {
            let entry = entry?;
            let found = match entry.metadata() {
                Err(error) if gone(&error) => continue,
                found => found?,
            };
            bytes = bytes.saturating_add(found.len().max(found.blocks() * 512));
            entries += 1;
            if entries > MAX_ENTRIES {
                return Err(io::Error::other("the packages have too many files"));
            }
            if found.is_dir() {
                left.push(entry.path());
            }
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reserved_and_what_is_said_to_be_there_counts() {
        let place = tempfile::tempdir().unwrap();
        let deep = place.path().join("a/b");
        fs::create_dir_all(&deep).unwrap();
        let before = size(place.path()).unwrap();
        fs::write(deep.join("x"), vec![1; 100_000]).unwrap();
        let file = File::create(deep.join("hole")).unwrap();
        file.set_len(1 << 20).unwrap();
        std::os::unix::fs::symlink("/", deep.join("link")).unwrap();
        let now = size(place.path()).unwrap() - before;
        assert!((1_148_576..1_300_000).contains(&now), "{now}");
        assert!(fits(place.path(), 2 << 20).is_ok());
        let excess = fits(place.path(), 1 << 20).unwrap_err();
        assert!(excess.contains("more than 1 MiB"), "{excess}");
    }

    #[tokio::test]
    async fn it_is_told_while_it_grows() {
        let place = tempfile::tempdir().unwrap();
        let watching = exceeded(place.path().to_owned(), 1 << 20);
        let growing = async {
            let file = File::create(place.path().join("x")).unwrap();
            for megabyte in 1_u64.. {
                file.set_len(megabyte << 20).unwrap();
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::select! {
            excess = watching => assert!(excess.contains("packages.bytes"), "{excess}"),
            () = growing => {}
            () = tokio::time::sleep(Duration::from_mins(1)) => panic!("nobody looked"),
        }
    }
}
