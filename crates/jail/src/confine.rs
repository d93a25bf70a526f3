//! From a forked child to a fully confined init: one list of steps, in the order that security demands.
//!
//! Everything that needs a privilege comes first, then the privileges go, then the filters that forbid getting any back
//! are locked, and the last act is to replace this process, with all it remembers of the keeper, by the init program.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use belljar_spec::Weakening;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl, openat};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::sys::stat::{Mode as FileMode, umask};
use nix::unistd::{Gid, Uid, setgroups, sethostname, setresgid, setresuid, setsid};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::channel::{Channel, Frame};
use crate::control::Control;
use crate::core::Cores;
use crate::error::{Context, Error, Result, Step};
use crate::plan::{Birth, INNER_ID, Owner, Place, Plan};
use crate::root::{self, Provided, Root};
use crate::{doors, landlock, seccomp, sys};

/// The number at which init finds its control socket.
const CONTROL_FD: RawFd = 3;

/// Who runs Belljar, and so whom the sandbox's code becomes on the host.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// Root: each sandbox is a user of its own that nobody else on the host is.
    Root,
    /// Root, for a sandbox that a zygote may enter: all its namespaces belong to a user namespace of the zygote's user.
    Enterable { by: Owner },
    /// An ordinary user: the sandbox is that user, alone in a user namespace.
    Rootless(Owner),
}

impl Mode {
    /// To whom root gives what it makes; an ordinary user's things are its own already.
    fn given_to(self, owner: Owner) -> Option<Owner> {
        match self {
            Self::Root => Some(owner),
            Self::Enterable { .. } | Self::Rootless(_) => None,
        }
    }

    pub fn is_rootless(self) -> bool {
        matches!(self, Self::Rootless(_))
    }

    /// The namespaces that must be made together with the process.
    ///
    /// As root the user namespace comes last, so that the others belong to the host: no capability that code could ever gain
    /// in its own user namespace counts in them.
    pub fn cloned(self, namespaces: Namespaces) -> i32 {
        let pid = if namespaces.pid {
            libc::CLONE_NEWPID
        } else {
            0
        };
        match self {
            Self::Root => pid,
            Self::Enterable { .. } | Self::Rootless(_) => pid | libc::CLONE_NEWUSER,
        }
    }
}

/// Where a sandbox's network namespace comes from. To make one takes as long as most of the rest.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Network {
    /// The child makes it, unless it shall have none.
    Own,
    /// Somebody makes it meanwhile; it comes last.
    Given,
    /// The child is born in it. Nobody was left there, and only a sandbox without a network can do with it.
    Inherited,
}

/// The namespaces a plan may give up; the others are always there.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespaces {
    pid: bool,
    net: bool,
    ipc: bool,
}

impl Namespaces {
    pub const ALL: Self = Self {
        pid: true,
        net: true,
        ipc: true,
    };

    pub fn of(plan: &Plan) -> Self {
        Self {
            pid: plan.keeps(Weakening::Pidns),
            net: plan.keeps(Weakening::Netns),
            ipc: plan.keeps(Weakening::Ipcns),
        }
    }

    /// Those that the child makes itself, while its parent is busy with other things.
    fn unshared(self, network: Network) -> CloneFlags {
        let mut flags = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS;
        flags.set(
            CloneFlags::CLONE_NEWNET,
            self.net && network == Network::Own,
        );
        flags.set(CloneFlags::CLONE_NEWIPC, self.ipc);
        flags
    }
}

/// A child that is not a sandbox yet. Forked ahead of time, it does what every sandbox needs, then waits for a plan.
pub struct Embryo {
    pub mode: Mode,
    pub namespaces: Namespaces,
    pub network: Network,
    /// It was born with the early part of the filter.
    pub filtered: bool,
    pub control: Control,
    pub cores: Cores,
}

impl Embryo {
    /// Becomes init, or tells the keeper why not and ends.
    pub fn grow(mut self) -> ! {
        if let Err(error) = self.steps() {
            self.control.report_failure(&error);
        }
        std::process::exit(70)
    }

