//! One command in a sandbox: its pipes, what it is fed, what came of it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Instant;

use belljar_jail::{BUILD, Command, Exit, Outcome, Role, Stage};
use belljar_spec::{Error, Limits, Network};
use tokio::io::{AsyncRead, AsyncWriteExt};
use tokio::net::unix::pipe::Sender;

use crate::egress;
use crate::image::Image;
use crate::output::{Output, Sink, capture};
use crate::process::{Launch, Process};
use crate::runtime::{Place, Step, Toolchain};
use crate::stop::Stop;
use crate::verdict::Finished;

/// What the program can read on its standard input.
pub enum Stdin {
    Empty,
    Bytes(Vec<u8>),
    Stream(Box<dyn AsyncRead + Send + Unpin>),
}

/// Where programs are looked for.
pub(crate) const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// What every command finds, what its image and its step add, and what the caller does.
pub(crate) fn environment(
    image: Option<&Image>,
    step: &BTreeMap<String, String>,
    network: &Network,
    caller: &BTreeMap<String, String>,
) -> Vec<(String, String)> {
    let mut env: BTreeMap<String, String> = [
        ("PATH", PATH),
        ("HOME", "/tmp"),
        ("TMPDIR", "/tmp"),
        ("USER", "sandbox"),
        // Not LANG: the other categories say the same in `C`, which no program has to load from twelve files.
        ("LC_CTYPE", "C.UTF-8"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    let own = image.map(|image| {
        env.insert("PATH".into(), image.path().into());
        env.insert("USER".into(), image.user().into());
        image.env()
    });
    let network = egress::environment(network);
    let own = own.into_iter().flatten();
    let more = own.chain(&network).chain(step).chain(caller);
    env.extend(more.map(|(name, value)| (name.clone(), value.clone())));
    env.into_iter().collect()
}

/// Whose commands, and where: what makes a command of a step.
pub(crate) struct Setting<'a> {
    pub toolchain: &'a Toolchain,
    pub workdir: &'a str,
    /// The code's file.
    pub main: &'a str,
    /// Beside those of the step.
    pub variables: BTreeMap<String, String>,
    pub network: &'a Network,
    pub env: &'a BTreeMap<String, String>,
}

impl Setting<'_> {
    pub fn command(mut self, step: &Step, limits: &Limits, args: &[String]) -> Command {
        let place = Place {
            main: self.main,
            workspace: self.workdir,
            out: BUILD,
            memory_bytes: limits.memory_bytes,
            cpus: limits.cpus,
        };
        self.variables.extend(step.env(&place));
        let image = self.toolchain.image.as_deref();
        Command {
            argv: step.argv(&place, args),
            env: environment(image, &self.variables, self.network, self.env),
            cwd: PathBuf::from(self.workdir),
            limits: *limits,
        }
    }
}

pub(crate) fn pipe() -> Result<(OwnedFd, OwnedFd), Error> {
    match io::pipe() {
        Ok((reader, writer)) => Ok((reader.into(), writer.into())),
        Err(error) => Err(Error::internal("pipes", error)),
    }
}

/// A command with the pipes it will be fed and read through.
pub(crate) struct Prepared {
    command: Command,
    stage: Stage,
    role: Role,
    /// What it executes has come from a compiler: that it is not there, or no program, is told by its outcome.
    compiled: bool,
    stdin: (OwnedFd, OwnedFd),
    stdout: (OwnedFd, OwnedFd),
    stderr: (OwnedFd, OwnedFd),
}

impl Prepared {
    pub fn new(command: Command, stage: Stage, role: Role) -> Result<Self, Error> {
        Ok(Self {
            command,
            stage,
            role,
            compiled: false,
            stdin: pipe()?,
            stdout: pipe()?,
            stderr: pipe()?,
        })
    }

    /// One that executes what was compiled before.
    pub fn of_compiled(command: Command, role: Role) -> Result<Self, Error> {
        Ok(Self {
            compiled: true,
            ..Self::new(command, Stage::Run, role)?
        })
    }

    pub fn fds(&self) -> [BorrowedFd<'_>; 3] {
        [
            self.stdin.0.as_fd(),
            self.stdout.1.as_fd(),
            self.stderr.1.as_fd(),
        ]
    }

