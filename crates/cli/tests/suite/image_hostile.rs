//! Archives that want out, want too much, or are not what they say: nothing of them is kept.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::json;
use tar::EntryType;

use super::harness::directory;
use super::image_files::{
    Tar, architecture, config, counts, digest, gzip, image, import, on_a_small_disk, saved, tree,
};

#[test]
#[expect(clippy::too_many_lines, reason = "a list of archives")]
fn hostile_archives() {
    let outside = directory(&[("canary", "untouched")]);
    let canary = outside.path().join("canary");
    let canary = canary.to_str().unwrap();
    let state = directory(&[]);
    let state = state.path();
    let up = format!("{}{}", "../".repeat(20), &canary[1..]);
    let deep = "d/".repeat(45);
    let large = gzip(&vec![0; 64 << 20]);
    let refused: Vec<(&str, Vec<u8>, &[&str], &str)> = vec![
        (
            "a tar file of nothing",
            vec![0; 10240],
            &[],
            "nothing in it",
        ),
        (
            "a list of no images",
            Tar::new().file("manifest.json", "[]").bytes(),
            &[],
            "no image",
        ),
        (
            "a path that leaves",
            Tar::new().file(&up, "x").bytes(),
            &[],
            "leads out",
        ),
        (
            "a hard link that leaves",
            Tar::new().hard_link("x", "../../etc/passwd").bytes(),
            &[],
            "leads out",
        ),
        (
            "a hard link to nothing",
            Tar::new().hard_link("x", "etc/passwd").bytes(),
            &[],
            "hard link to what is not there",
        ),
        (
            "a hard link to a directory",
            Tar::new().dir("d").hard_link("x", "d").bytes(),
            &[],
            "hard link to a directory",
        ),
        (
            "a file above a file",
            Tar::new().file("f", "").file("f/x", "").bytes(),
            &[],
            "where a directory should",
        ),
        (
            "a loop of links",
            Tar::new()
                .symlink("a", "b")
                .symlink("b", "a")
                .file("a/x", "")
                .bytes(),
            &[],
            "symbolic links",
        ),
        (
            "a link to nowhere",
            Tar::new().symlink("a", "").bytes(),
            &[],
            "leads nowhere",
        ),
        (
            "too deep",
            Tar::new()
                .entry(
                    EntryType::GNULongName,
                    "L",
                    "",
                    0,
                    deep.repeat(8).as_bytes(),
                )
                .file("x", "")
                .bytes(),
            &[],
            "too deep",
        ),
        (
            "a long name",
            Tar::new()
                .entry(EntryType::GNULongName, "L", "", 0, &vec![b'n'; 100_000])
                .file("x", "")
                .bytes(),
            &[],
            "too long",
        ),
        (
            "a file with holes",
            Tar::new()
                .entry(EntryType::XHeader, "x", "", 0, b"22 GNU.sparse.major=1\n")
                .file("x", "")
                .bytes(),
            &[],
            "holes",
        ),
        (
            "a broken header",
            Tar::new()
                .entry(EntryType::XHeader, "x", "", 0, b"99 path=x\n")
                .file("x", "")
                .bytes(),
            &[],
            "broken",
        ),
        (
            "an unknown kind",
            Tar::new()
                .entry(EntryType::new(b'Z'), "x", "", 0, b"")
                .bytes(),
            &[],
            "unknown kind",
        ),
        (
            "cut off",
            Tar::new().file("x", &"y".repeat(5000)).bytes()[..3000].to_vec(),
            &[],
            "middle",
        ),
        (
            "no archive",
            b"hello, this is no archive".repeat(100),
            &[],
            "tar",
        ),
        ("nothing", Vec::new(), &[], "empty"),
        ("a bomb of bytes", large, &["--max-size", "1m"], "larger"),
        (
            "a large file",
            Tar::new().file("x", &"y".repeat(9 << 20)).bytes(),
            &["--max-size", "8m"],
            "larger",
        ),
        (
            "a name that is none",
            saved("x", &[Tar::new().bytes()], &json!({})),
            &["--name", "x y"],
            "name of an image",
        ),
    ];
    for (what, bytes, args, sentence) in refused {
        let mut all = vec!["--name", "evil"];
        if args.contains(&"--name") {
            all.clear();
        }
        all.extend_from_slice(args);
        let ended = import(state, &bytes, &all);
        assert!(
            ended.code == 125 && ended.stderr.contains(sentence),
            "{what}: {ended:?}"
        );
        assert_eq!(counts(state), [0, 0, 0, 0], "{what}");
    }
    // Links out of the root are kept as what they are, and lead nowhere while it is unpacked.
    let links = Tar::new()
        .symlink("out", outside.path().to_str().unwrap())
        .file("out/canary", "changed")
        .symlink("up", &"../".repeat(20))
        .file("up/tmp/made-by-an-image", "x")
        .dir("out/made")
        .bytes();
    let ended = import(state, &links, &["--name", "links"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(fs::read_to_string(canary).unwrap(), "untouched");
    assert!(!outside.path().join("made").exists() && !Path::new("/tmp/made-by-an-image").exists());
    let root = tree(state, "links:latest");
    let inside = root.join(&canary[1..]);
    assert_eq!(fs::read_to_string(inside).unwrap(), "changed");
}

#[test]
fn a_changed_layer_is_not_taken() {
    let state = directory(&[]);
    let state = state.path();
    let layer = Tar::new().file("x", "right").bytes();
    let bytes = saved("app", &[layer], &json!({}));
    let at = bytes.windows(5).position(|word| word == b"right").unwrap();
    let mut wrong = bytes.clone();
    wrong[at..at + 5].copy_from_slice(b"wrong");
    let ended = import(state, &wrong, &[]);
    assert!(
        ended.code == 125 && ended.stderr.contains("digest"),
        "{ended:?}"
    );
    assert_eq!(counts(state), [0, 0, 0, 0]);
    assert_eq!(import(state, &gzip(&bytes), &[]).code, 0);
    assert_eq!(counts(state), [1, 1, 1, 0]);
}

/// What is in an archive besides its layers is held against what it says, and against what is asked for.
#[test]
fn archives_that_are_not_what_they_say() {
    let state = directory(&[]);
    let state = state.path();
    let layer = Tar::new().file("x", "").bytes();
    let plain = saved("app", std::slice::from_ref(&layer), &json!({}));
    let config = config(std::slice::from_ref(&layer), &json!({}), architecture());
    let under = |name: &str| {
        let manifest = json!([{"Config": name, "RepoTags": ["app"], "Layers": ["layer.tar"]}]);
        Tar::new()
            .entry(EntryType::Regular, name, "", 0o644, &config)
            .entry(EntryType::Regular, "layer.tar", "", 0o644, &layer)
            .file("manifest.json", &manifest.to_string())
            .bytes()
    };
    let wrong = under(&format!("{}.json", "0".repeat(64)));
    let right = under(&format!("{}.json", &digest(&config)[7..]));
    for (bytes, args, sentence) in [
        (&wrong, &[][..], "another digest than its name"),
        (
            &plain,
            &["--platform", "plan9/vax"],
            "none for plan9/vax, only for linux/",
        ),
        (&b"BZh91AY&SY0000".to_vec(), &[], "compressed with bzip2"),
    ] {
        let ended = import(state, bytes, args);
        let said = ended.stderr.contains(sentence);
        assert!(ended.code == 125 && said, "{ended:?}");
        assert_eq!(counts(state), [0, 0, 0, 0], "{sentence}");
    }
    assert_eq!(import(state, &right, &[]).code, 0);
}

/// What is wrong with an archive is told with words of the archive, which do not reach a terminal as they are.
#[test]
fn an_archive_does_not_control_the_terminal() {
    let state = directory(&[]);
    let mut header = [0; 1536];
    header[..22].copy_from_slice(b"\x1b]0;title\x07\x1b[2Jname.txt");
    header[148..152].copy_from_slice(b"\xff\x1b[m");
    header[257..265].copy_from_slice(b"ustar\x0000");
    let ended = import(state.path(), &header, &[]);
    assert_eq!(ended.code, 125, "{ended:?}");
    assert!(ended.stderr.contains("no tar file"), "{ended:?}");
    let controls = ended.stderr.trim_end().chars().any(char::is_control);
    assert!(!controls, "{ended:?}");
}

#[test]
fn a_full_disk() {
    let dir = directory(&[]);
    let file = dir.path().join("big.tar");
    fs::write(&file, Tar::new().file("x", &"y".repeat(4 << 20)).bytes()).unwrap();
    let state = dir.path().join("state");
    fs::create_dir(&state).unwrap();
    let file = file.to_str().unwrap();
    let ended = on_a_small_disk(&state, &["import", file, "--name", "big"]);
    assert!(
        ended.code == 125 && ended.stderr.contains("the disk is full at"),
        "{ended:?}"
    );
    let left: Vec<_> = ended
        .stdout
        .lines()
        .filter(|line| !line.ends_with("/lock"))
        .collect();
    assert!(left.is_empty(), "{ended:?}");
}

/// What is no file is told as that, and not waited for.
#[test]
fn what_cannot_be_read_is_named() {
    let dir = directory(&[
        ("lay/oci-layout", r#"{"imageLayoutVersion": "1.0.0"}"#),
        ("lay/blobs/sha256/x", ""),
    ]);
    let state = dir.path().join("state");
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let pipe = |path: &str| {
        let made = Command::new("mkfifo").arg(path).status();
        assert!(made.unwrap().success());
    };
    let blob = digest(b"a pipe");
    pipe(&at("pipe"));
    pipe(&at(&format!("lay/blobs/sha256/{}", &blob[7..])));
    let kind = "application/vnd.oci.image.manifest.v1+json";
    let index =
        json!({"schemaVersion": 2, "manifests": [{"mediaType": kind, "digest": blob, "size": 6}]});
    fs::write(at("lay/index.json"), index.to_string()).unwrap();
    for (file, sentence) in [
        ("nowhere.tar", "it cannot be read: No such file"),
        ("pipe", "to a file first"),
        ("lay", "is not in it"),
    ] {
        let ended = image(&state, &["import", &at(file), "--name", "x"]);
        let said = ended.stderr.contains(sentence);
        assert!(ended.code == 125 && said, "{file}: {ended:?}");
    }
}
