//! The terminal of a kept sandbox: a WebSocket.

use std::fmt::Write as _;
use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Instant;

use serde_json::{Value, json};
use tungstenite::client::IntoClientRequest;
use tungstenite::{Message, WebSocket, client};

use super::daemon::{Daemon, HANG, TOKEN, signal, until};

struct Terminal {
    socket: WebSocket<TcpStream>,
    /// Everything that was drawn.
    drawn: Vec<u8>,
}

fn open(daemon: &Daemon, key: &str, sandbox: &str, query: &str) -> Result<Terminal, u16> {
    let url = format!("ws://{}{sandbox}/terminal{query}", daemon.address);
    let mut request = url.into_client_request().unwrap();
    let key = format!("Bearer {key}").parse().unwrap();
    request.headers_mut().insert("authorization", key);
    match client(request, daemon.connect()) {
        Ok((socket, _)) => Ok(Terminal {
            socket,
            drawn: Vec::new(),
        }),
        Err(tungstenite::HandshakeError::Failure(tungstenite::Error::Http(answer))) => {
            Err(answer.status().as_u16())
        }
        Err(error) => panic!("{error}"),
    }
}

impl Terminal {
    fn shell(daemon: &Daemon, sandbox: &str) -> Self {
        let mut terminal = open(daemon, TOKEN, sandbox, "?rows=33&cols=101").unwrap();
        terminal.until("$ ");
        terminal
    }

    fn enter(&mut self, text: &str) {
        self.drawn.clear();
        let message = Message::binary(text.as_bytes().to_vec());
        self.socket.send(message).unwrap();
    }

    fn say(&mut self, message: &Value) {
        self.socket
            .send(Message::text(message.to_string()))
            .unwrap();
    }

    /// The next text, if it is not bytes.
    fn next(&mut self) -> Option<Value> {
        let message = self
            .socket
            .read()
            .unwrap_or_else(|error| panic!("{error} after {:?}", self.text()));
        match message {
            Message::Binary(bytes) => self.drawn.extend_from_slice(&bytes),
            Message::Text(text) => return Some(serde_json::from_str(&text).unwrap()),
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            Message::Close(close) => panic!("{close:?} after {}", self.text()),
        }
        None
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.drawn).into_owned()
    }

    fn until(&mut self, text: &str) {
        let since = Instant::now();
        while !self.text().contains(text) {
            assert!(since.elapsed() < HANG, "no {text:?} in {:?}", self.text());
            if let Some(message) = self.next() {
                panic!("{message} before {text:?} in {:?}", self.text());
            }
        }
    }

    fn last(&mut self) -> Value {
        let since = Instant::now();
        loop {
            assert!(since.elapsed() < HANG, "no end after {:?}", self.text());
            if let Some(message) = self.next() {
                return message;
            }
        }
    }
}

#[test]
fn a_real_terminal() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({"env": {"COLOUR": "grün"}}));
    let mut terminal = Terminal::shell(&daemon, &sandbox);
    // What is typed is echoed, so what is looked for is not what was typed.
    terminal.enter("stty size; echo $((6 * 7)) $TERM $COLOUR\r");
    terminal.until("33 101");
    terminal.until("42 xterm-256color grün");
    terminal.say(&json!({"type": "resize", "rows": 50, "cols": 120}));
    terminal.enter("stty size\r");
    terminal.until("50 120");
    // Erasing takes away one character of two bytes, as the line discipline counts them.
    // Not before the shell has let go of the keyboard.
    terminal.enter("echo re''ady; cat\r");
    terminal.until("ready\r\n");
    terminal.enter("aü\u{7f}b\r");
    terminal.until("ab\r\n");
    terminal.enter("\u{4}");
    terminal.until("$ ");
    // What answers is in the foreground already: between its own commands a shell can miss the key.
    terminal.enter("sh -c 'echo a\"\"wake; exec sleep 1000'\r");
    terminal.until("awake");
    terminal.enter("\u{3}");
    terminal.until("$ ");
    terminal.enter("echo status $?\r");
    terminal.until("status 130");
    terminal.enter("exit 7\r");
    let last = terminal.last();
    assert_eq!(
        (&last["type"], &last["exit_code"], &last["signal"]),
        (&json!("exit"), &json!(7), &Value::Null),
        "{last}"
    );
    assert!(matches!(terminal.socket.read(), Ok(Message::Close(_))));
    let record = daemon.get(&format!("/v1/runs/{}", last["run"].as_str().unwrap()));
    let record = record.ok();
    assert_eq!(
        (&record["language"], &record["result"]["exit_code"]),
        (&json!("terminal"), &json!(7))
    );
}

