//! Raw system calls of the zygote's courier, and the switch of stacks around it. The only `unsafe` here besides Python's.

pub mod memory;
pub mod writes;

use core::arch::asm;

use crate::call::{call, nr};
use crate::{Errand, MAX_FDS, MAX_ORDER, Order, Rlimit};

pub type Fd = i32;

const EINTR: i32 = 4;
const EINVAL: i32 = 22;
const ENOSYS: i32 = 38;
const EDQUOT: i32 = 122;

unsafe extern "C" {
    /// The C library's own: it keeps what the library knows about the process right in the copy.
    #[link_name = "fork"]
    fn libc_fork() -> i32;
}

pub fn fork() -> i32 {
    // SAFETY: the zygote has one thread, which stands still while its courier forks.
    unsafe { libc_fork() }
}

pub fn exit(code: i32) -> ! {
    loop {
        let _ = call(nr::EXIT_GROUP, [code as usize, 0, 0, 0, 0, 0]);
    }
}

pub fn close(fd: Fd) {
    let _ = call(nr::CLOSE, [fd as usize, 0, 0, 0, 0, 0]);
}

pub fn write(fd: Fd, bytes: &[u8]) -> Result<usize, i32> {
    let at = bytes.as_ptr() as usize;
    call(nr::WRITE, [fd as usize, at, bytes.len(), 0, 0, 0])
}

pub fn dup_to(from: Fd, to: Fd) -> Result<usize, i32> {
    call(nr::DUP3, [from as usize, to as usize, 0, 0, 0, 0])
}

pub fn close_from(first: usize) -> Result<usize, i32> {
    call(nr::CLOSE_RANGE, [first, u32::MAX as usize, 0, 0, 0, 0])
}

pub fn chdir(path: *const u8) -> Result<usize, i32> {
    call(nr::CHDIR, [path as usize, 0, 0, 0, 0, 0])
}

/// User, process, mount, network, IPC, host name and cgroup namespaces of the process behind `pidfd`, at once; or those that were
/// named, one by one.
pub fn enter_namespaces(pidfd: Fd, named: &[Fd]) -> Result<usize, i32> {
    for &namespace in named {
        call(nr::SETNS, [namespace as usize, 0, 0, 0, 0, 0])?;
    }
    if !named.is_empty() {
        return Ok(0);
    }
    const ALL: usize = 0x1000_0000
        | 0x2000_0000
        | 0x0002_0000
        | 0x4000_0000
        | 0x0800_0000
        | 0x0400_0000
        | 0x0200_0000;
    call(nr::SETNS, [pidfd as usize, ALL, 0, 0, 0, 0])
}

pub fn leave_keyring() -> Result<usize, i32> {
    const JOIN_SESSION_KEYRING: usize = 1;
    match call(nr::KEYCTL, [JOIN_SESSION_KEYRING, 0, 0, 0, 0, 0]) {
        // A kernel without keys has none to leave. A user without privileges may have 200 keyrings; further sandboxes share
        // the zygote's, which is empty, and which the filter keeps them from.
        Err(ENOSYS | EDQUOT) => Ok(0),
        joined => joined,
    }
}

pub fn become_user(uid: u32, gid: u32) -> Result<usize, i32> {
    let (uid, gid) = (uid as usize, gid as usize);
    call(nr::SETRESGID, [gid, gid, gid, 0, 0, 0])?;
    call(nr::SETRESUID, [uid, uid, uid, 0, 0, 0])
}

pub fn set_rlimit(limit: &Rlimit) -> Result<usize, i32> {
    let pair = [limit.value, limit.value];
    let at = pair.as_ptr() as usize;
    call(nr::PRLIMIT64, [0, limit.resource as usize, at, 0, 0, 0])
}

fn prctl(option: usize, a: usize, b: usize) -> Result<usize, i32> {
    call(nr::PRCTL, [option, a, b, 0, 0, 0])
}

