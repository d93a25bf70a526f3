"""The functions of the package itself: those of a client of the daemon that everybody uses who names no other."""

from __future__ import annotations

from typing import Any

from ._sync.client import Client
from ._sync.sandbox import Stream
from .records import DebugReport, RunSummary, Stats
from .requests import HistoryOptions, RunOptions, Unpack, spelled_out
from .results import Result
from .tools import Tools


@spelled_out(RunOptions)
def run(code: str, *, tools: Tools | None = None, check: bool = False, **options: Unpack[RunOptions]) -> Result:
    """Runs code in a sandbox of its own: Python, or any other ``language``.

    A failed program is a result too; with ``check`` it is raised instead. ``tools`` are functions that the code may call.
    In Python the last expression gives the result's ``value``. Other languages run as programs here and have none; with ``tools``,
    or in a :class:`Sandbox`, JavaScript has one too.
    """
    return Client().run(code, tools=tools, check=check, **options)


@spelled_out(RunOptions)
async def arun(code: str, *, tools: Tools | None = None, check: bool = False, **options: Unpack[RunOptions]) -> Result:
    """The same as :func:`run`, for code that awaits."""
    from ._async.client import AsyncClient

    return await AsyncClient().run(code, tools=tools, check=check, **options)


@spelled_out(RunOptions)
def stream(code: str, *, tools: Tools | None = None, **options: Unpack[RunOptions]) -> Stream:
    """Runs code in a sandbox of its own and gives what happens as it happens; the last event has the result."""
    return Client().stream(code, tools=tools, **options)


@spelled_out(HistoryOptions)
def history(**options: Unpack[HistoryOptions]) -> list[RunSummary]:
    """Runs that ended, newest first."""
    return Client().history(**options)


@spelled_out(HistoryOptions)
def stats(**options: Unpack[HistoryOptions]) -> Stats:
    """Totals and percentiles of runs."""
    return Client().stats(**options)


def debug(run: str | Result) -> DebugReport:
    """What went wrong in a run, to be read by a person or handed to a model."""
    return Client().debug(run)


def runtimes() -> list[dict[str, Any]]:
    """The languages, and what the daemon's host has of them."""
    return Client().runtimes()


def doctor() -> dict[str, Any]:
    """What the daemon's host can enforce."""
    return Client().doctor()
