//! Commands, from their start to their end.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use crate::birth::{TERMINAL, become_command};
use crate::fence::Fence;
use crate::streams::{CHANNEL, Drain, INPUT, STDERR, STDIN, STDOUT, Source};
use crate::sys::{self, IN, Poll};
use crate::system::{self, EAGAIN, OUT};
use crate::{Outbox, kind, short, word};

/// How much may be on its way without having been acknowledged, per stream.
const WINDOW: usize = 256 << 10;
const MOST_COMMANDS: usize = 64;
/// What a pipe can hold at most, and some: a writer that goes on after the end of the command is not waited for.
const MOST_AFTER_END: usize = 2 << 20;

const ALONE: u8 = 1;
const HAS_CHANNEL: u8 = 2;
const SIGKILL: i32 = 9;

struct Command {
    id: u32,
    pid: i32,
    alone: bool,
    terminal: bool,
    exit: Option<(i32, i32)>,
    sources: Vec<Source>,
    drains: Vec<Drain>,
}

pub struct Commands {
    fence: Fence,
    live: Vec<Command>,
    /// What each place of the last poll was about: command, source or drain, index.
    asked: Vec<(u32, bool, usize)>,
}

impl Commands {
    pub fn new(fence: Fence) -> Self {
        Self {
            fence,
            live: Vec::new(),
            asked: Vec::new(),
        }
    }

    fn find(&mut self, id: u32) -> Option<&mut Command> {
        self.live.iter_mut().find(|command| command.id == id)
    }

    /// What is waited for.
    pub fn wishes(&mut self, polls: &mut Vec<Poll>, full: bool) {
        self.asked.clear();
        for command in &self.live {
            for (index, source) in command.sources.iter().enumerate() {
                if !full && source.fd >= 0 && source.window > 0 {
                    polls.push(Poll::new(source.fd, IN));
                    self.asked.push((command.id, true, index));
                }
            }
            for (index, drain) in command.drains.iter().enumerate() {
                if drain.fd >= 0 && !drain.waiting.is_empty() {
                    polls.push(Poll::new(drain.fd, OUT));
                    self.asked.push((command.id, false, index));
                }
            }
        }
    }

    /// Moves what can be moved.
    pub fn carry(&mut self, polls: &[Poll], outbox: &mut Outbox) {
        let asked = core::mem::take(&mut self.asked);
        for ((id, is_source, index), poll) in asked.iter().zip(polls) {
            if !poll.is_ready() {
                continue;
            }
            let Some(command) = self.find(*id) else {
                continue;
            };
            if *is_source {
                command.read(*index, outbox);
            } else if let Some(drain) = command.drains.get_mut(*index) {
                drain.write(*id, outbox);
            }
        }
    }

    /// Tells the end of commands that have ended and have nothing more to say.
    pub fn settle(&mut self, outbox: &mut Outbox) {
        let mut index = 0;
        while index < self.live.len() {
            let command = &mut self.live[index];
            let Some((code, status)) = command.exit.filter(|_| command.is_drained(outbox)) else {
                index += 1;
                continue;
            };
            outbox.push(
                kind::ENDED,
                command.id,
                &[&code.to_le_bytes(), &status.to_le_bytes()],
            );
            command.close();
            self.live.swap_remove(index);
        }
    }

    /// Payload: flags, rows and columns of the terminal, number of arguments, number of variables, then NUL-ended: directory, arguments, `K=V`.
    pub fn start(&mut self, id: u32, payload: &[u8], outbox: &mut Outbox) {
        let started = if self.live.len() == MOST_COMMANDS {
            Err(EAGAIN)
        } else {
            Command::start(id, payload, &self.fence)
        };
        match started {
            Ok(command) => {
                self.live.push(command);
                outbox.push(kind::STARTED, id, &[]);
            }
            Err(errno) => outbox.push(kind::FAILED, id, &[&errno.to_le_bytes()]),
        }
    }

    /// Payload: the signal.
    pub fn signal(&mut self, id: u32, payload: &[u8]) {
        let signal = word(payload, 0) as i32;
        let Some(command) = self.find(id).filter(|command| command.exit.is_none()) else {
            return;
        };
        let (pid, alone) = (command.pid, command.alone);
        match (signal, alone) {
            (SIGKILL, true) => self.kill_everything(),
            // A kernel takes it as a wish to end the run; another command shares it with what it started.
            (_, true) => sys::kill(pid, signal),
            (_, false) => {
                sys::kill(-pid, signal);
                if signal == SIGKILL {
                    system::kill_session(pid);
                }
            }
        }
    }

