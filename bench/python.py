#!/usr/bin/env python3
"""How long calls of the Python package take, beside `/usr/bin/python3 -c pass`, all in one interleaved run.

In each round every candidate runs once, so that what else the machine does falls on all of them alike: trust the ratios.
The daemon is one of its own, started by the package. Needs httpx and websockets (make bench has them).
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent / "sdk/python/src"
BASE = ["/usr/bin/python3", "-c", "pass"]
FIRST = "import time; import belljar; t = time.perf_counter(); belljar.run('print(1)', check=True); print(time.perf_counter() - t)"
IMPORT = "import time; t = time.perf_counter(); import belljar; print(time.perf_counter() - t)"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--belljar", default=str(HERE.parent / "target/release/belljar"), help="the program (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=200, help="default: %(default)s")
    parser.add_argument("--sessions", type=int, default=200, help="at the same time, each with 20 runs (default: %(default)s; 0: none)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the figures")
    return parser.parse_args()


def clock(function: Callable[[], object]) -> float:
    begun = time.perf_counter()
    function()
    return (time.perf_counter() - begun) * 1000


def median(times: list[float], percent: int = 50) -> float:
    return sorted(times)[min(len(times) - 1, len(times) * percent // 100)]


def told(code: str, **environment: str) -> float:
    """What another process says it took, in milliseconds."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), **environment}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout) * 1000


def end(state: str) -> None:
    from belljar import daemon

    peer = daemon._peer(f"{state}/belljar.sock")
    if peer is not None:
        os.kill(peer, signal.SIGTERM)
        while Path(f"{state}/belljar.sock").exists():
            time.sleep(0.01)


def first_calls(count: int) -> list[float]:
    times = []
    for _ in range(count):
        with tempfile.TemporaryDirectory(prefix="bj-") as state:
            times.append(told(FIRST, BELLJAR_STATE_DIR=state))
            end(state)
    return times


async def sessions(count: int, runs: int) -> tuple[float, int]:
    """Sessions at the same time, whose runs each call a tool: the seconds, and how many answers were wrong."""
    import belljar

    wrong = 0

    async def square(n: int) -> int:
        return n * n

    async def one(number: int) -> None:
        nonlocal wrong
        async with belljar.AsyncSandbox(memory="48m", tools=[square]) as sandbox:
            for turn in range(runs):
                result = await sandbox.run(f"(await square({number})) + {turn}", timeout=120)
                wrong += result.value != number * number + turn

    begun = time.perf_counter()
    await asyncio.gather(*[one(number) for number in range(count)])
    return time.perf_counter() - begun, wrong


def main() -> int:
    args = arguments()
    os.environ["BELLJAR_BIN"] = str(Path(args.belljar).resolve())
    for name in ("BELLJAR_URL", "BELLJAR_TOKEN"):
        os.environ.pop(name, None)
    sys.path.insert(0, str(SOURCE))
    import belljar

    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="bj-") as state:
        os.environ["BELLJAR_STATE_DIR"] = state
        belljar.run("print(1)", check=True)
        sandbox = belljar.Sandbox().start()
        toolful = belljar.Sandbox(tools={"f": lambda: 1}).start()
        time.sleep(2)  # the daemon fills its pool
        candidates: dict[str, Callable[[], object]] = {
            "/usr/bin/python3 -c pass": lambda: subprocess.run(BASE, check=True),
            'belljar.run("print(1)")': lambda: belljar.run("print(1)", check=True),
            'sandbox.run("1")': lambda: sandbox.run("1", check=True),
            'sandbox.run("f()"), a tool': lambda: toolful.run("f()", check=True),
            "Sandbox() made, used, deleted": _whole,
        }
        times: dict[str, list[float]] = {name: [] for name in candidates}
        for turn in range(-5, args.rounds):
            for name, function in candidates.items():
                took = clock(function)
                if turn >= 0:
                    times[name].append(took)
        sandbox.close()
        toolful.close()
        base = median(times["/usr/bin/python3 -c pass"])
        for name, each in times.items():
            figures[name] = {"p50_ms": median(each), "p90_ms": median(each, 90), "of_base": median(each) / base}
        if args.sessions:
            seconds, wrong = asyncio.run(sessions(args.sessions, 20))
            figures[f"{args.sessions} sessions, 20 runs each"] = {"seconds": seconds, "wrong": wrong}
        imported = [told(IMPORT) for _ in range(7)]
        figures["import belljar"] = {"p50_ms": median(imported)}
        end(state)
    firsts = first_calls(5)
    figures["first ever call"] = {"p50_ms": median(firsts), "max_ms": max(firsts)}
    show(figures)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def _whole() -> None:
    import belljar

    with belljar.Sandbox() as sandbox:
        sandbox.run("1", check=True)


TARGETS = {
    'belljar.run("print(1)")': ("of_base", 0.12),
    'sandbox.run("1")': ("of_base", 0.08),
    "import belljar": ("p50_ms", 100),
    "first ever call": ("p50_ms", 500),
}


def show(figures: dict[str, dict[str, float]]) -> None:
    for name, values in figures.items():
        print(f"{name:32}", "  ".join(f"{key} {value:.3f}" for key, value in values.items()))
    for name, (key, most) in TARGETS.items():
        verdict = "held" if figures[name][key] <= most else "MISSED"
        print(f"target {verdict}: {name} {key} {figures[name][key]:.3f} (≤ {most})")


if __name__ == "__main__":
    sys.exit(main())
