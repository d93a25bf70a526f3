//! What a caller asks for: one run.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::check::{
    check_args, check_code, check_env, check_exec, check_labels, check_packages, is_module_name,
};
use crate::{
    CodeRequest, Error, LimitsPatch, Network, SandboxRequest, Tool, Volume, WORKSPACE, Weakening,
    check_destination, check_workdir, glob, json, session, shown,
};

pub const MAX_FILES: usize = 4096;
/// Each is held against all others.
const MAX_VOLUMES: usize = 64;
const MAX_IMPORTS: usize = 4096;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct RunRequest {
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub code: String,
    /// By file ending or Python if absent.
    pub language: Option<String>,
    #[serde(deserialize_with = "json::or_default")]
    pub args: Vec<String>,
    pub stdin: Option<Content>,
    #[serde(deserialize_with = "json::or_default")]
    pub env: BTreeMap<String, String>,
    /// Destination in the workspace → what to put there.
    #[serde(deserialize_with = "json::or_default")]
    pub files: BTreeMap<String, Content>,
    #[serde(deserialize_with = "json::object_or_default")]
    pub limits: LimitsPatch,
    #[serde(deserialize_with = "json::or_default")]
    pub network: Network,
    /// Modules that Python code may import; all if absent.
    pub imports: Option<Vec<String>>,
    #[serde(deserialize_with = "json::word")]
    pub filesystem: Filesystem,
    #[serde(deserialize_with = "json::or_true")]
    pub read_only: bool,
    pub workdir: Option<String>,
    #[serde(deserialize_with = "json::or_default")]
    pub volumes: Vec<Volume>,
    pub image: Option<String>,
    pub template: Option<String>,
    /// From the index of the language: `numpy==2.*`.
    #[serde(deserialize_with = "json::or_default")]
    pub packages: Vec<String>,
    #[serde(deserialize_with = "json::some_word")]
    pub backend: Option<Backend>,
    /// With the backend docker: what runs the container, like `runsc`; only what the daemon's settings allow.
    pub container_runtime: Option<String>,
    /// Values that are there as variables before the code starts.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    #[serde(deserialize_with = "json::or_default")]
    pub globals: serde_json::Map<String, serde_json::Value>,
    /// Functions of the caller. Its calls become events, so the answer has to be `text/event-stream`.
    #[serde(deserialize_with = "json::objects")]
    pub tools: Vec<Tool>,
    /// Globs of files to give back.
    #[serde(deserialize_with = "json::or_default")]
    pub collect: Vec<String>,
    /// The caller's own words about this run, to find it again.
    #[serde(deserialize_with = "json::or_default")]
    pub labels: BTreeMap<String, String>,
    /// Protections to leave out. Not part of the HTTP API: a caller from outside may not weaken the host.
    #[serde(skip)]
    pub weaken: Vec<Weakening>,
}

/// By hand, since the safe value of `read_only` is not the default of its type.
impl Default for RunRequest {
    fn default() -> Self {
        Self {
            code: String::new(),
            language: None,
            args: Vec::new(),
            stdin: None,
            env: BTreeMap::new(),
            files: BTreeMap::new(),
            limits: LimitsPatch::default(),
            network: Network::default(),
            imports: None,
            filesystem: Filesystem::Workspace,
            read_only: true,
            workdir: None,
            volumes: Vec::new(),
            image: None,
            template: None,
            packages: Vec::new(),
            backend: None,
            container_runtime: None,
            globals: serde_json::Map::new(),
            tools: Vec::new(),
            collect: Vec::new(),
            labels: BTreeMap::new(),
            weaken: Vec::new(),
        }
    }
}

/// What the code may keep on disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Filesystem {
    #[default]
    Workspace,
    None,
}

/// What isolates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    #[default]
    Native,
    Docker,
}

/// Text, or any bytes: in JSON `"…"` or `{"base64": "…"}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    Text(String),
    Bytes(Vec<u8>),
}

impl Content {
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }
}

impl From<Vec<u8>> for Content {
    fn from(bytes: Vec<u8>) -> Self {
        String::from_utf8(bytes).map_or_else(|error| Self::Bytes(error.into_bytes()), Self::Text)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Encoded<'a> {
    base64: Cow<'a, str>,
}

impl Serialize for Content {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => serializer.serialize_str(text),
            Self::Bytes(bytes) => Encoded {
                base64: STANDARD.encode(bytes).into(),
            }
            .serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected text or {\"base64\": \"…\"}")]
        enum Wire<'a> {
            Text(String),
            #[serde(deserialize_with = "json::object", borrow)]
            Encoded(Encoded<'a>),
        }
        match Wire::deserialize(deserializer)? {
            Wire::Text(text) => Ok(Self::Text(text)),
            Wire::Encoded(encoded) => STANDARD
                .decode(encoded.base64.as_bytes())
                .map(Self::Bytes)
                .map_err(|error| D::Error::custom(format!("base64: {error}"))),
        }
    }
}

