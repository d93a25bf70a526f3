# Made from `_async` by `scripts/generate.py`. Do not edit.
"""The channel of a sandbox: runs whose code calls tools."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Hashable
from typing import TYPE_CHECKING, Any

from .. import errors
from .._io import synchronous as io
from ..errors import BelljarError, InvalidRequest, NotFound, Unavailable
from ..events import Event, ResultEvent, ToolCallEvent, event
from ..tools import MOST_BYTES, Serving, Toolbox
from .line import Waiter
from .wire import Wire, part

if TYPE_CHECKING:
    from .._io.synchronous import WebSocket

_PAUSES = (0.0, 0.05, 0.2, 0.5, 1.0, 2.0)
"""Between attempts to come back to a run after the connection broke."""
_NO_ROOM = "overloaded"


def home() -> Hashable:
    """What a channel belongs to: a child that was forked would read what its parent waits for."""
    return os.getpid(), io.place()


class Channel:
    """One connection, made when it is first needed. Runs take turns on it, as they do in the sandbox."""

    def __init__(self, wire: Wire, sandbox: str) -> None:
        self.home = home()
        self._wire = wire
        self._sandbox = sandbox
        self._path = f"/v1/sandboxes/{part(sandbox)}/channel"
        self._websocket: WebSocket | None = None
        self._turn = io.Lock()
        self._seq = 0
        self._unsent: list[str] = []
        """Answers to the run that goes on."""
        self._unended: list[str] = []
        """What ends runs that nobody waits for any more."""
        self._prefix = os.urandom(6).hex()
        self._runs = 0

    def run(self, request: dict[str, Any], toolbox: Toolbox) -> Generator[Event, None, None]:
        """What happens in a run, its result last; calls of tools are answered on the way.

        If the caller leaves it, it is ended, and no other.
        """
        with self._turn:
            run = self._ask(request)
            calls = io.Calls(toolbox, self._answer)
            serving = Serving(self._sandbox)
            waiter: Waiter | None = None
            over = False
            try:
                while True:
                    said = self._hear()
                    # What the daemon could not read has no name, and can only be what was said last.
                    mine = said.get("run") == run or (said["event"] == "error" and not said.get("run"))
                    if not mine:
                        continue
                    if said["event"] == "error":
                        problem = errors.from_answer(said)
                        if problem.code != _NO_ROOM or not isinstance(problem, Unavailable):
                            raise problem
                        # Nothing was started.
                        over, waiter = True, waiter or self._wire.waiter()
                        waiter.again(problem)
                        over, run = False, self._ask(request)
                        continue
                    happened = event(said["event"], said)
                    over = isinstance(happened, ResultEvent)
                    if isinstance(happened, ToolCallEvent):
                        with serving.call():
                            calls.begin(run, happened)
                    if over:
                        self._wire.moved()
                    if happened is not None:
                        yield happened
                    if over:
                        return
            except BaseException as reason:
                if not over and not isinstance(reason, Exception):
                    io.shielded(self._say, json.dumps({"op": "interrupt", "run": run}), self._unended)
                raise
            finally:
                serving.is_over = True
                calls.end()

    def _ask(self, request: dict[str, Any]) -> str:
        """The run's name."""
        self._runs += 1
        self._unsent.clear()  # nobody waits for answers to a run that is over
        run = f"{self._prefix}-{self._runs}"
        text = json.dumps({"op": "run", "run": run, "request": request})
        if len(text) > MOST_BYTES:
            raise InvalidRequest(
                f"the request, with code and globals, has {len(text)} bytes; {MOST_BYTES} are the most with tools. "
                "Write what is large to a file of the sandbox"
            )
        self._begin(text)
        return run

    def _begin(self, text: str) -> None:
        from websockets.exceptions import ConnectionClosed

        if self._websocket is not None:
            try:
                self._websocket.send(text)
                return
            except ConnectionClosed:
                # Nothing goes on, so there is nothing to come back to.
                self._websocket = None
        websocket = self._open()
        try:
            websocket.send(text)
        except ConnectionClosed as problem:
            raise _closed(problem) from problem

    def _open(self) -> WebSocket:
        """A connection that goes on where the last one ended."""
        from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

        address = self._wire.address()
        path = f"{self._path}?after={self._seq}" if self._websocket is not None else self._path
        try:
            websocket = io.open_websocket(address, path, self._wire.authorization())
        except InvalidStatus as problem:
            try:
                body = json.loads(problem.response.body or b"")
            except ValueError:
                body = None
            raise errors.from_answer(body, problem.response.status_code) from None
        except (OSError, WebSocketException) as problem:
            raise Unavailable(f"the channel cannot be opened: {problem}") from problem
        self._websocket = websocket
        try:
            ready = json.loads(websocket.recv())
        except ConnectionClosed as problem:
            raise _closed(problem) from problem
        self._seq = int(ready["seq"])
        if not ready["complete"]:
            raise Unavailable("what happened while the connection was broken has been forgotten")
        for kept in (self._unended, self._unsent):
            unsent = kept.copy()
            kept.clear()
            for text in unsent:
                self._say(text, kept)
        return websocket

    def _hear(self) -> dict[str, Any]:
        from websockets.exceptions import ConnectionClosed

        while True:
            if self._websocket is None:
                raise BelljarError("the sandbox has been closed")
            try:
                said: dict[str, Any] = json.loads(self._websocket.recv())
            except ConnectionClosed as problem:
                self._come_back(problem)
                continue
            self._seq = max(self._seq, int(said.get("seq", 0)))
            return said

    def _come_back(self, problem: Any) -> None:
        reason = _reason(problem)
        if "deleted" in reason or "took over" in reason or "stops" in reason:
            raise _closed(problem)
        for pause in _PAUSES:
            io.sleep(pause)
            try:
                self._open()
                return
            except Unavailable as failed:
                last = failed
        raise last

    def _answer(self, text: str) -> None:
        self._say(text, self._unsent)

    def _say(self, text: str, unsent: list[str]) -> None:
        from websockets.exceptions import ConnectionClosed

        websocket = self._websocket
        if websocket is None:
            return
        try:
            websocket.send(text)
        except ConnectionClosed:
            # Whoever listens makes the next connection, and this goes first there.
            unsent.append(text)

    def close(self) -> None:
        """Closes the connection, unless it is somebody else's."""
        websocket, self._websocket = self._websocket, None
        if websocket is not None and self.home == home():
            io.close_websocket(websocket)


def _reason(problem: Any) -> str:
    return str(problem.rcvd.reason) if problem.rcvd is not None else ""


def _closed(problem: Any) -> BelljarError:
    """What the end of a connection means."""
    reason = _reason(problem)
    if "deleted" in reason:
        return NotFound(reason, code="not_found")
    return Unavailable(reason or f"the channel was closed: {problem}")
