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
    build_init(&out)
}

/// Init is a program of its own without libc; cargo cannot yet depend on a binary of the same workspace.
fn build_init(out: &Path) -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=init");
    let status = Command::new(env::var("RUSTC")?)
        .args([
            "--edition",
            "2024",
            "--crate-name",
            "belljar_init",
            "init/main.rs",
            "--deny",
            "warnings",
        ])
        .args(["--target", &env::var("TARGET")?])
        .args([
            "-C",
            "opt-level=s",
            "-C",
            "panic=abort",
            "-C",
            "relocation-model=static",
            "-C",
            "strip=symbols",
        ])
        .args([
            "-C",
            "link-arg=-nostartfiles",
            "-C",
            "link-arg=-nostdlib",
            "-C",
            "link-arg=-static",
        ])
        .args(["-C", "link-arg=-Wl,--build-id=none"])
        .arg("-o")
        .arg(out.join("init"))
        .env_remove("RUSTC_WRAPPER")
        .status()?;
    if status.success() {
        Ok(())
    } else {
        Err("the sandbox's init program did not compile".into())
    }
}
