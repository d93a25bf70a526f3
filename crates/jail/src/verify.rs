//! Looks at a sandbox's init from outside before any code is released, and refuses what is not confined.
//!
//! All that init is, its children are: none of these properties can be given back by a process that has them.

mod mounts;
mod status;

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use belljar_spec::{Backend, CgroupReport, Mode as ReportMode, Report, SeccompReport, Weakening};

use crate::confine::Mode;
use crate::error::{Context, Error, Result, Step};
use crate::kernel_file;
use crate::landlock;
use crate::plan::{Owner, Plan};
use crate::sys;
use mounts::check_root;
pub use mounts::is_plain;
use status::Status;

const CAPABILITY_SETS: [&str; 5] = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];

/// The namespaces of a process. Of the keeper they are read once, for they never change, and no sandbox may share them.
#[derive(PartialEq, Eq)]
struct NamespaceLinks(Vec<(&'static str, PathBuf)>);

/// The user namespace first: whoever enters it has the right to enter the others.
const NAMESPACES: [&str; 7] = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];

impl NamespaceLinks {
    fn read(who: &str) -> Result<Self> {
        NAMESPACES
            .into_iter()
            .map(|name| Ok((name, namespace(who, name)?)))
            .collect::<Result<_>>()
            .map(Self)
    }

    fn of(&self, name: &str) -> &Path {
        self.0
            .iter()
            .find(|(known, _)| *known == name)
            .map_or(Path::new(""), |(_, link)| link)
    }
}

/// What the keeper is, which sandboxes must not be.
pub struct Host {
    namespaces: NamespaceLinks,
    /// Its own system call filters: where it runs in a container it has some, and so has everything that it forks.
    filters: u32,
}

impl Host {
    pub fn of_keeper() -> Result<Self> {
        let counted = || Status::read("self")?.filters();
        Ok(Self {
            namespaces: NamespaceLinks::read("self")?,
            filters: sys::is_filtered().then(counted).transpose()?.unwrap_or(0),
        })
    }

    /// How many filters there are where so many were added.
    pub fn filters_with(&self, added: u32) -> u32 {
        self.filters + added
    }
}

/// A sandbox's init, and what it is held against.
pub struct Subject<'a> {
    pub pid: i32,
    pub plan: &'a Plan,
    pub mode: Mode,
    pub owner: Owner,
    /// How many system call filters it shall have more than the keeper has.
    pub filters: u32,
    pub cgroup: Option<Cgroup<'a>>,
    pub host: &'a Host,
}

/// The cgroups it shall be in.
pub struct Cgroup<'a> {
    pub version: u8,
    pub memberships: Vec<String>,
    /// Read from the kernel after they were set.
    pub limits: &'a [(&'static str, String)],
}

/// Where a process is: what nobody can change any more who has lost the right to.
pub struct Surroundings {
    namespaces: NamespaceLinks,
    /// Those that are not the host's.
    own: Vec<String>,
    cgroup: Option<CgroupReport>,
    root: Place,
    read_only_root: bool,
}

/// A directory: the mount, the device, the inode. Sandboxes that were made after one mould differ in the mount only.
type Place = (u64, u64, u64);

/// Reads where the kernel says that the process is.
pub fn look_around(subject: &Subject<'_>) -> Result<Surroundings> {
    let &Subject { pid, plan, .. } = subject;
    let cgroup = subject.cgroup.as_ref();
    let namespaces = NamespaceLinks::read(&pid.to_string())?;
    Ok(Surroundings {
        own: check_namespaces(&namespaces, plan, &subject.host.namespaces)?,
        namespaces,
        cgroup: cgroup.map(|group| check_cgroup(pid, group)).transpose()?,
        root: root_of(pid)?,
        read_only_root: check_root(pid, plan)?,
    })
}

/// Holds a process that came from elsewhere against the sandbox's init, whose surroundings these are. In the same mount namespace
/// and with the same root it has the same mounts.
pub fn inspect_copy(subject: &Subject<'_>, init: &Surroundings) -> Result<()> {
    let pid = subject.pid;
    demand(
        NamespaceLinks::read(&pid.to_string())? == init.namespaces,
        "it is not in the sandbox's namespaces",
    )?;
    demand(root_of(pid)? == init.root, "it has another root")?;
    if let Some(group) = &subject.cgroup {
        check_cgroup(pid, group)?;
    }
    check_status(subject).map(drop)
}

