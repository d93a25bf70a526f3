"""Live sessions: how soon a fresh sandbox answers, how many per second, what an idle one holds, what neighbours feel.

The measuring itself is done by the engine's example `sessions`, in one interleaved run with bare interpreters; here its figures
become a table, JSON, and a list of goals.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from measure import percentile
from report import Target, host

HERE = Path(__file__).resolve().parent
POOLED, POOLED_WORST, ON_DEMAND, LIVE = 0.04, 0.5, 0.20, 0.02
THROUGHPUT, IDLE_KB, LAST_TO_FIRST, FRAME_MS, NEIGHBOUR = 3.0, 1536, 2.0, 20.0, 1.5


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", required=True, metavar="PROGRAM", help="the engine's example, built with optimisation")
    parser.add_argument("--rounds", type=int, default=100, help="default: %(default)s")
    parser.add_argument("--seconds", type=int, default=4, help="of throughput, for each side (default: %(default)s)")
    parser.add_argument("--crowd", type=int, default=2000, help="sessions alive at once (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="where to write the figures (default: bench/results/TIME-sessions.json)")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    argv = [args.sessions, str(args.rounds), str(args.seconds), str(args.crowd)]
    show = None if sys.stderr.isatty() else subprocess.PIPE
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=show, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{args.sessions} ended with {done.returncode}: {(done.stderr or '').strip()[-400:]}")
    raw = json.loads(done.stdout)
    figures, goals = judge(raw)
    print(table(figures, goals))
    path = Path(args.json) if args.json else HERE / "results" / f"{time.strftime('%Y%m%d-%H%M%S')}-sessions.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"host": host(), "figures": figures, "goals": [asdict(goal) for goal in goals]}, indent=1) + "\n")
    print(f"\nAll figures: {os.path.relpath(path)}")
    return 1 if args.check and not all(goal.ok for goal in goals) else 0


def judge(raw: dict) -> tuple[dict, list[Target]]:
    base = statistics.median(raw["bare"])
    figures: dict = {"bare_ms": base, "latency": {}, "neighbour": {}}
    for name in ("pooled", "on_demand", "live", "live_after_a_pause"):
        ordered = sorted(raw[name])
        p50, p99 = percentile(ordered, 50), percentile(ordered, 99)
        figures["latency"][name] = {"best_ms": ordered[0], "p50_ms": p50, "p99_ms": p99, "p50": p50 / base, "p99": p99 / base}
    per_second = {name: statistics.mean(raw[f"{name}_per_second"]) for name in ("bare", "fresh")}
    figures["per_second"] = per_second | {"ratio": per_second["fresh"] / per_second["bare"]}
    figures["first_data_frame_ms"] = percentile(sorted(raw["first_data_frame"]), 50)
    alone = percentile(sorted(raw["neighbour"]["alone"]), 99)
    for name, times in raw["neighbour"].items():
        p99 = percentile(sorted(times), 99)
        figures["neighbour"][name] = {"p99_ms": p99, "ratio": p99 / alone}
    for name in ("first_crowd", "crowd"):
        made = raw[name]["made"]
        part = max(1, len(made) // 20)
        first, last = statistics.median(made[:part]), statistics.median(made[-part:])
        figures[name] = {"count": len(made), "first_ms": first, "last_ms": last, "ratio": last / first, "idle_pss_kb": raw[name]["pss_kb"]}
    latency = figures["latency"]
    at_most = lambda what, limit, found, unit="×": Target(what, f"≤ {limit} {unit}", f"{found:.3g} {unit}", found <= limit)  # noqa: E731
    goals = [
        at_most("fresh sandbox from the ready pool, p50", POOLED, latency["pooled"]["p50"]),
        at_most("fresh sandbox from the ready pool, p99", POOLED_WORST, latency["pooled"]["p99"]),
        at_most("fresh sandbox on demand, p50", ON_DEMAND, latency["on_demand"]["p50"]),
        at_most("run in a live session, p50", LIVE, latency["live"]["p50"]),
        Target(
            "fresh sandboxes per second with 8 clients",
            f"≥ {THROUGHPUT:.0f} × bare",
            f"{figures['per_second']['ratio']:.2f} ×",
            figures["per_second"]["ratio"] >= THROUGHPUT,
        ),
        at_most("idle session", IDLE_KB, raw["crowd"]["pss_kb"], "kB"),
        at_most(f"the last of {len(made)} sessions to the first", LAST_TO_FIRST, figures["crowd"]["ratio"]),
        at_most("first data frame with pandas preloaded", FRAME_MS, figures["first_data_frame_ms"], "ms"),
    ]
    beside = [name for name in figures["neighbour"] if name != "alone"]
    goals += [at_most(f"p99 beside a {name.replace('_', ' ')}", NEIGHBOUR, figures["neighbour"][name]["ratio"]) for name in beside]
    return figures, goals


def table(figures: dict, goals: list[Target]) -> str:
    out = [f"bare interpreter: p50 {figures['bare_ms']:.2f} ms", "", f"{'request to result':<28}{'best':>9}{'p50':>9}{'p99':>9}{'p50 ×':>9}{'p99 ×':>9}"]
    for name, one in figures["latency"].items():
        shown = f"{one['best_ms']:>9.2f}{one['p50_ms']:>9.2f}{one['p99_ms']:>9.2f}{one['p50']:>9.3f}{one['p99']:>9.2f}"
        out.append(f"{name.replace('_', ' '):<28}{shown}")
    rate = figures["per_second"]
    out += ["", f"per second, 8 clients: {rate['fresh']:.0f} fresh sandboxes, {rate['bare']:.0f} bare interpreters"]
    for name, memory in ("first_crowd", "memory that this machine may never have touched"), ("crowd", "the same memory again"):
        crowd = figures[name]
        made = f"the first made in {crowd['first_ms']:.2f} ms, the last in {crowd['last_ms']:.2f}; {crowd['idle_pss_kb']} kB each"
        out.append(f"{crowd['count']} live sessions in {memory}: {made}")
    for name, one in figures["neighbour"].items():
        out.append(f"p99 of a run, {name.replace('_', ' ')}: {one['p99_ms']:.2f} ms ({one['ratio']:.2f} ×)")
    out += ["", "Goals:"]
    out += [f"  {'ok  ' if goal.ok else 'MISS'}  {goal.what}: {goal.found} (goal {goal.limit})" for goal in goals]
    return "\n".join(out)


if __name__ == "__main__":
    sys.exit(main())
