"""Starting programs and timing them, as little of Python as possible in between."""

import ctypes
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

NULL = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]

# The same for everyone, so that no interpreter has more to look up than another.
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
    "LC_CTYPE": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONNOUSERSITE": "1",
    "PYTHONUNBUFFERED": "1",
} | {name: os.environ[name] for name in ("HOME", "XDG_RUNTIME_DIR", "DOCKER_HOST") if name in os.environ}

Argv = list[str]

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """What outlives the program it belongs to becomes ours to wait for, and its CPU time is counted with the rest."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")


@dataclass
class Candidate:
    """One thing to be timed: its commands run one after the other."""

    name: str
    commands: list[Argv]
    env: dict[str, str] = field(default_factory=dict)
    # Before each run, outside the time.
    prepare: Callable[[], None] | None = None
    # It takes part in every n-th round: the slow ones would otherwise take the whole time.
    stride: int = 1
    # By round, in milliseconds: on the clock, and of CPU.
    times: dict[int, float] = field(default_factory=dict)
    cpu: dict[int, float] = field(default_factory=dict)

    def run(self, number: int | None = None) -> float:
        """Milliseconds."""
        if self.prepare:
            self.prepare()
        env = ENVIRONMENT | self.env
        used = 0.0
        start = time.perf_counter_ns()
        for argv in self.commands:
            status, own = finish(os.posix_spawn(argv[0], argv, env, file_actions=NULL))
            used += own
            if status != 0:
                raise Failed(f"{self.name}: {' '.join(argv)[:120]} ended with {status}")
        taken = (time.perf_counter_ns() - start) / 1e6
        used += reap_orphans()
        if number is not None:
            self.times[number], self.cpu[number] = taken, used
        return taken

    def samples(self) -> list[float]:
        return sorted(self.times.values())

    def median(self) -> float:
        return statistics.median(self.times.values())


class Failed(Exception):
    """A candidate that does not work here."""


def finish(pid: int) -> tuple[int, float]:
    """Exit status, and milliseconds of CPU of it and all that it waited for."""
    _, status, usage = os.wait4(pid, 0)
    return os.waitstatus_to_exitcode(status), (usage.ru_utime + usage.ru_stime) * 1000


def reap_orphans() -> float:
    used = 0.0
    while True:
        try:
            usage = os.wait4(-1, 0)[2]
        except ChildProcessError:
            return used
        used += (usage.ru_utime + usage.ru_stime) * 1000


def captured(argv: Argv, env: dict[str, str] | None = None) -> tuple[int, str, float]:
    """Exit status, standard output and error together, and milliseconds."""
    sink = os.memfd_create("output")
    try:
        actions = [NULL[0], (os.POSIX_SPAWN_DUP2, sink, 1), (os.POSIX_SPAWN_DUP2, sink, 2)]
        start = time.perf_counter_ns()
        status, _ = finish(os.posix_spawn(argv[0], argv, ENVIRONMENT | (env or {}), file_actions=actions))
        elapsed = (time.perf_counter_ns() - start) / 1e6
        reap_orphans()
        text = os.pread(sink, os.fstat(sink).st_size, 0).decode(errors="replace")
        return status, text, elapsed
    finally:
        os.close(sink)


def percentile(ordered: list[float], share: float) -> float:
    """Nearest rank."""
    rank = max(1, -(-len(ordered) * share // 100))
    return ordered[int(rank) - 1]


def warm_up(candidates: Iterable[Candidate], progress: "Progress") -> None:
    """Fills caches, and finds out who is slow."""
    for candidate in candidates:
        progress.step(f"warming up: {candidate.name}")
        candidate.run()
        taken = candidate.run()
        candidate.stride = 1 if taken < 250 else 4 if taken < 1000 else 10


def pair_strides(pairs: Iterable[tuple[Candidate, Candidate]]) -> None:
    """Those that are compared take part in the same rounds."""
    for one, other in pairs:
        one.stride = other.stride = max(one.stride, other.stride)


def rounds(candidates: list[Candidate], count: int, progress: "Progress") -> None:
    """Round robin: each candidate once per round, and each round begins with another one."""
    for number in range(count):
        shift = number % len(candidates)
        for candidate in candidates[shift:] + candidates[:shift]:
            progress.step(f"round {number + 1} of {count}: {candidate.name}")
            if number % candidate.stride == 0:
                candidate.run(number)


def throughput(argv: Argv, clients: int, seconds: float) -> float:
    """Runs per second with this many always under way."""
    start = time.perf_counter()
    spawn = lambda: os.posix_spawn(argv[0], argv, ENVIRONMENT, file_actions=NULL)  # noqa: E731
    live = {spawn() for _ in range(clients)}
    done = 0
    last = start
    while live:
        pid, status, _ = os.wait4(-1, 0)
        if pid not in live:
            continue
        live.discard(pid)
        if os.waitstatus_to_exitcode(status) != 0:
            raise Failed(f"{argv[0]} ended with {os.waitstatus_to_exitcode(status)} among {clients} clients")
        done += 1
        last = time.perf_counter()
        if last - start < seconds:
            live.add(spawn())
    reap_orphans()
    return done / (last - start)


class Progress:
    """One line that is rewritten, on a terminal only."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.shown = total, 0, 0.0
        self.on = sys.stderr.isatty()

    def step(self, what: str) -> None:
        self.done += 1
        now = time.monotonic()
        if self.on and now - self.shown > 0.1:
            self.shown = now
            filled = min(24, 24 * self.done // max(1, self.total))
            bar = "█" * filled + "░" * (24 - filled)
            sys.stderr.write(f"\r\x1b[K{bar} {100 * self.done // max(1, self.total):3d}% {what[:70]}")
            sys.stderr.flush()

    def clear(self) -> None:
        if self.on:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
