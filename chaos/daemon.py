#!/usr/bin/env python3
"""Kills the daemon at random moments while it is busy. Nothing is left behind, and no run whose answer was given is lost.

Clients run code, in fresh sandboxes and in kept ones, and write down the id of every answer, with the word that its request had. At some moment the daemon gets a
SIGKILL. The next one must know every run that was written down, with its word. After the last one there must be no process, cgroup, mount, namespace or directory that
was not there before.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

from run import remains, settle
from service import Broken, Client, Daemon

HERE = Path(__file__).resolve().parent
CLIENTS = 4
SETTINGS = "[pool]\npython = 2\n"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--belljar", default=str(HERE.parent / "target/release/belljar"), help="default: %(default)s")
    parser.add_argument("--kills", type=int, default=200, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=None, help="of the moments")
    return parser.parse_args()


def client(port: int, number: int, answered: dict[str, str], wrong: list[str], stop: threading.Event) -> None:
    """Works until the daemon has gone. A thread's own failure would be seen by nobody, so it is written down."""
    try:
        work(port, number, answered, stop)
    except Exception as error:  # noqa: BLE001
        wrong.append(f"{type(error).__name__}: {error}")


def work(port: int, number: int, answered: dict[str, str], stop: threading.Event) -> None:
    connection = Client(port)
    sandbox = None
    turn = 0
    try:
        while not stop.is_set():
            turn += 1
            word = f"{number}-{turn}"
            code = {"code": f"print({word!r})"}
            if turn % 3 == 0 and sandbox is None:
                status, body = connection.ask("POST", "/v1/sandboxes", {})
                if status == 201:
                    sandbox = json.loads(body)["id"]
                continue
            path = f"/v1/sandboxes/{sandbox}/runs" if sandbox and turn % 2 else "/v1/runs"
            status, body = connection.ask("POST", path, code)
            if status == 429:
                time.sleep(0.01)
                continue
            result = json.loads(body)
            if status != 200 or result["stdout"] != f"{word}\n":
                raise ValueError(f"{status} {body[:500]!r} is no answer to {word}")
            answered[result["id"]] = word
    except Broken:
        return
    finally:
        connection.close()


def check(port: int, answered: dict[str, str]) -> list[str]:
    """Those that the daemon does not know, or not as they were answered."""
    connection = Client(port)
    lost = []
    for run, word in answered.items():
        status, body = connection.ask("GET", f"/v1/runs/{run}")
        result = json.loads(body).get("result") or {}
        if status != 200 or result.get("stdout") != f"{word}\n":
            lost.append(f"{run} {word}: {status} {body[:300]!r}")
    connection.close()
    return lost


def main() -> int:
    options = arguments()
    if os.geteuid() != 0:
        raise SystemExit("chaos: run it as root, which sees all that could be left")
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    choice = random.Random(seed)
    print(f"seed {seed}", flush=True)
    before = remains()
    runs, lost, started = 0, 0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="belljar-chaos-") as directory:
        state = Path(directory)
        answered: dict[str, str] = {}
        wrong: list[str] = []
        for _ in range(options.kills):
            daemon = Daemon(options.belljar, state, SETTINGS)
            missing = check(daemon.port, answered)
            lost += len(missing)
            for run in missing:
                print(f"LOST  {run}")
            answered = {}
            stop = threading.Event()
            threads = [threading.Thread(target=client, args=(daemon.port, number, answered, wrong, stop)) for number in range(CLIENTS)]
            for thread in threads:
                thread.start()
            time.sleep(choice.uniform(0.0, 0.6))
            daemon.kill()
            stop.set()
            for thread in threads:
                thread.join()
            runs += len(answered)
        daemon = Daemon(options.belljar, state, SETTINGS)
        missing = check(daemon.port, answered)
        lost += len(missing)
        for run in missing:
            print(f"LOST  {run}")
        daemon.stop()
    left = settle(before, options.belljar)
    leaks = 0
    for kind, found in left.items():
        leaks += len(found)
        for one in sorted(found):
            print(f"LEFT  {kind}: {one}")
    for what in wrong:
        print(f"WRONG  {what}")
    seconds = time.monotonic() - started
    print(f"{options.kills} times killed in {seconds:.0f} s, {runs} runs answered, {len(wrong)} of them wrongly, {lost} lost, {leaks} things left")
    if runs < options.kills:
        print("chaos: there was hardly any load, so nothing is proven", file=sys.stderr)
        return 1
    return int(lost > 0 or leaks > 0 or bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
