"""Belljar runs code you do not trust, under glass.

>>> import belljar
>>> belljar.run("print(6 * 7)").stdout
'42\\n'
>>> with belljar.Sandbox() as sandbox:
...     _ = sandbox.run("x = 41")
...     sandbox.run("x + 1").value
42

``Sandbox``, ``Client`` and ``Pool`` block; ``AsyncSandbox``, ``AsyncClient`` and ``AsyncPool`` are the same for code that
awaits. With no daemon named by ``BELLJAR_URL`` or ``Client(url)``, the user's own is used, and started if needed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._version import VERSION as __version__
from .errors import (
    BelljarError,
    ImportNotAllowed,
    InvalidRequest,
    NotFound,
    OutOfMemory,
    RunFailed,
    SandboxTimeout,
    Unavailable,
)

if TYPE_CHECKING:
    from ._async.client import AsyncClient
    from ._async.files import AsyncFiles
    from ._async.pool import AsyncPool
    from ._async.sandbox import AsyncSandbox, AsyncStream
    from ._async.terminal import AsyncTerminal
    from ._sync.client import Client
    from ._sync.files import Files
    from ._sync.pool import Pool
    from ._sync.sandbox import Sandbox, Stream
    from ._sync.terminal import Terminal
    from .events import DisplayEvent, Event, ResultEvent, StderrEvent, StdoutEvent, ToolCallEvent
    from .functions import arun, debug, doctor, history, run, runtimes, stats, stream
    from .records import DebugReport, FileEntry, RunRecord, RunSummary, Sample, SandboxInfo, SandboxUsage, Stats
    from .results import Connection, Display, ErrorInfo, FileInfo, Limits, Result, Usage

# Each is loaded when it is first used: importing the package itself takes next to no time.
_HOMES = {
    "_async.client": ("AsyncClient",),
    "_async.files": ("AsyncFiles",),
    "_async.pool": ("AsyncPool",),
    "_async.sandbox": ("AsyncSandbox", "AsyncStream"),
    "_async.terminal": ("AsyncTerminal",),
    "_sync.client": ("Client",),
    "_sync.files": ("Files",),
    "_sync.pool": ("Pool",),
    "_sync.sandbox": ("Sandbox", "Stream"),
    "_sync.terminal": ("Terminal",),
    "events": ("DisplayEvent", "Event", "ResultEvent", "StderrEvent", "StdoutEvent", "ToolCallEvent"),
    "functions": ("arun", "debug", "doctor", "history", "run", "runtimes", "stats", "stream"),
    "records": (
        "DebugReport",
        "FileEntry",
        "RunRecord",
        "RunSummary",
        "Sample",
        "SandboxInfo",
        "SandboxUsage",
        "Stats",
    ),
    "results": ("Connection", "Display", "ErrorInfo", "FileInfo", "Limits", "Result", "Usage"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AsyncClient",
    "AsyncFiles",
    "AsyncPool",
    "AsyncSandbox",
    "AsyncStream",
    "AsyncTerminal",
    "BelljarError",
    "Client",
    "Connection",
    "DebugReport",
    "Display",
    "DisplayEvent",
    "ErrorInfo",
    "Event",
    "FileEntry",
    "FileInfo",
    "Files",
    "ImportNotAllowed",
    "InvalidRequest",
    "Limits",
    "NotFound",
    "OutOfMemory",
    "Pool",
    "Result",
    "ResultEvent",
    "RunFailed",
    "RunRecord",
    "RunSummary",
    "Sample",
    "Sandbox",
    "SandboxInfo",
    "SandboxTimeout",
    "SandboxUsage",
    "Stats",
    "StderrEvent",
    "StdoutEvent",
    "Stream",
    "Terminal",
    "ToolCallEvent",
    "Unavailable",
    "Usage",
    "__version__",
    "arun",
    "debug",
    "doctor",
    "history",
    "run",
    "runtimes",
    "stats",
    "stream",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
