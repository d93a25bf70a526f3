//! Manifests of the caller's own: files in directories. One that cannot be used holds up nobody but who asks for it.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use belljar_spec::{Error, shown};

use super::manifest::Manifest;

/// Names the strongest directory.
const VARIABLE: &str = "BELLJAR_RUNTIMES";
/// No language needs as much.
const MOST_BYTES: u64 = 1 << 20;

/// A manifest of the caller's own, whether it can be used or not.
#[derive(Debug)]
pub(super) struct Own {
    /// What the file is called, without `.toml`.
    pub stem: String,
    pub manifest: Result<Manifest, Error>,
    /// Of one that cannot be used, as far as that can be seen.
    endings: Vec<String>,
}

impl Own {
    /// Whether code with this ending is for it: then it is for no other language, even where this cannot be used.
    pub fn has_ending(&self, ending: &str) -> bool {
        let endings = match &self.manifest {
            Ok(manifest) => &manifest.endings,
            Err(_) => &self.endings,
        };
        endings.iter().any(|own| own == ending)
    }

    fn read(path: &Path, stem: String) -> Self {
        let origin = path.display().to_string();
        let unreadable = |reason: String| Error::InvalidManifest {
            file: origin.clone(),
            reason,
        };
        let (manifest, endings) = match text(path) {
            Ok(text) => {
                let parsed = Manifest::parse(&text, &origin, &stem);
                let endings = parsed.as_ref().err().map(|_| endings_in(&text));
                (parsed, endings.unwrap_or_default())
            }
            Err(reason) => (Err(unreadable(reason)), vec![stem.to_ascii_lowercase()]),
        };
        Self {
            stem,
            manifest,
            endings,
        }
    }
}

/// The directory that the environment names, if it names one. One that cannot be looked into would be as if it had no manifests.
pub(super) fn named_directory() -> Result<Option<PathBuf>, Error> {
    let named = std::env::var_os(VARIABLE).filter(|named| !named.is_empty());
    let Some(named) = named.map(PathBuf::from) else {
        return Ok(None);
    };
    match fs::read_dir(&named) {
        Ok(_) => Ok(Some(named)),
        Err(error) => Err(Error::InvalidEnv {
            given: format!("{VARIABLE}={}", shown(&named.to_string_lossy())),
            accepted: format!("give a directory with manifests in it ({error})"),
        }),
    }
}

/// What is in a directory, by name; nothing where there is none.
pub(super) fn read_directory(directory: &Path) -> Vec<Own> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut found: Vec<_> = entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let stem = path.file_stem()?.to_str()?.to_owned();
            (path.extension()? == "toml").then(|| Own::read(&path, stem))
        })
        .collect();
    found.sort_unstable_by(|a, b| a.stem.cmp(&b.stem));
    found
}

/// Only of a regular file: to open another may wait for ever.
fn text(path: &Path) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("cannot be read: {error}");
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err("cannot be read: it is no regular file".into());
    }
    let mut text = String::new();
    let file = File::open(path).map_err(failed)?;
    let read = file.take(MOST_BYTES + 1).read_to_string(&mut text);
    match read.map_err(failed)? as u64 {
        0..=MOST_BYTES => Ok(text),
        _ => Err(format!(
            "cannot be read: it has more than the {MOST_BYTES} bytes that are accepted"
        )),
    }
}

/// What a manifest says of endings, whatever is wrong with it.
fn endings_in(text: &str) -> Vec<String> {
    let mut from = text;
    loop {
        let line = from.trim_start();
        let list = line.strip_prefix("endings").map(str::trim_start);
        if let Some(list) = list.and_then(|list| list.strip_prefix('=')) {
            let list = &list[..list.find(']').unwrap_or(list.len())];
            let quoted = list.split(['"', '\'']).skip(1).step_by(2);
            let plain = |ending: &str| ending.trim_start_matches('.').to_ascii_lowercase();
            return quoted.map(plain).collect();
        }
        match line.split_once('\n') {
            Some((_, rest)) => from = rest,
            None => return Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_of_a_broken_one() {
        for (text, endings) in [
            (
                "name = 1\nendings = ['sum', \"add\"]\nx",
                &["sum", "add"][..],
            ),
            ("  endings=[\n  '.Sum',\n]\n[[x]]\ny = 'z'", &["sum"]),
            ("endings = ['sum', 'ad", &["sum", "ad"]),
            ("no endings = here", &[]),
            ("endings", &[]),
            ("", &[]),
        ] {
            assert_eq!(endings_in(text), endings, "{text}");
        }
    }

    #[test]
    fn what_is_too_long_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("long.toml");
        for (bytes, is_read) in [(MOST_BYTES, true), (MOST_BYTES + 1, false)] {
            File::create(&path).unwrap().set_len(bytes).unwrap();
            assert_eq!(text(&path).is_ok(), is_read, "{bytes}");
        }
        assert!(text(dir.path()).unwrap_err().contains("no regular file"));
    }
}