    /// Returns without an error only if the keeper has gone.
    fn steps(&mut self) -> Result<()> {
        sys::die_with_parent().during(Step::Init, "parent-death signal")?;
        sys::reset_signals().during(Step::Init, "signals")?;
        setsid().during(Step::Init, "new session")?;
        // Seccomp takes the calls away; this takes away what they could find.
        match sys::new_session_keyring() {
            // A user without privileges may have 200. The keeper's, which it inherits then, is empty too.
            Err(error)
                if error.raw_os_error() == Some(libc::EDQUOT)
                    && matches!(self.mode, Mode::Rootless(_)) => {}
            joined => joined.during(Step::Init, "keyring")?,
        }
        umask(FileMode::from_bits_truncate(0o022));
        let mut keeper = self.control.listen().during(Step::Init, "control socket")?;
        match self.mode {
            Mode::Root => {}
            Mode::Rootless(owner) => map_user(owner)?,
            Mode::Enterable { .. } => {
                // The keeper says when it has mapped the user that we are from here on, with all rights in this namespace.
                if keeper.wait().during(Step::UserNamespace, "maps")?.is_none() {
                    return Ok(());
                }
                become_inner_user()?;
            }
        }
        unshare(self.namespaces.unshared(self.network))
            .during(Step::Namespaces, "for the sandbox")?;
        sethostname("belljar").during(Step::Namespaces, "host name")?;
        // The host's /proc is about to go away, and the limit can only be set from inside the user namespace.
        let namespace_limits = match self.mode {
            Mode::Enterable { .. } => open_own_namespace_limits(),
            _ => None,
        }
        .map_or_else(open_namespace_limits, Ok)?;
        match self.mode {
            // The rest of it is in a mould as a rule.
            Mode::Enterable { .. } => root::begin()?,
            _ => root::stage()?,
        }
        let Some((mut birth, fds)) = next_order::<Birth>(&mut keeper)? else {
            return Ok(());
        };
        let provided = Provided::from_fds(fds, birth.brings)?;
        if let Mode::Enterable { .. } = self.mode {
            root::go_on(provided.mould())?;
        }
        self.enter_root(&birth, provided)?;
        let Some((place, fds)) = next_order::<Place>(&mut keeper)? else {
            return Ok(());
        };
        if birth.plan.limits.disk_bytes != place.limits.disk_bytes {
            root::resize(&birth.plan, place.limits.disk_bytes)?;
        }
        birth.plan.limits = place.limits;
        let init = self.take_place(&place, fds, birth.plan.network)?;
        if birth.plan.network {
            self.open_doors(&birth.plan.ports)?;
        }
        self.confine(&birth, namespace_limits.as_fd(), init.as_fd())
    }

    fn enter_root(&self, birth: &Birth, provided: Provided) -> Result<()> {
        let plan = &birth.plan;
        let (workspace, inputs) = Root::enter(plan, self.mode.given_to(birth.owner), provided)?;
        let rules = (plan.kept && plan.keeps(Weakening::Landlock))
            .then(|| landlock::rules_for_kernel(plan))
            .transpose()?;
        self.control
            .send_workspace(workspace.as_fd(), &inputs, rules.as_ref().map(AsFd::as_fd))
            .during(Step::Init, "workspace")
    }

    /// Late, because others make these things while the root is made. Returns the image of init.
    fn take_place(&self, place: &Place, fds: Vec<OwnedFd>, wants_network: bool) -> Result<OwnedFd> {
        let mut fds = fds.into_iter();
        let init = fds.next();
        let init =
            init.ok_or_else(|| Error::because(Step::Init, "image", "it was not handed over"))?;
        join_cgroups(fds.by_ref().take(place.cgroup_joins))?;
        let entered = match (self.network, fds.next().filter(|_| place.network)) {
            _ if !self.namespaces.net => Ok(()),
            (Network::Own, _) => Ok(()),
            (Network::Inherited, _) if !wants_network => Ok(()),
            (Network::Given, Some(network)) => setns(network, CloneFlags::CLONE_NEWNET),
            (Network::Given | Network::Inherited, _) => unshare(CloneFlags::CLONE_NEWNET),
        };
        entered.during(Step::Namespaces, "for the sandbox")?;
        Ok(init)
    }

    /// While it may still bind any port.
    fn open_doors(&self, ports: &[u16]) -> Result<()> {
        let sockets = doors::open(ports)?;
        let fds: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
        self.control
            .send_doors(&fds)
            .during(Step::Init, "sockets of the network")
    }