    /// Payload: stream, whether a descriptor travels along, bytes. None at all end the stream.
    pub fn take(&mut self, id: u32, payload: &[u8], outbox: &mut Outbox) {
        let (&[stream, flags], bytes) = payload.split_first_chunk().unwrap_or((&[0, 0], &[]));
        let Some(command) = self.find(id) else {
            return;
        };
        if flags & 1 != 0 {
            command.give_input();
        }
        if command.terminal && bytes.is_empty() {
            // Nobody sits there any more: those who do not want to end hear it.
            command.close();
            return;
        }
        let Some(drain) = command.drains.iter_mut().find(|d| d.stream == stream) else {
            return;
        };
        if bytes.is_empty() {
            drain.last = true;
        }
        if drain.waiting.len() + bytes.len() > WINDOW {
            sys::exit(76);
        }
        drain.waiting.extend(bytes);
        drain.write(id, outbox);
    }

    /// Payload: stream, number of bytes.
    pub fn acknowledge(&mut self, id: u32, payload: &[u8]) {
        let stream = payload.first().copied().unwrap_or(0);
        let count = word(payload, 1) as usize;
        if let Some(command) = self.find(id)
            && let Some(source) = command.sources.iter_mut().find(|s| s.stream == stream)
        {
            source.window = (source.window + count).min(WINDOW);
        }
    }

    /// Payload: rows, columns.
    pub fn resize(&mut self, id: u32, payload: &[u8]) {
        let at_terminal = self.find(id).filter(|command| command.terminal);
        if let Some(source) = at_terminal.and_then(|command| command.sources.first())
            && source.fd >= 0
        {
            system::resize(source.fd, short(payload, 0), short(payload, 2));
        }
    }

    pub fn reap(&mut self) {
        while let Ok(Some(exit)) = sys::reap(false) {
            self.note(&exit);
        }
    }

    fn note(&mut self, exit: &sys::Exit) {
        let ended = self
            .live
            .iter_mut()
            .find(|command| command.pid == exit.pid && command.exit.is_none());
        if let Some(command) = ended {
            command.exit = Some((exit.code, exit.status));
            if command.alone {
                self.kill_everything();
            }
        }
    }

    /// `kill(-1)` holds the kernel's task list lock, so not even a fork bomb escapes it.
    fn kill_everything(&mut self) {
        kill_all();
        loop {
            match sys::reap(true) {
                Ok(Some(exit)) => {
                    let ended = self
                        .live
                        .iter_mut()
                        .find(|command| command.pid == exit.pid && command.exit.is_none());
                    if let Some(command) = ended {
                        command.exit = Some((exit.code, exit.status));
                    }
                }
                Ok(None) | Err(sys::EINTR) => {}
                Err(_) => return,
            }
        }
    }
}

/// Everything in this process namespace; nothing at all if it is not our own.
pub fn kill_all() {
    if sys::is_first() {
        sys::kill(-1, SIGKILL);
    }
}

