//! The docker backend, through the binary. `scripts/test-docker` starts the engine that these need and makes the image.

use std::process::Command;

use serde_json::{Value, json};

use super::backend::image;
use super::daemon::Daemon;
use super::harness::{Ended, belljar};

mod bridge;
mod life;
mod network;
mod supply;
mod volumes;

fn run(args: &[&str]) -> Ended {
    let image = image();
    belljar()
        .args([
            "run",
            "--backend",
            "docker",
            "--pull",
            "never",
            "--image",
            &image,
        ])
        .args(args)
        .output()
        .unwrap()
        .into()
}

fn result(args: &[&str]) -> Value {
    let ended = run(&[&["--json"], args].concat());
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
}

/// What the engine's own client says.
fn docker(args: &[&str]) -> String {
    let output = Command::new("/usr/bin/docker").args(args).output();
    let output =
        output.unwrap_or_else(|error| panic!("docker ({error}): apt-get install docker.io"));
    assert!(output.status.success(), "docker {args:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// The running containers of a process of ours, by id.
fn containers(process: u32) -> Vec<String> {
    let format = "{{.ID}} {{.Label \"belljar.process\"}}";
    let listed = docker(&["ps", "--no-trunc", "--format", format]);
    let process = format!("/{process}/");
    let ours = listed.lines().filter(|line| line.contains(&process));
    ours.filter_map(|line| Some(line.split_once(' ')?.0.to_owned()))
        .collect()
}

fn settings(more: &str) -> String {
    let image = image();
    format!("{more}\n[docker]\nimage = \"{image}\"\npull = \"never\"\n")
}

#[test]
fn a_run_in_a_container() {
    let ended = run(&[
        "-c",
        "import os, sys; print(os.getuid(), os.getcwd(), os.environ['FROM_IMAGE'], sys.argv[1:]); print('e', file=sys.stderr); sys.exit(3)",
        "--",
        "a b",
    ]);
    assert_eq!(ended.parts(), (3, "1000 /workspace yes ['a b']\n", "e\n"));
    let result = result(&[
        "--env",
        "K=v",
        "-c",
        "import os; open('out/x' if os.path.isdir('out') else 'x', 'w').write(os.environ['K']); print(1)",
    ]);
    assert_eq!(
        (&result["status"], &result["backend"], &result["files"]),
        (
            &json!("ok"),
            &json!("docker"),
            &json!([{"path": "x", "bytes": 1}])
        )
    );
    let report = &result["report"];
    assert_eq!(report["backend"], "docker");
    assert!(
        report["engine"].as_str().unwrap().starts_with("docker "),
        "{report}"
    );
    assert_eq!(
        (
            &report["capabilities"],
            &report["no_new_privs"],
            &report["network"],
            &report["read_only_root"]
        ),
        (&json!("none"), &json!(true), &json!("none"), &json!(true))
    );
    assert!(report["landlock"].as_u64() >= Some(2), "{report}");
    // The engine's profile, and the very filter of a native sandbox.
    assert_eq!(report["seccomp"], json!({"mode": "filter", "filters": 2}));
    for namespace in ["mnt", "pid", "net", "ipc", "uts", "cgroup"] {
        let all = report["namespaces"].as_array().unwrap();
        assert!(all.contains(&json!(namespace)), "{report}");
    }
    let controllers = &report["cgroup"]["controllers"];
    let has = |limit: &str| {
        controllers
            .as_object()
            .unwrap()
            .values()
            .any(|value| value == limit)
    };
    assert!(has("536870912") && has("129"), "{controllers}");
}

#[test]
fn what_is_asked_for_is_there_and_nothing_else() {
    let code = r#"
import ctypes, fcntl, os, socket
def tries(what, work):
    try:
        work()
        print(what, "worked")
    except OSError as error:
        print(what, error.errno)
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *args):
    if libc.syscall(number, *args) < 0:
        raise OSError(ctypes.get_errno(), "")
tries("root", lambda: open("/x", "w"))
tries("agent", lambda: open("/belljar/agent", "w"))
tries("userns", lambda: call(272, 0x10000000))
tries("mount", lambda: call(165, 0, 0, 0, 0, 0))
tries("bpf", lambda: call(321, 0, 0, 0))
# The number with something above its low half: the kernel does not look there, and so must no filter.
tries("tiocsti", lambda: call(16, 0, 0x5412 | (1 << 32), 0))
tries("inet", lambda: socket.socket(socket.AF_INET))
tries("init", lambda: os.kill(1, 9))
tries("fds", lambda: os.listdir("/proc/1/fd"))
tries("memory", lambda: open("/proc/1/mem", "rb"))
tries("terminals", lambda: open("/dev/ptmx"))
tries("own files", lambda: open("/proc/self/oom_score_adj", "w"))
print(os.listdir("/sys"), [name for name in ("keys", "kcore", "modules", "cmdline") if os.path.exists("/proc/" + name) and open("/proc/" + name).read(1)])
print([line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line], os.getpid() != 1)
print([name for name in ("/var/run/docker.sock", "/run/docker.sock") if os.path.exists(name)])
"#;
    let ended = run(&["-c", code]);
    let expected = "root 30\nagent 30\nuserns 1\nmount 1\nbpf 1\ntiocsti 1\ninet 1\ninit worked\nfds 13\nmemory 13\nterminals 13\nown files 13\n[] []\n['lo'] True\n[]\n";
    // `mount` and `bpf` may be absent rather than refused.
    let told = ended
        .stdout
        .replace("mount 38", "mount 1")
        .replace("bpf 38", "bpf 1");
    assert_eq!((ended.code, &*told), (0, expected), "{ended:?}");
}

#[test]
fn how_it_ended_is_told_truthfully() {
    let memory = result(&[
        "--memory",
        "64m",
        "-c",
        "x = bytearray(300_000_000); print('no')",
    ]);
    assert_eq!(memory["status"], "out_of_memory", "{memory}");
    let time = result(&["--timeout", "500ms", "-c", "while True: pass"]);
    assert_eq!(time["status"], "timed_out", "{time}");
    assert!(
        time["usage"]["wall_ms"].as_f64().unwrap() >= 500.0,
        "{time}"
    );
    assert!(time["usage"]["cpu_ms"].as_f64().unwrap() > 10.0, "{time}");
    // Death by one's own hand is neither.
    let own = result(&["-c", "import os; os.kill(os.getpid(), 9)"]);
    assert_eq!(
        (&own["status"], &own["signal"]),
        (&json!("failed"), &json!(9)),
        "{own}"
    );
    let bomb = result(&[
        "--processes",
        "20",
        "--timeout",
        "3s",
        "-c",
        "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass",
    ]);
    assert_eq!(bomb["status"], "timed_out", "{bomb}");
    assert!(
        bomb["usage"]["processes_peak"].as_u64().unwrap() <= 21,
        "{bomb}"
    );
    let disk = result(&[
        "--disk",
        "8m",
        "-c",
        "open('big', 'wb').write(b'x' * 20_000_000)",
    ]);
    assert!(
        disk["stderr"].as_str().unwrap().contains("No space left"),
        "{disk}"
    );
}

#[test]
fn code_without_files_or_processes() {
    let code = r#"
import os, subprocess
def error_of(action):
    try: return repr(action())[:60]
    except BaseException as error: return type(error).__name__
[error_of(lambda: open(place)) for place in ("/etc/passwd", "/workspace/x", "/proc/self/status", "/usr/bin/env")] + \
[error_of(lambda: open(place, "w")) for place in ("/workspace/x", "/tmp/x", "/dev/shm/x", "x")] + \
[error_of(lambda: os.listdir("/")), error_of(os.fork), error_of(lambda: subprocess.run(["/bin/true"])), error_of(lambda: __import__("decimal").Decimal(1))]
"#;
    let closed = result(&["--no-files", "-c", code]);
    let mut expected = vec!["PermissionError"; 11];
    expected.push("Decimal('1')");
    let got = closed["value"].as_array().expect("a list");
    let same = |(got, expected): (&Value, &&str)| {
        got == expected || (got == "FileNotFoundError" && *expected == "PermissionError")
    };
    assert!(
        got.len() == expected.len() && got.iter().zip(&expected).all(same),
        "{closed:#}"
    );
    assert_eq!(closed["report"]["filesystem"], "none");
    let daemon = Daemon::with(&settings(""));
    let sandbox = daemon.sandbox(&json!({"backend": "docker", "filesystem": "none"}));
    let runs = format!("{sandbox}/runs");
    let body = json!({"code": "open('/etc/passwd')"});
    let error = daemon.post(&runs, &body).ok()["error"].clone();
    assert_eq!(
        error["message"],
        "[Errno 13] Permission denied: '/etc/passwd'"
    );
    let command = daemon.post(&format!("{sandbox}/commands"), &json!({"shell": "id"}));
    assert_eq!(command.status, 422, "{}", command.text());
}

/// As if the engine were on another machine: its processes cannot be seen, so it is asked for everything.
#[test]
fn facts_come_from_the_engine_where_the_kernel_cannot_be_asked() {
    let image = image();
    let apart = |args: &[&str]| -> Value {
        let output = Command::new("unshare")
            .args(["--pid", "--fork", "--mount-proc", "--kill-child"])
            .arg(super::harness::binary())
            .args(["run", "--json", "--backend", "docker", "--image", &image])
            .args(args)
            .output()
            .unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    };
    let memory = apart(&["--memory", "64m", "-c", "x = bytearray(300_000_000)"]);
    assert_eq!(memory["status"], "out_of_memory", "{memory}");
    assert_eq!(memory["report"]["cgroup"], Value::Null);
    assert_eq!(memory["report"]["capabilities"], "none");
    let own = apart(&["-c", "import os; os.kill(os.getpid(), 9)"]);
    assert_eq!(own["status"], "failed", "{own}");
    let busy = apart(&["--timeout", "1s", "-c", "while True: pass"]);
    assert_eq!(busy["status"], "timed_out", "{busy}");
    assert!(busy["usage"]["cpu_ms"].as_f64().unwrap() > 10.0, "{busy}");
}

#[test]
fn streams_of_any_size_pass() {
    let ended = run(&[
        "--max-output",
        "4m",
        "-c",
        "import sys; sys.stdout.write('x' * 3_000_000); sys.stderr.write('y' * 1_000_000)",
    ]);
    assert_eq!(
        (ended.code, ended.stdout.len(), ended.stderr.len()),
        (0, 3_000_000, 1_000_000)
    );
    let cut = result(&[
        "--max-output",
        "1k",
        "-c",
        "print('x' * 5_000_000); open('after', 'w')",
    ]);
    assert_eq!(
        (
            cut["stdout"].as_str().unwrap().len(),
            &cut["stdout_truncated"],
            &cut["status"]
        ),
        (1000, &json!(true), &json!("ok"))
    );
    assert_eq!(cut["files"][0]["path"], "after");
}

#[test]
fn a_compiler_would_have_its_own_limits_and_a_missing_language_is_told() {
    let ended = run(&["-l", "ruby", "-c", "puts 1"]);
    assert_eq!(ended.code, 125);
    assert!(
        ended.stderr.contains("ruby is missing") && ended.stderr.contains("image"),
        "{ended:?}"
    );
    let shell = run(&["-l", "bash", "-c", "echo $((6*7)); exit 4"]);
    assert_eq!(shell.parts(), (4, "42\n", ""));
}

#[test]
fn the_caller_is_told_what_to_do() {
    let image = image();
    let without = |args: &[&str], host: Option<&str>| -> Ended {
        let mut command = belljar();
        command
            .args(["run", "--backend", "docker", "-c", "1"])
            .args(args);
        if let Some(host) = host {
            command.env("DOCKER_HOST", host);
        }
        command.output().unwrap().into()
    };
    let none = without(&["--image", &image], Some("unix:///nowhere/docker.sock"));
    assert_eq!((none.code, &*none.stdout), (125, ""));
    assert!(
        none.stderr.contains("systemctl start docker") && none.stderr.contains("DOCKER_HOST"),
        "{none:?}"
    );
    // A port that nobody listens at says so itself.
    let closed = without(&["--image", &image], Some("tcp://127.0.0.1:1"));
    assert!(
        closed.code == 125 && closed.stderr.contains("(Connection refused"),
        "{closed:?}"
    );
    let absent = without(&["--image", "nobody/has:this", "--pull", "never"], None);
    assert!(
        absent.code == 125 && absent.stderr.contains("docker pull"),
        "{absent:?}"
    );
    let unnamed = without(&[], None);
    assert!(
        unnamed.code == 125 && unnamed.stderr.contains("--image"),
        "{unnamed:?}"
    );
    let strange = without(
        &["--image", &image, "--container-runtime", "nonesuch"],
        None,
    );
    assert!(
        strange.code == 125 && strange.stderr.contains("nonesuch"),
        "{strange:?}"
    );
    let doctor: Ended = belljar().arg("doctor").output().unwrap().into();
    assert!(
        doctor.stdout.contains("docker engine") && doctor.stdout.contains("runc"),
        "{doctor:?}"
    );
}
