//! Images from registries: Debian's own one on this machine, and one that answers wrongly.

use std::collections::HashMap;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::daemon::{Daemon, until};
use super::harness::{Ended, directory, need_tool};
use super::image_files::{Tar, architecture, command, config, counts, digest, gzip, image, tree};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// Blobs by digest, and what a tag stands for.
#[derive(Default, Clone)]
struct Content {
    blobs: HashMap<String, Vec<u8>>,
    tags: HashMap<String, String>,
    manifests: HashMap<String, &'static str>,
}

impl Content {
    fn add(&mut self, bytes: &[u8]) -> Value {
        self.blobs.insert(digest(bytes), bytes.to_vec());
        json!({"mediaType": "application/octet-stream", "digest": digest(bytes), "size": bytes.len()})
    }

    /// An image of compressed layers, and its manifest's description.
    fn image(&mut self, layers: &[Vec<u8>], architecture: &str) -> Value {
        let mut told = self.add(&config(layers, &json!({}), architecture));
        told["mediaType"] = "application/vnd.oci.image.config.v1+json".into();
        let layers: Vec<_> = layers
            .iter()
            .map(|layer| {
                let mut told = self.add(&gzip(layer));
                told["mediaType"] = "application/vnd.oci.image.layer.v1.tar+gzip".into();
                told
            })
            .collect();
        let manifest =
            json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": told, "layers": layers});
        let mut told = self.add(manifest.to_string().as_bytes());
        told["mediaType"] = MANIFEST.into();
        told["platform"] = json!({"os": "linux", "architecture": architecture});
        let digest = told["digest"].as_str().unwrap().to_owned();
        self.manifests.insert(digest, MANIFEST);
        told
    }

    fn tag(&mut self, name: &str, told: &Value) {
        self.tags
            .insert(name.into(), told["digest"].as_str().unwrap().into());
    }

    fn index(&mut self, images: &[Value]) -> Value {
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": images});
        let told = self.add(index.to_string().as_bytes());
        let digest = told["digest"].as_str().unwrap().to_owned();
        self.manifests.insert(digest, INDEX);
        told
    }

    /// As the registry's driver keeps it in a directory.
    fn write(&self, root: &Path, repository: &str) {
        let base = root.join("docker/registry/v2");
        let put = |path: String, content: &[u8]| {
            let path = base.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        };
        for (digest, bytes) in &self.blobs {
            let hex = &digest[7..];
            put(format!("blobs/sha256/{}/{hex}/data", &hex[..2]), bytes);
            let kind = if self.manifests.contains_key(digest) {
                "_manifests/revisions"
            } else {
                "_layers"
            };
            put(
                format!("repositories/{repository}/{kind}/sha256/{hex}/link"),
                digest.as_bytes(),
            );
        }
        for (tag, digest) in &self.tags {
            let at = format!("repositories/{repository}/_manifests/tags/{tag}");
            put(format!("{at}/current/link"), digest.as_bytes());
            put(
                format!("{at}/index/sha256/{}/link", &digest[7..]),
                digest.as_bytes(),
            );
        }
    }
}

/// Debian's `docker-registry`, on a port of its own.
pub struct Registry {
    child: Child,
    pub address: String,
}

impl Registry {
    pub fn start(directory: &Path, auth: &str) -> Self {
        need_tool("docker-registry", "docker-registry");
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap().to_string();
        drop(free);
        let settings = directory.join("registry.yml");
        let text = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: '{address}'}}\n{auth}",
            directory.join("registry").display()
        );
        fs::write(&settings, text).unwrap();
        let child = Command::new("docker-registry")
            .arg("serve")
            .arg(settings)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(directory.join("registry.log")).unwrap())
            .spawn()
            .unwrap();
        until("the registry listens", || {
            TcpStream::connect(&address).is_ok()
        });
        Self { child, address }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn layers() -> [Vec<u8>; 2] {
    // Random enough not to be compressed to nothing.
    let noise: String = (0..4000_u32).map(|n| digest(&n.to_le_bytes())).collect();
    [
        Tar::new()
            .dir("a")
            .file("a/x", "below")
            .file("a/noise", &noise)
            .bytes(),
        Tar::new().file("a/.wh.x", "").file("a/y", "above").bytes(),
    ]
}

