//! Links `belljar` statically where the host has the libraries for it: the dynamic linker would take half a millisecond of
//! every run. Done here because cargo can set that for a whole target only, which moves the program to another directory.
//! And lays what a run executes close together.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// What the standard library asks the linker for, and what stands in for it.
const STAND_INS: [(&str, &[&str]); 7] = [
    ("libgcc_s.so", &["libgcc_eh.a", "libgcc.a"]),
    ("libutil.so", &["libutil.a"]),
    ("librt.so", &["librt.a"]),
    ("libpthread.so", &["libpthread.a"]),
    ("libm.so", &["libm.a"]),
    ("libdl.so", &["libdl.a"]),
    ("libc.so", &["libc.a", "libgcc_eh.a", "libgcc.a"]),
];

/// The functions that a run goes through, as `bench/order.py` has found them. Names that the compiler no longer gives do no harm.
const ORDER: &str = "link-order.txt";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={ORDER}");
    if has_own_linker()? {
        // A copy: cargo knows where its own directories have moved to, and not where the sources have.
        let order = PathBuf::from(env::var("OUT_DIR")?).join(ORDER);
        fs::copy(ORDER, &order)?;
        println!(
            "cargo::rustc-link-arg-bins=-Wl,--symbol-ordering-file={}",
            order.display()
        );
        println!("cargo::rustc-link-arg-bins=-Wl,--no-warn-symbol-ordering");
    }
    let native = env::var("HOST")? == env::var("TARGET")?;
    if !native || env::var("CARGO_CFG_TARGET_ENV")? != "gnu" {
        return Ok(());
    }
    let out = PathBuf::from(env::var("OUT_DIR")?).join("static");
    fs::create_dir_all(&out)?;
    let mut scripts = Vec::new();
    for (name, archives) in STAND_INS {
        let found: Option<Vec<_>> = archives.iter().map(|name| locate(name)).collect();
        let Some(found) = found else { return Ok(()) };
        scripts.push((name, format!("GROUP({})\n", found.join(" "))));
    }
    for (name, script) in scripts {
        fs::write(out.join(name), script)?;
    }
    println!("cargo::rustc-link-arg-bins=-L{}", out.display());
    // At a fixed address: to move itself, the program would have to write to a quarter of a megabyte at every start, which
    // costs half a millisecond when caches are cold. Everything it does with what code sends is checked by the compiler.
    println!("cargo::rustc-link-arg-bins=-static");
    println!("cargo::rustc-link-arg-bins=-no-pie");
    if env::var("CARGO_CFG_TARGET_ARCH")? == "x86_64" {
        // What it begins before the C library, see the jail's `sys::prelude`.
        println!("cargo::rustc-link-arg-bins=-Wl,-e,belljar_start");
    }
    Ok(())
}

/// Whether the linker is the one that comes with the compiler, which alone knows how to do that.
fn has_own_linker() -> Result<bool, Box<dyn Error>> {
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let chosen = env::var_os("RUSTC_LINKER").is_some() || flags.contains("link");
    Ok(!chosen && env::var("TARGET")? == "x86_64-unknown-linux-gnu")
}

/// Where the C compiler keeps a library; it answers with the bare name if it has none.
fn locate(name: &str) -> Option<String> {
    let asked = Command::new("cc")
        .arg(format!("-print-file-name={name}"))
        .output()
        .ok()?;
    let path = String::from_utf8(asked.stdout).ok()?.trim().to_owned();
    Path::new(&path).is_absolute().then_some(path)
}
