"""A program run as a script: a process of its own in a sandbox of its own, which is gone afterwards."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import Result, Sandbox
from ..errors import BelljarError

WORKDIR = "/sandbox"
EVERY = 0.1
_MOST_FILES = 256
_MOST_BYTES = 16 << 20

# Languages whose sandboxes keep an interpreter: code sent to it would be a part of a session, which does not wait for threads
# and timers as a process does at its end.
_INTERPRETERS = {"python": ("code.py", ["python3"]), "javascript": ("code.js", ["node"]), "bash": ("code.sh", ["bash"])}
_ENVIRONMENT = {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}


@dataclass(frozen=True)
class Sample:
    """What a sandbox had used at a moment of its run."""

    cpu_ms: float
    memory_bytes: int


@dataclass
class Ended:
    """How a script ended, and what it left."""

    result: Result
    files: dict[str, bytes] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)


def run(
    language: str,
    code: str,
    *,
    files: Mapping[str, str | bytes] | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    timeout: float | None = None,
    command: tuple[str, Sequence[str]] | None = None,
    collect: bool = False,
    sample: bool = False,
    started: Callable[[Sandbox], None] | None = None,
    **options: Any,
) -> Ended:
    """Runs it, and ends the sandbox whatever happens. ``started`` hears of the sandbox before the code runs.

    ``command`` is the name of the file that the code is put into, and what is run there, for what is no language of Belljar's.
    """
    given = dict(files or {})
    if command is None and (interpreter := _INTERPRETERS.get(language)) is not None:
        name, words = interpreter
        command = name, [*words, f"{WORKDIR}/{name}"]
    if command is not None:
        given[command[0]] = code
    environment = {**_ENVIRONMENT, **(env or {})}
    with Sandbox(language=language, workdir=WORKDIR, files=given, env=environment, **options) as sandbox:
        if started is not None:
            started(sandbox)
        with _sampled(sandbox, sample) as samples:
            more: Any = {"stdin": stdin, "timeout": timeout}
            result = sandbox.exec(command[1], **more) if command is not None else sandbox.run(code, **more)
        # A language that keeps no interpreter has its code in a file that the daemon put there, and tells what changed.
        told = None if command is not None else {info.path for info in result.files}
        written = _written(sandbox, given, told) if collect else {}
    return Ended(result, written, samples)


@contextlib.contextmanager
def _sampled(sandbox: Sandbox, wanted: bool) -> Iterator[list[Sample]]:
    """Looks at what it uses, from beside, as long as the block lasts."""
    samples: list[Sample] = []
    if not wanted:
        yield samples
        return
    over = threading.Event()

    def watch() -> None:
        while True:
            with contextlib.suppress(BelljarError):
                now = sandbox.usage().now
                samples.append(Sample(now.cpu_ms, now.memory_bytes))
            if over.wait(EVERY):
                return

    watcher = threading.Thread(target=watch, name="belljar-usage", daemon=True)
    watcher.start()
    try:
        yield samples
    finally:
        over.set()
        watcher.join()


def _written(sandbox: Sandbox, given: Mapping[str, str | bytes], changed: set[str] | None) -> dict[str, bytes]:
    """The files that are not as they were given, of those that may have changed. Many or large ones stay behind."""
    found: dict[str, bytes] = {}
    room = _MOST_BYTES
    for entry in sandbox.files.list(depth=16):
        if not entry.is_file or entry.bytes > room or len(found) == _MOST_FILES:
            continue
        if changed is not None and entry.path not in changed:
            continue
        data = sandbox.files.read(entry.path)
        before = given.get(entry.path)
        if data != (before.encode() if isinstance(before, str) else before):
            found[entry.path] = data
            room -= len(data)
    return found
