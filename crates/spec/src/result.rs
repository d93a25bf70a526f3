//! How a run ended. A program that failed is one of these, never an error.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::{Backend, Content, Limits, RunId, SandboxId};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Ended by itself with exit code 0.
    Ok,
    /// Ended by itself with another exit code, or by a signal of its own making.
    Failed,
    CompileFailed,
    TimedOut,
    /// The kernel killed a process of the sandbox for want of memory.
    OutOfMemory,
    /// Ended by somebody else: the caller, or the end of the daemon.
    Killed,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[expect(clippy::struct_excessive_bools, reason = "the contract's shape")]
pub struct RunResult {
    pub id: RunId,
    pub sandbox: SandboxId,
    pub language: String,
    /// What ran it, like `Python 3.11.2`.
    pub runtime: String,
    pub backend: Backend,
    pub status: Status,
    pub success: bool,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// What is not UTF-8 shows as replacement characters; `stdout_base64` then has the bytes.
    pub stdout: String,
    pub stderr: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout_base64: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr_base64: Option<String>,
    pub stdout_truncated: bool,
    pub stderr_truncated: bool,
    pub compile: Option<Stage>,
    pub value: Option<serde_json::Value>,
    pub value_text: Option<String>,
    pub displays: Vec<Display>,
    pub error: Option<ErrorInfo>,
    pub state: State,
    pub usage: Usage,
    pub limits: Limits,
    pub report: Report,
    /// What the code wrote to its workspace.
    pub files: Vec<FileInfo>,
    /// There were more files, or deeper ones, than are listed.
    #[serde(default)]
    pub files_truncated: bool,
    /// What was tried to reach, in order; in a session, since the result before.
    #[serde(default)]
    pub connections: Vec<Connection>,
    /// How many connections there were beyond those in the list.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub connections_omitted: u64,
    /// RFC 3339.
    pub started_at: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's shape")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn once() -> u64 {
    1
}

/// A connection that code tried to make.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Connection {
    /// As the code named it.
    pub host: String,
    pub port: u16,
    /// The address it was pinned to, if it came that far.
    pub address: Option<String>,
    pub allowed: bool,
    /// Why it was not allowed, or did not come about, or was cut.
    pub reason: Option<String>,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// How often: refusals for the same reason, and look-ups of a name (port 53, no address), are told once for each run, and the
    /// bytes are those of all.
    #[serde(default = "once")]
    pub count: u64,
    /// RFC 3339.
    pub started_at: String,
    pub duration_ms: f64,
}

/// The compile stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Stage {
    pub status: Status,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout_base64: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr_base64: Option<String>,
    pub stdout_truncated: bool,
    pub stderr_truncated: bool,
    pub usage: Usage,
    pub limits: Limits,
}

/// Something the code showed: a picture, a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Display {
    pub mime: String,
    /// Base64.
    pub data: String,
    /// The same in other forms.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<Medium>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Medium {
    pub mime: String,
    /// Base64.
    pub data: String,
}

/// The exception that ended the code, as the code tells it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ErrorInfo {
    #[serde(rename = "type")]
    pub kind: String,
    pub message: String,
    pub traceback: String,
    pub line: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
    /// What led to it, nearest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Cause>,
    pub category: Option<String>,
    pub hint: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Cause {
    #[serde(rename = "type")]
    pub kind: String,
    pub message: String,
}

/// What became of the session the code ran in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum State {
    Kept,
    Lost,
    #[default]
    None,
}

/// Measured from outside.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Usage {
    pub wall_ms: f64,
    /// Absent, like the peaks, where the host counts nothing (`--weaken cgroups`).
    pub cpu_ms: Option<f64>,
    pub memory_peak_bytes: Option<u64>,
    pub processes_peak: Option<u64>,
    /// From the request to the first instruction of the code.
    pub start_ms: f64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FileInfo {
    pub path: String,
    pub bytes: u64,
    /// What is in it, if that was asked for with `collect`: text, or `{"base64": …}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
}

/// How the sandbox was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Root,
    #[default]
    Rootless,
}

