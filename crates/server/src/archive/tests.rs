//! Archives, and what is none.

use super::*;
use proptest::prelude::*;
use std::io::Write as _;

/// An archive with a file, a directory, and a name that is too long for a header.
fn archive() -> Vec<u8> {
    let mut made = tar::Builder::new(Vec::new());
    for name in [
        "a.txt".to_owned(),
        "d/".to_owned(),
        "directory/".repeat(20) + "name",
    ] {
        let mut header = tar::Header::new_gnu();
        header.set_size(if name.ends_with('/') { 0 } else { 5 });
        header.set_mode(0o644);
        header.set_entry_type(if name.ends_with('/') {
            EntryType::Directory
        } else {
            EntryType::Regular
        });
        let content: &[u8] = if name.ends_with('/') { b"" } else { b"hello" };
        made.append_data(&mut header, name, content).unwrap();
    }
    made.into_inner().unwrap()
}

proptest! {
    /// Whatever comes, nothing is named that lies outside, and no more is read than there is.
    #[test]
    fn fuzz_archives(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..24), cut: prop::sample::Index) {
        let mut bytes = archive();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(cut.index(bytes.len()) + 1);
        let most = bytes.len() as u64;
        let mut read = 0;
        let _ = walk("below", &bytes[..], |path, content| {
            assert!(belljar_spec::check_destination("archive", path).is_ok() && path.starts_with("below/"));
            if let Some(content) = content {
                read += std::io::copy(content.bytes, &mut std::io::sink()).unwrap_or(0);
            }
            Ok(())
        });
        prop_assert!(read <= most);
    }

    #[test]
    fn fuzz_names_of_entries(name: Vec<u8>, text: Vec<u8>) {
        if let Ok(Some(path)) = inside("", &name) {
            prop_assert!(belljar_spec::check_destination("archive", &path).is_ok());
        }
        let _ = extended_name(&text);
    }
}

#[test]
fn an_archive_is_walked() {
    let mut seen = Vec::new();
    walk("", &archive()[..], |path, content| {
        seen.push((path.len(), content.is_some()));
        Ok(())
    })
    .unwrap();
    assert_eq!(seen, [(5, true), (1, false), (204, true)]);
}

#[test]
fn paths_stay_inside() {
    let at = |name: &str| inside("", name.as_bytes());
    assert_eq!(at("./a/b").unwrap().as_deref(), Some("a/b"));
    assert_eq!(at("a/").unwrap().as_deref(), Some("a"));
    assert_eq!(at("./").unwrap(), None);
    assert_eq!(inside("sub", b"x").unwrap().as_deref(), Some("sub/x"));
    for bad in ["../x", "/etc/passwd", "a/../../x", "a//b", "x\0y"] {
        assert!(at(bad).is_err(), "{bad}");
    }
    assert!(inside("..", b"x").is_err() && inside("", b"\xff").is_err());
}

#[test]
fn extended_headers() {
    let name = |text: &str| extended_name(text.as_bytes());
    assert_eq!(name("12 path=a/b\n").unwrap(), Some(b"a/b".to_vec()));
    assert_eq!(
        name("13 mtime=1.5\n11 path=xy\n").unwrap(),
        Some(b"xy".to_vec())
    );
    for bad in [
        "x",
        "5 path=a/b\n",
        "99 path=a\n",
        "0 \n",
        "-3 a\n",
        " ",
        "2 ",
        "11 size=99\n9 \n",
    ] {
        assert!(name(bad).is_err(), "{bad:?}");
    }
}

#[tokio::test]
async fn whoever_takes_an_archive_by_drips_is_left() {
    let (sender, mut receiver) = mpsc::channel(4);
    let pace = Pace::new(std::time::Duration::from_millis(100));
    let mut out = Chunks::new(sender, pace, Box::pin(std::future::pending()));
    let packing = spawn_blocking(move || {
        let piece = vec![0; CHUNK];
        (0..1000).try_for_each(|_| out.write_all(&piece))
    });
    // Never still for long, but at a fifth of the pace.
    while let Some(chunk) = receiver.recv().await {
        assert!(chunk.is_some(), "it was not finished");
        tokio::time::sleep(std::time::Duration::from_millis(60)).await;
    }
    let left = packing.await.unwrap().unwrap_err();
    assert_eq!(left.kind(), io::ErrorKind::TimedOut);
}

/// What was on its way when its sandbox went, and had not begun, is answered with the reason.
#[tokio::test]
async fn what_ends_an_archive_is_told() {
    let (sender, _receiver) = mpsc::channel(1);
    sender.try_send(None).unwrap();
    let pace = Pace::new(std::time::Duration::from_secs(10));
    let ended = Box::pin(async { crate::sandboxes::deleted() });
    let out = Chunks::new(sender, pace, ended);
    let packing = spawn_blocking(move || out.finish().map_err(unpacked));
    assert_eq!(why(packing.await), crate::sandboxes::deleted());
}