/// Reads what the kernel says about the process and holds it against the plan.
pub fn inspect(subject: &Subject<'_>, around: &Surroundings) -> Result<Report> {
    let &Subject {
        plan, mode, owner, ..
    } = subject;
    let (capabilities, seccomp) = check_status(subject)?;
    Ok(Report {
        backend: Backend::Native,
        engine: None,
        bridge: None,
        mode: if mode.is_rootless() {
            ReportMode::Rootless
        } else {
            ReportMode::Root
        },
        namespaces: around.own.clone(),
        uid: owner.uid,
        no_new_privs: true,
        capabilities,
        seccomp,
        landlock: if plan.keeps(Weakening::Landlock) {
            landlock::enforced_abi()
        } else {
            None
        },
        cgroup: around.cgroup.clone(),
        read_only_root: around.read_only_root,
        network: if !plan.keeps(Weakening::Netns) {
            "host"
        } else if plan.network {
            "proxy"
        } else {
            "none"
        }
        .into(),
        root: plan.image.clone().unwrap_or_else(|| "host".into()),
        filesystem: if plan.closed.is_some() {
            "none"
        } else {
            "workspace"
        }
        .into(),
        weakened: plan.weakened.iter().map(ToString::to_string).collect(),
    })
}

/// What the process may do, in words of the report: its capabilities and its filter.
fn check_status(subject: &Subject<'_>) -> Result<(String, SeccompReport)> {
    let &Subject {
        pid,
        plan,
        mode,
        owner,
        ..
    } = subject;
    let status = Status::read(pid)?;
    demand(
        status.four("Uid", owner.uid) && status.four("Gid", owner.gid),
        "it does not run as its own user",
    )?;
    // An ordinary user cannot give up groups: that could lift a denial. Nothing visible inside depends on them.
    let groups_may_stay = mode.is_rootless();
    demand(
        groups_may_stay || status.get("Groups").is_empty(),
        "it has supplementary groups",
    )?;
    demand(status.get("NoNewPrivs") == "1", "no_new_privs is not set")?;
    demand(status.get("Threads") == "1", "it has more than one thread")?;
    let capabilities = check_capabilities(&status, plan, mode)?;
    let seccomp = check_seccomp(&status, plan, subject.host.filters_with(subject.filters))?;
    Ok((capabilities, seccomp))
}

fn demand(holds: bool, otherwise: &str) -> Result<()> {
    if holds {
        Ok(())
    } else {
        Err(Error::because(Step::Verify, "init", otherwise))
    }
}

fn check_capabilities(status: &Status, plan: &Plan, mode: Mode) -> Result<String> {
    let sets: Vec<_> = CAPABILITY_SETS
        .iter()
        .map(|set| (*set, status.get(set)))
        .collect();
    if sets
        .iter()
        .all(|(_, bits)| bits.bytes().all(|digit| digit == b'0'))
    {
        return Ok("none".into());
    }
    // As root without a user namespace the bounding set stays, out of reach of a user that has no_new_privs.
    let excused = !plan.keeps(Weakening::Capabilities)
        || (matches!(mode, Mode::Root)
            && !plan.keeps(Weakening::Userns)
            && status.get("CapEff").bytes().all(|b| b == b'0'));
    demand(excused, "it has capabilities")?;
    Ok(sets
        .iter()
        .map(|(set, bits)| format!("{set}={bits}"))
        .collect::<Vec<_>>()
        .join(" "))
}

/// Which filters they are cannot be seen from outside, but how many: one that came before the sandbox was locked is no lock.
fn check_seccomp(status: &Status, plan: &Plan, least: u32) -> Result<SeccompReport> {
    if !plan.keeps(Weakening::Seccomp) {
        return Ok(SeccompReport {
            mode: "off".into(),
            filters: 0,
        });
    }
    demand(status.get("Seccomp") == "2", "it has no seccomp filter")?;
    let filters = status.filters()?;
    demand(filters >= least, "it lacks a seccomp filter")?;
    Ok(SeccompReport {
        mode: "filter".into(),
        filters,
    })
}

fn check_namespaces(
    found: &NamespaceLinks,
    plan: &Plan,
    host: &NamespaceLinks,
) -> Result<Vec<String>> {
    let mut own = Vec::new();
    for (name, protection) in [
        ("user", Some(Weakening::Userns)),
        ("mnt", None),
        ("pid", Some(Weakening::Pidns)),
        ("net", Some(Weakening::Netns)),
        ("ipc", Some(Weakening::Ipcns)),
        ("uts", None),
        ("cgroup", None),
    ] {
        if found.of(name) != host.of(name) {
            own.push(name.to_owned());
        } else if protection.is_none_or(|protection| plan.keeps(protection)) {
            return Err(Error::because(
                Step::Verify,
                name,
                "the namespace is the host's",
            ));
        }
    }
    Ok(own)
}

/// Whether a process that the sandbox's init started, or that was copied into it, has a filter more than others there: the one by which
/// it can start no other. A copy takes that as its first act, so it may take a moment.
pub fn has_more_filters(pid: i32, than: u32) -> Result<bool> {
    let status = Status::read(pid)?;
    let more = status.filters()? > than;
    demand(
        more || !status.get("State").starts_with('Z'),
        "it has ended before it locked itself in",
    )?;
    Ok(more)
}

/// The same of one that must have taken it by now.
pub fn must_have_more_filters(pid: i32, than: u32) -> Result<()> {
    demand(has_more_filters(pid, than)?, "it could start processes")
}