#[test]
fn it_ends_with_whoever_sits_there_and_with_its_sandbox() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let running = |word: &str| {
        let line = format!("grep -l {word} /proc/[0-9]*/cmdline | wc -l");
        let found = daemon.post(&format!("{sandbox}/commands"), &json!({"shell": line}));
        // The search itself, in two processes.
        found.ok()["stdout"].as_str().unwrap().trim() != "2"
    };
    // It hears of the end, and does not want to leave.
    let stubborn = "?argv=[%22sh%22,%22-c%22,%22trap%20''%20HUP;echo%20here;while%20:;do%20sleep%201111;done%22]";
    let mut terminal = open(&daemon, TOKEN, &sandbox, stubborn).unwrap();
    terminal.until("here");
    assert!(running("1111"));
    drop(terminal);
    until("a terminal that nobody sits at", || !running("1111"));
    let mut terminal = Terminal::shell(&daemon, &sandbox);
    assert_eq!(daemon.delete(&sandbox).status, 204);
    assert_eq!(terminal.last()["error"]["code"], "conflict");
}

#[test]
fn it_ends_with_a_sandbox_that_is_made_anew() {
    let daemon = Daemon::start();
    // Without an interpreter that would take everything along.
    let sandbox = daemon.sandbox(&json!({"language": "perl"}));
    let mut terminal = Terminal::shell(&daemon, &sandbox);
    let mark = format!("876543{}", std::process::id());
    terminal.enter(&format!(
        "setsid sleep {mark} & sleep 0.2; echo $((6 * 7))\r"
    ));
    terminal.until("42");
    let alive = || {
        let mut all = fs::read_dir("/proc").unwrap().flatten();
        all.any(|process| {
            let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(&mark)
        })
    };
    assert!(alive());
    daemon.post(&format!("{sandbox}/reset"), &json!({})).ok();
    until("the end of what was in it", || !alive());
    let last = terminal.last();
    assert_eq!(
        (last["type"].as_str(), last["status"].as_str()),
        (Some("exit"), Some("killed")),
        "{last}"
    );
}

#[test]
fn what_nobody_sits_at_any_more_counts_no_more() {
    let key = "key-of-a-tenant-0123456789";
    let digest = belljar_server::Digest::of(key);
    let daemon = Daemon::with(&format!(
        "[tenants.one]\nkeys = ['{digest}']\nruns_at_once = 1\n"
    ));
    let made = daemon.ask_as(key, "POST", "/v1/sandboxes", b"{}").ok();
    let id = made["id"].as_str().unwrap();
    let sandbox = format!("/v1/sandboxes/{id}");
    let list = format!("/v1/runs?sandbox={id}");
    let stubborn = "?shell=trap%20''%20HUP;echo%20'$%20';while%20:;do%20sleep%201;done";
    let ways = [
        ("", false),
        ("", true),
        (stubborn, false),
        (stubborn, true),
        ("?shell=echo%20'$%20';cat", false),
    ];
    for (before, (query, clean)) in ways.into_iter().enumerate() {
        let mut terminal = open(&daemon, key, &sandbox, query).unwrap();
        terminal.until("$ ");
        assert_eq!(daemon.metric("belljar_terminals"), 1);
        if clean {
            terminal.socket.close(None).unwrap();
            terminal.socket.flush().unwrap();
        }
        drop(terminal);
        until("it is in the history", || {
            daemon.get(&list).ok()["runs"].as_array().unwrap().len() > before
        });
        assert_eq!(
            daemon.get(&list).ok()["runs"][0]["language"],
            "terminal",
            "{query}"
        );
        until("its sandbox has nothing to do", || {
            daemon.get(&sandbox).ok()["busy"] == false
        });
        assert_eq!(daemon.metric("belljar_terminals"), 0);
    }
    // The one run that may go at a time.
    let run = daemon.ask_as(key, "POST", "/v1/runs", br#"{"code": "1"}"#);
    run.ok();
}

#[test]
fn neither_it_nor_an_endless_run_keeps_the_daemon_from_stopping() {
    let mut daemon = Daemon::with("[http]\nshutdown_timeout = '1s'\n");
    let sandbox = daemon.sandbox(&json!({}));
    let mut terminal = Terminal::shell(&daemon, &sandbox);
    terminal.enter("trap '' HUP INT TERM; echo dea''f; while :; do sleep 1; done\r");
    terminal.until("deaf");
    let endless = json!({"code": "open('begun', 'w')\nwhile True: pass"});
    let path = format!("{sandbox}/runs");
    let since = std::thread::scope(|scope| {
        let running = scope.spawn(|| daemon.post(&path, &endless));
        let begun = format!("{sandbox}/files/begun");
        until("it has begun", || daemon.get(&begun).status == 200);
        let since = Instant::now();
        signal(daemon.pid(), "TERM");
        let last = terminal.last();
        assert_eq!(last["error"]["message"], "conflict: the daemon stops");
        drop(terminal);
        let ended = running.join().unwrap();
        assert_eq!(ended.status, 409, "{}", ended.text());
        since
    });
    assert!(daemon.stop_waiting().success());
    // A second for the run, two for last words; and a busy machine.
    assert!(since.elapsed() < HANG);
}

#[test]
fn what_cannot_be_a_terminal_is_refused() {
    let key = "key-of-another-0123456789";
    let digest = belljar_server::Digest::of(key);
    let daemon = Daemon::with(&format!("[tenants.other]\nkeys = ['{digest}']\n"));
    let sandbox = daemon.sandbox(&json!({}));
    for (query, status) in [
        ("?rows=0", 400),
        ("?cols=70000", 400),
        ("?argv=ls", 400),
        ("?argv=[]", 400),
        ("?shell=a&argv=[%22b%22]", 400),
        ("?cwd=x", 400),
        ("?colour=red", 400),
    ] {
        let refused = open(&daemon, TOKEN, &sandbox, query).map(drop);
        assert_eq!(refused, Err(status), "{query}");
    }
    assert_eq!(open(&daemon, key, &sandbox, "").map(drop), Err(404));
    assert_eq!(open(&daemon, "wrong", &sandbox, "").map(drop), Err(401));
    let mut missing = open(&daemon, TOKEN, &sandbox, "?argv=[%22no-such-thing%22]").unwrap();
    let last = missing.last();
    assert_eq!(last["error"]["code"], "invalid_file", "{last}");
    // Nobody can be made to type what they have not typed.
    let inject = "import fcntl,sys\ntry: fcntl.ioctl(0, 0x5412, b'x')\nexcept OSError as e: print('refused', e.errno)";
    let argv = json!(["/usr/bin/python3", "-c", inject]).to_string();
    let argv = argv.bytes().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "%{byte:02x}");
        text
    });
    let mut terminal = open(&daemon, TOKEN, &sandbox, &format!("?argv={argv}")).unwrap();
    terminal.until("refused 1");
    assert_eq!(terminal.last()["exit_code"], 0);
}

