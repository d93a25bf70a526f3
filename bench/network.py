#!/usr/bin/env python3
"""What the way out costs: a connection and its bytes through the proxy beside the same on the host's loopback; and whether
sessions with packages start as fast from the pool as those without. Rounds alternate, so that what else the machine does falls on both alike.
"""

import argparse
import hashlib
import http.client
import http.server
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOKEN = "bench-token-0123456789abcdef"
BULK = 1 << 30
PACKAGES = ("bjbenchone", "bjbenchtwo", "bjbenchthree")
# The same program bare and in a sandbox: with a proxy in its environment it goes through that.
CLIENT = r"""
import os, socket, sys, time
port, count, bulk = map(int, sys.argv[1:4])
proxied = "http_proxy" in os.environ
def reach():
    link = socket.create_connection(("127.0.0.1", 3128 if proxied else port))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if proxied:
        link.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % port)
        assert b" 200 " in link.recv(4096)
    return link
times = []
for _ in range(count):
    began = time.perf_counter()
    with reach() as link:
        link.sendall(b"\x01")
        assert link.recv(1) == b"\x01"
    times.append(time.perf_counter() - began)
times.sort()
print(times[len(times) // 2] * 1e6)
if bulk:
    link = reach()
    link.sendall(b"\x02" + bulk.to_bytes(8, "big"))
    buffer, left, began = bytearray(1 << 20), bulk, time.perf_counter()
    while left:
        left -= link.recv_into(buffer)
    print(bulk / (time.perf_counter() - began) / 1e6)
"""


def serve(link: socket.socket) -> None:
    chunk = bytes(1 << 20)
    with link:
        asked = link.recv(1)
        if asked == b"\x01":
            link.sendall(b"\x01")
        elif asked == b"\x02":
            left = int.from_bytes(link.recv(8), "big")
            while left:
                left -= link.send(chunk[: min(left, len(chunk))])


def listen() -> int:
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)

    def accept() -> None:
        while True:
            link, _ = listener.accept()
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=serve, args=(link,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener.getsockname()[1]


def client(belljar: str | None, port: int, count: int, bulk: int) -> list[float]:
    arguments = [str(port), str(count), str(bulk)]
    if belljar is None:
        command = ["/usr/bin/python3", "-c", CLIENT, *arguments]
    else:
        command = [belljar, "run", "--network", f"127.0.0.1:{port}", "--cpus", str(os.cpu_count()), "-c", CLIENT, "--", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        sys.exit(f"{command[0]}: {done.stderr}")
    return [float(word) for word in done.stdout.split()]


def wheels(place: Path) -> None:
    for name in PACKAGES:
        info = f"{name}-1.0.dist-info"
        files = {
            f"{name}/__init__.py": "from . import data\n",
            f"{name}/data.py": "".join(f"def f{n}(): return {n}\n" for n in range(500)),
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        }
        files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in files) + f"{info}/RECORD,,\n"
        wheel = place / f"{name}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as out:
            for path, text in files.items():
                out.writestr(path, text)
        page = place / "simple" / name
        page.mkdir(parents=True)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        (page / "index.html").write_text(f'<a href="/{wheel.name}#sha256={digest}">{wheel.name}</a>')


class Index(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None:
        pass


def index(place: Path) -> int:
    wheels(place)
    handler = type("Here", (Index,), {"__init__": lambda self, *args: Index.__init__(self, *args, directory=str(place))})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


class Daemon:
    def __init__(self, belljar: str, state: Path, config: str) -> None:
        (state / "belljar.toml").write_text(config)
        self.process = subprocess.Popen(
            [belljar, "serve", "--config", str(state / "belljar.toml"), "--listen", "127.0.0.1:0"], text=True, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, env={**os.environ, "BELLJAR_STATE_DIR": str(state), "BELLJAR_TOKEN": TOKEN},
        )
        assert self.process.stdout is not None
        address = next(word for word in self.process.stdout.readline().split() if word.startswith("http://"))
        self.link = http.client.HTTPConnection(address.removeprefix("http://"), timeout=120)

    def ask(self, method: str, path: str, body: object = None) -> bytes:
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        self.link.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self.link.getresponse()
        text = answer.read()
        if answer.status >= 300:
            sys.exit(f"{path}: {text.decode()}")
        return text

    def start(self, template: str) -> float:
        """Milliseconds from the request for a session to the value of its first run."""
        began = time.perf_counter()
        made = json.loads(self.ask("POST", "/v1/sandboxes", {"template": template}))
        path = f"/v1/sandboxes/{made['id']}"
        result = json.loads(self.ask("POST", f"{path}/runs", {"code": "6 * 7"}))
        took = (time.perf_counter() - began) * 1000
        assert result["value"] == 42, result
        self.ask("DELETE", path)
        return took

    def is_ready(self, count: int) -> bool:
        return f"belljar_pool {count}" in self.ask("GET", "/metrics").decode()

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def sessions(belljar: str, rounds: int) -> tuple[float, float]:
    with tempfile.TemporaryDirectory(prefix="bjbench-") as name:
        place = Path(name)
        (place / "index").mkdir()
        (place / "state").mkdir()
        port = index(place / "index")
        names = json.dumps(list(PACKAGES))
        config = (
            f"[network]\nprivate = ['127.0.0.1']\n[packages]\npython = 'http://127.0.0.1:{port}/simple'\n[pool]\npython = 0\n"
            f"[templates.plain]\npool = 2\n[templates.packed]\npool = 2\npackages = {names}\npreload = {names}\n"
        )
        daemon = Daemon(belljar, place / "state", config)
        try:
            times: dict[str, list[float]] = {"plain": [], "packed": []}
            for number in range(rounds + 2):
                for template in sorted(times, reverse=bool(number % 2)):
                    limit = time.monotonic() + 60
                    while not daemon.is_ready(4):
                        if time.monotonic() > limit:
                            sys.exit("the pools do not fill")
                        time.sleep(0.02)
                    took = daemon.start(template)
                    if number >= 2:
                        times[template].append(took)
            return statistics.median(times["plain"]), statistics.median(times["packed"])
        finally:
            daemon.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--belljar", default=str(HERE.parent / "target/release/belljar"), help="the program (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="default: %(default)s")
    options = parser.parse_args()
    port = listen()
    bare, through = [], []
    for _ in range(options.rounds):
        bare.append(client(None, port, 300, BULK))
        through.append(client(options.belljar, port, 300, BULK))
    direct, proxied = statistics.median(one[0] for one in bare), statistics.median(one[0] for one in through)
    print(f"connection and one byte there and back: {direct:.0f} µs direct, {proxied:.0f} µs through the proxy: {proxied / direct:.2f} × (aim: 3)")
    fast, slow = statistics.median(one[1] for one in bare), statistics.median(one[1] for one in through)
    print(f"bytes on loopback: {fast:.0f} MB/s direct, {slow:.0f} MB/s through the proxy (aim: 500)")
    plain, packed = sessions(options.belljar, options.rounds)
    print(f"a session from the pool, to its first value: {plain:.2f} ms, with three packages {packed:.2f} ms: {packed / plain:.2f} × (aim: 1.2)")


if __name__ == "__main__":
    main()
