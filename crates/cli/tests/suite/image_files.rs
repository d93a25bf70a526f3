//! Images for tests: a root made of this machine's Debian packages, and archives made entry by entry.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use super::harness::{Ended, belljar, binary, need_root, need_tool};

/// What the image with Python and a shell in it is called.
pub const PYTHON: &str = "test/python";

pub fn digest(bytes: &[u8]) -> String {
    let mut text = String::from("sha256:");
    for byte in Sha256::digest(bytes) {
        write!(text, "{byte:02x}").unwrap();
    }
    text
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

/// The tar file of the root, made once.
pub fn python_root() -> PathBuf {
    need_tool("dpkg-query", "dpkg");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/images/root.py");
    let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!(
        "root-{}.tar",
        fs::metadata(script).unwrap().mtime()
    ));
    let lock = lock("root");
    if !made.exists() {
        let ended: Ended = Command::new("/usr/bin/python3")
            .arg(script)
            .arg(&made)
            .output()
            .unwrap()
            .into();
        assert_eq!(ended.code, 0, "{ended:?}");
    }
    drop(lock);
    made
}

fn lock(name: &str) -> File {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.lock"));
    let lock = File::create(path).unwrap();
    lock.lock().unwrap();
    lock
}

/// A state directory that has the image [`PYTHON`], shared by tests that only use it.
pub fn shared_state() -> PathBuf {
    let build = fs::metadata(binary()).unwrap();
    let name = format!("images-{}-{}", build.mtime(), build.len());
    let state = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let root = python_root();
    let lock = lock("images");
    if !state.join("made").exists() {
        for old in fs::read_dir(env!("CARGO_TARGET_TMPDIR")).unwrap().flatten() {
            let name = old.file_name().to_string_lossy().into_owned();
            if name.starts_with("images-") && old.path().is_dir() {
                fs::remove_dir_all(old.path()).unwrap();
            }
        }
        let ended = image(
            &state,
            &["import", root.to_str().unwrap(), "--name", PYTHON],
        );
        assert_eq!(ended.code, 0, "{ended:?}");
        fs::write(state.join("made"), "").unwrap();
    }
    drop(lock);
    state
}

/// `belljar image ARGS`.
pub fn image(state: &Path, args: &[&str]) -> Ended {
    command(state, "image", args).output().unwrap().into()
}

pub fn command(state: &Path, what: &str, args: &[&str]) -> Command {
    let mut command = belljar();
    command
        .arg(what)
        .args(args)
        .env("BELLJAR_STATE_DIR", state)
        .env_remove("DOCKER_CONFIG")
        .env("HOME", state);
    command
}

/// The same, with a state directory of 2 MiB; what is left in the store is told on its output.
pub fn on_a_small_disk(state: &Path, args: &[&str]) -> Ended {
    need_root("to mount a small file system in a mount namespace of its own");
    need_tool("unshare", "util-linux");
    let script = "mount -t tmpfs -o size=2m small \"$1\" && shift && \"$@\"; code=$?; find \"$BELLJAR_STATE_DIR/images\" -type f; exit $code";
    let inner = command(state, "image", args);
    let mut outer = Command::new("unshare");
    outer.args(["-m", "sh", "-c", script, "sh"]).arg(state);
    outer.arg(inner.get_program()).args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    outer.output().unwrap().into()
}

/// Where the root of an image is.
pub fn tree(state: &Path, name: &str) -> PathBuf {
    let listed: Value = serde_json::from_str(&image(state, &["list", "--json"]).stdout).unwrap();
    let all = listed.as_array().unwrap();
    let one = all.iter().find(|one| one["name"] == name);
    let id = one.unwrap_or_else(|| panic!("no {name} in {listed}"))["id"].as_str();
    let id = id.unwrap().strip_prefix("sha256:").unwrap();
    state.join("images/roots").join(id).join("tree")
}

/// How much is in the store: names, roots, layers, what is not finished.
pub fn counts(state: &Path) -> [usize; 4] {
    ["names", "roots", "layers", "tmp"].map(|kind| {
        fs::read_dir(state.join("images").join(kind))
            .unwrap()
            .count()
    })
}

/// A tar file, entry by entry.
pub struct Tar(Builder<Vec<u8>>);

impl Tar {
    pub fn new() -> Self {
        Self(Builder::new(Vec::new()))
    }

    pub fn entry(
        mut self,
        kind: EntryType,
        name: &str,
        link: &str,
        mode: u32,
        content: &[u8],
    ) -> Self {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        // Not by `set_path`, which refuses just what is wanted here.
        let field = &mut header.as_old_mut().name;
        field[..name.len()].copy_from_slice(name.as_bytes());
        let field = &mut header.as_old_mut().linkname;
        field[..link.len()].copy_from_slice(link.as_bytes());
        header.set_mode(mode);
        header.set_mtime(1_600_000_000);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(content.len() as u64);
        header.set_cksum();
        self.0.append(&header, content).unwrap();
        self
    }

    pub fn file(self, name: &str, content: &str) -> Self {
        self.entry(EntryType::Regular, name, "", 0o644, content.as_bytes())
    }

    pub fn dir(self, name: &str) -> Self {
        self.entry(EntryType::Directory, name, "", 0o755, b"")
    }

    pub fn symlink(self, name: &str, to: &str) -> Self {
        self.entry(EntryType::Symlink, name, to, 0o777, b"")
    }

    pub fn hard_link(self, name: &str, to: &str) -> Self {
        self.entry(EntryType::Link, name, to, 0o644, b"")
    }

    pub fn bytes(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

/// The configuration of an image with these layers.
pub fn config(layers: &[Vec<u8>], settings: &Value, architecture: &str) -> Vec<u8> {
    let layers: Vec<_> = layers.iter().map(|layer| digest(layer)).collect();
    json!({
        "architecture": architecture, "os": "linux", "config": settings,
        "rootfs": {"type": "layers", "diff_ids": layers},
    })
    .to_string()
    .into_bytes()
}

/// This machine's, as images call it.
pub fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "amd64"
    }
}

/// What `docker save` would write.
pub fn saved(name: &str, layers: &[Vec<u8>], settings: &Value) -> Vec<u8> {
    let manifest = json!([{
        "Config": "config.json", "RepoTags": [name],
        "Layers": (0..layers.len()).map(|at| format!("{at}/layer.tar")).collect::<Vec<_>>(),
    }]);
    let config = config(layers, settings, architecture());
    let mut tar = Tar::new().entry(EntryType::Regular, "config.json", "", 0o644, &config);
    for (at, layer) in layers.iter().enumerate() {
        let name = format!("{at}/layer.tar");
        tar = tar.entry(EntryType::Regular, &name, "", 0o644, layer);
    }
    tar.file("manifest.json", &manifest.to_string()).bytes()
}

/// Puts bytes into a file of the state directory's own, and imports it.
pub fn import(state: &Path, bytes: &[u8], args: &[&str]) -> Ended {
    let file = state.join("given.tar");
    fs::write(&file, bytes).unwrap();
    let mut all = vec!["import", file.to_str().unwrap()];
    all.extend_from_slice(args);
    let ended = image(state, &all);
    fs::remove_file(file).unwrap();
    ended
}

pub fn read(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    File::open(path).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}
