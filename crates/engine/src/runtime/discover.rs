//! From a manifest to a toolchain of this host.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use belljar_spec::{Error, LimitsPatch, WORKSPACE};

use crate::image::Image;

use super::cache::{Cache, Record, Stamp};
use super::manifest::{Alternative, KernelText, Manifest, StepText};
use super::probe::{self, Answer};
use super::template::{self, Place};
use crate::docker::Container;
use crate::egress::INSTALLED;
use crate::kernel::Form;
use crate::packages::{Installer, PACKAGES};

/// Directories of the host that every sandbox sees, so that no manifest needs to name what lies below them. The links
/// `/bin`, `/lib` and the like lead here.
pub const BASE: [&str; 12] = [
    "/usr/bin",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/libx32",
    "/usr/libexec",
    "/usr/share",
    "/bin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
];

/// Never to be shown as a whole: they hold other people's things, or a view of the host that the sandbox makes itself.
const TOO_WIDE: [&str; 17] = [
    "/", "/boot", "/dev", "/etc", "/home", "/media", "/mnt", "/opt", "/proc", "/root", "/run",
    "/srv", "/sys", "/tmp", "/usr", "/var", "/var/lib",
];

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
    /// What tells programs about them.
    pub variables: BTreeMap<String, String>,
    /// In which it is, if not on the host.
    pub image: Option<Arc<Image>>,
}

