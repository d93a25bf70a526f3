//! Each limit holds, is told apart from the others, and what was used is counted from outside.

use std::process::Command;

use super::harness::{Ended, binary, json, python, run};

const MIB: f64 = 1024.0 * 1024.0;

#[test]
fn wall_clock_ends_programs_that_compute_sleep_or_ignore_signals() {
    for code in [
        "while True: pass",
        "import time; time.sleep(600)",
        "import signal\nfor s in range(1, 65):\n  try: signal.signal(s, signal.SIG_IGN)\n  except (OSError, ValueError): pass\nwhile True: signal.pause()",
        "import threading\nfor _ in range(8): threading.Thread(target=lambda: exec('while True: pass')).start()",
        "import os\nos.setsid() if os.fork() == 0 else None\nwhile True: pass",
    ] {
        let result = json(&["--timeout", "400ms", "-c", code]);
        assert_eq!(
            (result.status(), result.code),
            ("timed_out", 124),
            "{code}: {:#}",
            result.value
        );
        assert!(result.number("usage.wall_ms") >= 400.0, "{code}");
        assert_eq!(result.get("limits.timeout_ms"), 400);
    }
}

#[test]
fn a_program_in_time_is_not_timed_out() {
    let result = json(&["--timeout", "20s", "-c", "import time; time.sleep(0.3)"]);
    assert_eq!((result.status(), result.code), ("ok", 0));
    let wall = result.number("usage.wall_ms");
    assert!((300.0..20_000.0).contains(&wall), "{wall}");
}

#[test]
fn memory_is_what_the_kernel_says() {
    let result = json(&["--memory", "64m", "-c", "x = bytearray(256 << 20)"]);
    assert_eq!(
        (result.status(), result.code),
        ("out_of_memory", 137),
        "{:#}",
        result.value
    );
    let result = json(&["--memory", "256m", "-c", "x = bytearray(128 << 20)"]);
    assert_eq!(result.status(), "ok", "{:#}", result.value);
}

#[test]
fn memory_of_a_child_that_died_counts() {
    let code = "
import os
pid = os.fork()
if pid == 0:
    x = bytearray(256 << 20)
    os._exit(0)
os.waitpid(pid, 0)
print('parent goes on')
";
    let result = json(&["--memory", "64m", "-c", code]);
    assert_eq!(
        (result.status(), result.code),
        ("out_of_memory", 137),
        "{:#}",
        result.value
    );
}

#[test]
fn memory_of_all_processes_is_one_sum() {
    let code = "
import os, time
for _ in range(4):
    if os.fork() == 0:
        x = bytearray(30 << 20)
        time.sleep(600)
time.sleep(600)
";
    let result = json(&["--memory", "80m", "--timeout", "20s", "-c", code]);
    assert_ne!(result.status(), "ok", "{:#}", result.value);
    assert_eq!(result.code, 137, "{:#}", result.value);
}

#[test]
fn an_allocation_failure_that_is_caught_is_no_out_of_memory() {
    let code = "
import resource
resource.setrlimit(resource.RLIMIT_AS, (200 << 20, 200 << 20))
try: x = bytearray(1 << 30)
except MemoryError: print('caught')
";
    let result = json(&["-c", code]);
    assert_eq!(
        (result.status(), result.stdout(), result.code),
        ("ok", "caught", 0)
    );
    let result = json(&["-c", "x = bytearray(1 << 62)"]);
    assert_eq!(
        (result.status(), result.code),
        ("failed", 1),
        "an uncaught one is a failure: {:#}",
        result.value
    );
}

#[test]
fn a_signal_of_its_own_is_no_out_of_memory() {
    let result = json(&["-c", "import os; os.kill(os.getpid(), 9)"]);
    assert_eq!(
        (result.status(), result.code),
        ("failed", 137),
        "{:#}",
        result.value
    );
    assert_eq!(result.get("signal"), 9);
}

