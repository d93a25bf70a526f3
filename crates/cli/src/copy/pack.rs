//! A directory of this host as a tar file.

use std::ffi::OsStr;
use std::fs::{File, FileType};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use belljar_server::LeftOut;
use rustix::fs::{Dir, Mode, OFlags, ResolveFlags, openat2};
use tar::{Builder, Header};

/// Why it is not copied.
fn reason(kind: FileType) -> &'static str {
    if kind.is_symlink() {
        "it is a symbolic link"
    } else {
        "it is neither a file nor a directory"
    }
}

/// The files and directories below one, as a tar file. Links and whatever else there is stay here.
///
/// Code may be writing there, where the directory is a sandbox's volume: nothing is reached by a name that could have become a link
/// since it was looked at.
pub fn pack(directory: &Path, out: impl Write) -> io::Result<LeftOut> {
    let mut left_out = LeftOut::default();
    let mut archive = Builder::new(io::BufWriter::with_capacity(256 << 10, out));
    let root = File::open(directory)?;
    let mut to_do = vec![PathBuf::new()];
    while let Some(below) = to_do.pop() {
        let here = if below.as_os_str().is_empty() {
            Path::new(".")
        } else {
            &below
        };
        for entry in Dir::new(open_below(&root, here, OFlags::DIRECTORY)?)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let name = below.join(OsStr::from_bytes(name));
            let about = open_below(&root, &name, OFlags::PATH)?.metadata()?;
            let mut header = Header::new_gnu();
            if about.is_dir() {
                header.set_metadata(&about);
                archive.append_data(&mut header, &name, io::empty())?;
                to_do.push(name);
            } else if about.is_file() {
                let file = open_below(&root, &name, OFlags::NONBLOCK)?;
                let about = file.metadata()?;
                if !about.is_file() {
                    left_out.add(&name, reason(about.file_type()));
                    continue;
                }
                header.set_metadata(&about);
                // As long as it was said to be, whoever writes to it.
                let content = file
                    .take(about.len())
                    .chain(io::repeat(0))
                    .take(about.len());
                archive.append_data(&mut header, &name, content)?;
            } else {
                left_out.add(&name, reason(about.file_type()));
            }
        }
    }
    archive.into_inner()?.flush()?;
    Ok(left_out)
}

fn open_below(root: &File, path: &Path, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let no_links = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    Ok(openat2(root, path, flags, Mode::empty(), no_links)?.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn what_became_a_link_is_not_followed() {
        let place = tempfile::tempdir().expect("tempdir");
        fs::write(place.path().join("file"), "x").expect("write");
        symlink("/etc", place.path().join("out")).expect("link");
        symlink("/etc/passwd", place.path().join("link")).expect("link");
        let root = File::open(place.path()).expect("open");
        assert!(open_below(&root, Path::new("file"), OFlags::NONBLOCK).is_ok());
        for path in ["out", "out/passwd", "link", "../x", "/etc/passwd"] {
            let opened = open_below(&root, Path::new(path), OFlags::NONBLOCK);
            assert!(opened.is_err(), "{path}");
        }
    }
}
