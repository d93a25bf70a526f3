//! A kernel that runs in a sandbox: started once, spoken to over its channel, heard through its pipes.

mod files;
mod frames;
mod protocol;

use std::io;
use std::os::fd::AsFd;

use belljar_jail::{Command, Outcome, Role, Signal, Stage};
use belljar_spec::Error;

use crate::command::pipe;
use crate::output::Output;
use crate::sandbox::{Launch, Process, Sandbox};
pub use files::{PLACE, entries, is_known};
pub use frames::Frames;
pub use protocol::{Done, Failure, Reply, Request, Stdin};

/// An interpreter that waits for code.
pub(crate) struct Kernel {
    process: Process,
    pub frames: Frames,
    pub output: Output,
}

impl Kernel {
    /// Starts one. Whether it came up is seen when it is spoken to.
    pub fn start(sandbox: &Sandbox, command: Command) -> Result<Self, Error> {
        let failed = |error: io::Error| Error::internal("kernel", error);
        // Never fed and never closed: what a run has to read travels with the run.
        let null = std::fs::File::open("/dev/null").map_err(failed)?;
        let (stdout, stderr) = (pipe()?, pipe()?);
        let (ours, theirs) = belljar_jail::pair().map_err(failed)?;
        let process = sandbox.start(Launch {
            command,
            stage: Stage::Run,
            role: Role::Kernel,
            fds: &[
                null.as_fd(),
                stdout.1.as_fd(),
                stderr.1.as_fd(),
                theirs.as_fd(),
            ],
        })?;
        Ok(Self {
            process,
            frames: Frames::new(ours).map_err(failed)?,
            output: Output::new(stdout.0, stderr.0).map_err(failed)?,
        })
    }

    /// Waits until it says that it is ready, or has ended instead.
    pub async fn ready(&mut self) -> Result<(), Error> {
        loop {
            let Kernel {
                process, frames, ..
            } = self;
            let reply = frames.next().map(|frame| frame.map(parse));
            match reply {
                Ok(Some(Some(Reply::Ready {}))) => return Ok(()),
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

/// `None`: not a frame of the protocol.
pub(crate) fn parse(frame: &[u8]) -> Option<Reply> {
    serde_json::from_slice(frame).ok()
}

impl Drop for Kernel {
    /// One that nobody speaks to any more is of no use to anyone.
    fn drop(&mut self) {
        let _ = self.process.signal(Signal::Kill);
    }
}
