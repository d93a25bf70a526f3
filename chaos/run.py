#!/usr/bin/env python3
"""Kills parts of Belljar at random moments while it is busy, and then looks for anything that is left.

An engine keeps sessions, pool and warm interpreter going (the example `load`). Again and again one of its processes gets a
SIGKILL: the engine itself, its keeper, the warm interpreter, a sandbox's first process, or a kernel. After the last one everything
is ended, the program is started once more, which sweeps what a dead keeper left, and there must be no process, cgroup, mount,
namespace or directory that was not there before.
"""

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

FIRST_UID, LAST_UID = 0x7000_0000, 0x7FFF_FFFF
VICTIMS = ["engine", "keeper", "zygote", "init", "kernel"]
HERE = Path(__file__).resolve().parent


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    target = HERE.parent / "target/release"
    parser.add_argument("--load", default=str(target / "examples/load"), help="default: %(default)s")
    parser.add_argument("--belljar", default=str(target / "belljar"), help="default: %(default)s")
    parser.add_argument("--kills", type=int, default=200, help="default: %(default)s")
    parser.add_argument("--crowd", type=int, default=0, help="idle sessions besides the busy ones; default: %(default)s")
    parser.add_argument("--seed", type=int, default=None, help="of the choice of victims and moments")
    return parser.parse_args()


def processes() -> dict[int, dict[str, str]]:
    """All processes of this host, by number, with what /proc says about them."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            status = dict(line.split(":\t", 1) for line in (entry / "status").read_text().splitlines() if ":\t" in line)
            status["cmdline"] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        found[int(entry.name)] = status
    return found


def family(engine: int) -> dict[str, list[int]]:
    """The living processes of an engine, by their part."""
    everyone = processes()
    children: dict[int, list[int]] = {}
    for pid, status in everyone.items():
        if not status.get("State", "Z").startswith("Z"):
            children.setdefault(int(status.get("PPid", "0")), []).append(pid)
    keepers = children.get(engine, [])
    parts: dict[str, list[int]] = {"engine": [engine], "keeper": keepers, "zygote": [], "init": [], "kernel": []}
    for pid in (pid for keeper in keepers for pid in children.get(keeper, [])):
        status = everyone[pid]
        depth = len(status.get("NSpid", "").split())
        if "zygote" in status["cmdline"]:
            parts["zygote" if depth == 1 else "kernel"].append(pid)
        elif depth == 2:
            parts["init"].append(pid)
    return parts


class Load:
    """An engine under load."""

    def __init__(self, program: str, crowd: int) -> None:
        self.process = subprocess.Popen([program, str(crowd)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        if self.process.stdout.readline() != b"ready\n":
            raise SystemExit("chaos: the load could not be started")

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def remains() -> dict[str, set[str]]:
    """Everything that could be left behind."""
    everyone = processes()
    uids = {pid: int(status.get("Uid", "0").split()[0]) for pid, status in everyone.items()}
    ours = {f"{pid} {everyone[pid].get('Name', '')}" for pid, uid in uids.items() if FIRST_UID <= uid <= LAST_UID}
    namespaces = set()
    for pid in everyone:
        for kind in ("net", "mnt", "pid", "user", "ipc"):
            try:
                namespaces.add(os.readlink(f"/proc/{pid}/ns/{kind}"))
            except OSError:
                continue
    # Not `glob`, which minds when something vanishes under it.
    groups = {
        place for place, _, _ in os.walk("/sys/fs/cgroup") if re.fullmatch("belljar-.{17,}", os.path.basename(place))
    }
    mounts = {line for line in Path("/proc/self/mountinfo").read_text().splitlines() if "belljar" in line}
    leases = {str(path) for path in Path("/run/belljar").glob("*")} if Path("/run/belljar").is_dir() else set()
    return {"processes": ours, "namespaces": namespaces, "cgroups": groups, "mounts": mounts, "directories": leases}


def settle(before: dict[str, set[str]], belljar: str) -> dict[str, set[str]]:
    """What is left after the next start has swept, once everything had the time to end."""
    left: dict[str, set[str]] = {}
    for _ in range(50):
        subprocess.run([belljar, "run", "-l", "bash", "-c", ":"], check=True, stdin=subprocess.DEVNULL)
        time.sleep(0.2)
        now = remains()
        left = {kind: now[kind] - before[kind] for kind in now}
        if not any(left.values()):
            return left
    return left


def main() -> int:
    options = arguments()
    if os.geteuid() != 0:
        raise SystemExit("chaos: run it as root, which sees all that could be left")
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    choice = random.Random(seed)
    print(f"seed {seed}", flush=True)
    before = remains()
    killed: Counter[str] = Counter()
    load = Load(options.load, options.crowd)
    started = time.monotonic()
    while sum(killed.values()) < options.kills:
        if not load.is_alive():
            load.stop()
            load = Load(options.load, options.crowd)
        time.sleep(choice.uniform(0.0, 0.15))
        parts = family(load.process.pid)
        # Each part as often as the others, as far as it lives at all.
        victim = min((part for part in VICTIMS if parts[part]), key=lambda part: (killed[part], choice.random()))
        try:
            os.kill(choice.choice(parts[victim]), signal.SIGKILL)
        except ProcessLookupError:
            continue
        killed[victim] += 1
        if sys.stdout.isatty():
            print(f"\r{sum(killed.values())} of {options.kills}", end="", flush=True)
        if victim == "engine":
            load.process.wait()
        elif victim == "keeper":
            # An engine without a keeper is of no use, and says so to whoever asks.
            load.process.kill()
            load.process.wait()
    load.stop()
    left = settle(before, options.belljar)
    print(f"\r{sum(killed.values())} killed in {time.monotonic() - started:.0f} s: " + ", ".join(f"{n} {p}" for p, n in killed.items()))
    for kind, what in left.items():
        print(f"{len(what):4} {kind} left" + "".join(f"\n       {one}" for one in sorted(what)[:10]))
    return 1 if any(left.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