#[test]
fn a_host_without_memory_ends_sandboxes_first() {
    let code = "f = '/proc/self/oom_score_adj'\nprint(open(f).read().strip())\ntry: open(f, 'w').write('0'); print(open(f).read())\nexcept OSError: print('kept')";
    assert_eq!(python(code), "500\nkept");
}

#[test]
fn files_in_memory_count_as_memory() {
    for place in ["/tmp/x", "/workspace/x", "/dev/shm/x"] {
        let code = format!(
            "f = open('{place}', 'wb')\nfor _ in range(100): f.write(bytes(1 << 20)); f.flush()"
        );
        let result = json(&["--memory", "48m", "--disk", "200m", "-c", &code]);
        assert_eq!(
            (result.status(), result.code),
            ("out_of_memory", 137),
            "{place}: {:#}",
            result.value
        );
    }
}

#[test]
fn there_is_no_swap_to_hide_in() {
    let code = "
import mmap
m = mmap.mmap(-1, 400 << 20)
for i in range(0, len(m), 4096): m[i] = 1
";
    assert_eq!(
        json(&["--memory", "64m", "-c", code]).status(),
        "out_of_memory"
    );
}

const FORK_UNTIL_REFUSED: &str = "
import os, time
made = 0
try:
    while made < 1000:
        if os.fork() == 0:
            time.sleep(600)
        made += 1
except BlockingIOError: pass
print(made)
";

#[test]
fn processes() {
    let result = json(&["--processes", "20", "-c", FORK_UNTIL_REFUSED]);
    assert_eq!(
        (result.status(), result.stdout()),
        ("ok", "19"),
        "{:#}",
        result.value
    );
    assert_eq!(result.get("usage.processes_peak"), 20);
    let result = json(&["--processes", "1", "-c", FORK_UNTIL_REFUSED]);
    assert_eq!(result.stdout(), "0", "{:#}", result.value);
}

#[test]
fn threads_count_as_processes() {
    let code = "
import threading, time
made = 0
try:
    while made < 1000:
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        made += 1
except RuntimeError: pass
print(made, flush=True)
import os; os._exit(0)
";
    let result = json(&["--processes", "12", "-c", code]);
    assert_eq!(result.stdout(), "11", "{:#}", result.value);
}

#[test]
fn a_fork_bomb_ends_in_time() {
    let code = "
import os
while True:
    try: os.fork()
    except OSError: pass
";
    let result = json(&["--timeout", "1s", "-c", code]);
    assert_eq!(
        (result.status(), result.code),
        ("timed_out", 124),
        "{:#}",
        result.value
    );
    assert!(result.number("usage.processes_peak") <= 128.0);
}

#[test]
fn disk() {
    let code = "
import errno
for place in ('/workspace', '/tmp', '/dev/shm'):
    try:
        with open(place + '/big', 'wb') as f:
            for _ in range(64): f.write(bytes(1 << 20)); f.flush()
        print('wrote it all')
    except OSError as e: print(errno.errorcode[e.errno], end=' ')
";
    let result = json(&["--disk", "16m", "-c", code]);
    assert_eq!(
        result.stdout(),
        "ENOSPC ENOSPC ENOSPC",
        "the three places share one limit: {:#}",
        result.value
    );
}

#[test]
fn disk_that_is_allowed_can_be_used() {
    let result = json(&[
        "--disk",
        "64m",
        "-c",
        "open('x', 'wb').write(bytes(48 << 20))",
    ]);
    assert_eq!(result.status(), "ok", "{:#}", result.value);
}

#[test]
fn inodes() {
    let code = "
import errno, os
try:
    for i in range(2_000_000): os.close(os.open(f'f{i}', os.O_CREAT | os.O_WRONLY))
except OSError as e: print(errno.errorcode[e.errno], i < 100_000)
";
    let result = json(&["--disk", "16m", "-c", code]);
    assert_eq!(result.stdout(), "ENOSPC True", "{:#}", result.value);
}