#[test]
fn debians_registry() {
    let dir = directory(&[]);
    let mut content = Content::default();
    let own = content.image(&layers(), architecture());
    let foreign = content.image(&layers()[..1], "s390x");
    let index = content.index(&[foreign, own.clone()]);
    content.tag("both", &index);
    content.tag("own", &own);
    content.write(&dir.path().join("registry"), "team/app");
    let registry = Registry::start(dir.path(), "");
    let at = &registry.address;
    let state = dir.path().join("state");
    let pull = |reference: &str, args: &[&str]| {
        let name = format!("{at}/team/app{reference}");
        let mut all = vec!["pull", &name];
        all.extend_from_slice(args);
        image(&state, &all)
    };
    let ended = pull(":both", &[]);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{ended:?}");
    let root = tree(&state, &format!("{at}/team/app:both"));
    assert_eq!(fs::read_to_string(root.join("a/y")).unwrap(), "above");
    assert!(!root.join("a/x").exists());
    let by_digest = format!("@{}", own["digest"].as_str().unwrap());
    assert_eq!(pull(&by_digest, &[]).code, 0);
    assert_eq!(counts(&state), [2, 1, 2, 0], "one image under two names");
    assert_eq!(
        fs::read_dir(state.join("images/partial")).unwrap().count(),
        0
    );

    let other = pull(":both", &["--platform", "linux/s390x", "--json"]);
    assert!(other.stdout.contains("linux/s390x"), "{other:?}");
    let name = format!("{at}/team/app:both");
    let run: Ended = command(&state, "run", &["--image", &name, "-c", "1"])
        .output()
        .unwrap()
        .into();
    assert!(
        run.code == 125
            && run
                .stderr
                .contains("it is for linux/s390x, and this machine is"),
        "{run:?}"
    );
    for (reference, args, sentence) in [
        (":nothing", vec![], "no such image"),
        (
            ":both",
            vec!["--platform", "plan9/vax"],
            "there is none for plan9/vax, only for linux/s390x",
        ),
        (
            ":own",
            vec!["--max-size", "10k"],
            "at most 10240 are allowed",
        ),
    ] {
        let ended = pull(reference, &args);
        assert!(
            ended.code == 125 && ended.stderr.contains(sentence),
            "{ended:?}"
        );
    }
    // On first use, by the command and by a daemon that may.
    let run: Ended = command(
        &state,
        "run",
        &["--image", &format!("{at}/team/app:own"), "-c", "1"],
    )
    .output()
    .unwrap()
    .into();
    assert!(
        run.stderr.contains("is not here; fetching it") && run.stderr.contains("has none of"),
        "{run:?}"
    );
    let settings = format!("[images]\nallowed = [\"{at}/team/*\"]\npull = \"first_use\"\n");
    let daemon = Daemon::with(&settings);
    let asked = |name: &str| {
        let answer = daemon.post(
            "/v1/runs",
            &json!({"code": "1", "image": format!("{at}/{name}")}),
        );
        (answer.status, answer.code())
    };
    assert_eq!(asked("team/app:own"), (503, "runtime_missing".into()));
    assert_eq!(asked("else/app:own"), (403, "forbidden".into()));
    assert_eq!(counts(daemon.state.path()), [1, 1, 2, 0]);
    drop(daemon);
    let ahead = format!("[images]\nahead = [\"{at}/team/app:own\"]\n");
    let daemon = Daemon::with(&ahead);
    until("it is fetched ahead", || {
        counts(daemon.state.path())[0] == 1
    });
    let wide = directory(&[("bad.toml", "[images]\npull = \"first_use\"\n")]);
    let file = wide.path().join("bad.toml");
    let args = ["--check-config", "--config", file.to_str().unwrap()];
    let checked: Ended = command(&state, "serve", &args).output().unwrap().into();
    assert!(
        checked.code == 125 && checked.stderr.contains("must name its registry"),
        "{checked:?}"
    );
}

#[test]
fn credentials_of_docker() {
    let dir = directory(&[]);
    let mut content = Content::default();
    let own = content.image(&layers(), architecture());
    content.tag("own", &own);
    content.write(&dir.path().join("registry"), "app");
    let password = password(dir.path());
    let auth = format!(
        "auth: {{htpasswd: {{realm: test, path: {}}}}}\n",
        dir.path().join("htpasswd").display()
    );
    let registry = Registry::start(dir.path(), &auth);
    let (at, state) = (&registry.address, dir.path().join("state"));
    let name = format!("{at}/app:own");
    let home = dir.path().join("docker");
    fs::create_dir(&home).unwrap();
    let pull = |config: &Value| -> Ended {
        fs::write(home.join("config.json"), config.to_string()).unwrap();
        let path = format!("{}:{}", home.display(), std::env::var("PATH").unwrap());
        command(&state, "image", &["pull", &name])
            .env("DOCKER_CONFIG", &home)
            .env("PATH", path)
            .output()
            .unwrap()
            .into()
    };
    let wrong = pull(&json!({}));
    assert!(
        wrong.code == 125 && wrong.stderr.contains("docker login"),
        "{wrong:?}"
    );
    let helper = home.join("docker-credential-test");
    fs::write(&helper, format!("#!/bin/sh\nread host; [ \"$1 $host\" = \"get {at}\" ] && echo '{{\"Username\":\"ada\",\"Secret\":\"{password}\"}}'")).unwrap();
    fs::set_permissions(&helper, Permissions::from_mode(0o755)).unwrap();
    let ended = pull(&json!({"credHelpers": {at.as_str(): "test"}}));
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(image(&state, &["rm", &name]).code, 0);
    let ended = pull(&json!({"auths": {at.as_str(): {"username": "ada", "password": password}}}));
    assert_eq!(ended.code, 0, "{ended:?}");
}

