//! Where a root is made, and what all of them have in common: made before the plan is known.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};

use super::make_dir;
use crate::error::{Context, Result, Step};
use crate::sys;

/// Staging place in the child's own mount namespace. Nobody asks for anything that this hides.
pub(super) const STAGE: &str = "/proc";
const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];
const DEVICE_LINKS: [(&str, &str); 4] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];

/// What all roots have in common, made before the plan is known.
pub fn stage() -> Result<()> {
    begin()?;
    go_on(None)
}

/// The same for a process without a process namespace of its own. Root's sees the processes of its own user, which are itself and
/// what it forks; an ordinary user may not have that.
pub fn stage_for_zygote(is_root: bool) -> Result<()> {
    begin()?;
    if is_root { go_on(None) } else { place_root() }
}

/// The least of it, for whoever may get a mould: the tmpfs, and where the root will be.
pub fn begin() -> Result<()> {
    // Nothing that happens here may travel back to the host's mounts.
    mount(
        None::<&str>,
        "/",
        None::<&str>,
        MsFlags::MS_REC | MsFlags::MS_PRIVATE,
        None::<&str>,
    )
    .during(Step::Mount, "/ as private")?;
    mount(
        Some("belljar"),
        STAGE,
        Some("tmpfs"),
        MsFlags::MS_NOSUID | MsFlags::MS_NODEV,
        Some("size=1m,mode=755"),
    )
    .during(Step::Mount, "the sandbox's tmpfs")?;
    make_dir(&root_path(), 0o755)
}

/// The rest, of which a mould has all but the processes.
pub fn go_on(mould: Option<BorrowedFd<'_>>) -> Result<()> {
    let root = root_path();
    if let Some(tree) = mould {
        sys::attach_tree(tree, &root).during(Step::Mount, "the mould")?;
    } else {
        place_root()?;
        make_dir(&root.join("proc"), 0o555)?;
    }
    mount_proc(&root)
}

fn place_root() -> Result<()> {
    let root = root_path();
    let tree = sys::clone_tree(&root).during(Step::Mount, "the sandbox's root")?;
    sys::attach_tree(tree.as_fd(), &root).during(Step::Mount, "the sandbox's root")?;
    place_devices(&root)
}

pub(super) fn root_path() -> PathBuf {
    Path::new(STAGE).join("root")
}

pub(super) fn place_devices(root: &Path) -> Result<()> {
    let dev = root.join("dev");
    make_dir(&dev, 0o755)?;
    for name in DEVICES {
        let source = Path::new("/dev").join(name);
        let at = dev.join(name);
        let place = || {
            let tree = sys::clone_tree(&source)?;
            File::create(&at)?;
            // Not NODEV: these five nodes are the devices a sandbox has.
            sys::set_mount_attributes(tree.as_fd(), sys::NOSUID | sys::NOEXEC, None)?;
            sys::attach_tree(tree.as_fd(), &at)
        };
        place().during(Step::Mount, source.display())?;
    }
    DEVICE_LINKS
        .iter()
        .try_for_each(|(name, to)| symlink(to, dev.join(name)))
        .during(Step::Mount, "/dev")
}

/// Only process directories, and of those only the ones the code may trace: not init.
fn mount_proc(root: &Path) -> Result<()> {
    let at = root.join("proc");
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(
        Some("proc"),
        &at,
        Some("proc"),
        flags,
        Some("hidepid=invisible,subset=pid"),
    )
    .during(Step::Proc, "the sandbox")
}
