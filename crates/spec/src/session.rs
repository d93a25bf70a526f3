//! What a caller asks of a kept sandbox: to be made, to run code or a command; and what it hears meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

#[cfg(feature = "openapi")]
use crate::Amount;
use crate::check::{MAX_ARG_BYTES, check_exec};
use crate::{
    Backend, Content, Display, Error, Filesystem, LimitsPatch, Network, Publish, RunRequest,
    RunResult, Volume, Weakening, check_args, check_code, check_labels, json, shown,
};

/// As the kernel takes it (`PATH_MAX`).
const MAX_PATH_BYTES: usize = 4096;
/// How many functions of the caller code may see.
const MAX_TOOLS: usize = 256;
const MAX_TOOL_BYTES: usize = 1 << 20;
/// Values put into a session by one run, as JSON.
const MAX_PUBLISHED: usize = 16;

/// A sandbox that is kept until it is deleted, idle for too long or expired.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct SandboxRequest {
    /// Python if absent.
    pub language: Option<String>,
    #[serde(deserialize_with = "json::or_default")]
    pub env: BTreeMap<String, String>,
    #[serde(deserialize_with = "json::or_default")]
    pub files: BTreeMap<String, Content>,
    #[serde(deserialize_with = "json::object_or_default")]
    pub limits: LimitsPatch,
    #[serde(deserialize_with = "json::or_default")]
    pub network: Network,
    pub imports: Option<Vec<String>>,
    #[serde(deserialize_with = "json::word")]
    pub filesystem: Filesystem,
    #[serde(deserialize_with = "json::or_true")]
    pub read_only: bool,
    pub workdir: Option<String>,
    #[serde(deserialize_with = "json::or_default")]
    pub volumes: Vec<Volume>,
    /// Ports inside that the host listens for: `127.0.0.1:8080:8000`; only at addresses that the daemon's settings allow. Needs a network, `[]` at least.
    #[serde(deserialize_with = "json::or_default")]
    pub publish: Vec<Publish>,
    pub image: Option<String>,
    pub template: Option<String>,
    /// From the index of the language: `numpy==2.*`.
    #[serde(deserialize_with = "json::or_default")]
    pub packages: Vec<String>,
    #[serde(deserialize_with = "json::some_word")]
    pub backend: Option<Backend>,
    /// With the backend docker: what runs the container, like `runsc`; only what the daemon's settings allow.
    pub container_runtime: Option<String>,
    /// Functions of the caller that code may call, until a run names others.
    #[serde(deserialize_with = "json::objects")]
    pub tools: Vec<Tool>,
    /// For people; need not be unique.
    pub name: Option<String>,
    #[serde(deserialize_with = "json::or_default")]
    pub labels: BTreeMap<String, String>,
    /// Deleted when nothing has happened in it for so long. The settings of a daemon bound that for tenants.
    #[serde(deserialize_with = "json::milliseconds")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Amount>))]
    pub idle_timeout_ms: Option<u64>,
    /// Deleted when it is this old. The settings of a daemon may bound that for tenants.
    #[serde(deserialize_with = "json::milliseconds")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Amount>))]
    pub lifetime_ms: Option<u64>,
    /// A fresh interpreter after so many runs.
    pub max_runs: Option<u64>,
    /// How often the code of one run may call tools.
    pub max_tool_calls: Option<u64>,
    #[serde(skip)]
    pub weaken: Vec<Weakening>,
}

impl Default for SandboxRequest {
    fn default() -> Self {
        Self {
            language: None,
            env: BTreeMap::new(),
            files: BTreeMap::new(),
            limits: LimitsPatch::default(),
            network: Network::default(),
            imports: None,
            filesystem: Filesystem::Workspace,
            read_only: true,
            workdir: None,
            volumes: Vec::new(),
            publish: Vec::new(),
            image: None,
            template: None,
            packages: Vec::new(),
            backend: None,
            container_runtime: None,
            tools: Vec::new(),
            name: None,
            labels: BTreeMap::new(),
            idle_timeout_ms: None,
            lifetime_ms: None,
            max_runs: None,
            max_tool_calls: None,
            weaken: Vec::new(),
        }
    }
}

