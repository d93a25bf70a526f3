//! The agent's own system calls, beyond those that it shares with the jail's init.

use alloc::vec;
use alloc::vec::Vec;

use crate::call::call;
use crate::sys::{self, Fd};

#[cfg(target_arch = "x86_64")]
mod nr {
    pub const SENDMSG: usize = 46;
    pub const SOCKETPAIR: usize = 53;
    pub const FCNTL: usize = 72;
    pub const FSTATFS: usize = 138;
    pub const PRCTL: usize = 157;
    pub const GETDENTS64: usize = 217;
    pub const OPENAT: usize = 257;
    pub const MKDIRAT: usize = 258;
    pub const UNLINKAT: usize = 263;
    pub const RENAMEAT: usize = 264;
    pub const FACCESSAT: usize = 269;
    pub const PPOLL: usize = 271;
    pub const PIPE2: usize = 293;
    pub const PREAD64: usize = 17;
    pub const SECCOMP: usize = 317;
    pub const STATX: usize = 332;
}
#[cfg(target_arch = "aarch64")]
mod nr {
    pub const FCNTL: usize = 25;
    pub const MKDIRAT: usize = 34;
    pub const UNLINKAT: usize = 35;
    pub const RENAMEAT: usize = 38;
    pub const FSTATFS: usize = 44;
    pub const FACCESSAT: usize = 48;
    pub const OPENAT: usize = 56;
    pub const PIPE2: usize = 59;
    pub const GETDENTS64: usize = 61;
    pub const PREAD64: usize = 67;
    pub const PPOLL: usize = 73;
    pub const PRCTL: usize = 167;
    pub const SOCKETPAIR: usize = 199;
    pub const SENDMSG: usize = 211;
    pub const SECCOMP: usize = 277;
    pub const STATX: usize = 291;
}

pub const EAGAIN: i32 = 11;
pub const EEXIST: i32 = 17;
pub const ENOTDIR: i32 = 20;
pub const EISDIR: i32 = 21;
pub const EINVAL: i32 = 22;
pub const EMFILE: i32 = 24;
pub const ELOOP: i32 = 40;
pub const EPERM: i32 = 1;
pub const EDQUOT: i32 = 122;

pub const IN: i16 = 1;
pub const OUT: i16 = 4;

#[repr(C)]
pub struct Poll {
    fd: Fd,
    events: i16,
    revents: i16,
}

impl Poll {
    pub fn new(fd: Fd, events: i16) -> Self {
        Self {
            // A negative number is skipped by the kernel.
            fd: if events == 0 { -1 } else { fd },
            events,
            revents: 0,
        }
    }

    pub fn is_ready(&self) -> bool {
        self.revents != 0
    }
}

pub fn poll(polls: &mut [Poll]) {
    let _ = call(
        nr::PPOLL,
        [polls.as_mut_ptr() as usize, polls.len(), 0, 0, 0, 0],
    );
}

pub fn set_nonblocking(fd: Fd) -> Result<usize, i32> {
    const F_GETFL: usize = 3;
    const F_SETFL: usize = 4;
    const O_NONBLOCK: usize = 0o4000;
    let flags = call(nr::FCNTL, [fd as usize, F_GETFL, 0, 0, 0, 0])?;
    call(
        nr::FCNTL,
        [fd as usize, F_SETFL, flags | O_NONBLOCK, 0, 0, 0],
    )
}

/// Whether the engine has taken away what it was asked to: programs cannot gain privileges.
pub fn is_unprivileged() -> bool {
    const PR_GET_NO_NEW_PRIVS: usize = 39;
    matches!(call(nr::PRCTL, [PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0, 0]), Ok(1))
}

#[repr(C)]
struct Program {
    len: u16,
    filter: *const u8,
}

/// Puts a filter on this process and all that come after it. Takes the instructions as the kernel has them.
pub fn install_filter(instructions: &[u8]) -> Result<usize, i32> {
    const SECCOMP_SET_MODE_FILTER: usize = 1;
    let program = Program {
        len: (instructions.len() / 8) as u16,
        filter: instructions.as_ptr(),
    };
    call(
        nr::SECCOMP,
        [
            SECCOMP_SET_MODE_FILTER,
            0,
            &raw const program as usize,
            0,
            0,
            0,
        ],
    )
}

const O_CLOEXEC: usize = 0o2_000_000;
const O_NONBLOCK: usize = 0o4000;

/// Both ends of a pipe: to read from, to write to.
pub fn pipe() -> Result<(Fd, Fd), i32> {
    let mut fds = [-1_i32; 2];
    call(
        nr::PIPE2,
        [fds.as_mut_ptr() as usize, O_CLOEXEC, 0, 0, 0, 0],
    )?;
    Ok((fds[0], fds[1]))
}

