//! What of the host a toolchain's programs see.

use std::fs;
use std::path::{Path, PathBuf};

use super::discover::home;

/// Directories of the host that every sandbox sees, so that no manifest needs to name what lies below them. The links
/// `/bin`, `/lib` and the like lead here.
pub const BASE: [&str; 12] = [
    "/usr/bin",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/libx32",
    "/usr/libexec",
    "/usr/share",
    "/bin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
];

/// Never to be shown as a whole: they hold other people's things, or a view of the host that the sandbox makes itself.
const TOO_WIDE: [&str; 17] = [
    "/", "/boot", "/dev", "/etc", "/home", "/media", "/mnt", "/opt", "/proc", "/root", "/run",
    "/srv", "/sys", "/tmp", "/usr", "/var", "/var/lib",
];

/// What is to be mounted of what is wanted: not what the base has, nothing twice, and never a whole home.
pub fn mounts(wanted: &[PathBuf]) -> Result<Vec<PathBuf>, String> {
    let mut paths = Vec::new();
    for path in wanted {
        // A link is mounted under its own name, and what it leads to under that name: programs may know either.
        let real = fs::canonicalize(path)
            .map_err(|error| format!("{} cannot be used: {error}", path.display()))?;
        for path in [normal(path), real] {
            if !BASE.iter().any(|base| path.starts_with(base)) {
                refuse_too_wide(&path)?;
                paths.push(path);
            }
        }
    }
    paths.sort_unstable();
    paths.dedup();
    // Sorted, a directory comes before what is below it.
    paths.dedup_by(|below, above| below.starts_with(above));
    Ok(paths)
}

/// Without `..`, which `starts_with` takes for a name. A directory above a link is another one than the text says, but then
/// the real path, which is mounted too, is what the program uses.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => {
                normal.pop();
            }
            part => normal.push(part),
        }
    }
    normal
}

fn refuse_too_wide(path: &Path) -> Result<(), String> {
    let is_home = path.parent() == Some(Path::new("/home"))
        || home().is_some_and(|home| home.starts_with(path));
    if is_home || TOO_WIDE.iter().any(|wide| path == Path::new(wide)) {
        return Err(format!(
            "it would need all of {} inside the sandbox; install it in a directory of its own",
            path.display()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn paths(texts: &[&str]) -> Vec<PathBuf> {
        texts.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn mounts_are_narrow() {
        assert_eq!(
            mounts(&paths(&["/usr/bin", "/usr/lib/../lib", "/usr/share/doc"])),
            Ok(vec![])
        );
        assert_eq!(
            mounts(&paths(&[
                "/usr/local/lib",
                "/usr/local/../local/lib",
                "/usr/local"
            ])),
            Ok(paths(&["/usr/local"]))
        );
        for wide in ["/", "/etc", "/usr", "/home", "/usr/bin/../..", "/tmp/"] {
            assert!(
                mounts(&paths(&[wide]))
                    .unwrap_err()
                    .contains("install it in a directory of its own"),
                "{wide}"
            );
        }
        let home = home().unwrap();
        assert!(mounts(std::slice::from_ref(&home)).is_err());
        assert!(mounts(&[home.parent().unwrap().to_owned()]).is_err());
        assert!(mounts(&paths(&["/nowhere"])).is_err());

        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("toy-1.2"), dir.path().join("toy"));
        fs::create_dir(&real).unwrap();
        symlink(&real, &link).unwrap();
        assert_eq!(
            mounts(&[link.join("."), real.clone()]),
            Ok(vec![link, real])
        );
    }
}
