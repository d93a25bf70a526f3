//! Which languages there are, and which one is meant.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use belljar_spec::{Error, nearest, shown};
use serde::Serialize;

use super::cache::Cache;
use super::discover::discover_with;
use super::manifest::Manifest;
use super::own::{Own, named_directory, read_directory};
use super::toolchain::Toolchain;
use crate::engine::Engine;
use crate::image::Image;

const DEFAULT_LANGUAGE: &str = "python";
const SYSTEM_DIRECTORY: &str = "/etc/belljar/runtimes";

/// A manifest that comes with the program. Its names are repeated here so that a run parses one manifest, not all; a test
/// compares them with the manifests.
struct Builtin {
    name: &'static str,
    aliases: &'static [&'static str],
    endings: &'static [&'static str],
    /// As JSON, which the build makes of it: it is read in a fraction of the time.
    text: &'static str,
}

macro_rules! builtin {
    ($name:literal, $aliases:expr, $endings:expr) => {
        Builtin {
            name: $name,
            aliases: &$aliases,
            endings: &$endings,
            text: include_str!(concat!(env!("OUT_DIR"), "/runtimes/", $name, ".json")),
        }
    };
}

const BUILTINS: [Builtin; 14] = [
    builtin!("python", ["py", "python3"], ["py", "pyw"]),
    builtin!("javascript", ["js", "node", "nodejs"], ["js", "mjs", "cjs"]),
    builtin!("typescript", ["ts"], ["ts", "mts", "cts", "tsx"]),
    builtin!("bash", ["sh", "shell"], ["sh", "bash"]),
    builtin!("ruby", ["rb"], ["rb"]),
    builtin!("go", ["golang"], ["go"]),
    builtin!("rust", ["rs"], ["rs"]),
    builtin!("c", ["gcc"], ["c"]),
    builtin!("cpp", ["c++", "cxx", "g++"], ["cpp", "cc", "cxx", "c++"]),
    builtin!("java", ["openjdk", "jdk"], ["java"]),
    builtin!("php", [], ["php"]),
    builtin!("perl", ["pl", "perl5"], ["pl", "pm", "t"]),
    builtin!("lua", ["lua5.4", "lua5.3", "luajit"], ["lua"]),
    builtin!("r", ["rscript"], ["r"]),
];

/// What is known about the code's language.
#[derive(Debug, Clone, Copy, Default)]
pub struct LanguageHint<'a> {
    /// A name or an alias, in any case.
    pub language: Option<&'a str>,
    /// The name of the code's file, whose ending counts when no language is named.
    pub file_name: Option<&'a str>,
}

/// A line of `belljar runtimes`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Listed {
    pub name: String,
    pub aliases: Vec<String>,
    pub endings: Vec<String>,
    pub ok: bool,
    pub version: Option<String>,
    pub program: Option<PathBuf>,
    /// Why it is not there.
    pub missing: Option<String>,
    /// How to get it, where it is missing.
    pub install: Option<String>,
    /// `built-in`, or the manifest's file.
    pub origin: String,
}

/// All runtimes: the caller's own, then those that come with the program.
#[derive(Debug, Default)]
pub struct Registry {
    /// Strongest first. A broken one is kept, to be told to whoever asks for it.
    own: Vec<Own>,
    builtin: [OnceLock<Result<Manifest, Error>>; BUILTINS.len()],
}

impl Registry {
    /// With the caller's manifests from `BELLJAR_RUNTIMES`, `$XDG_CONFIG_HOME/belljar/runtimes` and
    /// `/etc/belljar/runtimes`. A directory that is named has to be one.
    pub fn load() -> Result<Self, Error> {
        let absolute = |name| {
            std::env::var_os(name)
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
        };
        let config =
            absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")));
        let directories = [
            named_directory()?,
            config.map(|dir| dir.join("belljar/runtimes")),
            Some(SYSTEM_DIRECTORY.into()),
        ];
        Ok(Self::with_directories(directories.into_iter().flatten()))
    }

    /// With manifests from these directories, strongest first; a directory that is not there has none.
    pub fn with_directories(directories: impl IntoIterator<Item = PathBuf>) -> Self {
        let own = directories
            .into_iter()
            .flat_map(|directory| read_directory(&directory))
            .collect();
        Self {
            own,
            ..Self::default()
        }
    }

