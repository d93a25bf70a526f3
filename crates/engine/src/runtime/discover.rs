//! From a manifest to a toolchain of this host.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use belljar_spec::Error;

use super::cache::{Cache, Record, Stamp};
use super::manifest::{Alternative, Manifest};
use super::mounts::mounts;
use super::probe::{self, Answer};
use super::template;
use super::toolchain::Toolchain;

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
        return Toolchain::of(manifest, alternative, &record);
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
                let toolchain = Toolchain::of(manifest, alternative, &record)?;
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

pub(super) fn home() -> Option<PathBuf> {
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
        Toolchain::of(self, alternative, &record).ok()
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
        let toolchain = Toolchain::of(self.manifest, self.alternative, &record)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::Place;

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
