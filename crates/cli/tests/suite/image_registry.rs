//! Images from registries: Debian's own one on this machine, and one that answers wrongly.

use std::collections::HashMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::daemon::{Daemon, until};
use super::harness::{Ended, directory, need_tool};
use super::image_files::{Tar, architecture, command, config, counts, digest, gzip, image, tree};

mod faulty;

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
        let settings = directory.join("registry.yml");
        let text = format!(
            "version: 0.1\nlog: {{level: info}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: '127.0.0.1:0'}}\n{auth}",
            directory.join("registry").display()
        );
        fs::write(&settings, text).unwrap();
        let log = directory.join("registry.log");
        let child = Command::new("docker-registry")
            .arg("serve")
            .arg(settings)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        // It says which port it was given.
        let mut registry = Self {
            child,
            address: String::new(),
        };
        until("the registry listens", || {
            let said = fs::read_to_string(&log).unwrap();
            let address = said.split("listening on ").nth(1);
            let address = address.and_then(|rest| Some(rest.split_once('"')?.0.to_owned()));
            registry.address = address.unwrap_or_default();
            !registry.address.is_empty()
        });
        registry
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
            vec!["--platform", "linux/s390x"],
            "there is none for linux/s390x, only for linux/",
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
