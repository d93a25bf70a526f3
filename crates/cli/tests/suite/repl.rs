//! `belljar repl`, at a terminal and without one.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use belljar_jail::terminal::{Window, pair};
use tempfile::TempDir;

use super::daemon::Daemon;
use super::harness::{Ended, belljar, binary};

/// Generous: a loaded machine starts interpreters slowly.
const PATIENCE: Duration = Duration::from_mins(1);

fn piped(args: &[&str], input: &str) -> Ended {
    piped_in(args, input, None)
}

/// With the state directory of a daemon.
fn piped_in(args: &[&str], input: &str, state: Option<&Path>) -> Ended {
    let home = tempfile::tempdir().unwrap();
    let mut child = belljar()
        .arg("repl")
        .args(args)
        .env("HOME", home.path())
        .env("BELLJAR_STATE_DIR", state.unwrap_or(home.path()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stdin.take().unwrap();
    // It may refuse before it has read anything.
    let _ = pipe.write_all(input.as_bytes());
    drop(pipe);
    child.wait_with_output().unwrap().into()
}

#[test]
fn lines_from_a_pipe() {
    let input = "x = 41\ndef f():\n    return x + 1\n\nf()\n1/0\nf()\n";
    let ended = piped(&[], input);
    assert_eq!(
        (ended.code, ended.stdout.as_str()),
        (0, "42\n42\n"),
        "{ended:?}"
    );
    assert!(ended.stderr.contains("ZeroDivisionError"), "{ended:?}");
    let input = "x=5\nf() {\n  echo $x\n}\nf\ncd /tmp\npwd\n(exit 3)\necho $?\n";
    let ended = piped(&["-l", "bash"], input);
    assert_eq!(ended.parts(), (0, "5\n/tmp\n3\n", ""));
    let input = "const x = 41\nconst x = 42\nx\nawait Promise.resolve([x])\n";
    let ended = piped(&["-l", "js"], input);
    assert_eq!(ended.parts(), (0, "42\n[ 42 ]\n", ""));
    let ended = piped(
        &["--no-files", "--imports", "safe"],
        "import os\nimport math; math.pi > 3\nopen('/etc/passwd')\n",
    );
    assert_eq!(ended.stdout, "True\n");
    assert!(
        ended.stderr.contains("Import 'os' not allowed"),
        "{ended:?}"
    );
    assert!(ended.stderr.contains("PermissionError"), "{ended:?}");
    // What is unfinished at the end is run, or told to be unfinished.
    assert_eq!(
        piped(&[], "for i in (1, 2):\n    print(i)\n").parts(),
        (0, "1\n2\n", "")
    );
    assert_eq!(
        piped(&[], "def f():\n    return 3\nf()").parts(),
        (0, "3\n", "")
    );
    let shell = "if true; then\n  echo yes\nfi";
    assert_eq!(piped(&["-l", "bash"], shell).parts(), (0, "yes\n", ""));
    for (language, input, error) in [
        ("python", "print('a'", "was never closed"),
        ("js", "function f() {\n", "Unexpected end of input"),
        ("bash", "if true; then\n", "unexpected end of file"),
    ] {
        let ended = piped(&["-l", language], input);
        assert!(ended.stderr.contains(error), "{ended:?}");
    }
    // Text that is shown is text; only what a terminal cannot show is saved.
    let ended = piped(&[], "display({1})\ndisplay('a\\nb')\n");
    assert_eq!(ended.parts(), (0, "{1}\n'a\\nb'\n", ""));
    let ended = piped(&["--max-output", "1kb"], "print('x' * 5000)\n");
    let cut = "belljar: stdout was cut off after 1000 bytes (see --max-output)\n";
    assert_eq!(ended.parts(), (0, &*"x".repeat(1000), cut));
    // What leaves, leaves.
    assert_eq!(piped(&[], "exit()\nprint(1)\n").parts(), (0, "", ""));
}

/// A language whose code is compiled says why it cannot be, and how it ended.
#[test]
fn what_a_compiler_says() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&serde_json::json!({"language": "c"}));
    let id = sandbox.rsplit('/').next().unwrap();
    let state = Some(daemon.state.path());
    for (args, state) in [(&["-l", "c"][..], None), (&["--sandbox", id], state)] {
        let ended = piped_in(args, "int main(void) { return nonsense; }\n", state);
        assert!(
            ended.code == 0 && ended.stderr.contains("undeclared"),
            "{args:?} {ended:?}"
        );
        let ended = piped_in(args, "int main(void) { __builtin_trap(); }\n", state);
        assert!(ended.stderr.contains("belljar: signal 4"), "{ended:?}");
    }
}

