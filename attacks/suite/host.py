"""The host as the suite sees it: processes, mounts, cgroups, settings; what was there before must be there after."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

SETTINGS = (
    "kernel/core_pattern", "kernel/hostname", "kernel/domainname", "kernel/modprobe", "kernel/randomize_va_space",
    "kernel/sysrq", "kernel/yama/ptrace_scope", "kernel/ctrl-alt-del", "vm/overcommit_memory", "vm/drop_caches",
    "fs/suid_dumpable", "net/ipv4/ip_default_ttl",
)
GUARDED = ("/etc/passwd", "/etc/shadow", "/etc/group", "/etc/ld.so.preload", "/etc/crontab", "/usr/bin/env")
# Where Belljar keeps what outlives a run on purpose; it must be empty between runs.
STATE = re.compile(r"belljar(-\d+)?")
PAGE = os.sysconf("SC_PAGESIZE")
SCRATCH = ("/tmp", "/var/tmp", "/run", "/dev/shm", "/dev/mqueue")


def read(path: str | Path) -> str:
    # By hand: this reads all of /proc several times for each case.
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    data = b""
    try:
        while chunk := os.read(file, 1 << 16):
            data += chunk
    except OSError:
        return ""
    finally:
        os.close(file)
    return data.decode(errors="replace")


@functools.lru_cache(maxsize=256)
def digest(path: str | Path, _version: tuple[int, ...]) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


def fingerprint(path: str | Path) -> str:
    """Content, mode and owner of a file in one word."""
    # Read again only when it is another file or has another time of change, which the kernel sets whenever somebody writes: to
    # digest Belljar itself after each case takes longer than most cases do.
    try:
        info = os.stat(path)
        content = digest(path, (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns))
    except OSError:
        return "absent"
    return f"{content} {info.st_mode:o} {info.st_uid}"


def mounts() -> frozenset[str]:
    """What is mounted, without the mount ids, which change when nothing else does."""
    return frozenset(" ".join(line.split()[2:]) for line in read("/proc/self/mountinfo").splitlines())


def cgroup_mounts() -> list[Path]:
    lines = (line.split() for line in read("/proc/self/mountinfo").splitlines())
    return [Path(words[4]) for words in lines if words[words.index("-") + 1] in ("cgroup", "cgroup2")]


def leftovers(own: str) -> set[str]:
    """Cgroups and scratch directories that carry Belljar's name; `own` marks the suite's own ones."""
    found = {
        str(Path(top) / name)
        for root in cgroup_mounts() for top, names, _ in os.walk(root) for name in names if "belljar" in name
    }
    for place in filter(os.path.isdir, SCRATCH):
        for name in os.listdir(place):
            path = f"{place}/{name}"
            if STATE.fullmatch(name) and os.path.isdir(path):
                found |= {f"{path}/{inner}" for inner in os.listdir(path)}
            elif "sbx_" in name:
                found.add(path)
    return {path for path in found if own not in path}


def neighbours(suite: int) -> set[str]:
    """Leases, and beginnings of the cgroups' names, of keepers that live but not below `suite`: somebody else is at work on this host."""
    locked = (line.split() for line in read("/proc/locks").splitlines() if " FLOCK " in line and "->" not in line)
    holders = {words[5].rpartition(":")[2]: int(words[4]) for words in locked}
    below = tree(suite).pids
    found = set()
    for place in filter(os.path.isdir, SCRATCH):
        for lease in (lease for name in os.listdir(place) if STATE.fullmatch(name) for lease in Path(place, name).glob("keeper-*")):
            try:
                holder = holders.get(str(lease.stat().st_ino))
            except OSError:
                continue
            token = read(lease).partition("\n")[0]
            if holder is not None and holder not in below and len(token) == 16:
                found |= {str(lease), f"/belljar-{token}"}
    return found


def remaining(look: Callable[[], set[str]], seconds: float = 10.0) -> set[str]:
    """What `look` still finds after a while: what a run that has ended leaves goes away by itself, if it does."""
    limit = time.monotonic() + seconds
    while (found := look()) and time.monotonic() < limit:
        time.sleep(0.1)
    return found


def unmount_below(path: str | Path) -> None:
    """Take away mounts a payload made: removing a tree through a bind mount would remove what is bound."""
    inside = os.path.join(os.path.realpath(path), "")
    libc = ctypes.CDLL(None, use_errno=True)
    for place in reversed([line.split()[4] for line in read("/proc/self/mountinfo").splitlines()]):
        place = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), place)
        if (place + "/").startswith(inside) and libc.umount2(place.encode(), 2):
            raise OSError(ctypes.get_errno(), f"{place} cannot be unmounted, so {path} is not removed")