    fn confine(
        &self,
        birth: &Birth,
        namespace_limits: BorrowedFd<'_>,
        init: BorrowedFd<'_>,
    ) -> Result<()> {
        let plan = &birth.plan;
        if let Mode::Root = self.mode {
            become_user(birth.owner)?;
            if plan.keeps(Weakening::Userns) {
                unshare(CloneFlags::CLONE_NEWUSER).during(Step::UserNamespace, "of its own")?;
                map_user(birth.owner)?;
            }
        }
        if plan.keeps(Weakening::Userns) {
            limit_namespace(namespace_limits)?;
        }
        // The keeper of root may look at another user's process before that is init, and has time to.
        if !self.mode.is_rootless() {
            self.control
                .send_placed()
                .during(Step::Init, "control socket")?;
        }
        replace_standard_descriptors()?;
        // Only where the user namespace is given up does the changed user have no capabilities left to drop.
        let has_capabilities = !matches!(self.mode, Mode::Root) || plan.keeps(Weakening::Userns);
        if plan.keeps(Weakening::Capabilities) && has_capabilities {
            sys::drop_capabilities().during(Step::Capabilities, "all sets")?;
        }
        sys::no_new_privileges().during(Step::Capabilities, "no_new_privs")?;
        if plan.keeps(Weakening::Landlock) {
            landlock::restrict(plan)?;
        }
        // A change of identity has cleared it; from here on it stays.
        sys::die_with_parent().during(Step::Init, "parent-death signal")?;
        // The keeper has kept us off its own core, or was itself kept off its parent's.
        self.cores.restore();
        let image = above_reserved(init)?;
        sys::place_descriptor(self.control.as_fd(), CONTROL_FD)
            .during(Step::Init, "control socket")?;
        // Late: we still have the descriptors of a keeper of many sandboxes, and could open nothing more.
        set_resource_limits(plan)?;
        sys::close_on_exec_from(CONTROL_FD + 1).during(Step::Init, "descriptors")?;
        if plan.keeps(Weakening::Seccomp) {
            let missing = if self.filtered {
                seccomp::late(plan.network)
            } else {
                seccomp::filter(plan.network)
            };
            sys::add_seccomp_filter(missing).during(Step::Seccomp, "filter")?;
        }
        // It looks at us while the image is loaded, and what is to run is then told before there is anybody to hear it.
        if !self.mode.is_rootless() {
            self.control
                .send_locked()
                .during(Step::Init, "control socket")?;
        }
        Err(Error::new(
            Step::Init,
            "exec",
            &sys::exec_image(image.as_fd(), c"init"),
        ))
    }
}

/// The next thing that the keeper wants. `None`: nothing, it has gone.
fn next_order<T: DeserializeOwned>(keeper: &mut Channel) -> Result<Option<(T, Vec<OwnedFd>)>> {
    let Some(Frame { bytes, fds }) = keeper.wait().during(Step::Init, "plan")? else {
        return Ok(None);
    };
    let order = serde_json::from_slice(&bytes);
    let order = order.map_err(|error| Error::because(Step::Init, "plan", error))?;
    Ok(Some((order, fds)))
}

/// Joins those that it was not born into.
fn join_cgroups(files: impl Iterator<Item = OwnedFd>) -> Result<()> {
    for file in files {
        File::from(file)
            .write_all(b"0")
            .during(Step::Cgroup, "membership")?;
    }
    // After joining, so that the sandbox sees its own group as the root.
    unshare(CloneFlags::CLONE_NEWCGROUP).during(Step::Namespaces, "cgroup")
}

