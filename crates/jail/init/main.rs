//! Process 1 of every sandbox: starts what it is told to, reaps everything, reports how each ended.
//!
//! Theory of operation. The keeper executes this program from a sealed memfd after the process was fully confined, so
//! it runs under the same seccomp filter, Landlock domain, user and cgroup as the untrusted code, holds none of
//! the host's memory, and has one descriptor: the control socket, which no child inherits. It is not dumpable, so
//! code inside cannot trace it or look into it, and as process 1 it takes no signal from inside. When it ends,
//! or the keeper does, the kernel kills everything in the process namespace.
//!
//! It uses no libc and no allocator: it is about ten kilobytes, which makes forking from it cheap.
#![no_std]
#![no_main]

mod call;
mod lone;
mod sys;

use sys::{Fd, Poll};

const CONTROL: Fd = 3;
/// A start request is at most this long: Linux takes no more than about 2 MiB of arguments and environment by default.
const MAX_MESSAGE: usize = 4 << 20;
const MAX_LIVE: usize = 64;

// Requests of the keeper: kind, length of the payload.
const START: u32 = 1;
const SIGNAL: u32 = 2;

// Reports to the keeper: kind, id, two values.
const READY: u32 = 1;
const STARTED: u32 = 2;
const START_FAILED: u32 = 3;
const ENDED: u32 = 4;

/// When this command ends, everything else in the sandbox ends too.
const ALONE: u32 = 1;
/// A fourth descriptor came along, which becomes the command's number 3.
const CHANNEL: u32 = 2;
/// It can start no process.
const LONE: u32 = 8;
/// Its standard input is the terminal that it is to be controlled by.
const TERMINAL: u32 = 4;
const SIGKILL: i32 = 9;

#[derive(Clone, Copy)]
struct Live {
    pid: i32,
    id: u32,
    flags: u32,
}

pub extern "C" fn main() -> ! {
    const PR_SET_PDEATHSIG: usize = 1;
    const PR_SET_DUMPABLE: usize = 4;
    sys::mask_signals(true);
    // The socket had to survive our own exec, and must not survive any other: who holds it can forge every report.
    if sys::close_on_exec(CONTROL).is_err()
        || sys::prctl(PR_SET_DUMPABLE, 0).is_err()
        || sys::prctl(PR_SET_PDEATHSIG, SIGKILL as usize).is_err()
    {
        sys::exit(71);
    }
    let Ok(signals) = sys::child_signals() else {
        sys::exit(72)
    };
    let mut live = [Live {
        pid: 0,
        id: 0,
        flags: 0,
    }; MAX_LIVE];
    report(READY, 0, 0, 0);
    loop {
        let mut polls = [CONTROL, signals].map(|fd| Poll::new(fd, sys::IN));
        sys::poll(&mut polls);
        let [request, child] = polls.map(|poll| poll.is_ready());
        if child {
            drain(signals);
            reap_ended(&mut live);
        }
        if request {
            serve_request(&mut live);
        }
    }
}

fn drain(signals: Fd) {
    let mut info = [0_u8; 128];
    while matches!(sys::read(signals, &mut info), Ok(n) if n > 0) {}
}

fn reap_ended(live: &mut [Live; MAX_LIVE]) {
    while let Ok(Some(exit)) = sys::reap(false) {
        note_exit(live, &exit);
    }
}

fn note_exit(live: &mut [Live; MAX_LIVE], exit: &sys::Exit) {
    let Some(slot) = live.iter_mut().find(|slot| slot.pid == exit.pid) else {
        return;
    };
    let ended = *slot;
    slot.pid = 0;
    if ended.flags & ALONE != 0 && !(ended.flags & CHANNEL == 0 && is_childless(live)) {
        kill_everything(live);
    }
    report(ENDED, ended.id, exit.code, exit.status);
}

/// Whether nobody else is left: what has lost its parent here is a child of ours. Only a copy of a warm interpreter is not, and a
/// sandbox that has one starts its commands beside it.
fn is_childless(live: &mut [Live; MAX_LIVE]) -> bool {
    // Some may end faster than they are taken in.
    for _ in 0..MAX_LIVE {
        match sys::reap(false) {
            Ok(Some(exit)) => forget(live, &exit),
            Ok(None) => return false,
            Err(errno) => return errno == sys::ECHILD,
        }
    }
    false
}

/// Reports the end of a command that has ended with another.
fn forget(live: &mut [Live; MAX_LIVE], exit: &sys::Exit) {
    if let Some(slot) = live.iter_mut().find(|slot| slot.pid == exit.pid) {
        slot.pid = 0;
        report(ENDED, slot.id, exit.code, exit.status);
    }
}