    /// The manifest that is meant: by name, else by the file's ending, else Python's.
    pub fn find(&self, hint: &LanguageHint<'_>) -> Result<&Manifest, Error> {
        if let Some(language) = hint.language {
            return self.by_name(language);
        }
        let ending = hint
            .file_name
            .and_then(|name| Some(name.rsplit_once('.')?.1.to_ascii_lowercase()));
        match ending.and_then(|ending| self.by_ending(&ending)) {
            Some(found) => found,
            None => self.by_name(DEFAULT_LANGUAGE),
        }
    }

    fn by_name(&self, given: &str) -> Result<&Manifest, Error> {
        let name = given.trim().to_ascii_lowercase();
        for own in &self.own {
            match &own.manifest {
                Ok(manifest) if manifest.name == name => return Ok(manifest),
                Err(error) if own.stem.eq_ignore_ascii_case(&name) => return Err(error.clone()),
                _ => {}
            }
        }
        // An alias of somebody's own does not take another language's name away.
        if let Some(index) = BUILTINS.iter().position(|b| b.name == name) {
            return self.builtin(index);
        }
        let mut own = self.own.iter().filter_map(|own| own.manifest.as_ref().ok());
        if let Some(manifest) = own.find(|manifest| manifest.aliases.contains(&name)) {
            return Ok(manifest);
        }
        let has_alias = |b: &Builtin| b.aliases.contains(&name.as_str());
        if let Some(index) = BUILTINS.iter().position(has_alias) {
            return self.builtin(index);
        }
        let names = self.names();
        let aliases = BUILTINS
            .iter()
            .flat_map(|b| b.aliases.iter().copied().chain([b.name]));
        let meant = nearest(&name, names.iter().map(String::as_str).chain(aliases));
        Err(Error::UnknownLanguage {
            given: shown(given),
            nearest: meant.map(str::to_owned),
            known: names.join(", "),
        })
    }

    fn by_ending(&self, ending: &str) -> Option<Result<&Manifest, Error>> {
        if let Some(own) = self.own.iter().find(|own| own.has_ending(ending)) {
            return Some(own.manifest.as_ref().map_err(Clone::clone));
        }
        let index = BUILTINS
            .iter()
            .position(|builtin| builtin.endings.contains(&ending))?;
        // A manifest of the caller's replaces all of the built-in one of its name.
        Some(self.by_name(BUILTINS[index].name))
    }

    fn builtin(&self, index: usize) -> Result<&Manifest, Error> {
        let Builtin { name, text, .. } = BUILTINS[index];
        let parsed = self.builtin[index].get_or_init(|| Manifest::built_in(text, name));
        parsed.as_ref().map_err(Clone::clone)
    }

