//! The system calls that no crate wraps well, each in a safe function. The only `unsafe` of Belljar's own process.
//!
//! Invariant of the whole module: pointers handed to the kernel refer to locals or borrowed slices that outlive the call,
//! and every descriptor the kernel returns is owned by exactly one `OwnedFd`.
#![expect(
    unsafe_code,
    reason = "the boundary to the kernel is kept in this one place"
)]

mod code;
mod mounts;
#[cfg(target_arch = "x86_64")]
mod prelude;
mod rights;

use std::ffi::{CStr, CString, c_char, c_int};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

pub use code::gather_code;
pub use mounts::{
    FileSystem, NODEV, NOEXEC, NOSUID, RDONLY, attach_tree, clone_tree, clone_tree_of,
    detached_file_system, mount_of, set_attributes_of_first, set_mount_attributes,
};
#[cfg(target_arch = "x86_64")]
pub use prelude::{has_network as has_early_network, network as early_network};
use rights::raise_capabilities;
pub use rights::{
    add_seccomp_filter, drop_capabilities, has_seccomp, is_filtered, landlock_abi,
    new_session_keyring, no_new_privileges,
};

#[cfg(not(target_arch = "x86_64"))]
pub fn early_network() -> Option<OwnedFd> {
    None
}

#[cfg(not(target_arch = "x86_64"))]
pub fn has_early_network() -> bool {
    false
}

unsafe extern "C" {
    static environ: *const *mut c_char;
}

/// A result of the kernel as an `io::Result`.
fn check(ret: libc::c_long) -> io::Result<libc::c_long> {
    if ret < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(ret)
    }
}

fn owned(ret: libc::c_long) -> io::Result<OwnedFd> {
    let fd = RawFd::try_from(check(ret)?).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made this descriptor for us; nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// Ends this process at once: nothing is taken apart, and nothing flushed.
pub fn leave(status: u8) -> ! {
    // SAFETY: the call does not return.
    unsafe { libc::_exit(status.into()) }
}

/// Which side of a fork we are on.
pub enum Side {
    Child,
    Parent { pid: i32, pidfd: OwnedFd },
}

/// Forks with new namespaces, the child born inside `cgroup` when one is given (cgroup v2, Linux 5.7).
///
/// Must only be called while the process has a single thread: the child allocates.
pub fn fork(namespaces: c_int, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Side> {
    let mut pidfd: c_int = -1;
    // SAFETY: clone_args is plain data, all zeroes is a valid value.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = u64::from(namespaces.cast_unsigned()) | libc::CLONE_PIDFD as u64;
    args.pidfd = &raw mut pidfd as u64;
    // A sibling's is ours.
    if namespaces & libc::CLONE_PARENT == 0 {
        args.exit_signal = libc::SIGCHLD as u64;
    }
    if let Some(cgroup) = cgroup {
        args.flags |= 0x2_0000_0000; // CLONE_INTO_CGROUP
        args.cgroup = u64::from(cgroup.as_raw_fd().cast_unsigned());
    }
    // SAFETY: no CLONE_VM, so the child has its own copy of everything; the caller is single-threaded.
    let pid = check(unsafe {
        libc::syscall(
            libc::SYS_clone3,
            &raw mut args,
            size_of::<libc::clone_args>(),
        )
    })?;
    if pid == 0 {
        return Ok(Side::Child);
    }
    let pidfd = owned(pidfd.into())?;
    Ok(Side::Parent {
        pid: i32::try_from(pid).map_err(io::Error::other)?,
        pidfd,
    })
}

/// Forks as another user, with every capability that root has: a user namespace belongs to whoever makes it.
pub fn fork_as(user: u32, namespaces: c_int, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Side> {
    set_effective_user(user)?;
    raise_capabilities()?;
    let side = fork(namespaces, cgroup);
    // Back to root, which has them by itself. Should that fail, this process must not go on.
    if !matches!(side, Ok(Side::Child))
        && set_effective_user(0).and_then(|()| mind_parent()).is_err()
    {
        std::process::abort();
    }
    side
}

fn set_effective_user(user: u32) -> io::Result<()> {
    let same = libc::uid_t::MAX;
    // SAFETY: integer arguments only. The raw call: this process has a single thread.
    check(unsafe { libc::syscall(libc::SYS_setresuid, same, user, same) })?;
    Ok(())
}

/// Overwrites what this process was given as its environment, but for the variables of `keep`. The process must have a single thread.
pub fn blank_environment(keep: &[&str]) {
    // SAFETY: the list and its texts are this process's own and can be written; nobody else reads them meanwhile, and each text
    // keeps its place and an end.
    unsafe {
        let mut at = environ;
        while !at.is_null() && !(*at).is_null() {
            let text = CStr::from_ptr(*at).to_bytes();
            let name = text.split(|byte| *byte == b'=').next().unwrap_or_default();
            if !keep.iter().any(|kept| kept.as_bytes() == name) {
                let (from, length) = (name.len(), text.len() - name.len());
                (*at).add(from).write_bytes(0, length);
            }
            at = at.add(1);
        }
    }
}

/// Sets soft and hard limit of this process.
pub fn set_resource_limit(resource: u32, value: u64) -> io::Result<()> {
    let limit = libc::rlimit64 {
        rlim_cur: value,
        rlim_max: value,
    };
    // SAFETY: reads a struct that lives across the call; the old limit is not asked for.
    check(unsafe {
        libc::syscall(
            libc::SYS_prlimit64,
            0,
            resource,
            &raw const limit,
            std::ptr::null_mut::<libc::rlimit64>(),
        )
    })?;
    Ok(())
}

/// A handle on a process by its number. Only for one that cannot be reaped by anyone else meanwhile.
pub fn open_process(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: integer arguments only.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })
}

/// Reaps a child that has ended, any for `-1`, and returns its wait status. `None`: none has. The status is left as it is: not
/// every signal has a name.
pub fn reap(pid: i32) -> io::Result<Option<c_int>> {
    let mut status = 0;
    // SAFETY: the status lives across the call.
    let reaped = unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) };
    Ok((check(reaped.into())? != 0).then_some(status))
}

