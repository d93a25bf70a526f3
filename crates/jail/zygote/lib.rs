//! What a warm interpreter needs in order to fork itself into sandboxes: a Python extension module without libc of its own.
//!
//! Theory of operation. The zygote is an ordinary process: no privileges, an empty network, a read-only root. It waits here
//! for orders of the keeper. For each one a *courier* is born that shares the zygote's memory while the zygote stands
//! still (as after `vfork`): it enters the sandbox's namespaces and cgroups, becomes its user, gives up every capability, and locks
//! Landlock and seccomp. Only then does it fork, and what it forks is a copy of the interpreter that was never anything but
//! confined. The courier exits, so the copy becomes the keeper's child, which looks at it from outside before it gets code.
//!
//! The courier has a stack of its own, and the copy goes back to the interpreter's: see [`sys::deliver`].
#![no_std]

#[path = "../init/call.rs"]
mod call;
mod environment;
mod layout;
#[path = "../init/lone.rs"]
mod lone;
mod pages;
mod python;
mod sys;
mod yard;

use sys::Fd;

/// Beyond it there are no more descriptors in one message.
pub const MAX_FDS: usize = 24;
pub const MAX_ORDER: usize = 64 << 10;

/// Descriptors of an order: the sandbox's first process, the Landlock rules, three standard ones, the channel, the group to be
/// born into (or another one of these, where there is none), then files of groups to join, then namespaces.
const FIXED_FDS: usize = 7;
const RLIMITS: usize = 16;
const ESRCH: i32 = 3;
/// In place of the step, where nobody knows how far the courier came: it may have forked. `keeper/zygote.rs` knows it, too.
const UNKNOWN: u32 = u32::MAX;

/// What the keeper asks for. The same layout as in `keeper/zygote.rs`, in front of the filter and the directory's name.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Order {
    pub length: u32,
    pub fds: u32,
    pub uid: u32,
    pub gid: u32,
    pub filter_length: u32,
    pub rlimit_count: u32,
    /// Whether there is a group to be born into.
    pub birthplace: u32,
    /// Whether nobody waits for the copy yet.
    pub early: u32,
    /// Whether the copy can start no process, nor become another program.
    pub lone: u32,
    /// How many namespaces there are, for a sandbox whose first process cannot be entered yet.
    pub namespaces: u32,
    pub rlimits: [Rlimit; RLIMITS],
}

impl Order {
    /// How many groups there are to join.
    pub fn groups(&self) -> u32 {
        (self.fds - FIXED_FDS as u32).saturating_sub(self.namespaces)
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Rlimit {
    pub resource: u64,
    pub value: u64,
}

/// What the courier leaves behind in the memory it shares with the zygote.
#[repr(C)]
pub struct Errand {
    order: *const Order,
    /// Instructions, then the directory's NUL-ended name.
    filter: *const u8,
    cwd: *const u8,
    fds: [Fd; MAX_FDS],
    pid: i32,
    step: u32,
}

/// Serves orders. Returns in the copies only: whether nobody waits for this one yet.
pub fn serve(control: Fd) -> bool {
    let mut buffer = sys::Buffer::new();
    // Once for all copies: nothing of the interpreter runs here from now on, so it stays as it has to be for a fork. Would it be woken for each, it
    // would write to two dozen pages, which it shares with the copy before.
    python::before_fork();
    // Nobody was forked: the word that orders can come.
    if !sys::answer(control, 0, 0) {
        sys::exit(0);
    }
    loop {
        let Some((order, fds)) = sys::receive_order(control, &mut buffer) else {
            sys::exit(0)
        };
        let (filter, cwd) = buffer.tail(&order);
        let mut errand = Errand {
            order: &raw const order,
            filter,
            cwd,
            fds,
            pid: 0,
            step: 0,
        };
        let birthplace = (order.birthplace != 0).then_some(fds[FIXED_FDS - 1]);
        let delivered = sys::deliver(courier, &mut errand, birthplace);
        if delivered == sys::Delivered::Copy {
            // Before anything else, and seen from outside: the courier itself had to start this process.
            if order.lone != 0 && lone::forbid_processes(false).is_err() {
                sys::exit(71);
            }
            pages::take(order.early != 0);
            python::begin_copy();
            python::after_fork_in_child();
            sys::begin_anew();
            return order.early != 0;
        }
        for fd in fds {
            if fd >= 0 {
                sys::close(fd);
            }
        }
        // A courier that was killed with the sandbox says nothing. Each order has one answer that is not nought, or the
        // keeper would take each later copy for another sandbox's.
        let (pid, step) = match errand.pid {
            0 => (-ESRCH, UNKNOWN),
            pid => (pid, errand.step),
        };
        if !sys::answer(control, pid, step) {
            sys::exit(0);
        }
    }
}

/// Runs on its own stack, in the zygote's memory. Returns only in the copy.
extern "C" fn courier(errand: *mut Errand) {
    let errand = sys::borrow(errand);
    let order = *sys::borrow(errand.order.cast_mut());
    let mut step = 0;
    let mut must = |result: Result<usize, i32>| {
        step += 1;
        if let Err(errno) = result {
            errand.pid = -errno;
            errand.step = step;
            sys::exit(1);
        }
    };
    let [sandbox, rules, stdin, stdout, stderr, channel, ..] = errand.fds;
    let (groups, namespaces) =
        errand.fds[FIXED_FDS..order.fds as usize].split_at(order.groups() as usize);
    must(sys::enter_namespaces(sandbox, namespaces));
    for &group in groups {
        must(sys::write(group, b"0"));
    }
    must(sys::become_user(order.uid, order.gid));
    // As that user, who has a quota of keys: that of the zygote's is soon used up.
    must(sys::leave_keyring());
    must(sys::chdir(errand.cwd));
    for limit in &order.rlimits[..order.rlimit_count as usize] {
        must(sys::set_rlimit(limit));
    }
    must(sys::drop_capabilities());
    must(sys::no_new_privileges());
    must(sys::restrict(rules));
    for (fd, target) in [(stdin, 0), (stdout, 1), (stderr, 2), (channel, 3)] {
        must(sys::dup_to(fd, target));
    }
    must(sys::close_from(4));
    must(sys::filter(errand.filter, order.filter_length));
    match sys::fork() {
        0 => {}
        pid => {
            errand.pid = pid;
            sys::exit(0)
        }
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    sys::exit(70)
}
