"""Start one program for a case, watch it from outside, and always get back."""

from __future__ import annotations

import os
import select
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO

from . import host

KEPT_BYTES = 4 << 20
SAMPLE_EVERY = 0.03


@dataclass
class Watched:
    """How a program ended and what was seen of it from outside."""

    code: int
    stdout: bytes
    stderr: bytes
    stdout_total: int
    wall: float
    hung: bool
    threads: int = 0
    resident: int = 0


@dataclass
class Sink:
    """The beginning of a stream; the rest is counted and dropped."""

    stream: IO[bytes]
    data: bytearray = field(default_factory=bytearray)
    total: int = 0

    def drain(self) -> None:
        while chunk := os.read(self.stream.fileno(), 1 << 16):
            self.total += len(chunk)
            self.data += chunk[: KEPT_BYTES - len(self.data)]


class Sampler:
    """The most threads and the largest process seen below this worker while a case runs."""

    def __init__(self, keep: set[int]) -> None:
        self.keep = keep
        self.threads = 0
        self.resident = 0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self) -> None:
        while not self.ended.wait(SAMPLE_EVERY):
            table = {pid: row for pid, row in host.parents().items() if pid not in self.keep}
            seen = host.tree(os.getpid(), table)
            self.threads = max(self.threads, seen.threads)
            self.resident = max(self.resident, seen.resident)

    def stop(self) -> None:
        self.ended.set()
        self.thread.join()


def ends(child: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether it ends in time. Popen.wait looks only every 50 ms then, which is more than most cases take."""
    file = os.pidfd_open(child.pid)
    try:
        poll = select.poll()
        poll.register(file, select.POLLIN)
        if not poll.poll(seconds * 1000):
            return False
    finally:
        os.close(file)
    child.wait()
    return True


def launch(
    argv: list[str], *, env: dict[str, str], cwd: str, deadline: float, keep: set[int], stdin: int,
    pass_fds: tuple[int, ...] = (), prepare: Callable[[], None] | None = None, sample: bool = False, last_words: float = 5.0,
) -> Watched:
    """Run `argv` until it ends or `deadline` seconds passed; then all it left below this worker is still there."""
    began = time.monotonic()
    sampler = Sampler(keep) if sample else None
    child = subprocess.Popen(
        argv, env=env, cwd=cwd, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        pass_fds=pass_fds, preexec_fn=prepare, start_new_session=True,
    )
    assert child.stdout is not None and child.stderr is not None
    sinks = (Sink(child.stdout), Sink(child.stderr))
    readers = [threading.Thread(target=sink.drain, daemon=True) for sink in sinks]
    for reader in readers:
        reader.start()
    hung = not ends(child, deadline)
    wall = time.monotonic() - began
    if sampler is not None:
        sampler.stop()
    if hung:
        host.end_tree(os.getpid(), keep | {child.pid})
        child.kill()
        child.wait()
    # A survivor may hold the pipes open: what it would still say is of no interest.
    limit = time.monotonic() + last_words
    for reader in readers:
        reader.join(max(0.0, limit - time.monotonic()))
    return Watched(
        code=child.returncode, stdout=bytes(sinks[0].data), stderr=bytes(sinks[1].data),
        stdout_total=sinks[0].total, wall=wall, hung=hung,
        threads=sampler.threads if sampler else 0, resident=sampler.resident if sampler else 0,
    )