#[test]
fn whoever_does_not_read_holds_up_nobody() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let mut terminal = Terminal::shell(&daemon, &sandbox);
    terminal.enter("yes\r");
    // Nothing is read from here on, and more is typed than anybody takes.
    terminal
        .socket
        .get_ref()
        .set_write_timeout(Some(std::time::Duration::from_millis(200)))
        .unwrap();
    for _ in 0..200 {
        if terminal
            .socket
            .send(Message::binary(vec![b'x'; 30_000]))
            .is_err()
        {
            break;
        }
    }
    let other = daemon.post(&format!("{sandbox}/runs"), &json!({"code": "6 * 7"}));
    assert_eq!(other.ok()["value"], 42);
    let memory = format!("/proc/{}/statm", daemon.pid());
    let pages: u64 = std::fs::read_to_string(memory)
        .unwrap()
        .split(' ')
        .nth(1)
        .unwrap()
        .parse()
        .unwrap();
    assert!(pages < 60_000, "{pages} pages");
    drop(terminal);
    assert_eq!(daemon.delete(&sandbox).status, 204);
}

#[test]
fn the_command_line_sits_at_it_too() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&json!({}));
    let id = sandbox.rsplit('/').next().unwrap();
    let exec = |command: &[&str], typed: &str| {
        let mut child = super::harness::belljar()
            .args(["exec", "-t", id])
            .args(command)
            .env("BELLJAR_STATE_DIR", daemon.state.path())
            .env("BELLJAR_URL", format!("http://{}", daemon.address))
            .env("BELLJAR_TOKEN", TOKEN)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(typed.as_bytes()).unwrap();
        drop(stdin);
        let done = child.wait_with_output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (done.status.code(), text(&done.stdout), text(&done.stderr))
    };
    let (code, drawn, _) = exec(&[], "echo $((6 * 7)); exit 3\n");
    assert!(
        code == Some(3) && drawn.contains("42\r\n"),
        "{code:?} {drawn}"
    );
    let (code, drawn, _) = exec(&["--", "sh", "-c", "test -t 0 && kill -9 $$"], "");
    assert_eq!((code, drawn.as_str()), (Some(137), ""));
    let (code, _, error) = exec(&["--", "no-such-thing"], "");
    assert!(
        code == Some(125) && error.contains("no-such-thing"),
        "{error}"
    );
}