pub fn socket_pair() -> Result<(Fd, Fd), i32> {
    const AF_UNIX: usize = 1;
    const SOCK_STREAM: usize = 1;
    let mut fds = [-1_i32; 2];
    call(
        nr::SOCKETPAIR,
        [
            AF_UNIX,
            SOCK_STREAM | O_CLOEXEC,
            0,
            fds.as_mut_ptr() as usize,
            0,
            0,
        ],
    )?;
    Ok((fds[0], fds[1]))
}

#[repr(C)]
struct IoVec {
    base: *const u8,
    len: usize,
}

#[repr(C)]
struct MsgHdr {
    name: usize,
    name_len: u32,
    iov: *const IoVec,
    iov_len: usize,
    control: usize,
    control_len: usize,
    flags: i32,
}

#[repr(C, align(8))]
struct Control {
    len: usize,
    level: i32,
    kind: i32,
    fd: Fd,
    padding: i32,
}

/// Sends bytes, and a descriptor with the first of them. Never raises a signal.
pub fn send(socket: Fd, bytes: &[u8], fd: Option<Fd>) -> Result<usize, i32> {
    const SOL_SOCKET: i32 = 1;
    const SCM_RIGHTS: i32 = 1;
    const MSG_NOSIGNAL: usize = 0x4000;
    let iov = IoVec {
        base: bytes.as_ptr(),
        len: bytes.len(),
    };
    let control = Control {
        len: 20,
        level: SOL_SOCKET,
        kind: SCM_RIGHTS,
        fd: fd.unwrap_or(-1),
        padding: 0,
    };
    let header = MsgHdr {
        name: 0,
        name_len: 0,
        iov: &raw const iov,
        iov_len: 1,
        control: if fd.is_some() {
            &raw const control as usize
        } else {
            0
        },
        control_len: if fd.is_some() { 24 } else { 0 },
        flags: 0,
    };
    call(
        nr::SENDMSG,
        [
            socket as usize,
            &raw const header as usize,
            MSG_NOSIGNAL,
            0,
            0,
            0,
        ],
    )
}

/// How a file is opened. Links are never followed at the end of a path.
#[derive(Clone, Copy)]
pub enum Open {
    Read,
    Create,
    Directory,
}

#[cfg(target_arch = "x86_64")]
const O_DIRECTORY: usize = 0o200_000;
#[cfg(target_arch = "x86_64")]
const O_NOFOLLOW: usize = 0o400_000;
#[cfg(target_arch = "aarch64")]
const O_DIRECTORY: usize = 0o40_000;
#[cfg(target_arch = "aarch64")]
const O_NOFOLLOW: usize = 0o100_000;

/// `name` ends with a NUL.
pub fn open_at(dir: Fd, name: &[u8], how: Open) -> Result<Fd, i32> {
    const AT_FDCWD: isize = -100;
    let flags = O_CLOEXEC
        | O_NOFOLLOW
        | match how {
            Open::Read => O_NONBLOCK,
            Open::Create => 0o1 | 0o100 | 0o200,
            Open::Directory => O_DIRECTORY | O_NONBLOCK,
        };
    let dir = if dir < 0 { AT_FDCWD } else { dir as isize };
    call(
        nr::OPENAT,
        [
            dir as usize,
            terminated(name).as_ptr() as usize,
            flags,
            0o644,
            0,
            0,
        ],
    )
    .map(|fd| fd as Fd)
}

/// Names come from frames as they are: whoever builds a path ends it, and this is where that is seen to.
fn terminated(name: &[u8]) -> &[u8] {
    if name.last() == Some(&0) {
        name
    } else {
        sys::exit(83)
    }
}

pub fn make_directory(dir: Fd, name: &[u8]) -> Result<usize, i32> {
    call(
        nr::MKDIRAT,
        [
            dir as usize,
            terminated(name).as_ptr() as usize,
            0o755,
            0,
            0,
            0,
        ],
    )
}

pub fn unlink(dir: Fd, name: &[u8], directory: bool) -> Result<usize, i32> {
    const AT_REMOVEDIR: usize = 0x200;
    let flags = if directory { AT_REMOVEDIR } else { 0 };
    call(
        nr::UNLINKAT,
        [
            dir as usize,
            terminated(name).as_ptr() as usize,
            flags,
            0,
            0,
            0,
        ],
    )
}

pub fn rename(dir: Fd, from: &[u8], to: &[u8]) -> Result<usize, i32> {
    call(
        nr::RENAMEAT,
        [
            dir as usize,
            terminated(from).as_ptr() as usize,
            dir as usize,
            terminated(to).as_ptr() as usize,
            0,
            0,
        ],
    )
}

