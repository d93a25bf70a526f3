//! The kernels' own files, as a sandbox sees them.
//!
//! They are part of the program. Written into its cache once, they are mounted from there: to send them along with each plan
//! would take longer than all the rest of making a sandbox from a warm interpreter.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use belljar_jail::Entry;

use crate::runtime::Cache;

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// Where a sandbox has the files of its kernel.
pub const PLACE: &str = "/belljar";

pub fn is_known(kernel: &str) -> bool {
    FILES.iter().any(|(of, _, _)| *of == kernel)
}

/// A kernel's files: path below its place, text.
pub fn files_of(kernel: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    FILES
        .iter()
        .filter(move |(of, _, _)| *of == kernel)
        .map(|(_, path, text)| (*path, *text))
}

/// The entries that make a kernel's files visible.
pub fn entries(kernel: &str) -> Vec<Entry> {
    if let Some(source) = installed(kernel) {
        let target = PathBuf::from(PLACE);
        return vec![Entry::Image { source, target }];
    }
    let inline = |(path, text): (&str, &str)| Entry::File {
        path: Path::new(PLACE).join(path),
        content: text.to_owned(),
    };
    files(kernel).map(inline).collect()
}

fn files(kernel: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    FILES
        .iter()
        .filter(move |(of, _, _)| *of == kernel)
        .map(|(_, path, text)| (*path, *text))
}

/// The directory with a kernel's files, looked at once in the life of this process.
fn installed(kernel: &str) -> Option<PathBuf> {
    static KNOWN: Mutex<Option<HashMap<String, Option<PathBuf>>>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known
        .get_or_insert_default()
        .entry(kernel.to_owned())
        .or_insert_with(|| install(Cache::of_caller().private()?, kernel))
        .clone()
}

/// Nothing where it cannot be written, or is not what we would have written.
fn install(cache: &Path, kernel: &str) -> Option<PathBuf> {
    let mut hasher = DefaultHasher::new();
    files(kernel).for_each(|file| file.hash(&mut hasher));
    let place = cache.join(format!("kernel-{kernel}-{:016x}", hasher.finish()));
    if !place.exists() {
        let aside = cache.join(format!(".kernel-{kernel}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&aside);
        // Another process may have been quicker.
        let _ = write(&aside, kernel).and_then(|()| fs::rename(&aside, &place));
        let _ = fs::remove_dir_all(&aside);
    }
    let same = |(path, text): (&str, &str)| {
        let found = fs::read(place.join(path));
        found.is_ok_and(|found| found == text.as_bytes())
    };
    files(kernel).all(same).then_some(place)
}

/// For everybody to read: in a sandbox nobody is who wrote it.
fn write(place: &Path, kernel: &str) -> io::Result<()> {
    let mut folders = DirBuilder::new();
    folders.recursive(true).mode(0o755);
    for (path, text) in files(kernel) {
        let path = place.join(path);
        if let Some(folder) = path.parent() {
            folders.create(folder)?;
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
        }
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).open(&path)?;
        file.set_permissions(fs::Permissions::from_mode(0o644))?;
        file.write_all(text.as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_we_wrote_is_mounted() {
        let cache = tempfile::tempdir().unwrap();
        let place = install(cache.path(), "python").expect("written");
        assert_eq!(install(cache.path(), "python"), Some(place.clone()));
        let mode = fs::metadata(place.join("main.py")).unwrap().permissions();
        assert_eq!(mode.mode() & 0o777, 0o644);
        fs::write(place.join("main.py"), "print('mine now')").unwrap();
        assert_eq!(install(cache.path(), "python"), None);
        fs::remove_dir_all(&place).unwrap();
        fs::create_dir(&place).unwrap();
        assert_eq!(install(cache.path(), "python"), None, "half of it");
        assert_eq!(install(Path::new("/proc/nowhere"), "python"), None);
    }
}
