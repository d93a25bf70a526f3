//! Nothing survives: not a normal end, not a signal, not the sudden death of any one process.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::harness::{Ended, belljar, binary, code_of, directory, marker, run};
use super::host::{
    Lease, children, eventually, groups_named, keeper_of, kill, lease_of, nothing_left,
    processes_with,
};

/// Programs that are hard to get rid of. Each is ready when it has printed a line.
fn stubborn(marker: &str) -> Vec<(&'static str, String)> {
    vec![
        (
            "sleeper",
            format!(
                "import os, time; print('ready', flush=True); os.execvp('sleep', ['sleep-{marker}', '600'])"
            ),
        ),
        (
            "daemon",
            format!(
                "import os, time, signal\nfor s in range(1, 65):\n  try: signal.signal(s, signal.SIG_IGN)\n  except (OSError, ValueError): pass\n\
                 if os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n    os.execvp('sleep', ['sleep-{marker}', '600'])\n  os._exit(0)\n\
                 print('ready', flush=True)\ntime.sleep(600)"
            ),
        ),
        (
            "fork bomb",
            format!(
                "import os\nprint('ready', flush=True)\nm = '{marker}'\nwhile True:\n  try: os.fork()\n  except OSError: pass"
            ),
        ),
    ]
}

fn start(marker: &str, code: &str) -> Child {
    start_for("5m", marker, code)
}

fn start_for(time: &str, marker: &str, code: &str) -> Child {
    let args = ["--timeout", time, "-c", code, "--", marker];
    ready(&args, Stdio::null())
}

/// A run that has printed its line.
fn ready(args: &[&str], stdin: Stdio) -> Child {
    let mut child = belljar()
        .arg("run")
        .args(args)
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "ready\n");
    child
}

#[test]
fn a_normal_end_leaves_nothing() {
    for code in [
        "pass",
        "raise SystemExit(1)",
        "import os; os.kill(os.getpid(), 9)",
        "x = bytearray(200 << 20)",
        "while True: pass",
    ] {
        let word = marker();
        let code = format!("print('ready', flush=True); input()\n{code}");
        let limits = ["--timeout", "5s", "--memory", "64m"];
        let args = [&limits[..], &["-c", &code, "--", &word]].concat();
        let mut child = ready(&args, Stdio::piped());
        let lease = seen(&child);
        go_on(&mut child);
        nothing_left(&lease, &word);
    }
}

/// Gives a run the line that it waits for, and sees it to its end.
fn go_on(child: &mut Child) {
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    child.wait().unwrap();
}

/// The lease of a run whose groups are there, as they must not be later.
fn seen(child: &Child) -> Lease {
    let (_, lease) = keeper_of(child.id());
    eventually("its groups are there", || {
        !groups_named(&lease.token).is_empty()
    });
    lease
}

#[test]
fn a_compile_leaves_nothing() {
    let told = "#include <stdio.h>\nint main(void) { puts(\"ready\"); fflush(stdout);";
    for rest in ["getchar(); return 0; }", "for (;;); }"] {
        let word = marker();
        let code = format!("{told} {rest}");
        let args = ["-l", "c", "--timeout", "5s", "-c", &code, "--", &word];
        let mut child = ready(&args, Stdio::piped());
        let lease = seen(&child);
        go_on(&mut child);
        nothing_left(&lease, &word);
    }
    // It takes the compiler a moment to find out what this is.
    let word = marker();
    let code = "#define A(x) x x x x x x x x x x\n#define B(x) A(A(A(A(A(A(x))))))\n\
                int f(void) { return B(1 +) 1; }\nthis is not C";
    let mut child = belljar()
        .args(["run", "-l", "c", "-c", code, "--", &word])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lease = seen(&child);
    // In an emulated machine the compiler's time may be up before that.
    let ended = code_of(child.wait().unwrap());
    assert!([1, 124].contains(&ended), "{ended}");
    nothing_left(&lease, &word);
}

#[test]
fn daemons_of_the_program_end_with_it() {
    let word = marker();
    let code = format!(
        "import os\nif os.fork() == 0:\n  os.setsid()\n  for fd in (0, 1, 2): os.close(fd)\n  os.execvp('sleep', ['sleep-{word}', '600'])\n"
    );
    let ended = run(&["-c", &code]);
    assert_eq!(ended.code, 0, "{ended:?}");
    let name = format!("sleep-{word}");
    let mut living = processes_with(&name);
    // The command has the name in its own arguments, and what takes it apart ends a moment later.
    living.retain(|(_, line)| line.starts_with(&name));
    assert_eq!(living, []);
}

/// Some parents ignore the end of their children, and that is inherited.
#[test]
fn whose_parent_ignores_children_can_still_wait_for_its_own() {
    let cache = directory(&[]);
    let output = Command::new("/usr/bin/env")
        .arg("--ignore-signal=CHLD")
        .arg(binary())
        .args([
            "run",
            "-c",
            "import subprocess; print(subprocess.call('exit 3', shell=True))",
        ])
        // Nothing is known of the interpreter yet: it is asked, and that is waited for.
        .env("XDG_CACHE_HOME", cache.path())
        .env("HOME", cache.path())
        .stdin(Stdio::null())
        .output();
    let ended = Ended::from(output.unwrap());
    assert_eq!(ended.parts(), (0, "3\n", ""));
}

#[test]
fn signals_to_the_command_end_the_run() {
    for (signal, expected) in [("INT", -2), ("TERM", -15), ("HUP", -1)] {
        for (name, code) in stubborn(&marker()) {
            let word = marker();
            let mut child = start(&word, &code);
            let (_, lease) = keeper_of(child.id());
            kill(child.id(), signal);
            assert_eq!(
                code_of(child.wait().unwrap()),
                expected,
                "{signal} during {name}"
            );
            nothing_left(&lease, &word);
        }
    }
}