    pub fn launch<'a>(&self, fds: &'a [BorrowedFd<'a>]) -> Launch<'a> {
        Launch {
            command: self.command.clone(),
            stage: self.stage,
            role: self.role,
            zygote: None,
            early: false,
            fds,
        }
    }

    /// Feeds and reads the command, once it has been started, until everything has ended.
    pub async fn finish(
        self,
        process: &mut Process,
        stdin: Stdin,
        received: Instant,
        sink: &mut dyn Sink,
    ) -> Result<Finished, Error> {
        let never = Stop::default();
        self.finish_or_stop(process, stdin, received, &never, sink)
            .await
    }

    /// The same, or until it is stopped.
    pub async fn finish_or_stop(
        self,
        process: &mut Process,
        stdin: Stdin,
        received: Instant,
        stop: &Stop,
        sink: &mut dyn Sink,
    ) -> Result<Finished, Error> {
        process.started().await?;
        let start = received.elapsed();
        // Ours would keep the pipes open after the last process has gone.
        drop((self.stdin.0, self.stdout.1, self.stderr.1));
        let failed = |error: io::Error| Error::internal("pipes", error);
        let mut output = Output::new(self.stdout.0, self.stderr.0).map_err(failed)?;
        output.begin(self.command.limits.output_bytes);
        let _feeder = Feeder::start(stdin, self.stdin.1);
        let hurry = process.is_the_last();
        let captured = capture(&mut output, sink, stop.end_of(process), hurry).await;
        let (stdout, stderr, outcome) = captured.map_err(failed)?;
        let outcome = outcome?;
        if !self.compiled || no_program(&outcome).is_none() {
            check_started(&outcome, &self.command)?;
        }
        Ok(Finished {
            outcome,
            stdout,
            stderr,
            start,
        })
    }
}

/// A program or a directory that is not there, or cannot be used, is the caller's mistake; that there is no room for another
/// process is that of what runs already.
pub(crate) fn check_started(outcome: &Outcome, command: &Command) -> Result<(), Error> {
    if let Exit::NotStarted { errno } = outcome.exit {
        if let Some(full) = no_room(errno) {
            let reason = format!("cannot start the command: {full}");
            return Err(Error::Conflict { reason });
        }
        let program = command.argv.first().map_or("", String::as_str);
        let reason = io::Error::from_raw_os_error(errno.saturating_abs()).to_string();
        return Err(if errno < 0 {
            Error::invalid_file("cwd", &command.cwd.to_string_lossy(), reason)
        } else {
            Error::invalid_file("command", program, reason)
        });
    }
    Ok(())
}

/// Why there is no program where one was to be, by the number of the kernel's error: ENOENT, ENOEXEC, EACCES.
pub(crate) fn no_program(outcome: &Outcome) -> Option<io::Error> {
    match outcome.exit {
        Exit::NotStarted {
            errno: errno @ (2 | 8 | 13),
        } => Some(io::Error::from_raw_os_error(errno)),
        _ => None,
    }
}

/// What there is no room for, by the number of the kernel's error: EAGAIN, ENOMEM, and EUSERS of init, which counts commands.
fn no_room(errno: i32) -> Option<&'static str> {
    match errno {
        11 => Some("the sandbox has all the processes that its limit `processes` allows"),
        12 => Some("the sandbox has all the memory that its limit `memory` allows"),
        87 => Some("as many commands are in the sandbox as can be at once"),
        _ => None,
    }
}

/// Writes a program's input until it is dropped.
pub(crate) struct Feeder(tokio::task::JoinHandle<()>);

impl Feeder {
    pub fn start(stdin: Stdin, writer: OwnedFd) -> Self {
        Self(tokio::spawn(feed(stdin, writer)))
    }
}

impl Drop for Feeder {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Writes the program's input. That nobody reads it is not our business.
async fn feed(stdin: Stdin, writer: OwnedFd) {
    let Ok(mut pipe) = Sender::from_owned_fd(writer) else {
        return;
    };
    match stdin {
        Stdin::Empty => {}
        Stdin::Bytes(bytes) => drop(pipe.write_all(&bytes).await),
        Stdin::Stream(mut stream) => drop(tokio::io::copy(&mut stream, &mut pipe).await),
    }
}
