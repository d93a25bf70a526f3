//! What an image's user may not read, code may not read either.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use serde_json::json;
use tar::EntryType;

use super::harness::{Ended, directory};
use super::image_files::{Tar, command, counts, import, saved, tree};

/// What is hidden from an image's user is hidden inside, wherever a link of a later layer leads.
#[test]
fn links_over_private_directories() {
    let outside = directory(&[("x/file", "")]);
    let place = outside.path().join("x");
    let state = directory(&[]);
    let below = Tar::new()
        .file("etc/passwd", "app:x:77:77::/:\n")
        .dir("d")
        .entry(EntryType::Directory, "d/x", "", 0o700, b"")
        .entry(EntryType::Regular, "d/x/file", "", 0o600, b"")
        .bytes();
    let above = Tar::new()
        .file(".wh.d", "")
        .symlink("d", outside.path().to_str().unwrap())
        .bytes();
    let settings = json!({"User": "app"});
    let ended = import(state.path(), &saved("app", &[below, above], &settings), &[]);
    assert_eq!(ended.code, 0, "{ended:?}");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&place), mode(&place.join("file"))), (0o755, 0o644));
}

/// Names of one file that the image's user may not read stay names of one file.
#[test]
fn hidden_files_are_not_multiplied() {
    let state = directory(&[]);
    let below = Tar::new()
        .file("etc/passwd", "app:x:77:77::/:\n")
        .entry(EntryType::Regular, "one", "", 0o600, b"secret")
        .hard_link("two", "one")
        .hard_link("three", "one")
        .bytes();
    let settings = json!({"User": "app"});
    let ended = import(state.path(), &saved("app", &[below], &settings), &[]);
    assert_eq!(ended.code, 0, "{ended:?}");
    let root = tree(state.path(), "app:latest");
    let at = |path: &str| fs::metadata(root.join(path)).unwrap();
    assert_eq!(at("one").permissions().mode() & 0o777, 0o600);
    assert_eq!(at("one").len(), 0);
    assert_eq!(at("one").nlink(), 3, "and not the layer's");
    assert_eq!(
        (at("one").ino(), at("one").ino()),
        (at("two").ino(), at("three").ino())
    );
}

/// What the image's user may not read is not in the root at all: no mode would keep it from code that owns the files.
#[test]
fn private_files_are_not_in_the_root() {
    let state = directory(&[]);
    let state = state.path();
    let of = |kind, name: &str, mode| (kind, name.to_owned(), mode);
    let (dir, file) = (EntryType::Directory, EntryType::Regular);
    let make = |entries: &[(EntryType, String, u32)]| {
        let add = |tar: Tar, (kind, name, mode): &(EntryType, String, u32)| {
            let content: &[u8] = if *kind == file { b"secret" } else { b"" };
            tar.entry(*kind, name, "", *mode, content)
        };
        entries.iter().fold(Tar::new(), add)
    };
    let below = make(&[
        of(file, "private", 0o600),
        of(dir, "closed", 0o700),
        of(file, "closed/x", 0o644),
        of(dir, "passed", 0o711),
        of(file, "passed/x", 0o644),
        of(file, "passed/private", 0o600),
        of(dir, "opened", 0o700),
        of(file, "opened/x", 0o644),
        of(dir, "shut", 0o755),
        of(file, "shut/x", 0o644),
        of(dir, "kept", 0o700),
        of(file, "kept/x", 0o644),
        of(file, "freed", 0o600),
        of(dir, "anew", 0o700),
    ]);
    let below = below.file("etc/passwd", "app:x:77:77::/:\n").bytes();
    let above = make(&[
        of(dir, "opened", 0o755),
        of(dir, "shut", 0o700),
        // Stands only above something: says nothing about the directory.
        of(file, "kept/y", 0o644),
        of(file, "freed", 0o644),
        of(file, ".wh.anew", 0o644),
        of(file, "anew/x", 0o644),
    ]);
    let above = above
        .hard_link("leak", "private")
        .hard_link("fine", "passed/x")
        .bytes();
    let bytes = saved("app", &[below, above], &json!({"User": "app"}));
    let check = || {
        let root = tree(state, "app:latest");
        let found = |path: &str| {
            let found = fs::metadata(root.join(path)).ok()?;
            Some((found.permissions().mode() & 0o777, found.len()))
        };
        for empty in ["private", "passed/private", "leak"] {
            assert_eq!(found(empty), Some((0o600, 0)), "{empty}");
        }
        for read in ["passed/x", "opened/x", "freed", "anew/x", "fine"] {
            assert_eq!(found(read), Some((0o644, 6)), "{read}");
        }
        for (directory, mode) in [
            ("closed", 0o700),
            ("passed", 0o711),
            ("opened", 0o755),
            ("shut", 0o700),
            ("kept", 0o700),
            ("anew", 0o755),
        ] {
            assert_eq!(found(directory).unwrap().0, mode, "{directory}");
            let count = fs::read_dir(root.join(directory)).unwrap().count();
            assert_eq!(count > 0, mode & 1 != 0, "{directory}");
        }
        root
    };
    let ended = import(state, &bytes, &[]);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{ended:?}");
    let root = check();
    // A root that an earlier version made is made anew by whoever uses it.
    let record = root.with_file_name("root.json");
    let text = fs::read_to_string(&record).unwrap();
    fs::write(&record, text.replace("\"made\":", "\"unknown\":")).unwrap();
    fs::write(root.join("private"), "secret").unwrap();
    let args = ["--image", "app", "-c", "1"];
    let run: Ended = command(state, "run", &args).output().unwrap().into();
    assert!(run.stderr.contains("has none of"), "{run:?}");
    check();
    assert_eq!(counts(state), [1, 1, 2, 0]);
}
