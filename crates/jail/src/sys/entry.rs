//! The first thing that `belljar run` does: it becomes two, before either has done anything.
//!
//! A C library takes half a millisecond to start on some virtual machines: it asks the processor what it can do, some fifty
//! times, and each question goes to the hypervisor. Forked afterwards, the keeper would begin that much later; forked here, it
//! starts up on another core while the engine does, and there are hardly any pages yet that a fork would have to copy.
//!
//! The program is linked with [`belljar_entry`] as its entry where it is linked statically. It runs before the C library is
//! there: no memory is allocated, nothing is copied that the compiler could make a call of, and whatever fails leaves things
//! as they are, so that [`super::fork`] makes the keeper later.

use core::arch::naked_asm;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};

#[path = "../../init/call.rs"]
#[expect(
    clippy::cast_possible_wrap,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a register has no sign; programs without a library are not looked at by clippy"
)]
mod call;
use super::Split;
use call::{call, nr};

/// Words of a set of cores, as many as the C library's has. On a machine with more nobody is moved.
const WORDS: usize = 16;

const ONE: i32 = 0;
const PARENT: i32 = 1;
const CHILD: i32 = 2;

static SIDE: AtomicI32 = AtomicI32::new(ONE);
static SOCKETS: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];
/// The cores that this process may use, and those of them that it is not on.
static CORES: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
static OTHERS: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

/// Once, and before there is a second thread: what the entry has done.
pub fn take_split() -> Option<Split> {
    let side = SIDE.swap(ONE, Relaxed);
    if side == ONE {
        return None;
    }
    let [ours, theirs] = &SOCKETS;
    // SAFETY: both were made by the entry, and this is the only place that takes them, once.
    let owned = |fd: &AtomicI32| unsafe { OwnedFd::from_raw_fd(fd.load(Relaxed)) };
    let (ours, theirs) = (owned(ours), owned(theirs));
    let is_keeper = side == CHILD;
    let is_allowed = |core: &usize| CORES[core / 64].load(Relaxed) >> (core % 64) & 1 == 1;
    Some(Split {
        is_keeper,
        end: if is_keeper { theirs } else { ours },
        cores: (0..WORDS * 64).filter(is_allowed).collect(),
    })
}

/// What the kernel jumps to. The stack is as `_start` of the C library wants it, and is left so; `rdx` too.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn belljar_entry() {
    naked_asm!(
        "push rdx",
        "push rdx",
        "lea rdi, [rsp + 16]",
        "call {split}",
        "pop rdx",
        "pop rdx",
        "jmp _start",
        split = sym split,
    )
}

/// Forks if this is `belljar run` of root: an ordinary user may have to be moved into a cgroup first.
///
/// `stack` is what the kernel put there: the number of arguments, and then a pointer to each of them.
extern "C" fn split(stack: *const usize) {
    // SAFETY: so says the kernel's convention; each argument ends with a zero, and the comparison stops at the first that differs.
    let is_run = unsafe {
        let byte = |at: usize| (*stack.add(2) as *const u8).add(at).read();
        *stack >= 2 && byte(0) == b'r' && byte(1) == b'u' && byte(2) == b'n' && byte(3) == 0
    };
    if !is_run || call(nr::GETEUID, [0; 6]) != Ok(0) {
        return;
    }
    let kind = word(libc::SOCK_STREAM | libc::SOCK_CLOEXEC);
    let family = word(libc::AF_UNIX);
    let sockets = SOCKETS.as_ptr() as usize;
    if call(nr::SOCKETPAIR, [family, kind, 0, sockets, 0, 0]).is_err() {
        return;
    }
    // Somebody has closed a standard descriptor: the library is about to put something there.
    if SOCKETS.iter().any(|fd| fd.load(Relaxed) < 3) {
        return close_sockets();
    }
    let (size, cores) = (size_of_val(&CORES), CORES.as_ptr() as usize);
    let _ = call(nr::SCHED_GETAFFINITY, [0, size, cores, 0, 0, 0]);
    match call(nr::CLONE, [word(libc::SIGCHLD), 0, 0, 0, 0, 0]) {
        Ok(0) => SIDE.store(CHILD, Relaxed),
        Ok(pid) => {
            SIDE.store(PARENT, Relaxed);
            push_away(pid);
        }
        Err(_) => close_sockets(),
    }
}

fn close_sockets() {
    for fd in &SOCKETS {
        let _ = call(nr::CLOSE, [word(fd.load(Relaxed)), 0, 0, 0, 0, 0]);
    }
}

/// As a register has it.
fn word(number: i32) -> usize {
    number.cast_unsigned() as usize
}

/// Moves the keeper to another core, if there is one: the scheduler may leave it on this one until we sleep.
fn push_away(pid: usize) {
    let here = AtomicI32::new(-1);
    let at = &raw const here as usize;
    if call(nr::GETCPU, [at, 0, 0, 0, 0, 0]).is_err() {
        return;
    }
    let here = word(here.load(Relaxed));
    let mut any = 0;
    for (index, (others, cores)) in OTHERS.iter().zip(&CORES).enumerate() {
        let mut word = cores.load(Relaxed);
        if index == here / 64 {
            word &= !(1 << (here % 64));
        }
        others.store(word, Relaxed);
        any |= word;
    }
    if any != 0 {
        let (size, others) = (size_of_val(&OTHERS), OTHERS.as_ptr() as usize);
        let _ = call(nr::SCHED_SETAFFINITY, [pid, size, others, 0, 0, 0]);
    }
}
