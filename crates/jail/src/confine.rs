//! From a forked child to a fully confined init: one list of steps, in the order that security demands.
//!
//! Everything that needs a privilege comes first, then the privileges go, then the filters that forbid getting any back
//! are locked, and the last act is to replace this process, with all it remembers of the keeper, by the init program.

use std::convert::Infallible;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use belljar_spec::Weakening;
use nix::fcntl::{FcntlArg, OFlag, fcntl, openat};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::stat::{Mode as FileMode, umask};
use nix::unistd::{Gid, Uid, setgroups, sethostname, setresgid, setresuid, setsid};

use crate::channel::Control;
use crate::error::{Context, Error, Result, Step};
use crate::idmap::IdMaps;
use crate::plan::{INNER_ID, Plan};
use crate::root::{Owner, Root};
use crate::{landlock, seccomp, sys};

/// The number at which init finds its control socket.
const CONTROL_FD: RawFd = 3;

/// Who runs Belljar, and so whom the sandbox's code becomes on the host.
#[derive(Clone, Copy)]
pub enum Mode {
    /// Root: each sandbox is a user of its own that nobody else on the host is.
    Root(Owner),
    /// An ordinary user: the sandbox is that user, alone in a user namespace.
    Rootless(Owner),
}

impl Mode {
    pub fn owner(self) -> Owner {
        let (Self::Root(owner) | Self::Rootless(owner)) = self;
        owner
    }

    /// To whom root gives what it makes; an ordinary user's things are its own already.
    fn given_to(self) -> Option<Owner> {
        match self {
            Self::Root(owner) => Some(owner),
            Self::Rootless(_) => None,
        }
    }

    /// The namespaces made together with the process.
    pub fn namespaces(self, plan: &Plan) -> i32 {
        let mut flags = libc::CLONE_NEWNS | libc::CLONE_NEWUTS;
        for (protection, flag) in [
            (Weakening::Pidns, libc::CLONE_NEWPID),
            (Weakening::Netns, libc::CLONE_NEWNET),
            (Weakening::Ipcns, libc::CLONE_NEWIPC),
        ] {
            if plan.keeps(protection) {
                flags |= flag;
            }
        }
        // As root the user namespace comes last, so that the others belong to the host: no capability that code could
        // ever gain in its own user namespace counts in them.
        if matches!(self, Self::Rootless(_)) { flags | libc::CLONE_NEWUSER } else { flags }
    }
}

pub struct Confinement<'a> {
    pub plan: &'a Plan,
    pub mode: Mode,
    pub id_maps: &'a IdMaps,
    pub cgroup_joins: &'a [OwnedFd],
    pub init: BorrowedFd<'a>,
    pub control: Control,
}

impl Confinement<'_> {
    /// Becomes init, or tells the keeper why not and ends.
    pub fn enter(mut self) -> ! {
        let Err(error) = self.steps();
        self.control.report_failure(&error);
        std::process::exit(70)
    }

    fn steps(&mut self) -> Result<Infallible> {
        let plan = self.plan;
        sys::die_with_parent().during(Step::Init, "parent-death signal")?;
        sys::reset_signals().during(Step::Init, "signals")?;
        setsid().during(Step::Init, "new session")?;
        umask(FileMode::from_bits_truncate(0o022));
        self.join_cgroups()?;
        if let Mode::Rootless(owner) = self.mode {
            map_user(owner)?;
        }
        sethostname("belljar").during(Step::Namespaces, "host name")?;
        // The host's /proc is about to go away, and the limit can only be set from inside the user namespace.
        let namespace_limits = open_namespace_limits()?;
        let workspace = Root::enter(plan, self.mode.given_to(), self.id_maps)?;
        self.control.send_workspace(workspace.as_fd()).during(Step::Init, "workspace")?;
        if let Mode::Root(owner) = self.mode {
            become_user(owner)?;
            if plan.keeps(Weakening::Userns) {
                unshare(CloneFlags::CLONE_NEWUSER).during(Step::UserNamespace, "of its own")?;
                map_user(owner)?;
            }
        }
        if plan.keeps(Weakening::Userns) {
            forbid_user_namespaces(namespace_limits.as_fd())?;
        }
        set_resource_limits(plan)?;
        replace_standard_descriptors()?;
        if plan.keeps(Weakening::Capabilities) && self.has_capabilities() {
            sys::drop_capabilities().during(Step::Capabilities, "all sets")?;
        }
        sys::no_new_privileges().during(Step::Capabilities, "no_new_privs")?;
        if plan.keeps(Weakening::Landlock) {
            landlock::restrict(plan)?;
        }
        // A change of identity has cleared it; from here on it stays.
        sys::die_with_parent().during(Step::Init, "parent-death signal")?;
        let image = above_reserved(self.init)?;
        sys::place_descriptor(self.control.as_fd(), CONTROL_FD).during(Step::Init, "control socket")?;
        sys::close_on_exec_from(CONTROL_FD + 1).during(Step::Init, "descriptors")?;
        if plan.keeps(Weakening::Seccomp) {
            sys::add_seccomp_filter(seccomp::filter(plan.network)).during(Step::Seccomp, "filter")?;
        }
        Err(Error::new(Step::Init, "exec", &sys::exec_image(image.as_fd(), c"init")))
    }

    fn join_cgroups(&self) -> Result<()> {
        for file in self.cgroup_joins {
            let mut file = File::from(file.try_clone().during(Step::Cgroup, "membership")?);
            file.write_all(b"0").during(Step::Cgroup, "membership")?;
        }
        // After joining, so that the sandbox sees its own group as the root.
        unshare(CloneFlags::CLONE_NEWCGROUP).during(Step::Namespaces, "cgroup")
    }

    /// Only where the user namespace is given up does the changed user have no capabilities left to drop.
    fn has_capabilities(&self) -> bool {
        matches!(self.mode, Mode::Rootless(_)) || self.plan.keeps(Weakening::Userns)
    }
}

