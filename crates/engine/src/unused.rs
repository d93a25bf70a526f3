//! Directories of a cache that several processes share: held by those that use them, removed by anyone when nobody does.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Kept for so long after it was last held by a process that began.
pub const KEPT: Duration = Duration::from_hours(30 * 24);

/// Keeps a directory from being removed for as long as the file lives, and notes that it is used.
pub fn hold(directory: &Path) -> io::Result<File> {
    let file = File::open(directory)?;
    file.lock_shared()?;
    // It may have been removed while this waited, and another made.
    let (held, there) = (file.metadata()?, fs::metadata(directory)?);
    if (held.dev(), held.ino()) != (there.dev(), there.ino()) {
        return Err(io::ErrorKind::NotFound.into());
    }
    // Who may only read it need not note anything.
    let _ = file.set_modified(SystemTime::now());
    Ok(file)
}

/// Removes a directory that nobody holds and nobody has held for so long. Says whether it did.
pub fn remove_if_unused(directory: &Path, since: Duration) -> bool {
    let Ok(file) = File::open(directory) else {
        return false;
    };
    let used = file.metadata().and_then(|found| found.modified());
    let rests = used.is_ok_and(|used| used.elapsed().is_ok_and(|age| age >= since));
    if !rests || file.try_lock().is_err() {
        return false;
    }
    // Out of the way first: nobody finds half of it.
    let Ok(bits) = belljar_jail::random_bits() else {
        return false;
    };
    let aside = directory.with_file_name(format!(".unused-{bits:032x}"));
    if fs::rename(directory, &aside).is_err() {
        return false;
    }
    let _ = fs::remove_dir_all(&aside);
    true
}

/// Looks at everything in a directory whose name begins so. What a removal left half done goes too.
pub fn sweep(place: &Path, prefix: &str, since: Duration) {
    let Ok(listing) = fs::read_dir(place) else {
        return;
    };
    for entry in listing.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(".unused-") {
            let _ = fs::remove_dir_all(entry.path());
        } else if name.starts_with(prefix) && entry.path().is_dir() {
            remove_if_unused(&entry.path(), since);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_nobody_uses_goes() {
        let place = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let path = place.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::write(path.join("x"), "x").unwrap();
            path
        };
        let (held, free, other) = (make("a-held"), make("a-free"), make("b-free"));
        let fresh = make("a-fresh");
        let using = hold(&held).unwrap();
        let old = SystemTime::now() - Duration::from_hours(2);
        for path in [&held, &free, &other] {
            File::open(path).unwrap().set_modified(old).unwrap();
        }
        sweep(place.path(), "a-", Duration::from_hours(1));
        let there = |path: &Path| path.join("x").exists();
        assert!(there(&held) && there(&other) && there(&fresh));
        assert!(!there(&free));
        drop(using);
        sweep(place.path(), "a-", Duration::from_hours(1));
        assert!(!there(&held));
        assert!(hold(&held).is_err());
    }
}