#[test]
fn open_files() {
    let code = "
import errno, os, resource
n = 0
try:
    while True: os.open('/dev/null', os.O_RDONLY); n += 1
except OSError as e: print(errno.errorcode[e.errno], n + 3)
try: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4096)); print('raised')
except (ValueError, OSError): print('stays')
";
    let result = json(&["--open-files", "64", "-c", code]);
    // The directory listing of the interpreter may hold one more.
    let text = result.stdout().to_owned();
    assert!(
        text == "EMFILE 64\nstays" || text == "EMFILE 63\nstays",
        "{:#}",
        result.value
    );
}

/// Nobody but a privileged process can have more than it was born with.
#[test]
fn inherited_limits_are_no_obstacle() {
    let inherited = "ulimit -n 300 && ulimit -i 100 && ulimit -f 4096 && exec \"$0\" run \"$@\"";
    let run = |args: &[&str]| -> Ended {
        let mut command = shell_around_belljar(inherited);
        command.args(args).output().unwrap().into()
    };
    // In blocks of 1 KiB.
    // What is counted per user, as signals are, a privileged keeper raises for itself.
    let code = "ulimit -n; ulimit -f";
    let ended = run(&["-l", "bash", "-c", code]);
    assert_eq!(ended.parts(), (0, "300\n4096\n", ""));
    let lower = run(&["-l", "bash", "--open-files", "64", "-c", "ulimit -n"]);
    assert_eq!(lower.parts(), (0, "64\n", ""));
    let refused = run(&["--open-files", "301", "-c", "pass"]);
    assert_eq!((refused.code, &*refused.stdout), (125, ""));
    let words = "open_files (--open-files): \"301\" is not accepted";
    assert!(refused.stderr.contains(words), "{}", refused.stderr);
    assert!(
        refused
            .stderr
            .ends_with("from 16 to 300, which is what this host has\n"),
        "{}",
        refused.stderr
    );
}

/// A shell that executes Belljar (`$0`) with what it is given.
fn shell_around_belljar(script: &str) -> Command {
    let mut command = Command::new("/bin/bash");
    command.args(["-c", script]).arg(binary());
    command
}

#[test]
fn cpus_are_shared_out() {
    let code = "
import time
end = time.monotonic() + 1.5
while time.monotonic() < end: pass
";
    let result = json(&["--cpus", "0.25", "-c", code]);
    let (cpu, wall) = (
        result.number("usage.cpu_ms"),
        result.number("usage.wall_ms"),
    );
    assert!(cpu / wall < 0.45, "{cpu} ms of CPU in {wall} ms");
}

#[test]
fn cpu_time_is_counted_also_of_children() {
    let code = "
import os, time
if os.fork() == 0:
    while time.process_time() < 0.3: pass
    os._exit(0)
while time.process_time() < 0.3: pass
os.wait()
";
    let cpu = json(&["--timeout", "60s", "-c", code]).number("usage.cpu_ms");
    assert!((600.0..3000.0).contains(&cpu), "{cpu}");
    let idle = json(&["-c", "import time; time.sleep(2)"]);
    let (cpu, wall) = (idle.number("usage.cpu_ms"), idle.number("usage.wall_ms"));
    assert!(cpu < wall / 2.0, "{cpu} ms of CPU in {wall} ms of sleep");
}

#[test]
fn memory_peak_is_at_least_what_was_used() {
    let result = json(&["--memory", "512m", "-c", "x = bytearray(100 << 20); del x"]);
    let peak = result.number("usage.memory_peak_bytes");
    assert!((100.0 * MIB..512.0 * MIB).contains(&peak), "{peak}");
    let small = json(&["-c", "pass"]).number("usage.memory_peak_bytes");
    assert!((1.0 * MIB..60.0 * MIB).contains(&small), "{small}");
}

