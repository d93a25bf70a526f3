//! What the caller, or Belljar itself, did wrong. A program that fails is no error: that is a `RunResult`.

use std::fmt::{self, Write as _};

use crate::Weakening;

/// One error code and what each door makes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code {
    pub code: &'static str,
    pub http_status: u16,
    pub exit_code: u8,
    pub python_class: &'static str,
}

const fn code(code: &'static str, http_status: u16, python_class: &'static str) -> Code {
    Code {
        code,
        http_status,
        exit_code: 125,
        python_class,
    }
}

const INVALID_REQUEST: Code = code("invalid_request", 400, "InvalidRequest");
const INVALID_LIMIT: Code = code("invalid_limit", 400, "InvalidRequest");
const INVALID_PATH: Code = code("invalid_path", 400, "InvalidRequest");
const INVALID_ENV: Code = code("invalid_env", 400, "InvalidRequest");
const INVALID_NETWORK: Code = code("invalid_network", 400, "InvalidRequest");
const PACKAGES_FAILED: Code = code("packages_failed", 422, "InvalidRequest");
const INVALID_VOLUME: Code = code("invalid_volume", 400, "InvalidRequest");
const INVALID_FILE: Code = code("invalid_file", 400, "InvalidRequest");
const INVALID_ID: Code = code("invalid_id", 404, "NotFound");
const INVALID_CODE: Code = code("invalid_code", 400, "InvalidRequest");
const EMPTY_CODE: Code = code("empty_code", 400, "InvalidRequest");
const CODE_TOO_LARGE: Code = code("code_too_large", 413, "InvalidRequest");
const BODY_TOO_LARGE: Code = code("body_too_large", 413, "InvalidRequest");
const UNSUPPORTED_MEDIA: Code = code("unsupported_media", 415, "InvalidRequest");
const DISK_FULL: Code = code("disk_full", 413, "InvalidRequest");
const INVALID_RANGE: Code = code("invalid_range", 416, "InvalidRequest");
const METHOD_NOT_ALLOWED: Code = code("method_not_allowed", 405, "InvalidRequest");
const TOO_SLOW: Code = code("too_slow", 408, "Unavailable");
const UNKNOWN_LANGUAGE: Code = code("unknown_language", 400, "InvalidRequest");
const INVALID_IMAGE: Code = code("invalid_image", 400, "InvalidRequest");
const PULL_FAILED: Code = code("pull_failed", 502, "Unavailable");
const INVALID_MANIFEST: Code = code("invalid_manifest", 500, "Unavailable");
const NOT_SUPPORTED: Code = code("not_supported", 422, "InvalidRequest");
const UNAUTHORIZED: Code = code("unauthorized", 401, "BelljarError");
const FORBIDDEN: Code = code("forbidden", 403, "BelljarError");
const NOT_FOUND: Code = code("not_found", 404, "NotFound");
const CONFLICT: Code = code("conflict", 409, "BelljarError");
const OVERLOADED: Code = code("overloaded", 429, "Unavailable");
const RUNTIME_MISSING: Code = code("runtime_missing", 503, "Unavailable");
const UNSUPPORTED_HOST: Code = code("unsupported_host", 503, "Unavailable");
const UNAVAILABLE: Code = code("unavailable", 503, "Unavailable");
const INTERNAL: Code = code("internal", 500, "BelljarError");

/// The one table from error code to HTTP status, exit code of the CLI and class of the Python package.
pub const CODES: &[Code] = &[
    INVALID_REQUEST,
    INVALID_LIMIT,
    INVALID_PATH,
    INVALID_ENV,
    INVALID_NETWORK,
    PACKAGES_FAILED,
    INVALID_VOLUME,
    INVALID_FILE,
    INVALID_ID,
    INVALID_CODE,
    EMPTY_CODE,
    CODE_TOO_LARGE,
    BODY_TOO_LARGE,
    UNSUPPORTED_MEDIA,
    DISK_FULL,
    INVALID_RANGE,
    METHOD_NOT_ALLOWED,
    TOO_SLOW,
    UNKNOWN_LANGUAGE,
    INVALID_IMAGE,
    PULL_FAILED,
    INVALID_MANIFEST,
    NOT_SUPPORTED,
    UNAUTHORIZED,
    FORBIDDEN,
    NOT_FOUND,
    CONFLICT,
    OVERLOADED,
    RUNTIME_MISSING,
    UNSUPPORTED_HOST,
    UNAVAILABLE,
    INTERNAL,
];

