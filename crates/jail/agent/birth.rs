//! How a child of ours becomes a command.

use alloc::vec::Vec;

use crate::fence::Fence;
use crate::lone;
use crate::sys::{self, Fd};

/// At a terminal, which is all of its standard streams.
pub const TERMINAL: u8 = 4;
/// It can start no process.
const LONE: u8 = 8;

/// Takes up its descriptors, goes behind the fence and executes the program. What fails is told through `report`.
pub fn become_command(
    cwd: &[u8],
    argv: &[&[u8]],
    env: &[&[u8]],
    given: [Fd; 4],
    report: Fd,
    flags: u8,
    fence: &Fence,
) -> ! {
    let terminal = flags & TERMINAL != 0;
    let fail = |errno: i32| -> ! {
        let _ = sys::write(report, &errno.to_le_bytes());
        sys::exit(127)
    };
    sys::setsid();
    // First out of the way of the numbers that they become.
    let mut aside = [-1; 4];
    for (to, fd) in aside.iter_mut().zip(given).filter(|(_, fd)| *fd >= 0) {
        match sys::duplicate_above(fd) {
            Ok(copy) => *to = copy,
            Err(errno) => fail(errno),
        }
    }
    let Ok(report) = sys::duplicate_above(report) else {
        sys::exit(127)
    };
    let fail = |errno: i32| -> ! {
        let _ = sys::write(report, &errno.to_le_bytes());
        sys::exit(127)
    };
    for (target, fd) in (0..).zip(aside).filter(|(_, fd)| *fd >= 0) {
        if let Err(errno) = sys::dup_to(fd, target) {
            fail(errno);
        }
    }
    // As the leader of a session that has none yet.
    if terminal
        && let Err(errno) = sys::take_terminal(0)
            .and_then(|_| sys::dup_to(0, 1))
            .and_then(|_| sys::dup_to(0, 2))
    {
        fail(errno);
    }
    // Negative, to be told from the program's.
    if let Err(errno) = sys::chdir(cwd.as_ptr()) {
        fail(-errno);
    }
    if let Err(errno) = fence.enter(terminal) {
        fail(errno);
    }
    if flags & LONE != 0
        && let Err(errno) = lone::forbid_processes(true)
    {
        fail(errno);
    }
    let list = |strings: &[&[u8]]| {
        let mut pointers: Vec<*const u8> = strings.iter().map(|s| s.as_ptr()).collect();
        pointers.push(core::ptr::null());
        pointers
    };
    let (args, vars) = (list(argv), list(env));
    sys::mask_signals(false);
    if argv[0].contains(&b'/') {
        fail(sys::execve(argv[0].as_ptr(), args.as_ptr(), vars.as_ptr()));
    }
    let path = env.iter().find_map(|var| var.strip_prefix(b"PATH="));
    let path = path.map_or(&b"/usr/bin:/bin"[..], |path| &path[..path.len() - 1]);
    let mut error = sys::ENOENT;
    for dir in path.split(|&b| b == b':').filter(|dir| !dir.is_empty()) {
        let full = [dir, b"/", argv[0]].concat();
        match sys::execve(full.as_ptr(), args.as_ptr(), vars.as_ptr()) {
            sys::ENOENT => {}
            errno => error = errno,
        }
    }
    fail(error)
}