#[test]
fn a_killed_command_leaves_nothing() {
    for (_, code) in stubborn(&marker()) {
        let word = marker();
        let mut child = start(&word, &code);
        let (_, lease) = keeper_of(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        nothing_left(&lease, &word);
    }
}

/// It shares the memory of a run, so that a run need not take that apart while somebody waits.
#[cfg(target_arch = "x86_64")]
#[test]
fn the_companion_of_a_run_holds_nothing_and_ends_with_it() {
    for signal in ["KILL", "TERM"] {
        let word = marker();
        let code = "import time; print('ready', flush=True); time.sleep(600)";
        let mut child = start(&word, code);
        let (keeper, lease) = keeper_of(child.id());
        let mut others = children(child.id());
        others.retain(|pid| *pid != keeper);
        let [companion] = others[..] else {
            panic!("besides the keeper there is one, not {others:?}")
        };
        let held = fs::read_dir(format!("/proc/{companion}/fd")).unwrap();
        assert_eq!(
            held.count(),
            0,
            "whoever reads our output would wait for it"
        );
        let memory = |pid| fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
        assert_eq!(memory(companion), memory(child.id()));
        kill(child.id(), signal);
        child.wait().unwrap();
        nothing_left(&lease, &word);
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_run_does_without_its_companion() {
    let word = marker();
    let code = "print('ready', flush=True); input()";
    let mut child = ready(&["-c", code, "--", &word], Stdio::piped());
    let (keeper, lease) = keeper_of(child.id());
    for other in children(child.id()) {
        if other != keeper {
            kill(other, "KILL");
        }
    }
    go_on(&mut child);
    assert_eq!(code_of(child.wait().unwrap()), 0);
    nothing_left(&lease, &word);
}

/// The next start removes what a killed keeper could not.
fn swept(lease: &Lease, word: &str) {
    assert_eq!(run(&["-c", "pass"]).code, 0);
    nothing_left(lease, word);
}

#[test]
fn a_killed_keeper_leaves_no_process_and_the_next_start_sweeps() {
    for (name, code) in stubborn(&marker()) {
        let word = marker();
        let child = start(&word, &code);
        let (keeper, lease) = keeper_of(child.id());
        kill(keeper, "KILL");
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            code_of(output.status),
            125,
            "{name}: a lost keeper is our error"
        );
        eventually("the program ends with its keeper", || {
            processes_with(&word).is_empty()
        });
        swept(&lease, &word);
    }
}

#[test]
fn a_stopped_command_does_not_stop_the_deadline() {
    let word = marker();
    let code = "import time; print('ready', flush=True); time.sleep(600)";
    let mut child = start_for("10s", &word, code);
    let (_, lease) = keeper_of(child.id());
    kill(child.id(), "STOP");
    // The keeper holds the deadline by itself: the program ends though nobody listens.
    eventually("the program is killed", || {
        groups_named(&lease.token).iter().all(|group| {
            std::fs::read_to_string(group.join("cgroup.procs")).is_ok_and(|procs| procs.is_empty())
        })
    });
    kill(child.id(), "CONT");
    assert_eq!(code_of(child.wait().unwrap()), 124);
    nothing_left(&lease, &word);
}

/// Kills the command, or its keeper, a random while after the start; whatever it was doing then, nothing stays.
fn killed_at_random(of_keeper: bool) {
    let mut seen = Vec::new();
    for round in 0..25_u64 {
        let word = marker();
        let code = "import subprocess; subprocess.Popen(['sleep', '600']); input()";
        let mut child = belljar()
            .args(["run", "-c", code, "--", &word])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Spread over the first 120 ms without being the same each time the test is run.
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        let wait =
            Duration::from_micros((u64::from(now.subsec_nanos()) / 7 + round * 5311) % 120_000);
        let end = std::time::Instant::now() + wait;
        let mut keeper = None;
        while std::time::Instant::now() < end {
            // Before there is one, its companion.
            keeper = children(child.id()).last().copied().or(keeper);
            std::thread::sleep(Duration::from_micros(300));
        }
        let lease = keeper.and_then(lease_of);
        match keeper {
            Some(keeper) if of_keeper => kill(keeper, "KILL"),
            _ => drop(child.kill()),
        }
        drop(child.stdin.take());
        child.wait().unwrap();
        eventually("its processes end", || processes_with(&word).is_empty());
        seen.extend(lease);
    }
    assert_eq!(run(&["-c", "pass"]).code, 0);
    assert!(!seen.is_empty(), "no round lasted until there was a keeper");
    for lease in seen {
        nothing_left(&lease, "no process has this in its arguments");
    }
}

#[test]
fn a_command_killed_at_any_moment_leaves_nothing() {
    killed_at_random(false);
}

#[test]
fn a_keeper_killed_at_any_moment_leaves_nothing() {
    killed_at_random(true);
}

#[test]
fn the_keeper_hears_no_signal_of_the_terminal() {
    let word = marker();
    let mut child = start(&word, &stubborn(&word)[0].1);
    let (keeper, lease) = keeper_of(child.id());
    let session = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit(") ")
            .next()
            .unwrap()
            .split(' ')
            .nth(3)
            .unwrap()
            .to_owned()
    };
    assert_ne!(session(keeper), session(child.id()));
    kill(child.id(), "TERM");
    child.wait().unwrap();
    nothing_left(&lease, &word);
}
