//! Named weakenings: each protection that may be left out only by saying so, and that then shows in the report.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, nearest};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Weakening {
    Cgroups,
    Seccomp,
    Landlock,
    Userns,
    Pidns,
    Netns,
    Ipcns,
    Mounts,
    Capabilities,
    Rlimits,
}

impl Weakening {
    pub const ALL: [Self; 10] = [
        Self::Cgroups,
        Self::Seccomp,
        Self::Landlock,
        Self::Userns,
        Self::Pidns,
        Self::Netns,
        Self::Ipcns,
        Self::Mounts,
        Self::Capabilities,
        Self::Rlimits,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Cgroups => "cgroups",
            Self::Seccomp => "seccomp",
            Self::Landlock => "landlock",
            Self::Userns => "userns",
            Self::Pidns => "pidns",
            Self::Netns => "netns",
            Self::Ipcns => "ipcns",
            Self::Mounts => "mounts",
            Self::Capabilities => "capabilities",
            Self::Rlimits => "rlimits",
        }
    }

    /// After how to provide the protection: how a command does without.
    pub fn instead(self) -> String {
        format!("; or give it up with `--weaken {}`", self.name())
    }

    /// What is lost without the protection.
    pub fn doc(self) -> &'static str {
        match self {
            Self::Cgroups => {
                "no limit on memory, CPU and processes of the sandbox as a whole, and no count of them"
            }
            Self::Seccomp => "the whole system call interface of the kernel can be reached",
            Self::Landlock => "files and sockets are guarded by mounts and namespaces alone",
            Self::Userns => "the code runs in the user namespace of its caller",
            Self::Pidns => {
                "other processes of the host can be seen, and survivors are harder to end"
            }
            Self::Netns => "the network of the host can be reached",
            Self::Ipcns => "System V IPC and message queues of the host can be reached",
            Self::Mounts => "the files of the host can be reached",
            Self::Capabilities => "the capabilities of the caller are kept",
            Self::Rlimits => {
                "no limit on open files, file size, locked memory and core dumps of each process"
            }
        }
    }
}

impl fmt::Display for Weakening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Weakening {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL
            .into_iter()
            .find(|w| w.name() == text)
            .ok_or_else(|| {
                let names = Self::ALL.map(Self::name);
                let hint = nearest(text, names)
                    .map(|name| format!(" (did you mean {name}?)"))
                    .unwrap_or_default();
                Error::invalid_request(
                    "weaken",
                    text,
                    format!("give one of {}{hint}", names.join(", ")),
                )
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back_and_match_json() {
        for weakening in Weakening::ALL {
            assert_eq!(weakening.to_string().parse(), Ok(weakening));
            assert_eq!(
                serde_json::to_string(&weakening).unwrap(),
                format!("\"{weakening}\"")
            );
        }
        let error = "secomp".parse::<Weakening>().unwrap_err().to_string();
        assert!(error.contains("did you mean seccomp?"), "{error}");
        assert!("".parse::<Weakening>().is_err());
    }
}