#[test]
fn processes_peak_counts_what_was_there_at_one_time() {
    let code = "
import subprocess
for _ in range(5): subprocess.run(['true'])
ps = [subprocess.Popen(['cat'], stdin=subprocess.PIPE) for _ in range(3)]
for p in ps: p.communicate()
";
    let peak = json(&["-c", code]).number("usage.processes_peak");
    assert!((4.0..=5.0).contains(&peak), "{peak}");
}

#[test]
fn what_the_code_says_about_itself_counts_for_nothing() {
    let code = "
import json, os
os.write(1, json.dumps({'status': 'ok', 'exit_code': 0, 'usage': {'cpu_ms': 0}}).encode())
os.write(2, b'belljar: all is well')
raise SystemExit(9)
";
    let result = json(&["-c", code]);
    assert_eq!((result.status(), result.code), ("failed", 9));
}

#[test]
fn the_compiler_does_not_count_into_the_run() {
    let code = "#include <stdio.h>\n#include <regex.h>\nint main(void) { puts(\"hi\"); return 0; }";
    let result = json(&["-l", "c", "-c", code]);
    assert_eq!(
        (result.status(), result.stdout()),
        ("ok", "hi"),
        "{:#}",
        result.value
    );
    // The compiler is several processes in turn and needs far more memory than what it makes.
    let of = |path: &str| result.number(path);
    assert!(of("compile.usage.cpu_ms") > 0.0, "{:#}", result.value);
    assert!(
        of("compile.usage.memory_peak_bytes") > 2.0 * of("usage.memory_peak_bytes"),
        "{:#}",
        result.value
    );
    assert!(
        of("compile.usage.processes_peak") > 1.0,
        "{:#}",
        result.value
    );
    assert_eq!(result.get("usage.processes_peak"), 1);
}

#[test]
fn the_run_has_its_own_limits_not_the_compilers() {
    let code = "#include <stdlib.h>\n#include <string.h>\nint main(void) { volatile char *p = malloc(200 << 20); for (int i = 0; i < 200 << 20; i += 4096) p[i] = 1; return 0; }";
    let result = json(&["-l", "c", "--memory", "32m", "-c", code]);
    assert_eq!(
        (result.status(), result.code),
        ("out_of_memory", 137),
        "{:#}",
        result.value
    );
    assert_eq!(result.text("compile.status"), "ok");
    let result = json(&[
        "-l",
        "c",
        "--timeout",
        "300ms",
        "-c",
        "int main(void) { for (;;); }",
    ]);
    assert_eq!(
        (result.status(), result.code),
        ("timed_out", 124),
        "{:#}",
        result.value
    );
}

#[test]
fn limits_in_the_result_are_those_that_held() {
    let result = json(&[
        "--timeout",
        "5s",
        "--memory",
        "100m",
        "--cpus",
        "0.5",
        "--processes",
        "7",
        "--max-output",
        "5k",
        "--disk",
        "10m",
        "--open-files",
        "99",
        "-c",
        "pass",
    ]);
    let expected = serde_json::json!({
        "timeout_ms": 5000, "memory_bytes": 100 << 20, "cpus": 0.5, "processes": 7, "output_bytes": 5000,
        "disk_bytes": 10 << 20, "open_files": 99,
    });
    assert_eq!(result.get("limits"), &expected);
}

#[test]
fn the_smallest_limits_still_run_something() {
    let ended = run(&[
        "-l",
        "bash",
        "--processes",
        "1",
        "--open-files",
        "16",
        "--disk",
        "64k",
        "--memory",
        "16m",
        "-c",
        "echo tiny",
    ]);
    assert_eq!(ended.parts(), (0, "tiny\n", ""));
}

#[test]
fn no_core_no_priority_no_locked_memory() {
    let code = "
import os, resource
print(resource.getrlimit(resource.RLIMIT_CORE), resource.getrlimit(resource.RLIMIT_MEMLOCK)[1] <= 65536)
for f in (lambda: os.nice(-5), lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))):
    try: f(); print('allowed')
    except OSError: print('refused')
";
    assert_eq!(python(code), "(0, 0) True\nrefused\nrefused");
}
