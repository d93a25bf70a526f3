//! Files of a container's workspace, by way of its agent. What comes back is parsed as hostile.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use belljar_jail::beneath::{Bounds, Found, by_path};
use belljar_jail::directory::{Item, Kind};
use belljar_spec::Error;

use super::inside::Inside;
use super::wire::{CHUNK, long, string, word};
use crate::files::{InputFile, Source};
use crate::run::random_bits;
use crate::workspace::Temporary;

/// Requests; `crates/jail/agent/files.rs` has the same.
pub mod op {
    pub const ROOT: u8 = 0;
    pub const STAT: u8 = 1;
    pub const LIST: u8 = 2;
    pub const WALK: u8 = 3;
    pub const OPEN: u8 = 4;
    pub const READ: u8 = 5;
    pub const CREATE: u8 = 6;
    pub const WRITE: u8 = 7;
    pub const FINISH: u8 = 8;
    pub const CLOSE: u8 = 9;
    pub const MAKE: u8 = 10;
    pub const REMOVE: u8 = 11;
    pub const USED: u8 = 12;
    pub const FIND: u8 = 13;
}

/// The workspace of a container. Cheap to clone.
#[derive(Clone)]
pub struct RemoteFiles(pub(super) Arc<Inside>);

/// A file that is open in the container. Closed there when it is dropped; unfinished ones vanish.
struct Handle {
    inside: Arc<Inside>,
    number: [u8; 4],
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Sent at once; nobody waits for the answer.
        drop(self.inside.link.ask(op::CLOSE, &[&self.number]));
    }
}

fn forged() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the container answered nonsense",
    )
}

/// More than can be had at once: has a name of its own in the standard library.
const EDQUOT: i32 = 122;

fn error(errno: i32) -> io::Error {
    match errno {
        EDQUOT => io::ErrorKind::QuotaExceeded.into(),
        _ => io::Error::from_raw_os_error(errno),
    }
}

impl RemoteFiles {
    pub(crate) fn new(inside: Arc<Inside>) -> Self {
        Self(inside)
    }