/// The same as `sys::drop_capabilities` of the jail.
pub fn drop_capabilities() -> Result<usize, i32> {
    const CAP_AMBIENT: usize = 47;
    const CLEAR_ALL: usize = 4;
    const CAPBSET_DROP: usize = 24;
    const SET_SECUREBITS: usize = 28;
    const SECUREBITS: usize = 0b1110_1111;
    prctl(CAP_AMBIENT, CLEAR_ALL, 0)?;
    for capability in 0..64 {
        match prctl(CAPBSET_DROP, capability, 0) {
            // Past the last one that this kernel knows.
            Err(EINVAL) => break,
            dropped => dropped?,
        };
    }
    prctl(SET_SECUREBITS, SECUREBITS, 0)?;
    let header = [0x2008_0522_u32, 0];
    let none = [0_u32; 6];
    let (header, none) = (header.as_ptr() as usize, none.as_ptr() as usize);
    call(nr::CAPSET, [header, none, 0, 0, 0, 0])
}

pub fn no_new_privileges() -> Result<usize, i32> {
    const SET_NO_NEW_PRIVS: usize = 38;
    prctl(SET_NO_NEW_PRIVS, 1, 0)
}

pub fn restrict(rules: Fd) -> Result<usize, i32> {
    call(nr::LANDLOCK_RESTRICT_SELF, [rules as usize, 0, 0, 0, 0, 0])
}

pub fn filter(instructions: *const u8, bytes: u32) -> Result<usize, i32> {
    #[repr(C)]
    struct Program {
        length: u16,
        filter: *const u8,
    }
    const SET_MODE_FILTER: usize = 1;
    let program = Program {
        length: (bytes / 8) as u16,
        filter: instructions,
    };
    let at = &raw const program as usize;
    call(nr::SECCOMP, [SET_MODE_FILTER, 0, at, 0, 0, 0])
}

/// The copy's first acts: a session of its own, and the right to look at itself that the change of user took away.
pub fn begin_anew() {
    const SET_DUMPABLE: usize = 4;
    let _ = call(nr::SETSID, [0; 6]);
    let _ = prctl(SET_DUMPABLE, 1, 0);
}

/// Has the kernel end this process with its parent.
pub fn end_with_parent() -> bool {
    const SET_DEATH_SIGNAL: usize = 1;
    const KILL: usize = 9;
    prctl(SET_DEATH_SIGNAL, KILL, 0).is_ok()
}

/// A static that is only used between orders, by the zygote's one thread, or by a copy's.
pub fn statics<T>(pointer: *mut T) -> &'static mut T {
    // SAFETY: nobody else runs then, and no caller keeps it.
    unsafe { &mut *pointer }
}

/// Which thread this is.
pub fn thread() -> usize {
    let thread: usize;
    // SAFETY: reads where the thread's own memory is, which every thread has there, or the register that says so.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!("mov {}, fs:0", out(reg) thread, options(nostack, readonly, preserves_flags));
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!("mrs {}, tpidr_el0", out(reg) thread, options(nostack, nomem, preserves_flags));
    }
    thread
}

/// Numbers as they lie in memory.
pub fn as_bytes(numbers: &[u64]) -> &[u8] {
    // SAFETY: of the same memory, every byte of which is one.
    unsafe { core::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}

/// Reads a file as far as there is room, and removes it. None if there is none.
pub fn take_file<'a>(path: &core::ffi::CStr, room: &'a mut [u8]) -> Option<&'a [u8]> {
    const HERE: usize = -100_isize as usize;
    const CLOSE_ON_EXEC: usize = 0o2_000_000;
    let name = path.as_ptr() as usize;
    let fd = call(nr::OPENAT, [HERE, name, CLOSE_ON_EXEC, 0, 0, 0]).ok()?;
    let mut have = 0;
    while have < room.len() {
        let (at, len) = (room[have..].as_mut_ptr() as usize, room.len() - have);
        match call(nr::READ, [fd, at, len, 0, 0, 0]) {
            Err(EINTR) => {}
            Ok(0) | Err(_) => break,
            Ok(n) => have += n,
        }
    }
    close(fd as Fd);
    let _ = call(nr::UNLINKAT, [HERE, name, 0, 0, 0, 0]);
    Some(&room[..have])
}

