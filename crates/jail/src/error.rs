//! A step of the jail that failed: which, on what, and the kernel's reason.

use std::fmt::Display;
use std::io;

use serde::{Deserialize, Serialize};

/// Serialisable, because it is made in the half-confined child and read by the engine.
#[derive(Clone, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{step} {subject}: {reason}")]
pub struct Error {
    pub step: Step,
    pub subject: String,
    pub reason: String,
    pub errno: Option<i32>,
}

/// The steps that a host may refuse; advice on each is keyed by this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    Keeper,
    Cgroup,
    Namespaces,
    Network,
    UserNamespace,
    Mount,
    Proc,
    Volume,
    File,
    Overlay,
    Identity,
    Landlock,
    Seccomp,
    Capabilities,
    Init,
    Verify,
    Command,
    /// What runs in the sandbox already leaves no room for more.
    Busy,
    Zygote,
}

impl Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Keeper => "cannot start the keeper",
            Self::Cgroup => "cannot set up cgroups:",
            Self::Namespaces => "cannot create the namespaces",
            Self::Network => "cannot make the network's",
            Self::UserNamespace => "cannot set up the user namespace",
            Self::Mount => "cannot mount",
            Self::Proc => "cannot mount /proc for",
            Self::Volume => "cannot mount the volume",
            Self::File => "cannot write the file",
            Self::Overlay => "cannot lay a writable layer over",
            Self::Identity => "cannot change identity to",
            Self::Landlock => "cannot apply Landlock rules:",
            Self::Seccomp => "cannot install the seccomp filter:",
            Self::Capabilities => "cannot drop capabilities:",
            Self::Init => "cannot start the sandbox's init:",
            Self::Verify => "the sandbox is not confined as it must be:",
            Self::Command | Self::Busy => "cannot start",
            Self::Zygote => "cannot use a warm interpreter:",
        })
    }
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn new(step: Step, subject: impl Display, source: &io::Error) -> Self {
        Self {
            step,
            subject: subject.to_string(),
            reason: source.to_string(),
            errno: source.raw_os_error(),
        }
    }

    pub fn because(step: Step, subject: impl Display, reason: impl Display) -> Self {
        Self {
            step,
            subject: subject.to_string(),
            reason: reason.to_string(),
            errno: None,
        }
    }
}

/// Names the step at the place where an `io` or `nix` error appears.
pub trait Context<T> {
    fn during(self, step: Step, subject: impl Display) -> Result<T>;
}

impl<T> Context<T> for io::Result<T> {
    fn during(self, step: Step, subject: impl Display) -> Result<T> {
        self.map_err(|source| Error::new(step, subject, &source))
    }
}

impl<T> Context<T> for nix::Result<T> {
    fn during(self, step: Step, subject: impl Display) -> Result<T> {
        self.map_err(|errno| Error::new(step, subject, &errno.into()))
    }
}