/// Somebody at a terminal.
struct Seat {
    child: Child,
    screen: Receiver<Vec<u8>>,
    keys: File,
    seen: String,
    home: TempDir,
    /// Without it the terminal would end with the first who closes it.
    _program: OwnedFd,
}

impl Seat {
    fn take(args: &[&str]) -> Self {
        Self::in_state(args, None)
    }

    fn in_state(args: &[&str], state: Option<&Path>) -> Self {
        let home = tempfile::tempdir().unwrap();
        let window = Window {
            rows: 40,
            cols: 200,
        };
        let (keys, program) = pair(window).unwrap();
        let keys = File::from(keys);
        let name = fs::read_link(format!("/proc/self/fd/{}", program.as_raw_fd())).unwrap();
        // The leader of a session gets the first terminal it opens as its own.
        let script = "exec setsid sh -c 'exec \"$@\" <\"$0\" >\"$0\" 2>&1' \"$@\"";
        let child = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(name)
            .arg(binary())
            .arg("repl")
            .args(args)
            .env("HOME", home.path())
            .env("BELLJAR_STATE_DIR", state.unwrap_or(home.path()))
            .env("TERM", "xterm")
            .env_remove("NO_COLOR")
            .spawn()
            .unwrap();
        let mut screen = keys.try_clone().unwrap();
        let (drawn, seen) = mpsc::channel();
        std::thread::spawn(move || {
            loop {
                let mut bytes = vec![0; 4096];
                match screen.read(&mut bytes) {
                    Ok(n) if n > 0 => bytes.truncate(n),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        std::thread::sleep(Duration::from_millis(5));
                        continue;
                    }
                    _ => return,
                }
                if drawn.send(bytes).is_err() {
                    return;
                }
            }
        });
        Self {
            child,
            screen: seen,
            keys,
            seen: String::new(),
            home,
            _program: program,
        }
    }

    fn press(&mut self, keys: &str) -> &mut Self {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self
    }

    /// A line, what has to come of it, and the next prompt.
    fn line(&mut self, text: &str, expected: &str) {
        self.press(text).press("\r").until("\n");
        self.until(expected);
        self.until("python> ");
    }

    /// Waits until this is on the screen, and forgets what came before.
    fn until(&mut self, text: &str) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.seen.find(text) {
                let rest = self.seen.split_off(at + text.len());
                return std::mem::replace(&mut self.seen, rest);
            }
            match self.screen.recv_timeout(Duration::from_secs(1)) {
                Ok(bytes) => self.seen += &String::from_utf8_lossy(&bytes),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    panic!(
                        "the screen went dark; waited for {text:?} in {:?}",
                        self.seen
                    )
                }
            }
            assert!(
                Instant::now() < until,
                "waited for {text:?} in {:?}",
                self.seen
            );
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn somebody_at_a_terminal() {
    let out = tempfile::tempdir().unwrap();
    let shown = out.path().join("shown");
    let mut seat = Seat::take(&["--output-dir", shown.to_str().unwrap()]);
    seat.until("under glass");
    let prompt = seat.until("python> ");
    assert!(prompt.contains("\x1b[1;36m"), "no colour: {prompt:?}");
    assert!(!prompt.contains("variables do not"), "{prompt:?}");
    seat.line("x = 6 * 7", "");
    // A block ends with an empty line.
    seat.press("def f():\r").press("    return x\r");
    seat.until("return x");
    seat.line("", "");
    seat.line("f() + 100", "142");
    // Ctrl-C ends the run, and nothing else.
    seat.press("print('be' + 'gun'); import time; time.sleep(1000)\r");
    seat.until("begun");
    seat.press("\x03").until("belljar: interrupted");
    seat.until("python> ");
    seat.line("x + 1", "43");
    // What is typed while code runs is for the code that wants it.
    seat.press("'got ' + input('na' + 'me? ')\r")
        .until("name? ");
    seat.line("ada", "'got ada'");
    // A line that was given up.
    seat.press("garbage").until("garbage");
    seat.press("\x03").until("python> ");
    // The latest line again.
    seat.line("x + 2", "44");
    seat.line("\x1b[A", "44");
    seat.press("class C:\r    def _repr_html_(self): return '<b>x</b>'\r");
    seat.until("</b>");
    seat.line("", "");
    seat.line("C()", "display-1.html]");
    assert_eq!(
        fs::read_to_string(shown.join("display-1.html")).unwrap(),
        "<b>x</b>"
    );
    seat.line(":reset", "");
    seat.line("x", "NameError");
    seat.press("\x04");
    assert!(seat.child.wait().unwrap().success());
    let history = seat.home.path().join("python-history");
    let history = fs::read_to_string(history).unwrap();
    assert!(
        history.contains("x = 6 * 7") && history.contains("return x"),
        "{history}"
    );
}

