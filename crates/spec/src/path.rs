//! Paths that a caller may name, checked as text. Whoever opens them still resolves them beneath the right directory.

use crate::Error;

/// The workspace, unless a `workdir` is asked for.
pub const WORKSPACE: &str = "/workspace";

const MAX_PATH_BYTES: usize = 1024;
const MAX_NAME_BYTES: usize = 255;
/// How many directories a file may lie in. What lies deeper is not listed, collected or copied either, so that all that comes out of
/// a workspace can also go into one.
pub const MAX_DEPTH: usize = 64;

/// Where the sandbox keeps its own: no workspace and no volume may hide these.
const RESERVED: [&str; 15] = [
    "/proc", "/sys", "/dev", "/usr", "/etc", "/bin", "/sbin", "/lib", "/lib32", "/lib64",
    "/libx32", "/tmp", "/run", "/boot", "/belljar",
];

/// A path below the workspace to write a file to, like `data/in.csv`.
pub fn check_destination(field: &str, path: &str) -> Result<(), Error> {
    let accepted = if path.is_empty() {
        "give a name"
    } else if path.starts_with('/') {
        "give a path relative to the workspace"
    } else if path.ends_with('/') {
        "give the path of a file, without a slash at its end"
    } else if path.split('/').any(|part| part == "..") {
        "give a path that stays in the workspace, without \"..\""
    } else {
        return check_parts(field, path, path.split('/'));
    };
    Err(Error::invalid_path(field, path, accepted))
}

/// The directory that becomes the workspace, like `/workspace` or `/home/user`.
pub fn check_workdir(path: &str) -> Result<(), Error> {
    check_mount_point("workdir", path)
}

/// An absolute directory inside the sandbox that something may be mounted on.
pub fn check_mount_point(field: &str, path: &str) -> Result<(), Error> {
    let error = |accepted: &str| Err(Error::invalid_path(field, path, accepted));
    let Some(relative) = path.strip_prefix('/') else {
        return error("give an absolute path, like /data");
    };
    if relative.is_empty() {
        return error("give a directory below the root, like /data");
    }
    check_parts(field, path, relative.split('/'))?;
    let reserved = |root: &&str| {
        path.strip_prefix(*root)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    if let Some(root) = RESERVED.into_iter().find(reserved) {
        return error(&format!(
            "{root} belongs to the sandbox itself; give a directory elsewhere, like /data"
        ));
    }
    Ok(())
}

fn check_parts<'a>(
    field: &str,
    path: &str,
    parts: impl Iterator<Item = &'a str>,
) -> Result<(), Error> {
    let error = |accepted: String| Err(Error::invalid_path(field, path, accepted));
    if path.contains('\0') {
        return error("give a path without NUL".into());
    }
    if path.len() > MAX_PATH_BYTES {
        return error(format!("give a path of at most {MAX_PATH_BYTES} bytes"));
    }
    let mut depth = 0;
    for part in parts {
        depth += 1;
        if part.is_empty() || part == "." || part == ".." {
            return error(
                "give a plain path, without \"//\", \".\", \"..\" or a slash at its end".into(),
            );
        }
        if part.len() > MAX_NAME_BYTES {
            return error(format!("give names of at most {MAX_NAME_BYTES} bytes"));
        }
    }
    if depth > MAX_DEPTH + 1 {
        return error(format!("give a path of at most {MAX_DEPTH} directories"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::{Component, Path};

    #[test]
    fn destinations() {
        for good in [
            "a",
            "a/b.txt",
            "..a",
            "a..",
            "-rf",
            "with space",
            "ünïcode",
            ".hidden",
            "...",
            "a\nb",
            &("a/".repeat(MAX_DEPTH) + "a"),
        ] {
            assert_eq!(check_destination("files", good), Ok(()), "{good}");
        }
        let deep = "a/".repeat(MAX_DEPTH + 1) + "a";
        let long = "x".repeat(256);
        for bad in [
            "",
            "/",
            "/etc/passwd",
            "..",
            "../x",
            "a/../b",
            "a/..",
            "a/",
            "a//b",
            "./a",
            "a/.",
            ".",
            "a\0b",
            &deep,
            &long,
        ] {
            let error = check_destination("files", bad).unwrap_err();
            assert_eq!(error.code(), "invalid_path", "{bad}");
        }
    }

    #[test]
    fn mount_points() {
        for good in [
            "/workspace",
            "/data",
            "/home/user/x",
            "/usrlocal",
            "/belljars",
            "/workspace/in",
            "/opt/x",
        ] {
            assert_eq!(check_workdir(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "/",
            "//",
            "workspace",
            "/proc",
            "/proc/self",
            "/dev/shm",
            "/usr/lib",
            "/etc",
            "/tmp",
            "/belljar",
            "/belljar/python",
            "/a/../etc",
            "/a/",
            "/a//b",
            "/./a",
            "/a\0",
        ] {
            assert!(check_workdir(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn fuzz_destinations_never_leave(path in "[a./\\\\\0 -]{0,12}") {
            if check_destination("files", &path).is_ok() {
                prop_assert!(!path.is_empty());
                prop_assert!(Path::new(&path).components().all(|c| matches!(c, Component::Normal(_))));
            }
        }
    }
}
