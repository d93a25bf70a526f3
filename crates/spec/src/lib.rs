//! The words of Belljar: what a caller asks, what limits hold, how a run ended, what went wrong.
//!
//! Every door (CLI, HTTP, Python, Rust) speaks through these types, so a default, a maximum, an error message or a JSON
//! name is written once, here. Nothing in this crate reads a file, a clock or the environment: facts about the host come
//! in as [`HostCapacity`], random bits as arguments.

mod amount;
mod check;
mod error;
mod glob;
mod id;
mod json;
mod limits;
mod nearest;
mod network;
#[cfg(feature = "openapi")]
mod openapi;
mod path;
mod publish;
mod request;
mod result;
mod session;
mod volume;
mod weaken;

pub use amount::{Amount, Unit};
pub use check::{
    MAX_CODE_BYTES, check_args, check_code, check_env, check_labels, code_from_bytes, source_of,
};
pub use error::{CODES, Code, Error, shown};
pub use glob::fits_glob;
pub use id::{RunId, SandboxId};
pub use json::{from_deserializer, from_json, milliseconds, object, or_default, some_object};
pub use limits::{HostCapacity, LIMITS, Limit, LimitKind, Limits, LimitsPatch, Maxima};
pub use nearest::{nearest, nearest_within};
pub use network::{
    Allow, DEFAULT_PORTS, HostRule, Network, NetworkCaps, Secret, Target, is_host_name,
};
pub use path::{MAX_DEPTH, WORKSPACE, check_destination, check_mount_point, check_workdir};
pub use publish::Publish;
pub use request::{Backend, Content, Filesystem, MAX_FILES, RunRequest};
pub use result::{
    Cause, CgroupReport, Connection, Display, ErrorInfo, FileInfo, Medium, Mode, Report, RunResult,
    SeccompReport, Stage, State, Status, Usage, exit_code_for, output_text,
};
pub use session::{
    CodeRequest, CommandRequest, RunEvent, SandboxRequest, Tool, ToolAnswer, ToolCall,
};
pub use volume::Volume;
pub use weaken::Weakening;
