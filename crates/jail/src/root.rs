//! The sandbox's file system: an empty tmpfs into which only named things are brought, then made the root.
//!
//! One tmpfs per sandbox holds everything it can write (workspace, `/tmp`, `/dev/shm`, the writable layer), so one size and
//! one number of inodes bound it all, and its pages are charged to the sandbox's memory.

mod provided;
mod stage;

use std::collections::{HashSet, VecDeque};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::{Component, Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{SFlag, fstat};
use nix::unistd::{chdir, pivot_root};

use crate::beneath::{self, Found};
use crate::error::{Context, Error, Result, Step};
use crate::idmap::IdMaps;
use crate::plan::{BUILD, Entry, INNER_ID, Owner, Plan};
use crate::sys;
pub use provided::Provided;
use provided::{system_tree, volume_tree};
use stage::{STAGE, place_devices, root_path};
pub use stage::{begin, go_on, stage, stage_for_zygote};

/// What of a root is the same for all plans with these entries, made at `at`. What each sandbox has to itself are empty directories there.
pub fn place_shared(plan: &Plan, at: PathBuf) -> Result<()> {
    place_devices(&at)?;
    make_dir(&at.join("proc"), 0o555)?;
    let maps = Provided::IdMaps(IdMaps::default());
    let mut root = Root::at(at, plan, None, maps);
    for (_, target, ..) in private_places(plan) {
        root.make_dirs(target)?;
    }
    plan.entries.iter().try_for_each(|entry| root.place(entry))
}

/// What a sandbox has to itself: its name on the tmpfs, where it is seen, its mode and attributes.
pub fn private_places(plan: &Plan) -> [(&'static str, &Path, u32, u64); 3] {
    [
        ("workspace", plan.workdir.as_path(), 0o700, 0),
        ("tmp", Path::new("/tmp"), 0o1777, 0),
        ("shm", Path::new("/dev/shm"), 0o1777, sys::NOEXEC),
    ]
}

pub struct Root<'a> {
    plan: &'a Plan,
    /// To whom private places are given; nobody where the sandbox's user makes them itself.
    given_to: Option<Owner>,
    provided: Provided,
    /// Where it is until the pivot.
    at: PathBuf,
    /// Directories of the root known to be there, by their path inside.
    made: HashSet<PathBuf>,
    layers: usize,
}

impl<'a> Root<'a> {
    /// Completes what [`stage`] began and moves this process into it. Returns a handle on the workspace directory, and what
    /// was put there.
    pub fn enter(
        plan: &'a Plan,
        given_to: Option<Owner>,
        provided: Provided,
    ) -> Result<(OwnedFd, Vec<Found>)> {
        let mut root = Self::at(root_path(), plan, given_to, provided);
        if root.provided.mould().is_some() {
            let places = private_places(plan).map(|(_, target, ..)| target.to_owned());
            root.made.extend(places);
        }
        root.set_size()?;
        let workspace = root.place_private()?;
        let inputs = root.write_files(&workspace)?;
        // Last, because a volume or a toolchain may lie below a private place.
        for entry in &plan.entries {
            root.place(entry)?;
        }
        root.pivot()?;
        Ok((workspace, inputs))
    }

    fn at(at: PathBuf, plan: &'a Plan, given_to: Option<Owner>, provided: Provided) -> Self {
        Self {
            plan,
            given_to,
            provided,
            at,
            made: ["/", "/dev", "/proc"].map(PathBuf::from).into(),
            layers: 0,
        }
    }

    /// Bounds the one tmpfs that holds all the sandbox can write.
    fn set_size(&self) -> Result<()> {
        set_size(Path::new(STAGE), self.plan, self.plan.limits.disk_bytes)?;
        if self.plan.writable {
            self.give(&self.at)
        } else {
            Ok(())
        }
    }

    fn write_files(&self, workspace: &OwnedFd) -> Result<Vec<Found>> {
        let owner = self.given_to.unwrap_or(Owner {
            uid: INNER_ID,
            gid: INNER_ID,
        });
        let write = |(path, text): &(PathBuf, String)| {
            beneath::write_file(workspace.as_fd(), path, text.as_bytes(), owner)
                .during(Step::File, path.display())
        };
        self.plan.files.iter().map(write).collect()
    }

    fn place(&mut self, entry: &Entry) -> Result<()> {
        match entry {
            Entry::System { path } => self.place_system(path, path),
            Entry::Image { source, target } => self.place_system(source, target),
            Entry::Volume {
                source,
                target,
                writable,
            } => {
                let tree = self.tree(|plan, maps| volume_tree(plan, source, *writable, maps))?;
                self.attach(&tree, target)
                    .during(Step::Volume, source.display())
            }
            Entry::Link { path, to } => {
                self.make_parents(path)?;
                symlink(to, self.inside(path)?).during(Step::Mount, path.display())
            }
            Entry::File { path, content } => {
                self.make_parents(path)?;
                let at = self.inside(path)?;
                let write = || {
                    OpenOptions::new()
                        .write(true)
                        .create_new(true)
                        .mode(0o644)
                        .open(&at)?
                        .write_all(content.as_bytes())
                };
                write().during(Step::Mount, path.display())?;
                if self.plan.writable {
                    self.give(&at)
                } else {
                    Ok(())
                }
            }
        }
    }

    /// What is read-only, or the lower side of a writable layer.
    fn place_system(&mut self, source: &Path, target: &Path) -> Result<()> {
        if self.plan.writable && source.is_dir() {
            let tree = sys::clone_tree(source).during(Step::Mount, target.display())?;
            return self.layer(target, &tree);
        }
        let tree = self.tree(|plan, _| system_tree(plan, source))?;
        self.attach(&tree, target)
            .during(Step::Mount, target.display())
    }

    /// The next mount: one that came along, or one of our own making.
    fn tree(&mut self, make: impl FnOnce(&Plan, &IdMaps) -> Result<OwnedFd>) -> Result<OwnedFd> {
        match &mut self.provided {
            Provided::IdMaps(maps) => make(self.plan, maps),
            Provided::Trees(trees) => trees
                .pop_front()
                .ok_or_else(|| Error::because(Step::Mount, "an entry", "its mount is missing")),
            Provided::Mould(_) => {
                let reason = "the mould should have it";
                Err(Error::because(Step::Mount, "an entry", reason))
            }
        }
    }

    fn system_map(&self) -> Option<BorrowedFd<'_>> {
        match &self.provided {
            Provided::IdMaps(maps) => maps.for_system(),
            Provided::Trees(_) | Provided::Mould(_) => None,
        }
    }

    /// Puts an overlay over a system directory whose upper side is in the scratch tmpfs.
    ///
    /// As root the lower side is id-mapped, so that the system's files belong to the code's own user there. An ordinary user
    /// cannot do that; there the upper side starts with the same directories, owned by that user.
    fn layer(&mut self, path: &Path, tree: &OwnedFd) -> Result<()> {
        let place = |kind: &str| Path::new(STAGE).join(format!("{kind}{}", self.layers));
        let (lower, upper, work) = (place("lower"), place("upper"), place("work"));
        self.layers += 1;
        sys::set_mount_attributes(
            tree.as_fd(),
            sys::RDONLY | sys::NOSUID | sys::NODEV,
            self.system_map(),
        )
        .during(Step::Overlay, path.display())?;
        for dir in [&lower, &upper, &work] {
            make_dir(dir, 0o755)?;
            self.give(dir)?;
        }
        sys::attach_tree(tree.as_fd(), &lower).during(Step::Overlay, path.display())?;
        self.make_dirs(path)?;
        let user_xattr = if self.given_to.is_some() {
            ""
        } else {
            // What is in an image belongs to that user already.
            if self.plan.image.is_none() {
                mirror_dirs(&lower, &upper);
            }
            ",userxattr"
        };
        let options = format!(
            "lowerdir={},upperdir={},workdir={}{user_xattr}",
            lower.display(),
            upper.display(),
            work.display()
        );
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(
            Some("belljar"),
            &self.inside(path)?,
            Some("overlay"),
            flags,
            Some(options.as_str()),
        )
        .during(Step::Overlay, path.display())
    }

    /// The private places, all on the scratch tmpfs.
    fn place_private(&mut self) -> Result<OwnedFd> {
        let mut workspace = None;
        for (name, target, mode, attributes) in private_places(self.plan) {
            let at = Path::new(STAGE).join(name);
            make_dir(&at, mode)?;
            self.give(&at)?;
            let tree = sys::clone_tree(&at).during(Step::Mount, target.display())?;
            sys::set_mount_attributes(tree.as_fd(), attributes | sys::NOSUID | sys::NODEV, None)
                .during(Step::Mount, target.display())?;
            self.attach(&tree, target)
                .during(Step::Mount, target.display())?;
            if name == "workspace" {
                workspace =
                    Some(File::open(self.inside(target)?).during(Step::Mount, target.display())?);
            }
        }
        let build = self.inside(Path::new(BUILD))?;
        make_dir(&build, 0o700)?;
        self.give(&build)?;
        workspace
            .map(Into::into)
            .ok_or_else(|| Error::because(Step::Mount, "workspace", "it was not made"))
    }

    fn pivot(&self) -> Result<()> {
        chdir(&self.at).during(Step::Mount, "the new root")?;
        // With both arguments the same directory the old root ends up on top of the new one, and is then dropped.
        pivot_root(".", ".").during(Step::Mount, "the new root")?;
        umount2(".", MntFlags::MNT_DETACH).during(Step::Mount, "the old root")?;
        chdir("/").during(Step::Mount, "the new root")?;
        let stays = self.plan.writable || !self.plan.keeps(belljar_spec::Weakening::Mounts);
        if stays || self.provided.mould().is_some() {
            return Ok(());
        }
        let flags = MsFlags::MS_BIND
            | MsFlags::MS_REMOUNT
            | MsFlags::MS_RDONLY
            | MsFlags::MS_NOSUID
            | MsFlags::MS_NODEV;
        mount(None::<&str>, "/", None::<&str>, flags, None::<&str>)
            .during(Step::Mount, "/ read-only")
    }

    fn attach(&mut self, tree: &OwnedFd, target: &Path) -> io::Result<()> {
        let is_dir =
            SFlag::from_bits_truncate(fstat(tree)?.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR;
        let at = self.inside(target).map_err(io::Error::other)?;
        if is_dir {
            self.make_dirs(target).map_err(io::Error::other)?;
        } else {
            self.make_parents(target).map_err(io::Error::other)?;
            let made = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o644)
                .open(&at);
            unless_there(made.map(drop))?;
        }
        sys::attach_tree(tree.as_fd(), &at)
    }

    /// A path of the sandbox as it is before the pivot. Plans hold absolute, normal paths only.
    fn inside(&self, path: &Path) -> Result<PathBuf> {
        let mut components = path.components();
        let normal = components.next() == Some(Component::RootDir)
            && components.all(|c| matches!(c, Component::Normal(_)));
        if !normal {
            return Err(Error::because(
                Step::Mount,
                path.display(),
                "the path is not absolute and normal",
            ));
        }
        Ok(self.at.join(path.strip_prefix("/").unwrap_or(path)))
    }

    fn make_parents(&mut self, path: &Path) -> Result<()> {
        path.parent()
            .map_or(Ok(()), |parent| self.make_dirs(parent))
    }

    fn make_dirs(&mut self, path: &Path) -> Result<()> {
        if self.made.contains(path) {
            return Ok(());
        }
        self.make_parents(path)?;
        let at = self.inside(path)?;
        // Below a volume or the workspace a directory may be there already; above, it is ours.
        let made = DirBuilder::new().mode(0o755).create(&at);
        if unless_there(made).during(Step::Mount, at.display())? {
            let private = ["/tmp", "/dev/shm"]
                .map(Path::new)
                .iter()
                .any(|place| path.starts_with(place));
            if self.plan.writable || private || path.starts_with(&self.plan.workdir) {
                self.give(&at)?;
            }
        } else if !fs::symlink_metadata(&at).is_ok_and(|found| found.is_dir()) {
            // A link in a volume or an image would lead out of the root that is being made.
            let reason = "it is not a directory";
            return Err(Error::because(Step::Mount, path.display(), reason));
        }
        self.made.insert(path.to_owned());
        Ok(())
    }

    fn give(&self, at: &Path) -> Result<()> {
        let Some(owner) = self.given_to else {
            return Ok(());
        };
        chown(at, Some(owner.uid), Some(owner.gid)).during(Step::Mount, at.display())
    }
}

