//! Roots that a daemon of root's makes once, and kernels that have no such thing.

use std::process::{Command, Stdio};

use super::daemon::{Daemon, until};
use super::harness::belljar;

/// Executes its arguments where no file system can be made that is attached nowhere, as on kernels that have no moulds of roots.
const WITHOUT_MOULDS: &str = r"
import ctypes, os, struct, sys
FSOPEN, ENOSYS = 430, 38
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, FSOPEN), (0x06, 0, 0, 0x50000 | ENOSYS), (0x06, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack('HxxxxxxP', len(steps), ctypes.addressof(code)))
prctl = ctypes.CDLL(None, use_errno=True).prctl
assert prctl(38, 1, 0, 0, 0) == 0 and prctl(22, 2, program) == 0, ctypes.get_errno()
os.execv(sys.argv[1], sys.argv[1:])
";

#[test]
fn a_kernel_without_moulds_of_roots_is_enough() {
    let state = tempfile::Builder::new().prefix("bjd-").tempdir().unwrap();
    let plain = belljar();
    let mut command = Command::new("python3");
    command.args(["-c", WITHOUT_MOULDS]);
    command.arg(plain.get_program()).stdin(Stdio::null());
    for (name, _) in plain.get_envs() {
        command.env_remove(name);
    }
    let daemon = Daemon::started_by(command, state, "[pool]\npython = 2\n");
    let code = "import os; print(os.getppid(), os.stat('/').st_dev, oct(os.stat('/dev').st_mode), len(os.listdir('/etc')) > 4)";
    let said = || {
        let run = daemon.run(&serde_json::json!({ "code": code }));
        run["stdout"].as_str().unwrap().to_owned()
    };
    // A copy is nobody's child; what was executed is a child of the sandbox's first process.
    until("copies", || said().starts_with("0 "));
    let said = [said(), said()];
    for words in &said {
        assert!(
            words.starts_with("0 ") && words.ends_with(" 0o40755 True\n"),
            "{said:?}"
        );
    }
    assert_ne!(said[0], said[1], "each has a root of its own");
}