impl SandboxRequest {
    /// Everything that can be said about it without looking at the host.
    pub fn check(&self) -> Result<(), Error> {
        // Where code runs is asked for in the same words, whether the place is kept or not.
        self.as_run(String::from("0")).check()?;
        if self.publish.len() > MAX_PUBLISHED {
            return Err(Error::invalid_request(
                "publish",
                &format!("a list of {}", self.publish.len()),
                format!("give at most {MAX_PUBLISHED}"),
            ));
        }
        if let (Some(first), true) = (self.publish.first(), self.network.is_none()) {
            return Err(Error::invalid_request(
                "publish",
                &first.to_string(),
                "code cannot listen without a network; give it one as well, \"network\": [] at least",
            ));
        }
        check_labels(&self.labels)?;
        if let Some(name) = &self.name
            && (name.is_empty() || name.len() > 128 || name.chars().any(char::is_control))
        {
            return Err(Error::invalid_request(
                "name",
                name,
                "give 1 to 128 bytes of printable text",
            ));
        }
        for (field, given) in [
            ("idle_timeout_ms", self.idle_timeout_ms),
            ("lifetime_ms", self.lifetime_ms),
            ("max_runs", self.max_runs),
        ] {
            if given == Some(0) {
                return Err(Error::invalid_request(
                    field,
                    "0",
                    "give at least 1, or leave it out",
                ));
            }
        }
        Ok(())
    }

    /// The same place for a single run.
    pub fn as_run(&self, code: String) -> RunRequest {
        RunRequest {
            code,
            language: self.language.clone(),
            env: self.env.clone(),
            files: self.files.clone(),
            limits: self.limits.clone(),
            network: self.network.clone(),
            imports: self.imports.clone(),
            filesystem: self.filesystem,
            read_only: self.read_only,
            workdir: self.workdir.clone(),
            volumes: self.volumes.clone(),
            image: self.image.clone(),
            template: self.template.clone(),
            packages: self.packages.clone(),
            backend: self.backend,
            container_runtime: self.container_runtime.clone(),
            tools: self.tools.clone(),
            weaken: self.weaken.clone(),
            ..RunRequest::default()
        }
    }
}

/// Code to be run in a kept sandbox.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct CodeRequest {
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub code: String,
    #[serde(deserialize_with = "json::or_default")]
    pub args: Vec<String>,
    pub stdin: Option<Content>,
    /// Put in before the code starts, and kept.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    #[serde(deserialize_with = "json::or_default")]
    pub globals: Map<String, Value>,
    /// Only time and output can differ from run to run.
    #[serde(deserialize_with = "json::object_or_default")]
    pub limits: LimitsPatch,
    /// Functions of the caller. Replaces those of the sandbox and of earlier runs; `null` keeps them.
    #[serde(deserialize_with = "json::some_objects")]
    pub tools: Option<Vec<Tool>>,
    #[serde(deserialize_with = "json::or_default")]
    pub collect: Vec<String>,
}

impl CodeRequest {
    pub fn new(code: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            ..Self::default()
        }
    }

    pub fn check(&self) -> Result<(), Error> {
        check_code(&self.code)?;
        check_args(&self.args)?;
        check_run_limits(&self.limits)?;
        crate::glob::check(&self.collect)?;
        check_names(&self.globals, self.tools.as_deref().unwrap_or_default())
    }
}

