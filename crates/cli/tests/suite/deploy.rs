//! What `deploy/` has works with this program.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::daemon::signal;
use super::harness::{belljar, binary, need_tool};

const INSTALLED: &str = "/usr/local/bin/belljar";

fn deployed(name: &str) -> String {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    fs::read_to_string(place.join(name)).unwrap()
}

/// What a line of the unit says.
fn setting<'a>(unit: &'a str, name: &str) -> &'a str {
    let found = unit
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    found.unwrap_or_else(|| panic!("no {name} in {unit}"))
}

#[test]
fn the_unit_is_accepted_and_its_commands_work() {
    let place = tempfile::tempdir().unwrap();
    let config = place.path().join("belljar.toml");
    fs::write(&config, "listen = '127.0.0.1:0'\n").unwrap();
    let unit = deployed("belljar.service")
        .replace(INSTALLED, binary().to_str().unwrap())
        .replace("/etc/belljar/belljar.toml", config.to_str().unwrap());
    let path = place.path().join("belljar.service");
    fs::write(&path, &unit).unwrap();
    need_tool("systemd-analyze", "systemd");
    let verified = Command::new("systemd-analyze")
        .arg("verify")
        .arg(&path)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&verified.stderr);
    assert!(verified.status.success() && said.is_empty(), "{said}");

    let state = place.path().join("state");
    let command = |name: &str| {
        let mut words = setting(&unit, name).split_whitespace();
        let mut command = belljar();
        assert_eq!(words.next(), binary().to_str());
        command.args(words).env("BELLJAR_STATE_DIR", &state);
        command
    };
    let checked = command("ExecStartPre").output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
    assert!(!state.exists(), "a check leaves nothing behind");

    let mut daemon = command("ExecStart")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(daemon.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    assert!(line.contains("listens on http://127.0.0.1:"), "{line}");
    // Its stdout goes nowhere there, so the log has the address too, and not the token.
    let mut log = String::new();
    let mut stderr = BufReader::new(daemon.stderr.take().unwrap());
    stderr.read_line(&mut log).unwrap();
    assert_eq!(setting(&unit, "StandardOutput"), "null");
    assert!(log.contains("127.0.0.1:"), "{log}");
    let token = fs::read_to_string(state.join("token")).unwrap();
    assert!(!log.contains(token.trim()));
    let seconds: u64 = setting(&unit, "TimeoutStopSec").parse().unwrap();
    let since = Instant::now();
    signal(daemon.id(), "TERM");
    assert!(daemon.wait().unwrap().success());
    assert!(since.elapsed() < Duration::from_secs(seconds));
}

#[test]
fn the_container_starts_a_daemon_that_needs_a_token() {
    let file = deployed("Containerfile");
    let entry = file
        .lines()
        .find_map(|line| line.strip_prefix("ENTRYPOINT "))
        .unwrap();
    let words: Vec<String> = serde_json::from_str(entry).unwrap();
    assert_eq!(words[0], "belljar");
    let address = file
        .lines()
        .find_map(|line| line.strip_prefix("ENV BELLJAR_LISTEN="))
        .unwrap();
    assert!(file.contains(&format!(" {INSTALLED}\n")));
    let state = tempfile::tempdir().unwrap();
    let start = |token: Option<&str>| {
        let mut command = belljar();
        command
            .args(&words[1..])
            .arg("--check-config")
            .env("BELLJAR_STATE_DIR", state.path())
            .env("BELLJAR_LISTEN", address);
        command.envs(token.map(|token| ("BELLJAR_TOKEN", token)));
        command.output().unwrap()
    };
    assert!(start(Some("a-token-of-the-container")).status.success());
    let open = start(None);
    assert_eq!(open.status.code(), Some(125));
    let said = String::from_utf8_lossy(&open.stderr);
    assert!(said.contains("set BELLJAR_TOKEN"), "{said}");
}
