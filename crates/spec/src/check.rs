//! Parts of requests that have to hold wherever they come from: code, arguments, environment, labels, names.

use std::collections::BTreeMap;

use crate::{Error, shown};

/// More than any program a person or a model writes; larger things are data and belong in `files`.
pub const MAX_CODE_BYTES: usize = 16 << 20;
pub(crate) const MAX_ARGS: usize = 4096;
const MAX_PACKAGES: usize = 64;
const MAX_LABELS: usize = 64;
const MAX_LABEL_BYTES: usize = 256;
/// One string of an exec is bounded by the kernel to 32 pages (`MAX_ARG_STRLEN`).
pub(crate) const MAX_ARG_BYTES: usize = 128 << 10;
/// Arguments and environment together; the kernel's own bound is a quarter of the stack limit, 2 MiB.
const MAX_EXEC_BYTES: usize = 1 << 20;

/// Code as it came from a file or a pipe.
pub fn code_from_bytes(bytes: Vec<u8>) -> Result<String, Error> {
    if bytes.len() > MAX_CODE_BYTES {
        return Err(Error::CodeTooLarge {
            bytes: bytes.len(),
            max: MAX_CODE_BYTES,
        });
    }
    let code = String::from_utf8(bytes).map_err(|error| Error::InvalidCode {
        reason: format!("byte {} is not UTF-8", error.utf8_error().valid_up_to()),
    })?;
    check_code(&code)?;
    Ok(code)
}

/// What a program begins with: not the mark that some editors put in front of a text, for which most compilers and shells have no use.
pub fn source_of(code: &str) -> &str {
    code.strip_prefix('\u{feff}').unwrap_or(code)
}

pub fn check_code(code: &str) -> Result<(), Error> {
    if code.len() > MAX_CODE_BYTES {
        return Err(Error::CodeTooLarge {
            bytes: code.len(),
            max: MAX_CODE_BYTES,
        });
    }
    if let Some(at) = code.bytes().position(|byte| byte == 0) {
        return Err(Error::InvalidCode {
            reason: format!("byte {at} is NUL"),
        });
    }
    // A byte order mark alone is no program either.
    if source_of(code).trim().is_empty() {
        return Err(Error::EmptyCode);
    }
    Ok(())
}

pub fn check_args(args: &[String]) -> Result<(), Error> {
    if args.len() > MAX_ARGS {
        return Err(Error::InvalidRequest {
            field: "args".into(),
            given: format!("a list of {}", args.len()),
            accepted: format!("give at most {MAX_ARGS} arguments"),
        });
    }
    for arg in args {
        if arg.contains('\0') {
            return Err(Error::invalid_request(
                "args",
                arg,
                "give arguments without NUL",
            ));
        }
        if arg.len() >= MAX_ARG_BYTES {
            return Err(Error::invalid_request(
                "args",
                arg,
                format!("give arguments below {MAX_ARG_BYTES} bytes"),
            ));
        }
    }
    Ok(())
}

/// What the installers take is theirs to say; here is what no name can be.
pub(crate) fn check_packages(packages: &[String]) -> Result<(), Error> {
    if packages.len() > MAX_PACKAGES {
        return Err(Error::invalid_request(
            "packages",
            &format!("a list of {}", packages.len()),
            format!("give at most {MAX_PACKAGES}"),
        ));
    }
    let fits = |text: &String| {
        (1..=512).contains(&text.len()) && text.bytes().all(|b| (0x20..0x7f).contains(&b))
    };
    match packages.iter().find(|text| !fits(text)) {
        Some(text) => Err(Error::invalid_request(
            "packages",
            text,
            "give names and versions, like numpy==2.*",
        )),
        None => Ok(()),
    }
}

pub fn check_env(env: &BTreeMap<String, String>) -> Result<(), Error> {
    for (name, value) in env {
        let error = |given: &str, accepted: &str| {
            Err(Error::InvalidEnv {
                given: given.into(),
                accepted: accepted.into(),
            })
        };
        if name.is_empty() {
            return error("an empty name", "give NAME=VALUE");
        }
        if name.contains(['=', '\0']) {
            return error(
                &format!("the name {}", shown(name)),
                "give a name without \"=\" and NUL",
            );
        }
        if value.contains('\0') {
            return error(
                &format!("the value of {}", shown(name)),
                "give a value without NUL",
            );
        }
        if name.len() + value.len() + 1 >= MAX_ARG_BYTES {
            return error(
                &format!("{} with {} bytes", shown(name), value.len()),
                "give name and value below 128 KiB together",
            );
        }
    }
    Ok(())
}

/// Both together, as the kernel takes them.
pub(crate) fn check_exec(
    field: &str,
    args: &[String],
    env: &BTreeMap<String, String>,
) -> Result<(), Error> {
    let variables = env.iter().map(|(name, value)| name.len() + value.len());
    let bytes = args.iter().map(String::len).chain(variables).sum::<usize>();
    if bytes <= MAX_EXEC_BYTES {
        return Ok(());
    }
    Err(Error::InvalidRequest {
        field: field.into(),
        given: format!("a total of {bytes} bytes"),
        accepted: format!(
            "give at most {MAX_EXEC_BYTES} bytes, and larger things as files or stdin"
        ),
    })
}

/// Few and short: they are kept with every run and searched.
pub fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), Error> {
    if labels.len() > MAX_LABELS {
        return Err(Error::InvalidRequest {
            field: "labels".into(),
            given: format!("a list of {}", labels.len()),
            accepted: format!("give at most {MAX_LABELS} labels"),
        });
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    for (name, value) in labels {
        if name.is_empty() || name.len() > MAX_LABEL_BYTES || !name.chars().all(plain) {
            return Err(Error::invalid_request(
                "labels",
                name,
                format!(
                    "give names of letters, digits, \".\", \"_\", \"-\" and \"/\" with at most {MAX_LABEL_BYTES} bytes"
                ),
            ));
        }
        if value.len() > MAX_LABEL_BYTES || value.chars().any(char::is_control) {
            return Err(Error::invalid_request(
                "labels",
                value,
                format!("give values of one line with at most {MAX_LABEL_BYTES} bytes"),
            ));
        }
    }
    Ok(())
}

pub(crate) fn is_module_name(name: &str) -> bool {
    name.len() <= 255
        && name.split('.').all(|part| {
            part.starts_with(|c: char| c == '_' || c.is_alphabetic())
                && part.chars().all(|c| c == '_' || c.is_alphanumeric())
        })
}