/// `kill(-1)` holds the kernel's task list lock, so not even a fork bomb escapes it.
fn kill_everything(live: &mut [Live; MAX_LIVE]) {
    // Without a process namespace of its own that would be everyone of this user; the keeper kills the cgroup then.
    if !sys::is_first() {
        return;
    }
    sys::kill(-1, SIGKILL);
    loop {
        match sys::reap(true) {
            Ok(Some(exit)) => forget(live, &exit),
            Ok(None) | Err(sys::EINTR) => {}
            Err(_) => return,
        }
    }
}

/// Payload: id, signal. Zero means everything. One that kills is meant for all that ends with the command; others go to the command itself.
fn signal(live: &mut [Live; MAX_LIVE], memory: &[u8]) {
    let (id, signal) = (word(memory, 0), word(memory, 4) as i32);
    if id == 0 {
        kill_everything(live);
        return report(ENDED, 0, 0, 0);
    }
    let Some(slot) = live.iter().find(|slot| slot.pid != 0 && slot.id == id) else {
        return;
    };
    match (signal, slot.flags & ALONE != 0) {
        (SIGKILL, true) => kill_everything(live),
        (SIGKILL, false) => sys::kill(-slot.pid, signal),
        // A kernel takes it as a wish to end the run; another command shares it with what it started.
        (_, true) => sys::kill(slot.pid, signal),
        (_, false) => sys::kill(-slot.pid, signal),
    }
}

fn serve_request(live: &mut [Live; MAX_LIVE]) {
    let mut header = [0_u8; 8];
    let Ok((n, fds)) = sys::receive(CONTROL, &mut header) else {
        sys::exit(73)
    };
    if n == 0 {
        sys::exit(0);
    }
    if n < header.len() && !read_exact(&mut header[n..]) {
        sys::exit(74);
    }
    let (kind, len) = (word(&header, 0), word(&header, 4) as usize);
    if len > MAX_MESSAGE {
        sys::exit(75);
    }
    // Room for the strings, and for a pointer to each: an empty one takes a single byte.
    let Ok(memory) = sys::map(len * 9 + 64) else {
        sys::exit(76)
    };
    if !read_exact(&mut memory[..len]) {
        sys::exit(77);
    }
    match kind {
        START => start(live, memory, len, fds),
        SIGNAL => signal(live, memory),
        _ => sys::exit(78),
    }
    for fd in fds {
        if fd >= 0 {
            sys::close(fd);
        }
    }
    sys::unmap(memory);
}

/// Payload: id, flags, number of arguments, number of variables, then NUL-ended: directory, arguments, `K=V`.
fn start(live: &mut [Live; MAX_LIVE], memory: &mut [u8], len: usize, fds: [Fd; sys::MAX_FDS]) {
    let (id, flags) = (word(memory, 0), word(memory, 4));
    let (argc, envc) = (word(memory, 8) as usize, word(memory, 12) as usize);
    let Some(slot) = live.iter_mut().find(|slot| slot.pid == 0) else {
        return refuse(id, sys::EUSERS);
    };
    let Some((bytes, slots)) = sys::pointers(memory, argc.saturating_add(envc).saturating_add(2))
    else {
        sys::exit(79)
    };
    let strings = &bytes[16..len.max(16)];
    let mut found = 0;
    let mut at = 0;
    let mut cwd: *const u8 = core::ptr::null();
    while at < strings.len() && found <= argc + envc {
        let Some(end) = strings[at..].iter().position(|&b| b == 0) else {
            sys::exit(80)
        };
        let pointer = strings[at..].as_ptr();
        match found {
            0 => cwd = pointer,
            n if n <= argc => slots[n - 1] = pointer,
            // One null pointer stays between the two lists, and one after.
            n => slots[n] = pointer,
        }
        found += 1;
        at += end + 1;
    }
    if found != argc + envc + 1 || argc == 0 {
        sys::exit(81);
    }
    let (argv, env) = slots.split_at(argc + 1);
    match sys::vfork() {
        Ok(0) => become_command(id, flags, cwd, argv, env, strings, fds),
        Ok(pid) => {
            *slot = Live { pid, id, flags };
            report(STARTED, id, pid, 0);
        }
        Err(errno) => refuse(id, errno),
    }
}

/// There is no process, so nobody else will tell of its end.
fn refuse(id: u32, errno: i32) {
    const EXITED: i32 = 1;
    report(START_FAILED, id, errno, 0);
    report(ENDED, id, EXITED, 127);
}

