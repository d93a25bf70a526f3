//! Asking systemd's user manager for a cgroup of our own, where an ordinary user has none.

use std::env;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use belljar_jail::host;

/// Set in the scope, so that a manager that does not keep its word is asked only once.
const MARK: &str = "BELLJAR_IN_SCOPE";

/// Executes this program again inside a delegated scope if that is what it takes to have cgroups.
///
/// Returns where it is not needed or not possible; what is missing then shows when a sandbox is opened.
pub fn enter_if_needed() {
    let Some(runtime) = env::var_os("XDG_RUNTIME_DIR") else {
        return;
    };
    let has_manager = Path::new(&runtime).join("systemd/private").exists();
    if !has_manager || env::var_os(MARK).is_some() || host::cgroups().is_ok() {
        return;
    }
    let Ok(program) = env::current_exe() else {
        return;
    };
    // Returns only if systemd-run is not there.
    let _ = Command::new("systemd-run")
        .args([
            "--user",
            "--scope",
            "--quiet",
            "--collect",
            "--property=Delegate=yes",
            "--",
        ])
        .arg(program)
        .args(env::args_os().skip(1))
        .env(MARK, "1")
        .exec();
}
