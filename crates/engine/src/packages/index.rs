//! Where packages come from: what the settings say, else what pip and npm on this host would use.

use std::env;
use std::fs;
use std::path::PathBuf;

use super::{Installer, PackageSettings};

/// The address of an index, as the installer is told it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    pub url: String,
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

pub fn find(installer: Installer, settings: &PackageSettings) -> Index {
    let url = match installer {
        Installer::Pip => settings.python.clone().or_else(of_pip),
        Installer::Npm => settings.javascript.clone().or_else(of_npm),
    };
    let default = match installer {
        Installer::Pip => "https://pypi.org/simple",
        Installer::Npm => "https://registry.npmjs.org/",
    };
    Index {
        url: url.unwrap_or_else(|| default.to_owned()),
    }
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

    #[test]
    fn hosts_and_settings() {
        for (url, host, port) in [
            ("https://pypi.org/simple", "pypi.org", 443),
            ("http://127.0.0.1:8080/simple", "127.0.0.1", 8080),
            ("https://me:pass@Mirror.example/x", "mirror.example", 443),
        ] {
            let index = Index { url: url.into() };
            assert_eq!(index.host(), Some((host.to_owned(), port)));
            assert!(!index.shown().contains("pass"));
        }
        assert_eq!(
            Index {
                url: "file:///x".into()
            }
            .host(),
            None
        );
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
