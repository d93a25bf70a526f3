//! What the language of a session can do, held against what is asked of it. What it cannot is refused, not left out.

use std::collections::HashMap;

use belljar_spec::{CodeRequest, Error, Filesystem, SandboxRequest, shown};
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
    Ok(())
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
    if kernel.files == PYTHON {
        check_told_apart(code.globals.keys())?;
    }
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

/// Python takes names for one that are the same in their plainest characters (NFKC), so its kernel can put in one of them only.
fn check_told_apart<'a>(names: impl Iterator<Item = &'a String> + Clone) -> Result<(), Error> {
    if names.clone().all(|name| name.is_ascii()) {
        return Ok(());
    }
    let mut known = HashMap::new();
    for name in names {
        let plain: String = name.nfkc().collect();
        if let Some(other) = known.insert(plain, name) {
            let accepted = format!(
                "give either that or {}, which Python takes for the same name",
                shown(other)
            );
            return Err(Error::invalid_request("globals", name, accepted));
        }
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

    #[test]
    fn names_that_python_takes_for_one_are_refused() {
        for (names, told) in [
            (&["a", "b"][..], None),
            (&["\u{fb01}", "\u{aa}b"], None),
            (&["e\u{301}", "e"], None),
            (
                &["fi", "\u{fb01}"],
                Some(
                    "globals: \"\u{fb01}\" is not accepted; give either that or \"fi\", which Python takes for the same name",
                ),
            ),
            (
                &["e\u{301}t\u{e9}", "x", "\u{e9}t\u{e9}"],
                Some("globals: \"\u{e9}t\u{e9}\" is not accepted; give either that or "),
            ),
        ] {
            let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
            let refused = check_told_apart(names.iter()).map_err(|error| error.to_string());
            match told {
                None => assert_eq!(refused, Ok(()), "{names:?}"),
                Some(told) => assert!(refused.unwrap_err().starts_with(told), "{names:?}"),
            }
        }
    }
}
