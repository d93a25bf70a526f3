//! Rules about the workspace itself: which crate may use which, where unsafe code may be, how long a file may get.
#![expect(clippy::unwrap_used, reason = "these are tests, helpers included")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Arrows of the design, from a crate's directory to those of the crates it may use.
const ARROWS: [(&str, &[&str]); 5] = [
    ("cli", &["server", "engine", "jail", "spec"]),
    ("server", &["engine", "spec"]),
    ("engine", &["jail", "spec"]),
    ("jail", &["spec"]),
    ("spec", &[]),
];
const LONGEST_FILE: usize = 800;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn toml(path: &Path) -> toml::Table {
    fs::read_to_string(path).unwrap().parse().unwrap()
}

/// Directory name of each member, and its manifest.
fn members() -> BTreeMap<String, toml::Table> {
    let workspace = toml(&root().join("Cargo.toml"));
    let members = workspace["workspace"]["members"].as_array().unwrap();
    let member = |path: &toml::Value| {
        let path = path.as_str().unwrap();
        let name = path.rsplit('/').next().unwrap().to_owned();
        (name, toml(&root().join(path).join("Cargo.toml")))
    };
    members.iter().map(member).collect()
}

/// All tables of dependencies: plain, dev, build, and those for one target only.
fn dependencies(manifest: &toml::Table) -> Vec<String> {
    let kinds = ["dependencies", "dev-dependencies", "build-dependencies"];
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let tables = std::iter::once(manifest).chain(
        targets
            .into_iter()
            .flat_map(toml::Table::values)
            .filter_map(toml::Value::as_table),
    );
    tables
        .flat_map(|table| kinds.iter().filter_map(|kind| table.get(*kind)))
        .filter_map(toml::Value::as_table)
        .flat_map(|table| {
            let package = |(name, value): (&String, &toml::Value)| {
                let renamed = value.get("package").and_then(toml::Value::as_str);
                renamed.unwrap_or(name).to_owned()
            };
            table.iter().map(package).collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn crates_use_only_what_the_design_lets_them() {
    let members = members();
    let package = |manifest: &toml::Table| manifest["package"]["name"].as_str().unwrap().to_owned();
    let directories: BTreeMap<_, _> = members
        .iter()
        .map(|(directory, manifest)| (package(manifest), directory))
        .collect();
    for (directory, manifest) in &members {
        let arrows = ARROWS.iter().find(|(from, _)| from == directory);
        let (_, allowed) = arrows.unwrap_or_else(|| panic!("the design has no crate {directory}"));
        for used in dependencies(manifest) {
            if let Some(to) = directories.get(&used) {
                assert!(
                    allowed.contains(&to.as_str()),
                    "{directory} must not depend on {to}: the design has no such arrow"
                );
            }
        }
    }
}

#[test]
fn every_crate_follows_the_lints_of_the_workspace() {
    for (name, manifest) in members() {
        let inherited = manifest
            .get("lints")
            .and_then(|lints| lints.get("workspace"))
            .and_then(toml::Value::as_bool);
        assert_eq!(
            inherited,
            Some(true),
            "{name} needs [lints] workspace = true"
        );
    }
    let lints = &toml(&root().join("Cargo.toml"))["workspace"]["lints"]["rust"];
    assert_eq!(lints["unsafe_code"].as_str(), Some("deny"));
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir()
            && !["target", ".git", "node_modules"]
                .contains(&entry.file_name().to_str().unwrap_or_default())
        {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| {
            ["rs", "py", "ts", "sh"]
                .iter()
                .any(|known| ending == *known)
        }) {
            found.push(path);
        }
    }
}

fn all_sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    sources(&root(), &mut found);
    assert!(found.len() > 30, "the sources were not found");
    found
}

#[test]
fn unsafe_code_is_in_the_jail_only() {
    // Split, so that this file does not find itself.
    let words = [
        concat!("uns", "afe {"),
        concat!("uns", "afe fn"),
        concat!("uns", "afe impl"),
        concat!("allow(uns", "afe_code"),
        concat!("expect(uns", "afe_code"),
    ];
    for path in all_sources() {
        let in_jail = path.components().any(|part| part.as_os_str() == "jail");
        let text = fs::read_to_string(&path).unwrap();
        // Programs that are run inside a sandbox may do as they like.
        let payload = path
            .components()
            .any(|part| part.as_os_str() == "attacks" || part.as_os_str() == "examples");
        if !in_jail && !payload && path.extension().is_some_and(|ending| ending == "rs") {
            for word in words {
                assert!(!text.contains(word), "{} has {word}", path.display());
            }
        }
    }
}

#[test]
fn no_source_file_is_too_long() {
    for path in all_sources() {
        let lines = fs::read_to_string(&path).unwrap().lines().count();
        assert!(
            lines <= LONGEST_FILE,
            "{} has {lines} lines; at most {LONGEST_FILE}",
            path.display()
        );
    }
}
