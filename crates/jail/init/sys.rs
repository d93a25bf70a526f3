//! Raw system calls for the init program, which has no libc. The only `unsafe` of that program.

use crate::call::{call, nr};

pub const EINTR: i32 = 4;
pub const ECHILD: i32 = 10;
pub const ENOENT: i32 = 2;
/// Stands for more commands than there is room for; no program is refused with it.
pub const EUSERS: i32 = 87;

pub type Fd = i32;

pub fn exit(code: i32) -> ! {
    loop {
        let _ = call(nr::EXIT_GROUP, [code as usize, 0, 0, 0, 0, 0]);
    }
}

pub fn read(fd: Fd, buf: &mut [u8]) -> Result<usize, i32> {
    call(
        nr::READ,
        [fd as usize, buf.as_mut_ptr() as usize, buf.len(), 0, 0, 0],
    )
}

pub fn write(fd: Fd, buf: &[u8]) -> Result<usize, i32> {
    call(
        nr::WRITE,
        [fd as usize, buf.as_ptr() as usize, buf.len(), 0, 0, 0],
    )
}

pub fn close(fd: Fd) {
    let _ = call(nr::CLOSE, [fd as usize, 0, 0, 0, 0, 0]);
}

/// Keeps a descriptor from whatever this process executes or its children do.
pub fn close_on_exec(fd: Fd) -> Result<usize, i32> {
    const F_SETFD: usize = 2;
    const FD_CLOEXEC: usize = 1;
    call(nr::FCNTL, [fd as usize, F_SETFD, FD_CLOEXEC, 0, 0, 0])
}

/// A copy of `fd` at some number above the reserved ones, closed by exec.
pub fn duplicate_above(fd: Fd) -> Result<Fd, i32> {
    const F_DUPFD_CLOEXEC: usize = 1030;
    const FIRST: usize = 10;
    call(nr::FCNTL, [fd as usize, F_DUPFD_CLOEXEC, FIRST, 0, 0, 0]).map(|fd| fd as Fd)
}

pub fn dup_to(from: Fd, to: Fd) -> Result<usize, i32> {
    call(nr::DUP3, [from as usize, to as usize, 0, 0, 0, 0])
}

pub fn chdir(path: *const u8) -> Result<usize, i32> {
    call(nr::CHDIR, [path as usize, 0, 0, 0, 0, 0])
}

pub fn setsid() {
    let _ = call(nr::SETSID, [0; 6]);
}

/// Makes the terminal the one that controls this session.
pub fn take_terminal(fd: Fd) -> Result<usize, i32> {
    const TIOCSCTTY: usize = 0x540e;
    call(nr::IOCTL, [fd as usize, TIOCSCTTY, 0, 0, 0, 0])
}

pub fn kill(pid: i32, signal: i32) {
    let _ = call(
        nr::KILL,
        [pid as isize as usize, signal as usize, 0, 0, 0, 0],
    );
}

pub fn is_first() -> bool {
    matches!(call(nr::GETPID, [0; 6]), Ok(1))
}

pub fn prctl(option: usize, value: usize) -> Result<usize, i32> {
    call(nr::PRCTL, [option, value, 0, 0, 0, 0])
}

/// Forks; the parent goes on once the child has called `execve` or has exited. Code that stops the child before then holds the
/// parent up, until the keeper ends the sandbox for it.
pub fn vfork() -> Result<i32, i32> {
    const CLONE_VFORK: usize = 0x4000;
    const SIGCHLD: usize = 17;
    call(nr::CLONE, [CLONE_VFORK | SIGCHLD, 0, 0, 0, 0, 0]).map(|pid| pid as i32)
}

pub fn execve(path: *const u8, argv: *const *const u8, env: *const *const u8) -> i32 {
    call(
        nr::EXECVE,
        [path as usize, argv as usize, env as usize, 0, 0, 0],
    )
    .err()
    .unwrap_or(0)
}

/// Blocks every signal (`true`) or none (`false`).
pub fn mask_signals(all: bool) {
    const SIG_SETMASK: usize = 2;
    let set: u64 = if all { u64::MAX } else { 0 };
    let _ = call(
        nr::SIGPROCMASK,
        [SIG_SETMASK, &raw const set as usize, 0, 8, 0, 0],
    );
}

/// A descriptor that is readable while a child waits to be reaped.
pub fn child_signals() -> Result<Fd, i32> {
    const SFD_FLAGS: usize = 0o2_000_000 | 0o4_000; // CLOEXEC | NONBLOCK
    let set: u64 = 1 << (17 - 1);
    call(
        nr::SIGNALFD4,
        [usize::MAX, &raw const set as usize, 8, SFD_FLAGS, 0, 0],
    )
    .map(|fd| fd as Fd)
}

pub const IN: i16 = 1;

/// A descriptor that is waited for.
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

    /// Or hung up.
    pub fn is_ready(&self) -> bool {
        self.revents != 0
    }
}

/// Waits until one of them is ready.
pub fn poll(polls: &mut [Poll]) {
    let _ = call(
        nr::PPOLL,
        [polls.as_mut_ptr() as usize, polls.len(), 0, 0, 0, 0],
    );
}

pub struct Exit {
    pub pid: i32,
    pub code: i32,
    pub status: i32,
}

