#!/usr/bin/env python3
"""A hundred thousand mixed runs, one in ten of them hostile, and a daemon that is afterwards as it was before.

Clients run code in fresh sandboxes and in kept ones, answered at once or as events, commands, other languages, code that fails; and fork bombs, floods, hogs, garbage
and clients that leave. They also write and read files. Each request has a word of its own, which its answer has to have. Memory, descriptors, cgroups and mounts of daemon
and keeper are looked at after a fifth of the runs, after three fifths and in the end, each time at rest, and must not have grown. `--runs` and `--minutes` bound it.
"""

import argparse
import json
import os
import random
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from service import Client, Daemon

HERE = Path(__file__).resolve().parent
SETTINGS = """
[history]
runs = 5000
[budget]
queue = 64
[pool]
python = 4
"""
SMALL = {"timeout_ms": 400, "memory_bytes": "48m", "processes": 24, "disk_bytes": "8m", "output_bytes": 20000}

# Word, code: what they print before they turn bad is theirs.
HOSTILE = {
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "memory": "x = []\nwhile True: x.append(bytearray(1 << 20))",
    "shared memory": "f = open('/dev/shm/x', 'wb')\nwhile True: f.write(bytes(1 << 20))",
    "output": "import os\nwhile True: os.write(1, b'x' * 65536)",
    "lines": "while True: print('y' * 100)",
    "loop": "while True: pass",
    "deaf": "import signal, time\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True: time.sleep(1)",
    "kill everyone": "import os\nos.kill(-1, 9)",
    "kill itself": "import os\nos.kill(os.getpid(), 9)",
    "segfault": "import ctypes\nctypes.string_at(0)",
    "descriptors": "import os\nfor fd in range(3, 200):\n    try: os.write(fd, b'\\xff' * 64)\n    except OSError: pass",
    "close": "import os\nos.closerange(0, 4096)",
    "exit": "import os\nos._exit(0)",
    "zombies": "import os\nfor _ in range(20):\n    if os.fork() == 0: os._exit(0)",
    "daemons": "import os\nfor _ in range(5):\n    if os.fork() == 0:\n        os.setsid()\n        import time; time.sleep(1000)",
    "files": "import os\nn = 0\nwhile True:\n    open(f'f{n}', 'w'); n += 1",
    "deep": "import os\nwhile True: os.mkdir('d'); os.chdir('d')",
    "odd names": "import os\nos.mkfifo('fifo'); os.symlink('/etc/passwd', 'link'); open(b'\\xff\\n\\x1b', 'w')",
    "recursion": "def f(): f()\nf()",
    "threads": "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(100,), daemon=True).start()",
}
GARBAGE = [b"", b"{", b"[" * 100000, b'{"code": 1}', b'{"code": "1", "limits": {"memory_bytes": -1}}', b'{"code": "\\ud800"}', b"\xff\xfe", b"1e999"]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--belljar", default=str(HERE.parent / "target/release/belljar"), help="default: %(default)s")
    parser.add_argument("--runs", type=int, default=100_000, help="default: %(default)s")
    parser.add_argument("--minutes", type=float, default=40, help="it fails if that is not enough (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=None)
    return parser.parse_args()


# What is done between runs, and counts as none.
NO_RUNS = {"files", "forget", "hostile: garbage"}


class Wrong(Exception):
    """An answer that is not the one to its request."""


class Worker:
    """One client: does one thing after the other until there is nothing left to do."""

    def __init__(self, port: int, number: int, seed: int) -> None:
        self.client = Client(port)
        self.number = number
        self.choice = random.Random(seed * 1000 + number)
        self.turn = 0
        self.away = 0
        self.sandbox: str | None = None
        self.counter = 0

    def answer(self, method: str, path: str, body: object = None, raw: bytes | None = None, accept: str = "*/*") -> tuple[int, bytes]:
        """What it says once there is room for it."""
        while True:
            status, answer = self.client.ask(method, path, body, raw, accept)
            if status != 429:
                break
            self.away += 1
            time.sleep(self.choice.uniform(0.01, 0.05))
        if status >= 500:
            raise Wrong(f"{method} {path}: {status} {answer[:300]!r}")
        return status, answer

    def ask(self, method: str, path: str, body: object = None, raw: bytes | None = None) -> tuple[int, dict]:
        status, answer = self.answer(method, path, body, raw)
        try:
            return status, json.loads(answer) if answer else {}
        except ValueError:
            return status, {"bytes": answer}

    def expect(self, result: dict, word: str, stdout: str, status: str = "ok") -> None:
        if result.get("status") != status or result.get("stdout") != stdout:
            raise Wrong(f"{word}: {json.dumps(result)[:600]}")

    def step(self) -> str:
        self.turn += 1
        word = f"{self.number}.{self.turn}.{self.choice.getrandbits(32):x}"
        if self.choice.random() < 0.1:
            return self.hostile(word)
        kinds: list[Callable[[str], None]] = [self.fresh, self.fresh, self.fresh, self.fresh, self.live, self.live, self.live, self.command, self.files]
        if self.choice.random() < 0.05:
            kinds = [self.bash, self.failing, self.events, self.forget]
        kind = self.choice.choice(kinds)
        kind(word)
        return kind.__name__

    def fresh(self, word: str) -> None:
        code = "import sys; print(sys.argv[1], sys.stdin.read(), w, open('f').read())"
        body = {"code": code, "args": [word], "stdin": word, "globals": {"w": word}, "files": {"f": word}, "labels": {"word": word}}
        _, result = self.ask("POST", "/v1/runs", body)
        self.expect(result, word, f"{word} {word} {word} {word}\n")

    def bash(self, word: str) -> None:
        _, result = self.ask("POST", "/v1/runs", {"code": f"echo {word}", "language": "bash"})
        self.expect(result, word, f"{word}\n")

    def events(self, word: str) -> None:
        code = f"import sys, time; print({word!r}, flush=True); time.sleep(.01); print({word!r}, file=sys.stderr)"
        _, stream = self.answer("POST", "/v1/runs", {"code": code}, accept="text/event-stream")
        told = [(name, json.loads(data)) for name, data in re.findall(r"event: (\w+)\ndata: (.*)\n", stream.decode())]
        said = {name: "".join(data.get("text", "") for one, data in told if one == name) for name in ("stdout", "stderr")}
        numbers = [data["seq"] for _, data in told]
        if set(said.values()) != {f"{word}\n"} or numbers != list(range(1, len(told) + 1)) or told[-1][0] != "result":
            raise Wrong(f"{word}: {stream[:600]!r}")
        self.expect(told[-1][1]["result"], word, f"{word}\n")

    def failing(self, word: str) -> None:
        _, result = self.ask("POST", "/v1/runs", {"code": f"print({word!r}); raise KeyError({word!r})"})
        self.expect(result, word, f"{word}\n", "failed")
        _, record = self.ask("GET", f"/v1/runs/{result['id']}")
        if word not in record["code"]:
            raise Wrong(f"{word}: the history has {json.dumps(record)[:300]}")

    def place(self) -> str:
        if self.sandbox is None:
            status, made = self.ask("POST", "/v1/sandboxes", {"limits": {"memory_bytes": "96m", "processes": 32, "disk_bytes": "16m"}})
            if status != 201:
                raise Wrong(f"no sandbox: {status} {made}")
            self.sandbox, self.counter = made["id"], 0
        return f"/v1/sandboxes/{self.sandbox}"

    def live(self, word: str) -> None:
        place = self.place()
        code = f"n = globals().get('n', 0) + 1; print({word!r}, n)"
        _, result = self.ask("POST", f"{place}/runs", {"code": code})
        self.counter += 1
        if result.get("state") == "lost":
            self.counter = 1
        self.expect(result, word, f"{word} {self.counter}\n")

    def command(self, word: str) -> None:
        _, result = self.ask("POST", f"{self.place()}/commands", {"argv": ["/bin/echo", word]})
        self.expect(result, word, f"{word}\n")

    def files(self, word: str) -> None:
        path = f"{self.place()}/files/{self.number}.txt"
        self.ask("PUT", path, raw=word.encode())
        _, got = self.client.ask("GET", path)
        if got != word.encode():
            raise Wrong(f"{word}: the file has {got[:200]!r}")

    def forget(self, _: str) -> None:
        place = self.place()
        self.ask("DELETE", place)
        self.sandbox = None

    def hostile(self, word: str) -> str:
        what = self.choice.choice([*HOSTILE, "garbage", "leaves", "in a session"])
        if what == "garbage":
            status, _ = self.ask("POST", "/v1/runs", raw=self.choice.choice(GARBAGE))
            if not 400 <= status < 500:
                raise Wrong(f"garbage was answered with {status}")
        elif what == "leaves":
            self.client.send("POST", "/v1/runs", json.dumps({"code": "while True: pass", "limits": SMALL}).encode())
            time.sleep(self.choice.uniform(0, 0.02))
            self.client.close()
        elif what == "in a session":
            place = self.place()
            code = self.choice.choice([HOSTILE["kill itself"], HOSTILE["loop"], HOSTILE["descriptors"], HOSTILE["exit"]])
            _, result = self.ask("POST", f"{place}/runs", {"code": code, "limits": {"timeout_ms": 200}})
            self.counter = 0 if result.get("state") == "lost" else self.counter
            self.forget(word)
        else:
            body = {"code": f"print({word!r}, flush=True)\n{HOSTILE[what]}", "limits": SMALL}
            _, result = self.ask("POST", "/v1/runs", body)
            if result.get("status") == "timed_out" and not result.get("stdout"):
                # It did not come as far as its first line; with more time it has to.
                _, result = self.ask("POST", "/v1/runs", body | {"limits": SMALL | {"timeout_ms": 10_000}})
            if not result.get("stdout", "").startswith(f"{word}\n"):
                raise Wrong(f"{what} {word}: {json.dumps(result)[:600]}")
        return f"hostile: {what}"


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def state(daemon: int) -> dict[str, int]:
    """What could grow."""
    keepers = children(daemon)
    parts = {"daemon": daemon, **({"keeper": keepers[0]} if keepers else {})}
    found = {}
    for name, pid in parts.items():
        rss = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
        found[f"{name} memory MiB"] = int(rss.split()[1]) >> 10
        found[f"{name} descriptors"] = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        found[f"{name} mounts"] = len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines())
        found[f"{name} children"] = len(children(pid))
    tokens = {token for keeper in keepers for child in children(keeper) for token in groups_of(child)}
    found["cgroups"] = sum(1 for token in tokens for place, _, _ in os.walk("/sys/fs/cgroup") if token in place)
    return found


