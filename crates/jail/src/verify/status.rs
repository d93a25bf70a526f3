//! What a process is, as the kernel says.

use std::fmt::Display;

use crate::error::{Context, Error, Result, Step};
use crate::kernel_file;

/// `/proc/PID/status`, by key.
pub(super) struct Status(pub(super) String);

impl Status {
    pub(super) fn read(pid: impl Display) -> Result<Self> {
        let path = format!("/proc/{pid}/status");
        kernel_file::read(&path)
            .during(Step::Verify, path)
            .map(Self)
    }

    pub(super) fn get(&self, key: &str) -> &str {
        let value = |line: &'_ str| {
            line.strip_prefix(key)
                .and_then(|rest| rest.strip_prefix(':'))
                .is_some()
        };
        let line = self.0.lines().find(|line| value(line)).unwrap_or_default();
        line.get(key.len() + 1..).unwrap_or_default().trim()
    }

    pub(super) fn filters(&self) -> Result<u32> {
        let count = self.get("Seccomp_filters").parse();
        count.map_err(|_| Error::because(Step::Verify, "seccomp", "the filters are not counted"))
    }

    /// Whether real, effective, saved and file-system id are all `id`.
    pub(super) fn four(&self, key: &str, id: u32) -> bool {
        let id = id.to_string();
        let mut ids = self.get(key).split_whitespace();
        ids.clone().count() == 4 && ids.all(|found| found == id)
    }
}
