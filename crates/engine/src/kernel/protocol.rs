//! The frames of `kernels/README.md`.

use std::collections::BTreeMap;

use belljar_spec::{Cause, Tool, ToolAnswer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// To a kernel.
#[derive(Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Request<'a> {
    Setup {
        /// All of it, or as it is.
        env: Option<BTreeMap<String, String>>,
        imports: Option<&'a [String]>,
        files: bool,
    },
    /// Besides what there is.
    Env { env: BTreeMap<String, String> },
    Run {
        id: &'a str,
        code: &'a str,
        name: &'a str,
        args: &'a [String],
        globals: &'a Map<String, Value>,
        #[serde(skip_serializing_if = "Option::is_none")]
        tools: Option<&'a [Tool]>,
        stdin: Option<Stdin<'a>>,
        last: bool,
        value_bytes: u64,
    },
    Answer {
        id: &'a str,
        call: u64,
        #[serde(flatten)]
        answer: &'a ToolAnswer,
    },
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stdin<'a> {
    Text(&'a str),
    Descriptor(bool),
}

/// From a kernel. Claims of untrusted code, bounded by the frame.
#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Reply {
    Ready {},
    Display {
        id: String,
        data: BTreeMap<String, Value>,
    },
    Call {
        id: String,
        call: u64,
        tool: String,
        #[serde(default)]
        args: Vec<Value>,
        #[serde(default)]
        kwargs: Map<String, Value>,
    },
    Done(Box<Done>),
    /// After the `done` of the last run: the process is about to exit.
    Exit {
        id: String,
        code: u8,
    },
}

#[derive(Deserialize)]
pub struct Done {
    pub id: String,
    pub ok: bool,
    #[serde(default, deserialize_with = "present")]
    pub value: Option<Value>,
    #[serde(default)]
    pub value_text: Option<String>,
    #[serde(default)]
    pub error: Option<Failure>,
    #[serde(default)]
    pub exit_code: Option<i32>,
    #[serde(default)]
    pub interrupted: bool,
}

/// The exception that ended the code.
#[derive(Deserialize)]
pub struct Failure {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub message: String,
    #[serde(default)]
    pub traceback: String,
    #[serde(default)]
    pub line: Option<u32>,
    #[serde(default)]
    pub column: Option<u32>,
    #[serde(default)]
    pub causes: Vec<Cause>,
}

/// A value that is there, `null` included.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}
