//! Builds what the jail carries inside itself: the init program, and the seccomp policy as BPF.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "build/seccomp.rs"]
mod seccomp;

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    seccomp::generate(Path::new("policy"), &out)?;
    build_init(&out)?;
    build_agent(&out)?;
    build_zygote(&out)
}

/// Init is a program of its own without libc; cargo cannot yet depend on a binary of the same workspace.
fn build_init(out: &Path) -> Result<(), Box<dyn Error>> {
    let arguments = ["-C", "relocation-model=static", "-C", "link-arg=-static"];
    build(
        "belljar_init",
        "init/main.rs",
        &arguments,
        &out.join("init"),
    )
}

/// What runs in a container. Like init it has no libc: nothing is known of the image it will run in.
fn build_agent(out: &Path) -> Result<(), Box<dyn Error>> {
    let arguments = ["-C", "relocation-model=static", "-C", "link-arg=-static"];
    build(
        "belljar_agent",
        "agent/main.rs",
        &arguments,
        &out.join("agent"),
    )
}

/// The zygote's part is a library that a Python interpreter loads; C library and interpreter are found when it does.
fn build_zygote(out: &Path) -> Result<(), Box<dyn Error>> {
    let arguments = [
        "--crate-type",
        "cdylib",
        "-C",
        "link-arg=-Wl,-Bsymbolic",
        // Copies pass by its allocator all the time.
        "-C",
        "opt-level=3",
    ];
    build(
        "belljar_zygote",
        "zygote/lib.rs",
        &arguments,
        &out.join("zygote.so"),
    )
}

fn build(name: &str, source: &str, own: &[&str], out: &Path) -> Result<(), Box<dyn Error>> {
    for directory in ["init", "zygote", "agent"] {
        println!("cargo::rerun-if-changed={directory}");
    }
    let common = [
        "--edition",
        "2024",
        "--deny",
        "warnings",
        "-C",
        "opt-level=s",
        "-C",
        "panic=abort",
        "-C",
        "strip=symbols",
        "-C",
        "link-arg=-nostartfiles",
        "-C",
        "link-arg=-nostdlib",
        "-C",
        "link-arg=-Wl,--build-id=none",
    ];
    let status = Command::new(env::var("RUSTC")?)
        .args(["--crate-name", name, source])
        .args(["--target", &env::var("TARGET")?])
        .args(common)
        .args(own)
        .arg("-o")
        .arg(out)
        .env_remove("RUSTC_WRAPPER")
        .status()?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{source} did not compile").into())
    }
}
