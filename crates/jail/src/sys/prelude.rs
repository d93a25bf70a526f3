//! What a run begins before the C library does: a companion, which is the same program in the same memory, but another process.
//!
//! A static program's C library asks the processor some eighty questions about its caches before `main`. Under a hypervisor each
//! of them is an exit to it: half a millisecond in which this process can do nothing else, and another core has nothing to do.
//! The companion meanwhile makes the network namespace of the sandbox to come, which takes as long. Then it waits for the end of
//! this process, and by being there spares it to take its memory apart, for which whoever waits for us would have to wait.
//!
//! Nothing here may use the C library, not even its `memcpy`: it is not there yet.

use std::arch::{asm, global_asm};
use std::ffi::c_long;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

static PARENT: AtomicI64 = AtomicI64::new(0);
/// Nought if there is none, or somebody has asked for what it made.
static COMPANION: AtomicI64 = AtomicI64::new(0);

/// What has become of the network.
static NETWORK: AtomicU32 = AtomicU32::new(UNDER_WAY);
const UNDER_WAY: u32 = 0;
const MADE: u32 = 1;
const NONE: u32 = 2;

/// The companion's stack, which nobody else uses.
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
    if !is_run {
        return;
    }
    PARENT.store(call(libc::SYS_getpid, 0, 0, 0), Ordering::Relaxed);
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
            "call {accompany}",
            "ud2",
            "2:",
            accompany = sym accompany,
            inlateout("rax") libc::SYS_clone => child,
            // A process, with descriptors of its own: whoever waits for the end of our output shall not wait for it.
            in("rdi") i64::from(libc::CLONE_VM),
            in("rsi") top,
            in("rdx") 0,
            in("r10") 0,
            in("r8") 0,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    if let Ok(number @ 1..) = usize::try_from(child) {
        COMPANION.store(child, Ordering::Relaxed);
        push_away(number);
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

/// The companion. It ends when its parent does.
extern "C" fn accompany() -> ! {
    call(libc::SYS_close_range, 0, u32::MAX as usize, 0);
    let (option, signal) = (libc::PR_SET_PDEATHSIG as usize, libc::SIGKILL as usize);
    let told = call(libc::SYS_prctl, option, signal, 0);
    let parent = call(libc::SYS_getppid, 0, 0, 0);
    if told == 0 && parent == PARENT.load(Ordering::Relaxed) {
        // Where it may not make one, whoever needs it finds out why.
        let is_root = call(libc::SYS_geteuid, 0, 0, 0) == 0;
        let made = is_root && call(libc::SYS_unshare, libc::CLONE_NEWNET as usize, 0, 0) == 0;
        NETWORK.store(if made { MADE } else { NONE }, Ordering::Release);
        let (word, wake) = (
            NETWORK.as_ptr() as usize,
            (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize,
        );
        call(libc::SYS_futex, word, wake, 1);
        loop {
            call(libc::SYS_pause, 0, 0, 0);
        }
    }
    loop {
        call(libc::SYS_exit, 0, 0, 0);
    }
}

fn call(number: c_long, first: usize, second: usize, third: usize) -> c_long {
    let result: c_long;
    // SAFETY: the calls above take integers, and addresses of statics and of one local, of what they expect there.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            in("r10") 0,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

/// A thousand times as long as it takes. A companion that somebody has killed says nothing.
static PATIENCE: libc::timespec = libc::timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// Whether [`network`] would have one at once.
pub fn has_network() -> bool {
    COMPANION.load(Ordering::Relaxed) != 0 && NETWORK.load(Ordering::Acquire) == MADE
}

/// The network namespace that was begun before `main`, once. Waits until it is there.
pub fn network() -> Option<OwnedFd> {
    let companion = COMPANION.swap(0, Ordering::Relaxed);
    if companion == 0 {
        return None;
    }
    while NETWORK.load(Ordering::Acquire) == UNDER_WAY {
        // SAFETY: the word and the time live for ever.
        let waited = unsafe {
            libc::syscall(
                libc::SYS_futex,
                NETWORK.as_ptr(),
                libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                UNDER_WAY,
                &raw const PATIENCE,
            )
        };
        // It may have been made just before we began to wait.
        if waited != 0 && NETWORK.load(Ordering::Acquire) == UNDER_WAY {
            return None;
        }
    }
    let made = NETWORK.load(Ordering::Acquire) == MADE;
    let open = || File::open(format!("/proc/{companion}/ns/net")).ok();
    made.then(open).flatten().map(OwnedFd::from)
}
