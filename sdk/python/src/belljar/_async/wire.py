"""One daemon, and requests to it."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, AsyncIterable, Hashable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from .. import _address, daemon, errors
from .._address import Address
from .._http import Broken, Unreached
from .._io import asynchronous as io
from .._version import VERSION
from ..errors import InvalidRequest, Unavailable
from .line import AsyncLine, AsyncWaiter
from .nearby import AsyncNearby, AsyncNearbyAnswer

if TYPE_CHECKING:
    from .far import AsyncFar, AsyncFarAnswer

    Connections = AsyncNearby | AsyncFar
    Answer = AsyncNearbyAnswer | AsyncFarAnswer

Body = bytes | AsyncIterable[bytes] | None
_JSON = "application/json"
_EVENTS = "text/event-stream"
_PATIENCE = 60.0
"""Seconds for which what the daemon has no room for is tried again, if nobody else gets in meanwhile."""
_ROOM = ("/v1/sandboxes", "/v1/runs")
_ADVICE = {
    "room": "close sandboxes that are not needed, make them with less memory, or raise the daemon's budget",
    "turn": "what runs in other sandboxes takes all processors that the daemon's budget has",
}


class AsyncWire:
    """Speaks HTTP with a daemon; finds or starts the user's own if none is named."""

    def __init__(self, url: str | None = None, token: str | None = None, patience: float | None = None) -> None:
        if patience is not None and (isinstance(patience, bool) or not isinstance(patience, (int, float))):
            raise InvalidRequest(f"patience: {type(patience).__name__} is not accepted; give seconds")
        if token is not None and not isinstance(token, str):
            raise InvalidRequest(f"token: {type(token).__name__} is not accepted; give text")
        self._patience = _PATIENCE if patience is None else patience
        self._named = _address.configured(url)
        # The user's own daemon knows its owner by the socket.
        self._token = token or (os.environ.get("BELLJAR_TOKEN") if self._named is not None else None)
        if self._token and not (self._token.isascii() and self._token.isprintable()):
            raise InvalidRequest("token: it is not accepted; give one line of printable ASCII, as it was made")
        self._connections: dict[Hashable, Connections] = {}
        self._lines: dict[tuple[Hashable, str], AsyncLine] = {}
        self._headers = {"user-agent": f"belljar-python/{VERSION}", **self.authorization()}

    def authorization(self) -> dict[str, str]:
        """The header that says who we are."""
        return {"authorization": f"Bearer {self._token}"} if self._token else {}

    async def address(self) -> Address:
        """Where the daemon is; after this it is there."""
        if self._named is not None:
            return self._named
        return _address.nearby(await io.off(daemon.ensure))

    async def _connected(self, fresh: bool = False) -> Connections:
        place = io.place()
        known = self._connections.get(place)
        if known is not None and not fresh:
            return known
        for other in [other for other in self._connections if io.is_over(other)]:
            # Its connections belong to a loop or a process that is gone; they cannot be closed from here.
            del self._connections[other]
            for key in [key for key in self._lines if key[0] == other]:
                del self._lines[key]
        address = await self.address()
        known = self._connections.get(place)
        if known is None or known.address != address:
            # Not the same as before, and nobody else was quicker.
            known = self._connections[place] = _connections(address)
        return known

    async def send(self, method: str, path: str, content: Body = None, **options: Any) -> Answer:
        """The answer, whose body has not been read yet. One that is no success is raised.

        Where there is no room, nothing was started: it is tried again as long as patience lasts.
        """
        waiter: AsyncWaiter | None = None
        line = self._line_of(path)
        while True:
            try:
                answer = await self._once(method, path, content, **options)
                self.moved(line)
                return answer
            except Unavailable as problem:
                # What came in pieces cannot be sent again.
                again = content is None or isinstance(content, bytes)
                if problem.retry_after is None or not again:
                    raise
                waiter = waiter or self.waiter(line)
                await waiter.again(problem)

    def _line_of(self, path: str) -> str:
        """Who wants a sandbox waits for memory, and who has one for a turn: the one says nothing about the other."""
        return "room" if path in _ROOM else "turn"

    def waiter(self, line: str = "turn") -> AsyncWaiter:
        """For one whom the daemon had no room for."""
        key = (io.place(), line)
        known = self._lines.get(key)
        if known is None:
            nearby = self._named is None or self._named.socket is not None
            known = self._lines.setdefault(key, AsyncLine(nearby))
        return AsyncWaiter(known, self._patience, _ADVICE[line])

    def moved(self, line: str = "turn") -> None:
        """Somebody got in."""
        if self._lines:
            known = self._lines.get((io.place(), line))
            if known is not None:
                known.moved()

    async def _once(
        self,
        method: str,
        path: str,
        content: Body = None,
        *,
        kind: str | None = None,
        accept: str | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Answer:
        connections = await self._connected()
        headers = dict(self._headers)
        if kind is not None:
            headers["content-type"] = kind
        if accept is not None:
            headers["accept"] = accept
        target = f"{path}?{urlencode(query)}" if query else path
        try:
            try:
                answer = await connections.exchange(method, target, headers, content)
            except Unreached:
                # Nothing was sent. A daemon of our own may have left since.
                connections = await self._connected(fresh=True)
                answer = await connections.exchange(method, target, headers, content)
            if answer.status >= 400:
                raise await _refusal(answer)
            return answer
        except Broken as problem:
            raise Unavailable(f"the daemon at {where(connections.address)} {trouble(problem)}") from problem

    async def json(self, method: str, path: str, content: Body = None, **options: Any) -> Any:
        """The answer's body, which is JSON; None if there is none."""
        kind = _JSON if isinstance(content, bytes) else None
        answer = await self.send(method, path, content, **{"kind": kind, **options})
        try:
            data = await answer.read()
        except Broken as problem:
            raise Unavailable(f"the daemon {trouble(problem)}") from problem
        return json.loads(data) if data else None

    async def pieces(self, answer: Answer) -> AsyncGenerator[bytes, None]:
        """The body of an answer, as it comes."""
        pieces = answer.pieces()
        try:
            async for piece in pieces:
                yield piece
        except Broken as problem:
            raise Unavailable(f"the daemon {trouble(problem)}") from problem
        finally:
            await pieces.aclose()
            await answer.aclose()

    async def events(
        self, path: str, content: bytes, query: Mapping[str, str] | None = None
    ) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
        """Server-sent events: their names and data."""
        answer = await self.send("POST", path, content, kind=_JSON, accept=_EVENTS, query=query)
        pieces = self.pieces(answer)
        rest = b""
        try:
            async for piece in pieces:
                *blocks, rest = (rest + piece).split(b"\n\n")
                for block in blocks:
                    lines = dict(line.split(b": ", 1) for line in block.split(b"\n") if b": " in line)
                    if b"event" in lines:
                        yield lines[b"event"].decode(), json.loads(lines[b"data"])
        finally:
            await pieces.aclose()

    async def aclose(self) -> None:
        """Closes the connections of this place."""
        known = self._connections.pop(io.place(), None)
        if known is not None:
            await known.aclose()


def _connections(address: Address) -> Connections:
    if address.socket is not None:
        return AsyncNearby(address)
    # Not before it is needed: loading what it needs takes longer than a hundred requests to a daemon nearby.
    from .far import AsyncFar

    return AsyncFar(address)


async def _refusal(answer: Answer) -> errors.BelljarError:
    data = await answer.read()
    try:
        body = json.loads(data)
    except ValueError:
        body = None
    return errors.from_answer(body, answer.status, answer.header("retry-after"))


def where(address: Address) -> str:
    """For people."""
    return f"unix://{address.socket}" if address.socket is not None else address.base


def trouble(problem: Broken) -> str:
    """What happened, as the end of a sentence."""
    if isinstance(problem, Unreached):
        return f"cannot be reached: {problem}"
    return f"went away before it had answered: {str(problem) or 'the connection was closed'}"


def part(text: str) -> str:
    """As a part of a path."""
    return quote(text, safe="")


def below(path: str) -> str:
    """A path of a file, as the rest of a path. Dots are the daemon's to judge, not to be tidied up on the way."""
    parts = quote(path.removeprefix("./"), safe="/").split("/")
    return "/".join(each.replace(".", "%2E") if each in (".", "..") else each for each in parts)


_defaults: dict[tuple[str | None, str | None], AsyncWire] = {}


def default_wire() -> AsyncWire:
    """The one that everybody uses who names no other."""
    named = (os.environ.get("BELLJAR_URL"), os.environ.get("BELLJAR_TOKEN"))
    wire = _defaults.get(named)
    if wire is None:
        wire = _defaults.setdefault(named, AsyncWire())
    return wire
