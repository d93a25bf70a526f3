//! What a keeper waits for. Thousands of sandboxes may be idle, so nothing here costs more the more there are.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::protocol::{Handle, ZygoteId};

/// Who has something to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    Engine,
    Zygote(ZygoteId),
    Sandbox(Handle),
}

/// Handles and zygotes are counted from one by the engine, and never get near this.
const ZYGOTE: u64 = 1 << 63;
const AT_ONCE: usize = 64;

impl Who {
    fn token(self) -> u64 {
        match self {
            Self::Engine => 0,
            Self::Zygote(id) => id | ZYGOTE,
            Self::Sandbox(handle) => handle,
        }
    }

    fn of(token: u64) -> Self {
        match token {
            0 => Self::Engine,
            token if token & ZYGOTE != 0 => Self::Zygote(token & !ZYGOTE),
            handle => Self::Sandbox(handle),
        }
    }
}

pub(super) struct Watch(Rc<Epoll>);

/// A descriptor that is waited for until it is dropped.
///
/// To close it is not enough: a child that was forked meanwhile may hold it open, and then it would be heard of without end.
pub(super) struct Watched {
    fd: OwnedFd,
    on: Rc<Epoll>,
}

impl AsFd for Watched {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = self.on.delete(&self.fd);
    }
}

impl Watch {
    pub fn new() -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        Ok(Self(Rc::new(epoll)))
    }

    pub fn add(&self, fd: impl AsFd, who: Who) {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, who.token());
        // Fails only for want of memory; a deadline then finds out what was missed.
        let _ = self.0.add(fd, event);
    }

    /// Has it heard of when there is room to write, too, or no longer.
    pub fn set_writing(&self, fd: impl AsFd, who: Who, writing: bool) {
        let mut flags = EpollFlags::EPOLLIN;
        flags.set(EpollFlags::EPOLLOUT, writing);
        let _ = self.0.modify(fd, &mut EpollEvent::new(flags, who.token()));
    }

    /// Has it waited for until it is dropped.
    pub fn keep(&self, fd: OwnedFd, who: Who) -> Watched {
        self.add(&fd, who);
        let on = Rc::clone(&self.0);
        Watched { fd, on }
    }

    /// Before it is closed: a child that was forked meanwhile may hold it open, and it would go on being heard.
    pub fn remove(&self, fd: impl AsFd) {
        let _ = self.0.delete(fd);
    }

    /// Waits for someone, for so long at most.
    pub fn wait(&self, most: Option<Duration>) -> io::Result<Vec<Who>> {
        let mut events = [EpollEvent::empty(); AT_ONCE];
        // Rounded up, so that we do not wake just before a deadline and spin.
        let timeout = most.map_or(EpollTimeout::NONE, |most| {
            EpollTimeout::try_from(most.as_millis() + 1).unwrap_or(EpollTimeout::MAX)
        });
        match self.0.wait(&mut events, timeout) {
            Ok(count) => Ok(events[..count]
                .iter()
                .map(|event| Who::of(event.data()))
                .collect()),
            Err(Errno::EINTR) => Ok(Vec::new()),
            Err(errno) => Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_to_write_is_heard_of_while_it_is_wanted() {
        let watch = Watch::new().unwrap();
        let (ours, _theirs) = crate::channel::pair().unwrap();
        let now = Some(Duration::ZERO);
        watch.add(&ours, Who::Sandbox(7));
        assert_eq!(watch.wait(now).unwrap(), []);
        watch.set_writing(&ours, Who::Sandbox(7), true);
        assert_eq!(watch.wait(now).unwrap(), [Who::Sandbox(7)]);
        watch.set_writing(&ours, Who::Sandbox(7), false);
        assert_eq!(watch.wait(now).unwrap(), []);
    }

    #[test]
    fn what_is_dropped_is_not_heard_of_though_others_hold_it() {
        let watch = Watch::new().unwrap();
        let (reader, writer) = nix::unistd::pipe().unwrap();
        let held = reader.try_clone().unwrap();
        let watched = watch.keep(reader, Who::Sandbox(7));
        drop(writer);
        assert_eq!(watch.wait(None).unwrap(), [Who::Sandbox(7)]);
        drop(watched);
        assert_eq!(watch.wait(Some(Duration::ZERO)).unwrap(), []);
        drop(held);
    }
}
