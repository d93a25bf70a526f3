//! Files of the workspace, for an engine that may be on another machine.
//!
//! All of it happens as the user that code runs as: what is refused to that user is refused here. Links are not followed, so
//! that the engine gets what it named and nothing else; what it gets is the code's own in any case.

use alloc::vec;
use alloc::vec::Vec;

use crate::sys::{self, Fd};
use crate::system::{self, Kind, Open, Stat};
use crate::{Outbox, kind, long, word};

/// Requests; `crates/engine/src/docker/wire.rs` has the same.
mod op {
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

const MOST_OPEN: usize = 256;
const MOST_READ: usize = 128 << 10;
/// An answer is cut into frames of about this size.
const PIECE: usize = 128 << 10;

/// A file that is being read or written.
struct Handle {
    file: Fd,
    /// Where it is made, under which name, and which it gets in the end.
    made: Option<(Fd, Vec<u8>, Vec<u8>)>,
}

pub struct Files {
    root: Fd,
    temporary: Fd,
    handles: Vec<Option<Handle>>,
}

impl Default for Files {
    fn default() -> Self {
        Self {
            root: -1,
            temporary: -1,
            handles: Vec::new(),
        }
    }
}

type Answer = Result<Vec<u8>, i32>;

/// An answer that may be longer than a frame.
struct Long<'a> {
    id: u32,
    outbox: &'a mut Outbox,
    bytes: Vec<u8>,
}

impl Long<'_> {
    fn add(&mut self, part: &[u8]) {
        self.bytes.extend_from_slice(part);
        if self.bytes.len() > PIECE {
            self.outbox
                .push(kind::REPLY, self.id, &[&[0; 4], &[1], &self.bytes]);
            self.bytes.clear();
        }
    }
}

impl Files {
    pub fn serve(&mut self, id: u32, payload: &[u8], outbox: &mut Outbox) {
        let (&op, body) = payload.split_first().unwrap_or((&255, &[]));
        let mut long = Long {
            id,
            outbox,
            bytes: Vec::new(),
        };
        let answer = match op {
            op::ROOT => self.set_root(body),
            op::STAT => self.look(body),
            op::LIST => self.list(body, &mut long),
            op::WALK => self.walk(body, &mut long),
            op::OPEN => self.open(body),
            op::READ => self.read(body),
            op::CREATE => self.create(body),
            op::WRITE => self.write(body),
            op::FINISH => self.finish(body),
            op::CLOSE => self.drop_handle(body),
            op::MAKE => self.make(body).map(|fd| {
                sys::close(fd);
                Vec::new()
            }),
            op::REMOVE => self.remove(body),
            op::USED => Ok(self.used().to_le_bytes().to_vec()),
            op::FIND => Ok(find(body)),
            _ => Err(system::EINVAL),
        };
        let rest = core::mem::take(&mut long.bytes);
        match answer {
            Ok(last) => outbox.push(kind::REPLY, id, &[&[0; 4], &[0], &rest, &last]),
            Err(errno) => outbox.push(kind::REPLY, id, &[&errno.to_le_bytes(), &[0]]),
        }
    }

    fn set_root(&mut self, body: &[u8]) -> Answer {
        let mut paths = body.split_inclusive(|&b| b == 0);
        let mut next = || system::open_at(-1, paths.next().unwrap_or(b""), Open::Directory);
        (self.root, self.temporary) = (next()?, next()?);
        Ok(Vec::new())
    }

    /// Bytes in all that can be written to.
    fn used(&self) -> u64 {
        system::used(self.root).saturating_add(system::used(self.temporary))
    }

    /// The directory that a path lies in, opened one name at a time, and its last name.
    fn parent(&self, path: &[u8], make: bool) -> Result<(Fd, Vec<u8>), i32> {
        let path = path.strip_suffix(b"\0").unwrap_or(path);
        let mut names = path.split(|&b| b == b'/').peekable();
        let mut at = copy(self.root)?;
        while let Some(name) = names.next() {
            if name.is_empty() || name == b".." || (name == b"." && path != b".") {
                sys::close(at);
                return Err(system::EINVAL);
            }
            let name = terminated(name);
            if names.peek().is_none() {
                return Ok((at, name));
            }
            let next = enter(at, &name, make);
            sys::close(at);
            at = next?;
        }
        sys::close(at);
        Err(system::EINVAL)
    }

    /// Opens a directory below the workspace; the workspace itself for an empty path.
    fn directory(&self, path: &[u8]) -> Result<Fd, i32> {
        if path.is_empty() || path == b"\0" {
            return copy(self.root);
        }
        let (parent, name) = self.parent(path, false)?;
        let opened = enter(parent, &name, false);
        sys::close(parent);
        opened
    }

    fn look(&self, path: &[u8]) -> Answer {
        if path.is_empty() || path == b"\0" {
            return Ok(seen(&system::stat(self.root, b"\0")?));
        }
        let (parent, name) = self.parent(path, false)?;
        let stat = system::stat(parent, &name);
        sys::close(parent);
        stat.map(|stat| seen(&stat))
    }

