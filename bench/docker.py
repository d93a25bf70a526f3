#!/usr/bin/env python3
"""How long a pooled run takes on the docker backend, beside `docker exec` and `docker run` of the same line.

Run by scripts/test-docker, which starts a container engine of its own and makes the image. In each round every candidate runs
once, after the pool is full again, so that what else the machine does falls on all of them alike. A pooled run is what a client does: make
a sandbox of the template, run the line in it, read the answer; deleting it is not waited for by anybody and not timed.
"""

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOKEN = "token-of-the-bench-0123456789"
LINE = "print(6 * 7)"
DOCKER = "/usr/bin/docker"
TARGETS = {"docker exec": 3.0, "docker run": 10.0}
READY_TIME = 120.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--belljar", default=str(HERE.parent / "target/release/belljar"), help="the program (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="default: %(default)s")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    args = parser.parse_args()
    for name in ("DOCKER_HOST", "BELLJAR_TEST_IMAGE"):
        if name not in os.environ:
            parser.error(f"{name} is not set: run this by scripts/test-docker")
    return args


class Daemon:
    """`belljar serve` with a pool of containers."""

    def __init__(self, belljar: str, image: str, state: Path) -> None:
        config = state / "belljar.toml"
        config.write_text(
            f'[pool]\npython = 0\n[docker]\nimage = "{image}"\npull = "never"\n'
            f'[templates.box]\nbackend = "docker"\nimage = "{image}"\nlanguage = "python"\npool = 2\n')
        env = {**os.environ, "BELLJAR_STATE_DIR": str(state), "BELLJAR_TOKEN": TOKEN, "BELLJAR_LOG": "error"}
        self.process = subprocess.Popen(
            [belljar, "serve", "--config", str(config), "--listen", "127.0.0.1:0"], env=env, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if "http://" not in line:
            raise SystemExit(f"bench: the daemon did not start: {line!r}")
        host, port = line.split("http://", 1)[1].split()[0].split(":")
        self.connection = http.client.HTTPConnection(host, int(port))
        self.headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}

    def ask(self, method: str, path: str, body: object = None) -> bytes:
        self.connection.request(method, path, json.dumps(body) if body is not None else None, self.headers)
        answer = self.connection.getresponse()
        data = answer.read()
        if answer.status >= 300:
            raise SystemExit(f"bench: {method} {path}: {answer.status} {data.decode()[:300]}")
        return data

    def wait_for_pool(self) -> None:
        limit = time.monotonic() + READY_TIME
        while b"\nbelljar_pool 2" not in self.ask("GET", "/metrics"):
            if time.monotonic() > limit:
                raise SystemExit("bench: the pool does not fill")
            time.sleep(0.05)

    def pooled_run(self) -> float:
        began = time.perf_counter()
        sandbox = json.loads(self.ask("POST", "/v1/sandboxes", {"template": "box"}))["id"]
        result = json.loads(self.ask("POST", f"/v1/sandboxes/{sandbox}/runs", {"code": LINE}))
        taken = time.perf_counter() - began
        if result["stdout"] != "42\n" or result["backend"] != "docker":
            raise SystemExit(f"bench: a pooled run gave {result}")
        self.ask("DELETE", f"/v1/sandboxes/{sandbox}")
        return taken

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


def timed(argv: list[str]) -> float:
    began = time.perf_counter()
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    taken = time.perf_counter() - began
    if done.stdout != "42\n":
        raise SystemExit(f"bench: {' '.join(argv)}: {done.stdout}{done.stderr}")
    return taken


def main() -> int:
    args = arguments()
    image = os.environ["BELLJAR_TEST_IMAGE"]
    python = ["/usr/bin/python3", "-c", LINE]
    kept = subprocess.run(
        [DOCKER, "run", "--detach", "--network", "none", image, "/bin/sleep", "3600"], capture_output=True, text=True, check=True,
    ).stdout.strip()
    with tempfile.TemporaryDirectory(prefix="bjb-") as state:
        daemon = Daemon(os.path.abspath(args.belljar), image, Path(state))
        candidates = {
            "belljar, pooled": daemon.pooled_run,
            "docker exec": lambda: timed([DOCKER, "exec", kept, *python]),
            "docker run": lambda: timed([DOCKER, "run", "--rm", "--network", "none", image, *python]),
        }
        times: dict[str, list[float]] = {name: [] for name in candidates}
        try:
            for number in range(args.rounds + 1):
                for name, run in candidates.items():
                    daemon.wait_for_pool()
                    taken = run()
                    # The first round warms up.
                    if number:
                        times[name].append(taken * 1000)
        finally:
            daemon.stop()
            subprocess.run([DOCKER, "rm", "--force", kept], capture_output=True, check=False)
    median = {name: sorted(each)[len(each) // 2] for name, each in times.items()}
    base = median["belljar, pooled"]
    missed = []
    print(f"`{LINE}` in a container, {args.rounds} rounds\n")
    for name, value in median.items():
        best = min(times[name])
        ratio = value / base
        target = TARGETS.get(name)
        note = f"  (target: {target:g} or more)" if target else ""
        print(f"{name:<16} median {value:8.1f} ms   best {best:8.1f} ms   {ratio:6.1f} x{note}")
        if target and ratio < target:
            missed.append(name)
    if missed:
        print(f"\nmissed: {', '.join(missed)}")
    return 1 if missed and args.check else 0


if __name__ == "__main__":
    sys.exit(main())
