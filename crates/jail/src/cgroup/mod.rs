//! Control groups: the limits the kernel enforces, and the only source of what a sandbox used.
//!
//! Version 2 is what users have; version 1 (one hierarchy per controller) is complete too. Groups are named by random ids
//! and made with a plain `mkdir`, which fails if the name exists: nobody else's group is ever used.

mod layout;
mod meter;
mod spare;
mod v1;
mod v2;

use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, chown};
use std::path::{Path, PathBuf};

use belljar_spec::Limits;

use crate::error::{Context, Error, Result, Step};
use crate::kernel_file;
use crate::plan::Owner;
pub use layout::Layout;
pub use meter::{Counters, Crowd, Meter};

/// Every group of ours starts with this, so that a sweep never touches anyone else's.
pub const PREFIX: &str = "belljar-";
/// Commands that may run beside each other in one sandbox; init has room for as many.
const MAX_PARTS: usize = 64;

/// Where this process may make groups.
pub enum Tree {
    V1(Box<v1::Tree>),
    V2(v2::Tree),
}

/// The groups of one sandbox. Removed explicitly, when it is known to be empty.
pub enum Group {
    V1(v1::Group),
    V2(v2::Group),
}

/// Limits by the file that has them.
pub type InForce = Vec<(&'static str, String)>;

/// Why this user cannot have cgroups here, if so, and which version those are.
pub fn availability() -> Result<u8> {
    Tree::find().map(|tree| tree.version())
}

impl Tree {
    pub fn find() -> Result<Self> {
        let layout = Layout::read().during(Step::Cgroup, "/proc/self/cgroup")?;
        if layout.has_v2_controllers() {
            v2::Tree::find(&layout).map(Self::V2)
        } else {
            v1::Tree::find(&layout).map(|tree| Self::V1(Box::new(tree)))
        }
    }

    pub fn version(&self) -> u8 {
        match self {
            Self::V1(_) => 1,
            Self::V2(_) => 2,
        }
    }

    /// The directories under which groups of ours may be left when we are killed.
    pub fn bases(&self) -> Vec<&Path> {
        match self {
            Self::V1(tree) => tree.bases(),
            Self::V2(tree) => tree.bases(),
        }
    }

    /// As much of a group as a child can be born into. The rest, made by [`Group::complete`], is not needed that early.
    pub fn begin(&self, name: &str) -> Result<Group> {
        let name = format!("{PREFIX}{name}");
        match self {
            Self::V1(tree) => tree.begin(&name).map(Group::V1),
            Self::V2(tree) => tree.create(&name).map(Group::V2),
        }
    }

    /// A whole group.
    pub fn create(&self, name: &str) -> Result<Group> {
        self.begin(name)?.completed()
    }

    /// A whole group for one stage of what runs in `whole`.
    pub fn create_stage(&self, name: &str, whole: &Group) -> Result<Group> {
        let name = format!("{PREFIX}{name}");
        let group = match (self, whole) {
            (Self::V1(tree), Group::V1(whole)) => tree.begin_stage(&name, whole).map(Group::V1),
            (Self::V1(tree), Group::V2(_)) => tree.begin(&name).map(Group::V1),
            (Self::V2(tree), _) => tree.create(&name).map(Group::V2),
        }?;
        group.completed()
    }
}

impl Tree {
    /// A place of its own below this one, in which `owner` may have children born into groups.
    ///
    /// To be born into a group takes the right to write to it and to what lies above both it and the parent's group, and no
    /// global lock of the kernel's; to move there takes that lock, for which a process can wait many milliseconds.
    pub fn nested(&self, name: &str, owner: Owner) -> Result<Self> {
        let name = format!("{PREFIX}{name}");
        match self {
            Self::V1(tree) => tree
                .nested(&name, owner)
                .map(|tree| Self::V1(Box::new(tree))),
            Self::V2(tree) => tree.nested(&name, owner).map(Self::V2),
        }
    }

    /// Removes what waits to be used again. Whether all of it has gone.
    pub fn remove_spares(&self) -> bool {
        match self {
            Self::V1(tree) => tree.remove_spares(),
            Self::V2(_) => true,
        }
    }

    fn nest(&self) -> Option<&Path> {
        match self {
            Self::V1(tree) => tree.nest(),
            Self::V2(tree) => tree.nest(),
        }
    }

    /// Removes the place of a nested tree, if all its groups have gone.
    pub fn try_remove(&self) -> bool {
        self.nest().is_none_or(|dir| fs::remove_dir(dir).is_ok())
    }
}

impl Group {
    /// Lets `owner` have children born into it.
    pub fn open_to(&self, owner: Owner) -> Result<()> {
        let dir = match self {
            Self::V1(group) => group.killable(),
            Self::V2(group) => Some(group.killable()),
        };
        dir.map_or(Ok(()), |dir| open_procs(dir, owner))
    }

    /// Makes what [`Tree::begin`] left out.
    pub fn complete(&mut self) -> Result<()> {
        match self {
            Self::V1(group) => group.complete(),
            Self::V2(_) => Ok(()),
        }
    }

    fn completed(mut self) -> Result<Self> {
        match self.complete() {
            Ok(()) => Ok(self),
            Err(error) => self.remove().and(Err(error)),
        }
    }

    /// The group a child can be born into.
    pub fn birthplace(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::V1(group) => group.birthplace(),
            Self::V2(group) => Some(group.birthplace()),
        }
    }

    /// Files to which a child that was born in the birthplace writes `0` to join the remaining groups.
    pub fn joins(&self) -> Result<Vec<OwnedFd>> {
        match self {
            Self::V1(group) => group.joins(),
            Self::V2(_) => Ok(Vec::new()),
        }
    }

    /// Files to which a process of ours writes `0` to join all of the groups; of a stage, all that are not the whole's.
    pub fn all_joins(&self) -> Result<Vec<OwnedFd>> {
        match self {
            Self::V1(group) => group.all_joins(),
            Self::V2(group) => group.all_joins(),
        }
    }

    /// Sets limits, and gives those that a report names as the kernel says they are then. `kept`: want of memory ends one process, not
    /// all: the sandbox and its files live on.
    pub fn apply(&self, limits: &Limits, kept: bool) -> Result<InForce> {
        match self {
            Self::V1(group) => group.apply(limits),
            Self::V2(group) => group.apply(limits, kept),
        }
    }

    /// For those who can have sockets of a network. Where these are counted with all else there is nothing to set.
    pub fn limit_sockets(&self, limits: &Limits) -> Result<InForce> {
        match self {
            Self::V1(group) => group.limit_sockets(limits),
            Self::V2(_) => Ok(Vec::new()),
        }
    }

    pub fn meter(&self) -> Meter {
        match self {
            Self::V1(group) => group.meter(),
            Self::V2(group) => group.meter(),
        }
    }

    /// A group inside this one, to kill what is in it. `None`: this host's cgroups cannot kill a group at once.
    pub fn part(&self, name: &str) -> Result<Option<Part>> {
        let dir = match self {
            Self::V1(group) => group.killable(),
            Self::V2(group) => Some(group.killable()),
        };
        dir.map(|dir| Part::create(dir, name)).transpose()
    }

    /// The lines that `/proc/PID/cgroup` of a member must have.
    pub fn memberships(&self) -> Vec<String> {
        match self {
            Self::V1(group) => group.memberships(),
            Self::V2(group) => group.memberships(),
        }
    }

    /// Lets a group that has used up its share run on, so that it can die at once.
    pub fn unthrottle(&self) {
        match self {
            Self::V1(group) => group.unthrottle(),
            Self::V2(group) => group.unthrottle(),
        }
    }

    /// Has the scheduler run what is in it only when nobody else wants to, or no longer. Linux 5.15; where it cannot, nothing
    /// is different.
    pub fn set_idle(&self, idle: bool, limits: &Limits) {
        let dir = match self {
            Self::V1(group) => {
                group.note_change();
                group.scheduled()
            }
            Self::V2(group) => group.killable(),
        };
        let _ = set(dir, "cpu.idle", if idle { "1" } else { "0" });
        // The kernel has forgotten it over that.
        if let (false, Some(shares)) = (idle, limits.cpu_shares) {
            let _ = match self {
                Self::V1(group) => group.set_shares(shares),
                Self::V2(group) => group.set_shares(shares),
            };
        }
    }

    /// Whether nobody is in it.
    pub fn is_empty(&self) -> bool {
        let empty = |dir: &&Path| listed(&dir.join("cgroup.procs")).is_empty();
        self.dirs().iter().all(empty)
    }

    /// The threads that are in it now.
    pub fn threads(&self) -> Vec<i32> {
        match self {
            Self::V1(group) => listed(&group.scheduled().join("tasks")),
            Self::V2(group) => {
                let dir = group.killable();
                let parts = fs::read_dir(dir).into_iter().flatten().flatten();
                let parts = parts.map(|part| part.path().join("cgroup.threads"));
                let own = listed(&dir.join("cgroup.threads"));
                own.into_iter()
                    .chain(parts.flat_map(|part| listed(&part)))
                    .collect()
            }
        }
    }

    pub fn kill(&self) {
        match self {
            Self::V1(group) => group.kill(),
            Self::V2(group) => group.kill(),
        }
    }

    fn dirs(&self) -> Vec<&Path> {
        match self {
            Self::V1(group) => group.dirs(),
            Self::V2(group) => group.dirs(),
        }
    }

    /// Removes the groups, killing whatever is still in them. A group with processes in it cannot be removed.
    pub fn remove(self) -> Result<()> {
        remove_all(&self.dirs())
    }

    /// The same, but for what another sandbox can have after this one. Only when nobody looks at its counters any more.
    pub fn hand_on(self) -> Result<()> {
        remove_all(&match &self {
            Self::V1(group) => group.hand_on(),
            Self::V2(group) => group.dirs(),
        })
    }
}

