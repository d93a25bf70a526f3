//! Where packages come from: what the settings say, else what pip and npm on this host would use.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use belljar_spec::Error;

use super::{Installer, PackageSettings};
use crate::runtime::output;

/// The address of an index, as the installer is told it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    pub url: String,
    /// Where its files are, if not at the same host.
    pub files: Option<String>,
}

impl Index {
    /// Host and port, and whether it is by TLS.
    pub fn host(&self) -> Option<(String, u16)> {
        let (scheme, rest) = self.url.split_once("://")?;
        let default = match scheme {
            "https" => 443,
            "http" => 80,
            _ => return None,
        };
        let authority = rest.split(['/', '?', '#']).next()?;
        let authority = authority.rsplit('@').next()?;
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
            _ => (authority, default),
        };
        (!host.is_empty()).then(|| (host.to_ascii_lowercase(), port))
    }

    /// Without a password.
    pub fn shown(&self) -> String {
        match (self.url.split_once("://"), self.url.rsplit_once('@')) {
            (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://{rest}"),
            _ => self.url.clone(),
        }
    }
}

/// What somebody has configured; `None`: the installer has one of its own.
pub fn configured(installer: Installer, settings: &PackageSettings) -> Option<String> {
    match installer {
        Installer::Pip => settings.python.clone().or_else(of_pip),
        Installer::Npm => settings.javascript.clone().or_else(of_npm),
    }
}

/// What pip on this host would use, the host of its own index, and where the files of that are.
const ASK_PIP: &str = "from pip._internal.commands import create_command
from pip._internal.models.index import PyPI as own
print(create_command('install').parser.get_default_values().index_url, own.netloc, own.file_storage_domain)";

/// The index that is configured, or what the installer on this host says: no program but that one knows.
pub async fn find(
    installer: Installer,
    python: &Path,
    settings: &PackageSettings,
) -> Result<Index, Error> {
    let configured = configured(installer, settings);
    let said = match installer {
        Installer::Pip => said(&[&python.to_string_lossy(), "-I", "-c", ASK_PIP]).await,
        // Only its own word is missing.
        Installer::Npm if configured.is_some() => None,
        Installer::Npm => said(&["npm", "config", "get", "registry"]).await,
    };
    let words: Vec<_> = said
        .iter()
        .flat_map(|said| said.split_whitespace())
        .collect();
    let own = words.first().filter(|url| url.contains("://"));
    let url = configured.or_else(|| own.map(|url| (*url).to_owned()));
    let url = url.ok_or_else(|| {
        let (name, setting) = match installer {
            Installer::Pip => ("pip", "python"),
            Installer::Npm => ("npm", "javascript"),
        };
        Error::PackagesFailed {
            reason: format!(
                "no {name} on this host says which index to use; install it, or name one in the settings (packages.{setting})"
            ),
        }
    })?;
    let mut index = Index { url, files: None };
    // Pip's own index keeps its files elsewhere; which host that is, pip knows too.
    if let [_, own, files] = words[..]
        && index.host().is_some_and(|(host, _)| host == own)
    {
        index.files = Some(files.to_owned());
    }
    Ok(index)
}

async fn said(command: &[&str]) -> Option<String> {
    let command: Vec<_> = command.iter().map(|word| (*word).to_owned()).collect();
    let said = tokio::task::spawn_blocking(move || output(&command)).await;
    said.ok()?.ok()
}

fn of_pip() -> Option<String> {
    if let Some(url) = env::var("PIP_INDEX_URL").ok().filter(|url| !url.is_empty()) {
        return Some(url);
    }
    let home = env::var_os("HOME").map(PathBuf::from);
    let config = env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
    let files = [
        env::var_os("PIP_CONFIG_FILE").map(PathBuf::from),
        config
            .or_else(|| home.as_ref().map(|home| home.join(".config")))
            .map(|dir| dir.join("pip/pip.conf")),
        home.map(|home| home.join(".pip/pip.conf")),
        Some("/etc/pip.conf".into()),
    ];
    let texts = files
        .into_iter()
        .flatten()
        .filter_map(|file| fs::read_to_string(file).ok());
    texts
        .into_iter()
        .find_map(|text| setting(&text, &["index-url", "index_url"]))
}

fn of_npm() -> Option<String> {
    for name in ["npm_config_registry", "NPM_CONFIG_REGISTRY"] {
        if let Some(url) = env::var(name).ok().filter(|url| !url.is_empty()) {
            return Some(url);
        }
    }
    let home = env::var_os("HOME").map(PathBuf::from);
    let files = [
        home.map(|home| home.join(".npmrc")),
        Some("/etc/npmrc".into()),
    ];
    let texts = files
        .into_iter()
        .flatten()
        .filter_map(|file| fs::read_to_string(file).ok());
    texts
        .into_iter()
        .find_map(|text| setting(&text, &["registry"]))
}

/// The value of a line `name = value`; sections are not told apart, which these names do not need.
fn setting(text: &str, names: &[&str]) -> Option<String> {
    text.lines()
        .filter(|line| !line.trim_start().starts_with(['#', ';']))
        .filter_map(|line| line.split_once('='))
        .find(|(name, _)| names.contains(&name.trim()))
        .map(|(_, value)| value.trim().trim_matches(['"', '\'']).to_owned())
        .filter(|value| value.contains("://"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(url: &str) -> Index {
        Index {
            url: url.into(),
            files: None,
        }
    }

    #[test]
    fn hosts_and_settings() {
        for (url, host, port) in [
            ("https://index.example/simple", "index.example", 443),
            ("http://127.0.0.1:8080/simple", "127.0.0.1", 8080),
            ("https://me:pass@Mirror.example/x", "mirror.example", 443),
        ] {
            let index = index(url);
            assert_eq!(index.host(), Some((host.to_owned(), port)));
            assert!(!index.shown().contains("pass"));
        }
        assert_eq!(index("file:///x").host(), None);
        let text = "[global]\n# index-url = http://no/\nindex-url = https://mirror/simple\n";
        assert_eq!(
            setting(text, &["index-url"]).as_deref(),
            Some("https://mirror/simple")
        );
        assert_eq!(
            setting("registry=https://r/\n", &["registry"]).as_deref(),
            Some("https://r/")
        );
    }
}
