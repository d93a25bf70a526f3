//! One process at a time.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(50);

/// Held until the file is dropped. Waits no longer than an installation may take.
pub async fn wait(path: &Path, most: Duration) -> io::Result<File> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)?;
    let began = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(std::fs::TryLockError::Error(error)) => return Err(error),
            Err(std::fs::TryLockError::WouldBlock) if began.elapsed() < most => {
                tokio::time::sleep(PAUSE).await;
            }
            Err(std::fs::TryLockError::WouldBlock) => return Err(io::ErrorKind::TimedOut.into()),
        }
    }
}
