//! How the daemon starts, what it refuses to start with, and when it leaves by itself.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;

use super::daemon::{Daemon, TOKEN};
use super::harness::{Ended, belljar, code_of, need_tool};

#[test]
fn starts_that_would_be_unsafe_are_refused() {
    let state = tempfile::tempdir().unwrap();
    let start = |args: &[&str], token: Option<&str>| {
        let mut command = belljar();
        command
            .arg("serve")
            .args(args)
            .env("BELLJAR_STATE_DIR", state.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(token) = token {
            command.env("BELLJAR_TOKEN", token);
        }
        let output = command.output().unwrap();
        (
            code_of(output.status),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (code, text) = start(&["--listen", "0.0.0.0:0"], None);
    assert!(code == 125 && text.contains("BELLJAR_TOKEN"), "{text}");
    // An empty token is none.
    let (code, text) = start(&["--listen", "0.0.0.0:0"], Some(""));
    assert!(code == 125 && text.contains("set BELLJAR_TOKEN"), "{text}");
    assert_eq!(start(&["--check-config"], Some("")).0, 0);
    let (code, text) = start(&["--listen", "127.0.0.1:0"], Some("short"));
    assert!(code == 125 && text.contains("at least 16"), "{text}");
    let (code, text) = start(&["--check-config"], Some("short"));
    assert!(code == 125 && text.contains("at least 16"), "{text}");
    let (code, text) = start(&["--listen", "", "--unix", ""], None);
    assert!(code == 125 && text.contains("nowhere"), "{text}");
    let config = state.path().join("bad.toml");
    fs::write(&config, "[http]\nbodybytes = 1\n").unwrap();
    let (code, text) = start(
        &["--config", config.to_str().unwrap(), "--check-config"],
        None,
    );
    assert!(code == 125 && text.contains("bodybytes"), "{text}");
    fs::write(&config, "listen = '127.0.0.1:1'\n").unwrap();
    assert_eq!(
        start(
            &["--config", config.to_str().unwrap(), "--check-config"],
            None
        )
        .0,
        0
    );
    // As in the settings: never.
    assert_eq!(start(&["--idle-exit", "0s", "--check-config"], None).0, 0);
    let (code, text) = start(&["--idle-exit", "0", "--check-config"], None);
    assert!(code == 125 && text.contains("0s for never"), "{text}");
    let lines = [
        (
            "[tls]\ncertificate = '/nowhere.pem'\nkey = '/nowhere.key'",
            "nowhere.pem",
        ),
        (
            "[tls]\ncertificate = '/etc/passwd'\nkey = '/etc/passwd'",
            "no certificate",
        ),
        ("[pool]\npyton = 1", "did you mean python"),
        ("[templates.t]\nlanguage = 'pyton'", "did you mean python"),
        ("[templates.t]\npreload = ['json']", "pool"),
    ];
    for (lines, words) in lines {
        fs::write(&config, lines).unwrap();
        let (code, text) = start(
            &["--config", config.to_str().unwrap(), "--check-config"],
            None,
        );
        assert!(code == 125 && text.contains(words), "{lines}: {text}");
    }
    let mut loud = belljar();
    loud.args(["serve", "--check-config"])
        .env("BELLJAR_LOG", "nonsense")
        .env("BELLJAR_STATE_DIR", state.path());
    let output = loud.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        code_of(output.status) == 125 && text.contains("error, warn, info, debug or off"),
        "{text}"
    );
    let daemon = Daemon::start();
    let mut second = belljar();
    second
        .args(["serve", "--listen", "127.0.0.1:0"])
        .env("BELLJAR_STATE_DIR", daemon.state.path());
    let output = second.output().unwrap();
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .contains("another daemon")
    );
}

#[test]
fn the_first_start_makes_a_token_and_shows_it_once() {
    use std::io::{BufRead, BufReader};
    let state = tempfile::tempdir().unwrap();
    let start = |lines: usize| {
        let mut child = belljar()
            .args(["serve", "--listen", "127.0.0.1:0"])
            .env("BELLJAR_STATE_DIR", state.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut reader = BufReader::new(child.stdout.take().unwrap());
        let mut said = String::new();
        for _ in 0..lines {
            reader.read_line(&mut said).unwrap();
        }
        super::daemon::signal(child.id(), "TERM");
        child.wait().unwrap();
        std::io::Read::read_to_string(&mut reader, &mut said).unwrap();
        said
    };
    let said = start(2);
    let token = fs::read_to_string(state.path().join("token")).unwrap();
    assert!(
        said.contains(&format!("/#token={}", token.trim())),
        "{said}"
    );
    assert!(!start(1).contains(token.trim()));
    assert_eq!(
        fs::read_to_string(state.path().join("token")).unwrap(),
        token
    );
}

#[test]
fn a_certificate_makes_it_https() {
    need_tool("openssl", "openssl");
    need_tool("curl", "curl");
    let dir = tempfile::tempdir().unwrap();
    let (certificate, key) = (dir.path().join("c.pem"), dir.path().join("k.pem"));
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-addext",
            "basicConstraints=critical,CA:FALSE",
        ])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let daemon = Daemon::with(&config_with(&certificate, &key));
    let output = Command::new("curl")
        .args(["-s", "--cacert"])
        .arg(&certificate)
        .arg(format!("https://{}/healthz", daemon.address))
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        format!(
            "{{\"ok\":true,\"version\":\"{}\"}}",
            env!("CARGO_PKG_VERSION")
        ),
        "{output:?}"
    );
    let list = |trusted: &Path| {
        let listed = belljar()
            .args(["ps", "--json"])
            .env("BELLJAR_URL", format!("https://{}", daemon.address))
            .env("BELLJAR_TOKEN", TOKEN)
            .env("SSL_CERT_FILE", trusted)
            .output();
        Ended::from(listed.unwrap())
    };
    let listed = list(&certificate);
    assert_eq!((listed.code, listed.stdout.trim()), (0, "[]"), "{listed:?}");
    let stranger = list(Path::new("/dev/null"));
    assert_eq!((stranger.code, stranger.stdout.as_str()), (125, ""));
    assert!(stranger.stderr.contains("SSL_CERT_FILE"), "{stranger:?}");
    // Asked in the other way, each says which is the right one.
    let plain = Daemon::start();
    let asked = |url: String, args: &[&str]| {
        let listed = belljar().args(args).env("BELLJAR_URL", url).output();
        Ended::from(listed.unwrap())
    };
    for args in [&["ps"][..], &["exec", "sbx_x", "-t"]] {
        let (here, there) = (&daemon.address, &plain.address);
        for (url, told) in [
            (format!("http://{here}"), format!("https://{here}")),
            (format!("https://{there}"), format!("http://{there}")),
        ] {
            let ended = asked(url, args);
            assert!(
                ended.code == 125 && ended.stderr.contains(&format!("BELLJAR_URL={told}\n")),
                "{args:?} {ended:?}"
            );
        }
    }
    let ended = asked(format!("http://{}/api", plain.address), &["ps"]);
    assert!(ended.stderr.contains("without a path"), "{ended:?}");
    let config = dir.path().join("config");
    let none = config_with(&certificate, &certificate);
    fs::write(&config, none).unwrap();
    let ended = belljar()
        .args(["serve", "--check-config", "--config"])
        .arg(&config)
        .output();
    let ended = Ended::from(ended.unwrap());
    assert!(
        ended.stderr.contains("there is no private key in it"),
        "{ended:?}"
    );
}

fn config_with(certificate: &Path, key: &Path) -> String {
    format!(
        "[tls]\ncertificate = '{}'\nkey = '{}'\n",
        certificate.display(),
        key.display()
    )
}

#[test]
fn one_that_nobody_needs_leaves() {
    let mut daemon = Daemon::with("idle_exit = '5s'\n");
    let sandbox = daemon.sandbox(&json!({"language": "bash"}));
    std::thread::sleep(std::time::Duration::from_secs(7));
    // As long as it keeps something, it stays.
    assert_eq!(daemon.delete(&sandbox).status, 204);
    assert!(daemon.stop_waiting().success());
    assert!(!daemon.socket().exists());
}