    /// All names, sorted.
    pub fn names(&self) -> Vec<String> {
        let own = self.own.iter().map(|own| own.stem.clone());
        let mut names: Vec<_> = BUILTINS
            .iter()
            .map(|b| b.name.to_owned())
            .chain(own)
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Every runtime with what this host has of it.
    pub fn list(&self) -> Vec<Listed> {
        self.list_with(&Cache::of_caller())
    }

    pub fn list_with(&self, cache: &Cache) -> Vec<Listed> {
        let names = self.names();
        // Asked side by side: the first time, fourteen toolchains take a second or two to answer in turn.
        std::thread::scope(|scope| {
            let rows: Vec<_> = names
                .iter()
                .map(|name| (name, scope.spawn(|| self.row(name, cache))))
                .map(|(name, thread)| (name.clone(), thread))
                .collect();
            rows.into_iter()
                .map(|(name, thread)| {
                    thread.join().unwrap_or_else(|_| {
                        Listed::broken(&name, &Error::internal("runtimes", "a probe failed"))
                    })
                })
                .collect()
        })
    }

    /// Every runtime with what an image has of it.
    pub async fn list_in(&self, engine: &Engine, image: &Arc<Image>) -> Vec<Listed> {
        let mut rows = Vec::new();
        for name in self.names() {
            rows.push(match self.by_name(&name) {
                Ok(manifest) => {
                    let found = engine.toolchain_in(image, manifest, &[]).await;
                    Listed::of(manifest, found)
                }
                Err(error) => Listed::broken(&name, &error),
            });
        }
        rows
    }

    fn row(&self, name: &str, cache: &Cache) -> Listed {
        let manifest = match self.by_name(name) {
            Ok(manifest) => manifest,
            Err(error) => return Listed::broken(name, &error),
        };
        Listed::of(manifest, discover_with(manifest, cache))
    }
}

impl Listed {
    fn of(manifest: &Manifest, found: Result<Toolchain, Error>) -> Self {
        let row = Self {
            aliases: manifest.aliases.clone(),
            endings: manifest.endings.clone(),
            origin: manifest.origin.clone(),
            ..Self::named(&manifest.name)
        };
        match found {
            Ok(found) => Listed {
                ok: true,
                version: Some(found.version),
                program: Some(found.program),
                ..row
            },
            Err(Error::RuntimeMissing {
                reason, install, ..
            }) => Listed {
                missing: Some(reason),
                install: Some(install),
                ..row
            },
            Err(error) => Listed {
                missing: Some(error.to_string()),
                ..row
            },
        }
    }
}

impl Listed {
    fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            aliases: Vec::new(),
            endings: Vec::new(),
            ok: false,
            version: None,
            program: None,
            missing: None,
            install: None,
            origin: String::new(),
        }
    }

    fn broken(name: &str, error: &Error) -> Self {
        Self {
            missing: Some(error.to_string()),
            ..Self::named(name)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    fn by_language(registry: &Registry, language: &str) -> Result<String, Error> {
        registry
            .find(&LanguageHint {
                language: Some(language),
                file_name: Some("x.rb"),
            })
            .map(|m| m.name.clone())
    }

    fn by_file<'a>(registry: &'a Registry, file: &str) -> &'a str {
        &registry
            .find(&LanguageHint {
                language: None,
                file_name: Some(file),
            })
            .unwrap()
            .name
    }

    #[test]
    fn the_index_says_what_the_manifests_say() {
        let registry = Registry::default();
        let mut words = BTreeSet::new();
        let mut all_endings = BTreeSet::new();
        for (index, builtin) in BUILTINS.iter().enumerate() {
            let manifest = registry.builtin(index).unwrap();
            assert_eq!(manifest.name, builtin.name);
            assert_eq!(manifest.aliases, builtin.aliases, "{}", builtin.name);
            assert_eq!(manifest.endings, builtin.endings, "{}", builtin.name);
            assert!(!manifest.install.is_empty());
            for word in builtin.aliases.iter().chain([&builtin.name]) {
                assert!(words.insert(*word), "{word} is named twice");
            }
            for ending in builtin.endings {
                assert!(all_endings.insert(*ending), "{ending} is named twice");
            }
            assert_eq!(by_file(&registry, &manifest.main), builtin.name);
        }
        let files = read_directory(Path::new(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../runtimes"
        )));
        assert_eq!(files.len(), BUILTINS.len(), "each manifest is built in");
    }

    #[test]
    fn names_endings_and_python() {
        let registry = Registry::default();
        assert_eq!(by_language(&registry, " Node "), Ok("javascript".into()));
        assert_eq!(by_language(&registry, "C++"), Ok("cpp".into()));
        assert_eq!(by_file(&registry, "dir.rb/script"), "python");
        assert_eq!(by_file(&registry, "a.b.R"), "r");
        assert_eq!(by_file(&registry, "notes.txt"), "python");
        assert_eq!(
            registry.find(&LanguageHint::default()).unwrap().name,
            "python"
        );
        let error = by_language(&registry, "pyhton").unwrap_err();
        assert_eq!(
            error.to_string(),
            "language: \"pyhton\" is not known, did you mean python?; known are bash, c, cpp, go, java, javascript, lua, \
             perl, php, python, r, ruby, rust, typescript"
        );
        assert!(by_language(&registry, "").is_err());
    }

    #[test]
    fn only_what_is_asked_for_is_parsed() {
        let registry = Registry::default();
        registry.find(&LanguageHint::default()).unwrap();
        assert_eq!(
            registry
                .builtin
                .iter()
                .filter(|slot| slot.get().is_some())
                .count(),
            1
        );
    }

    #[test]
    fn this_host_has_every_runtime() {
        let missing: Vec<_> = Registry::default()
            .list_with(&Cache::none())
            .into_iter()
            .filter(|row| !row.ok)
            .collect();
        let fixes: Vec<_> = missing
            .iter()
            .filter_map(|row| row.install.as_deref())
            .collect();
        assert!(
            missing.is_empty(),
            "install what is missing, then run again: {}\n{missing:#?}",
            fixes.join("; ")
        );
    }

    #[test]
    fn the_manifest_in_the_documentation_is_one() {
        let text = include_str!("../../../../runtimes/README.md");
        let (_, rest) = text.split_once("```toml\n").unwrap();
        let (example, _) = rest.split_once("```").unwrap();
        let manifest = Manifest::parse(example, "README.md", "awk").unwrap();
        let found = discover_with(&manifest, &Cache::none()).unwrap();
        assert!(found.version.starts_with("mawk 1."), "{}", found.version);
    }

    #[test]
    fn own_manifests_add_replace_and_fail_alone() {
        let (strong, weak) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let write = |dir: &tempfile::TempDir, name: &str, install: &str| {
            let text = format!(
                "name = '{name}'\nendings = ['{name}', 'zz']\naliases = ['my-{name}']\nmain = 'main.{name}'\n\
                 install = '{install}'\n[[toolchain]]\nprograms = ['/nowhere']\nprobe = ['{{program}}']\n\
                 [toolchain.run]\nargv = ['{{program}}']"
            );
            fs::write(dir.path().join(format!("{name}.toml")), text).unwrap();
        };
        write(&strong, "toy", "strong");
        write(&weak, "toy", "weak");
        write(&weak, "ruby", "mine");
        fs::write(weak.path().join("bad.toml"), "name = 1").unwrap();
        fs::write(weak.path().join("README"), "not a manifest").unwrap();
        let directories = [
            strong.path().into(),
            weak.path().into(),
            "/nowhere/at/all".into(),
        ];
        let registry = Registry::with_directories(directories);

        let install = |language| registry.by_name(language).unwrap().install.clone();
        assert_eq!(
            (&*install("toy"), &*install("my-toy"), &*install("ruby")),
            ("strong", "strong", "mine")
        );
        assert_eq!(by_file(&registry, "x.zz"), "toy");
        assert_eq!(by_file(&registry, "x.rb"), "ruby");
        assert_eq!(by_file(&registry, "x.py"), "python");
        let error = registry.by_name("bad").unwrap_err().to_string();
        assert!(
            error.contains("bad.toml: line 1, \"name = 1\": invalid type"),
            "{error}"
        );

        let rows = registry.list_with(&Cache::none());
        assert_eq!(rows.len(), BUILTINS.len() + 2);
        let row = |name| rows.iter().find(|row| row.name == name).unwrap();
        assert!(!row("toy").ok && row("toy").install.as_deref() == Some("strong"));
        assert!(row("bad").missing.as_deref().unwrap().contains("bad.toml"));
        assert!(row("bash").ok, "{:?}", row("bash"));
    }

    #[test]
    fn an_alias_takes_no_name_away() {
        let own = tempfile::tempdir().unwrap();
        let text = "name = 'toy'\naliases = ['python', 'py']\nmain = 'main.toy'\ninstall = ''\n[[toolchain]]\n\
                    programs = ['/nowhere']\nprobe = ['{program}']\n[toolchain.run]\nargv = ['{program}']";
        fs::write(own.path().join("toy.toml"), text).unwrap();
        let registry = Registry::with_directories([own.path().into()]);
        assert_eq!(by_language(&registry, "python"), Ok("python".into()));
        assert_eq!(by_language(&registry, "py"), Ok("toy".into()));
        assert_eq!(by_file(&registry, "notes.txt"), "python");
        let rows = registry.list_with(&Cache::none());
        let toys = rows.iter().filter(|row| row.name == "toy");
        assert_eq!((rows.len(), toys.count()), (BUILTINS.len() + 1, 1));
    }
}
