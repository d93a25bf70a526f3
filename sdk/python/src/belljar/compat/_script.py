"""A program run as a script: a process of its own in a sandbox of its own, which is gone afterwards."""

from __future__ import annotations

import contextlib
import itertools
import posixpath
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
_INTERPRETERS = {"python": (".py", ["python3"]), "javascript": (".js", ["node"]), "bash": (".sh", ["bash"])}
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


def file_for(extension: str, files: Mapping[str, Any] | None) -> str:
    """A name for the file with the code: none that ``files`` has, and none of a module, which imports would find in its place."""
    taken = {posixpath.normpath(str(path)).partition("/")[0] for path in files or {}}
    names = (f"main{number}{extension}" for number in itertools.chain([""], itertools.count(1)))
    return next(name for name in names if name not in taken)


def interpreted(language: str, name: str) -> tuple[str, list[str]] | None:
    """What :func:`run` is to be told in order that the code is this file; None for a language that has to be compiled."""
    known = _INTERPRETERS.get(language)
    return (name, [*known[1], f"{WORKDIR}/{name}"]) if known is not None else None


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
        command = interpreted(language, file_for(interpreter[0], given))
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
