//! A command at a terminal: what somebody types goes in, what the program draws comes out.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_jail::terminal::{Window, pair, resize};
use belljar_jail::{Command, Role, Signal, Stage};
use belljar_spec::{CommandRequest, Error, RunResult};
use tokio::net::unix::pipe::{Receiver, Sender};

use super::Session;
use crate::command::check_started;
use crate::docker::Far;
use crate::output::Captured;
use crate::process::{Launch, Process};
use crate::run::new_run_id;
use crate::sandbox::Sandbox;
use crate::verdict::Finished;

/// How long a program has to leave by itself when nobody sits at its terminal any more.
const FAREWELL: Duration = Duration::from_secs(1);

/// A terminal in a sandbox. Dropping it ends the command and what it started.
pub struct Terminal<'a> {
    screen: Option<Screen>,
    session: &'a Session,
    sandbox: Arc<Sandbox>,
    process: Process,
    command: Command,
    start: Duration,
}

/// The end of a terminal at which somebody sits. All of it is bytes; what they mean is between the program and the person.
pub struct Screen {
    /// To the runtime a terminal is like a pipe at either end: something to wait for, then read or write.
    drawn: Receiver,
    typed: Sender,
    /// Where the real one is in a container.
    far: Option<Far>,
}

impl Session {
    /// Starts a command at a terminal of its own, beside whatever else runs. It has no deadline.
    pub async fn terminal(
        &self,
        request: &CommandRequest,
        window: Window,
    ) -> Result<Terminal<'_>, Error> {
        request.check()?;
        super::ability::check_command(&self.request)?;
        let received = Instant::now();
        let limits = self.run_limits(&request.limits)?;
        let command = self.beside(request, limits);
        let (master, program) = pair(window).map_err(failed)?;
        let sandbox = self.sandbox();
        let fds = [program.as_fd(), program.as_fd(), program.as_fd()];
        let mut process = sandbox.start(Launch {
            command: command.clone(),
            stage: Stage::Run,
            role: Role::Terminal,
            zygote: None,
            early: false,
            fds: &fds,
        })?;
        let screen = Screen::new(master, process.far()).map_err(failed)?;
        process.started().await?;
        Ok(Terminal {
            screen: Some(screen),
            session: self,
            sandbox,
            process,
            command,
            start: received.elapsed(),
        })
    }
}

impl Terminal<'_> {
    /// The screen, and the command's end to wait for.
    pub fn parts(
        &mut self,
    ) -> (
        Option<&Screen>,
        impl Future<Output = Result<RunResult, Error>>,
    ) {
        let Self {
            screen,
            session,
            sandbox,
            process,
            command,
            start,
        } = self;
        let ended = async move {
            let outcome = process.ended().await?;
            check_started(&outcome, command)?;
            let finished = Finished {
                outcome,
                stdout: Captured::default(),
                stderr: Captured::default(),
                start: *start,
            };
            let id = new_run_id()?;
            Ok(session.program_result(id, sandbox, None, Some(finished), command.limits))
        };
        (screen.as_ref(), ended)
    }

    /// Nobody sits there any more: the program is told, and ended if it does not leave.
    pub async fn hang_up(&mut self) -> Result<RunResult, Error> {
        self.screen = None;
        if let Ok(left) = tokio::time::timeout(FAREWELL, self.parts().1).await {
            return left;
        }
        self.end().await
    }

    /// The program is ended at once.
    pub async fn end(&mut self) -> Result<RunResult, Error> {
        self.process.signal(Signal::Kill)?;
        self.parts().1.await
    }
}

impl Drop for Terminal<'_> {
    fn drop(&mut self) {
        // Without meaning for one that has ended.
        let _ = self.process.signal(Signal::Kill);
    }
}

impl Screen {
    fn new(master: OwnedFd, far: Option<Far>) -> io::Result<Self> {
        Ok(Self {
            typed: Sender::from_file_unchecked(master.try_clone()?.into())?,
            drawn: Receiver::from_file_unchecked(master.into())?,
            far,
        })
    }

    /// What the program drew. `Ok(0)`: nobody can draw any more.
    pub async fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            self.drawn.readable().await?;
            match self.drawn.try_read(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return ended(read),
            }
        }
    }

    /// What is there now, of which the runtime may not have heard yet.
    pub fn read_now(&self, into: &mut [u8]) -> io::Result<usize> {
        match belljar_jail::read_some(self.drawn.as_fd(), into) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
            read => ended(read),
        }
    }

    /// Types some of this; waits while the program does not take it.
    pub async fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            self.typed.writable().await?;
            match self.typed.try_write(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                written => return ended(written),
            }
        }
    }

    pub fn resize(&self, window: Window) -> io::Result<()> {
        if let Some(far) = &self.far {
            far.resize(window);
        }
        resize(self.drawn.as_fd(), window)
    }
}

fn failed(error: io::Error) -> Error {
    Error::internal("terminal", error)
}

/// Linux says EIO once the last program has closed its end.
fn ended(done: io::Result<usize>) -> io::Result<usize> {
    const EIO: i32 = 5;
    match done {
        Err(error) if error.raw_os_error() == Some(EIO) => Ok(0),
        done => done,
    }
}