/// What the code finds under names of the caller's choice.
pub(crate) fn check_names(globals: &Map<String, Value>, tools: &[Tool]) -> Result<(), Error> {
    for name in globals.keys() {
        if !is_identifier(name) {
            return Err(Error::invalid_request(
                "globals",
                name,
                "give names that code can use",
            ));
        }
    }
    if tools.len() > MAX_TOOLS {
        return Err(Error::invalid_request(
            "tools",
            &format!("a list of {}", tools.len()),
            format!("give at most {MAX_TOOLS}"),
        ));
    }
    let texts = |tool: &Tool| {
        let more = tool.parameters.iter().chain(&tool.returns);
        let more = more.map(|text| size_of::<String>() + text.len());
        tool.doc.len() + more.sum::<usize>()
    };
    // A sandbox keeps them as long as it lives.
    let bytes: usize = tools.iter().map(texts).sum();
    if bytes > MAX_TOOL_BYTES {
        return Err(Error::InvalidRequest {
            field: "tools".into(),
            given: format!("{bytes} bytes of text"),
            accepted: format!("give at most {MAX_TOOL_BYTES} bytes"),
        });
    }
    let mut names = BTreeSet::new();
    for Tool { name, .. } in tools {
        let accepted = if !is_identifier(name) {
            "give names that code can call"
        } else if names.insert(name) {
            continue;
        } else {
            "give each name once"
        };
        return Err(Error::invalid_request("tools", name, accepted));
    }
    match globals.keys().find(|name| names.contains(name)) {
        Some(name) => Err(Error::invalid_request(
            "globals",
            name,
            "give another name; a tool has that one",
        )),
        None => Ok(()),
    }
}

/// A command to be run in a kept sandbox: a line for its shell, or words.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct CommandRequest {
    pub shell: Option<String>,
    pub argv: Option<Vec<String>>,
    pub stdin: Option<Content>,
    #[serde(deserialize_with = "json::or_default")]
    pub env: BTreeMap<String, String>,
    /// The workspace if absent.
    pub cwd: Option<String>,
    #[serde(deserialize_with = "json::object_or_default")]
    pub limits: LimitsPatch,
}

impl CommandRequest {
    pub fn check(&self) -> Result<(), Error> {
        check_run_limits(&self.limits)?;
        crate::check_env(&self.env)?;
        if let Some(cwd) = &self.cwd
            && (!cwd.starts_with('/') || cwd.contains('\0') || cwd.len() >= MAX_PATH_BYTES)
        {
            let accepted = format!("give an absolute path below {MAX_PATH_BYTES} bytes");
            return Err(Error::invalid_request("cwd", cwd, accepted));
        }
        match (&self.shell, &self.argv) {
            // It is an argument of the shell.
            (Some(line), None) if line.len() >= MAX_ARG_BYTES => {
                let accepted = format!("give a line below {MAX_ARG_BYTES} bytes, or a file");
                Err(Error::invalid_request("shell", line, accepted))
            }
            (Some(line), None) => {
                check_line(line)?;
                check_exec("shell and env", std::slice::from_ref(line), &self.env)
            }
            (None, Some(words)) if words.first().is_some_and(|word| !word.is_empty()) => {
                check_args(words)?;
                check_exec("argv and env", words, &self.env)
            }
            _ => Err(Error::InvalidRequest {
                field: "shell and argv".into(),
                given: "both, neither, or an empty one".into(),
                accepted: "give a line as shell, or words as argv".into(),
            }),
        }
    }

    pub fn words(&self) -> Vec<String> {
        match (&self.shell, &self.argv) {
            (Some(line), _) => ["/bin/sh", "-c", line].map(str::to_owned).into(),
            (None, words) => words.clone().unwrap_or_default(),
        }
    }
}

/// As code is checked, but named as what it is.
fn check_line(line: &str) -> Result<(), Error> {
    check_code(line).map_err(|error| match error {
        Error::EmptyCode => {
            let accepted = "give a line that has more in it than white space";
            Error::invalid_request("shell", line, accepted)
        }
        Error::InvalidCode { reason } => Error::MalformedField {
            field: "shell".into(),
            reason,
        },
        other => other,
    })
}

