//! What becomes of images in the store: layers, hostile archives, full disks, leftovers.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use serde_json::json;
use tar::EntryType;

use super::harness::{Ended, directory};
use super::image_files::{
    Tar, architecture, command, config, counts, digest, gzip, image, import, on_a_small_disk,
    python_root, saved, tree,
};

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