/// Reaps one child. `Ok(None)`: there are children, none has ended. `Err(ECHILD)`: there are none.
pub fn reap(block: bool) -> Result<Option<Exit>, i32> {
    const P_ALL: usize = 0;
    const WNOHANG: usize = 1;
    const WEXITED: usize = 4;
    /// Also those that tell nobody of their end.
    const WALL: usize = 0x4000_0000;
    // siginfo_t: signo, errno, code, (padding), pid, uid, status.
    let mut info = [0_i32; 32];
    let flags = WEXITED | WALL | if block { 0 } else { WNOHANG };
    call(
        nr::WAITID,
        [P_ALL, 0, info.as_mut_ptr() as usize, flags, 0, 0],
    )?;
    if info[4] == 0 {
        return Ok(None);
    }
    Ok(Some(Exit {
        pid: info[4],
        code: info[2],
        status: info[6],
    }))
}

/// Fresh zeroed memory, given back with [`unmap`]; a slice of it is what messages are read into.
pub fn map(len: usize) -> Result<&'static mut [u8], i32> {
    const PROT_READ_WRITE: usize = 3;
    const PRIVATE_ANONYMOUS: usize = 0x22;
    let at = call(
        nr::MMAP,
        [0, len, PROT_READ_WRITE, PRIVATE_ANONYMOUS, usize::MAX, 0],
    )?;
    // SAFETY: the kernel just gave us `len` zeroed bytes at `at` that nothing else refers to.
    Ok(unsafe { core::slice::from_raw_parts_mut(at as *mut u8, len) })
}

pub fn unmap(memory: &'static mut [u8]) {
    let _ = call(
        nr::MUNMAP,
        [memory.as_ptr() as usize, memory.len(), 0, 0, 0, 0],
    );
}

/// Splits mapped memory into bytes and, at its 8-byte aligned end, room for `count` pointers.
pub fn pointers(memory: &mut [u8], count: usize) -> Option<(&mut [u8], &mut [*const u8])> {
    let at = memory.len().checked_sub(count.checked_mul(8)?)? & !7;
    let (bytes, tail) = memory.split_at_mut(at);
    // SAFETY: mappings are page aligned, so `at` is 8-byte aligned; zeroed bytes are null pointers.
    let slots = unsafe { core::slice::from_raw_parts_mut(tail.as_mut_ptr().cast(), count) };
    Some((bytes, slots))
}

#[repr(C)]
pub struct IoVec {
    pub base: *mut u8,
    pub len: usize,
}

#[repr(C)]
pub struct MsgHdr {
    pub name: usize,
    pub name_len: u32,
    pub iov: *mut IoVec,
    pub iov_len: usize,
    pub control: *mut u8,
    pub control_len: usize,
    pub flags: i32,
}

#[repr(C, align(8))]
pub struct Control {
    pub len: usize,
    pub level: i32,
    pub kind: i32,
    pub fds: [Fd; MAX_FDS],
}

/// Three standard descriptors, a channel, and the files of up to six cgroup hierarchies.
pub const MAX_FDS: usize = 10;

/// Receives bytes and descriptors (`-1` where none came).
pub fn receive(fd: Fd, buf: &mut [u8]) -> Result<(usize, [Fd; MAX_FDS]), i32> {
    const MSG_CMSG_CLOEXEC: usize = 0x4000_0000;
    let mut iov = IoVec {
        base: buf.as_mut_ptr(),
        len: buf.len(),
    };
    let mut control = Control {
        len: 0,
        level: 0,
        kind: 0,
        fds: [-1; MAX_FDS],
    };
    let mut header = MsgHdr {
        name: 0,
        name_len: 0,
        iov: &raw mut iov,
        iov_len: 1,
        control: (&raw mut control).cast(),
        control_len: core::mem::size_of::<Control>(),
        flags: 0,
    };
    let n = call(
        nr::RECVMSG,
        [
            fd as usize,
            &raw mut header as usize,
            MSG_CMSG_CLOEXEC,
            0,
            0,
            0,
        ],
    )?;
    Ok((n, control.fds))
}

/// The prebuilt `core` refers to this even when panics abort; nothing ever calls it.
#[unsafe(no_mangle)]
pub extern "C" fn rust_eh_personality() {}

// The compiler may call these for copies and zeroing; there is no libc to provide them.
/// # Safety
/// As for C's `memcpy`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, n: usize) -> *mut u8 {
    let mut i = 0;
    while i < n {
        // SAFETY: the caller promises `n` valid, non-overlapping bytes; volatile keeps this loop a loop.
        unsafe { to.add(i).write_volatile(from.add(i).read()) };
        i += 1;
    }
    to
}

/// # Safety
/// As for C's `memset`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memset(to: *mut u8, byte: i32, n: usize) -> *mut u8 {
    let mut i = 0;
    while i < n {
        // SAFETY: the caller promises `n` writable bytes.
        unsafe { to.add(i).write_volatile(byte as u8) };
        i += 1;
    }
    to
}

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(".globl _start", "_start:", "xor ebp, ebp", "and rsp, -16", "call {main}", "ud2", main = sym super::main);
#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(".globl _start", "_start:", "mov x29, #0", "mov x30, #0", "bl {main}", "brk #1", main = sym super::main);