/// Writes the registry's password file, and tells the password.
fn password(dir: &Path) -> &'static str {
    let script = "import crypt, sys; print('ada:' + crypt.crypt('lovelace', crypt.mksalt(crypt.METHOD_BLOWFISH, rounds=16)))";
    let ended: Ended = Command::new("/usr/bin/python3")
        .args(["-W", "ignore", "-c", script])
        .output()
        .unwrap()
        .into();
    assert_eq!(ended.code, 0, "{ended:?}");
    fs::write(dir.join("htpasswd"), ended.stdout.replace("$2b$", "$2y$")).unwrap();
    "lovelace"
}

/// How a registry answers wrongly.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fault {
    None,
    /// Another layer than was asked for.
    OtherLayer,
    OtherManifest,
    OtherConfig,
    /// A layer breaks off in the middle, twice; then it goes on where it was asked to.
    BreaksOff,
    /// The same, and the rest is always all of it.
    BreaksOffWithoutRanges,
    /// It never ends.
    Endless,
    Nonsense,
}

struct Faulty {
    address: String,
    /// Ranges that were asked for.
    ranges: Arc<Mutex<Vec<String>>>,
}

impl Faulty {
    fn start(content: Content, fault: Fault) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let ranges = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&ranges);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (content, seen) = (content.clone(), Arc::clone(&seen));
                std::thread::spawn(move || answer(stream, &content, fault, &seen));
            }
        });
        Self { address, ranges }
    }
}

#[expect(clippy::too_many_lines, reason = "one short part for each fault")]
fn answer(
    mut stream: TcpStream,
    content: &Content,
    fault: Fault,
    ranges: &Mutex<Vec<String>>,
) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
    let first = lines.next()?.ok()?;
    let path = first.split(' ').nth(1)?.to_owned();
    let mut range = None;
    for line in lines {
        let line = line.ok()?.to_ascii_lowercase();
        if let Some(asked) = line.strip_prefix("range: bytes=") {
            range = Some(asked.trim_end_matches('-').to_owned());
        }
        if line.is_empty() {
            break;
        }
    }
    let last = path.rsplit('/').next()?;
    let head = |status: &str, kind: &str, digest: &str, bytes: usize| {
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nDocker-Content-Digest: {digest}\r\nContent-Length: {bytes}\r\nConnection: close\r\n\r\n"
        )
    };
    if fault == Fault::Nonsense {
        return stream.write_all(b"220 smtp ready\r\n").ok();
    }
    if path.contains("/manifests/") {
        let digest = content
            .tags
            .get(last)
            .cloned()
            .unwrap_or_else(|| last.to_owned());
        let mut bytes = content.blobs.get(&digest)?.clone();
        if fault == Fault::OtherManifest {
            bytes.push(b' ');
        }
        let kind = content.manifests.get(&digest)?;
        stream
            .write_all(head("200 OK", kind, &digest, bytes.len()).as_bytes())
            .ok()?;
        return stream.write_all(&bytes).ok();
    }
    let Some(bytes) = content.blobs.get(last) else {
        return stream
            .write_all(head("200 OK", "application/json", "", 0).as_bytes())
            .ok();
    };
    let is_layer = bytes.starts_with(&[0x1f, 0x8b]);
    let kind = "application/octet-stream";
    let from: usize = range
        .as_deref()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    if is_layer {
        ranges.lock().unwrap().push(range.unwrap_or_default());
    }
    let tries = ranges.lock().unwrap().len();
    match fault {
        Fault::Endless if is_layer => {
            let head =
                format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n");
            stream.write_all(head.as_bytes()).ok()?;
            loop {
                stream.write_all(&[7; 8192]).ok()?;
            }
        }
        Fault::OtherLayer if is_layer => {
            let mut other = bytes.clone();
            let middle = other.len() / 2;
            other[middle] ^= 1;
            stream
                .write_all(head("200 OK", kind, last, other.len()).as_bytes())
                .ok()?;
            stream.write_all(&other).ok()
        }
        Fault::OtherConfig if !is_layer => {
            let other = String::from_utf8(bytes.clone())
                .ok()?
                .replace("linux", "linuy");
            stream
                .write_all(head("200 OK", kind, last, other.len()).as_bytes())
                .ok()?;
            stream.write_all(other.as_bytes()).ok()
        }
        Fault::BreaksOff | Fault::BreaksOffWithoutRanges if is_layer => {
            let from = if fault == Fault::BreaksOff { from } else { 0 };
            let rest = &bytes[from..];
            let status = if from > 0 {
                "206 Partial Content"
            } else {
                "200 OK"
            };
            stream
                .write_all(head(status, kind, last, rest.len()).as_bytes())
                .ok()?;
            let sent = if tries < 3 {
                rest.len() / 3
            } else {
                rest.len()
            };
            stream.write_all(&rest[..sent]).ok()
        }
        _ => {
            stream
                .write_all(head("200 OK", kind, last, bytes.len()).as_bytes())
                .ok()?;
            stream.write_all(bytes).ok()
        }
    }
}