def remove(*paths: Path) -> None:
    """Remove trees however deep, which Python's own way cannot."""
    for path in paths:
        unmount_below(path)
    if paths:
        subprocess.run(["rm", "-rf", "--one-file-system", "--", *map(str, paths)], check=False, stderr=subprocess.DEVNULL)


def clock_offset() -> float:
    """Wall clock against the one nobody can set."""
    return time.time() - time.monotonic()


@dataclass
class HostState:
    """Settings and files of the host that no case may change."""

    guarded: tuple[str, ...]
    settings: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    mounts: frozenset[str] = frozenset()
    swaps: str = ""
    offset: float = 0.0

    @classmethod
    def take(cls, extra: tuple[str, ...] = ()) -> HostState:
        guarded = GUARDED + extra
        return cls(
            guarded=guarded,
            settings={name: read(f"/proc/sys/{name}") for name in SETTINGS},
            files={path: fingerprint(path) for path in guarded},
            mounts=mounts(), swaps=read("/proc/swaps"), offset=clock_offset(),
        )

    def changes(self) -> list[str]:
        now = HostState.take(self.guarded[len(GUARDED):])
        found = [f"setting {name} changed" for name, value in self.settings.items() if now.settings[name] != value]
        found += [f"file {path} changed" for path, value in self.files.items() if now.files[path] != value]
        found += [f"mount appeared: {line}" for line in now.mounts - self.mounts]
        found += [f"mount vanished: {line}" for line in self.mounts - now.mounts]
        if now.swaps != self.swaps:
            found.append("swap changed")
        if abs(now.offset - self.offset) > 60:
            found.append(f"clock moved by {now.offset - self.offset:.0f} s")
        return found

    def restore(self) -> None:
        """Put settings and clock back, so that an escape harms neither the machine nor the cases after it."""
        before = {line.split()[2] for line in self.mounts}
        for place in {line.split()[2] for line in mounts()} - before:
            unmount_below(place)
        for name, value in self.settings.items():
            if read(f"/proc/sys/{name}") != value:
                Path(f"/proc/sys/{name}").write_text(value)
        if abs(clock_offset() - self.offset) > 1:
            time.clock_settime(time.CLOCK_REALTIME, self.offset + time.monotonic())


@dataclass
class Tree:
    """What hangs below one process at one moment."""

    pids: set[int]
    threads: int
    resident: int


def about(pid: int | str) -> tuple[int, str, int, int] | None:
    """A process's parent, state, threads and resident bytes."""
    if not (text := read(f"/proc/{pid}/stat")):
        return None
    words = text[text.rindex(")") + 2:].split()
    return int(words[1]), words[0], int(words[17]), int(words[21]) * PAGE


def parents() -> dict[int, tuple[int, str, int, int]]:
    """What there is to know about each process."""
    found = ((name, about(name)) for name in os.listdir("/proc") if name.isdigit())
    return {int(name): row for name, row in found if row is not None}


def tree(root: int, table: dict[int, tuple[int, str, int, int]] | None = None) -> Tree:
    """Every living descendant of `root`, without itself; zombies do not count."""
    table = parents() if table is None else table
    children: dict[int, list[int]] = {}
    for pid, (parent, *_rest) in table.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    waiting = list(children.get(root, ()))
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, ())
        found.add(pid)
    alive = {pid for pid in found if table[pid][1] not in "ZX"}
    return Tree(alive, sum(table[pid][2] for pid in alive), max((table[pid][3] for pid in alive), default=0))


def survivors(root: int, keep: set[int]) -> set[int]:
    """What still lives below `root`. One that forks and ends faster than /proc can be read shows by its fresh corpses."""
    table = parents()
    reap(keep, table)
    alive = tree(root, table).pids - keep
    if not alive:
        time.sleep(0.03)
        alive = {pid for pid, (parent, *_rest) in parents().items() if parent == root} - keep
    return alive


def end_tree(root: int, keep: set[int]) -> None:
    """Kill all below `root` but `keep`: stopped first, so that what forks cannot outrun the kill."""
    for _ in range(200):
        pids = tree(root).pids - keep
        if not pids:
            return
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
        reap(keep)


def reap(keep: set[int], table: dict[int, tuple[int, str, int, int]] | None = None) -> None:
    """Collect dead orphans that came to this process, leaving the children others wait for."""
    for pid, (parent, state, *_rest) in (parents() if table is None else table).items():
        if parent == os.getpid() and state == "Z" and pid not in keep:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                pass