/// An object that lives in the frame that waits for the courier.
pub fn borrow<'a, T>(pointer: *mut T) -> &'a mut T {
    // SAFETY: the courier is the only one that runs while its frame exists.
    unsafe { &mut *pointer }
}

#[derive(PartialEq, Eq)]
pub enum Delivered {
    /// We are the zygote, and the courier has gone.
    Zygote,
    /// We are the copy, back on the interpreter's stack.
    Copy,
}

const STACK: usize = 64 << 10;

#[repr(C, align(16))]
struct Stack([u8; STACK]);

static mut COURIER_STACK: Stack = Stack([0; STACK]);

/// Runs `courier` in a new process that shares our memory, on a stack of its own, while we stand still.
///
/// Where the courier forks, the copy returns from it, on that other stack; it then goes back to the stack it was copied
/// with, which nobody has touched.
pub fn deliver(
    courier: extern "C" fn(*mut Errand),
    errand: &mut Errand,
    birthplace: Option<Fd>,
) -> Delivered {
    const CLONE_VM_VFORK: u64 = 0x100 | 0x4000;
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    const SIGCHLD: u64 = 17;
    // clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, its size, cgroup.
    let mut args = [0_u64; 11];
    args[0] = CLONE_VM_VFORK;
    args[4] = SIGCHLD;
    args[5] = &raw mut COURIER_STACK as u64;
    args[6] = STACK as u64;
    if let Some(group) = birthplace {
        args[0] |= CLONE_INTO_CGROUP;
        args[10] = group as u64;
    }
    let (at, size) = (args.as_mut_ptr(), size_of_val(&args));
    let result: isize;
    // SAFETY: CLONE_VFORK holds us until the courier has gone, so nothing runs beside it; it uses only its own stack and the
    // errand. In the copy all callee-saved registers hold what they held here, and the stack pointer is put back.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!(
            "push rbx",
            "push rbp",
            "mov rbx, rsp",
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "mov rsp, rbx",
            "xor eax, eax",
            "2:",
            "pop rbp",
            "pop rbx",
            inlateout("rax") 435_isize => result,
            inlateout("rdi") at => _,
            inlateout("rsi") size => _,
            lateout("rdx") _, lateout("r10") _, lateout("r8") _,
            in("r12") &raw mut *errand,
            in("r13") courier,
            lateout("rcx") _, lateout("r9") _, lateout("r11") _, lateout("r14") _, lateout("r15") _,
            clobber_abi("C"),
        );
    }
    // SAFETY: as above; x19 and x29 are kept by the calling convention.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!(
            "stp x19, x29, [sp, #-16]!",
            "mov x19, sp",
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, #0",
            "mov x0, x20",
            "blr x21",
            "mov sp, x19",
            "mov x0, #0",
            "2:",
            "ldp x19, x29, [sp], #16",
            in("x8") 435_usize,
            inlateout("x0") at as isize => result,
            in("x1") size,
            in("x20") &raw mut *errand,
            in("x21") courier,
            clobber_abi("C"),
        );
    }
    if result == 0 {
        return Delivered::Copy;
    }
    if result < 0 {
        errand.pid = result as i32;
    } else {
        // Not before it is gone altogether is the copy the keeper's child.
        while call(nr::WAIT4, [result as usize, 0, 0, 0, 0, 0]) == Err(EINTR) {}
    }
    Delivered::Zygote
}

pub fn answer(control: Fd, pid: i32, step: u32) -> bool {
    let mut bytes = [0_u8; 8];
    bytes[..4].copy_from_slice(&pid.to_le_bytes());
    bytes[4..].copy_from_slice(&step.to_le_bytes());
    write(control, &bytes) == Ok(bytes.len())
}