/// The same for what init has executed: it takes the filter before it becomes the program.
pub fn children_are_lone(init: i32) -> Result<()> {
    let path = format!("/proc/{init}/task/{init}/children");
    let children = kernel_file::read(&path).during(Step::Verify, path)?;
    let mut children = children
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok());
    let of_init = Status::read(init)?.filters()?;
    children.try_for_each(|pid| must_have_more_filters(pid, of_init))
}

/// Whether two processes are in one process namespace, as far as that can be seen.
pub fn share_processes(one: i32, other: i32) -> bool {
    let of = |pid: i32| namespace(&pid.to_string(), "pid").ok();
    of(one).is_some_and(|space| of(other) == Some(space))
}

/// The namespaces of a process, to be entered.
pub fn open_namespaces(pid: i32) -> Result<Vec<OwnedFd>> {
    let open = |name| {
        let path = format!("/proc/{pid}/ns/{name}");
        let opened = fs::File::open(&path).during(Step::Verify, path)?;
        Ok(opened.into())
    };
    NAMESPACES.into_iter().map(open).collect()
}

fn namespace(who: &str, name: &str) -> Result<PathBuf> {
    let path = format!("/proc/{who}/ns/{name}");
    fs::read_link(&path).during(Step::Verify, path)
}

/// The directory that is the root of the process.
fn root_of(pid: i32) -> Result<Place> {
    let path = format!("/proc/{pid}/root");
    let mount = sys::mount_of(Path::new(&path)).during(Step::Verify, &path)?;
    let root = fs::metadata(&path).during(Step::Verify, path)?;
    Ok((mount, root.dev(), root.ino()))
}

fn check_cgroup(pid: i32, cgroup: &Cgroup<'_>) -> Result<CgroupReport> {
    let path = format!("/proc/{pid}/cgroup");
    let lines = kernel_file::read(&path).during(Step::Verify, path)?;
    for wanted in &cgroup.memberships {
        demand(
            lines.lines().any(|line| line == wanted),
            "it is not in its cgroup",
        )?;
    }
    let controllers: BTreeMap<_, _> = cgroup
        .limits
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.clone()))
        .collect();
    Ok(CgroupReport {
        version: cgroup.version,
        controllers,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn plan() -> Plan {
        serde_json::from_value(serde_json::json!({
            "entries": [], "files": [], "workdir": "/workspace", "writable": false, "kept": true, "network": false, "ports": [],
            "closed": null, "weakened": [], "image": null,
            "limits": {"timeout_ms": 1, "memory_bytes": 1, "cpus": 1.0, "processes": 1, "output_bytes": 1, "disk_bytes": 1, "open_files": 1},
        }))
        .expect("a plan")
    }

    /// What is wrong with this very process, as a copy in a sandbox whose init is where it is itself but for the change.
    fn refusal(change: impl FnOnce(&mut Surroundings)) -> String {
        let pid = i32::try_from(std::process::id()).expect("a process id");
        let links = || NamespaceLinks::read("self").expect("namespaces");
        let mut init = Surroundings {
            namespaces: links(),
            own: Vec::new(),
            cgroup: None,
            root: root_of(pid).expect("a root"),
            read_only_root: true,
        };
        change(&mut init);
        let subject = Subject {
            pid,
            plan: &plan(),
            mode: Mode::Root,
            owner: Owner { uid: 1, gid: 1 },
            filters: 1,
            cgroup: None,
            host: &Host::of_keeper().expect("what we are ourselves"),
        };
        let refused = inspect_copy(&subject, &init).expect_err("it is not confined");
        refused.to_string()
    }

    #[test]
    fn each_filter_that_was_added_must_be_there() {
        let status = |filters: &str| Status(format!("Seccomp:\t2\n{filters}"));
        let check = |filters: &str| {
            check_seccomp(&status(filters), &plan(), 3)
                .map(|seen| seen.filters)
                .map_err(|error| error.to_string())
        };
        assert_eq!(check("Seccomp_filters:\t3"), Ok(3));
        assert_eq!(check("Seccomp_filters:\t4"), Ok(4));
        for (filters, words) in [
            ("Seccomp_filters:\t2", "lacks a seccomp filter"),
            ("", "not counted"),
        ] {
            let refused = check(filters).expect_err(words);
            assert!(refused.contains(words), "{refused}");
        }
    }

    #[test]
    fn a_copy_must_be_where_init_is() {
        for at in 0..7 {
            let refused = refusal(|init| init.namespaces.0[at].1 = "mnt:[1]".into());
            assert!(refused.contains("the sandbox's namespaces"), "{refused}");
        }
        let changes: [fn(&mut Place); 3] =
            [|root| root.0 += 1, |root| root.1 += 1, |root| root.2 += 1];
        for change in changes {
            let refused = refusal(|init| change(&mut init.root));
            assert!(refused.contains("another root"), "{refused}");
        }
        // Where it should be, and it can do more than it should.
        let refused = refusal(|_| {});
        assert!(refused.contains("its own user"), "{refused}");
    }
}