    /// Body: the most there may be, path. Answer: for each, as of a look, then the name.
    fn list(&self, body: &[u8], long: &mut Long<'_>) -> Answer {
        let most = word(body, 0) as usize;
        let dir = self.directory(&body[4..])?;
        let mut count = 0;
        let listed = system::list(dir, |name| {
            count += 1;
            if count > most {
                return false;
            }
            if let Ok(stat) = system::stat(dir, name) {
                long.add(&seen(&stat));
                long.add(name);
            }
            true
        });
        sys::close(dir);
        listed?;
        if count > most {
            return Err(system::EDQUOT);
        }
        Ok(Vec::new())
    }

    /// Body: how many names at most, how deep. Answer: for each regular file size, inode, time of change, path; then whether
    /// that was all, and how many bytes are in use.
    fn walk(&self, body: &[u8], long: &mut Long<'_>) -> Answer {
        let (most, deepest) = (word(body, 0) as usize, word(body, 4) as usize);
        let mut complete = true;
        let mut visited = 0;
        let mut pending = vec![(Vec::new(), 0)];
        while let Some((path, depth)) = pending.pop() {
            let Ok(dir) = self.directory(&path) else {
                complete = false;
                continue;
            };
            let mut full = false;
            let listed = system::list(dir, |name| {
                visited += 1;
                if visited > most {
                    full = true;
                    return false;
                }
                let Ok(stat) = system::stat(dir, name) else {
                    return true;
                };
                let mut at: Vec<u8> = path.clone();
                if !at.is_empty() {
                    at.push(b'/');
                }
                at.extend_from_slice(&name[..name.len() - 1]);
                match stat.kind() {
                    Kind::Directory if depth < deepest => pending.push((at, depth + 1)),
                    Kind::Directory => complete = false,
                    Kind::File => {
                        long.add(&[1]);
                        for number in [
                            stat.size,
                            stat.inode,
                            stat.changed.0 as u64,
                            stat.changed.1 as u64,
                        ] {
                            long.add(&number.to_le_bytes());
                        }
                        long.add(&terminated(&at));
                    }
                    _ => {}
                }
                true
            });
            sys::close(dir);
            complete &= listed.is_ok();
            if full {
                complete = false;
                break;
            }
        }
        let mut end = vec![if complete { 3 } else { 2 }];
        end.extend_from_slice(&self.used().to_le_bytes());
        Ok(end)
    }

    fn keep(&mut self, handle: Handle) -> Answer {
        let free = self.handles.iter().position(Option::is_none);
        let index = free.unwrap_or(self.handles.len());
        if index >= MOST_OPEN {
            self.discard(handle);
            return Err(system::EMFILE);
        }
        let size = system::stat(handle.file, b"\0").map_or(0, |stat| stat.size);
        if index == self.handles.len() {
            self.handles.push(None);
        }
        self.handles[index] = Some(handle);
        let mut answer = (index as u32).to_le_bytes().to_vec();
        answer.extend_from_slice(&size.to_le_bytes());
        Ok(answer)
    }

    /// Answer: number of the open file, its size.
    fn open(&mut self, path: &[u8]) -> Answer {
        let (parent, name) = self.parent(path, false)?;
        // Looked at first: a FIFO or a device is not even opened.
        let kind = system::stat(parent, &name).map(|stat| stat.kind());
        let opened = match kind {
            Ok(Kind::File) => system::open_at(parent, &name, Open::Read),
            Ok(Kind::Directory) => Err(system::EISDIR),
            Ok(Kind::Link) => Err(system::ELOOP),
            Ok(Kind::Other) => Err(system::EINVAL),
            Err(errno) => Err(errno),
        };
        sys::close(parent);
        let file = opened?;
        if !system::stat(file, b"\0").is_ok_and(|stat| stat.kind() == Kind::File) {
            sys::close(file);
            return Err(system::EINVAL);
        }
        self.keep(Handle { file, made: None })
    }

    fn handle(&self, body: &[u8]) -> Result<&Handle, i32> {
        let handle = self.handles.get(word(body, 0) as usize);
        handle.and_then(Option::as_ref).ok_or(system::EINVAL)
    }

    /// Body: number, offset, how much.
    fn read(&self, body: &[u8]) -> Answer {
        let handle = self.handle(body)?;
        let mut bytes = vec![0; (word(body, 12) as usize).min(MOST_READ)];
        let n = system::read_at(handle.file, &mut bytes, long(body, 4))?;
        bytes.truncate(n);
        Ok(bytes)
    }

    /// Body: temporary name, or nothing for a file that must not be there yet; path.
    fn create(&mut self, body: &[u8]) -> Answer {
        let mut strings = body.split_inclusive(|&b| b == 0);
        let temporary = strings.next().unwrap_or(b"\0");
        let (parent, name) = self.parent(strings.next().unwrap_or(b"\0"), true)?;
        let made = if temporary == b"\0" { &name } else { temporary };
        match system::open_at(parent, made, Open::Create) {
            Ok(file) => {
                let made = (parent, made.to_vec(), name);
                self.keep(Handle {
                    file,
                    made: Some(made),
                })
            }
            Err(errno) => {
                sys::close(parent);
                Err(errno)
            }
        }
    }