impl Toolchain {
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
    pub(crate) fn with_packages(&self, layer: &Path, installer: Installer) -> Self {
        let mut with = self.clone();
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

/// The manifest's toolchain on this host, by what is remembered or by asking it.
pub fn discover(manifest: &Manifest) -> Result<Toolchain, Error> {
    discover_with(manifest, &Cache::of_caller())
}

pub fn discover_with(manifest: &Manifest, cache: &Cache) -> Result<Toolchain, Error> {
    let hash = manifest.hash ^ probe::environment_hash();
    if let Some(record) = cache.load(&manifest.name, hash)
        && candidates(manifest)
            .map(|(_, path)| path)
            .take(record.candidates.len())
            .eq(record.candidates.iter().cloned())
        && let Some(alternative) = manifest.alternatives.get(record.alternative)
    {
        return toolchain(manifest, alternative, &record);
    }
    let mut tried = Vec::new();
    let mut last_reason = None;
    for (index, path) in candidates(manifest) {
        tried.push(path.clone());
        let Some(alternative) = manifest.alternatives.get(index) else {
            continue;
        };
        match examine(manifest, alternative, &path) {
            Ok((program, mounts, answer)) => {
                let mut record = Record {
                    hash,
                    candidates: tried,
                    alternative: index,
                    program,
                    mounts,
                    vars: answer.vars,
                    stamps: Vec::new(),
                };
                record.stamps = stamps(&record, alternative, &answer.watch);
                let toolchain = toolchain(manifest, alternative, &record)?;
                cache.store(&manifest.name, &record);
                return Ok(toolchain);
            }
            Err(reason) => last_reason = Some(reason),
        }
    }
    let looked_for = || {
        let names: Vec<_> = manifest
            .alternatives
            .iter()
            .flat_map(|a| &a.programs)
            .map(String::as_str)
            .collect();
        format!("this host has none of {}", names.join(", "))
    };
    Err(Error::RuntimeMissing {
        language: manifest.name.clone(),
        reason: last_reason.unwrap_or_else(looked_for),
        install: manifest.install.clone(),
    })
}

/// Programs of the manifest that are on this host, best first, each with the alternative it belongs to.
fn candidates(manifest: &Manifest) -> impl Iterator<Item = (usize, PathBuf)> {
    let all = manifest
        .alternatives
        .iter()
        .enumerate()
        .flat_map(|(index, alternative)| std::iter::repeat(index).zip(&alternative.programs));
    let mut seen = Vec::new();
    all.filter_map(|(index, program)| Some((index, locate(program)?)))
        .filter(move |(_, path)| {
            let new = !seen.contains(path);
            seen.push(path.clone());
            new
        })
}

fn locate(program: &str) -> Option<PathBuf> {
    let is_program = |path: &Path| {
        fs::metadata(path)
            .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    if let Some(below_home) = program.strip_prefix("~/") {
        return home()
            .map(|home| home.join(below_home))
            .filter(|path| is_program(path));
    }
    if program.starts_with('/') {
        return Some(PathBuf::from(program)).filter(|path| is_program(path));
    }
    let path = std::env::var_os("PATH")?;
    // A relative entry would mean another program in every directory.
    std::env::split_paths(&path)
        .filter(|dir| dir.is_absolute())
        .map(|dir| dir.join(program))
        .find(|path| is_program(path))
}

fn home() -> Option<PathBuf> {
    std::env::var_os("HOME")
        .map(PathBuf::from)
        .filter(|home| home.is_absolute())
}

/// A program that may be there in a place that is not this host, and what to ask it.
pub struct Candidate<'a> {
    manifest: &'a Manifest,
    index: usize,
    alternative: &'a Alternative,
    /// A name to look for, or a path.
    pub program: &'a str,
}

/// Where an answer from an image is kept, and what it is an answer to.
fn of_image(manifest: &Manifest, image: &str) -> (String, u64) {
    let mut hasher = DefaultHasher::new();
    image.hash(&mut hasher);
    (
        format!("image-{}", manifest.name),
        manifest.hash ^ hasher.finish(),
    )
}

impl Manifest {
    /// What was found in this image the last time somebody looked. An image never changes: its name is its digest.
    pub fn remembered(&self, image: &str) -> Option<Toolchain> {
        let (name, hash) = of_image(self, image);
        let record = Cache::of_caller().load(&name, hash)?;
        let alternative = self.alternatives.get(record.alternative)?;
        toolchain(self, alternative, &record).ok()
    }

    /// In order of preference.
    pub fn candidates(&self) -> impl Iterator<Item = Candidate<'_>> {
        let all = self.alternatives.iter().enumerate();
        all.flat_map(move |(index, alternative)| {
            alternative.programs.iter().map(move |program| Candidate {
                manifest: self,
                index,
                alternative,
                program,
            })
        })
    }
}

impl Candidate<'_> {
    /// The words of its probe, once it is known where the program is.
    pub fn probe(&self, program: &str) -> Result<Vec<String>, Error> {
        let vars = BTreeMap::from([("program".to_owned(), program.to_owned())]);
        let fill = |word: &String| {
            template::fill_early(word, &vars).map_err(|name| Error::InvalidManifest {
                file: self.manifest.origin.clone(),
                reason: format!("probe: {{{name}}} is not known"),
            })
        };
        self.alternative.probe.iter().map(fill).collect()
    }

    /// The toolchain that the probe's answer describes. What it wants mounted is there already.
    pub fn answered(&self, program: &str, text: &str, image: &str) -> Result<Toolchain, Error> {
        let wrong = |reason: String| Error::RuntimeMissing {
            language: self.manifest.name.clone(),
            reason,
            install: self.manifest.install.clone(),
        };
        let answer = probe::parse(text).map_err(wrong)?;
        let named = answer.vars.get("program");
        let (name, hash) = of_image(self.manifest, image);
        let record = Record {
            hash,
            candidates: Vec::new(),
            alternative: self.index,
            program: PathBuf::from(named.map_or(program, String::as_str)),
            mounts: Vec::new(),
            vars: answer.vars,
            stamps: Vec::new(),
        };
        let toolchain = toolchain(self.manifest, self.alternative, &record)?;
        Cache::of_caller().store(&name, &record);
        Ok(toolchain)
    }
}

