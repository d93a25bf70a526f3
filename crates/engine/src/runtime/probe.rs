//! Asking a toolchain about itself, once, on the host.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use belljar_spec::shown;

pub(super) const PATIENCE: Duration = Duration::from_secs(30);
pub(super) const MAX_OUTPUT: u64 = 256 << 10;

/// What version managers read; all else of the caller's environment (options of interpreters, secrets) stays out.
const ENVIRONMENT: [&str; 17] = [
    "PATH",
    "HOME",
    "USER",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "RUSTUP_HOME",
    "RUSTUP_TOOLCHAIN",
    "CARGO_HOME",
    "PYENV_ROOT",
    "PYENV_VERSION",
    "RBENV_ROOT",
    "RBENV_VERSION",
    "NVM_DIR",
    "GOROOT",
    "JAVA_HOME",
    "ASDF_DIR",
    "ASDF_DATA_DIR",
];

/// Changes when a version manager would choose otherwise. PATH is not in it: what it leads to is compared instead.
pub(super) fn environment_hash() -> u64 {
    let mut hasher = DefaultHasher::new();
    for name in ENVIRONMENT.iter().filter(|name| **name != "PATH") {
        std::env::var_os(name).hash(&mut hasher);
    }
    hasher.finish()
}

/// What a probe said.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Answer {
    pub mounts: Vec<PathBuf>,
    /// Files that decide which toolchain a shim means.
    pub watch: Vec<PathBuf>,
    /// `version`, `program` if said, and placeholders of the manifest's own.
    pub vars: BTreeMap<String, String>,
}

/// Runs `command`; the error says why there is no answer.
pub(super) fn ask(command: &[String]) -> Result<Answer, String> {
    parse(&output(command)?)
}

/// What a program of this host prints.
pub(crate) fn output(command: &[String]) -> Result<String, String> {
    let Some((program, args)) = command.split_first() else {
        return Err("the probe is empty".into());
    };
    let kept = ENVIRONMENT
        .iter()
        .filter_map(|name| Some((name, std::env::var_os(name)?)));
    let mut child = Command::new(program)
        .args(args)
        .env_clear()
        .envs(kept)
        .env("LC_ALL", "C.UTF-8")
        // Not the caller's directory, where a stranger's files may lie.
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{} does not start: {error}", shown(program)))?;
    let deadline = Instant::now() + PATIENCE;
    let stdout = drain(child.stdout.take());
    let stderr = drain(child.stderr.take());
    let status = wait(&mut child, deadline)?;
    // A grandchild may hold the pipe open after its parent is gone.
    let left = || {
        deadline
            .saturating_duration_since(Instant::now())
            .max(Duration::from_millis(100))
    };
    let stdout = stdout.recv_timeout(left()).unwrap_or_default();
    let stderr = stderr.recv_timeout(left()).unwrap_or_default();
    if !status.success() {
        let words = stderr
            .lines()
            .rfind(|line| !line.trim().is_empty())
            .unwrap_or_default()
            .trim();
        return Err(if words.is_empty() {
            format!("{} does not work: {status}", shown(program))
        } else {
            words
                .chars()
                .filter(|c| !c.is_control())
                .take(300)
                .collect()
        });
    }
    Ok(stdout)
}

fn drain(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(pipe) = pipe {
            // A failed read leaves what came before, which then does not parse.
            let _ = pipe.take(MAX_OUTPUT).read_to_end(&mut bytes);
        }
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}

fn wait(child: &mut Child, deadline: Instant) -> Result<std::process::ExitStatus, String> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(2)),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!(
                    "its probe did not end within {} s",
                    PATIENCE.as_secs()
                ));
            }
            Err(error) => return Err(format!("its probe cannot be waited for: {error}")),
        }
    }
}

pub(super) fn parse(text: &str) -> Result<Answer, String> {
    let mut answer = Answer::default();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let Some((key, value)) = line.split_once('=') else {
            return Err(format!(
                "its probe printed {}, which is not key=value",
                shown(line)
            ));
        };
        match key {
            "mount" | "watch" | "program" if !value.starts_with('/') => {
                return Err(format!(
                    "its probe printed {}, which is not an absolute path",
                    shown(line)
                ));
            }
            "mount" => answer.mounts.push(value.into()),
            "watch" => answer.watch.push(value.into()),
            _ => {
                answer.vars.insert(key.to_owned(), value.to_owned());
            }
        }
    }
    match answer.vars.get("version") {
        Some(version) if !version.is_empty() && version.len() <= 200 => Ok(answer),
        _ => Err("its probe did not print version=…".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Result<Answer, String> {
        ask(&["/bin/sh".into(), "-c".into(), script.into()])
    }

    #[test]
    fn answers() {
        let answer = sh("echo version=Toy 1; echo mount=/opt/toy; echo watch=/x; echo edition=7; pwd | sed s/^/cwd=/").unwrap();
        assert_eq!(answer.mounts, [PathBuf::from("/opt/toy")]);
        assert_eq!(answer.watch, [PathBuf::from("/x")]);
        assert_eq!(
            (
                &*answer.vars["version"],
                &*answer.vars["edition"],
                &*answer.vars["cwd"]
            ),
            ("Toy 1", "7", "/")
        );
    }

    #[test]
    fn no_answers() {
        for (script, why) in [
            (
                "echo hello",
                "its probe printed \"hello\", which is not key=value",
            ),
            (
                "echo mount=opt; echo version=1",
                "its probe printed \"mount=opt\", which is not an absolute path",
            ),
            ("true", "its probe did not print version=…"),
            (
                "echo a >&2; echo 'node is missing' >&2; exit 1",
                "node is missing",
            ),
            (
                "kill -9 $$",
                "\"/bin/sh\" does not work: signal: 9 (SIGKILL)",
            ),
        ] {
            assert_eq!(sh(script).unwrap_err(), why);
        }
        assert!(
            ask(&["/nowhere".into()])
                .unwrap_err()
                .starts_with("\"/nowhere\" does not start")
        );
    }
}
