//! The format of a runtime's manifest.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use belljar_spec::{Error, LimitsPatch, check_destination, shown};
use serde::Deserialize;

use crate::kernel::Form;

/// One language.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    pub name: String,
    #[serde(default)]
    pub aliases: Vec<String>,
    /// File endings, without the dot.
    #[serde(default)]
    pub endings: Vec<String>,
    /// What the code's file is called when it has no name of its own.
    pub main: String,
    /// How to get the toolchain.
    pub install: String,
    /// What the run stage gets unless the caller says otherwise.
    #[serde(default)]
    pub limits: LimitsPatch,
    /// In order of preference.
    #[serde(rename = "toolchain")]
    pub(super) alternatives: Vec<Alternative>,
    /// Where it was read from.
    #[serde(skip)]
    pub origin: String,
    /// Changes with the text, so that a cached answer to another text is not taken.
    #[serde(skip)]
    pub(super) hash: u64,
}

/// One way to have the language.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Alternative {
    /// Names to look for on PATH, absolute paths, or paths below the caller's home (`~/…`), in order.
    pub programs: Vec<String>,
    /// Prints `version=…`, and may print `program=…`, `mount=…`, `watch=…` and placeholders of its own.
    pub probe: Vec<String>,
    /// Files and directories of the host that a sandbox sees, read-only, beyond the base.
    #[serde(default)]
    pub mounts: Vec<String>,
    /// The same, where they exist.
    #[serde(default)]
    pub optional_mounts: Vec<String>,
    pub compile: Option<StepText>,
    pub run: StepText,
    pub kernel: Option<KernelText>,
}

/// What keeps the interpreter alive between runs.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KernelText {
    /// Which of the kernels that come with the program.
    pub files: String,
    pub start: StepText,
    /// A warm interpreter that kernels are copied from; its arguments are modules to load.
    pub zygote: Option<StepText>,
    /// A command that is run once for each interpreter, on the host, in a directory with the kernel's files: to compile them.
    pub prepare: Option<Vec<String>>,
    /// How it speaks.
    #[serde(default)]
    pub form: Form,
    /// Whether it takes a run's standard input as a descriptor.
    #[serde(default)]
    pub descriptors: bool,
    /// What it must be able to read where code has no files, besides libraries. Absent: it cannot do without files or processes.
    pub reads: Option<Vec<String>>,
    /// Whether it can keep code from importing what is not on a list.
    #[serde(default)]
    pub imports: bool,
}

/// A command with placeholders in it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StepText {
    pub argv: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default)]
    pub limits: LimitsPatch,
}

impl Manifest {
    /// `origin` is the file's path, for messages; `stem` its name without `.toml`.
    /// One of somebody's own.
    pub fn parse(text: &str, origin: &str, stem: &str) -> Result<Self, Error> {
        let read = toml::from_str(text).map_err(|cause| sentence(&cause, text));
        Self::checked(read, text, origin, stem)
    }

    /// One that came with the program.
    pub(super) fn built_in(text: &str, stem: &str) -> Result<Self, Error> {
        let read = serde_json::from_str(text).map_err(|cause| cause.to_string());
        Self::checked(read, text, "built-in", stem)
    }

    fn checked(
        read: Result<Self, String>,
        text: &str,
        origin: &str,
        stem: &str,
    ) -> Result<Self, Error> {
        let error = |reason: String| Error::InvalidManifest {
            file: origin.to_owned(),
            reason,
        };
        let mut manifest = read.map_err(error)?;
        manifest.check(stem).map_err(error)?;
        origin.clone_into(&mut manifest.origin);
        let mut hasher = DefaultHasher::new();
        (text, env!("CARGO_PKG_VERSION")).hash(&mut hasher);
        manifest.hash = hasher.finish();
        Ok(manifest)
    }

    /// What the code's file is called inside: its own name where that says the language, else `main`.
    pub fn main_for<'a>(&'a self, file_name: Option<&'a str>) -> &'a str {
        let fits = |name: &&str| {
            let ending = name
                .rsplit_once('.')
                .map(|(_, ending)| ending.to_ascii_lowercase());
            ending.is_some_and(|ending| self.endings.contains(&ending)) && is_file_name(name)
        };
        file_name.filter(fits).unwrap_or(&self.main)
    }