/// A function of the caller that code may call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Tool {
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub name: String,
    #[serde(deserialize_with = "json::or_default")]
    pub doc: String,
    /// As they would be written in a definition, like `limit: int = 5`.
    #[serde(deserialize_with = "json::or_default")]
    pub parameters: Vec<String>,
    /// The type of what it gives, as it would be written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub returns: Option<String>,
    /// To be awaited inside.
    #[serde(deserialize_with = "json::or_default")]
    pub r#async: bool,
}

/// The code calls a tool. Claims of the code, all of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ToolCall {
    /// Answered by this number.
    pub call: u64,
    pub tool: String,
    pub args: Vec<Value>,
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub kwargs: Map<String, Value>,
}

/// What became of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ToolAnswer {
    Value(Value),
    Error {
        #[serde(rename = "type")]
        kind: String,
        message: String,
    },
}

/// What happens while code runs.
#[derive(Debug, Clone, PartialEq)]
pub enum RunEvent {
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    Display(Display),
    ToolCall(ToolCall),
    Result(Box<RunResult>),
}

fn check_run_limits(limits: &LimitsPatch) -> Result<(), Error> {
    let of_the_sandbox = [
        ("memory_bytes", limits.memory_bytes.is_some()),
        ("cpus", limits.cpus.is_some()),
        ("processes", limits.processes.is_some()),
        ("disk_bytes", limits.disk_bytes.is_some()),
        ("open_files", limits.open_files.is_some()),
        ("cpu_shares", limits.cpu_shares.is_some()),
    ];
    match of_the_sandbox.iter().find(|(_, given)| *given) {
        Some((field, _)) => Err(Error::InvalidLimit {
            field: (*field).into(),
            given: "a value for one run".into(),
            accepted: "it belongs to the sandbox; give it when that is made".into(),
        }),
        None => Ok(()),
    }
}

