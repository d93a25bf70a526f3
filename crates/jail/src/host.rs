//! What this kernel and this user can do, asked by trying.

use std::io;
use std::os::fd::AsFd;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, geteuid};

use crate::cgroup::Layout;
pub use crate::cgroup::availability as cgroups;
use crate::kernel_file;
pub use crate::landlock::FLOOR as LANDLOCK_FLOOR;
use crate::sys::{self, Side};
pub use crate::sys::{has_seccomp, landlock_abi};

/// The namespaces a sandbox has, with what each keeps apart.
pub const NAMESPACES: [(&str, &str); 7] = [
    ("user", "the code is nobody on this host"),
    ("mnt", "the code sees only the files it is given"),
    ("pid", "the code sees and signals only its own processes"),
    ("net", "the code has no network"),
    ("ipc", "shared memory and message queues are its own"),
    ("uts", "the host name is its own"),
    ("cgroup", "the code does not see where it is counted"),
];

pub fn is_root() -> bool {
    geteuid().is_root()
}

pub fn effective_user() -> u32 {
    geteuid().as_raw()
}

/// All the memory that there is, in bytes.
pub fn memory() -> Option<u64> {
    nix::sys::sysinfo::sysinfo()
        .ok()
        .map(|told| told.ram_total())
}

/// Whether a cgroup can be killed as one: Linux 5.14, with a version 2 hierarchy mounted.
pub fn has_group_kill() -> bool {
    let release = kernel_file::read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|word| word.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= (5, 14) && Layout::read().is_ok_and(|layout| layout.v2.is_some())
}

/// Whether the controllers are those of cgroup version 1, which no ordinary user is ever given.
pub fn has_old_cgroups() -> bool {
    Layout::read().is_ok_and(|layout| !layout.has_v2_controllers() && !layout.v1.is_empty())
}

/// Makes a process in a new namespace of this kind and lets it go. Must be called while there is a single thread.
pub fn try_namespace(name: &str) -> io::Result<()> {
    let flag = match name {
        "user" => libc::CLONE_NEWUSER,
        "mnt" => libc::CLONE_NEWNS,
        "pid" => libc::CLONE_NEWPID,
        "net" => libc::CLONE_NEWNET,
        "ipc" => libc::CLONE_NEWIPC,
        "uts" => libc::CLONE_NEWUTS,
        "cgroup" => libc::CLONE_NEWCGROUP,
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    };
    // Ordinary users get the others only inside a user namespace of their own.
    let flags = if is_root() {
        flag
    } else {
        flag | libc::CLONE_NEWUSER
    };
    match sys::fork(flags, None)? {
        Side::Child => std::process::exit(0),
        Side::Parent { pid, pidfd } => {
            let _ = sys::signal_process(pidfd.as_fd(), libc::SIGKILL);
            waitpid(Pid::from_raw(pid), None)?;
            Ok(())
        }
    }
}

/// When the host itself has no memory left, this process and what it starts go before anything else does. The kernel lets nobody take
/// that back.
pub fn go_first(pid: i32) {
    let _ = std::fs::write(format!("/proc/{pid}/oom_score_adj"), "500");
}

/// How many files this process may have open.
pub fn open_files() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(now, _)| now)
}

/// How many files any process of this one's may have open, sandboxes included.
pub fn most_open_files() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(_, most)| most)
}

/// As many open files as the host lets this process have. That it cannot have more is no error: it then serves fewer.
pub fn raise_open_files() {
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
}

/// No limit on what the kernel counts per user. What a sandbox has of it is counted once more for whoever made its user namespace,
/// and held against the limits that this process had then: those of a sandbox's own come later. Only root can.
pub fn raise_counts_of_users() {
    let counted = [
        Resource::RLIMIT_NPROC,
        Resource::RLIMIT_SIGPENDING,
        Resource::RLIMIT_MSGQUEUE,
    ];
    for resource in counted {
        let _ = setrlimit(resource, RLIM_INFINITY, RLIM_INFINITY);
    }
}