/// Asks one candidate; the error says why it will not do.
fn examine(
    manifest: &Manifest,
    alternative: &Alternative,
    path: &Path,
) -> Result<(PathBuf, Vec<PathBuf>, Answer), String> {
    let text = path.to_str().ok_or("its path is not UTF-8")?;
    let vars = BTreeMap::from([("program".to_owned(), text.to_owned())]);
    let fill = |word: &String| {
        template::fill_early(word, &vars)
            .map_err(|name| format!("{}: probe: {{{name}}} is not known", manifest.origin))
    };
    let mut answer = probe::ask(
        &alternative
            .probe
            .iter()
            .map(fill)
            .collect::<Result<Vec<_>, _>>()?,
    )?;
    let program = answer
        .vars
        .get("program")
        .map_or_else(|| path.to_owned(), PathBuf::from);
    if !program.exists() {
        return Err(format!("{} is not there", program.display()));
    }
    let mut wanted = std::mem::take(&mut answer.mounts);
    wanted.push(program.clone());
    wanted.extend(alternative.mounts.iter().map(PathBuf::from));
    wanted.extend(
        alternative
            .optional_mounts
            .iter()
            .map(PathBuf::from)
            .filter(|path| path.exists()),
    );
    let mounts = mounts(&wanted)?;
    Ok((program, mounts, answer))
}

/// Of everything that the answer depends on, also of what is not there yet.
fn stamps(record: &Record, alternative: &Alternative, watch: &[PathBuf]) -> Vec<Stamp> {
    let own = record
        .candidates
        .iter()
        .chain(&record.mounts)
        .chain([&record.program])
        .chain(watch);
    let optional = alternative.optional_mounts.iter().map(Path::new);
    let mut paths: Vec<&Path> = own.map(PathBuf::as_path).chain(optional).collect();
    paths.sort_unstable();
    paths.dedup();
    paths.into_iter().map(Stamp::of).collect()
}

/// What is to be mounted of what is wanted: not what the base has, nothing twice, and never a whole home.
fn mounts(wanted: &[PathBuf]) -> Result<Vec<PathBuf>, String> {
    let mut paths = Vec::new();
    for path in wanted {
        // A link is mounted under its own name, and what it leads to under that name: programs may know either.
        let real = fs::canonicalize(path)
            .map_err(|error| format!("{} cannot be used: {error}", path.display()))?;
        for path in [normal(path), real] {
            if !BASE.iter().any(|base| path.starts_with(base)) {
                refuse_too_wide(&path)?;
                paths.push(path);
            }
        }
    }
    paths.sort_unstable();
    paths.dedup();
    // Sorted, a directory comes before what is below it.
    paths.dedup_by(|below, above| below.starts_with(above));
    Ok(paths)
}

/// Without `..`, which `starts_with` takes for a name. A directory above a link is another one than the text says, but then
/// the real path, which is mounted too, is what the program uses.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => {
                normal.pop();
            }
            part => normal.push(part),
        }
    }
    normal
}

fn refuse_too_wide(path: &Path) -> Result<(), String> {
    let is_home = path.parent() == Some(Path::new("/home"))
        || home().is_some_and(|home| home.starts_with(path));
    if is_home || TOO_WIDE.iter().any(|wide| path == Path::new(wide)) {
        return Err(format!(
            "it would need all of {} inside the sandbox; install it in a directory of its own",
            path.display()
        ));
    }
    Ok(())
}

