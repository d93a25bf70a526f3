//! Puts the kernels' files and the manifests of the languages into the program, so that there is nothing to install beside it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Not needed inside a sandbox.
const LEFT_OUT: [&str; 3] = ["tests", "README.md", "__pycache__"];

fn main() {
    let variable = |name| PathBuf::from(std::env::var_os(name).unwrap_or_default());
    let (root, out) = (
        variable("CARGO_MANIFEST_DIR").join("../.."),
        variable("OUT_DIR"),
    );
    if let Err(error) = convert_manifests(&root.join("runtimes"), &out.join("runtimes")) {
        panic!("cannot convert the manifests: {error}");
    }
    let root = root.join("kernels");
    // Not the directories: cargo would look at the tests in them too, and at what those leave.
    println!("cargo:rerun-if-changed=build.rs");
    let mut table = String::from("const FILES: &[(&str, &str, &str)] = &[\n");
    for kernel in listing(&root).into_iter().filter(|path| path.is_dir()) {
        let name = kernel.file_name().unwrap_or_default().to_string_lossy();
        add(&mut table, &name, &kernel, "");
    }
    table.push_str("];\n");
    let out = out.join("kernels.rs");
    if let Err(error) = fs::write(&out, table) {
        panic!("cannot write {}: {error}", out.display());
    }
}

/// Each as JSON, whose reader is in the program's memory anyway when a run begins.
fn convert_manifests(from: &Path, to: &Path) -> Result<(), Box<dyn std::error::Error>> {
    fs::create_dir_all(to)?;
    println!("cargo:rerun-if-changed={}", from.display());
    for path in listing(from) {
        if path.extension().is_none_or(|ending| ending != "toml") {
            continue;
        }
        println!("cargo:rerun-if-changed={}", path.display());
        let manifest: serde_json::Value = toml::from_str(&fs::read_to_string(&path)?)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        let name = path.with_extension("json");
        let name = name.file_name().unwrap_or_default();
        fs::write(to.join(name), serde_json::to_string(&manifest)?)?;
    }
    Ok(())
}

fn add(table: &mut String, kernel: &str, dir: &Path, below: &str) {
    for path in listing(dir) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if LEFT_OUT.contains(&name.as_ref()) {
            continue;
        }
        let inside = format!("{below}{name}");
        if path.is_dir() {
            add(table, kernel, &path, &format!("{inside}/"));
        } else {
            println!("cargo:rerun-if-changed={}", path.display());
            let _ = writeln!(
                table,
                "    ({kernel:?}, {inside:?}, include_str!({:?})),",
                path.display().to_string()
            );
        }
    }
}

fn listing(dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    paths.sort();
    paths
}
