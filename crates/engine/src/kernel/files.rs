//! The kernels' own files, as a sandbox sees them.
//!
//! They are part of the program. Written into its cache once, they are mounted from there: to send them along with each plan
//! would take longer than all the rest of making a sandbox from a warm interpreter.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use belljar_jail::Entry;

use crate::runtime::{Cache, Kernel, Toolchain};
use crate::unused;

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// Compiling takes a tenth of a second, usually.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where a sandbox has the files of its kernel.
pub const PLACE: &str = "/belljar";

pub fn is_known(kernel: &str) -> bool {
    FILES.iter().any(|(of, _, _)| *of == kernel)
}

/// The entries that make a kernel's files visible.
pub fn entries(toolchain: &Toolchain, kernel: &Kernel) -> Vec<Entry> {
    if let Some(source) = installed(toolchain, kernel) {
        let target = PathBuf::from(PLACE);
        return vec![Entry::Image { source, target }];
    }
    let inline = |(path, text): (&str, &str)| Entry::File {
        path: Path::new(PLACE).join(path),
        content: text.to_owned(),
    };
    files_of(&kernel.files).map(inline).collect()
}

/// A kernel's files: path below its place, text.
pub fn files_of(kernel: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    FILES
        .iter()
        .filter(move |(of, _, _)| *of == kernel)
        .map(|(_, path, text)| (*path, *text))
}

/// The directory with a kernel's files, looked at once in the life of this process for each interpreter.
fn installed(toolchain: &Toolchain, kernel: &Kernel) -> Option<PathBuf> {
    type Known = HashMap<(String, PathBuf), Option<PathBuf>>;
    static KNOWN: Mutex<Option<Known>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let interpreter = toolchain.program.clone();
    known
        .get_or_insert_default()
        .entry((kernel.files.clone(), interpreter))
        .or_insert_with(|| {
            let prepare = kernel.prepare.as_deref().unwrap_or_default();
            let stamp = fs::metadata(&toolchain.program).ok()?;
            let stamp = (&toolchain.version, stamp.len(), stamp.mtime());
            install(
                Cache::of_caller().private()?,
                &kernel.files,
                (prepare, &stamp),
            )
        })
        .clone()
}

/// Nothing where it cannot be written, or is not what we would have written.
fn install(
    cache: &Path,
    kernel: &str,
    (command, stamp): (&[String], &impl Hash),
) -> Option<PathBuf> {
    let mut hasher = DefaultHasher::new();
    files_of(kernel).for_each(|file| file.hash(&mut hasher));
    // What an interpreter compiles the files to is for that one.
    if !command.is_empty() {
        (command, stamp).hash(&mut hasher);
    }
    let place = cache.join(format!("kernel-{kernel}-{:016x}", hasher.finish()));
    if !place.exists() {
        let aside = cache.join(format!(".kernel-{kernel}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&aside);
        // Another process may have been quicker.
        let written = write(&aside, kernel).and_then(|()| prepare(&aside, command));
        let _ = written.and_then(|()| fs::rename(&aside, &place));
        let _ = fs::remove_dir_all(&aside);
    }
    let same = |(path, text): (&str, &str)| {
        let found = fs::read(place.join(path));
        found.is_ok_and(|found| found == text.as_bytes())
    };
    let whole = files_of(kernel).all(same);
    // Held for as long as this process lives; what versions and interpreters of the past have left goes at last.
    let held = unused::hold(&place);
    unused::sweep(cache, "kernel-", unused::KEPT);
    match held {
        Ok(held) => std::mem::forget(held),
        // Another user's, which is not ours to remove either.
        Err(_) if !place.exists() => return None,
        Err(_) => {}
    }
    whole.then_some(place)
}

fn write(place: &Path, kernel: &str) -> io::Result<()> {
    for (path, text) in files_of(kernel) {
        let path = place.join(path);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).open(&path)?;
        file.write_all(text.as_bytes())?;
    }
    Ok(())
}

/// Has the interpreter compile the files, so that none has to when it starts. That this went wrong is no reason to go without it all.
fn prepare(place: &Path, command: &[String]) -> io::Result<()> {
    if let Some((program, args)) = command.split_first() {
        let mut command = Command::new(program);
        command.args(args).current_dir(place).env_clear();
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let _ = wait_for(command.stderr(Stdio::null()));
    }
    make_readable(place)
}

fn wait_for(command: &mut Command) -> io::Result<()> {
    let mut child = command.spawn()?;
    let until = Instant::now() + PATIENCE;
    while child.try_wait()?.is_none() {
        if Instant::now() > until {
            child.kill()?;
            child.wait()?;
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Whatever the caller's umask is.
fn make_readable(place: &Path) -> io::Result<()> {
    fs::set_permissions(place, fs::Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(place)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            make_readable(&entry.path())?;
        } else {
            fs::set_permissions(entry.path(), fs::Permissions::from_mode(0o644))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_we_wrote_is_mounted() {
        let cache = tempfile::tempdir().unwrap();
        let install = |cache: &Path, kernel: &str| super::install(cache, kernel, (&[], &""));
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

    #[test]
    fn it_is_compiled_once_for_each_interpreter() {
        let cache = tempfile::tempdir().unwrap();
        let command = |line: &str| ["/bin/sh", "-c", line].map(str::to_owned);
        let compile = command("umask 077; mkdir made; echo x >> made/it");
        let place = install(cache.path(), "python", (&compile, &"3.11")).expect("written");
        for _ in 0..2 {
            let again = install(cache.path(), "python", (&compile, &"3.11"));
            assert_eq!(again.as_ref(), Some(&place));
            assert_eq!(fs::read_to_string(place.join("made/it")).unwrap(), "x\n");
        }
        let mode = |path: &str| fs::metadata(place.join(path)).unwrap().mode() & 0o777;
        assert_eq!((mode("made"), mode("made/it")), (0o755, 0o644));
        let other = install(cache.path(), "python", (&compile, &"3.12"));
        assert!(other.is_some_and(|other| other != place));
        // One that cannot compile still has the files.
        let broken = command("exit 1");
        let place = install(cache.path(), "python", (&broken, &"3.11")).expect("written");
        assert!(place.join("main.py").exists());
    }
}
