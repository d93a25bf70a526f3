//! What the language of a session can do, held against what is asked of it. What it cannot is refused, not left out.

use std::borrow::Cow;
use std::collections::HashMap;

use belljar_spec::{CodeRequest, Error, Filesystem, SandboxRequest, Tool, shown};
use serde_json::{Map, Value};
use unicode_normalization::UnicodeNormalization;

use crate::command::Stdin;
use crate::kernel::Form;
use crate::runtime::Toolchain;

/// The kernel of that language, whatever a manifest calls it.
const PYTHON: &str = "python";

pub(super) fn check_sandbox(toolchain: &Toolchain, request: &SandboxRequest) -> Result<(), Error> {
    let restricts = toolchain
        .kernel
        .as_ref()
        .is_some_and(|kernel| kernel.imports);
    if request.imports.is_some() && !restricts {
        return Err(refused(
            "imports",
            format!(
                "{} code cannot be kept from importing; leave it out",
                toolchain.name
            ),
        ));
    }
    let can_be_closed = toolchain
        .kernel
        .as_ref()
        .is_some_and(|kernel| kernel.reads.is_some());
    if request.filesystem == Filesystem::None && !can_be_closed {
        return Err(refused(
            "filesystem none",
            format!(
                "{} cannot run without files or further processes; leave it out",
                toolchain.name
            ),
        ));
    }
    if !request.tools.is_empty() {
        check_tools(toolchain)?;
    }
    check_names(toolchain, &Map::new(), &request.tools)
}

fn check_tools(toolchain: &Toolchain) -> Result<(), Error> {
    let name = &toolchain.name;
    let reason = match &toolchain.kernel {
        None => format!("a session of {name} keeps files only; give them as files or input"),
        Some(kernel) if kernel.form == Form::Plain => format!("code in {name} cannot call them"),
        Some(_) => return Ok(()),
    };
    Err(refused("tools", reason))
}

/// A command is a process and a file, so there is none where code has neither.
pub(super) fn check_command(request: &SandboxRequest) -> Result<(), Error> {
    match request.filesystem {
        Filesystem::Workspace => Ok(()),
        Filesystem::None => Err(refused(
            "a command",
            "the sandbox was made with filesystem none; run code in it".into(),
        )),
    }
}

pub(super) fn check_run(
    toolchain: &Toolchain,
    code: &CodeRequest,
    stdin: &Stdin,
) -> Result<(), Error> {
    let name = &toolchain.name;
    if code.tools.as_ref().is_some_and(|tools| !tools.is_empty()) {
        check_tools(toolchain)?;
    }
    let Some(kernel) = &toolchain.kernel else {
        if code.globals.is_empty() {
            return Ok(());
        }
        let reason = format!("a session of {name} keeps files only; give them as files or input");
        return Err(refused("globals", reason));
    };
    if kernel.form == Form::Plain {
        for (variable, value) in &code.globals {
            let fits = variable
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            if !fits || value.as_str().is_some_and(|text| text.contains('\0')) {
                let accepted = format!("give names of {name} variables, and values without NUL");
                return Err(Error::invalid_request("globals", variable, accepted));
            }
        }
    }
    let tools = code.tools.as_deref().unwrap_or_default();
    check_names(toolchain, &code.globals, tools)?;
    match stdin {
        Stdin::Stream(_) if !kernel.descriptors => {
            let reason = format!("sessions of {name} take it only as a whole");
            Err(refused("live input", reason))
        }
        Stdin::Bytes(bytes) if !kernel.descriptors => {
            let readable = std::str::from_utf8(bytes)
                .is_ok_and(|text| kernel.form == Form::Json || !text.contains('\0'));
            if readable {
                return Ok(());
            }
            Err(refused(
                "binary input",
                format!("sessions of {name} take text only; give it as a file"),
            ))
        }
        _ => Ok(()),
    }
}

/// Variables and tools, of this run or of earlier ones, have their names in one place: of two that are the same the code would
/// find one only.
pub(super) fn check_names(
    toolchain: &Toolchain,
    globals: &Map<String, Value>,
    tools: &[Tool],
) -> Result<(), Error> {
    let kernel = toolchain.kernel.as_ref();
    let is_python = kernel.is_some_and(|kernel| kernel.files == PYTHON);
    let tools = tools.iter().map(|tool| &tool.name);
    check_told_apart(is_python, tools, globals.keys())
}

/// Python takes names for one that are the same in their plainest characters (NFKC), so its kernel can put in one of them only.
fn check_told_apart<'a>(
    is_python: bool,
    tools: impl Iterator<Item = &'a String>,
    globals: impl Iterator<Item = &'a String>,
) -> Result<(), Error> {
    let tools = tools.map(|name| ("tools", name));
    let mut known = HashMap::new();
    for (field, name) in tools.chain(globals.map(|name| ("globals", name))) {
        let plain = if is_python && !name.is_ascii() {
            Cow::Owned(name.nfkc().collect::<String>())
        } else {
            Cow::Borrowed(name.as_str())
        };
        let Some(other) = known.insert(plain, name) else {
            continue;
        };
        let accepted = if other != name {
            format!(
                "give either that or {}, which Python takes for the same name",
                shown(other)
            )
        } else if field == "tools" {
            "give each name once".into()
        } else {
            "give another name; a tool has that one".into()
        };
        return Err(Error::invalid_request(field, name, accepted));
    }
    Ok(())
}

fn refused(what: &str, reason: String) -> Error {
    Error::NotSupported {
        what: what.into(),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::check_told_apart;

    fn told_apart(is_python: bool, tools: &[&str], globals: &[&str]) -> Result<(), String> {
        let owned =
            |names: &[&str]| -> Vec<String> { names.iter().map(|&name| name.to_owned()).collect() };
        let (tools, globals) = (owned(tools), owned(globals));
        check_told_apart(is_python, tools.iter(), globals.iter()).map_err(|error| error.to_string())
    }

    #[test]
    fn names_that_python_takes_for_one_are_refused() {
        for (names, told) in [
            (&["a", "b"][..], None),
            (&["\u{fb01}", "\u{aa}b"], None),
            (&["e\u{301}", "e"], None),
            (
                &["fi", "\u{fb01}"],
                Some(
                    "\"\u{fb01}\" is not accepted; give either that or \"fi\", which Python takes for the same name",
                ),
            ),
            (
                &["e\u{301}t\u{e9}", "x", "\u{e9}t\u{e9}"],
                Some("\"\u{e9}t\u{e9}\" is not accepted; give either that or "),
            ),
        ] {
            let (first, rest) = names.split_at(1);
            for (field, refused) in [
                ("globals", told_apart(true, &[], names)),
                ("globals", told_apart(true, first, rest)),
                ("tools", told_apart(true, names, &[])),
            ] {
                match told {
                    None => assert_eq!(refused, Ok(()), "{names:?}"),
                    Some(told) => assert!(
                        refused
                            .unwrap_err()
                            .starts_with(&format!("{field}: {told}")),
                        "{names:?}"
                    ),
                }
            }
            // To others they are names like any.
            assert_eq!(told_apart(false, names, &[]), Ok(()), "{names:?}");
        }
    }

    #[test]
    fn a_variable_does_not_take_the_place_of_a_tool() {
        for is_python in [true, false] {
            assert_eq!(told_apart(is_python, &["a"], &["b"]), Ok(()));
            let refused = told_apart(is_python, &["a"], &["b", "a"]).unwrap_err();
            assert_eq!(
                refused,
                "globals: \"a\" is not accepted; give another name; a tool has that one"
            );
        }
    }
}