/// Where orders are read into.
pub struct Buffer {
    bytes: &'static mut [u8; MAX_ORDER],
}

static mut ORDER_BYTES: [u8; MAX_ORDER] = [0; MAX_ORDER];

impl Buffer {
    pub fn new() -> Self {
        // SAFETY: one loop uses it, in a process with one thread.
        let bytes = unsafe { &mut *&raw mut ORDER_BYTES };
        Self { bytes }
    }

    /// The filter and the directory, which stand behind the order.
    pub fn tail(&self, order: &Order) -> (*const u8, *const u8) {
        let at = size_of::<Order>();
        let filter = self.bytes[at..].as_ptr();
        let cwd = self.bytes[at + order.filter_length as usize..].as_ptr();
        (filter, cwd)
    }
}

#[repr(C)]
struct IoVec {
    base: *mut u8,
    len: usize,
}

#[repr(C)]
struct MsgHdr {
    name: usize,
    name_len: u32,
    iov: *mut IoVec,
    iov_len: usize,
    control: *mut u8,
    control_len: usize,
    flags: i32,
}

#[repr(C, align(8))]
struct Ancillary {
    len: usize,
    level: i32,
    kind: i32,
    fds: [Fd; MAX_FDS],
}

/// Waits for the next whole order. `None`: the keeper has gone, or is not to be understood.
pub fn receive_order(control: Fd, buffer: &mut Buffer) -> Option<(Order, [Fd; MAX_FDS])> {
    const MSG_CMSG_CLOEXEC: usize = 0x4000_0000;
    let head = size_of::<Order>();
    let mut iov = IoVec {
        base: buffer.bytes.as_mut_ptr(),
        len: head,
    };
    let mut ancillary = Ancillary {
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
        control: (&raw mut ancillary).cast(),
        control_len: size_of::<Ancillary>(),
        flags: 0,
    };
    let received = loop {
        let at = &raw mut header as usize;
        match call(
            nr::RECVMSG,
            [control as usize, at, MSG_CMSG_CLOEXEC, 0, 0, 0],
        ) {
            Err(EINTR) => {}
            received => break received.ok()?,
        }
    };
    read_exact(control, &mut buffer.bytes[..], received, head)?;
    // SAFETY: an order is plain numbers, and the buffer holds at least as many bytes.
    let order: Order = unsafe { buffer.bytes.as_ptr().cast::<Order>().read_unaligned() };
    let length = order.length as usize;
    let sound = (head..=MAX_ORDER).contains(&length)
        && (crate::FIXED_FDS..=MAX_FDS).contains(&(order.fds as usize))
        && order.namespaces as usize <= order.fds as usize - crate::FIXED_FDS
        && order.rlimit_count as usize <= order.rlimits.len()
        && head + (order.filter_length as usize) < length;
    if !sound {
        return None;
    }
    read_exact(control, &mut buffer.bytes[..], head, length)?;
    Some((order, ancillary.fds))
}

/// Reads on from `have` to `want` bytes.
fn read_exact(fd: Fd, bytes: &mut [u8], mut have: usize, want: usize) -> Option<()> {
    while have < want {
        let (at, len) = (bytes[have..].as_mut_ptr() as usize, want - have);
        match call(nr::READ, [fd as usize, at, len, 0, 0, 0]) {
            Err(EINTR) => {}
            Ok(0) | Err(_) => return None,
            Ok(n) => have += n,
        }
    }
    (have > 0).then_some(())
}

// The prebuilt `core` refers to this even when panics abort; nothing ever calls it. Hidden, for libraries that the interpreter loads have one that counts.
core::arch::global_asm!(
    ".globl rust_eh_personality",
    ".hidden rust_eh_personality",
    "rust_eh_personality:",
    "ret",
);
