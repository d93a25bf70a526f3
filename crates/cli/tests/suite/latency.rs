//! From the deadline to an empty sandbox. Machines differ, so the figures are printed and only a hang fails.

use super::harness::json;

const PROGRAMS: [(&str, &str); 5] = [
    ("busy loop", "while True: pass"),
    (
        "fork bomb",
        "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass",
    ),
    (
        "deaf daemons",
        "import os, signal, time\nfor s in range(1, 65):\n  try: signal.signal(s, signal.SIG_IGN)\n  except (OSError, ValueError): pass\nfor _ in range(100):\n  if os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\ntime.sleep(600)",
    ),
    (
        "threads",
        "import threading, time\nfor _ in range(100): threading.Thread(target=time.sleep, args=(600,)).start()",
    ),
    ("much memory", "x = bytearray(300 << 20)\nwhile True: pass"),
];
const ROUNDS: usize = 8;
const GUARD_MS: f64 = 20_000.0;

#[test]
fn from_deadline_to_empty_sandbox() {
    let mut all = Vec::new();
    for (name, code) in PROGRAMS {
        let mut late: Vec<f64> = (0..ROUNDS)
            .map(|_| {
                let result = json(&["--timeout", "400ms", "-c", code]);
                assert_eq!(result.status(), "timed_out", "{name}: {:#}", result.value);
                result.number("usage.wall_ms") - 400.0
            })
            .collect();
        late.sort_by(f64::total_cmp);
        println!(
            "{name:14} median {:7.2} ms, worst {:7.2} ms",
            late[ROUNDS / 2],
            late[ROUNDS - 1]
        );
        all.extend(late);
    }
    all.sort_by(f64::total_cmp);
    let at = |share: f64| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a small index"
        )]
        let index = ((all.len() as f64 * share).ceil() as usize).clamp(1, all.len()) - 1;
        all[index]
    };
    println!(
        "all            median {:7.2} ms, p99   {:7.2} ms of {} runs",
        at(0.5),
        at(0.99),
        all.len()
    );
    assert!(at(1.0) < GUARD_MS, "{all:?}");
    assert!(all[0] >= 0.0, "killed before the deadline: {all:?}");
}