/// The processes of one command among others in a sandbox.
pub struct Part {
    dir: PathBuf,
}

impl Part {
    fn create(above: &Path, name: &str) -> Result<Self> {
        let dir = above.join(name);
        match fs::create_dir(&dir) {
            Ok(()) => Ok(Self { dir }),
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                let reason = "as many commands are in the sandbox as can be at once";
                Err(Error::because(Step::Busy, "the command", reason))
            }
            Err(error) => Err(Error::new(Step::Cgroup, dir.display(), &error)),
        }
    }

    /// The file to which a process of ours writes `0` to join.
    pub fn join(&self) -> Result<OwnedFd> {
        open_for_writing(&self.dir.join("cgroup.procs"))
    }

    pub fn kill(&self) {
        kill_members(&self.dir);
    }

    /// Only when it is empty: what a command left behind stays in it.
    pub fn try_remove(&self) -> bool {
        match fs::remove_dir(&self.dir) {
            Err(error) => error.kind() == io::ErrorKind::NotFound,
            Ok(()) => true,
        }
    }
}

fn remove_all(dirs: &[&Path]) -> Result<()> {
    for dir in dirs {
        remove_dir(dir).during(Step::Cgroup, dir.display())?;
    }
    Ok(())
}

/// Removes one group of ours, after those inside it. The kernel says busy for a moment after the last process is gone.
fn remove_dir(dir: &Path) -> io::Result<()> {
    for _ in 0..200 {
        match fs::remove_dir(dir) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                kill_members(dir);
                remove_below(dir);
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            done => return done,
        }
    }
    Err(io::Error::from_raw_os_error(libc::EBUSY))
}