/// Maps one user and one group, and gives up supplementary groups for good.
fn map_user(owner: Owner) -> Result<()> {
    let write = |file: &str, text: String| {
        let path = format!("/proc/self/{file}");
        fs::write(&path, text).during(Step::UserNamespace, path)
    };
    write("setgroups", "deny".into())?;
    write("uid_map", format!("{INNER_ID} {} 1", owner.uid))?;
    write("gid_map", format!("{INNER_ID} {} 1", owner.gid))
}

fn become_user(owner: Owner) -> Result<()> {
    let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
    setgroups(&[]).during(Step::Identity, "no supplementary groups")?;
    setresgid(gid, gid, gid).during(Step::Identity, gid)?;
    setresuid(uid, uid, uid).during(Step::Identity, uid)?;
    // Otherwise /proc/self belongs to root and the maps cannot be written; nobody else is this user.
    sys::set_dumpable(true).during(Step::Identity, uid)
}

fn open_namespace_limits() -> Result<File> {
    let path = Path::new("/proc/sys/user");
    let flags = libc::O_PATH | libc::O_DIRECTORY;
    fs::OpenOptions::new().read(true).custom_flags(flags).open(path).during(Step::UserNamespace, path.display())
}

/// Seccomp forbids nested user namespaces too; this holds even where a filter has a hole.
fn forbid_user_namespaces(limits: BorrowedFd<'_>) -> Result<()> {
    let file = openat(limits, "max_user_namespaces", OFlag::O_WRONLY | OFlag::O_CLOEXEC, FileMode::empty());
    let write = |file: OwnedFd| File::from(file).write_all(b"0");
    file.map_err(io::Error::from).and_then(write).during(Step::UserNamespace, "max_user_namespaces")
}

fn set_resource_limits(plan: &Plan) -> Result<()> {
    let set = |resource, value| setrlimit(resource, value, value).during(Step::Identity, "resource limits");
    set(Resource::RLIMIT_CORE, 0)?;
    if !plan.keeps(Weakening::Rlimits) {
        return Ok(());
    }
    let limits = &plan.limits;
    set(Resource::RLIMIT_NOFILE, limits.open_files.into())?;
    set(Resource::RLIMIT_FSIZE, limits.disk_bytes)?;
    set(Resource::RLIMIT_MEMLOCK, 0)?;
    set(Resource::RLIMIT_MSGQUEUE, 64 << 10)?;
    set(Resource::RLIMIT_NICE, 0)?;
    set(Resource::RLIMIT_RTPRIO, 0)?;
    set(Resource::RLIMIT_SIGPENDING, 4096)?;
    // A second fence beside pids.max: counted per user and user namespace, and both are the sandbox's own.
    set(Resource::RLIMIT_NPROC, u64::from(limits.processes) + 1)?;
    if !plan.keeps(Weakening::Cgroups) {
        // Per process, and so a poor substitute, but all there is without a memory cgroup.
        set(Resource::RLIMIT_DATA, limits.memory_bytes)?;
    }
    Ok(())
}

/// The keeper's standard descriptors may be a terminal; init and what it forgets to replace get `/dev/null`.
fn replace_standard_descriptors() -> Result<()> {
    let null = fs::OpenOptions::new().read(true).write(true).open("/dev/null").during(Step::Init, "/dev/null")?;
    (0..3).try_for_each(|fd| sys::place_descriptor(&null, fd)).during(Step::Init, "standard descriptors")
}

/// Moves a descriptor out of the way of the numbers that init reserves.
fn above_reserved(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
    let moved = fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(CONTROL_FD + 7)).during(Step::Init, "descriptors")?;
    debug_assert!(moved > fd.as_raw_fd().min(CONTROL_FD));
    sys::adopt(moved).during(Step::Init, "descriptors")
}