impl RunRequest {
    /// A request for `code` with everything else at its default.
    pub fn new(code: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            ..Self::default()
        }
    }

    /// A request body. Limits are not checked here, since only `resolve` knows the host.
    pub fn from_json(body: &[u8]) -> Result<Self, Error> {
        let request: Self = json::from_json(body)?;
        request.check()?;
        Ok(request)
    }

    /// Everything that can be said about a request without looking at the host.
    pub fn check(&self) -> Result<(), Error> {
        check_code(&self.code)?;
        check_args(&self.args)?;
        check_env(&self.env)?;
        check_packages(&self.packages)?;
        if !self.network.is_none() && self.weaken.contains(&Weakening::Netns) {
            return Err(Error::invalid_request(
                "network",
                "with --weaken netns",
                "without a network namespace of its own the code has the host's network; give one of the two",
            ));
        }
        if self.network.intercept && self.network.is_none() {
            return Err(Error::invalid_request(
                "network",
                "intercept without hosts",
                "there is nothing to open where nobody can be reached; say whom the code may reach as well, or leave it out",
            ));
        }
        check_exec("args and env", &self.args, &self.env)?;
        self.check_files()?;
        if let Some(workdir) = &self.workdir {
            check_workdir(workdir)?;
        }
        self.check_volumes()?;
        self.check_filesystem()?;
        let imports = self.imports.as_ref().map_or(0, Vec::len);
        check_count("imports", imports, MAX_IMPORTS)?;
        for name in self.imports.iter().flatten() {
            if !is_module_name(name) {
                return Err(Error::invalid_request(
                    "imports",
                    name,
                    "give names of modules, like json or os.path",
                ));
            }
        }
        session::check_names(&self.globals, &self.tools)?;
        glob::check(&self.collect)?;
        check_labels(&self.labels)?;
        for (field, named, name) in [
            ("image", "an image", &self.image),
            ("template", "a template", &self.template),
        ] {
            let plain = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
            if let Some(name) = name
                && (!name.starts_with(|c: char| c.is_ascii_alphanumeric())
                    || !name.chars().all(plain))
            {
                return Err(Error::invalid_request(
                    field,
                    name,
                    format!("give the name of {named}"),
                ));
            }
        }
        Ok(())
    }

    /// The same in two parts: a sandbox, and the code that runs in it.
    pub fn into_parts(self) -> (SandboxRequest, CodeRequest) {
        let code = CodeRequest {
            code: self.code,
            args: self.args,
            stdin: self.stdin,
            globals: self.globals,
            tools: (!self.tools.is_empty()).then_some(self.tools),
            collect: self.collect,
            limits: LimitsPatch::default(),
        };
        let sandbox = SandboxRequest {
            language: self.language,
            env: self.env,
            files: self.files,
            limits: self.limits,
            network: self.network,
            imports: self.imports,
            filesystem: self.filesystem,
            read_only: self.read_only,
            workdir: self.workdir,
            volumes: self.volumes,
            image: self.image,
            template: self.template,
            packages: self.packages,
            backend: self.backend,
            weaken: self.weaken,
            ..SandboxRequest::default()
        };
        (sandbox, code)
    }

    /// No volume may hide the workspace or lie within another: what is in a volume is not ours, links included.
    fn check_volumes(&self) -> Result<(), Error> {
        let refused = |volume: &Volume, accepted: &str| {
            Err(Error::InvalidVolume {
                given: shown(&volume.to_string()),
                accepted: accepted.into(),
            })
        };
        check_count("volumes", self.volumes.len(), MAX_VOLUMES)?;
        let workdir = Path::new(self.workdir.as_deref().unwrap_or(WORKSPACE));
        for (index, volume) in self.volumes.iter().enumerate() {
            let target = Path::new(&volume.destination);
            if workdir.starts_with(target) {
                return refused(
                    volume,
                    "it would hide the workspace; give another place inside",
                );
            }
            let overlaps = |other: &Volume| {
                let other = Path::new(&other.destination);
                other.starts_with(target) || target.starts_with(other)
            };
            if self.volumes[..index].iter().any(overlaps) {
                return refused(
                    volume,
                    "volumes must not lie within each other; give places apart",
                );
            }
        }
        Ok(())
    }

    /// Without a file system there is nothing to put anything into, and what takes it away must be there.
    fn check_filesystem(&self) -> Result<(), Error> {
        if self.filesystem == Filesystem::Workspace {
            return Ok(());
        }
        let contradiction = [
            (!self.files.is_empty(), "files"),
            (!self.volumes.is_empty(), "volumes"),
            (!self.read_only, "a writable root"),
            (!self.collect.is_empty(), "collect"),
            (
                self.weaken.contains(&Weakening::Landlock),
                "weaken landlock",
            ),
            (self.weaken.contains(&Weakening::Seccomp), "weaken seccomp"),
            (self.weaken.contains(&Weakening::Mounts), "weaken mounts"),
        ];
        match contradiction.iter().find(|(given, _)| *given) {
            Some((_, what)) => Err(Error::InvalidRequest {
                field: "filesystem".into(),
                given: format!("none together with {what}"),
                accepted: format!("leave {what} out, or give workspace"),
            }),
            None => Ok(()),
        }
    }

    fn check_files(&self) -> Result<(), Error> {
        if self.files.len() > MAX_FILES {
            return Err(Error::InvalidRequest {
                field: "files".into(),
                given: format!("a list of {}", self.files.len()),
                accepted: format!("give at most {MAX_FILES} files"),
            });
        }
        for path in self.files.keys() {
            check_destination("files", path)?;
            // `a` and `a/b` cannot both be files.
            let parents = path.match_indices('/').map(|(end, _)| &path[..end]);
            if let Some(parent) = parents
                .into_iter()
                .find(|parent| self.files.contains_key(*parent))
            {
                let accepted = format!(
                    "{} is given as a file too; give each name once",
                    shown(parent)
                );
                return Err(Error::invalid_path("files", path, accepted));
            }
        }
        Ok(())
    }
}

