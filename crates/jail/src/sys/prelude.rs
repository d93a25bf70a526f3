//! What a run begins before the C library does.
//!
//! A static program's C library asks the processor some eighty questions about its caches before `main`. Under a hypervisor each
//! of them is an exit to it: half a millisecond in which this process can do nothing else, and another core has nothing to do. So
//! the network namespace of the sandbox to come, which takes as long, is made meanwhile.
//!
//! Nothing here may use the C library, not even its `memcpy`: it is not there yet.

use std::arch::{asm, global_asm};
use std::ffi::{c_int, c_long};
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, Ordering};

/// The process that makes it; nought if there is none.
static HELPER: AtomicI32 = AtomicI32::new(0);
/// What it has made; nought if nothing.
static NETWORK: AtomicI32 = AtomicI32::new(0);

/// Its stack, which nobody else uses.
#[repr(align(16))]
struct Stack {
    _room: [u8; 4096],
}
static mut STACK: Stack = Stack { _room: [0; 4096] };

/// A bit for each core, as many as the C library's own set has.
type Cores = [usize; 16];
static mut CORES: Cores = [0; 16];

// The build script makes this the entry of `belljar`. The stack and %rdx, which tells the C library what to do at exit, are left
// as the kernel has set them.
global_asm!(
    ".globl belljar_start",
    "belljar_start:",
    "push rdx",
    "sub rsp, 8",
    "lea rdi, [rsp + 16]",
    "call {begin}",
    "add rsp, 8",
    "pop rdx",
    "jmp _start",
    begin = sym begin,
);

/// With the stack as the kernel gives it to a program: the number of arguments, then each of them.
extern "C" fn begin(stack: *const usize) {
    // SAFETY: that is how a program begins, and an argument ends with NUL.
    let is_run = unsafe {
        let argument = *stack.add(2) as *const u8;
        *stack >= 2
            && *argument == b'r'
            && *argument.add(1) == b'u'
            && *argument.add(2) == b'n'
            && *argument.add(3) == 0
    };
    if !is_run || call(libc::SYS_geteuid, 0, 0, 0) != 0 {
        return;
    }
    // Without a thread's flags: a process that may have a network of its own, with our memory and descriptors.
    let flags = libc::CLONE_VM | libc::CLONE_FILES;
    let child: c_long;
    // SAFETY: the child runs on a stack that is nobody else's, calls one function and never returns. Here the call only
    // returns its number.
    unsafe {
        let top = (&raw mut STACK).add(1);
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "call {make}",
            "ud2",
            "2:",
            make = sym make,
            inlateout("rax") libc::SYS_clone => child,
            in("rdi") i64::from(flags),
            in("rsi") top,
            in("rdx") 0,
            in("r10") 0,
            in("r8") 0,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    if child > 0 {
        HELPER.store(child as i32, Ordering::Relaxed);
        push_away(child as usize);
    }
}

/// Has it use another core, where there is one: the scheduler would leave it on this one, until this process sleeps.
fn push_away(child: usize) {
    let cores = &raw mut CORES;
    let mut here: u32 = 0;
    let (size, place) = (size_of::<Cores>(), cores as usize);
    let read = call(libc::SYS_sched_getaffinity, 0, size, place);
    let asked = call(libc::SYS_getcpu, &raw mut here as usize, 0, 0);
    let (word, bit) = (here as usize / 64, here % 64);
    if read > 0 && asked == 0 && word < 16 {
        // SAFETY: nobody else uses it, and the word is one of its own.
        unsafe { *cores.cast::<usize>().add(word) &= !(1 << bit) };
        // Refused if no other is left.
        call(libc::SYS_sched_setaffinity, child, size, place);
    }
}

/// The child. Where it may not make one, whoever asks for it finds out why.
extern "C" fn make() -> ! {
    if call(libc::SYS_unshare, libc::CLONE_NEWNET as usize, 0, 0) == 0 {
        let path = c"/proc/self/ns/net".as_ptr() as usize;
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
        let at = libc::AT_FDCWD as usize;
        let fd = call(libc::SYS_openat, at, path, flags);
        if fd > 0 {
            NETWORK.store(fd as i32, Ordering::Release);
        }
    }
    loop {
        call(libc::SYS_exit, 0, 0, 0);
    }
}

fn call(number: c_long, first: usize, second: usize, third: usize) -> c_long {
    let result: c_long;
    // SAFETY: the calls above take integers, and one text that lives for ever.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

/// The network namespace that was begun before `main`, once. Waits until it is there.
pub fn network() -> Option<OwnedFd> {
    let helper = HELPER.swap(0, Ordering::Relaxed);
    if helper == 0 {
        return None;
    }
    // SAFETY: it is our child, and its status is not asked for. It tells nobody of its end, so only this call finds it.
    unsafe { libc::waitpid(helper, null_mut::<c_int>(), libc::__WALL) };
    let fd = NETWORK.swap(0, Ordering::Acquire);
    // SAFETY: it was made for us, and is taken once.
    (fd > 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}