#[test]
fn who_has_no_variables_is_told() {
    let mut seat = Seat::take(&["-l", "ruby"]);
    seat.until("files stay, variables do not");
    seat.until("ruby> ");
    seat.press("\x04");
    assert!(seat.child.wait().unwrap().success());
}

#[test]
fn a_sandbox_of_the_daemon() {
    let daemon = Daemon::start();
    let sandbox = daemon.sandbox(&serde_json::json!({"files": {"in.txt": "hello"}}));
    let runs = format!("{sandbox}/runs");
    let run = |code: &str| {
        daemon
            .post(&runs, &serde_json::json!({ "code": code }))
            .ok()
    };
    run("x = 41");
    let id = sandbox.rsplit('/').next().unwrap();
    let state = daemon.state.path();
    // What others left is there, and what is left here is there for others.
    let ended = piped_in(
        &["--sandbox", id],
        "open('in.txt').read()\ndisplay({7})\nx += 1\nx\n1/0\n:files\nprint('end')\n",
        Some(state),
    );
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stdout.starts_with("'hello'\n{7}\n42\n"), "{ended:?}");
    assert!(
        ended.stdout.contains("in.txt") && ended.stdout.ends_with("end\n"),
        "{ended:?}"
    );
    assert!(ended.stderr.contains("ZeroDivisionError"), "{ended:?}");
    assert_eq!(run("x")["value"], 42);
    let mut seat = Seat::in_state(&["--sandbox", id], Some(state));
    seat.until("under glass");
    seat.until("python> ");
    seat.line("x", "42");
    seat.press("print('be' + 'gun'); import time; time.sleep(1000)\r");
    seat.until("begun");
    seat.press("\x03").until("belljar: interrupted");
    seat.until("python> ");
    seat.line("x + 1", "43");
    seat.press("'got ' + input('na' + 'me? ')\r")
        .until("name? ");
    seat.line("ada", "'got ada'");
    seat.line("x + 2", "44");
    seat.line(":reset", "");
    seat.line("x", "NameError");
    seat.press("\x04");
    assert!(seat.child.wait().unwrap().success());
    // It is the daemon's, and stays.
    assert_eq!(daemon.delete(&sandbox).status, 204);
    let ended = piped_in(&["--sandbox", id], "1\n", Some(state));
    assert!(
        ended.code == 125 && ended.stderr.contains("not found"),
        "{ended:?}"
    );
    let ended = piped_in(&["--sandbox", id, "--memory", "1g"], "1\n", Some(state));
    assert!(
        ended.code == 125 && ended.stderr.contains("together with --memory"),
        "{ended:?}"
    );
}

#[test]
fn a_network_as_for_run() {
    let code = "import os, socket\n'HTTP_PROXY' in os.environ or 'http_proxy' in os.environ\n";
    let with = piped(&["--network", "example.org"], code);
    let without = piped(&[], code);
    assert_eq!(
        (with.stdout.trim(), without.stdout.trim()),
        ("True", "False"),
        "{with:?}"
    );
    let ended = piped(&["--network", "https://x"], "1\n");
    assert_eq!(ended.code, 125, "{ended:?}");
}
