# Made from `_async` by `scripts/generate.py`. Do not edit.
"""A terminal in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from .. import errors
from .._io import synchronous as io
from ..errors import BelljarError, Unavailable
from .wire import Wire, part

if TYPE_CHECKING:
    from .._io.synchronous import WebSocket


class Terminal:
    """Bytes both ways, as a person at a screen would see and type them. Enter it with ``with``.

    Iterating gives what the terminal shows until its program has ended; then ``exit_code`` or ``signal`` is there.
    """

    def __init__(self, wire: Wire, sandbox: Callable[[], str], options: Mapping[str, Any]) -> None:
        self._wire = wire
        self._sandbox = sandbox
        self._query = {name: value for name, value in options.items() if value is not None}
        self._websocket: WebSocket | None = None
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.ended = False

    def start(self) -> Terminal:
        """Opens it."""
        from websockets.exceptions import InvalidStatus, WebSocketException

        path = f"/v1/sandboxes/{part(self._sandbox())}/terminal"
        if self._query:
            path += f"?{urlencode(self._query)}"
        try:
            self._websocket = io.open_websocket(self._wire.address(), path, self._wire.authorization())
        except InvalidStatus as problem:
            try:
                body = json.loads(problem.response.body or b"")
            except ValueError:
                body = None
            raise errors.from_answer(body, problem.response.status_code) from None
        except (OSError, WebSocketException) as problem:
            raise Unavailable(f"the terminal cannot be opened: {problem}") from problem
        return self

    def _open(self) -> WebSocket:
        if self._websocket is None:
            raise BelljarError("the terminal is not open: enter it, or call start()")
        return self._websocket

    def send(self, data: str | bytes) -> None:
        """Types this. Enter is ``"\\r"``, Ctrl-C is ``"\\x03"``."""
        self._open().send(data.encode() if isinstance(data, str) else bytes(data))

    def resize(self, rows: int, cols: int) -> None:
        """The screen has another size from now on."""
        self._open().send(json.dumps({"type": "resize", "rows": rows, "cols": cols}))

    def receive(self, timeout: float | None = None) -> bytes:
        """What is shown next; empty at the end. ``TimeoutError`` if nothing is within so many seconds."""
        from websockets.exceptions import ConnectionClosed

        while not self.ended:
            try:
                said = io.receive(self._open(), timeout)
            except ConnectionClosed:
                self.ended = True
                break
            if isinstance(said, bytes):
                return said
            told = json.loads(said)
            if told.get("type") == "exit":
                self.exit_code, self.signal = told.get("exit_code"), told.get("signal")
                self.ended = True
            elif told.get("type") == "error":
                self.ended = True
                raise errors.from_answer(told)
        return b""

    def read_until(self, text: str | bytes, timeout: float | None = None) -> bytes:
        """All that is shown up to this text, with it. ``TimeoutError`` if nothing more comes within so many seconds."""
        wanted = text.encode() if isinstance(text, str) else text
        shown = b""
        while wanted not in shown:
            piece = self.receive(timeout)
            if not piece:
                raise BelljarError(f"the terminal ended before it had shown {wanted!r}; it showed {shown[-200:]!r}")
            shown += piece
        return shown

    def __iter__(self) -> Terminal:
        return self

    def __next__(self) -> bytes:
        piece = self.receive()
        if not piece:
            raise StopIteration
        return piece

    def close(self) -> None:
        """Hangs up; what runs in it is ended."""
        websocket, self._websocket = self._websocket, None
        self.ended = True
        if websocket is not None:
            io.close_websocket(websocket)

    def __enter__(self) -> Terminal:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()
