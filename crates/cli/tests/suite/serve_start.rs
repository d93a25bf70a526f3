//! How the daemon starts, what it refuses to start with, and when it leaves by itself.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;

use super::daemon::{Daemon, TOKEN, until};
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
    let config = format!(
        "[tls]\ncertificate = '{}'\nkey = '{}'\n",
        certificate.display(),
        key.display()
    );
    let daemon = Daemon::with(&config);
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

/// Executes its arguments where no file system can be made that is attached nowhere, as on kernels that have no templates of roots.
const WITHOUT_TEMPLATES: &str = r"
import ctypes, os, struct, sys
FSOPEN, ENOSYS = 430, 38
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, FSOPEN), (0x06, 0, 0, 0x50000 | ENOSYS), (0x06, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack('HxxxxxxP', len(steps), ctypes.addressof(code)))
prctl = ctypes.CDLL(None, use_errno=True).prctl
assert prctl(38, 1, 0, 0, 0) == 0 and prctl(22, 2, program) == 0, ctypes.get_errno()
os.execv(sys.argv[1], sys.argv[1:])
";

#[test]
fn a_kernel_without_templates_of_roots_is_enough() {
    let state = tempfile::Builder::new().prefix("bjd-").tempdir().unwrap();
    let plain = belljar();
    let mut command = Command::new("python3");
    command.args(["-c", WITHOUT_TEMPLATES]);
    command.arg(plain.get_program()).stdin(Stdio::null());
    for (name, _) in plain.get_envs() {
        command.env_remove(name);
    }
    let daemon = Daemon::started_by(command, state, "[pool]\npython = 2\n");
    let code = "import os; print(os.getppid(), os.stat('/').st_dev, oct(os.stat('/dev').st_mode), len(os.listdir('/etc')) > 4)";
    let said = || {
        let run = daemon.run(&json!({ "code": code }));
        run["stdout"].as_str().unwrap().to_owned()
    };
    // A copy is nobody's child; what was executed is a child of the sandbox's first process.
    until("copies", || said().starts_with("0 "));
    let said = [said(), said()];
    for words in &said {
        assert!(
            words.starts_with("0 ") && words.ends_with(" 0o40755 True\n"),
            "{said:?}"
        );
    }
    assert_ne!(said[0], said[1], "each has a root of its own");
}