    fn check(&self, stem: &str) -> Result<(), String> {
        if !is_name(stem) {
            return Err(format!(
                "the name of the file: {} is not accepted; give a word of a-z, 0-9, \".\", \"+\", \"-\" that starts with a letter, all of it in lower case",
                shown(stem)
            ));
        }
        if self.name != stem {
            return Err(format!(
                "name: {} is not accepted; give {}, which is what the file is called",
                shown(&self.name),
                shown(stem)
            ));
        }
        for (key, name) in
            std::iter::once(("name", &self.name)).chain(self.aliases.iter().map(|a| ("aliases", a)))
        {
            if !is_name(name) {
                return Err(format!(
                    "{key}: {} is not accepted; give a word of a-z, 0-9, \".\", \"+\", \"-\" that starts with a letter",
                    shown(name)
                ));
            }
        }
        for ending in &self.endings {
            if !is_name(ending) {
                return Err(format!(
                    "endings: {} is not accepted; give an ending in lower case and without its dot, like \"py\"",
                    shown(ending)
                ));
            }
        }
        if !is_file_name(&self.main) {
            return Err(format!(
                "main: {} is not accepted; give the name of a file, like \"main.py\"",
                shown(&self.main)
            ));
        }
        check_limits("limits", &self.limits)?;
        if self.alternatives.is_empty() {
            return Err("toolchain: there is none; give at least one [[toolchain]]".into());
        }
        self.alternatives.iter().try_for_each(Alternative::check)
    }
}

impl Alternative {
    fn check(&self) -> Result<(), String> {
        if self.programs.is_empty() {
            return Err("toolchain.programs: it is empty; give the programs to look for".into());
        }
        for program in &self.programs {
            let plain = !program.is_empty() && !program.contains('/');
            if !plain && !program.starts_with('/') && !program.starts_with("~/") {
                return Err(format!(
                    "toolchain.programs: {} is not accepted; give a name, or a path that starts with / or ~/",
                    shown(program)
                ));
            }
        }
        for path in self.mounts.iter().chain(&self.optional_mounts) {
            if !path.starts_with('/') {
                return Err(format!(
                    "toolchain.mounts: {} is not accepted; give an absolute path",
                    shown(path)
                ));
            }
        }
        check_argv("toolchain.probe", &self.probe)?;
        let steps = self
            .compile
            .iter()
            .map(|step| ("toolchain.compile", step))
            .chain([("toolchain.run", &self.run)])
            .chain(
                self.kernel
                    .iter()
                    .map(|kernel| ("toolchain.kernel.start", &kernel.start)),
            )
            .chain(self.kernel.iter().filter_map(|kernel| {
                let zygote = kernel.zygote.as_ref()?;
                Some(("toolchain.kernel.zygote", zygote))
            }));
        let reads = self
            .kernel
            .iter()
            .filter_map(|kernel| kernel.reads.as_ref());
        for path in reads.flatten() {
            if !path.starts_with('/') {
                return Err(format!(
                    "toolchain.kernel.reads: {} is not accepted; give an absolute path",
                    shown(path)
                ));
            }
        }
        if let Some(kernel) = &self.kernel
            && !crate::kernel::is_known(&kernel.files)
        {
            return Err(format!(
                "toolchain.kernel.files: {} is not accepted; give the name of a kernel",
                shown(&kernel.files)
            ));
        }
        let prepare = self
            .kernel
            .as_ref()
            .and_then(|kernel| kernel.prepare.as_ref());
        if let Some(prepare) = prepare {
            check_argv("toolchain.kernel.prepare", prepare)?;
        }
        for (key, step) in steps {
            check_argv(&format!("{key}.argv"), &step.argv)?;
            belljar_spec::check_env(&step.env).map_err(|error| format!("{key}.{error}"))?;
            check_limits(&format!("{key}.limits"), &step.limits)?;
        }
        Ok(())
    }
}

fn check_argv(key: &str, argv: &[String]) -> Result<(), String> {
    match argv.first() {
        None => Err(format!(
            "{key}: it is empty; give a command as a list of words"
        )),
        Some(first) if first.starts_with('/') || first.starts_with('{') => Ok(()),
        Some(first) => Err(format!(
            "{key}: {} is not accepted as its first word; give an absolute path or \"{{program}}\"",
            shown(first)
        )),
    }
}

fn check_limits(key: &str, limits: &LimitsPatch) -> Result<(), String> {
    let checked = limits.check_for_any_host();
    checked.map_err(|error| format!("{key}.{error}"))
}

fn is_name(name: &str) -> bool {
    name.len() <= 32
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b".+-".contains(&b))
}

fn is_file_name(name: &str) -> bool {
    // A leading dash would be an option to the compiler.
    !name.contains('/') && !name.starts_with('-') && check_destination("main", name).is_ok()
}