pub fn read_at(fd: Fd, buffer: &mut [u8], offset: u64) -> Result<usize, i32> {
    call(
        nr::PREAD64,
        [
            fd as usize,
            buffer.as_mut_ptr() as usize,
            buffer.len(),
            offset as usize,
            0,
            0,
        ],
    )
}

pub fn is_program(path: &[u8]) -> bool {
    const AT_FDCWD: isize = -100;
    const X_OK: usize = 1;
    let allowed = call(
        nr::FACCESSAT,
        [
            AT_FDCWD as usize,
            terminated(path).as_ptr() as usize,
            X_OK,
            0,
            0,
            0,
        ],
    );
    allowed.is_ok() && stat_path(path).is_ok_and(|stat| stat.kind() == Kind::File)
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    File = 0,
    Directory = 1,
    Link = 2,
    Other = 3,
}

/// The parts of the kernel's `struct statx` that are asked for.
pub struct Stat {
    pub mode: u16,
    pub inode: u64,
    pub size: u64,
    pub changed: (i64, i64),
    pub modified: i64,
}

impl Stat {
    pub fn kind(&self) -> Kind {
        match self.mode & 0o170_000 {
            0o100_000 => Kind::File,
            0o040_000 => Kind::Directory,
            0o120_000 => Kind::Link,
            _ => Kind::Other,
        }
    }
}

/// Of a descriptor, or of a name in a directory; a link is looked at itself.
pub fn stat(dir: Fd, name: &[u8]) -> Result<Stat, i32> {
    const AT_EMPTY_PATH: usize = 0x1000;
    const AT_SYMLINK_NOFOLLOW: usize = 0x100;
    statx(dir as usize, name, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW)
}

fn stat_path(path: &[u8]) -> Result<Stat, i32> {
    const AT_FDCWD: isize = -100;
    statx(AT_FDCWD as usize, path, 0)
}

fn statx(dir: usize, name: &[u8], flags: usize) -> Result<Stat, i32> {
    const BASIC: usize = 0x7ff;
    let mut buffer = [0_u64; 32];
    call(
        nr::STATX,
        [
            dir,
            terminated(name).as_ptr() as usize,
            flags,
            BASIC,
            buffer.as_mut_ptr() as usize,
            0,
        ],
    )?;
    // Offsets of struct statx: mode 28, ino 32, size 40, atime 64, btime 80, ctime 96, mtime 112; each time has seconds, then
    // nanoseconds in 32 bits.
    Ok(Stat {
        mode: (buffer[3] >> 32) as u16,
        inode: buffer[4],
        size: buffer[5],
        changed: (buffer[12] as i64, (buffer[13] & 0xffff_ffff) as i64),
        modified: buffer[14] as i64,
    })
}

/// Bytes in use in the file system of a descriptor.
pub fn used(fd: Fd) -> u64 {
    // struct statfs: type, block size, blocks, free blocks, …
    let mut buffer = [0_u64; 16];
    match call(
        nr::FSTATFS,
        [fd as usize, buffer.as_mut_ptr() as usize, 0, 0, 0, 0],
    ) {
        Ok(_) => buffer[2]
            .saturating_sub(buffer[3])
            .saturating_mul(buffer[1]),
        Err(_) => 0,
    }
}

/// The names in a directory, without `.` and `..`, each ended by a NUL; `false` from `each` ends it.
pub fn list(dir: Fd, mut each: impl FnMut(&[u8]) -> bool) -> Result<(), i32> {
    let mut buffer = vec![0_u8; 16 << 10];
    loop {
        let n = call(
            nr::GETDENTS64,
            [
                dir as usize,
                buffer.as_mut_ptr() as usize,
                buffer.len(),
                0,
                0,
                0,
            ],
        )?;
        if n == 0 {
            return Ok(());
        }
        let mut at = 0;
        while at + 19 < n {
            let length = u16::from_le_bytes([buffer[at + 16], buffer[at + 17]]) as usize;
            let name = &buffer[at + 19..at + length];
            let end = name.iter().position(|&b| b == 0).unwrap_or(0);
            let name = &name[..=end];
            if name != b".\0" && name != b"..\0" && !each(name) {
                return Ok(());
            }
            at += length.max(20);
        }
    }
}

/// A small file of the kernel.
pub fn read_whole(path: &[u8], most: usize) -> Vec<u8> {
    let mut text = Vec::new();
    let Ok(fd) = open_at(-1, path, Open::Read) else {
        return text;
    };
    let mut buffer = [0_u8; 4096];
    while let Ok(n) = sys::read(fd, &mut buffer) {
        if n == 0 || text.len() > most {
            break;
        }
        text.extend_from_slice(&buffer[..n]);
    }
    sys::close(fd);
    text
}
