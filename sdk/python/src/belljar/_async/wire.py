"""One daemon, and requests to it."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import AsyncGenerator, AsyncIterable, Hashable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from .. import _address, daemon, errors
from .._address import Address
from .._io import asynchronous as io
from .._version import VERSION
from ..errors import Unavailable
from .connections import AsyncConnections

if TYPE_CHECKING:
    import httpx

Body = bytes | AsyncIterable[bytes] | None
_JSON = "application/json"
_EVENTS = "text/event-stream"
_PATIENCE = 60.0
"""Seconds for which what the daemon has no room for is tried again."""


class AsyncWire:
    """Speaks HTTP with a daemon; finds or starts the user's own if none is named."""

    def __init__(self, url: str | None = None, token: str | None = None, patience: float | None = None) -> None:
        self._patience = _PATIENCE if patience is None else patience
        self._named = _address.configured(url)
        # The user's own daemon knows its owner by the socket.
        self._token = token or (os.environ.get("BELLJAR_TOKEN") if self._named is not None else None)
        self._connections: dict[Hashable, AsyncConnections] = {}
        self._headers = {"user-agent": f"belljar-python/{VERSION}", **self.authorization()}

    def authorization(self) -> dict[str, str]:
        """The header that says who we are."""
        return {"authorization": f"Bearer {self._token}"} if self._token else {}

    async def address(self) -> Address:
        """Where the daemon is; after this it is there."""
        if self._named is not None:
            return self._named
        return _address.parse(f"unix://{await io.off(daemon.ensure)}")

    async def _connected(self, fresh: bool = False) -> AsyncConnections:
        place = io.place()
        known = self._connections.get(place)
        if known is not None and not fresh:
            return known
        for other in [other for other in self._connections if io.is_over(other)]:
            # Its connections belong to a loop or a process that is gone; they cannot be closed from here.
            del self._connections[other]
        address = await self.address()
        known = self._connections.get(place)
        if known is None or known.address != address:
            # Not the same as before, and nobody else was quicker.
            known = self._connections[place] = AsyncConnections(address)
        return known

    async def send(self, method: str, path: str, content: Body = None, **options: Any) -> httpx.Response:
        """The answer, whose body has not been read yet. One that is no success is raised.

        Where there is no room, nothing was started: it is tried again when the daemon says, as long as patience lasts.
        """
        end = time.monotonic() + self._patience
        while True:
            try:
                return await self._once(method, path, content, **options)
            except Unavailable as problem:
                pause = problem.retry_after
                # What came in pieces cannot be sent again.
                again = content is None or isinstance(content, bytes)
                if pause is None or not again or time.monotonic() + pause > end:
                    raise
            # Not all at the same moment.
            await io.sleep(pause * (0.5 + random.random()))

    async def _once(
        self,
        method: str,
        path: str,
        content: Body = None,
        *,
        kind: str | None = None,
        accept: str | None = None,
        query: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        connections = await self._connected()
        import httpx

        headers = dict(self._headers)
        if kind is not None:
            headers["content-type"] = kind
        if accept is not None:
            headers["accept"] = accept
        target = f"{path}?{urlencode(query)}" if query else path
        url = connections.address.base + target
        try:
            try:
                response = await connections.exchange(httpx.Request(method, url, headers=headers, content=content))
            except httpx.ConnectError:
                # Nothing was sent. A daemon of our own may have left since.
                connections = await self._connected(fresh=True)
                response = await connections.exchange(httpx.Request(method, url, headers=headers, content=content))
            if response.status_code >= 400:
                raise await _refusal(response)
            return response
        except httpx.HTTPError as problem:
            raise Unavailable(f"the daemon at {where(connections.address)} {trouble(problem)}") from problem

    async def json(self, method: str, path: str, content: Body = None, **options: Any) -> Any:
        """The answer's body, which is JSON; None if there is none."""
        import httpx

        kind = _JSON if isinstance(content, bytes) else None
        response = await self.send(method, path, content, **{"kind": kind, **options})
        try:
            data = await response.aread()
        except httpx.HTTPError as problem:
            raise Unavailable(f"the daemon {trouble(problem)}") from problem
        return json.loads(data) if data else None

    async def pieces(self, response: httpx.Response) -> AsyncGenerator[bytes, None]:
        """The body of an answer, as it comes."""
        import httpx

        try:
            async for piece in response.aiter_bytes():
                yield piece
        except httpx.HTTPError as problem:
            raise Unavailable(f"the daemon {trouble(problem)}") from problem
        finally:
            await response.aclose()

    async def events(self, path: str, content: bytes) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
        """Server-sent events: their names and data."""
        response = await self.send("POST", path, content, kind=_JSON, accept=_EVENTS)
        pieces = self.pieces(response)
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


async def _refusal(response: httpx.Response) -> errors.BelljarError:
    data = await response.aread()
    try:
        body = json.loads(data)
    except ValueError:
        body = None
    return errors.from_answer(body, response.status_code, response.headers.get("retry-after"))


def where(address: Address) -> str:
    """For people."""
    return f"unix://{address.socket}" if address.socket is not None else address.base


def trouble(problem: Exception) -> str:
    """What happened, as the end of a sentence."""
    import httpx

    if isinstance(problem, httpx.ConnectError):
        return f"cannot be reached: {problem}"
    return f"went away before it had answered: {problem or type(problem).__name__}"


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