/// Makes a network namespace and stays out of it, unless one was made before anything else.
pub fn make_network() -> io::Result<OwnedFd> {
    if let Some(early) = sys::early_network() {
        return Ok(early);
    }
    let current = || File::open("/proc/thread-self/ns/net");
    let ours = current()?;
    unshare(CloneFlags::CLONE_NEWNET)?;
    let made = current();
    setns(ours, CloneFlags::CLONE_NEWNET)?;
    Ok(made?.into())
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

/// Moves this process into a user namespace in which it is who it was.
pub fn enter_user_namespace(owner: Owner) -> Result<()> {
    unshare(CloneFlags::CLONE_NEWUSER).during(Step::UserNamespace, "of the keeper")?;
    let write = |file: &str, text: String| {
        let path = format!("/proc/self/{file}");
        fs::write(&path, text).during(Step::UserNamespace, path)
    };
    write("setgroups", "deny".into())?;
    write("uid_map", format!("{0} {0} 1", owner.uid))?;
    write("gid_map", format!("{0} {0} 1", owner.gid))
}

/// In a user namespace that maps nobody but the sandbox's user, changing to it loses no capability.
fn become_inner_user() -> Result<()> {
    let (uid, gid) = (Uid::from_raw(INNER_ID), Gid::from_raw(INNER_ID));
    setresgid(gid, gid, gid).during(Step::Identity, gid)?;
    setresuid(uid, uid, uid).during(Step::Identity, uid)
}

pub fn become_user(owner: Owner) -> Result<()> {
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
    fs::OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .during(Step::UserNamespace, path.display())
}

/// The same where there may be thousands of others. In the host's /proc each of them has a file of this name, and the kernel
/// looks at all of them to find ours. `None` where this may not be.
fn open_own_namespace_limits() -> Option<File> {
    let proc = sys::detached_file_system(c"proc").ok()?;
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let limits = openat(proc, "sys/user", flags, FileMode::empty()).ok()?;
    Some(limits.into())
}

/// What a user namespace may have. Seccomp forbids nested ones too; this holds even where a filter has a hole.
///
/// The others are counted for whoever made the namespace as well, and that may be one user for many sandboxes: the zygote's, or
/// the one who runs Belljar. Without a limit here one sandbox could have all that this user may have.
const NAMESPACE_LIMITS: [(&str, &str); 3] = [
    ("max_user_namespaces", "0"),
    ("max_inotify_instances", "16"),
    ("max_inotify_watches", "8192"),
];

fn limit_namespace(limits: BorrowedFd<'_>) -> Result<()> {
    for (name, value) in NAMESPACE_LIMITS {
        let flags = OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        match openat(limits, name, flags, FileMode::empty()) {
            // A kernel without inotify.
            Err(Errno::ENOENT) if name.contains("inotify") => {}
            file => file
                .map_err(io::Error::from)
                .and_then(|file| File::from(file).write_all(value.as_bytes()))
                .during(Step::UserNamespace, name)?,
        }
    }
    Ok(())
}

/// What each process of the sandbox may use, by resource.
pub fn resource_limits(plan: &Plan) -> Vec<(u32, u64)> {
    let mut all = vec![(Resource::RLIMIT_CORE, 0)];
    if plan.keeps(Weakening::Rlimits) {
        let limits = &plan.limits;
        all.extend([
            (Resource::RLIMIT_NOFILE, limits.open_files),
            (Resource::RLIMIT_FSIZE, limits.disk_bytes),
            (Resource::RLIMIT_MEMLOCK, 0),
            (Resource::RLIMIT_MSGQUEUE, 64 << 10),
            (Resource::RLIMIT_NICE, 0),
            (Resource::RLIMIT_RTPRIO, 0),
            (Resource::RLIMIT_SIGPENDING, 4096),
            // A second fence beside pids.max: counted per user and user namespace, and both are the sandbox's own.
            (Resource::RLIMIT_NPROC, limits.processes + 1),
        ]);
        if !plan.keeps(Weakening::Cgroups) {
            // Per process, and so a poor substitute, but all there is without a memory cgroup.
            all.push((Resource::RLIMIT_DATA, limits.memory_bytes));
        }
    }
    // Only a privileged process could have more than it was born with. Less is as good a fence.
    let most = |resource| getrlimit(resource).map_or(RLIM_INFINITY, |(_, most)| most);
    all.into_iter()
        .map(|(resource, value)| (resource as u32, value.min(most(resource))))
        .collect()
}

pub fn set_resource_limits(plan: &Plan) -> Result<()> {
    resource_limits(plan)
        .into_iter()
        .try_for_each(|(resource, value)| sys::set_resource_limit(resource, value))
        .during(Step::Identity, "resource limits")
}

/// The keeper's standard descriptors may be a terminal; init and what it forgets to replace get `/dev/null`.
pub fn replace_standard_descriptors() -> Result<()> {
    let null = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")
        .during(Step::Init, "/dev/null")?;
    (0..3)
        .try_for_each(|fd| sys::place_descriptor(&null, fd))
        .during(Step::Init, "standard descriptors")
}

/// Moves a descriptor out of the way of the numbers that init reserves.
fn above_reserved(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
    let moved =
        fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(CONTROL_FD + 7)).during(Step::Init, "descriptors")?;
    debug_assert!(moved > fd.as_raw_fd().min(CONTROL_FD));
    sys::adopt(moved).during(Step::Init, "descriptors")
}