    /// For callers that may block: never on a thread that serves.
    pub fn wait<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Handle::current().block_on(work)
    }

    async fn ask(&self, op: u8, parts: &[&[u8]]) -> io::Result<Vec<u8>> {
        self.0.link.ask(op, parts).await.map_err(error)
    }

    fn bytes(path: &Path) -> &[u8] {
        path.as_os_str().as_bytes()
    }

    /// The regular files in it. `false`: there are more than the bounds allow.
    pub async fn walk(&self, bounds: Bounds) -> io::Result<(Vec<Found>, bool)> {
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes();
        let (files, depth) = (number(bounds.files), number(bounds.depth));
        let answer = self.ask(op::WALK, &[&files, &depth]).await?;
        let (mut found, complete, used) = found(&answer).ok_or_else(forged)?;
        self.0.note_used(used);
        found.truncate(bounds.files);
        found.sort_by(by_path);
        Ok((found, complete))
    }

    pub async fn look(&self, path: &Path) -> io::Result<Item> {
        let answer = self.ask(op::STAT, &[Self::bytes(path), b"\0"]).await?;
        let (item, _) = item(&answer, OsStr::new("")).ok_or_else(forged)?;
        Ok(item)
    }

    /// By name; `None`: there are more.
    pub async fn list(&self, path: &Path, most: usize) -> io::Result<Option<Vec<Item>>> {
        let count = u32::try_from(most).unwrap_or(u32::MAX).to_le_bytes();
        let parts: [&[u8]; 3] = [&count, Self::bytes(path), b"\0"];
        let answer = match self.ask(op::LIST, &parts).await {
            Err(error) if error.kind() == io::ErrorKind::QuotaExceeded => return Ok(None),
            answer => answer?,
        };
        let mut items = items(&answer).ok_or_else(forged)?;
        items.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Some(items))
    }

    /// A copy of a regular file of at most so many bytes, as it is now.
    pub async fn open(&self, path: &Path, most: u64) -> io::Result<File> {
        let answer = self.ask(op::OPEN, &[Self::bytes(path), b"\0"]).await?;
        let (handle, size) = self.handle(&answer)?;
        if size > most {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        let mut copy = nameless()?;
        let mut at = 0;
        while at < size {
            let want = u32::try_from((size - at).min(CHUNK as u64)).unwrap_or(0);
            let parts: [&[u8]; 3] = [&handle.number, &at.to_le_bytes(), &want.to_le_bytes()];
            let piece = self.ask(op::READ, &parts).await?;
            if piece.is_empty() {
                break;
            }
            if piece.len() > want as usize {
                return Err(forged());
            }
            copy.write_all(&piece)?;
            at += piece.len() as u64;
        }
        copy.rewind()?;
        Ok(copy)
    }

    fn handle(&self, answer: &[u8]) -> io::Result<(Handle, u64)> {
        let (number, rest) = answer.split_first_chunk::<4>().ok_or_else(forged)?;
        let (size, _) = long(rest).ok_or_else(forged)?;
        let handle = Handle {
            inside: Arc::clone(&self.0),
            number: *number,
        };
        Ok((handle, size))
    }

    /// A new file; with `replace` it takes the place of what has the name when it is finished.
    pub async fn create(&self, path: &Path, replace: bool) -> io::Result<RemoteUpload> {
        let temporary = replace.then(Temporary::new).transpose();
        let temporary = temporary.map_err(io::Error::other)?;
        let name = temporary.as_ref().map(Temporary::name).unwrap_or_default();
        let parts: [&[u8]; 4] = [name.as_encoded_bytes(), b"\0", Self::bytes(path), b"\0"];
        let answer = self.ask(op::CREATE, &parts).await?;
        let (handle, _) = self.handle(&answer)?;
        Ok(RemoteUpload {
            files: self.clone(),
            handle,
            _temporary: temporary,
        })
    }

    /// Puts a file into the workspace. What is there already is replaced or in the way.
    pub async fn put(&self, file: InputFile, replace: bool) -> Result<(), Error> {
        let path = file.destination.clone();
        let put = async {
            let upload = self.create(Path::new(&file.destination), replace).await?;
            match file.content {
                Source::Bytes(bytes) => upload.write(&bytes).await?,
                Source::File(mut source) => {
                    let mut buffer = vec![0; CHUNK];
                    loop {
                        let n = source.read(&mut buffer)?;
                        if n == 0 {
                            break;
                        }
                        upload.write(&buffer[..n]).await?;
                    }
                }
            }
            upload.finish().await
        };
        put.await
            .map_err(|error: io::Error| crate::files::refused(&path, &error))
    }

    pub async fn make_directory(&self, path: &Path) -> io::Result<()> {
        self.ask(op::MAKE, &[Self::bytes(path), b"\0"]).await?;
        Ok(())
    }

    pub async fn remove(&self, path: &Path, depth: usize, most: usize) -> io::Result<()> {
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes();
        let parts: [&[u8]; 4] = [&number(depth), &number(most), Self::bytes(path), b"\0"];
        self.ask(op::REMOVE, &parts).await?;
        Ok(())
    }

    /// As last heard; looks again for the next time.
    pub fn used(&self) -> u64 {
        self.0.refresh_later();
        self.0.used()
    }

    /// Where programs of these names are, by the container's own PATH or a usual one.
    pub async fn find_programs(&self, names: &[&str]) -> io::Result<Vec<Option<String>>> {
        let env = self.0.environment(&[]);
        let path = env.iter().find(|(name, _)| name == "PATH");
        let path = path.map_or(crate::command::PATH, |(_, path)| path.as_str());
        let mut parts: Vec<&[u8]> = vec![path.as_bytes(), b"\0"];
        for name in names {
            parts.extend([name.as_bytes(), b"\0"]);
        }
        let answer = self.ask(op::FIND, &parts).await?;
        let mut rest = answer.as_slice();
        let mut found = Vec::new();
        for _ in names {
            let (path, more) = string(rest).ok_or_else(forged)?;
            let path = std::str::from_utf8(path).map_err(|_| forged())?;
            found.push(Some(path.to_owned()).filter(|path| !path.is_empty()));
            rest = more;
        }
        Ok(found)
    }
}