    /// Body: number, bytes.
    fn write(&self, body: &[u8]) -> Answer {
        let handle = self.handle(body)?;
        let mut bytes = &body[4..];
        while !bytes.is_empty() {
            match sys::write(handle.file, bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(sys::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(Vec::new())
    }

    /// Gives a file its name.
    fn finish(&mut self, body: &[u8]) -> Answer {
        let made = self.handle(body)?.made.as_ref();
        let (parent, temporary, name) = made.ok_or(system::EINVAL)?;
        if temporary != name {
            system::rename(*parent, temporary, name)?;
        }
        if let Some(handle) = self.take(body) {
            sys::close(handle.file);
            if let Some((parent, _, _)) = handle.made {
                sys::close(parent);
            }
        }
        Ok(Vec::new())
    }

    fn take(&mut self, body: &[u8]) -> Option<Handle> {
        self.handles.get_mut(word(body, 0) as usize)?.take()
    }

    fn drop_handle(&mut self, body: &[u8]) -> Answer {
        if let Some(handle) = self.take(body) {
            self.discard(handle);
        }
        Ok(Vec::new())
    }

    /// What was not finished leaves nothing.
    fn discard(&self, handle: Handle) {
        sys::close(handle.file);
        if let Some((parent, temporary, _)) = handle.made {
            let _ = system::unlink(parent, &temporary, false);
            sys::close(parent);
        }
    }

    fn make(&self, path: &[u8]) -> Result<Fd, i32> {
        let (parent, name) = self.parent(path, true)?;
        let made = enter(parent, &name, true);
        sys::close(parent);
        made
    }

    /// Body: how deep, how many, path.
    fn remove(&self, body: &[u8]) -> Answer {
        let (deepest, mut most) = (word(body, 0), word(body, 4));
        let (parent, name) = self.parent(&body[8..], false)?;
        let removed = remove_at(parent, &name, deepest, &mut most);
        sys::close(parent);
        removed.map(|()| Vec::new())
    }
}

fn remove_at(parent: Fd, name: &[u8], depth: u32, most: &mut u32) -> Result<(), i32> {
    *most = most.checked_sub(1).ok_or(system::EDQUOT)?;
    match system::unlink(parent, name, false) {
        Err(system::EISDIR | system::EPERM) => {}
        done => return done.map(drop),
    }
    let depth = depth.checked_sub(1).ok_or(system::EDQUOT)?;
    let inside = enter(parent, name, false)?;
    let mut names = Vec::new();
    let listed = system::list(inside, |name| {
        names.push(name.to_vec());
        names.len() <= *most as usize
    });
    let removed = listed.and_then(|()| {
        names
            .iter()
            .try_for_each(|name| match remove_at(inside, name, depth, most) {
                Err(sys::ENOENT) => Ok(()),
                done => done,
            })
    });
    sys::close(inside);
    removed?;
    system::unlink(parent, name, true).map(drop)
}

fn terminated(name: &[u8]) -> Vec<u8> {
    let mut name = name.to_vec();
    name.push(0);
    name
}

/// Opened anew: a mere copy would share how far the directory has been read.
fn copy(dir: Fd) -> Result<Fd, i32> {
    system::open_at(dir, b".\0", Open::Directory)
}

/// A directory in another one; never through a link.
fn enter(dir: Fd, name: &[u8], make: bool) -> Result<Fd, i32> {
    if make {
        match system::make_directory(dir, name) {
            Err(errno) if errno != system::EEXIST => return Err(errno),
            _ => {}
        }
    }
    match system::open_at(dir, name, Open::Directory) {
        Err(system::ENOTDIR)
            if system::stat(dir, name).is_ok_and(|stat| stat.kind() == Kind::Link) =>
        {
            Err(system::ELOOP)
        }
        opened => opened,
    }
}

/// Kind, mode, size, time of the last change of its content.
fn seen(stat: &Stat) -> Vec<u8> {
    let mut bytes = vec![stat.kind() as u8];
    bytes.extend_from_slice(&u32::from(stat.mode & 0o7777).to_le_bytes());
    bytes.extend_from_slice(&stat.size.to_le_bytes());
    bytes.extend_from_slice(&stat.modified.to_le_bytes());
    bytes
}

/// Body: directories separated by `:`, then names. Answer: for each, where it is first found, or nothing; each NUL-ended.
fn find(body: &[u8]) -> Vec<u8> {
    let mut strings = body.split_inclusive(|&b| b == 0);
    let path = strings.next().unwrap_or(b"\0");
    let path = &path[..path.len().saturating_sub(1)];
    let mut found = Vec::new();
    for name in strings.filter(|name| name.last() == Some(&0)) {
        let places = path.split(|&b| b == b':').filter(|dir| !dir.is_empty());
        let mut candidates = places.map(|dir| [dir, b"/", name].concat());
        let at = if name.contains(&b'/') {
            Some(name.to_vec()).filter(|path| system::is_program(path))
        } else {
            candidates.find(|path| system::is_program(path))
        };
        found.extend_from_slice(&at.unwrap_or_else(|| vec![0]));
    }
    found
}