/// Which protections were seen to be on, from outside, before the code was released.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Report {
    /// What isolated the run.
    #[serde(default)]
    pub backend: Backend,
    /// Of a container: the engine and what it runs containers with, like `docker 20.10.24, runc`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    pub mode: Mode,
    /// Namespaces of its own, like `user`, `pid`, `net`.
    pub namespaces: Vec<String>,
    /// The user id on the host.
    pub uid: u32,
    pub no_new_privs: bool,
    /// `none`, or the sets as the kernel prints them.
    pub capabilities: String,
    pub seccomp: SeccompReport,
    /// The ABI version in force.
    pub landlock: Option<u32>,
    pub cgroup: Option<CgroupReport>,
    pub read_only_root: bool,
    /// What its root is made of: `host`, or `image NAME (DIGEST)`.
    pub root: String,
    pub network: String,
    /// Of a container that has one besides: the engine's name for its own bridge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridge: Option<String>,
    /// `workspace`, or `none`: no files, and no further processes.
    pub filesystem: String,
    /// What was left out by name.
    pub weakened: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SeccompReport {
    /// `filter`, `strict` or `off`.
    pub mode: String,
    pub filters: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CgroupReport {
    /// 1 or 2.
    pub version: u8,
    /// Control file → what it said when read back, like `pids.max` → `128`.
    pub controllers: std::collections::BTreeMap<String, String>,
}

/// Bytes of a program as text, and as base64 where the text would lose something.
pub fn output_text(bytes: Vec<u8>) -> (String, Option<String>) {
    match String::from_utf8(bytes) {
        Ok(text) => (text, None),
        Err(error) => {
            let bytes = error.into_bytes();
            (
                String::from_utf8_lossy(&bytes).into_owned(),
                Some(STANDARD.encode(&bytes)),
            )
        }
    }
}

/// What `belljar run` exits with.
pub fn exit_code_for(result: &RunResult) -> u8 {
    match (result.status, &result.compile) {
        (Status::CompileFailed, Some(stage)) => {
            exit_code(stage.status, stage.exit_code, stage.signal)
        }
        _ => exit_code(result.status, result.exit_code, result.signal),
    }
}

fn exit_code(status: Status, code: Option<i32>, signal: Option<i32>) -> u8 {
    let ended = match (code, signal) {
        (_, Some(signal)) => u8::try_from(128 + (signal & 0x7f)).ok(),
        // As the shell sees it: the low byte.
        (Some(code), None) => u8::try_from(code & 0xff).ok(),
        (None, None) => None,
    };
    match status {
        Status::Ok => 0,
        Status::TimedOut => 124,
        Status::OutOfMemory => 137,
        Status::Killed => ended.filter(|&code| code != 0).unwrap_or(137),
        // A failure never looks like success.
        Status::Failed | Status::CompileFailed => ended.filter(|&code| code != 0).unwrap_or(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostCapacity, LimitsPatch, Maxima};

    fn result() -> RunResult {
        let host = HostCapacity {
            memory_bytes: 1 << 34,
            cpus: 2,
            open_files: 1 << 20,
            maxima: Maxima::NONE,
        };
        RunResult {
            id: RunId::from_bits(1),
            sandbox: SandboxId::from_bits(2),
            language: "python".into(),
            runtime: "Python 3.11.2".into(),
            backend: Backend::Native,
            status: Status::Ok,
            success: true,
            exit_code: Some(0),
            signal: None,
            stdout: "hi\n".into(),
            stderr: String::new(),
            stdout_base64: None,
            stderr_base64: None,
            stdout_truncated: false,
            stderr_truncated: false,
            compile: None,
            value: Some(42.into()),
            value_text: Some("42".into()),
            displays: vec![Display {
                mime: "image/png".into(),
                data: "AA==".into(),
                alternatives: Vec::new(),
            }],
            error: Some(ErrorInfo {
                kind: "ZeroDivisionError".into(),
                line: Some(3),
                ..ErrorInfo::default()
            }),
            state: State::None,
            usage: Usage {
                wall_ms: 3.1,
                cpu_ms: Some(2.0),
                memory_peak_bytes: Some(9_437_184),
                processes_peak: Some(1),
                start_ms: 0.4,
            },
            limits: LimitsPatch::default()
                .resolve(&LimitsPatch::default(), &host)
                .unwrap(),
            report: Report {
                capabilities: "none".into(),
                ..Report::default()
            },
            files: vec![FileInfo {
                path: "out.csv".into(),
                bytes: 120,
                content: None,
            }],
            files_truncated: false,
            connections: Vec::new(),
            connections_omitted: 0,
            started_at: "2026-01-02T03:04:05Z".into(),
        }
    }

    #[test]
    fn json_shape() {
        insta::assert_json_snapshot!(result());
        let json = serde_json::to_string(&result()).unwrap();
        assert_eq!(serde_json::from_str::<RunResult>(&json).unwrap(), result());
    }

    #[test]
    fn bytes_that_are_not_text() {
        assert_eq!(output_text(b"hi".to_vec()), ("hi".into(), None));
        assert_eq!(
            output_text(b"a\xff".to_vec()),
            ("a\u{fffd}".into(), Some("Yf8=".into()))
        );
    }

    #[test]
    fn exit_codes_are_the_contracts() {
        for (status, code, signal, expected) in [
            (Status::Ok, Some(0), None, 0),
            (Status::Failed, Some(3), None, 3),
            (Status::Failed, Some(256), None, 1),
            (Status::Failed, None, Some(11), 139),
            (Status::Failed, None, None, 1),
            (Status::TimedOut, None, Some(9), 124),
            (Status::OutOfMemory, None, Some(9), 137),
            (Status::OutOfMemory, Some(0), None, 137),
            (Status::Killed, None, Some(15), 143),
            (Status::Killed, None, None, 137),
        ] {
            assert_eq!(
                exit_code(status, code, signal),
                expected,
                "{status:?} {code:?} {signal:?}"
            );
        }
        let mut failed = result();
        failed.status = Status::CompileFailed;
        failed.exit_code = None;
        assert_eq!(exit_code_for(&failed), 1);
        failed.compile = Some(Stage {
            status: Status::TimedOut,
            exit_code: None,
            signal: Some(9),
            stdout: String::new(),
            stderr: String::new(),
            stdout_base64: None,
            stderr_base64: None,
            stdout_truncated: false,
            stderr_truncated: false,
            usage: Usage::default(),
            limits: failed.limits,
        });
        assert_eq!(exit_code_for(&failed), 124);
    }
}