impl Command {
    fn start(id: u32, payload: &[u8], fence: &Fence) -> Result<Self, i32> {
        let flags = payload.first().copied().unwrap_or(0);
        let (rows, cols) = (short(payload, 1), short(payload, 3));
        let (argc, envc) = (word(payload, 5) as usize, word(payload, 9) as usize);
        let mut strings = payload[13..].split_inclusive(|&byte| byte == 0);
        let cwd = strings.next().unwrap_or(b"/\0");
        let argv: Vec<&[u8]> = strings.by_ref().take(argc).collect();
        let env: Vec<&[u8]> = strings.take(envc).collect();
        let whole = argv.iter().chain(&env).chain([&cwd]);
        if argv.is_empty() || env.len() != envc || whole.clone().any(|s| s.last() != Some(&0)) {
            sys::exit(77);
        }
        let terminal = flags & TERMINAL != 0;
        // What the command gets, and our ends of that.
        let (given, ours) = if terminal {
            let (master, program) = system::terminal(rows, cols)?;
            (
                [program, -1, -1, -1],
                [sys::duplicate_above(master)?, master, -1, -1],
            )
        } else {
            let (input, output, errors) = (system::pipe()?, system::pipe()?, system::pipe()?);
            let channel = if flags & HAS_CHANNEL == 0 {
                (-1, -1)
            } else {
                system::socket_pair()?
            };
            let given = [input.0, output.1, errors.1, channel.1];
            (given, [input.1, output.0, errors.0, channel.0])
        };
        let report = system::pipe()?;
        let pid = match sys::vfork() {
            Ok(0) => become_command(cwd, &argv, &env, given, report.1, flags, fence),
            forked => forked,
        };
        for fd in given.into_iter().chain([report.1]).filter(|fd| *fd >= 0) {
            sys::close(fd);
        }
        // Whoever forked goes on when the child has executed or left a word about why not.
        let mut errno = [0_u8; 4];
        let failed = matches!(sys::read(report.0, &mut errno), Ok(4));
        sys::close(report.0);
        let trouble = match pid {
            Err(errno) => Some(errno),
            Ok(_) if failed => Some(i32::from_le_bytes(errno)),
            Ok(_) => ours
                .into_iter()
                .filter(|fd| *fd >= 0)
                .find_map(|fd| system::set_nonblocking(fd).err()),
        };
        if let Some(errno) = trouble {
            for fd in ours.into_iter().filter(|fd| *fd >= 0) {
                sys::close(fd);
            }
            return Err(errno);
        }
        let source = |fd, stream| Source {
            fd,
            stream,
            window: WINDOW,
            after_end: MOST_AFTER_END,
        };
        let drain = |fd, stream| Drain {
            fd,
            stream,
            waiting: VecDeque::new(),
            passenger: None,
            last: false,
        };
        let mut command = Self {
            id,
            pid: pid.unwrap_or(0),
            alone: flags & ALONE != 0,
            terminal,
            exit: None,
            sources: vec![source(ours[1], STDOUT), source(ours[2], STDERR)],
            drains: vec![drain(ours[0], STDIN)],
        };
        if ours[3] >= 0 {
            command.sources.push(source(ours[3], CHANNEL));
            command.drains.push(drain(ours[3], CHANNEL));
        }
        Ok(command)
    }

    /// What was printed before something was said on the channel is passed on before it.
    fn read(&mut self, index: usize, outbox: &mut Outbox) {
        if self.sources.get(index).is_some_and(|s| s.stream == CHANNEL) {
            for printed in 0..2 {
                let mut most = MOST_AFTER_END;
                while most > 0 && self.sources[printed].window > 0 {
                    match self.sources[printed].read(self.id, outbox) {
                        0 => break,
                        n => most = most.saturating_sub(n),
                    }
                }
                let source = &self.sources[printed];
                // Nothing overtakes what could not be sent yet, unless there is no end to it.
                if source.fd >= 0 && source.window == 0 && most > 0 {
                    return;
                }
            }
        }
        if let Some(source) = self.sources.get_mut(index) {
            source.read(self.id, outbox);
        }
    }

    /// Whether everything that was printed before its end is on its way.
    fn is_drained(&mut self, outbox: &mut Outbox) -> bool {
        let id = self.id;
        self.sources.iter_mut().all(|source| {
            while source.fd >= 0 && source.after_end > 0 {
                if source.window == 0 {
                    return false;
                }
                match source.read(id, outbox) {
                    0 => break,
                    n => source.after_end = source.after_end.saturating_sub(n),
                }
            }
            true
        })
    }

    /// A pipe whose reading end the kernel gets with the next bytes on its channel.
    fn give_input(&mut self) {
        let Ok((from, to)) = system::pipe() else {
            return;
        };
        let _ = system::set_nonblocking(to);
        self.drains.retain(|drain| {
            let old = drain.stream == INPUT;
            if old && drain.fd >= 0 {
                sys::close(drain.fd);
            }
            !old
        });
        if let Some(channel) = self.drains.iter_mut().find(|d| d.stream == CHANNEL) {
            if let Some((_, old)) = channel.passenger.replace((channel.waiting.len(), from)) {
                sys::close(old);
            }
        } else {
            sys::close(from);
        }
        self.drains.push(Drain {
            fd: to,
            stream: INPUT,
            waiting: VecDeque::new(),
            passenger: None,
            last: false,
        });
    }

    fn close(&mut self) {
        for drain in &mut self.drains {
            if let Some((_, fd)) = drain.passenger.take() {
                sys::close(fd);
            }
            // The channel is both, and closed as a source.
            if drain.fd >= 0 && drain.stream != CHANNEL {
                sys::close(drain.fd);
            }
            drain.fd = -1;
        }
        for source in &mut self.sources {
            if source.fd >= 0 {
                sys::close(source.fd);
            }
            source.fd = -1;
        }
    }
}
