//! A kernel that runs in a sandbox: started once, spoken to over its channel, heard through its pipes.

mod bounded;
mod display;
mod files;
mod frames;
mod plain;
mod protocol;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use belljar_jail::{Command, Outcome, Plan, Role, Signal, Stage, ZygoteId};
use belljar_spec::Error;

use crate::command::pipe;
use crate::docker::Container;
use crate::engine::Engine;
use crate::output::Output;
use crate::process::{Launch, Process};
use crate::sandbox::Sandbox;
pub use bounded::{VALUE_BYTES, cut};
pub use files::{PLACE, entries, files_of, is_known};
pub use frames::{Form, Frames};
pub use protocol::{Call, Display, Done, Exit, Failure, Reply, Request, Stdin};

/// Where an interpreter comes from.
#[derive(Clone, Copy, Default)]
pub(crate) struct Source {
    /// Of which it is a copy.
    pub zygote: Option<ZygoteId>,
    /// Nobody waits for it yet.
    pub early: bool,
}

/// An interpreter that waits for code.
pub(crate) struct Kernel {
    process: Process,
    pub frames: Frames,
    pub output: Output,
    /// It is a copy of an interpreter that was warm.
    is_copy: bool,
}

impl Kernel {
    /// Starts one. Whether it came up is seen when it is spoken to.
    pub fn start(
        sandbox: &Sandbox,
        command: Command,
        form: Form,
        source: Source,
    ) -> Result<Self, Error> {
        let ends = Ends::new()?;
        let process = sandbox.start(Ends::launch(command, source, &ends.fds()))?;
        ends.into_kernel(process, form, source)
    }

    /// Starts one in a sandbox that is made for it.
    pub async fn start_in_new(
        engine: &Engine,
        container: Option<&Container>,
        plan: Plan,
        command: Command,
        form: Form,
        source: Source,
    ) -> Result<(Sandbox, Self), Error> {
        let ends = Ends::new()?;
        let fds = ends.fds();
        let launch = Ends::launch(command, source, &fds);
        let (sandbox, process) = Sandbox::open_with(engine, container, plan, launch).await?;
        Ok((sandbox, ends.into_kernel(process, form, source)?))
    }

    /// Waits until it has been looked at from outside. It may get code from then on, and hears it when it is ready.
    pub async fn started(&mut self) -> Result<(), Error> {
        self.process.started().await
    }

    /// Waits until it has been looked at from outside and says that it is ready, or has ended instead.
    ///
    /// A kernel that was copied can speak before the keeper has seen that it is confined; it gets no code before that.
    pub async fn ready(&mut self) -> Result<(), Error> {
        self.process.started().await?;
        loop {
            let Kernel {
                process, frames, ..
            } = self;
            match frames.next().await {
                Ok(Some(Reply::Ready {})) => return Ok(()),
                Ok(None) => {}
                _ => return Err(Error::internal("kernel", "it did not say that it is ready")),
            }
            tokio::select! {
                turned = frames.turn() => {
                    turned.map_err(|error| Error::internal("kernel", error))?;
                }
                ended = process.ended() => {
                    let outcome = ended?;
                    return Err(Error::internal(
                        "kernel",
                        format!("it ended before it was ready ({:?})", outcome.exit),
                    ));
                }
            }
        }
    }

    /// Wakes it for a run that is being prepared: to come out of its sleep takes as long as that. It hears nothing of the run yet.
    pub fn announce(&mut self) -> Result<(), Error> {
        if !self.is_copy {
            return Ok(());
        }
        self.frames.push(&Request::Soon, None).map_err(failed)
    }

    /// Whether it is known to have ended already.
    pub fn has_ended(&mut self) -> bool {
        self.process.has_ended()
    }

    pub async fn ended(&mut self) -> Result<Outcome, Error> {
        self.process.ended().await
    }

    pub fn signal(&self, signal: Signal) -> Result<(), Error> {
        self.process.signal(signal)
    }

    /// Its end and its channel, to wait for both.
    pub fn parts(&mut self) -> (&mut Process, &mut Frames, &mut Output) {
        (&mut self.process, &mut self.frames, &mut self.output)
    }
}

/// Both ends of everything between us and a kernel.
struct Ends {
    /// Never fed and never closed: what a run has to read travels with the run.
    null: File,
    stdout: (OwnedFd, OwnedFd),
    stderr: (OwnedFd, OwnedFd),
    channel: (OwnedFd, OwnedFd),
}

impl Ends {
    fn new() -> Result<Self, Error> {
        Ok(Self {
            null: File::open("/dev/null").map_err(failed)?,
            stdout: pipe()?,
            stderr: pipe()?,
            channel: belljar_jail::pair().map_err(failed)?,
        })
    }

    fn fds(&self) -> [BorrowedFd<'_>; 4] {
        [
            self.null.as_fd(),
            self.stdout.1.as_fd(),
            self.stderr.1.as_fd(),
            self.channel.1.as_fd(),
        ]
    }

    fn launch<'a>(command: Command, source: Source, fds: &'a [BorrowedFd<'a>]) -> Launch<'a> {
        Launch {
            command,
            stage: Stage::Run,
            role: Role::Kernel,
            zygote: source.zygote,
            early: source.early,
            fds,
        }
    }

    fn into_kernel(self, process: Process, form: Form, source: Source) -> Result<Kernel, Error> {
        Ok(Kernel {
            process,
            frames: Frames::new(self.channel.0, form).map_err(failed)?,
            output: Output::new(self.stdout.0, self.stderr.0).map_err(failed)?,
            is_copy: source.zygote.is_some(),
        })
    }
}

fn failed(error: io::Error) -> Error {
    Error::internal("kernel", error)
}

impl Drop for Kernel {
    /// One that nobody speaks to any more is of no use to anyone.
    fn drop(&mut self) {
        let _ = self.process.signal(Signal::Kill);
    }
}
