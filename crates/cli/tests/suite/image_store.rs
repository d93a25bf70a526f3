//! What the store keeps: names, layouts of several images, leftovers, and what is in use.

use std::fs;
use std::path::Path;

use serde_json::json;

use super::harness::directory;
use super::image_files::{
    Tar, architecture, command, config, counts, digest, image, import, python_root, tree,
};

/// The images of a layout that has several, by their tags.
#[test]
fn a_layout_with_several_images() {
    let dir = directory(&[("lay/oci-layout", r#"{"imageLayoutVersion": "1.0.0"}"#)]);
    let layout = dir.path().join("lay");
    fs::create_dir_all(layout.join("blobs/sha256")).unwrap();
    let put = |bytes: &[u8]| {
        let digest = digest(bytes);
        fs::write(layout.join("blobs/sha256").join(&digest[7..]), bytes).unwrap();
        json!({"mediaType": "application/octet-stream", "digest": digest, "size": bytes.len()})
    };
    let make = |tag: &str| {
        let layer = Tar::new().file("x", tag).bytes();
        let config = put(&config(
            std::slice::from_ref(&layer),
            &json!({}),
            architecture(),
        ));
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let manifest = json!({"schemaVersion": 2, "mediaType": kind, "config": config, "layers": [put(&layer)]});
        let mut told = put(manifest.to_string().as_bytes());
        if !tag.is_empty() {
            told["annotations"] = json!({"org.opencontainers.image.ref.name": tag});
        }
        told
    };
    let import = |images: &[&str], args: &[&str]| {
        let images: Vec<_> = images.iter().map(|tag| make(tag)).collect();
        let index = json!({"schemaVersion": 2, "manifests": images});
        fs::write(layout.join("index.json"), index.to_string()).unwrap();
        let state = directory(&[]);
        let mut all = vec!["import", layout.to_str().unwrap()];
        all.extend_from_slice(args);
        let ended = image(state.path(), &all);
        (ended, state)
    };
    let text = |state: &Path, name: &str| fs::read_to_string(tree(state, name).join("x")).unwrap();
    let (ended, state) = import(&["one", "two", ""], &[]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(text(state.path(), "lay:one"), "one");
    assert_eq!(text(state.path(), "lay:two"), "two");
    let (ended, state) = import(&["one", "two"], &["--name", "app:two"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(text(state.path(), "app:two"), "two");
    assert_eq!(counts(state.path()), [1, 1, 1, 0]);
    let (ended, _) = import(&["one", "two"], &["--name", "app:three"]);
    let list = ended.stderr.contains(r#""one", "two""#);
    assert!(ended.code == 125 && list, "{ended:?}");
    let (ended, _) = import(&["one", "one"], &[]);
    let said = ended.stderr.contains("none says which platform");
    assert!(ended.code == 125 && said, "{ended:?}");
}

/// One image with two names: its id stands for both.
#[test]
fn an_image_is_removed_by_its_id() {
    let state = directory(&[]);
    let state = state.path();
    let bytes = Tar::new().file("x", "").bytes();
    assert_eq!(import(state, &bytes, &["--name", "one"]).code, 0);
    assert_eq!(import(state, &bytes, &["--name", "two"]).code, 0);
    let root = tree(state, "one:latest");
    let id = root.parent().unwrap().file_name().unwrap();
    assert_eq!(counts(state), [2, 1, 1, 0]);
    assert_eq!(image(state, &["rm", &id.to_str().unwrap()[..12]]).code, 0);
    assert_eq!(counts(state), [0, 0, 0, 0]);
}

/// What is not there keeps nothing else from being removed, and what was removed is told.
#[test]
fn all_that_can_be_removed_are() {
    let state = directory(&[]);
    let state = state.path();
    let bytes = Tar::new().file("x", "").bytes();
    for name in ["one", "two"] {
        assert_eq!(import(state, &bytes, &["--name", name]).code, 0);
    }
    let ended = image(state, &["rm", "one", "nope", "two"]);
    assert_eq!(ended.code, 125, "{ended:?}");
    let lines: Vec<_> = ended.stdout.lines().collect();
    assert!(
        lines.len() == 2
            && lines[0].starts_with("one removed")
            && lines[1].starts_with("two removed"),
        "{ended:?}"
    );
    assert_eq!(ended.stderr, "belljar: image \"nope\" was not found\n");
    assert_eq!(counts(state), [0, 0, 0, 0]);
}

/// What a crash leaves is swept by the next who adds something, and what is in use is not removed.
#[test]
fn leftovers_and_images_in_use() {
    let state = directory(&[]);
    let state = state.path();
    let root = python_root();
    assert_eq!(
        image(state, &["import", root.to_str().unwrap(), "--name", "app"]).code,
        0
    );
    fs::create_dir_all(state.join("images/tmp/dead/layer")).unwrap();
    fs::write(state.join("images/partial/half"), "x").unwrap();
    let mut child = command(
        state,
        "run",
        &[
            "--image",
            "app",
            "-c",
            "print('up', flush=True); input(); import json.tool; print('fine')",
        ],
    )
    .stdin(std::process::Stdio::piped())
    .stdout(std::process::Stdio::piped())
    .spawn()
    .unwrap();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    let removed = image(state, &["rm", "app", "--json"]);
    assert!(removed.stdout.contains("\"in_use\": 1"), "{removed:?}");
    assert_eq!(counts(state), [0, 1, 1, 0]);
    drop(child.stdin.take());
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut out, &mut rest).unwrap();
    child.wait().unwrap();
    assert_eq!(image(state, &["prune"]).code, 0);
    assert_eq!(counts(state), [0, 0, 0, 0]);
    assert_eq!(
        fs::read_dir(state.join("images/partial")).unwrap().count(),
        0
    );
}
