//! Build-time work of the jail: the seccomp policy becomes BPF.

use std::env;
use std::path::Path;

#[path = "build/seccomp.rs"]
mod seccomp;

fn main() -> Result<(), String> {
    let variable = |name: &str| env::var(name).map_err(|error| format!("{name}: {error}"));
    let out_dir = variable("OUT_DIR")?;
    seccomp::generate(Path::new("policy"), Path::new(&out_dir))
}
