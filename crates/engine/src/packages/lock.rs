//! One process at a time.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(50);

/// Held until the file is dropped. Waits no longer than an installation may take.
pub async fn wait(path: &Path, most: Duration) -> io::Result<File> {
    let began = Instant::now();
    loop {
        if let Some(file) = attempt(path)? {
            return Ok(file);
        }
        if began.elapsed() >= most {
            return Err(io::ErrorKind::TimedOut.into());
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The same, unless somebody else has it.
pub fn attempt(path: &Path) -> io::Result<Option<File>> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    // One that was removed meanwhile keeps nobody out.
    let there = fs::metadata(path).map(|found| (found.dev(), found.ino()));
    let own = file.metadata().map(|found| (found.dev(), found.ino()))?;
    Ok(there.is_ok_and(|there| there == own).then_some(file))
}
