//! How layers become one root, and how they are counted.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use serde_json::json;
use tar::EntryType;

use super::harness::directory;
use super::image_files::{Tar, counts, image, import, saved, tree};

#[test]
fn layers_become_one_root() {
    let state = directory(&[]);
    let state = state.path();
    let below = Tar::new()
        .dir("usr")
        .dir("usr/lib")
        .symlink("lib", "usr/lib")
        .symlink("abs", "/usr/lib")
        .file("gone", "1")
        .file("changed", "1")
        .dir("emptied")
        .file("emptied/old", "1")
        .dir("kept")
        .file("kept/old", "1")
        .file("usr/lib/one", "one")
        .hard_link("usr/lib/two", "usr/lib/one")
        .entry(EntryType::Char, "dev/null", "", 0o666, b"")
        .entry(EntryType::Fifo, "pipe", "", 0o666, b"")
        .entry(EntryType::Regular, "suid", "", 0o6755, b"x")
        .dir("to-file")
        .file("to-file/x", "")
        .file("to-dir", "")
        .bytes();
    let above = Tar::new()
        .file(".wh.gone", "")
        .file("changed", "2")
        .file("emptied/.wh..wh..opq", "")
        .file("emptied/new", "2")
        .file("kept/new", "2")
        .file("kept/.wh.nothing", "")
        // No entry for `lib` itself: it stays the link that it is.
        .file("lib/three", "three")
        .file("abs/four", "four")
        .hard_link("five", "usr/lib/one")
        .file("to-file", "now a file")
        .file("to-dir/x", "now a directory")
        .bytes();
    let layers = [below, above];
    let ended = import(state, &saved("team/app:1", &layers, &json!({})), &[]);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{ended:?}");
    let root = tree(state, "team/app:1");
    let text = |path: &str| {
        fs::read_to_string(root.join(path)).unwrap_or_else(|error| error.kind().to_string())
    };
    let missing = "entity not found";
    for (path, expected) in [
        ("gone", missing),
        ("changed", "2"),
        ("emptied/old", missing),
        ("emptied/new", "2"),
        ("kept/old", "1"),
        ("kept/new", "2"),
        ("usr/lib/three", "three"),
        ("usr/lib/four", "four"),
        ("five", "one"),
        ("to-file", "now a file"),
        ("to-dir/x", "now a directory"),
        (".wh.gone", missing),
        ("dev/null", missing),
        ("pipe", missing),
    ] {
        assert_eq!(text(path), expected, "{path}");
    }
    assert!(root.join("lib").is_symlink());
    let at = |path: &str| fs::metadata(root.join(path)).unwrap();
    assert_eq!(at("usr/lib/one").ino(), at("usr/lib/two").ino());
    assert_eq!(at("usr/lib/one").ino(), at("five").ino());
    assert_eq!(at("suid").permissions().mode() & 0o7777, 0o755);
    assert_eq!(at("suid").mtime(), 1_600_000_000);

    // Another image of the same layer shares its files; what only one needs goes with it.
    let ended = import(state, &saved("team/other:1", &layers[..1], &json!({})), &[]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(counts(state), [2, 2, 2, 0]);
    assert_eq!(
        fs::metadata(tree(state, "team/other:1").join("usr/lib/one"))
            .unwrap()
            .ino(),
        at("usr/lib/one").ino()
    );
    assert_eq!(image(state, &["rm", "team/app:1"]).code, 0);
    assert_eq!(counts(state), [1, 1, 1, 0]);
    assert_eq!(image(state, &["rm", "team/other:1"]).code, 0);
    assert_eq!(counts(state), [0, 0, 0, 0]);
    let again = image(state, &["rm", "team/other:1"]);
    assert!(
        again.code == 125 && again.stderr.contains("was not found"),
        "{again:?}"
    );
}

/// What a layer takes away was below it, wherever its own entries come to lie.
#[test]
fn an_opaque_directory_behind_a_link() {
    let state = directory(&[]);
    let state = state.path();
    let below = Tar::new()
        .file("d/old", "")
        .symlink("link", "d")
        .file("k", "below")
        .bytes();
    let above = Tar::new()
        .file("d/new", "")
        .file("link/.wh..wh..opq", "")
        .file("link/too", "")
        .hard_link("q", "k")
        .file("q", "later")
        .file("r", "earlier")
        .hard_link("r", "k")
        .hard_link("s", "r")
        .bytes();
    let ended = import(state, &saved("app", &[below, above], &json!({})), &[]);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{ended:?}");
    let root = tree(state, "app:latest");
    let names = ["old", "new", "too"].map(|name| root.join("d").join(name).exists());
    assert_eq!(names, [false, true, true]);
    let text = |path: &str| fs::read_to_string(root.join(path)).unwrap();
    assert_eq!(["q", "r", "s"].map(text), ["later", "below", "below"]);
}

/// What was taken in once without a cap does not pass the cap later.
#[test]
fn layers_that_are_there_count() {
    let state = directory(&[]);
    let state = state.path();
    let layers = [
        Tar::new().file("x", &"y".repeat(600_000)).bytes(),
        Tar::new().file("z", &"y".repeat(600_000)).bytes(),
    ];
    let both = saved("both", &layers, &json!({}));
    let capped = ["--max-size", "1m"];
    let refused = |what: &str, kept: [usize; 4]| {
        let ended = import(state, &both, &capped);
        assert!(
            ended.code == 125 && ended.stderr.contains("larger"),
            "{what}: {ended:?}"
        );
        assert_eq!(counts(state), kept, "{what}");
    };
    refused("nothing is there", [0, 0, 0, 0]);
    let one = saved("one", &layers[..1], &json!({}));
    assert_eq!(import(state, &one, &capped).code, 0);
    refused("a layer is there", [1, 1, 1, 0]);
    assert_eq!(import(state, &both, &[]).code, 0);
    refused("all are there", [2, 2, 2, 0]);
}

/// What is written down about its files takes more than 8 MiB.
#[test]
fn many_private_files_with_long_names() {
    let state = directory(&[]);
    let state = state.path();
    let above = format!("{}/", "d".repeat(250)).repeat(13);
    let mut tar = Tar::new();
    for at in 0..2600 {
        let name = format!("{above}{at:0250}");
        tar = tar
            .entry(EntryType::GNULongName, "L", "", 0, name.as_bytes())
            .entry(EntryType::Regular, "short", "", 0o600, b"");
    }
    let ended = import(state, &tar.bytes(), &["--name", "long"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{ended:?}");
    let below = tree(state, "long:latest").join(above);
    assert_eq!(fs::read_dir(below).unwrap().count(), 2600);
}
