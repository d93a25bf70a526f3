//! From a forked child to a zygote: an interpreter without privileges that can be copied into sandboxes.
//!
//! It sees the root that its sandboxes see, has no network, and is a user of its own. That user owns the sandboxes' user
//! namespaces, which is all that lets it enter them; on the host it may do nothing.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode as FileMode, umask};
use nix::unistd::{chdir, execve, setsid};

use crate::confine::{self, Mode};
use crate::error::{Context, Error, Result, Step};
use crate::idmap::IdMaps;
use crate::plan::{Command, Owner, Plan};
use crate::protocol::Laying;
use crate::root::{self, Provided, Root};
use crate::{seccomp, sys};

/// Where the interpreter finds its orders, and the library that carries them out.
const CONTROL_FD: RawFd = 3;
const LIBRARY: &str = "/tmp/belljar-zygote.so";
/// That library. What it knows of objects is for its own kind.
pub const COPIER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/zygote.so"));
/// Where that finds a layout. There is none for an interpreter that needs none, and an empty one for a scout.
const LAYOUT: &str = "/tmp/belljar-layout";
/// Loads the library ahead of the interpreter, which must not have asked for memory yet.
const PRELOAD: &str = "LD_PRELOAD";

/// Refuses a scout where it would find nothing, or what it finds would be of no use.
pub fn may_scout(mode: Mode, env: &[(String, String)]) -> Result<()> {
    let why = if !cfg!(target_arch = "x86_64") {
        "only x86-64 lets a process see each of its writes"
    } else if matches!(mode, Mode::Rootless(_)) {
        "an ordinary user's interpreters do not see their own memory"
    } else if preloads(env) {
        "something else is to be loaded ahead of the interpreter"
    } else {
        return Ok(());
    };
    Err(Error::because(Step::Zygote, "a scout", why))
}

/// Whether something else is to be loaded ahead, which may have allocators of its own.
fn preloads(env: &[(String, String)]) -> bool {
    env.iter().any(|(name, _)| name == PRELOAD)
}

pub struct Zygote<'a> {
    pub plan: &'a Plan,
    pub command: &'a Command,
    /// Whom root makes it; an ordinary user's is that user.
    pub owner: Option<Owner>,
    pub cgroup_joins: &'a [OwnedFd],
    pub control: BorrowedFd<'a>,
    pub laying: &'a Laying,
}

impl Zygote<'_> {
    /// Returns only if that failed.
    pub fn become_interpreter(&self) -> Error {
        match self.steps() {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    fn steps(&self) -> Result<std::convert::Infallible> {
        sys::die_with_parent().during(Step::Zygote, "parent-death signal")?;
        sys::reset_signals().during(Step::Zygote, "signals")?;
        setsid().during(Step::Zygote, "new session")?;
        match sys::new_session_keyring() {
            // A user without privileges may have 200. The keeper's, which it inherits then, is empty too.
            Err(error) if error.raw_os_error() == Some(libc::EDQUOT) && self.owner.is_none() => {}
            joined => joined.during(Step::Zygote, "keyring")?,
        }
        umask(FileMode::from_bits_truncate(0o022));
        for file in self.cgroup_joins {
            let mut file = File::from(file.try_clone().during(Step::Cgroup, "membership")?);
            file.write_all(b"0").during(Step::Cgroup, "membership")?;
        }
        // Not the process namespace: it must be above those of its sandboxes.
        let namespaces = CloneFlags::CLONE_NEWNS
            | CloneFlags::CLONE_NEWNET
            | CloneFlags::CLONE_NEWIPC
            | CloneFlags::CLONE_NEWUTS;
        unshare(namespaces).during(Step::Namespaces, "of a zygote")?;
        root::stage_for_zygote(self.owner.is_some())?;
        let maps = Provided::IdMaps(IdMaps::default());
        drop(Root::enter(self.plan, self.owner, maps)?);
        if let Some(owner) = self.owner {
            confine::become_user(owner)?;
        }
        // Only what no sandbox has more of: a copy can lower its limits, never raise them.
        sys::set_resource_limit(libc::RLIMIT_CORE, 0).during(Step::Zygote, "core dumps")?;
        confine::replace_standard_descriptors()?;
        // As a file: not every zygote has a /proc through which a descriptor could be loaded.
        fs::write(LIBRARY, COPIER).during(Step::Zygote, LIBRARY)?;
        if let Some(layout) = self.layout() {
            fs::write(LAYOUT, layout).during(Step::Zygote, LAYOUT)?;
        }
        if self.owner.is_none() {
            sys::drop_capabilities().during(Step::Capabilities, "all sets")?;
        }
        sys::no_new_privileges().during(Step::Capabilities, "no_new_privs")?;
        // Its copies inherit it, and have only the rest to have translated.
        sys::add_seccomp_filter(seccomp::early()).during(Step::Seccomp, "early part")?;
        sys::die_with_parent().during(Step::Zygote, "parent-death signal")?;
        self.exec()
    }

    fn layout(&self) -> Option<&[u8]> {
        match self.laying {
            Laying::Laid(layout) if !preloads(&self.command.env) => Some(layout),
            Laying::Scout => Some(&[]),
            _ => None,
        }
    }

    fn exec(&self) -> Result<std::convert::Infallible> {
        sys::place_descriptor(self.control, CONTROL_FD).during(Step::Zygote, "descriptors")?;
        sys::close_on_exec_from(CONTROL_FD + 1).during(Step::Zygote, "descriptors")?;
        chdir("/").during(Step::Zygote, "/")?;
        let text = |text: String| {
            CString::new(text).map_err(|error| Error::because(Step::Zygote, "command", error))
        };
        let argv = self.command.argv.iter().cloned().map(text);
        let argv = argv.collect::<Result<Vec<_>>>()?;
        let preload = self.layout().map(|_| (PRELOAD.into(), LIBRARY.into()));
        let env = self.command.env.iter().chain(preload.as_ref());
        let env = env.map(|(name, value)| text(format!("{name}={value}")));
        let env = env.collect::<Result<Vec<_>>>()?;
        let program = argv
            .first()
            .ok_or_else(|| Error::because(Step::Zygote, "command", "it is empty"))?;
        execve(program, &argv, &env).during(Step::Zygote, program.to_string_lossy())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scout_is_sent_where_it_can_find_something() {
        let user = Mode::Rootless(Owner { uid: 7, gid: 7 });
        let env = |name: &str| [(name.to_owned(), "/usr/lib/malloc.so".to_owned())];
        let usual = may_scout(Mode::Root, &env("MALLOC"));
        assert_eq!(usual.is_ok(), cfg!(target_arch = "x86_64"), "{usual:?}");
        assert!(may_scout(user, &env("MALLOC")).is_err());
        assert!(may_scout(Mode::Root, &env(PRELOAD)).is_err());
    }
}
