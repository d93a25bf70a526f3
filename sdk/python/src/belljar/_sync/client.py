# Made from `_async` by `scripts/generate.py`. Do not edit.
"""A daemon: runs in sandboxes of their own, and what it knows."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from .. import errors, events, records, results
from ..events import Event, ResultEvent
from ..records import DebugReport, RunRecord, RunSummary, SandboxInfo, Stats
from ..requests import (
    HistoryOptions,
    RunOptions,
    SandboxOptions,
    Unpack,
    body,
    encode,
    history_query,
    spelled_out,
    text,
)
from ..results import Result
from ..tools import Tools
from .sandbox import Sandbox, Stream
from .wire import Wire, default_wire, part

_OF_RUNS = ("args", "stdin", "globals", "collect")
"""Options that belong to the run where the sandbox and the run are asked for apart."""


class Client:
    """Speaks with the daemon at ``url`` (``http://…``, ``https://…`` or ``unix:///…``), or ``BELLJAR_URL``.

    With neither, it is the user's own daemon, which is started if needed. ``token`` is the key, or ``BELLJAR_TOKEN``.
    What the daemon has no room for waits as long as others get in, and ``patience`` seconds (a minute) if nobody does; then it is
    :class:`Unavailable`.
    """

    def __init__(self, url: str | None = None, *, token: str | None = None, patience: float | None = None) -> None:
        own = url is not None or token is not None or patience is not None
        self.wire: Wire = Wire(url, token, patience) if own else default_wire()
        self._own = own

    @spelled_out(RunOptions)
    def run(
        self,
        code: str,
        *,
        tools: Tools | None = None,
        check: bool = False,
        **options: Unpack[RunOptions],
    ) -> Result:
        """Runs code in a sandbox of its own. A failed program is a result too; with ``check`` it is raised instead."""
        request = {**body(RunOptions, "run", options), "code": text("code", code)}
        if tools:
            place, run = _apart(options)
            with Sandbox(tools=tools, client=self, **place) as sandbox:
                return sandbox.run(code, check=check, **run)
        answer = self.wire.json("POST", "/v1/runs", encode(request))
        result = results.result(answer)
        return result.check() if check else result

    @spelled_out(RunOptions)
    def stream(self, code: str, *, tools: Tools | None = None, **options: Unpack[RunOptions]) -> Stream:
        """Runs code in a sandbox of its own and gives what happens as it happens; the last event has the result."""
        request = {**body(RunOptions, "stream", options), "code": text("code", code)}
        return Stream(self._events(request, tools, options))

    def _events(self, request: dict[str, Any], tools: Tools | None, options: Any) -> Generator[Event, None, None]:
        if tools:
            place, run = _apart(options)
            with Sandbox(tools=tools, client=self, **place) as sandbox:
                happening = sandbox.stream(request["code"], **run)
                try:
                    for happened in happening:
                        yield happened
                finally:
                    happening.close()
            return
        # A client that disconnects ends its run, so there is nothing to give up.
        said = self.wire.events("/v1/runs", encode(request))
        try:
            for name, data in said:
                if name == "error":
                    raise errors.from_answer(data)
                known = events.event(name, data)
                if known is not None:
                    yield known
                if isinstance(known, ResultEvent):
                    return
        finally:
            said.close()

    @spelled_out(SandboxOptions)
    def sandbox(self, *, tools: Tools | None = None, **options: Unpack[SandboxOptions]) -> Sandbox:
        """A new sandbox of this daemon."""
        return Sandbox(tools=tools, client=self, **options)

    def attach(self, id: str, *, tools: Tools | None = None) -> Sandbox:
        """A sandbox that is there already."""
        return Sandbox.attach(id, tools=tools, client=self)

    def sandboxes(
        self,
        *,
        language: str | None = None,
        name: str | None = None,
        label: str | None = None,
        busy: bool | None = None,
    ) -> list[SandboxInfo]:
        """Those that are kept, oldest first; everything given must hold."""
        asked = {"language": language, "name": name, "label": label}
        query = {key: value for key, value in asked.items() if value is not None}
        if busy is not None:
            query["busy"] = "true" if busy else "false"
        answer = self.wire.json("GET", "/v1/sandboxes", query=query)
        return [records.sandbox(each) for each in answer["sandboxes"]]

    @spelled_out(HistoryOptions)
    def history(self, **options: Unpack[HistoryOptions]) -> list[RunSummary]:
        """Runs that ended, newest first."""
        query = history_query(options)
        left = options.get("limit")
        found: list[RunSummary] = []
        while True:
            answer = self.wire.json("GET", "/v1/runs", query=query)
            found += [records.summary(each) for each in answer["runs"]]
            # Without a limit it is one page, as the daemon cuts it.
            if left is None or len(found) >= left or answer.get("next") is None:
                return found
            query["before"] = str(answer["next"])

    def record(self, run: str | Result) -> RunRecord:
        """All that is kept of one run."""
        return records.record(self.wire.json("GET", f"/v1/runs/{part(_id(run))}"))

    def debug(self, run: str | Result) -> DebugReport:
        """What went wrong in a run, to be read by a person or handed to a model."""
        return records.debug(self.wire.json("GET", f"/v1/runs/{part(_id(run))}/debug"))

    @spelled_out(HistoryOptions)
    def stats(self, **options: Unpack[HistoryOptions]) -> Stats:
        """Totals and percentiles of runs."""
        return records.stats(self.wire.json("GET", "/v1/stats", query=history_query(options)))

    def runtimes(self) -> list[dict[str, Any]]:
        """The languages, and what the daemon's host has of them."""
        answer: list[dict[str, Any]] = self.wire.json("GET", "/v1/runtimes")
        return answer

    def doctor(self) -> dict[str, Any]:
        """What the daemon's host can enforce."""
        answer: dict[str, Any] = self.wire.json("GET", "/v1/doctor")
        return answer

    def close(self) -> None:
        """Closes the connections."""
        if self._own:
            self.wire.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _id(run: str | Result) -> str:
    return run if isinstance(run, str) else run.id


def _apart(options: Any) -> tuple[Any, Any]:
    """The options of the sandbox, and those of the run."""
    place = {name: value for name, value in options.items() if name not in _OF_RUNS}
    return place, {name: options[name] for name in _OF_RUNS if name in options}
