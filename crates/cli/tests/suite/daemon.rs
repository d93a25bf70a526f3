//! A daemon of its own for a test, and plain HTTP to speak to it.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::backend;
use super::harness::belljar;

pub const TOKEN: &str = "token-for-tests-0123456789";
/// Nothing here takes so long unless it hangs.
pub const HANG: Duration = Duration::from_mins(1);

pub struct Daemon {
    child: Child,
    /// Host and port.
    pub address: String,
    pub state: tempfile::TempDir,
}

/// What came back.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {} {}", self.status, self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The error's code; empty if it is none.
    pub fn code(&self) -> String {
        let code = self.json()["error"]["code"].as_str().map(str::to_owned);
        code.unwrap_or_default()
    }

    /// The JSON of an answer that must be a success.
    pub fn ok(&self) -> Value {
        assert!(
            (200..300).contains(&self.status),
            "{} {}",
            self.status,
            self.text()
        );
        self.json()
    }
}

impl Daemon {
    pub fn start() -> Self {
        Self::with("")
    }

    /// With settings.
    pub fn with(config: &str) -> Self {
        let state = tempfile::Builder::new().prefix("bjd-").tempdir().unwrap();
        Self::at(state, config)
    }

    /// Started by a root that has these groups, as `sudo` and `su` give it some.
    pub fn of_groups(groups: &str, config: &str) -> Self {
        let state = tempfile::Builder::new().prefix("bjd-").tempdir().unwrap();
        let plain = belljar();
        let mut command = Command::new("setpriv");
        command.arg(format!("--groups={groups}"));
        command.arg(plain.get_program()).stdin(Stdio::null());
        for (name, _) in plain.get_envs() {
            command.env_remove(name);
        }
        Self::started_by(command, state, config)
    }

    /// In a state directory that may have been used before.
    pub fn at(state: tempfile::TempDir, config: &str) -> Self {
        Self::started_by(belljar(), state, config)
    }