#[test]
fn a_registry_that_answers_wrongly() {
    let mut content = Content::default();
    let own = content.image(&layers()[..1], architecture());
    content.tag("x", &own);
    for (fault, sentence) in [
        (Fault::OtherLayer, "digest"),
        (Fault::OtherManifest, "igest"),
        (Fault::OtherConfig, "igest"),
        (Fault::Endless, "more of a layer than it said"),
        (Fault::Nonsense, "cannot be pulled"),
    ] {
        let registry = Faulty::start(content.clone(), fault);
        let state = directory(&[]);
        let name = format!("{}/app:x", registry.address);
        let ended = image(state.path(), &["pull", &name]);
        assert!(
            ended.code == 125 && ended.stderr.contains(sentence),
            "{fault:?}: {ended:?}"
        );
        assert_eq!(counts(state.path()), [0, 0, 0, 0], "{fault:?}");
        // Nothing of it counts as a beginning, either.
        let partial = fs::read_dir(state.path().join("images/partial")).unwrap();
        let begun: u64 = partial
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .sum();
        assert_eq!(begun, 0, "{fault:?}");
    }
    let closed = image(directory(&[]).path(), &["pull", "127.0.0.1:1/app:x"]);
    assert!(closed.stderr.contains("cannot be reached"), "{closed:?}");
}

#[test]
fn a_download_goes_on_where_it_broke_off() {
    let mut content = Content::default();
    let own = content.image(&layers()[..1], architecture());
    content.tag("x", &own);
    for fault in [Fault::None, Fault::BreaksOff, Fault::BreaksOffWithoutRanges] {
        let registry = Faulty::start(content.clone(), fault);
        let state = directory(&[]);
        let name = format!("{}/app:x", registry.address);
        let ended = image(state.path(), &["pull", &name]);
        assert_eq!(
            (ended.code, ended.stderr.as_str()),
            (0, ""),
            "{fault:?}: {ended:?}"
        );
        let ranges = registry.ranges.lock().unwrap().clone();
        assert_eq!(
            ranges.len(),
            if fault == Fault::None { 1 } else { 3 },
            "{ranges:?}"
        );
        if fault == Fault::BreaksOff {
            let from: Vec<usize> = ranges[1..]
                .iter()
                .map(|text| text.parse().unwrap())
                .collect();
            assert!(0 < from[0] && from[0] < from[1], "{ranges:?}");
        }
        assert_eq!(
            fs::read_to_string(tree(state.path(), &name).join("a/x")).unwrap(),
            "below"
        );
    }
    // And across commands: what is there is not asked for again.
    let registry = Faulty::start(content.clone(), Fault::None);
    let state = directory(&[]);
    let (layer, bytes) = content
        .blobs
        .iter()
        .find(|(_, bytes)| bytes.starts_with(&[0x1f, 0x8b]))
        .unwrap();
    let partial = state.path().join("images/partial");
    fs::create_dir_all(&partial).unwrap();
    fs::write(partial.join(&layer[7..]), bytes).unwrap();
    let name = format!("{}/app:x", registry.address);
    assert_eq!(image(state.path(), &["pull", &name]).code, 0);
    assert!(registry.ranges.lock().unwrap().is_empty());
}
