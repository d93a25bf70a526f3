//! What to do when the host refuses a step of the jail: the setting that is missing, and how to turn it on.

use std::fs;
use std::io;
use std::path::Path;

use belljar_jail::{Error as JailError, Step, host};
use belljar_spec::{Error, Weakening};

use crate::files;

/// Turns a failed step into a sentence that tells a person what to do.
pub fn explain(error: &JailError) -> Error {
    let weaken = match error.step {
        Step::Cgroup => Some(Weakening::Cgroups),
        Step::Landlock => Some(Weakening::Landlock),
        Step::Seccomp => Some(Weakening::Seccomp),
        _ => None,
    };
    let (missing, fix) = match error.step {
        Step::Cgroup => (
            "limits on memory, CPU and processes (cgroups)",
            cgroup_fix(),
        ),
        Step::UserNamespace | Step::Namespaces => ("namespaces", namespace_fix()),
        Step::Proc => ("a private /proc", PROC_FIX.to_owned()),
        // EPERM and EACCES: what is inside cannot be looked at.
        Step::Verify if matches!(error.errno, Some(1 | 13)) => {
            ("a look at sandboxes from outside", look_fix())
        }
        Step::Landlock => ("Landlock", LANDLOCK_FIX.to_owned()),
        Step::Seccomp => ("seccomp filters", SECCOMP_FIX.to_owned()),
        Step::Overlay => ("a writable layer over the root", OVERLAY_FIX.to_owned()),
        Step::Busy => {
            return Error::Conflict {
                reason: error.to_string(),
            };
        }
        // E2BIG.
        Step::Command if error.errno == Some(7) => {
            return Error::MalformedField {
                field: "env".into(),
                reason: "the arguments and the environment are longer than any program takes"
                    .into(),
            };
        }
        Step::Volume => return volume(error),
        Step::File => {
            return files::refused(
                &error.subject,
                &io::Error::from_raw_os_error(error.errno.unwrap_or(0)),
            );
        }
        Step::Keeper
        | Step::Mount
        | Step::Network
        | Step::Identity
        | Step::Capabilities
        | Step::Init
        | Step::Verify
        | Step::Command
        | Step::Zygote => {
            return Error::internal(format!("{} {}", error.step, error.subject), &error.reason);
        }
    };
    Error::UnsupportedHost {
        missing: missing.into(),
        reason: error.to_string(),
        fix,
        weaken,
    }
}

const PROC_FIX: &str = "inside a container start it with `--security-opt systempaths=unconfined` (Docker, Podman), which \
     unmasks /proc; a new /proc cannot be mounted while the host's is partly hidden";
pub const LANDLOCK_FIX: &str = "use Linux 5.19 or later with `landlock` in the kernel's `lsm=` list (see \
     /sys/kernel/security/lsm; under WSL put `kernelCommandLine = lsm=landlock,yama` into .wslconfig)";
pub const SECCOMP_FIX: &str = "use a kernel built with CONFIG_SECCOMP_FILTER";
const OVERLAY_FIX: &str = "use a kernel with overlayfs (`modprobe overlay`; 5.11 or later for ordinary users, 5.19 or later \
     for root), or leave the root read-only";

fn volume(error: &JailError) -> Error {
    let accepted = if error.errno == Some(22) {
        "its file system cannot be id-mapped (needs ext4, xfs, btrfs, tmpfs or the like on Linux 5.12 or later); run as the \
         user who owns it instead"
            .to_owned()
    } else if error.errno == Some(40) {
        "its path has a link in it, which was not there when it was named".to_owned()
    } else {
        format!("it cannot be mounted: {}", error.reason)
    };
    Error::InvalidVolume {
        given: belljar_spec::shown(&error.subject),
        accepted,
    }
}

pub fn cgroup_fix() -> String {
    if host::has_old_cgroups() && !host::is_root() {
        return "run it as root, or boot with `systemd.unified_cgroup_hierarchy=1` (cgroup v1 is not delegated to ordinary \
                users)"
            .into();
    }
    if Path::new("/.dockerenv").exists() || Path::new("/run/.containerenv").exists() {
        return "start the container with `--cgroupns=private --privileged`, or with /sys/fs/cgroup mounted writable"
            .into();
    }
    if fs::metadata("/run/systemd/system").is_ok() {
        return "run it in a delegated scope, `systemd-run --user --scope -p Delegate=yes belljar …`, after \
                `loginctl enable-linger $USER` if there is no user manager (and with `Delegate=cpu memory pids` for \
                user@.service where systemd is older than 252), or as root"
            .into();
    }
    "run it as root, or have root delegate a cgroup v2 subtree (`mkdir /sys/fs/cgroup/NAME && chown -R USER \
     /sys/fs/cgroup/NAME`) and start it inside"
        .into()
}

const CONTAINER_FIX: &str = "start the container with `--privileged`, or with `--cap-add SYS_ADMIN --cap-add SYS_PTRACE \
     --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined -v \
     /sys/fs/cgroup:/sys/fs/cgroup:rw` (what it may by default forbids new namespaces)";

fn in_container() -> bool {
    Path::new("/.dockerenv").exists() || Path::new("/run/.containerenv").exists()
}

fn look_fix() -> String {
    if in_container() {
        return CONTAINER_FIX.into();
    }
    "give it CAP_SYS_PTRACE, which root usually has".into()
}

pub fn namespace_fix() -> String {
    let setting = |path: &str| {
        fs::read_to_string(path)
            .map(|text| text.trim().to_owned())
            .unwrap_or_default()
    };
    if setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1" {
        return "`sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0` (Ubuntu forbids user namespaces to programs \
                without an AppArmor profile), or run it as root"
            .into();
    }
    if setting("/proc/sys/kernel/unprivileged_userns_clone") == "0" {
        return "`sudo sysctl kernel.unprivileged_userns_clone=1`, or run it as root".into();
    }
    if setting("/proc/sys/user/max_user_namespaces") == "0" {
        return "`sudo sysctl user.max_user_namespaces=10000`".into();
    }
    if in_container() {
        return CONTAINER_FIX.into();
    }
    "use a kernel with user, pid, net, ipc, uts and cgroup namespaces, and check that no seccomp or LSM policy around this \
     process forbids them; `belljar doctor` shows which"
        .into()
}