def groups_of(pid: int) -> set[str]:
    """What the names of its keeper's cgroups have in common."""
    try:
        text = Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return set()
    return set(re.findall(r"belljar-[0-9a-f]{16}", text))


# What may be more at the end than at rest in the beginning: caches and allocators settle, a warm interpreter may just be replaced by the next, and
# on cgroup v1 the groups of eight sandboxes that have ended, three each, wait to be used again.
ROOM = {"daemon memory MiB": 32, "keeper memory MiB": 8, "daemon descriptors": 8, "keeper descriptors": 8, "keeper children": 2, "cgroups": 8 + 8 * 3}


def at_rest(port: int, daemon: int) -> dict[str, int]:
    """After everything that was going on has ended; the pool is full then."""
    connection = Client(port)
    values: dict[str, str] = {}
    for _ in range(600):
        _, text = connection.ask("GET", "/metrics")
        values = dict(line.split(" ", 1) for line in text.decode().splitlines() if line and not line.startswith("#") and line.count(" ") == 1)
        if values.get("belljar_running") == "0" and values.get("belljar_sandboxes") == "0" and values.get("belljar_pool") == "4":
            break
        time.sleep(0.1)
    else:
        raise Wrong(f"it does not come to rest: {({name: value for name, value in values.items() if '{' not in name})}")
    connection.close()
    # What is just being taken apart goes away by itself; what leaked does not.
    looks = []
    for _ in range(10):
        time.sleep(0.3)
        looks.append(state(daemon))
    return {what: min(look.get(what, 0) for look in looks) for what in looks[-1]}


