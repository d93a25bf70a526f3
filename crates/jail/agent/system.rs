//! The agent's own system calls, beyond those that it shares with the jail's init.

use alloc::vec;
use alloc::vec::Vec;

use crate::call::{call, nr};
use crate::sys::{self, Control, Fd, IoVec, MAX_FDS, MsgHdr};

pub const EAGAIN: i32 = 11;
pub const EACCES: i32 = 13;
pub const EEXIST: i32 = 17;
pub const ENOTDIR: i32 = 20;
pub const EISDIR: i32 = 21;
pub const EINVAL: i32 = 22;
pub const EMFILE: i32 = 24;
pub const ELOOP: i32 = 40;
pub const EPERM: i32 = 1;
pub const EDQUOT: i32 = 122;

pub const OUT: i16 = 4;

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

const O_RDWR: usize = 0o2;
const O_NOCTTY: usize = 0o400;
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

/// Sends bytes, and a descriptor with the first of them. Never raises a signal.
pub fn send(socket: Fd, bytes: &[u8], fd: Option<Fd>) -> Result<usize, i32> {
    const SOL_SOCKET: i32 = 1;
    const SCM_RIGHTS: i32 = 1;
    const MSG_NOSIGNAL: usize = 0x4000;
    let mut iov = IoVec {
        // Only read from.
        base: bytes.as_ptr().cast_mut(),
        len: bytes.len(),
    };
    let mut control = Control {
        len: 20,
        level: SOL_SOCKET,
        kind: SCM_RIGHTS,
        fds: [-1; MAX_FDS],
    };
    control.fds[0] = fd.unwrap_or(-1);
    let header = MsgHdr {
        name: 0,
        name_len: 0,
        iov: &raw mut iov,
        iov_len: 1,
        control: if fd.is_some() {
            (&raw mut control).cast()
        } else {
            core::ptr::null_mut()
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
    Terminal,
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
            Open::Terminal => O_RDWR | O_NOCTTY,
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

/// A handle on whatever is there, links followed, which gives no access to it.
pub fn open_path(path: &[u8]) -> Result<Fd, i32> {
    const AT_FDCWD: isize = -100;
    const O_PATH: usize = 0o10_000_000;
    let path = terminated(path).as_ptr() as usize;
    call(
        nr::OPENAT,
        [AT_FDCWD as usize, path, O_PATH | O_CLOEXEC, 0, 0, 0],
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

/// A terminal of the container's own: the end that is read and typed at, and the one for the program.
pub fn terminal(rows: u16, cols: u16) -> Result<(Fd, Fd), i32> {
    const TIOCGPTN: usize = 0x8004_5430;
    const TIOCSPTLCK: usize = 0x4004_5431;
    const TCGETS: usize = 0x5401;
    const TCSETS: usize = 0x5402;
    const IUTF8: u32 = 0o40_000;
    let master = open_at(-1, b"/dev/pts/ptmx\0", Open::Terminal)?;
    let opened = || {
        let (locked, mut number) = (0_i32, 0_u32);
        ioctl(master, TIOCSPTLCK, &raw const locked as usize)?;
        ioctl(master, TIOCGPTN, &raw mut number as usize)?;
        let path = [b"/dev/pts/", &*decimal(number), b"\0"].concat();
        let program = open_at(-1, &path, Open::Terminal)?;
        // So that erasing takes away characters, not bytes. The kernel's struct: four words of flags, then characters.
        let mut settings = [0_u32; 16];
        if ioctl(program, TCGETS, settings.as_mut_ptr() as usize).is_ok() {
            settings[0] |= IUTF8;
            let _ = ioctl(program, TCSETS, settings.as_ptr() as usize);
        }
        resize(program, rows, cols);
        Ok(program)
    };
    match opened() {
        Ok(program) => Ok((master, program)),
        Err(errno) => {
            sys::close(master);
            Err(errno)
        }
    }
}

fn decimal(mut number: u32) -> Vec<u8> {
    let mut digits = Vec::new();
    loop {
        digits.insert(0, b'0' + (number % 10) as u8);
        number /= 10;
        if number == 0 {
            return digits;
        }
    }
}

/// Tells a terminal how large it is, and those at it that this has changed.
pub fn resize(terminal: Fd, rows: u16, cols: u16) {
    const TIOCSWINSZ: usize = 0x5414;
    let size = [rows, cols, 0, 0];
    let _ = ioctl(terminal, TIOCSWINSZ, size.as_ptr() as usize);
}

fn ioctl(fd: Fd, request: usize, argument: usize) -> Result<usize, i32> {
    call(nr::IOCTL, [fd as usize, request, argument, 0, 0, 0])
}

/// Kills all processes of a session, also those that moved to groups of their own. One that goes on forking is met
/// again in the next round; there are as many rounds as may do.
pub fn kill_session(session: i32) {
    const ROUNDS: usize = 16;
    const SIGKILL: i32 = 9;
    for _ in 0..ROUNDS {
        let Ok(proc) = open_at(-1, b"/proc\0", Open::Directory) else {
            break;
        };
        let mut met = false;
        let _ = list(proc, |name| {
            let digits = &name[..name.len() - 1];
            let number = core::str::from_utf8(digits)
                .ok()
                .and_then(|n| n.parse().ok());
            if let Some(pid) = number.filter(|pid| *pid > 1 && session_of(digits) == Some(session))
            {
                met = true;
                sys::kill(pid, SIGKILL);
            }
            true
        });
        sys::close(proc);
        if !met {
            break;
        }
    }
}

/// The session of a process that has not ended.
fn session_of(pid: &[u8]) -> Option<i32> {
    let path = [b"/proc/", pid, b"/stat\0"].concat();
    let text = read_whole(&path, 4096);
    // The name in brackets may have anything in it. Then: state, parent, group, session.
    let after = text.iter().rposition(|&byte| byte == b')')?;
    let text = core::str::from_utf8(&text[after + 1..]).ok()?;
    let mut fields = text.split_whitespace();
    let ended = matches!(fields.next()?, "Z" | "X");
    let session = fields.nth(2)?.parse().ok()?;
    (!ended).then_some(session)
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