/// `given` is always text that went through [`shown`]: it may come from a stranger.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("{field}: {given} is not accepted; {accepted}")]
    InvalidRequest {
        field: String,
        given: String,
        accepted: String,
    },
    #[error("the request is not valid: {reason}")]
    MalformedRequest { reason: String },
    /// JSON that is no value of its field; `field` is its place, like `limits.cpus`.
    #[error("{field}: {reason}")]
    MalformedField { field: String, reason: String },
    #[error("limit {field}: {given} is not accepted; {accepted}")]
    InvalidLimit {
        field: String,
        given: String,
        accepted: String,
    },
    #[error("{field}: the path {given} is not accepted; {accepted}")]
    InvalidPath {
        field: String,
        given: String,
        accepted: String,
    },
    #[error("env: {given} is not accepted; {accepted}")]
    InvalidEnv { given: String, accepted: String },
    #[error("network: {given} is not accepted; {accepted}")]
    InvalidNetwork { given: String, accepted: String },
    #[error("packages: {reason}")]
    PackagesFailed { reason: String },
    #[error("volume: {given} is not accepted; {accepted}")]
    InvalidVolume { given: String, accepted: String },
    #[error("{field}: cannot use {path}: {reason}")]
    InvalidFile {
        field: String,
        path: String,
        reason: String,
    },
    #[error("{field}: {given} is not an id; an id looks like {example}")]
    InvalidId {
        field: String,
        given: String,
        example: &'static str,
    },
    #[error("code: {reason}; code must be UTF-8 text without NUL bytes")]
    InvalidCode { reason: String },
    #[error("code: it is empty; give a program that has more in it than white space")]
    EmptyCode,
    #[error("code: it has {bytes} bytes; at most {max} are accepted (pass large data as a file)")]
    CodeTooLarge { bytes: usize, max: usize },
    #[error("the body has more than {max} bytes, which is what is accepted here")]
    BodyTooLarge { max: u64 },
    #[error("the content {what} {given} is not accepted; send {accepted}")]
    UnsupportedMedia {
        /// `type` or `encoding`.
        what: &'static str,
        given: String,
        accepted: &'static str,
    },
    #[error("{path} does not fit; make room, or make a sandbox with a larger limit {limit}")]
    DiskFull { path: String, limit: &'static str },
    #[error("range: {given} is not within the {bytes} bytes there are")]
    InvalidRange { given: String, bytes: u64 },
    #[error("{method} is not accepted here; use {allowed}")]
    MethodNotAllowed { method: String, allowed: String },
    #[error("the request did not arrive in time: {reason}")]
    TooSlow { reason: String },
    #[error("language: {given} is not known{}; known are {known}", did_you_mean(.nearest.as_deref()))]
    UnknownLanguage {
        given: String,
        nearest: Option<String>,
        known: String,
    },
    #[error("image {given}: {reason}")]
    InvalidImage { given: String, reason: String },
    #[error("image {given} cannot be pulled: {reason}")]
    PullFailed { given: String, reason: String },
    #[error("runtime manifest {file}: {reason}")]
    InvalidManifest { file: String, reason: String },
    #[error("{what} is not supported: {reason}")]
    NotSupported { what: String, reason: String },
    #[error("unauthorized: {reason}")]
    Unauthorized { reason: String },
    #[error("forbidden: {reason}")]
    Forbidden { reason: String },
    #[error("{what} {given} was not found{}", did_you_mean(.nearest.as_deref()))]
    NotFound {
        what: &'static str,
        given: String,
        nearest: Option<String>,
    },
    /// It was there once.
    #[error("{what} {given} was not found: {reason}")]
    Gone {
        what: &'static str,
        given: String,
        reason: String,
    },
    #[error("conflict: {reason}")]
    Conflict { reason: String },
    #[error("overloaded: {reason}; try again in {retry_after_s} s")]
    Overloaded { reason: String, retry_after_s: u32 },
    #[error("runtime {language} is missing: {reason}; to get it: {install}")]
    RuntimeMissing {
        language: String,
        reason: String,
        install: String,
    },
    #[error("this host cannot give {missing}: {reason}; to provide it: {fix}{}", way_around(*weaken))]
    UnsupportedHost {
        missing: String,
        reason: String,
        fix: String,
        /// Leaving this out would do, for who may.
        weaken: Option<Weakening>,
    },
    #[error("{what} is not available: {reason}")]
    Unavailable { what: &'static str, reason: String },
    #[error("{step}: {reason}")]
    Internal { step: String, reason: String },
}

impl Error {
    /// The stable name of this error, as in `{"error": {"code": …}}`.
    pub fn code(&self) -> &'static str {
        self.info().code
    }

    /// This error's row of [`CODES`].
    pub fn info(&self) -> &'static Code {
        match self {
            Self::InvalidRequest { .. } | Self::MalformedRequest { .. } => &INVALID_REQUEST,
            Self::MalformedField { field, .. } => match field.split(['.', '[']).next() {
                Some("limits") => &INVALID_LIMIT,
                Some("network") => &INVALID_NETWORK,
                Some("volumes") => &INVALID_VOLUME,
                Some("env") => &INVALID_ENV,
                _ => &INVALID_REQUEST,
            },
            Self::InvalidLimit { .. } => &INVALID_LIMIT,
            Self::InvalidPath { .. } => &INVALID_PATH,
            Self::InvalidEnv { .. } => &INVALID_ENV,
            Self::InvalidNetwork { .. } => &INVALID_NETWORK,
            Self::PackagesFailed { .. } => &PACKAGES_FAILED,
            Self::InvalidVolume { .. } => &INVALID_VOLUME,
            Self::InvalidFile { .. } => &INVALID_FILE,
            Self::InvalidId { .. } => &INVALID_ID,
            Self::InvalidCode { .. } => &INVALID_CODE,
            Self::EmptyCode => &EMPTY_CODE,
            Self::CodeTooLarge { .. } => &CODE_TOO_LARGE,
            Self::BodyTooLarge { .. } => &BODY_TOO_LARGE,
            Self::UnsupportedMedia { .. } => &UNSUPPORTED_MEDIA,
            Self::DiskFull { .. } => &DISK_FULL,
            Self::InvalidRange { .. } => &INVALID_RANGE,
            Self::MethodNotAllowed { .. } => &METHOD_NOT_ALLOWED,
            Self::TooSlow { .. } => &TOO_SLOW,
            Self::UnknownLanguage { .. } => &UNKNOWN_LANGUAGE,
            Self::InvalidImage { .. } => &INVALID_IMAGE,
            Self::PullFailed { .. } => &PULL_FAILED,
            Self::InvalidManifest { .. } => &INVALID_MANIFEST,
            Self::NotSupported { .. } => &NOT_SUPPORTED,
            Self::Unauthorized { .. } => &UNAUTHORIZED,
            Self::Forbidden { .. } => &FORBIDDEN,
            Self::NotFound { .. } | Self::Gone { .. } => &NOT_FOUND,
            Self::Conflict { .. } => &CONFLICT,
            Self::Overloaded { .. } => &OVERLOADED,
            Self::RuntimeMissing { .. } => &RUNTIME_MISSING,
            Self::UnsupportedHost { .. } => &UNSUPPORTED_HOST,
            Self::Unavailable { .. } => &UNAVAILABLE,
            Self::Internal { .. } => &INTERNAL,
        }
    }

    /// A field that holds something which is not accepted.
    pub fn invalid_request(
        field: impl Into<String>,
        given: &str,
        accepted: impl Into<String>,
    ) -> Self {
        Self::InvalidRequest {
            field: field.into(),
            given: shown(given),
            accepted: accepted.into(),
        }
    }

    /// A path that is not accepted.
    pub fn invalid_path(
        field: impl Into<String>,
        given: &str,
        accepted: impl Into<String>,
    ) -> Self {
        Self::InvalidPath {
            field: field.into(),
            given: shown(given),
            accepted: accepted.into(),
        }
    }

    /// A file of the caller that cannot be used.
    pub fn invalid_file(field: impl Into<String>, path: &str, reason: impl Into<String>) -> Self {
        Self::InvalidFile {
            field: field.into(),
            path: shown(path),
            reason: reason.into(),
        }
    }

    /// An image that cannot be used, and why.
    pub fn invalid_image(given: &str, reason: impl fmt::Display) -> Self {
        Self::InvalidImage {
            given: shown(given),
            reason: format!("{reason}"),
        }
    }

    /// A step of ours that failed, with what the system said.
    pub fn internal(step: impl Into<String>, reason: impl fmt::Display) -> Self {
        Self::Internal {
            step: step.into(),
            reason: format!("{reason}"),
        }
    }
}