def runs(seen: Counter[str]) -> int:
    return sum(count for what, count in seen.items() if what not in NO_RUNS)


def soak(options: argparse.Namespace, daemon: Daemon, seed: int) -> tuple[Counter[str], list[str], list[dict[str, int]]]:
    seen: Counter[str] = Counter()
    wrong: list[str] = []
    states: list[dict[str, int]] = []
    away = [0]
    lock = threading.Lock()
    end = time.monotonic() + options.minutes * 60
    for share in (0.2, 0.4, 0.4):
        left = [int(options.runs * share)]

        def client(number: int, left: list[int] = left) -> None:
            worker = Worker(daemon.port, number, seed)
            try:
                while not wrong:
                    with lock:
                        if left[0] <= 0:
                            break
                    if time.monotonic() > end:
                        raise Wrong(f"the time was up: {options.minutes} minutes are not enough for {options.runs} runs")
                    done = worker.step()
                    with lock:
                        seen[done] += 1
                        left[0] -= done not in NO_RUNS
                if worker.sandbox:
                    worker.forget("")
            except Exception as error:  # noqa: BLE001
                # Whatever it is: a thread that ends would be seen by nobody.
                wrong.append(f"{type(error).__name__}: {error}")
            finally:
                worker.client.close()
                with lock:
                    away[0] += worker.away

        threads = [threading.Thread(target=client, args=(number + 100 * len(states),)) for number in range(options.clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if wrong:
            break
        try:
            states.append(at_rest(daemon.port, daemon.process.pid))
        except Wrong as error:
            wrong.append(str(error))
            break
        print(f"{runs(seen)} runs: {states[-1]}", flush=True)
    print(f"{away[0]} times sent away with 429")
    return seen, wrong, states


def main() -> int:
    options = arguments()
    if os.geteuid() != 0:
        raise SystemExit("soak: run it as root, which sees all that could grow")
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="belljar-soak-") as directory:
        daemon = Daemon(options.belljar, Path(directory), SETTINGS)
        try:
            seen, wrong, states = soak(options, daemon, seed)
        finally:
            if daemon.process.poll() is not None:
                print(f"soak: the daemon has ended: {(Path(directory) / 'log').read_text()[-3000:]}")
            daemon.stop()
    for what, count in seen.most_common():
        print(f"{count:8}  {what}")
    for what in wrong:
        print(f"WRONG  {what}")
    grown = []
    if len(states) == 3:
        grown = [f"{what}: {states[0][what]}, {states[1].get(what)}, {states[2].get(what)}" for what in states[0] if states[2].get(what, 0) > states[0][what] + ROOM.get(what, 0)]
    for what in grown:
        print(f"GROWN  {what}")
    seconds = time.monotonic() - started
    print(f"{runs(seen)} runs in {seconds:.0f} s, {len(wrong)} wrong answers, {len(grown)} things grown")
    return int(bool(wrong or grown or len(states) < 3))


if __name__ == "__main__":
    sys.exit(main())
