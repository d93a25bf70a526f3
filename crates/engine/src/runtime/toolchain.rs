//! A language as this host has it, made of a manifest and what its probe said.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use belljar_spec::{Error, LimitsPatch, WORKSPACE};

use super::cache::Record;
use super::manifest::{Alternative, KernelText, Manifest, StepText};
use super::template::{self, Place};
use crate::docker::Container;
use crate::egress::INSTALLED;
use crate::image::Image;
use crate::kernel::Form;
use crate::packages::{InUse, Installer, PACKAGES};

/// A language as this host has it.
#[derive(Debug, Clone, PartialEq)]
pub struct Toolchain {
    /// The manifest's name.
    pub name: String,
    /// What the code's file is called when it has no name of its own.
    pub main: String,
    /// For people, like `Python 3.11.2`.
    pub version: String,
    /// The real interpreter or compiler, behind any shim.
    pub program: PathBuf,
    /// Files and directories to mount read-only at the same place inside, beyond the base; none is below another.
    pub mounts: Vec<PathBuf>,
    pub compile: Option<Step>,
    pub run: Step,
    pub kernel: Option<Kernel>,
    /// Defaults of the run stage.
    pub limits: LimitsPatch,
    /// Of an image that a container engine runs; then all paths are the image's.
    pub container: Option<Container>,
    /// Directories of the host that are seen elsewhere inside, read-only: packages.
    pub layers: Vec<(PathBuf, PathBuf)>,
    /// Nobody removes them as long as this is here.
    pub(crate) in_use: Option<InUse>,
    /// What tells programs about them.
    pub variables: BTreeMap<String, String>,
    /// In which it is, if not on the host.
    pub image: Option<Arc<Image>>,
}

impl Toolchain {
    /// From what the probe of one of the manifest's alternatives said.
    pub(super) fn of(
        manifest: &Manifest,
        alternative: &Alternative,
        record: &Record,
    ) -> Result<Self, Error> {
        let mut vars = record.vars.clone();
        vars.insert(
            "program".into(),
            record.program.to_string_lossy().into_owned(),
        );
        let step = |key: &str, text: &StepText| {
            let fill = |word: &String| {
                template::fill_early(word, &vars).map_err(|name| Error::InvalidManifest {
                    file: manifest.origin.clone(),
                    reason: format!("toolchain.{key}: {{{name}}} is not known; give a placeholder of Belljar or of the probe"),
                })
            };
            let env = text
                .env
                .iter()
                .map(|(name, value)| Ok((name.clone(), fill(value)?)));
            Ok::<_, Error>(Step {
                // A placeholder that the probe left empty is a word that is not wanted here.
                argv: text
                    .argv
                    .iter()
                    .map(|word| Ok((word, fill(word)?)))
                    .filter(|filled| !matches!(filled, Ok((word, filled)) if filled.is_empty() && !word.is_empty()))
                    .map(|filled| filled.map(|(_, filled)| filled))
                    .collect::<Result<_, Error>>()?,
                env: env.collect::<Result<_, Error>>()?,
                limits: text.limits.clone(),
            })
        };
        let run = step("run", &alternative.run)?;
        let prepare = |argv: &Vec<String>| {
            let text = StepText {
                argv: argv.clone(),
                env: BTreeMap::new(),
                limits: LimitsPatch::default(),
            };
            step("kernel.prepare", &text).map(|step| step.argv)
        };
        let kernel = |text: &KernelText| {
            Ok::<_, Error>(Kernel {
                files: text.files.clone(),
                step: step("kernel.start", &text.start)?,
                zygote: text
                    .zygote
                    .as_ref()
                    .map(|text| step("kernel.zygote", text))
                    .transpose()?,
                prepare: text.prepare.as_ref().map(prepare).transpose()?,
                form: text.form,
                descriptors: text.descriptors,
                imports: text.imports,
                reads: text
                    .reads
                    .as_ref()
                    .map(|paths| paths.iter().map(PathBuf::from).collect()),
            })
        };
        Ok(Self {
            kernel: alternative.kernel.as_ref().map(kernel).transpose()?,
            name: manifest.name.clone(),
            main: manifest.main.clone(),
            version: record.vars.get("version").cloned().unwrap_or_default(),
            program: record.program.clone(),
            mounts: record.mounts.clone(),
            compile: alternative
                .compile
                .as_ref()
                .map(|text| step("compile", text))
                .transpose()?,
            limits: run.limits.clone().or(&manifest.limits),
            run,
            image: None,
            container: None,
            layers: Vec::new(),
            in_use: None,
            variables: BTreeMap::new(),
        })
    }

    /// Where the workspace is, if the caller does not say.
    pub(crate) fn workdir(&self, asked: Option<&str>) -> String {
        let image = self.image.as_ref().and_then(|image| image.workdir());
        asked.or(image).unwrap_or(WORKSPACE).to_owned()
    }

    /// What a sandbox's root is made of, for its report.
    pub(crate) fn root(&self) -> Option<String> {
        self.image.as_ref().map(|image| image.described())
    }

    /// From now on its interpreter loads these when it starts.
    pub(crate) fn preload(&mut self, modules: &[String]) {
        if let Some(kernel) = &mut self.kernel {
            kernel.step.argv.extend_from_slice(modules);
        }
    }

    /// The same with packages at the place where its programs look for them.
    pub(crate) fn with_packages(&self, layer: &Path, in_use: InUse, installer: Installer) -> Self {
        let mut with = self.clone();
        with.in_use = Some(in_use);
        match installer {
            Installer::Pip => {
                with.layers.push((layer.into(), PACKAGES.into()));
                let path = format!("{PACKAGES}:{INSTALLED}");
                with.variables.insert("PYTHONPATH".into(), path);
            }
            // Looked for in every directory above the code.
            Installer::Npm => {
                let modules = layer.join("node_modules");
                with.layers.push((modules, "/node_modules".into()));
            }
        }
        with
    }
}

/// What keeps the interpreter alive between runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Kernel {
    pub files: String,
    pub step: Step,
    pub zygote: Option<Step>,
    /// Compiles its files, on the host.
    pub prepare: Option<Vec<String>>,
    pub form: Form,
    pub descriptors: bool,
    pub imports: bool,
    /// `None`: it cannot do without files or processes.
    pub reads: Option<Vec<PathBuf>>,
}

/// A command of a stage, ready but for what only a sandbox knows.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    argv: Vec<String>,
    env: BTreeMap<String, String>,
    /// Defaults of this stage.
    pub limits: LimitsPatch,
}

impl Step {
    /// The command's words. The caller's arguments take the place of `{args}`.
    pub fn argv(&self, place: &Place<'_>, args: &[String]) -> Vec<String> {
        let mut words = Vec::with_capacity(self.argv.len() + args.len());
        for word in &self.argv {
            if word == "{args}" {
                words.extend_from_slice(args);
            } else {
                words.push(place.fill(word));
            }
        }
        words
    }

    /// What the manifest adds to the sandbox's environment.
    pub fn env(&self, place: &Place<'_>) -> BTreeMap<String, String> {
        self.env
            .iter()
            .map(|(name, value)| (name.clone(), place.fill(value)))
            .collect()
    }
}
