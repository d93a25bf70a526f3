//! Terminals: pairs for commands in a sandbox, and the one that a person sits at.
//!
//! A pair is made on the host and given to a command as descriptors, so a sandbox needs neither `/dev/ptmx` nor
//! `/dev/pts`. What a program could do to a terminal's owner (push input, take the console) the seccomp policy refuses.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::pty::{posix_openpt, unlockpt};
use nix::sys::termios::{InputFlags, SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};

use crate::sys;

/// Rows and columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    pub rows: u16,
    pub cols: u16,
}

/// A terminal: the end that is read and typed at, which does not block, and the one for the program.
pub fn pair(window: Window) -> io::Result<(OwnedFd, OwnedFd)> {
    let master = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_NONBLOCK)?;
    fcntl(master.as_fd(), FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    unlockpt(&master)?;
    let program = sys::terminal_peer(master.as_fd())?;
    // So that erasing takes away characters, not bytes.
    let mut settings = tcgetattr(&program)?;
    settings.input_flags.insert(InputFlags::IUTF8);
    tcsetattr(&program, SetArg::TCSANOW, &settings)?;
    resize(program.as_fd(), window)?;
    Ok((OwnedFd::from(master), program))
}

pub fn resize(terminal: BorrowedFd<'_>, window: Window) -> io::Result<()> {
    sys::set_window_size(terminal, window.rows, window.cols)
}

/// Makes the program's end of a terminal a mere pipe to another terminal, elsewhere: every byte passes as it is, and nobody
/// waits. Says how large it is.
pub fn pass_through(terminal: BorrowedFd<'_>) -> io::Result<Option<Window>> {
    let mut settings = tcgetattr(terminal)?;
    cfmakeraw(&mut settings);
    tcsetattr(terminal, SetArg::TCSANOW, &settings)?;
    let flags = OFlag::from_bits_retain(fcntl(terminal, FcntlArg::F_GETFL)?);
    fcntl(terminal, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(window(terminal))
}

/// How large a terminal is; `None` if it does not know, or is none.
pub fn window(terminal: BorrowedFd<'_>) -> Option<Window> {
    let (rows, cols) = sys::window_size(terminal).ok()?;
    (rows > 0 && cols > 0).then_some(Window { rows, cols })
}

/// A person's terminal that passes every key on, until this is dropped.
pub struct Raw<'a> {
    terminal: BorrowedFd<'a>,
    before: Termios,
}

impl<'a> Raw<'a> {
    pub fn enter(terminal: BorrowedFd<'a>) -> io::Result<Self> {
        let before = tcgetattr(terminal)?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(terminal, SetArg::TCSANOW, &raw)?;
        Ok(Self { terminal, before })
    }
}

impl Drop for Raw<'_> {
    fn drop(&mut self) {
        let _ = tcsetattr(self.terminal, SetArg::TCSANOW, &self.before);
    }
}
