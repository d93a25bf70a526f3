//! Placeholders in the argv and environment of manifests.
//!
//! `{program}` and every other key a probe prints are known once the toolchain is found; `{main}`, `{workspace}`, `{out}`,
//! `{memory_mib}`, `{heap_mib}`, `{cpus}` and `{kernel}` once a sandbox is made. `{args}` alone as a word becomes the caller's arguments.
//! `${name}` and `#{name}` are left alone, so that shell, JavaScript and Ruby can be written plainly.

use std::collections::BTreeMap;
use std::convert::Infallible;

/// Names that only a sandbox knows.
const LATE: [&str; 8] = [
    "main",
    "workspace",
    "out",
    "args",
    "memory_mib",
    "heap_mib",
    "cpus",
    "kernel",
];

/// What a sandbox knows.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// Path of the code's file.
    pub main: &'a str,
    pub workspace: &'a str,
    /// A directory for what the compiler makes: writable then, readable and executable afterwards.
    pub out: &'a str,
    pub memory_bytes: u64,
    pub cpus: f64,
}

impl Place<'_> {
    fn get(&self, name: &str) -> Option<String> {
        match name {
            "main" => Some(self.main.into()),
            "workspace" => Some(self.workspace.into()),
            "out" => Some(self.out.into()),
            "kernel" => Some(crate::kernel::PLACE.into()),
            "memory_mib" => Some((self.memory_bytes >> 20).max(1).to_string()),
            // For runtimes that size their heap by the memory of the host: the rest is for stacks, code and buffers.
            "heap_mib" => Some((self.memory_bytes / 4 * 3 / (1 << 20)).max(1).to_string()),
            "cpus" => Some(format!("{:.0}", self.cpus.ceil())),
            _ => None,
        }
    }

    /// The text with everything filled in.
    pub(super) fn fill(&self, text: &str) -> String {
        let known = |name: &str| Ok::<_, Infallible>(self.get(name));
        match substitute(text, known) {
            Ok(text) => text,
        }
    }
}

/// Fills in what the probe said and leaves what only a sandbox knows; the name of a placeholder that is neither is the error.
pub(super) fn fill_early(text: &str, vars: &BTreeMap<String, String>) -> Result<String, String> {
    substitute(text, |name| match vars.get(name) {
        Some(value) => Ok(Some(value.clone())),
        None if LATE.contains(&name) => Ok(None),
        None => Err(name.to_owned()),
    })
}

/// Replaces each `{name}`; `None` leaves it as it is.
fn substitute<E>(
    text: &str,
    mut value: impl FnMut(&str) -> Result<Option<String>, E>,
) -> Result<String, E> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(open) = rest.find('{') {
        let (before, after) = rest.split_at(open);
        out.push_str(before);
        let name_len = after[1..]
            .find(|c: char| !c.is_ascii_lowercase() && c != '_')
            .unwrap_or(after.len() - 1);
        let name = &after[1..=name_len];
        let is_placeholder =
            name_len > 0 && after[1 + name_len..].starts_with('}') && !before.ends_with(['$', '#']);
        let replaced = if is_placeholder { value(name)? } else { None };
        let taken = if let Some(text) = replaced {
            out.push_str(&text);
            name_len + 2
        } else {
            out.push('{');
            1
        };
        rest = &after[taken..];
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place<'static> = Place {
        main: "/workspace/main.c",
        workspace: "/workspace",
        out: "/out",
        memory_bytes: 1 << 30,
        cpus: 1.5,
    };

    #[test]
    fn early_then_late() {
        let vars = BTreeMap::from([("program".to_owned(), "/usr/bin/{x}".to_owned())]);
        let early = |text: &str| fill_early(text, &vars);
        assert_eq!(early("{program} {main}"), Ok("/usr/bin/{x} {main}".into()));
        assert_eq!(early("{edition}"), Err("edition".into()));
        for untouched in [
            "${program}",
            "#{program}",
            "{ program }",
            "{}",
            "{",
            "}",
            "{main",
            "a{B}",
            "{args}",
            "{é}",
        ] {
            assert_eq!(early(untouched), Ok(untouched.into()));
        }
        assert_eq!(
            PLACE.fill("-o{out}/x {main} {heap_mib} {cpus} {"),
            "-o/out/x /workspace/main.c 768 2 {"
        );
    }
}