pub(super) fn toolchain(
    manifest: &Manifest,
    alternative: &Alternative,
    record: &Record,
) -> Result<Toolchain, Error> {
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
    Ok(Toolchain {
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
        variables: BTreeMap::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn paths(texts: &[&str]) -> Vec<PathBuf> {
        texts.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn mounts_are_narrow() {
        assert_eq!(
            mounts(&paths(&["/usr/bin", "/usr/lib/../lib", "/usr/share/doc"])),
            Ok(vec![])
        );
        assert_eq!(
            mounts(&paths(&[
                "/usr/local/lib",
                "/usr/local/../local/lib",
                "/usr/local"
            ])),
            Ok(paths(&["/usr/local"]))
        );
        for wide in ["/", "/etc", "/usr", "/home", "/usr/bin/../..", "/tmp/"] {
            assert!(
                mounts(&paths(&[wide]))
                    .unwrap_err()
                    .contains("install it in a directory of its own"),
                "{wide}"
            );
        }
        let home = home().unwrap();
        assert!(mounts(std::slice::from_ref(&home)).is_err());
        assert!(mounts(&[home.parent().unwrap().to_owned()]).is_err());
        assert!(mounts(&paths(&["/nowhere"])).is_err());

        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("toy-1.2"), dir.path().join("toy"));
        fs::create_dir(&real).unwrap();
        symlink(&real, &link).unwrap();
        assert_eq!(
            mounts(&[link.join("."), real.clone()]),
            Ok(vec![link, real])
        );
    }

    fn toy(dir: &Path, probe: &str) -> Manifest {
        let program = dir.join("toy");
        if !program.exists() {
            fs::write(&program, "#!/bin/sh\n").unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let text = format!(
            "name = 'toy'\nmain = 'main.toy'\ninstall = 'write it'\n[limits]\nprocesses = 9\n[[toolchain]]\n\
             programs = ['/nowhere/toy', '{}']\nprobe = ['/bin/sh', '-c', '{probe}']\n[toolchain.run]\n\
             argv = ['{{program}}', '{{flag}}', '-m{{heap_mib}}', '{{main}}', '{{args}}', '']\nenv = {{ OUT = '{{out}}' }}",
            program.display()
        );
        Manifest::parse(&text, "toy.toml", "toy").unwrap()
    }

    #[test]
    fn found_filled_and_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path().join("cache"));
        let count = dir.path().join("count");
        let manifest = toy(
            dir.path(),
            &format!(
                "echo x >> {}; echo version=Toy 1; echo flag=",
                count.display()
            ),
        );
        let found = discover_with(&manifest, &cache).unwrap();
        assert_eq!(
            (&*found.version, &found.program),
            ("Toy 1", &dir.path().join("toy"))
        );
        assert_eq!(found.mounts, [dir.path().join("toy")]);
        let place = Place {
            main: "/w/main.toy",
            workspace: "/w",
            out: "/o",
            memory_bytes: 4 << 20,
            cpus: 1.0,
        };
        let args = ["{main}".to_owned(), String::new()];
        let program = found.program.to_str().unwrap();
        assert_eq!(
            found.run.argv(&place, &args),
            [program, "-m3", "/w/main.toy", "{main}", "", ""]
        );
        assert_eq!(found.run.env(&place)["OUT"], "/o");
        assert!(found.limits.processes.is_some() && found.compile.is_none());

        assert_eq!(discover_with(&manifest, &cache).unwrap(), found);
        assert_eq!(
            fs::read_to_string(&count).unwrap(),
            "x\n",
            "the second answer came from the cache"
        );
        fs::write(dir.path().join("toy"), "#!/bin/sh\n# changed\n").unwrap();
        discover_with(&manifest, &cache).unwrap();
        assert_eq!(
            fs::read_to_string(&count).unwrap(),
            "x\nx\n",
            "a changed program is asked again"
        );
    }

    #[test]
    fn missing_says_why_and_how_to_get_it() {
        let dir = tempfile::tempdir().unwrap();
        let why = |probe: &str| discover_with(&toy(dir.path(), probe), &Cache::none()).unwrap_err();
        let error = why("echo no engine here >&2; exit 3");
        assert_eq!(
            error.to_string(),
            "runtime toy is missing: no engine here; to get it: write it"
        );
        assert_eq!(error.code(), "runtime_missing");
        assert!(
            why("echo version=1; echo mount=/")
                .to_string()
                .contains("all of / inside")
        );
        let error = why("echo version=1");
        assert!(
            error
                .to_string()
                .contains("toolchain.run: {flag} is not known"),
            "{error}"
        );

        let manifest = toy(dir.path(), "true");
        fs::remove_file(dir.path().join("toy")).unwrap();
        let error = discover_with(&manifest, &Cache::none())
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("runtime toy is missing: this host has none of /nowhere/toy, "),
            "{error}"
        );
    }
}
