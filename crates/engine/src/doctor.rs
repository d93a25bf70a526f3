//! What this host can enforce: each protection tried or read, why it matters, and how to turn it on.

use std::fs;
use std::path::{Path, PathBuf};

use belljar_jail::host::{self, LANDLOCK_FLOOR, NAMESPACES};
use belljar_jail::{Plan, seccomp};
use belljar_spec::{Error, LimitsPatch, Network, WORKSPACE, Weakening};
use serde::Serialize;

use crate::advice;
use crate::docker;
use crate::engine::Engine;
use crate::host::capacity;
use crate::image::Store;
use crate::layout;
use crate::sandbox::Sandbox;

/// One line of the examination.
#[derive(Debug, Serialize)]
pub struct Check {
    pub name: String,
    pub ok: bool,
    /// Whether `run` refuses without it.
    pub required: bool,
    pub found: String,
    pub why: String,
    /// How to turn it on; only where it is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
    /// Leaving this out would do, for who may.
    #[serde(skip)]
    pub weaken: Option<Weakening>,
}

#[derive(Debug, Serialize)]
pub struct Examination {
    /// Whether `run` would work.
    pub ok: bool,
    pub mode: &'static str,
    pub kernel: String,
    pub checks: Vec<Check>,
}

impl Examination {
    /// What `run` refuses for.
    pub fn refusals(&self) -> impl Iterator<Item = &Check> {
        self.checks
            .iter()
            .filter(|check| check.required && !check.ok)
    }

    /// How whoever is to read this can do without what is missing, after how to provide it.
    pub fn add_way_around(&mut self, way: impl Fn(Weakening) -> String) {
        for check in &mut self.checks {
            if let (Some(fix), Some(weakening)) = (&mut check.fix, check.weaken) {
                fix.push_str(&way(weakening));
            }
        }
    }

    /// Tries what can be tried before there is a second thread; [`Examination::open_sandbox`] does the rest.
    pub fn begin() -> Self {
        let mut checks: Vec<_> = NAMESPACES
            .iter()
            .map(|(name, why)| namespace(name, why))
            .collect();
        checks.extend([
            cgroups(),
            landlock(),
            seccomp_filter(),
            overlay(),
            group_kill(),
            swap(),
            same_page_merging(),
            smt(),
        ]);
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")
            .unwrap_or_default()
            .trim()
            .to_owned();
        Self {
            ok: false,
            mode: if host::is_root() { "root" } else { "rootless" },
            kernel,
            checks,
        }
    }

    /// The images that are kept below a state directory.
    pub fn look_at_images(&mut self, state: &Path) {
        let found = Store::open(state).and_then(|store| {
            let images = store.list()?;
            let bytes: u64 = images.iter().map(|image| image.bytes).sum();
            let at = store.directory().display();
            Ok(match images.len() {
                0 => format!("empty, at {at}"),
                count => format!("{count} images, {} MB unpacked, at {at}", bytes / 1_000_000),
            })
        });
        let fix = "name a directory that you can write in BELLJAR_STATE_DIR".to_owned();
        self.checks.push(check(
            "image store",
            false,
            "`run --image` takes an image of it as the root, without Docker",
            found.map_err(|error| (error.to_string(), fix)),
        ));
    }

    /// The proof: a sandbox with every protection, opened and looked at from outside.
    pub async fn open_sandbox(&mut self, engine: &Engine) {
        let (ok, found, fix, weaken) = match open(engine).await {
            Ok(()) => (true, "opened and verified from outside".into(), None, None),
            Err(Error::UnsupportedHost {
                missing,
                reason,
                fix,
                weaken,
            }) => (false, format!("{missing}: {reason}"), Some(fix), weaken),
            Err(error) => (
                false,
                error.to_string(),
                Some("see the lines above".into()),
                None,
            ),
        };
        let why = "all protections together, as every run has them".to_owned();
        self.checks.push(Check {
            name: "sandbox".into(),
            ok,
            required: true,
            found,
            why,
            fix,
            weaken,
        });
        self.ok = self.checks.iter().all(|check| check.ok || !check.required);
    }
}

impl Examination {
    /// The other backend: nothing that it lacks is required.
    pub async fn ask_docker(&mut self, settings: &docker::Settings) {
        self.checks.extend(docker::examine(settings).await);
    }
}

async fn open(engine: &Engine) -> Result<(), Error> {
    let plan = Plan {
        entries: layout::entries(&[], &[], &[], &Network::default())?,
        workdir: PathBuf::from(WORKSPACE),
        files: Vec::new(),
        limits: LimitsPatch::default().resolve(&LimitsPatch::default(), &capacity())?,
        writable: false,
        kept: false,
        network: false,
        ports: Vec::new(),
        closed: None,
        weakened: [].into(),
        image: None,
    };
    Sandbox::open(engine, None, plan).await.map(drop)
}

fn check(name: &str, required: bool, why: &str, found: Result<String, (String, String)>) -> Check {
    let (ok, found, fix) = match found {
        Ok(found) => (true, found, None),
        Err((found, fix)) => (false, found, Some(fix)),
    };
    Check {
        name: name.into(),
        ok,
        required,
        found,
        why: why.into(),
        fix,
        weaken: Weakening::ALL.into_iter().find(|one| one.name() == name),
    }
}

