//! Where the cgroup hierarchies are mounted and where in them this process is.

use std::io;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

use crate::kernel_file;

/// One mounted hierarchy.
#[derive(Clone, Debug)]
pub struct Hierarchy {
    pub mount: PathBuf,
    /// The directory of the group that this process is in.
    pub own: PathBuf,
    /// As it stands in `/proc/self/cgroup`: `0::` for version 2, `4:memory:` and the like for version 1.
    pub label: String,
    /// The part of a member's path in `/proc/PID/cgroup` that `mount` stands for.
    pub root: PathBuf,
}

#[derive(Clone, Debug, Default)]
pub struct Layout {
    pub v2: Option<Hierarchy>,
    /// Controller name and its hierarchy.
    pub v1: Vec<(String, Hierarchy)>,
}

impl Layout {
    pub fn read() -> io::Result<Self> {
        Ok(Self::parse(
            &kernel_file::read("/proc/self/mountinfo")?,
            &kernel_file::read("/proc/self/cgroup")?,
        ))
    }

    fn parse(mountinfo: &str, cgroup: &str) -> Self {
        let mut layout = Self::default();
        for line in mountinfo.lines() {
            let Some((left, right)) = line.split_once(" - ") else {
                continue;
            };
            let mut left = left.split(' ').skip(3);
            let (Some(root), Some(mount)) = (left.next(), left.next()) else {
                continue;
            };
            let mut right = right.split(' ');
            let (kind, options) = (right.next(), right.nth(1).unwrap_or_default());
            match kind {
                Some("cgroup2") => {
                    layout.v2 = layout
                        .v2
                        .or_else(|| locate(cgroup, root, mount, str::is_empty));
                }
                Some("cgroup") => {
                    for controller in ["memory", "cpu", "cpuacct", "pids"] {
                        let named = |list: &str| list.split(',').any(|word| word == controller);
                        if named(options)
                            && layout.v1(controller).is_none()
                            && let Some(found) = locate(cgroup, root, mount, named)
                        {
                            layout.v1.push((controller.to_owned(), found));
                        }
                    }
                }
                _ => {}
            }
        }
        layout
    }

    pub fn v1(&self, controller: &str) -> Option<&Hierarchy> {
        self.v1
            .iter()
            .find(|(name, _)| name == controller)
            .map(|(_, hierarchy)| hierarchy)
    }

    /// Whether version 2 has the controllers here, or only stands beside version 1.
    pub fn has_v2_controllers(&self) -> bool {
        let Some(v2) = &self.v2 else { return false };
        // A controller is in one hierarchy only.
        if self.v1("memory").is_some() {
            return false;
        }
        let available = kernel_file::read(v2.mount.join("cgroup.controllers")).unwrap_or_default();
        ["memory", "pids", "cpu"]
            .iter()
            .all(|wanted| available.split_whitespace().any(|word| word == *wanted))
    }
}

fn locate(
    cgroup: &str,
    root: &str,
    mount: &str,
    is_it: impl Fn(&str) -> bool,
) -> Option<Hierarchy> {
    cgroup.lines().find_map(|line| {
        let (id, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        if !is_it(controllers) {
            return None;
        }
        let below = Path::new(path).strip_prefix(root).ok()?;
        Some(Hierarchy {
            mount: mount.into(),
            own: Path::new(mount).join(below),
            label: format!("{id}:{controllers}:"),
            root: root.into(),
        })
    })
}

impl Hierarchy {
    /// Where the group is that a member's `/proc/PID/cgroup` names, if that has `name` in it.
    pub fn directory(&self, memberships: &str, name: &str) -> Option<PathBuf> {
        let path = memberships
            .lines()
            .find_map(|line| line.strip_prefix(&self.label))?;
        let below = Path::new(path).strip_prefix(&self.root).ok()?;
        let dir = self.mount.join(below);
        (path.contains(name) && dir.is_dir()).then_some(dir)
    }

    /// The line of a member's `/proc/PID/cgroup` when it is in `dir`.
    pub fn membership(&self, dir: &Path) -> String {
        let below = dir.strip_prefix(&self.mount).unwrap_or(dir);
        format!("{}{}", self.label, self.root.join(below).display())
    }
}

pub fn is_writable(path: &Path) -> bool {
    access(path, AccessFlags::W_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hybrid_layout_is_read() {
        let mounts = "30 24 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
                      31 24 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
                      32 24 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let layout = Layout::parse(mounts, "4:memory:/a/b\n3:cpu,cpuacct:/\n0::/x\n");
        let memory = layout.v1("memory").expect("memory");
        assert_eq!(memory.own, Path::new("/sys/fs/cgroup/memory/a/b"));
        assert_eq!(memory.membership(&memory.own.join("c")), "4:memory:/a/b/c");
        assert_eq!(
            layout.v1("cpuacct").expect("cpuacct").own,
            Path::new("/sys/fs/cgroup/cpu")
        );
        assert_eq!(
            layout.v2.expect("v2").own,
            Path::new("/sys/fs/cgroup/unified/x")
        );
    }

    #[test]
    fn a_name_is_compared_whole() {
        let layout = Layout::parse(
            "1 2 0:1 / /c rw - cgroup cgroup rw,cpuset\n",
            "1:cpuset:/\n",
        );
        assert!(layout.v1("cpu").is_none());
    }

    #[test]
    fn a_containers_own_root_is_taken_off() {
        let layout = Layout::parse(
            "1 2 0:1 /docker/x /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
            "0::/docker/x/y\n",
        );
        assert_eq!(layout.v2.expect("v2").own, Path::new("/sys/fs/cgroup/y"));
    }
}