fn become_command(
    id: u32,
    flags: u32,
    cwd: *const u8,
    argv: &[*const u8],
    env: &[*const u8],
    strings: &[u8],
    fds: [Fd; sys::MAX_FDS],
) -> ! {
    // Stays open to report a failure, out of the way of the command's own numbers; like all others it closes on exec.
    let Ok(control) = sys::duplicate_above(CONTROL) else {
        sys::exit(127)
    };
    let fail = |errno: i32| -> ! {
        report_on(control, START_FAILED, id, errno, 0);
        sys::exit(127)
    };
    sys::setsid();
    let (given, cgroups) = fds.split_at(if flags & CHANNEL == 0 { 3 } else { 4 });
    for &file in cgroups.iter().filter(|fd| **fd >= 0) {
        // Zero stands for the writer itself. The keeper opened the file, so its permission counts.
        if let Err(errno) = sys::write(file, b"0") {
            fail(errno);
        }
    }
    // Received descriptors are above CONTROL, so none of these overwrites one that is still needed.
    for (target, &fd) in (0..).zip(given) {
        if let Err(errno) = sys::dup_to(fd, target) {
            fail(errno);
        }
    }
    // As the leader of a session of its own that has none yet, which it is since a moment ago.
    if flags & TERMINAL != 0
        && let Err(errno) = sys::take_terminal(0)
    {
        fail(errno);
    }
    // Negative, to be told from the program's.
    if let Err(errno) = sys::chdir(cwd) {
        fail(-errno);
    }
    if flags & LONE != 0
        && let Err(errno) = lone::forbid_processes(true)
    {
        fail(errno);
    }
    sys::mask_signals(false);
    let name = text(argv[0], strings);
    if name.contains(&b'/') {
        fail(sys::execve(argv[0], argv.as_ptr(), env.as_ptr()));
    }
    fail(search_path(name, argv, env, strings))
}

/// Looks a bare name up in the command's own PATH, as `execvp` does.
fn search_path(name: &[u8], argv: &[*const u8], env: &[*const u8], strings: &[u8]) -> i32 {
    let path = env
        .iter()
        .take_while(|p| !p.is_null())
        .find_map(|&p| text(p, strings).strip_prefix(b"PATH="))
        .unwrap_or(b"/usr/bin:/bin");
    let mut error = sys::ENOENT;
    for dir in path.split(|&b| b == b':').filter(|dir| !dir.is_empty()) {
        let mut full = [0_u8; 4096];
        if dir.len() + name.len() + 2 > full.len() {
            continue;
        }
        full[..dir.len()].copy_from_slice(dir);
        full[dir.len()] = b'/';
        full[dir.len() + 1..dir.len() + 1 + name.len()].copy_from_slice(name);
        match sys::execve(full.as_ptr(), argv.as_ptr(), env.as_ptr()) {
            sys::ENOENT => {}
            errno => error = errno,
        }
    }
    error
}

/// The bytes of a NUL-ended string that starts somewhere inside `strings`.
fn text(pointer: *const u8, strings: &[u8]) -> &[u8] {
    let from = (pointer as usize).wrapping_sub(strings.as_ptr() as usize);
    let rest = strings.get(from..).unwrap_or(&[]);
    let end = rest.iter().position(|&b| b == 0).unwrap_or(rest.len());
    &rest[..end]
}

fn word(bytes: &[u8], at: usize) -> u32 {
    match bytes.get(at..at + 4) {
        Some(b) => u32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        None => sys::exit(82),
    }
}

fn read_exact(mut buf: &mut [u8]) -> bool {
    while !buf.is_empty() {
        match sys::read(CONTROL, buf) {
            Ok(0) => return false,
            Ok(n) => buf = &mut buf[n..],
            Err(sys::EINTR) => {}
            Err(_) => return false,
        }
    }
    true
}

fn report(kind: u32, id: u32, a: i32, b: i32) {
    report_on(CONTROL, kind, id, a, b);
}

fn report_on(socket: Fd, kind: u32, id: u32, a: i32, b: i32) {
    let mut message = [0_u8; 16];
    message[0..4].copy_from_slice(&kind.to_le_bytes());
    message[4..8].copy_from_slice(&id.to_le_bytes());
    message[8..12].copy_from_slice(&a.to_le_bytes());
    message[12..16].copy_from_slice(&b.to_le_bytes());
    if sys::write(socket, &message).is_err() {
        sys::exit(83);
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    sys::exit(70)
}