fn way_around(weaken: Option<Weakening>) -> String {
    weaken.map(Weakening::instead).unwrap_or_default()
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest
        .map(|name| format!(", did you mean {name}?"))
        .unwrap_or_default()
}

/// Text of a stranger as it may appear in a message: quoted, control characters escaped, shortened.
pub fn shown(text: &str) -> String {
    const MAX_CHARS: usize = 60;
    let mut out = String::from("\"");
    for (count, c) in text.chars().enumerate() {
        if count == MAX_CHARS {
            let _ = write!(out, "…\" ({} bytes)", text.len());
            return out;
        }
        // `escape_debug` also escapes format characters that could reorder a terminal line, but it would turn a plain
        // apostrophe into `\'`.
        if c == '\'' {
            out.push(c);
        } else {
            out.extend(c.escape_debug());
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn codes_are_unique_and_fit_their_doors() {
        let names: BTreeSet<_> = CODES.iter().map(|row| row.code).collect();
        assert_eq!(names.len(), CODES.len());
        for row in CODES {
            assert!((400..600).contains(&row.http_status), "{row:?}");
            assert_eq!(row.exit_code, 125, "{row:?}");
        }
    }

    #[test]
    fn strangers_text_is_escaped_and_short() {
        assert_eq!(shown("it's"), "\"it's\"");
        assert_eq!(shown("a\u{1b}[2Jb\n\0"), "\"a\\u{1b}[2Jb\\n\\0\"");
        assert_eq!(shown("\u{202e}x"), "\"\\u{202e}x\"");
        let long = shown(&"x".repeat(5000));
        assert!(long.len() < 100 && long.ends_with("(5000 bytes)"), "{long}");
    }

    #[test]
    fn messages_are_one_sentence() {
        let error = Error::UnknownLanguage {
            given: shown("pyton"),
            nearest: Some("python".into()),
            known: "bash, python".into(),
        };
        assert_eq!(
            error.to_string(),
            "language: \"pyton\" is not known, did you mean python?; known are bash, python"
        );
        assert_eq!(error.code(), "unknown_language");
    }
}
