//! The kernels' own files, as a sandbox sees them.

use std::path::{Path, PathBuf};

use belljar_jail::Entry;

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// Where a sandbox has the files of its kernel.
pub const PLACE: &str = "/belljar";

pub fn is_known(kernel: &str) -> bool {
    FILES.iter().any(|(of, _, _)| *of == kernel)
}

/// A kernel's files: path below its place, text.
pub fn files_of(kernel: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    FILES
        .iter()
        .filter(move |(of, _, _)| *of == kernel)
        .map(|(_, path, text)| (*path, *text))
}

/// The entries that make a kernel's files visible.
pub fn entries(kernel: &str) -> impl Iterator<Item = Entry> {
    FILES
        .iter()
        .filter(move |(of, _, _)| *of == kernel)
        .map(|(_, path, text)| Entry::File {
            path: Path::new(PLACE).join(PathBuf::from(path)),
            content: (*text).to_owned(),
        })
}