/// The parser's words in one line, with the place.
fn sentence(error: &toml::de::Error, text: &str) -> String {
    let message = error.message().replace('\n', ", ");
    match error.span() {
        Some(span) if span.start <= text.len() => {
            // The end of the text is where its last line is.
            let line = text
                .bytes()
                .take(span.start.min(text.trim_end().len()))
                .filter(|&byte| byte == b'\n')
                .count();
            let words = text.lines().nth(line).unwrap_or_default();
            format!("line {}, {}: {message}", line + 1, shown(words.trim()))
        }
        _ => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
name = "toy"
endings = ["toy"]
main = "main.toy"
install = "write it"
[[toolchain]]
programs = ["toy"]
probe = ["{program}", "--version"]
[toolchain.run]
argv = ["{program}", "{main}", "{args}"]
"#;

    #[test]
    fn a_good_one() {
        let manifest = Manifest::parse(GOOD, "/etc/toy.toml", "toy").unwrap();
        assert_eq!(manifest.main_for(None), "main.toy");
        assert_eq!(manifest.main_for(Some("mine.TOY")), "mine.TOY");
        for strange in ["x.txt", "toy", "-x.toy", "a/b.toy", ".."] {
            assert_eq!(manifest.main_for(Some(strange)), "main.toy", "{strange}");
        }
    }

    #[test]
    fn messages_name_file_key_and_what_is_accepted() {
        let message = |from: &str, to: &str| {
            assert!(GOOD.contains(from), "{from}");
            let error =
                Manifest::parse(&GOOD.replacen(from, to, 1), "/etc/toy.toml", "toy").unwrap_err();
            assert_eq!(error.code(), "invalid_manifest");
            let text = error.to_string();
            assert!(
                !text.contains('\n') && !text.contains("this host"),
                "{text}"
            );
            text.strip_prefix("runtime manifest /etc/toy.toml: ")
                .unwrap()
                .to_owned()
        };
        for (from, to, expected) in [
            (
                "\"toy\"",
                "\"joy\"",
                "name: \"joy\" is not accepted; give \"toy\", which is what the file is called",
            ),
            (
                "[\"toy\"]",
                "[\".toy\"]",
                "endings: \".toy\" is not accepted; give an ending in lower case",
            ),
            (
                "[\"toy\"]",
                "\"toy\"",
                "line 3, \"endings = \\\"toy\\\"\": invalid type: string \"toy\", expected a sequence",
            ),
            ("main.toy", "../main", "main: \"../main\" is not accepted"),
            (
                "install",
                "instal",
                "line 5, \"instal = \\\"write it\\\"\": unknown field `instal`, expected one of `name`",
            ),
            ("main = \"main.toy\"", "", "missing field `main`"),
            (
                "programs = [\"toy\"]",
                "programs = []",
                "toolchain.programs: it is empty",
            ),
            (
                "programs = [\"toy\"]",
                "programs = [\"a/b\"]",
                "toolchain.programs: \"a/b\" is not accepted",
            ),
            (
                "[\"{program}\", \"--version\"]",
                "[\"toy\"]",
                "toolchain.probe: \"toy\" is not accepted as its first word",
            ),
            (
                "argv = [\"{program}\", \"{main}\", \"{args}\"]",
                "argv = []",
                "toolchain.run.argv: it is empty",
            ),
            (
                "[[toolchain]]",
                "[limits]\nprocesses = 0\n[[toolchain]]",
                "limits.processes: 0 is not accepted; give a whole number without a unit from 1 to 4096",
            ),
            (
                "[[toolchain]]",
                "[limits]\ntimeout_ms = \"2h\"\n[[toolchain]]",
                "limits.timeout_ms: \"2h\" is not accepted; give a time with a unit (ms, s, m, h, d, w) from 1ms to 1h",
            ),
            (
                "[[toolchain]]",
                "[limits]\ncpu_shares = 1\n[[toolchain]]",
                "limits.cpu_shares: 1 is not accepted; give a number from 2 to 262144",
            ),
            (
                "[toolchain.run]",
                "[toolchain.compile]\nargv = [\"/bin/true\"]\nlimits = { cpus = 70000 }\n[toolchain.run]",
                "toolchain.compile.limits.cpus: 70000 is not accepted; give a number of cores from 0.01 to 65536",
            ),
            (
                "[toolchain.run]",
                "[toolchain.run]\nenv = { \"A=\" = \"b\" }",
                "toolchain.run.env: the name \"A=\"",
            ),
            (
                "[toolchain.run]",
                "[toolchain.run",
                "line 9, \"[toolchain.run\": ",
            ),
        ] {
            let text = message(from, to);
            assert!(text.contains(expected), "{text}\nlacks\n{expected}");
        }
    }
}