/// Whether a process is a child of ours that nobody has reaped. Its number is then nobody else's.
pub fn is_child(pidfd: BorrowedFd<'_>) -> bool {
    let id = libc::id_t::try_from(pidfd.as_raw_fd());
    id.is_ok_and(|id| look_for_end(libc::P_PIDFD, id).is_ok())
}

/// A child that has ended and waits to be reaped, which it goes on doing.
pub fn ended_child() -> io::Result<Option<i32>> {
    look_for_end(libc::P_ALL, 0).map(|pid| (pid != 0).then_some(pid))
}

/// Nought: none has ended.
fn look_for_end(kind: libc::idtype_t, id: libc::id_t) -> io::Result<i32> {
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: a siginfo of zeros is one that says nothing.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the information lives across the call.
    check(unsafe { libc::waitid(kind, id, &raw mut info, flags) }.into())?;
    // SAFETY: what waitid has filled in, or has left at zero, has a process id.
    Ok(unsafe { info.si_pid() })
}

/// Children whose parents end become ours, rather than the system's.
pub fn adopt_orphans() -> io::Result<()> {
    // SAFETY: prctl with integer arguments touches no memory of ours.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }.into())?;
    Ok(())
}

/// How many threads this process has.
pub fn thread_count() -> io::Result<usize> {
    let task = "/proc/self/task";
    // The kernel counts a link for each, as if it were a subdirectory.
    match std::fs::metadata(task)?.nlink() {
        links @ 3.. => usize::try_from(links - 2).map_err(io::Error::other),
        _ => Ok(std::fs::read_dir(task)?.count()),
    }
}

/// Switches on the loopback interface of the network namespace that the socket is of.
pub fn raise_loopback(socket: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: ifreq is plain data, all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(c"lo".to_bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = libc::c_short::try_from(libc::IFF_UP).unwrap_or(1);
    // SAFETY: the kernel reads a struct that lives across the call.
    check(
        unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) }.into(),
    )?;
    Ok(())
}