    /// The binary, or what turns into it.
    pub fn started_by(program: Command, state: tempfile::TempDir, config: &str) -> Self {
        let file = state.path().join("belljar.toml");
        // Most tests do not need it, and it costs a moment.
        let pool = if config.contains("[pool]") {
            ""
        } else {
            "\n[pool]\npython = 0\n"
        };
        fs::write(&file, format!("{}{pool}", backend::settings(config))).unwrap();
        let mut child = Self::command(program, &state, &file)
            .args(["--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let url = line
            .split_whitespace()
            .find_map(|word| word.split_once("://"));
        let log = || fs::read_to_string(state.path().join("log")).unwrap_or_default();
        let (_, address) = url.unwrap_or_else(|| panic!("{line:?} {}", log()));
        let address = address.to_owned();
        Self {
            child,
            address,
            state,
        }
    }

    fn command(mut command: Command, state: &tempfile::TempDir, file: &std::path::Path) -> Command {
        command
            .arg("serve")
            .arg("--config")
            .arg(file)
            .env("BELLJAR_STATE_DIR", state.path())
            .env("BELLJAR_TOKEN", TOKEN)
            .stderr(fs::File::create(state.path().join("log")).unwrap());
        command
    }

    pub fn state(&self) -> &std::path::Path {
        self.state.path()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.state.path().join("log")).unwrap()
    }

    pub fn socket(&self) -> PathBuf {
        self.state.path().join("belljar.sock")
    }

    /// As if the power of this process had gone. What it kept stays.
    pub fn kill(mut self) -> tempfile::TempDir {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let state = tempfile::Builder::new().prefix("bjd-").tempdir().unwrap();
        std::mem::replace(&mut self.state, state)
    }

    /// How it ended, once it has.
    pub fn stop_waiting(&mut self) -> std::process::ExitStatus {
        self.child.wait().unwrap()
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        stream.set_write_timeout(Some(HANG)).unwrap();
        stream
    }

    /// With these headers only, besides host and length.
    pub fn raw(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut stream = self.connect();
        send(&mut stream, method, path, &self.address, headers, body);
        receive(stream)
    }

    /// A request whose answer is left to whoever has the connection.
    pub fn begin(&self, path: &str, accept: &str, body: &Value) -> TcpStream {
        let mut stream = self.connect();
        let bearer = format!("Bearer {TOKEN}");
        let headers = [
            ("Authorization", bearer.as_str()),
            ("Content-Type", "application/json"),
            ("Accept", accept),
        ];
        let body = body.to_string();
        send(
            &mut stream,
            "POST",
            path,
            &self.address,
            &headers,
            body.as_bytes(),
        );
        stream
    }

    /// With a key.
    pub fn ask_as(&self, key: &str, method: &str, path: &str, body: &[u8]) -> Answer {
        let bearer = format!("Bearer {key}");
        let headers = [
            ("Authorization", bearer.as_str()),
            ("Content-Type", "application/json"),
        ];
        self.raw(method, path, &headers, body)
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask_as(TOKEN, "GET", path, b"")
    }

    pub fn delete(&self, path: &str) -> Answer {
        self.ask_as(TOKEN, "DELETE", path, b"")
    }

    pub fn put(&self, path: &str, body: &[u8]) -> Answer {
        self.ask_as(TOKEN, "PUT", path, body)
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask_as(TOKEN, "POST", path, body.to_string().as_bytes())
    }

    /// A figure of its metrics.
    pub fn metric(&self, name: &str) -> u64 {
        let text = self.get("/metrics").text();
        let mut lines = text.lines();
        let figure = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let figure = figure.and_then(|figure| figure.parse().ok());
        figure.unwrap_or_else(|| panic!("no {name} in {text}"))
    }

    /// Runs and commands that are going, or wait for room.
    pub fn going(&self) -> u64 {
        self.metric("belljar_running") + self.metric("belljar_waiting")
    }

    /// One run, which must have a result.
    pub fn run(&self, body: &Value) -> Value {
        self.post("/v1/runs", body).ok()
    }

    /// A kept sandbox's path.
    pub fn sandbox(&self, body: &Value) -> String {
        let made = self.post("/v1/sandboxes", body).ok();
        format!("/v1/sandboxes/{}", made["id"].as_str().unwrap())
    }

    /// Events of a run, by name with their data.
    pub fn events(&self, path: &str, body: &Value) -> Vec<(String, Value)> {
        let bearer = format!("Bearer {TOKEN}");
        let headers = [
            ("Authorization", bearer.as_str()),
            ("Content-Type", "application/json"),
            ("Accept", "text/event-stream"),
        ];
        let answer = self.raw("POST", path, &headers, body.to_string().as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.headers["content-type"], "text/event-stream");
        parse_events(&answer.text())
    }

    /// Over the unix socket, without a key.
    pub fn over_unix(&self, method: &str, path: &str, body: &[u8]) -> Answer {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        let headers = [("Content-Type", "application/json")];
        send(&mut stream, method, path, "belljar", &headers, body);
        receive(stream)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            signal(self.pid(), "TERM");
            let since = Instant::now();
            while self.child.try_wait().unwrap().is_none() {
                if since.elapsed() > HANG {
                    let _ = self.child.kill();
                    let _ = self.child.wait();
                    panic!("the daemon did not stop");
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

pub fn signal(pid: u32, name: &str) {
    let done = Command::new("kill")
        .args([format!("-{name}"), pid.to_string()])
        .status();
    assert!(done.unwrap().success());
}

pub fn send(
    stream: &mut impl Write,
    method: &str,
    path: &str,
    host: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) {
    let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
    if !headers.iter().any(|(name, _)| *name == "Host") {
        let _ = write!(head, "Host: {host}\r\n");
    }
    for (name, value) in headers {
        let _ = write!(head, "{name}: {value}\r\n");
    }
    if !body.is_empty() || ["POST", "PUT"].contains(&method) {
        let _ = write!(head, "Content-Length: {}\r\n", body.len());
    }
    head.push_str("\r\n");
    // It may refuse before it has read everything.
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(body);
}

/// Reads until the other end closes.
pub fn receive(mut stream: impl Read) -> Answer {
    let mut bytes = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            // Closed with something unread on the other side: what came is there.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
            Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&bytes)),
        }
    }
    parse(&bytes).unwrap_or_else(|| panic!("no answer: {:?}", String::from_utf8_lossy(&bytes)))
}

fn parse(bytes: &[u8]) -> Option<Answer> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).ok()?;
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers: HashMap<_, _> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let rest = &bytes[end + 4..];
    let chunked = headers
        .get("transfer-encoding")
        .is_some_and(|value| value == "chunked");
    let body = if chunked {
        unchunk(rest)
    } else {
        rest.to_vec()
    };
    Some(Answer {
        status,
        headers,
        body,
    })
}

/// As far as it goes: a broken stream has no last chunk.
fn unchunk(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
        let size = std::str::from_utf8(&rest[..end]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        rest = &rest[end + 2..];
        if size == 0 || rest.len() < size + 2 {
            break;
        }
        body.extend_from_slice(&rest[..size]);
        rest = &rest[size + 2..];
    }
    body
}

pub fn parse_events(text: &str) -> Vec<(String, Value)> {
    let mut events = Vec::new();
    for block in text
        .split("\n\n")
        .filter(|block| !block.is_empty() && !block.starts_with(':'))
    {
        let field = |name: &str| {
            let lines = block.lines();
            lines.filter_map(|line| line.strip_prefix(name)).next_back()
        };
        let data: Value = serde_json::from_str(field("data: ").unwrap()).unwrap();
        assert_eq!(data["seq"].to_string(), field("id: ").unwrap());
        assert!(data["time"].is_string());
        events.push((field("event: ").unwrap().to_owned(), data));
    }
    events
}

/// Waits until something holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < HANG, "waited too long: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Bytes of memory that it has.
pub fn resident(daemon: &Daemon) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        * 1024
}