/// Removes the groups inside a group, as far as they are empty. A plain file is never removed by this.
fn remove_below(dir: &Path) {
    for part in fs::read_dir(dir).into_iter().flatten().flatten() {
        if part.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_below(&part.path());
            let _ = fs::remove_dir(part.path());
        }
    }
}

/// Kills by list, for hierarchies that have no `cgroup.kill`; callers repeat it until the group is empty.
fn kill_members(dir: &Path) {
    if fs::write(dir.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    for pid in listed(&dir.join("cgroup.procs")) {
        let _ = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(pid),
            nix::sys::signal::Signal::SIGKILL,
        );
    }
}

/// The members of a group. Never zero, which is one of another namespace here, and oneself wherever a number is taken.
fn listed(file: &Path) -> Vec<i32> {
    let members = kernel_file::read(file).unwrap_or_default();
    let numbers = members.lines().filter_map(|line| line.parse().ok());
    numbers.filter(|number| *number > 0).collect()
}

/// Removes the groups that a dead keeper left under `base`, all of them named by its token.
pub fn sweep(base: &Path, token: &str) {
    let Ok(entries) = fs::read_dir(base) else {
        return;
    };
    let prefix = format!("{PREFIX}{token}");
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            let _ = remove_dir(&entry.path());
        }
    }
}

