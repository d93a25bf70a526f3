//! Starting the binary and looking at how it ended.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

/// The build under test.
pub fn binary() -> PathBuf {
    std::env::var_os("BELLJAR_BIN").map_or_else(
        || PathBuf::from(env!("CARGO_BIN_EXE_belljar")),
        PathBuf::from,
    )
}

/// The command without settings of the caller's environment, and with nothing on its stdin.
pub fn belljar() -> Command {
    let mut command = Command::new(binary());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("BELLJAR_") {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null());
    command
}

/// How a process ended and what it wrote.
#[derive(Debug)]
pub struct Ended {
    pub code: i32,
    pub bytes: Vec<u8>,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Self {
            code: code_of(output.status),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            bytes: output.stdout,
        }
    }
}

impl Ended {
    /// Everything at once, so that a failed comparison shows it all.
    pub fn parts(&self) -> (i32, &str, &str) {
        (self.code, &self.stdout, &self.stderr)
    }
}

/// The exit code, or minus the signal.
pub fn code_of(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status
        .code()
        .unwrap_or_else(|| -status.signal().unwrap_or(0))
}

/// `belljar run ARGS`.
pub fn run(args: &[&str]) -> Ended {
    belljar().arg("run").args(args).output().unwrap().into()
}

/// `belljar run ARGS` with these bytes on its stdin.
pub fn run_with(args: &[&str], stdin: &[u8]) -> Ended {
    let mut child = belljar()
        .arg("run")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let stdin = stdin.to_vec();
    // A program need not read all of it, so a broken pipe is fine.
    let feeder = std::thread::spawn(move || drop(pipe.write_all(&stdin)));
    let ended = child.wait_with_output().unwrap().into();
    feeder.join().unwrap();
    ended
}

/// The result object of a run.
#[derive(Debug)]
pub struct Json {
    pub value: Value,
    pub code: i32,
}

/// `belljar run --json ARGS`.
pub fn json(args: &[&str]) -> Json {
    let ended: Ended = belljar()
        .args(["run", "--json"])
        .args(args)
        .output()
        .unwrap()
        .into();
    let parsed = serde_json::from_str(&ended.stdout);
    let value = parsed.unwrap_or_else(|error| panic!("no result object: {error}: {ended:?}"));
    Json {
        value,
        code: ended.code,
    }
}

impl Json {
    /// By path, like `usage.wall_ms`.
    pub fn get(&self, path: &str) -> &Value {
        path.split('.').fold(&self.value, |at, key| {
            at.get(key)
                .unwrap_or_else(|| panic!("no {path} in {:#}", self.value))
        })
    }

    pub fn text(&self, path: &str) -> &str {
        self.get(path)
            .as_str()
            .unwrap_or_else(|| panic!("{path} is no text in {:#}", self.value))
    }

    pub fn number(&self, path: &str) -> f64 {
        self.get(path)
            .as_f64()
            .unwrap_or_else(|| panic!("{path} is no number in {:#}", self.value))
    }

    pub fn status(&self) -> &str {
        self.text("status")
    }

    pub fn stdout(&self) -> &str {
        self.text("stdout").trim_end()
    }
}

/// Python with a message when it did not end well.
pub fn python(code: &str) -> String {
    let ended = run(&["-c", code]);
    assert_eq!(ended.code, 0, "{ended:?}");
    ended.stdout.trim_end().to_owned()
}

/// A directory that everybody may look into, with these files.
pub fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::Builder::new()
        .prefix("bjtest-")
        .permissions(fs::Permissions::from_mode(0o755))
        .tempdir()
        .unwrap();
    for (name, content) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    dir
}

pub fn text(path: impl AsRef<Path>) -> String {
    path.as_ref().to_str().unwrap().to_owned()
}

/// A word that occurs nowhere else on this host, not even as the beginning of another.
pub fn marker() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("bjmark{}x{next}e", std::process::id())
}

/// Whether this process is root; what limits and isolation tests expect of the report depends on it.
pub fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").unwrap().uid() == 0
}

/// A missing privilege fails, it never skips.
pub fn need_root(why: &str) {
    assert!(
        is_root(),
        "this test must run as root, {why}: sudo -E make test"
    );
}

/// A missing tool fails with where to get it.
pub fn need_tool(name: &str, package: &str) {
    let found = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|dir| dir.join(name).is_file());
    assert!(found, "this test needs {name}: apt-get install {package}");
}
