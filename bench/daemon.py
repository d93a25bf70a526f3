#!/usr/bin/env python3
"""How long the daemon takes, beside `/usr/bin/python3 -c pass`, all in one interleaved run.

A client with one connection that is kept, as small as can be, so that what is measured is the daemon. In each round every candidate is
timed; after a fresh run there is a pause, in which the next sandbox is made, and live runs come in a row, of which the first, with cold caches, is
counted apart. Throughput is measured in short turns, first one then the other. Trust the ratios of one run.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from measure import ENVIRONMENT, NULL, finish, percentile

HERE = Path(__file__).resolve().parent
PYTHON = "/usr/bin/python3"
TOKEN = "token-of-the-benchmark"
CODE = {"code": "print(1)"}
CLIENTS = 8
COLD = 20  # rounds that do not count
IN_A_ROW = 4
PAUSE = 0.02


@dataclass
class Target:
    what: str
    found: float
    limit: str
    ok: bool


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--belljar", default=str(HERE.parent / "target/release/belljar"), help="the program (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=200, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each turn of the throughput (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the figures (default: bench/results/daemon-TIME.json)")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    return parser.parse_args()


class Client:
    """A connection, and what is sent over it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def request(self, path: str, body: dict) -> bytes:
        text = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nAuthorization: Bearer {TOKEN}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
        )
        return head.encode() + text

    def ask(self, request: bytes) -> bytes:
        """The body of the answer."""
        self.socket.sendall(request)
        answer = self.socket.recv(65536)
        while b"\r\n\r\n" not in answer:
            answer += self.more()
        head, _, body = answer.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 20"):
            raise SystemExit(f"bench: {head[:200]!r} {body[:500]!r}")
        at = head.lower().index(b"content-length: ") + 16
        length = int(head[at:].split(b"\r\n", 1)[0])
        while len(body) < length:
            body += self.more()
        return body

    def more(self) -> bytes:
        got = self.socket.recv(65536)
        if not got:
            raise SystemExit("bench: the daemon has closed the connection")
        return got

    def run(self, request: bytes) -> None:
        if b'"stdout":"1\\n"' not in (answer := self.ask(request)):
            raise SystemExit(f"bench: {answer[:500]!r}")


class Daemon:
    def __init__(self, belljar: str, state: str) -> None:
        env = os.environ | {"BELLJAR_STATE_DIR": state, "BELLJAR_TOKEN": TOKEN}
        command = [belljar, "serve", "--listen", "127.0.0.1:0", "--unix", ""]
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if "http://" not in line:
            raise SystemExit(f"bench: the daemon did not start: {line!r}")
        self.port = int(line.split("http://", 1)[1].split()[0].rsplit(":", 1)[1])

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


def bare() -> None:
    status, _ = finish(os.posix_spawn(PYTHON, [PYTHON, "-c", "pass"], ENVIRONMENT, file_actions=NULL))
    if status != 0:
        raise SystemExit(f"bench: {PYTHON} -c pass ended with {status}")


def timed(what: Callable[[], None]) -> float:
    start = time.perf_counter_ns()
    what()
    return (time.perf_counter_ns() - start) / 1e6


def rate(make: Callable[[], Callable[[], None]], seconds: float) -> float:
    """How often in a second several clients together can do it."""
    counts = [0] * CLIENTS
    work = [make() for _ in range(CLIENTS)]
    end = time.perf_counter() + seconds

    def client(number: int) -> None:
        while time.perf_counter() < end:
            work[number]()
            counts[number] += 1

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - start)


def measure(port: int, rounds: int, seconds: float) -> dict:
    client = Client(port)
    sandbox = json.loads(client.ask(client.request("/v1/sandboxes", {})))["id"]
    fresh, live = client.request("/v1/runs", CODE), client.request(f"/v1/sandboxes/{sandbox}/runs", CODE)
    names = ("python3 -c pass", "fresh run", "live run", "after a pause")
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + COLD):
        took = [timed(bare), timed(lambda: client.run(fresh))]
        time.sleep(PAUSE)
        paused, *row = (timed(lambda: client.run(live)) for _ in range(IN_A_ROW))
        for name, each in zip(names, (took[:1], took[1:], row, [paused]), strict=True):
            times[name] += each if number >= COLD else []

    def connected() -> Callable[[], None]:
        own = Client(port)
        return lambda: own.run(fresh)

    rates: dict[str, list[float]] = {"fresh runs": [], "python3 -c pass": []}
    for _ in range(5):
        rates["fresh runs"].append(rate(connected, seconds))
        rates["python3 -c pass"].append(rate(lambda: bare, seconds))
    return {
        "rounds": rounds,
        "times_ms": {
            name: {"p50": statistics.median(each), "p95": percentile(sorted(each), 95), "p99": percentile(sorted(each), 99)}
            for name, each in times.items()
        },
        "per_second": {name: statistics.median(each) for name, each in rates.items()},
    }


def targets(found: dict) -> list[Target]:
    base = found["times_ms"]["python3 -c pass"]["p50"]
    fresh, live = (found["times_ms"][name]["p50"] / base for name in ("fresh run", "live run"))
    rates = found["per_second"]["fresh runs"] / found["per_second"]["python3 -c pass"]
    return [
        Target("POST /v1/runs, fresh sandbox, p50", fresh, "≤ 0.06 ×", fresh <= 0.06),
        Target("run in a live session over HTTP, p50", live, "≤ 0.03 ×", live <= 0.03),
        Target(f"fresh runs per second, {CLIENTS} clients", rates, "≥ 2.5 ×", rates >= 2.5),
    ]


def main() -> int:
    args = arguments()
    with tempfile.TemporaryDirectory(prefix="belljar-bench-") as state:
        daemon = Daemon(args.belljar, state)
        try:
            time.sleep(1)  # until interpreters wait
            found = measure(daemon.port, args.rounds, args.seconds)
        finally:
            daemon.stop()
    met = targets(found)
    for name, each in found["times_ms"].items():
        print(f"{name:18} p50 {each['p50']:7.3f} ms   p95 {each['p95']:7.3f}   p99 {each['p99']:7.3f}")
    for name, each in found["per_second"].items():
        print(f"{name:18} {each:7.0f} per second with {CLIENTS} clients")
    for target in met:
        print(f"  {'ok  ' if target.ok else 'MISS'}  {target.what}: {target.found:.3f} × (target {target.limit})")
    file = args.json or HERE / "results" / time.strftime("daemon-%Y%m%d-%H%M%S.json")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(found | {"targets": [asdict(target) for target in met]}, indent=1, ensure_ascii=False) + "\n")
    return int(args.check and not all(target.ok for target in met))


if __name__ == "__main__":
    sys.exit(main())
