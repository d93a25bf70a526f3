//! What a process may do, and how it gives that up for good: capabilities, keys, system calls, files.

use std::ffi::{c_char, c_int, c_uint};
use std::io;

use super::check;
use crate::seccomp::Instruction;

/// NOROOT, `NO_SETUID_FIXUP`, `NO_CAP_AMBIENT_RAISE` with their locks, and `KEEP_CAPS` locked off.
const SECUREBITS: libc::c_ulong = 0b1110_1111;

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: c_int,
}

/// Makes all that is permitted effective.
pub(super) fn raise_capabilities() -> io::Result<()> {
    let header = CapabilityHeader {
        version: 0x2008_0522,
        pid: 0,
    };
    let mut sets = [0_u32; 6];
    // SAFETY: version 3 takes a header and two triples of 32-bit words.
    check(unsafe { libc::syscall(libc::SYS_capget, &raw const header, sets.as_mut_ptr()) })?;
    // Each triple is effective, permitted, inheritable.
    (sets[0], sets[3]) = (sets[1], sets[4]);
    // SAFETY: as above.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()) })?;
    Ok(())
}

/// Gives up every capability for good: ambient, bounding, permitted, effective, inheritable.
pub fn drop_capabilities() -> io::Result<()> {
    // SAFETY: prctl with integer arguments touches no memory of ours.
    check(
        unsafe {
            libc::prctl(
                libc::PR_CAP_AMBIENT,
                libc::PR_CAP_AMBIENT_CLEAR_ALL,
                0,
                0,
                0,
            )
        }
        .into(),
    )?;
    for capability in 0..64 {
        // SAFETY: as above.
        let ret = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
        if ret < 0 {
            let error = io::Error::last_os_error();
            // EINVAL: past the last capability this kernel knows.
            if error.raw_os_error() == Some(libc::EINVAL) {
                break;
            }
            return Err(error);
        }
    }
    // SAFETY: as above.
    check(unsafe { libc::prctl(libc::PR_SET_SECUREBITS, SECUREBITS, 0, 0, 0) }.into())?;
    let header = CapabilityHeader {
        version: 0x2008_0522,
        pid: 0,
    };
    let none = [0_u32; 6];
    // SAFETY: version 3 takes a header and two triples of 32-bit words.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) })?;
    Ok(())
}

pub fn no_new_privileges() -> io::Result<()> {
    // SAFETY: prctl with integer arguments touches no memory of ours.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }.into())?;
    Ok(())
}

/// Leaves the caller's session keyring for an empty one. A kernel without keys has none to leave.
pub fn new_session_keyring() -> io::Result<()> {
    const JOIN_SESSION_KEYRING: libc::c_long = 1;
    // SAFETY: a null name asks for an anonymous keyring; no memory of ours is involved.
    let joined = check(unsafe {
        libc::syscall(
            libc::SYS_keyctl,
            JOIN_SESSION_KEYRING,
            std::ptr::null::<c_char>(),
        )
    });
    match joined {
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
        joined => joined.map(drop),
    }
}

/// Adds one seccomp filter. Needs `no_new_privileges` first.
pub fn add_seccomp_filter(program: &[Instruction]) -> io::Result<()> {
    #[repr(C)]
    struct Program {
        len: u16,
        filter: *const Instruction,
    }
    let len =
        u16::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let program = Program {
        len,
        filter: program.as_ptr(),
    };
    // SAFETY: Instruction has the layout of sock_filter, and the slice lives across the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0,
            &raw const program,
        )
    })?;
    Ok(())
}

/// Whether this process has a seccomp filter already.
pub fn is_filtered() -> bool {
    // SAFETY: reads the mode of the calling thread.
    unsafe { libc::prctl(libc::PR_GET_SECCOMP) != 0 }
}

/// Whether this kernel has seccomp filters with the action that kills the whole process.
pub fn has_seccomp() -> bool {
    let action: u32 = libc::SECCOMP_RET_KILL_PROCESS;
    // SAFETY: reads one u32 that lives across the call.
    unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_GET_ACTION_AVAIL,
            0,
            &raw const action,
        ) == 0
    }
}

/// The Landlock version of this kernel; `None` where it is absent or switched off.
pub fn landlock_abi() -> Option<u32> {
    const VERSION: c_uint = 1;
    // SAFETY: with this flag the kernel takes a null pointer and size zero.
    let abi = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0_usize,
            VERSION,
        )
    };
    u32::try_from(abi).ok().filter(|abi| *abi > 0)
}
