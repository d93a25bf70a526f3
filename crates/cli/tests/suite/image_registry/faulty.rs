//! Registries that answer wrongly, or break off.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::{Content, layers};
use crate::suite::harness::{Ended, directory};
use crate::suite::image_files::{Tar, architecture, command, counts, image, on_a_small_disk, tree};

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
    /// It breaks off after 300 KiB each time.
    BreaksOffOften,
    /// It never ends.
    Endless,
    EndlessManifest,
    EndlessConfig,
    /// It wants a token, and the token never ends.
    EndlessToken,
    /// It has no such layer, and never ends to say why.
    EndlessRefusal,
    /// It wants a token for each of its answers, and gives one to whoever has the password.
    WantsToken,
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
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut lines = reader.by_ref().lines();
    let first = lines.next()?.ok()?;
    let path = first.split(' ').nth(1)?.to_owned();
    let mut range = None;
    let mut authorization = String::new();
    let mut body = Vec::new();
    for line in lines {
        let line = line.ok()?;
        if let Some((name, value)) = line.split_once(": ")
            && name.eq_ignore_ascii_case("authorization")
        {
            value.clone_into(&mut authorization);
        }
        let line = line.to_ascii_lowercase();
        if let Some(asked) = line.strip_prefix("range: bytes=") {
            range = Some(asked.trim_end_matches('-').to_owned());
        }
        if let Some(bytes) = line.strip_prefix("content-length: ") {
            body.resize(bytes.parse().ok()?, 0);
        }
        if line.is_empty() {
            break;
        }
    }
    reader.read_exact(&mut body).ok()?;
    let last = path.rsplit('/').next()?;
    let head = |status: &str, kind: &str, digest: &str, bytes: usize| {
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nDocker-Content-Digest: {digest}\r\nContent-Length: {bytes}\r\nConnection: close\r\n\r\n"
        )
    };
    if fault == Fault::Nonsense {
        return stream.write_all(b"220 smtp ready\r\n").ok();
    }
    let endless = |stream: &mut TcpStream, status: &str| -> Option<()> {
        let head = format!("HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n");
        stream.write_all(head.as_bytes()).ok()?;
        loop {
            stream.write_all(b"2000\r\n").ok()?;
            stream.write_all(&[b' '; 0x2000]).ok()?;
            stream.write_all(b"\r\n").ok()?;
        }
    };
    if path == "/token" {
        let form = String::from_utf8(body).ok()?;
        let asked = form.contains("grant_type=refresh_token&")
            && form.contains("service=test&scope=repository%3Aapp%3Apull&")
            && form.ends_with("&refresh_token=identity");
        let (status, token) = if asked {
            ("200 OK", r#"{"access_token": "good"}"#)
        } else {
            ("401 Unauthorized", "{}")
        };
        let head = head(status, "application/json", "", token.len());
        return stream.write_all((head + token).as_bytes()).ok();
    }
    if let Some(query) = path.strip_prefix("/token?") {
        if fault == Fault::EndlessToken {
            return endless(&mut stream, "200 OK");
        }
        // ada:pw
        let asked =
            query.contains("service=test") && query.contains("scope=repository%3Aapp%3Apull");
        let (status, token) = match authorization.as_str() {
            "Basic YWRhOnB3" if asked => ("200 OK", r#"{"access_token": "good"}"#),
            _ => ("401 Unauthorized", "{}"),
        };
        let head = head(status, "application/json", "", token.len());
        return stream.write_all((head + token).as_bytes()).ok();
    }
    if matches!(fault, Fault::WantsToken | Fault::EndlessToken) && authorization != "Bearer good" {
        let address = stream.local_addr().ok()?;
        let head = format!(
            "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Bearer realm=\"http://{address}/token\",service=\"test\"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        return stream.write_all(head.as_bytes()).ok();
    }
    if path.contains("/manifests/") {
        if fault == Fault::EndlessManifest {
            return endless(&mut stream, "200 OK");
        }
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
        Fault::EndlessConfig if !is_layer => endless(&mut stream, "200 OK"),
        Fault::EndlessRefusal if is_layer => endless(&mut stream, "404 Not Found"),
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
        Fault::BreaksOff | Fault::BreaksOffWithoutRanges | Fault::BreaksOffOften if is_layer => {
            let without = fault == Fault::BreaksOffWithoutRanges;
            let from = if without { 0 } else { from };
            let rest = &bytes[from..];
            let status = if from > 0 {
                "206 Partial Content"
            } else {
                "200 OK"
            };
            stream
                .write_all(head(status, kind, last, rest.len()).as_bytes())
                .ok()?;
            let sent = match fault {
                Fault::BreaksOffOften => rest.len().min(300 << 10),
                _ if tries < 3 => rest.len() / 3,
                _ => rest.len(),
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
        (Fault::EndlessManifest, "answer is too large"),
        (Fault::EndlessConfig, "answer is too large"),
        (Fault::EndlessToken, "answer is too large"),
        (Fault::EndlessRefusal, "answered 404"),
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
fn a_registry_that_wants_a_token() {
    let mut content = Content::default();
    let own = content.image(&layers()[..1], architecture());
    content.tag("x", &own);
    let registry = Faulty::start(content, Fault::WantsToken);
    let at = &registry.address;
    let state = directory(&[]);
    let name = format!("{at}/app:x");
    let pull = |login: Value| -> Ended {
        let login = json!({"auths": {at.as_str(): login}});
        fs::write(state.path().join("config.json"), login.to_string()).unwrap();
        command(state.path(), "image", &["pull", &name])
            .env("DOCKER_CONFIG", state.path())
            .output()
            .unwrap()
            .into()
    };
    let password = |password| json!({"username": "ada", "password": password});
    let wrong = pull(password("wrong"));
    assert!(
        wrong.code == 125 && wrong.stderr.contains("docker login"),
        "{wrong:?}"
    );
    let ended = pull(password("pw"));
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{ended:?}");
    assert_eq!(image(state.path(), &["rm", &name]).code, 0);
    let ended = pull(json!({"auth": "YTpi", "identitytoken": "identity"}));
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{ended:?}");
}

/// An identity token is no reason not to ask a registry that wants to know nothing.
#[test]
fn a_registry_that_wants_no_token() {
    let mut content = Content::default();
    let own = content.image(&layers()[..1], architecture());
    content.tag("x", &own);
    let registry = Faulty::start(content, Fault::None);
    let state = directory(&[]);
    let login = json!({"auths": {registry.address.as_str(): {"identitytoken": "x"}}});
    fs::write(state.path().join("config.json"), login.to_string()).unwrap();
    let name = format!("{}/app:x", registry.address);
    let ended: Ended = command(state.path(), "image", &["pull", &name])
        .env("DOCKER_CONFIG", state.path())
        .output()
        .unwrap()
        .into();
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{ended:?}");
}

/// A layer that is not compressed to less.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state: u64 = 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    let noise: Vec<u8> = std::iter::repeat_with(next).take(bytes).collect();
    Tar::new()
        .entry(tar::EntryType::Regular, "noise", "", 0o644, &noise)
        .bytes()
}

#[test]
fn a_download_that_breaks_off_often() {
    let mut content = Content::default();
    let own = content.image(&[noise(1 << 21)], architecture());
    content.tag("x", &own);
    let registry = Faulty::start(content, Fault::BreaksOffOften);
    let state = directory(&[]);
    let name = format!("{}/app:x", registry.address);
    let ended = image(state.path(), &["pull", &name]);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{ended:?}");
    assert!(registry.ranges.lock().unwrap().len() > 5);
}

/// What filled it is not kept.
#[test]
fn a_download_that_fills_the_disk() {
    let mut content = Content::default();
    let own = content.image(&[noise(1 << 21)], architecture());
    content.tag("x", &own);
    let registry = Faulty::start(content, Fault::None);
    let state = directory(&[]);
    let name = format!("{}/app:x", registry.address);
    let ended = on_a_small_disk(state.path(), &["pull", &name]);
    let full = ended.stderr.contains("the disk is full at");
    assert!(ended.code == 125 && full, "{ended:?}");
    let mut left = ended.stdout.lines().filter(|line| !line.ends_with("/lock"));
    assert_eq!(left.next(), None, "{ended:?}");
}

/// What an earlier attempt has left is not the registry's fault.
#[test]
fn a_damaged_beginning_is_fetched_again() {
    let mut content = Content::default();
    let own = content.image(&layers()[..1], architecture());
    content.tag("x", &own);
    let registry = Faulty::start(content.clone(), Fault::BreaksOff);
    let state = directory(&[]);
    let mut blobs = content.blobs.iter();
    let layer = blobs.find(|(_, bytes)| bytes.starts_with(&[0x1f, 0x8b]));
    let (layer, bytes) = layer.unwrap();
    let partial = state.path().join("images/partial");
    fs::create_dir_all(&partial).unwrap();
    fs::write(partial.join(&layer[7..]), vec![7; bytes.len() / 2]).unwrap();
    let name = format!("{}/app:x", registry.address);
    let ended = image(state.path(), &["pull", &name]);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{ended:?}");
}

/// What was fetched once without a cap does not pass the cap later.
#[test]
fn layers_that_are_there_count() {
    let mut content = Content::default();
    // Much smaller as it comes.
    let layer = Tar::new().file("x", &"y".repeat(600_000)).bytes();
    let own = content.image(&[layer], architecture());
    content.tag("x", &own);
    let registry = Faulty::start(content, Fault::None);
    let state = directory(&[]);
    let name = format!("{}/app:x", registry.address);
    let capped = || image(state.path(), &["pull", &name, "--max-size", "100k"]);
    let first = capped();
    assert!(
        first.code == 125 && first.stderr.contains("larger"),
        "{first:?}"
    );
    assert_eq!(image(state.path(), &["pull", &name]).code, 0);
    let again = capped();
    assert!(
        again.code == 125 && again.stderr.contains("larger"),
        "{again:?}"
    );
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