fn is_identifier(name: &str) -> bool {
    name.len() <= 128
        && name.starts_with(|c: char| c == '_' || c.is_alphabetic())
        && name.chars().all(|c| c == '_' || c.is_alphanumeric())
        && shown(name).len() < 512
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_cannot_change_what_belongs_to_the_sandbox() {
        let request: CodeRequest =
            serde_json::from_str(r#"{"code": "1", "limits": {"memory_bytes": "1g"}}"#).unwrap();
        let error = request.check().unwrap_err().to_string();
        assert!(error.contains("memory_bytes"), "{error}");
        let request: CodeRequest =
            serde_json::from_str(r#"{"code": "1", "limits": {"timeout_ms": 5}}"#).unwrap();
        request.check().unwrap();
    }

    #[test]
    fn labels_of_a_sandbox_are_those_of_a_run() {
        for (name, value, fits) in [
            ("team", "red", true),
            ("a.b/c_d-e", "", true),
            ("team", &"x".repeat(200), true),
            ("my team", "red", false),
            ("a=b", "red", false),
            ("", "red", false),
            ("team", "two\nlines", false),
        ] {
            let labels = BTreeMap::from([(name.to_owned(), value.to_owned())]);
            let run = RunRequest {
                code: "1".into(),
                labels: labels.clone(),
                ..RunRequest::default()
            };
            let sandbox = SandboxRequest {
                labels,
                ..SandboxRequest::default()
            };
            assert_eq!(run.check().is_ok(), fits, "{name:?} {value:?}");
            assert_eq!(sandbox.check().is_ok(), fits, "{name:?} {value:?}");
        }
    }

    #[test]
    fn names_are_names() {
        for (name, fits) in [
            ("a", true),
            ("_x1", true),
            ("1x", false),
            ("a-b", false),
            ("", false),
        ] {
            let mut request = CodeRequest::new("1");
            request.globals.insert(name.into(), Value::Null);
            assert_eq!(request.check().is_ok(), fits, "{name:?}");
            let tool = Tool {
                name: name.into(),
                ..Tool::default()
            };
            let request = CodeRequest {
                tools: Some(vec![tool]),
                ..CodeRequest::new("1")
            };
            assert_eq!(request.check().is_ok(), fits, "{name:?}");
        }
    }

    /// The code would find one of them only.
    #[test]
    fn no_two_have_one_name() {
        for (tools, global, told) in [
            (&["a", "b"][..], "c", None),
            (
                &["a", "b", "a"],
                "c",
                Some("tools: \"a\" is not accepted; give each name once"),
            ),
            (
                &["a", "b"],
                "b",
                Some("globals: \"b\" is not accepted; give another name; a tool has that one"),
            ),
        ] {
            let tool = |name: &&str| Tool {
                name: (*name).to_owned(),
                ..Tool::default()
            };
            let mut code = CodeRequest {
                tools: Some(tools.iter().map(tool).collect()),
                ..CodeRequest::new("1")
            };
            code.globals.insert(global.into(), Value::Null);
            let checked = code.check().map_err(|error| error.to_string());
            assert_eq!(checked, told.map_or(Ok(()), |told| Err(told.to_owned())));
        }
    }

    /// A sandbox keeps them.
    #[test]
    fn tools_are_bounded_together() {
        let tools = |count: usize, doc: usize, parameters: usize| -> Vec<Tool> {
            let tool = |number: usize| Tool {
                name: format!("t{number}"),
                doc: "x".repeat(doc),
                parameters: vec![String::new(); parameters],
                ..Tool::default()
            };
            (0..count).map(tool).collect()
        };
        for (tools, fits) in [
            (tools(256, 1000, 10), true),
            (tools(256, 5000, 0), false),
            (tools(1, 0, 100_000), false),
        ] {
            let run = RunRequest {
                tools: tools.clone(),
                ..RunRequest::new("1")
            };
            let sandbox = SandboxRequest {
                tools,
                ..SandboxRequest::default()
            };
            assert_eq!((run.check().is_ok(), sandbox.check().is_ok()), (fits, fits));
        }
    }

    #[test]
    fn a_command_is_a_line_or_words() {
        let command = |text: &str| serde_json::from_str::<CommandRequest>(text).unwrap();
        assert!(command(r#"{"shell": "ls"}"#).check().is_ok());
        assert!(command(r#"{"argv": ["ls", "-la"]}"#).check().is_ok());
        for bad in [
            "{}",
            r#"{"argv": []}"#,
            r#"{"argv": [""]}"#,
            r#"{"shell": "ls", "argv": ["ls"]}"#,
            r#"{"shell": "ls", "cwd": "x"}"#,
        ] {
            assert!(command(bad).check().is_err(), "{bad}");
        }
        for (line, said) in [
            (
                " ",
                "shell: \" \" is not accepted; give a line that has more in it than white space",
            ),
            ("a\0b", "shell: byte 1 is NUL"),
        ] {
            let line = serde_json::json!({ "shell": line }).to_string();
            let error = command(&line).check().unwrap_err().to_string();
            assert!(error.ends_with(said), "{error}");
        }
        // What no program can be started with is the caller's mistake, and not ours.
        let long = |bytes: usize| "x".repeat(bytes);
        let words = |count: usize| vec![long(100_000); count];
        let env: BTreeMap<_, _> = (0..11).map(|n| (n.to_string(), long(100_000))).collect();
        for (large, fits) in [
            (serde_json::json!({"shell": long(130_000)}), true),
            (serde_json::json!({"shell": long(132_000)}), false),
            (serde_json::json!({"argv": words(10)}), true),
            (serde_json::json!({"argv": words(11)}), false),
            (serde_json::json!({"shell": "ls", "env": env}), false),
            (
                serde_json::json!({"shell": "ls", "cwd": format!("/{}", long(4096))}),
                false,
            ),
        ] {
            let checked = command(&large.to_string()).check();
            assert_eq!(checked.is_ok(), fits, "{checked:?}");
        }
    }
}