/// Gives another size to the tmpfs of the root that this process is in.
pub fn resize(plan: &Plan, bytes: u64) -> Result<()> {
    set_size(&plan.workdir, plan, bytes)
}

/// `at`: where it is mounted, with these flags.
fn set_size(at: &Path, plan: &Plan, bytes: u64) -> Result<()> {
    // A writable layer needs some of its own.
    let inodes = (bytes / 4096).clamp(4096, 1 << 20) + if plan.writable { 1 << 16 } else { 0 };
    let options = format!("size={bytes},nr_inodes={inodes}");
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(
        None::<&str>,
        at,
        None::<&str>,
        flags,
        Some(options.as_str()),
    )
    .during(Step::Mount, "the sandbox's tmpfs")
}

/// Whether something was made, or was there already. What is there and does not fit is found out by the mount over it.
fn unless_there(made: io::Result<()>) -> io::Result<bool> {
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        made => made.map(|()| true),
    }
}

/// Makes the directories of `lower` in `upper` too, as far as that is cheap. Best effort: what is not mirrored is read-only.
fn mirror_dirs(lower: &Path, upper: &Path) {
    const MOST: usize = 4096;
    const DEEPEST: usize = 5;
    let mut pending = VecDeque::from([(PathBuf::new(), 0)]);
    let mut made = 0;
    while let Some((below, depth)) = pending.pop_front() {
        let Ok(listing) = fs::read_dir(lower.join(&below)) else {
            continue;
        };
        for entry in listing.flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let path = below.join(entry.file_name());
            if made == MOST || fs::create_dir(upper.join(&path)).is_err() {
                return;
            }
            made += 1;
            if depth < DEEPEST {
                pending.push_back((path, depth + 1));
            }
        }
    }
}

fn make_dir(at: &Path, mode: u32) -> Result<()> {
    DirBuilder::new()
        .mode(mode)
        .create(at)
        .during(Step::Mount, at.display())?;
    if mode > 0o777 {
        // The umask takes the writing of others away.
        fs::set_permissions(at, Permissions::from_mode(mode)).during(Step::Mount, at.display())?;
    }
    Ok(())
}