/// A file on its way into a container.
pub struct RemoteUpload {
    files: RemoteFiles,
    handle: Handle,
    _temporary: Option<Temporary>,
}

impl RemoteUpload {
    pub async fn write(&self, bytes: &[u8]) -> io::Result<()> {
        for piece in bytes.chunks(CHUNK) {
            self.files
                .ask(op::WRITE, &[&self.handle.number, piece])
                .await?;
        }
        Ok(())
    }

    pub async fn finish(&self) -> io::Result<()> {
        self.files.ask(op::FINISH, &[&self.handle.number]).await?;
        Ok(())
    }
}

/// A file of this host that nobody else can reach and that is gone when it is closed.
fn nameless() -> io::Result<File> {
    let bits = random_bits().map_err(io::Error::other)?;
    let path = std::env::temp_dir().join(format!(".belljar-{bits:032x}"));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

/// Kind, mode, size, time, in front of a name.
fn item<'a>(bytes: &'a [u8], name: &OsStr) -> Option<(Item, &'a [u8])> {
    let (&kind, rest) = bytes.split_first()?;
    let (mode, rest) = word(rest)?;
    let (size, rest) = long(rest)?;
    let (modified, rest) = long(rest)?;
    let kind = match kind {
        0 => Kind::File,
        1 => Kind::Directory,
        2 => Kind::Link,
        3 => Kind::Other,
        _ => return None,
    };
    let item = Item {
        name: name.to_owned(),
        kind,
        bytes: size,
        modified: modified.cast_signed(),
        mode: mode & 0o777,
    };
    Some((item, rest))
}

/// A name is one step and no more, whatever the container says.
fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name != b"." && name != b".." && !name.contains(&b'/') && name.len() <= 255
}

fn items(mut bytes: &[u8]) -> Option<Vec<Item>> {
    let mut items = Vec::new();
    while !bytes.is_empty() {
        let (mut item, rest) = item(bytes, OsStr::new(""))?;
        let (name, rest) = string(rest)?;
        if !is_name(name) {
            return None;
        }
        OsStr::from_bytes(name).clone_into(&mut item.name);
        items.push(item);
        bytes = rest;
    }
    Some(items)
}

fn found(mut bytes: &[u8]) -> Option<(Vec<Found>, bool, u64)> {
    let mut files = Vec::new();
    loop {
        let (&mark, rest) = bytes.split_first()?;
        if mark != 1 {
            let (used, rest) = long(rest)?;
            return (rest.is_empty() && mark <= 3).then_some((files, mark == 3, used));
        }
        let (size, rest) = long(rest)?;
        let (inode, rest) = long(rest)?;
        let (seconds, rest) = long(rest)?;
        let (nanos, rest) = long(rest)?;
        let (path, rest) = string(rest)?;
        if !path.split(|byte| *byte == b'/').all(is_name) {
            return None;
        }
        files.push(Found {
            path: PathBuf::from(OsStr::from_bytes(path)),
            bytes: size,
            stamp: (inode, seconds.cast_signed(), nanos.cast_signed()),
        });
        bytes = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(path: &[u8]) -> Vec<u8> {
        let mut bytes = vec![1];
        for number in [5_u64, 7, 8, 9] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(path);
        bytes.push(0);
        bytes
    }

    #[test]
    fn a_walk_is_read_and_cannot_lead_out() {
        let end = [3, 9, 0, 0, 0, 0, 0, 0, 0];
        let mut good = one(b"a/b.txt");
        good.extend(end);
        let (files, complete, used) = found(&good).unwrap();
        assert!(complete && used == 9);
        assert_eq!(files[0].path, Path::new("a/b.txt"));
        assert_eq!((files[0].bytes, files[0].stamp), (5, (7, 8, 9)));
        for bad in [&b"../x"[..], b"/etc/passwd", b"a//b", b"a/../b", b""] {
            let mut bytes = one(bad);
            bytes.extend(end);
            assert!(found(&bytes).is_none(), "{bad:?}");
        }
        assert!(found(&one(b"a")).is_none());
    }

    proptest! {
        #[test]
        fn fuzz_answers_of_agents(bytes: Vec<u8>) {
            let _ = found(&bytes);
            let _ = items(&bytes);
        }
    }
}