fn check_count(field: &str, given: usize, most: usize) -> Result<(), Error> {
    if given <= most {
        return Ok(());
    }
    Err(Error::InvalidRequest {
        field: field.into(),
        given: format!("a list of {given}"),
        accepted: format!("give at most {most}"),
    })
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{MAX_ARG_BYTES, MAX_ARGS};
    use crate::code_from_bytes;
    use proptest::prelude::*;

    fn code_of(result: Result<impl std::fmt::Debug, Error>) -> &'static str {
        result.unwrap_err().code()
    }

    /// To hold each of them against all others took the daemon's time, and everybody's.
    #[test]
    fn lists_are_bounded() {
        let of = |field: &str, item: &dyn Fn(usize) -> String, count: usize| {
            let items: Vec<_> = (0..count).map(item).collect();
            let body = serde_json::json!({"code": "1", field: items}).to_string();
            RunRequest::from_json(body.as_bytes()).is_ok()
        };
        let volume = |number: usize| format!("/srv:/v{number}");
        assert!(of("volumes", &volume, MAX_VOLUMES));
        let since = std::time::Instant::now();
        assert!(!of("volumes", &volume, 100_000));
        assert!(since.elapsed() < std::time::Duration::from_secs(5));
        let module = |number: usize| format!("m{number}");
        assert!(of("imports", &module, MAX_IMPORTS) && !of("imports", &module, MAX_IMPORTS + 1));
    }

    #[test]
    fn a_full_request_comes_back() {
        let body = r#"{"code": "print(1)", "language": "python", "args": ["-x"], "stdin": "in", "env": {"A": "b=c"},
            "files": {"a.txt": "text", "b/c.bin": {"base64": "/wA="}}, "limits": {"memory_bytes": 1048576000, "timeout_ms": "2s"},
            "network": ["*.example.org"], "imports": ["json", "os.path"], "filesystem": "workspace", "read_only": false,
            "workdir": "/data", "volumes": ["/srv:/in"], "image": "python:3.12", "template": "data", "packages": ["numpy==2.*"], "backend": "docker",
            "globals": {"x": [1]}, "collect": ["out/*.csv"]}"#;
        let request = RunRequest::from_json(body.as_bytes()).unwrap();
        assert_eq!(request.files["b/c.bin"], Content::Bytes(vec![255, 0]));
        let again = RunRequest::from_json(&serde_json::to_vec(&request).unwrap()).unwrap();
        assert_eq!(again, request);
    }

    #[test]
    fn the_least_request_has_safe_defaults() {
        let request = RunRequest::from_json(br#"{"code": "1"}"#).unwrap();
        assert_eq!(request, RunRequest::new("1"));
        assert!(request.read_only && request.network.is_none() && request.imports.is_none());
    }

    #[test]
    fn weakening_does_not_come_by_json() {
        assert_eq!(
            code_of(RunRequest::from_json(
                br#"{"code": "1", "weaken": ["seccomp"]}"#
            )),
            "invalid_request"
        );
    }

    /// What may be named later is something else: such a sandbox is to have the certificate.
    #[test]
    fn nothing_is_intercepted_where_nobody_is_reached() {
        for (network, is_accepted) in [
            (r#"{"allow": "none", "intercept": true}"#, false),
            (r#"{"allow": "none"}"#, true),
            (r#"{"allow": [], "intercept": true}"#, true),
            (r#"{"allow": "all", "intercept": true}"#, true),
        ] {
            let body = format!(r#"{{"code": "1", "network": {network}}}"#);
            let read = RunRequest::from_json(body.as_bytes());
            assert_eq!(read.is_ok(), is_accepted, "{network}: {read:?}");
        }
    }

    #[test]
    fn bad_bodies() {
        for (body, code) in [
            ("", "invalid_request"),
            ("[]", "invalid_request"),
            (r#"{"code": "1"} x"#, "invalid_request"),
            (r#"{"code": "1", "limits": [5]}"#, "invalid_limit"),
            (r#"{"code": 1}"#, "invalid_request"),
            (r#"{"code": "1", "cod": "2"}"#, "invalid_request"),
            (r#"{"code": " \n\t"}"#, "empty_code"),
            ("{}", "empty_code"),
            (r#"{"code": "a\u0000"}"#, "invalid_code"),
            (r#"{"code": "1", "env": {"A=B": ""}}"#, "invalid_env"),
            (r#"{"code": "1", "env": {"": ""}}"#, "invalid_env"),
            (r#"{"code": "1", "env": {"A": "\u0000"}}"#, "invalid_env"),
            (r#"{"code": "1", "files": {"../x": ""}}"#, "invalid_path"),
            (
                r#"{"code": "1", "files": {"a": "", "a/b": ""}}"#,
                "invalid_path",
            ),
            (
                r#"{"code": "1", "files": {"a": {"base64": "*"}}}"#,
                "invalid_request",
            ),
            (
                r#"{"code": "1", "files": {"a": {"base64": "", "x": 1}}}"#,
                "invalid_request",
            ),
            (r#"{"code": "1", "args": ["\u0000"]}"#, "invalid_request"),
            (r#"{"code": "1", "workdir": "/etc/x"}"#, "invalid_path"),
            (r#"{"code": "1", "imports": ["a b"]}"#, "invalid_request"),
            (
                r#"{"code": "1", "image": "--privileged"}"#,
                "invalid_request",
            ),
            (r#"{"code": "1", "collect": ["../*"]}"#, "invalid_path"),
            (r#"{"code": "1", "volumes": ["/:/"]}"#, "invalid_volume"),
            (r#"{"code": "1", "network": "some"}"#, "invalid_network"),
        ] {
            assert_eq!(
                code_of(RunRequest::from_json(body.as_bytes())),
                code,
                "{body}"
            );
        }
    }

    #[test]
    fn code_as_bytes() {
        assert_eq!(code_from_bytes(b"print(1)".to_vec()).unwrap(), "print(1)");
        assert_eq!(code_of(code_from_bytes(vec![])), "empty_code");
        assert_eq!(
            code_of(code_from_bytes(b"\xef\xbb\xbf \n".to_vec())),
            "empty_code"
        );
        assert_eq!(
            code_of(code_from_bytes(b"\x7fELF\x02\x01\x01\0\0".to_vec())),
            "invalid_code"
        );
        assert_eq!(
            code_of(code_from_bytes(b"caf\xe9".to_vec())),
            "invalid_code"
        );
        let error = code_from_bytes(vec![b'x'; 50_000_000]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "code: it has 50000000 bytes; at most 16777216 are accepted (pass large data as a file)"
        );
    }

    #[test]
    fn too_much_for_an_exec() {
        let mut request = RunRequest::new("1");
        request.args = vec!["x".repeat(100_000); 11];
        assert_eq!(code_of(request.check()), "invalid_request");
        request.args = vec!["x".repeat(MAX_ARG_BYTES)];
        assert_eq!(code_of(request.check()), "invalid_request");
        request.args = vec![String::new(); MAX_ARGS + 1];
        assert_eq!(code_of(request.check()), "invalid_request");
    }

    proptest! {
        #[test]
        fn an_accepted_request_comes_back(path in "[a-z./]{0,6}", name in "[A-Z=]{0,3}", arg: String, bytes: Vec<u8>) {
            let mut request = RunRequest::new("1");
            request.files.insert(path, bytes.into());
            request.env.insert(name, arg.clone());
            request.args.push(arg);
            if request.check().is_ok() {
                let body = serde_json::to_vec(&request).unwrap();
                prop_assert_eq!(RunRequest::from_json(&body).unwrap(), request);
            }
        }
    }
}