/// Gives away the one file that says who is in a group.
fn open_procs(dir: &Path, owner: Owner) -> Result<()> {
    let path = dir.join("cgroup.procs");
    chown(&path, Some(owner.uid), None).during(Step::Cgroup, path.display())
}

fn make_dir(dir: &Path) -> Result<()> {
    fs::create_dir(dir).during(Step::Cgroup, dir.display())
}

fn open_for_writing(path: &Path) -> Result<OwnedFd> {
    fs::OpenOptions::new()
        .write(true)
        .open(path)
        .during(Step::Cgroup, path.display())
        .map(OwnedFd::from)
}

fn set(dir: &Path, file: &str, value: &str) -> Result<()> {
    let path = dir.join(file);
    // Not `fs::write`: these files must exist, and truncation costs a system call.
    let write = || {
        io::Write::write_all(
            &mut fs::OpenOptions::new().write(true).open(&path)?,
            value.as_bytes(),
        )
    };
    write().during(Step::Cgroup, path.display())
}

/// The same where it is not so already, and what the kernel has made of it. To open one of these files costs more than to read it twice.
fn set_and_read(dir: &Path, file: &'static str, value: &str) -> Result<(&'static str, String)> {
    let path = dir.join(file);
    let read = |opened: &fs::File| {
        let mut bytes = [0; 64];
        let length = opened.read_at(&mut bytes, 0)?;
        let text = str::from_utf8(&bytes[..length]).map_err(io::Error::other)?;
        Ok::<_, io::Error>(text.trim().to_owned())
    };
    let done = || {
        let mut options = fs::OpenOptions::new();
        let mut opened = options.read(true).write(true).open(&path)?;
        let before = read(&opened)?;
        if before == value {
            return Ok(before);
        }
        io::Write::write_all(&mut opened, value.as_bytes())?;
        read(&opened)
    };
    let found = done().during(Step::Cgroup, path.display())?;
    Ok((file, found))
}

fn get(dir: &Path, file: &str) -> Option<String> {
    kernel_file::read(dir.join(file))
        .ok()
        .map(|text| text.trim().to_owned())
}

/// Quota of CPU time per period, both in microseconds.
fn quota(cpus: f64) -> (u64, u64) {
    const PERIOD: u64 = 100_000;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "limits are validated: 0 < cpus ≤ cores"
    )]
    let quota = (cpus * PERIOD as f64).round() as u64;
    // The kernel takes no quota below one millisecond.
    (quota.max(1_000), PERIOD)
}

fn missing(what: &str) -> Error {
    Error::because(Step::Cgroup, what, "not available to this user")
}