/// The network namespace in which a socket was made. Only for whoever has power over that.
pub fn namespace_of(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: the request takes no argument; what it returns is a new descriptor, or an error.
    let fd = check(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGSKNS, 0) }.into())?;
    let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: it was just made for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Of `linux/sockios.h`.
const SIOCGSKNS: libc::c_ulong = 0x894c;

pub fn set_dumpable(dumpable: bool) -> io::Result<()> {
    // SAFETY: prctl with integer arguments touches no memory of ours.
    check(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, c_int::from(dumpable), 0, 0, 0) }.into())?;
    Ok(())
}

/// Asks the kernel to kill this process when its parent dies.
pub fn die_with_parent() -> io::Result<()> {
    // SAFETY: prctl with integer arguments touches no memory of ours.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) }.into())?;
    Ok(())
}

/// Whom [`end_after_parent`] is about, and how many seconds are left then.
static PARENT: AtomicI32 = AtomicI32::new(0);
static GRACE: AtomicU32 = AtomicU32::new(0);

/// Ends this process so many seconds after its parent has ended, whatever it may be stuck in. Until then it can clear up, which one
/// that is killed at once cannot.
///
/// The kernel's signal tells of the end of a thread, the one that forked: whether the process has gone with it is asked then.
pub fn end_after_parent(parent: i32, seconds: u32) -> io::Result<()> {
    PARENT.store(parent, Ordering::Relaxed);
    GRACE.store(seconds, Ordering::Relaxed);
    let handler = parent_may_have_gone as extern "C" fn(c_int);
    // SAFETY: the action and the sets are plain data, for which zeroes are valid, and live across the calls; the handler does only
    // what a handler may.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_RESTART;
        check(libc::sigaction(libc::SIGHUP, &raw const action, std::ptr::null_mut()).into())?;
        libc::signal(libc::SIGALRM, libc::SIG_DFL);
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&raw mut set, libc::SIGHUP);
        libc::sigaddset(&raw mut set, libc::SIGALRM);
        check(libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut()).into())?;
    }
    mind_parent()
}

/// Again: a change of the effective user makes the kernel forget it, and what happened meanwhile was not told.
pub fn mind_parent() -> io::Result<()> {
    if PARENT.load(Ordering::Relaxed) == 0 {
        return Ok(());
    }
    // SAFETY: prctl with integer arguments touches no memory of ours.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGHUP, 0, 0, 0) }.into())?;
    parent_may_have_gone(libc::SIGHUP);
    Ok(())
}

extern "C" fn parent_may_have_gone(_: c_int) {
    // SAFETY: both calls take integers only and may be made in a handler. The alarm's signal ends the process.
    unsafe {
        if libc::getppid() != PARENT.load(Ordering::Relaxed) {
            libc::alarm(GRACE.load(Ordering::Relaxed));
        }
    }
}

/// Marks every descriptor from `first` up to be closed by the next exec.
pub fn close_on_exec_from(first: RawFd) -> io::Result<()> {
    let first = first.cast_unsigned();
    // SAFETY: integer arguments only; descriptors stay open until exec, so no owner is surprised.
    check(unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            u32::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    })?;
    Ok(())
}

/// In a child that goes its own way: closes every descriptor from `first` up.
pub fn leave_descriptors_from(first: RawFd) -> io::Result<()> {
    let first = first.cast_unsigned();
    // SAFETY: integer arguments only. Owners of the others are in memory that this process does not return to.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) })?;
    Ok(())
}

/// Puts `fd` at the number `target`, to be inherited across exec.
pub fn place_descriptor(fd: impl AsFd, target: RawFd) -> io::Result<()> {
    let fd = fd.as_fd().as_raw_fd();
    if fd == target {
        // SAFETY: integer arguments only.
        return check(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) }.into()).map(drop);
    }
    // SAFETY: dup2 onto a number the caller has reserved for this.
    check(unsafe { libc::dup2(fd, target) }.into())?;
    Ok(())
}

