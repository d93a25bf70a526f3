//! What the engine asks of a keeper, and what it hears back.

use belljar_spec::{Limits, Report};
use serde::{Deserialize, Serialize};

use crate::beneath::Found;
use crate::cgroup::Meter;
use crate::error::Error;
use crate::plan::{Command, Plan};

/// The engine's name for a sandbox on one channel.
pub type Handle = u64;

/// The engine's name for a warm interpreter.
pub type ZygoteId = u64;

/// The engine's name for a command of a sandbox.
pub type CommandId = u32;

#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// With a zygote: one that it can enter.
    Open {
        sandbox: Handle,
        plan: Box<Plan>,
        zygote: Option<ZygoteId>,
    },
    /// A keeper of root waits for this once: with one descriptor, a network namespace for its first sandbox; with none, if
    /// that could not be made here.
    Network,
    /// With three descriptors: standard input, output and error; a kernel's channel is a fourth. May be sent before the
    /// sandbox is open, and then starts as soon as it is.
    Start { sandbox: Handle, start: Box<Start> },
    /// Interrupts a command, or kills it: a kernel with everything in the sandbox, which lives on.
    Signal {
        sandbox: Handle,
        command: CommandId,
        signal: Signal,
    },
    /// Changes the limits of a sandbox that lives.
    Limit { sandbox: Handle, limits: Limits },
    /// Puts what runs in a sandbox behind all others, or takes that back: a courtesy to them, of which nothing is told.
    Behind { sandbox: Handle, behind: bool },
    /// Makes a socket in the network of a sandbox, which few can enter: one that listens at a port, or one that can be connected.
    Socket {
        sandbox: Handle,
        id: u64,
        listen: Option<u16>,
    },
    /// Starts a warm interpreter that can be copied into sandboxes which see what `plan` says.
    Warm {
        zygote: ZygoteId,
        plan: Box<Plan>,
        command: Box<Command>,
        laying: Laying,
    },
    /// Ends it; its copies live on.
    Cool { zygote: ZygoteId },
    /// Kill everything and leave no trace.
    Close {
        sandbox: Handle,
        /// How what goes on in it ends is told before: somebody waits for it.
        told: bool,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Start {
    pub id: CommandId,
    pub command: Command,
    pub role: Role,
    pub stage: Stage,
    /// A kernel is a copy of this one, where that can be had; else the command is executed.
    pub zygote: Option<ZygoteId>,
    /// Nobody waits for it yet: a copy has the time to make itself at home.
    pub early: bool,
}

/// Which objects of an interpreter its copies write to, as `zygote/layout.rs` takes it.
pub type Layout = Vec<u8>;

/// Where an interpreter puts its objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Laying {
    /// Where they come to lie.
    Plain,
    /// It is a scout: it finds a layout, behind all else that goes on, and ends.
    Scout,
    /// As a scout has found is best.
    Laid(Layout),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// The only command: all else ends with it, and its deadline is the end of the sandbox.
    Alone,
    /// All else ends with it, but the sandbox lives on. Has a channel and no deadline.
    Kernel,
    /// One of several.
    Beside,
    /// One of several, controlled by the terminal that its descriptors are. Ends when whoever sits there wants it to.
    Terminal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Signal {
    Interrupt,
    Kill,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// In cgroups of its own, so that what it used is not counted as the run's.
    Compile,
    Run,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Event {
    /// Comes with the descriptor of the workspace directory, and the sockets of the network if it has one.
    Opened {
        sandbox: Handle,
        opened: Box<Opened>,
    },
    /// The sandbox, or one command of it, could not be made.
    Refused {
        sandbox: Handle,
        command: Option<CommandId>,
        error: Error,
    },
    Started {
        sandbox: Handle,
        command: CommandId,
        /// Why no copy of a zygote was to be had, where one was asked for.
        cold: Option<Error>,
    },
    Ended {
        sandbox: Handle,
        command: CommandId,
        outcome: Outcome,
    },
    /// The new limits hold.
    Limited {
        sandbox: Handle,
    },
    /// Comes with its descriptor, unless there is an error.
    Socket {
        sandbox: Handle,
        id: u64,
        error: Option<Error>,
    },
    Closed {
        sandbox: Handle,
    },
    Warmed {
        zygote: ZygoteId,
        /// What a scout has found, where it was one.
        layout: Option<Layout>,
    },
    /// A zygote could not be made, or has ended.
    Cooled {
        zygote: ZygoteId,
        error: Error,
    },
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Opened {
    /// Whom the files of the workspace belong to, on the host.
    pub uid: u32,
    pub gid: u32,
    /// The plan's files as they were when they had been written.
    pub inputs: Vec<Found>,
    pub report: Report,
    /// What the sandbox uses, unless cgroups were given up.
    pub meter: Option<Meter>,
}

/// How a command ended, all of it measured from outside.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    pub exit: Exit,
    pub timed_out: bool,
    /// How many processes the kernel killed for want of memory.
    pub oom_kills: u64,
    pub wall_micros: u64,
    /// These three are absent where nothing is counted.
    pub cpu_micros: Option<u64>,
    pub memory_peak: Option<u64>,
    pub processes_peak: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    Code(i32),
    Signal(i32),
    /// The program could not be executed; negative: its directory could not be entered.
    NotStarted {
        errno: i32,
    },
    /// The sandbox ended around it.
    Killed,
}
