//! Trees of mounts and file systems that are held by a descriptor, attached or not.

use std::ffi::{CStr, c_int, c_uint};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use super::{c_path, check, owned};

pub const RDONLY: u64 = libc::MOUNT_ATTR_RDONLY;
pub const NOSUID: u64 = libc::MOUNT_ATTR_NOSUID;
pub const NODEV: u64 = libc::MOUNT_ATTR_NODEV;
pub const NOEXEC: u64 = libc::MOUNT_ATTR_NOEXEC;

/// A detached copy of the mounts at and below `path`.
pub fn clone_tree(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    let flags =
        libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | libc::AT_RECURSIVE.cast_unsigned();
    // SAFETY: `path` is NUL-ended and lives across the call.
    owned(unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) })
}

/// The same of what is open.
pub fn clone_tree_of(place: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = libc::OPEN_TREE_CLONE
        | libc::OPEN_TREE_CLOEXEC
        | libc::AT_RECURSIVE.cast_unsigned()
        | libc::AT_EMPTY_PATH.cast_unsigned();
    // SAFETY: the path is an empty string that ends with NUL.
    owned(unsafe { libc::syscall(libc::SYS_open_tree, place.as_raw_fd(), c"".as_ptr(), flags) })
}

/// Sets mount attributes on a detached tree and everything below it.
pub fn set_mount_attributes(
    tree: BorrowedFd<'_>,
    set: u64,
    id_map: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    change_mounts(tree, set, id_map, libc::AT_RECURSIVE)
}

/// The same on the first of its mounts only.
pub fn set_attributes_of_first(tree: BorrowedFd<'_>, set: u64) -> io::Result<()> {
    change_mounts(tree, set, None, 0)
}

fn change_mounts(
    tree: BorrowedFd<'_>,
    set: u64,
    id_map: Option<BorrowedFd<'_>>,
    depth: c_int,
) -> io::Result<()> {
    let mut attributes = libc::mount_attr {
        attr_set: set
            | if id_map.is_some() {
                libc::MOUNT_ATTR_IDMAP
            } else {
                0
            },
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: id_map.map_or(0, |fd| u64::from(fd.as_raw_fd().cast_unsigned())),
    };
    let flags = libc::AT_EMPTY_PATH | depth;
    // SAFETY: an empty NUL-ended path and a struct that live across the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw mut attributes,
            size_of::<libc::mount_attr>(),
        )
    })?;
    Ok(())
}

/// Attaches a detached tree at `target`.
pub fn attach_tree(tree: BorrowedFd<'_>, target: &Path) -> io::Result<()> {
    let target = c_path(target)?;
    // SAFETY: both strings are NUL-ended and live across the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            target.as_ptr(),
            libc::MOVE_MOUNT_F_EMPTY_PATH,
        )
    })?;
    Ok(())
}

/// A file system of its own of that kind, seen by nobody else.
pub fn detached_file_system(kind: &CStr) -> io::Result<OwnedFd> {
    Ok(FileSystem::create(kind, &[], 0)?.mount)
}

/// One that nobody sees who has not its mount, or a copy of that.
pub struct FileSystem {
    context: OwnedFd,
    pub mount: OwnedFd,
}

impl FileSystem {
    pub fn create(kind: &CStr, options: &[(&CStr, &CStr)], attributes: u64) -> io::Result<Self> {
        const TEXT: c_int = 1;
        const CREATE: c_int = 6;
        // SAFETY: a name that ends in NUL; the other arguments are integers.
        let context = owned(unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), 1) })?;
        for (key, value) in options {
            configure(&context, TEXT, Some(key), Some(value))?;
        }
        configure(&context, CREATE, None, None)?;
        // SAFETY: integer arguments only.
        let mount = unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), 1, attributes) };
        let mount = owned(mount)?;
        Ok(Self { context, mount })
    }

    /// Through whichever mount, whatever that says.
    pub fn make_read_only(&self) -> io::Result<()> {
        const FLAG: c_int = 0;
        const CHANGE: c_int = 7;
        configure(&self.context, FLAG, Some(c"ro"), None)?;
        configure(&self.context, CHANGE, None, None)
    }
}

fn configure(
    context: &OwnedFd,
    command: c_int,
    key: Option<&CStr>,
    value: Option<&CStr>,
) -> io::Result<()> {
    let [key, value] = [key, value].map(|text| text.map_or(std::ptr::null(), CStr::as_ptr));
    let context = context.as_raw_fd();
    // SAFETY: key and value are null, or end in NUL and live across the call.
    check(unsafe { libc::syscall(libc::SYS_fsconfig, context, command, key, value, 0) })?;
    Ok(())
}

/// Which mount a path leads to (Linux 5.8). No two that exist at the same time have the same number.
pub fn mount_of(path: &Path) -> io::Result<u64> {
    let path = c_path(path)?;
    // SAFETY: statx is plain data, all zeroes is a valid value.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: `path` is NUL-ended; both it and the struct live across the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_statx,
            libc::AT_FDCWD,
            path.as_ptr(),
            0,
            MNT_ID,
            &raw mut found,
        )
    })?;
    Ok(found.stx_mnt_id)
}

/// Of `linux/stat.h`.
const MNT_ID: c_uint = 0x1000;