/// Replaces this process by the program in `image`. Returns only on failure.
pub fn exec_image(image: BorrowedFd<'_>, name: &CStr) -> io::Error {
    let argv: [*const c_char; 2] = [name.as_ptr(), std::ptr::null()];
    let env: [*const c_char; 1] = [std::ptr::null()];
    // SAFETY: NUL-ended path, null-ended arrays of NUL-ended strings, all alive across the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            image.as_raw_fd(),
            c"".as_ptr(),
            argv.as_ptr(),
            env.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    io::Error::last_os_error()
}

/// Lets us wait for our children. Some parents ignore their end, and that is inherited: the kernel then keeps from us how they ended.
pub fn heed_children() {
    // SAFETY: SIG_DFL installs no handler.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Unblocks every signal and gives each its default disposition, so that what we execute starts clean.
pub fn reset_signals() -> io::Result<()> {
    for signal in 1..=64 {
        // SAFETY: SIG_DFL installs no handler; numbers libc reserves or KILL/STOP are refused, which is fine.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: an all-zero set is the empty set on Linux.
    let empty: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set lives across the call, the old one is not asked for.
    check(
        unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const empty, std::ptr::null_mut()) }
            .into(),
    )?;
    Ok(())
}

/// Sends a signal through a pidfd, so that a recycled pid is never hit.
pub fn signal_process(pidfd: BorrowedFd<'_>, signal: c_int) -> io::Result<()> {
    let info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: a null siginfo is allowed and means the kernel fills it in.
    check(unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal,
            info,
            0,
        )
    })?;
    Ok(())
}

/// An anonymous file holding `content` that nobody can change any more.
pub fn sealed_file(name: &CStr, content: &[u8]) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // MFD_EXEC (Linux 6.3) says that this one is meant to be executed; older kernels refuse the flag and need none.
    // SAFETY: the name is NUL-ended and lives across the call.
    let made = owned(unsafe {
        libc::syscall(
            libc::SYS_memfd_create,
            name.as_ptr(),
            flags | libc::MFD_EXEC,
        )
    })
    // SAFETY: as above.
    .or_else(|_| owned(unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), flags) }))?;
    let mut file = std::fs::File::from(made);
    io::Write::write_all(&mut file, content)?;
    let seals = libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE;
    // SAFETY: integer arguments only.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }.into())?;
    Ok(file.into())
}

/// Takes ownership of a descriptor number that a call of a library has just returned.
pub fn adopt(fd: RawFd) -> io::Result<OwnedFd> {
    owned(fd.into())
}

/// Random bits from the kernel, waiting for its pool to be ready if need be.
pub fn random_bits() -> io::Result<u128> {
    let mut bytes = [0_u8; 16];
    // SAFETY: the buffer is as long as we say; up to 256 bytes are never cut short.
    check(unsafe { libc::syscall(libc::SYS_getrandom, bytes.as_mut_ptr(), bytes.len(), 0) })?;
    Ok(u128::from_ne_bytes(bytes))
}

/// Whether a file has an extended attribute of this name.
pub fn has_attribute(path: &Path, name: &CStr) -> bool {
    let Ok(path) = c_path(path) else { return false };
    // SAFETY: NUL-ended strings that live across the call; size zero asks for the length only.
    unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) >= 0 }
}

/// The other end of a terminal, without a way through the file system. Linux 4.13.
pub fn terminal_peer(master: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: TIOCGPTPEER takes its flags by value and returns a new descriptor.
    owned(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags) }.into())
}

/// Rows and columns of a terminal.
pub fn window_size(terminal: BorrowedFd<'_>) -> io::Result<(u16, u16)> {
    // SAFETY: winsize is plain data, all zeroes is a valid value.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills in a winsize that we own.
    check(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) }.into())?;
    Ok((size.ws_row, size.ws_col))
}

/// Tells a terminal its size; whoever it controls hears of that.
pub fn set_window_size(terminal: BorrowedFd<'_>, rows: u16, cols: u16) -> io::Result<()> {
    let size = libc::winsize {
        ws_row: rows,
        ws_col: cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: the kernel reads a winsize that outlives the call.
    check(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) }.into())
        .map(drop)
}

#[cfg(test)]
mod tests;