fn namespace(name: &str, why: &str) -> Check {
    let tried = host::try_namespace(name);
    let found = tried
        .map(|()| "can be made".to_owned())
        .map_err(|error| (error.to_string(), advice::namespace_fix()));
    check(&format!("{name} namespace"), true, why, found)
}

fn cgroups() -> Check {
    let found = match host::cgroups() {
        Ok(version) => Ok(format!(
            "version {version}, memory, pids and cpu can be limited"
        )),
        Err(_) if has_user_manager() => {
            Ok("by a delegated scope of systemd's user manager".to_owned())
        }
        Err(error) => Err((error.to_string(), advice::cgroup_fix())),
    };
    check(
        "cgroups",
        true,
        "limits on memory, CPU and processes, and the counts in each result",
        found,
    )
}

fn has_user_manager() -> bool {
    std::env::var_os("XDG_RUNTIME_DIR")
        .is_some_and(|dir| Path::new(&dir).join("systemd/private").exists())
}

fn landlock() -> Check {
    let found = match host::landlock_abi() {
        Some(abi) if abi >= LANDLOCK_FLOOR => Ok(format!("version {abi}{}", landlock_gaps(abi))),
        Some(abi) => Err((
            format!("version {abi}, {LANDLOCK_FLOOR} is needed"),
            advice::LANDLOCK_FIX.to_owned(),
        )),
        None => Err((
            "off or not built in".to_owned(),
            advice::LANDLOCK_FIX.to_owned(),
        )),
    };
    check(
        "landlock",
        true,
        "a second fence around files that holds even if a mount were wrong",
        found,
    )
}

/// What only a newer kernel's version adds; the namespaces cover each of these as well.
fn landlock_gaps(abi: u32) -> String {
    let newer = [
        (3, "truncation"),
        (4, "TCP ports"),
        (5, "device ioctls"),
        (6, "abstract sockets and signals"),
    ];
    let gaps: Vec<_> = newer
        .iter()
        .filter(|(version, _)| *version > abi)
        .map(|(_, what)| *what)
        .collect();
    if gaps.is_empty() {
        String::new()
    } else {
        format!(" (does not cover {})", gaps.join(", "))
    }
}

fn seccomp_filter() -> Check {
    let found = if host::has_seccomp() {
        Ok(format!(
            "{} of {} system calls can be reached",
            seccomp::REACHABLE,
            seccomp::CLASSIFIED
        ))
    } else {
        Err(("not built in".to_owned(), advice::SECCOMP_FIX.to_owned()))
    };
    check(
        "seccomp",
        true,
        "takes away the parts of the kernel where most of its bugs were",
        found,
    )
}

fn overlay() -> Check {
    let listed = fs::read_to_string("/proc/filesystems")
        .unwrap_or_default()
        .lines()
        .any(|line| line.ends_with("\toverlay"));
    let found = if listed {
        Ok("built in or loaded".into())
    } else {
        Err(("not loaded".into(), "`modprobe overlay`".into()))
    };
    check(
        "overlayfs",
        false,
        "`run --writable` lays a private layer over the whole root",
        found,
    )
}

fn group_kill() -> Check {
    let found = if host::has_group_kill() {
        Ok("cgroup.kill".into())
    } else {
        Err((
            "not there".into(),
            "use Linux 5.14 or later with cgroup v2 mounted".into(),
        ))
    };
    check(
        "group kill",
        false,
        "ends a whole sandbox in one step; without it, ending its process 1 does",
        found,
    )
}

fn swap() -> Check {
    let devices = fs::read_to_string("/proc/swaps")
        .unwrap_or_default()
        .lines()
        .count()
        .saturating_sub(1);
    let found = if devices == 0 {
        Ok("none".into())
    } else {
        Err((
            format!("{devices} in use"),
            "`swapoff -a` where secrets must not reach a disk; sandboxes use none".into(),
        ))
    };
    check(
        "swap",
        false,
        "a sandbox's memory is never swapped; the host's own may be",
        found,
    )
}

fn same_page_merging() -> Check {
    let on = fs::read_to_string("/sys/kernel/mm/ksm/run").is_ok_and(|text| text.trim() == "1");
    let fix = "`echo 0 > /sys/kernel/mm/ksm/run`".to_owned();
    let found = if on {
        Err(("on".to_owned(), fix))
    } else {
        Ok("off".to_owned())
    };
    check(
        "page merging",
        false,
        "merged pages let one tenant guess another's memory by timing",
        found,
    )
}

fn smt() -> Check {
    let on = fs::read_to_string("/sys/devices/system/cpu/smt/active")
        .is_ok_and(|text| text.trim() == "1");
    let fix = "`echo off > /sys/devices/system/cpu/smt/control` where tenants distrust each other"
        .to_owned();
    let found = if on {
        Err(("on".to_owned(), fix))
    } else {
        Ok("off".to_owned())
    };
    check(
        "SMT",
        false,
        "threads that share a core can watch each other's caches",
        found,
    )
}
