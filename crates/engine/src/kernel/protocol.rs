//! The frames of `kernels/README.md`.

use std::collections::BTreeMap;

use belljar_spec::{Cause, Tool, ToolAnswer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{bounded, display};

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
    /// A run comes next. For kernels that can do something about it.
    Soon,
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
        value_bytes: usize,
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

/// From a kernel. Claims of untrusted code, bounded by the frame, and where they are values by what those take in memory.
pub enum Reply {
    Ready {},
    Display(Display),
    Call(Call),
    Done(Box<Done>),
    Exit(Exit),
}

impl Reply {
    /// What a frame says. It is read twice: an enum with a tag is kept as a whole before it is known what it is, and is large then.
    pub fn parse(frame: &[u8]) -> serde_json::Result<Self> {
        #[derive(Deserialize)]
        struct Head {
            op: Op,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum Op {
            Ready,
            Display,
            Call,
            Done,
            Exit,
        }
        Ok(match serde_json::from_slice::<Head>(frame)?.op {
            Op::Ready => Self::Ready {},
            Op::Display => Self::Display(serde_json::from_slice(frame)?),
            Op::Call => Self::Call(serde_json::from_slice(frame)?),
            Op::Done => Self::Done(serde_json::from_slice(frame)?),
            Op::Exit => Self::Exit(serde_json::from_slice(frame)?),
        })
    }
}

#[derive(Deserialize)]
pub struct Display {
    pub id: String,
    /// `None`: it is too large, or nothing that can be shown.
    #[serde(deserialize_with = "display::read")]
    pub data: Option<belljar_spec::Display>,
}

#[derive(Deserialize)]
pub struct Call {
    pub id: String,
    #[serde(rename = "call")]
    pub number: u64,
    pub tool: String,
    /// `None`: they are too large.
    #[serde(default = "nothing", deserialize_with = "bounded::list")]
    pub args: Option<Vec<Value>>,
    #[serde(default = "nothing", deserialize_with = "bounded::object")]
    pub kwargs: Option<Map<String, Value>>,
}

/// After the `done` of the last run: the process is about to exit.
#[derive(Deserialize)]
pub struct Exit {
    pub id: String,
    pub code: u8,
}

#[derive(Deserialize)]
pub struct Done {
    pub id: String,
    pub ok: bool,
    #[serde(default, deserialize_with = "bounded::value")]
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
    #[serde(default, deserialize_with = "bounded::causes")]
    pub causes: Vec<Cause>,
}

#[expect(clippy::unnecessary_wraps, reason = "as the fields are")]
fn nothing<T: Default>() -> Option<T> {
    Some(T::default())
}
