#!/usr/bin/env python3
"""How long `belljar run` takes, beside the bare toolchains and other sandboxes, all in one interleaved run.

Everything is timed from spawn to wait, in rounds: in each round every candidate runs once, and each round begins with
another one, so that what else the machine does falls on all of them alike. Trust the ratios of one run, and compare
milliseconds of two machines, or two days, not at all. CPU time, which counts everything a run left to its children, hardly
depends on what else the machine does. What docker uses in its engine is not in it.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

import languages
import peers
import report
from languages import BASE, PROGRAMS, PYTHON, Absent, Pair
from measure import (
    Candidate,
    Failed,
    Progress,
    adopt_orphans,
    captured,
    pair_strides,
    percentile,
    rounds,
    throughput,
    warm_up,
)

HERE = Path(__file__).resolve().parent
KILL_TIMEOUT_MS = 200
# Both only ever run inside a sandbox.
STUBBORN = {
    "a busy loop": "while True: pass",
    "40 children that ignore signals": (
        "import os, signal, time\n"
        "for number in range(1, 65):\n"
        "    if number not in (signal.SIGKILL, signal.SIGSTOP, 32, 33): signal.signal(number, signal.SIG_IGN)\n"
        "for _ in range(40):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        while True: time.sleep(1)\n"
        "while True: time.sleep(1)\n"
    ),
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--belljar", default=str(HERE.parent / "target/release/belljar"), help="the program (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=40, help="default: %(default)s")
    parser.add_argument("--only", default=",".join(PROGRAMS), metavar="LANGUAGES", help="a list with commas (default: all)")
    parser.add_argument("--no-peers", action="store_true", help="leave bwrap, crun, runc and docker out")
    parser.add_argument("--image", help="for docker, with nothing pulled; default: one made of the host's /usr")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the figures (default: bench/results/TIME.json)")
    parser.add_argument("--readme", action="store_true", help="put the figures into README.md")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    args = parser.parse_args()
    args.belljar = str(Path(args.belljar).resolve())
    args.only = [name.strip() for name in args.only.split(",") if name.strip()]
    for name in args.only:
        if name not in PROGRAMS:
            parser.error(f"--only: {name!r} is no language; give some of {', '.join(PROGRAMS)}")
    if args.rounds < 1:
        parser.error(f"--rounds: {args.rounds} is too few; give 1 or more")
    for needed, how in ((args.belljar, "cargo build --release"), (PYTHON, "apt-get install python3")):
        if not Path(needed).is_file():
            parser.error(f"{needed} is not there: {how}")
    return args


def start_times(belljar: str, count: int, progress: Progress) -> dict:
    times = sorted(result_of(belljar, "pass", [], progress, "start times")[0]["usage"]["start_ms"] for _ in range(count))
    return {"n": count, "p50_ms": percentile(times, 50), "p99_ms": percentile(times, 99)}


def kill_times(belljar: str, count: int, progress: Progress) -> dict:
    """From the deadline until `belljar` has returned and left nothing behind."""
    found = {}
    for what, code in STUBBORN.items():
        times = []
        for _ in range(count):
            result, taken = result_of(belljar, code, ["--timeout", f"{KILL_TIMEOUT_MS}ms"], progress, f"killing {what}")
            if result["status"] != "timed_out":
                raise Failed(f"killing {what}: the status is {result['status']}: {result['stderr'][-200:]}")
            usage = result["usage"]
            # `start_ms` is when the engine heard of the start, which may be late; the keeper's own count never is.
            times.append(max(taken - usage["start_ms"], usage["wall_ms"]) - KILL_TIMEOUT_MS)
        times.sort()
        found[what] = {"n": count, "p50_ms": percentile(times, 50), "p99_ms": percentile(times, 99)}
    return found


def result_of(belljar: str, code: str, options: list[str], progress: Progress, what: str) -> tuple[dict, float]:
    progress.step(what)
    status, text, taken = captured([belljar, "run", "--json", *options, "-c", code])
    try:
        return json.loads(text), taken
    except ValueError:
        raise Failed(f"{what}: belljar run ended with {status}: {text.strip()[:300]}") from None


def throughputs(belljar: str, seconds: float, progress: Progress) -> list[dict]:
    """In short turns, first one then the other, so that both see the same machine."""
    commands = {"belljar": [belljar, "run", "-c", "pass"], "bare": [PYTHON, "-c", "pass"]}
    found = []
    for clients in (1, 2, 8):
        rates: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(3):
            for name, argv in commands.items():
                progress.step(f"{clients} at a time: {name}")
                rates[name].append(throughput(argv, clients, seconds))
        found.append({"clients": clients} | {name: sorted(each)[1] for name, each in rates.items()})
    return found


def measure(args: argparse.Namespace, work: Path) -> tuple[list[Pair], list[Candidate], list[Absent], dict]:
    pairs, absent = languages.pairs(args.belljar, work, args.only)
    others: list[Candidate] = []
    if not args.no_peers:
        others, missing = peers.peers(work, args.image)
        absent += missing
    candidates = [BASE, *others, *(c for pair in pairs for c in (pair.belljar, pair.bare) if c is not BASE)]
    kills, starts = max(5, args.rounds // 2), max(10, args.rounds * 2)
    progress = Progress(len(candidates) * (args.rounds + 1) + starts + kills * len(STUBBORN) + 18)
    at = report.host()
    try:
        warm_up(candidates, progress)
        pair_strides((pair.belljar, pair.bare) for pair in pairs if pair.bare is not BASE)
        rounds(candidates, args.rounds, progress)
        more = {
            "host": at,
            "rounds": args.rounds,
            "start": start_times(args.belljar, starts, progress),
            "kill": kill_times(args.belljar, kills, progress),
            "throughput": throughputs(args.belljar, min(1.5, args.rounds / 20), progress),
        }
    finally:
        progress.clear()
    return pairs, others, absent, more


def into_readme(figures: str) -> None:
    readme = HERE.parent / "README.md"
    before, rest = readme.read_text().split("<!-- figures -->\n", 1)
    after = rest.split("<!-- end of figures -->", 1)[1]
    readme.write_text(f"{before}<!-- figures -->\n{figures}\n<!-- end of figures -->{after}")


def main() -> int:
    args = arguments()
    adopt_orphans()
    # In memory where there is room for it: a sandbox's files are there too.
    memory = Path("/dev/shm")
    place = str(memory) if memory.is_dir() and shutil.disk_usage(memory).free > 1 << 30 else None
    try:
        with tempfile.TemporaryDirectory(prefix="belljar-bench-", dir=place) as work:
            # Containers enter it as another user.
            Path(work).chmod(0o755)
            pairs, others, absent, more = measure(args, Path(work))
    except Failed as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    finally:
        if not args.no_peers:
            peers.clean_up()
    met = report.targets(pairs, others, more["kill"])
    print(report.table(pairs, others, absent, more, met))
    target = args.json or HERE / "results" / time.strftime("%Y%m%d-%H%M%S.json")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(report.as_json(pairs, others, absent, more, met), indent=1, ensure_ascii=False) + "\n")
    print(f"\nAll figures: {target}")
    if args.readme:
        into_readme(report.markdown(pairs, others, more, met))
    return int(args.check and not all(target.ok for target in met))


if __name__ == "__main__":
    sys.exit(main())
