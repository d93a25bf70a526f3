"""A daemon of this host, over its unix socket. A request takes a small part of what a transport for all the world needs."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING

from .._address import Address
from .._http import LONGEST, AnswerHead, Broken, Unreached, chunk, chunk_length, request_head
from .._io import asynchronous as io

if TYPE_CHECKING:
    from .wire import Body

_IDLE = 10.0
"""Seconds; less than the daemon keeps a connection that nobody uses."""
_KEPT = 256


class AsyncNearby:
    """As many connections as there are requests at one time; those that are free are used again."""

    def __init__(self, address: Address) -> None:
        self.address = address
        # Threads share it: only what is one step for all of them is done with it.
        self._free: list[tuple[float, io.Pipe]] = []

    def _kept(self) -> io.Pipe | None:
        while self._free:
            try:
                since, pipe = self._free.pop()
            except IndexError:
                return None
            if time.monotonic() - since < _IDLE and not pipe.stale():
                return pipe
            pipe.close()
        return None

    def keep(self, pipe: io.Pipe) -> None:
        """Nobody needs it now."""
        if len(self._free) < _KEPT:
            self._free.append((time.monotonic(), pipe))
        else:
            pipe.close()

    async def exchange(
        self, method: str, target: str, headers: Mapping[str, str], content: Body = None
    ) -> AsyncNearbyAnswer:
        """The answer, whose body has not been read yet."""
        known = content is None or isinstance(content, bytes)
        data = content if isinstance(content, bytes) else b""
        head = request_head(method, target, headers, len(data) if known else None)
        while True:
            pipe = self._kept()
            used = pipe is not None
            if pipe is None:
                try:
                    pipe = await io.open_pipe(str(self.address.socket))
                except OSError as problem:
                    raise Unreached(str(problem)) from problem
            try:
                await self._send(pipe, head + data, None if known else content)
                answer = AsyncNearbyAnswer(self, pipe)
                await answer.begin()
                return answer
            except BaseException as problem:
                # The daemon ends what nobody waits for.
                pipe.close()
                if isinstance(problem, Broken) and pipe.unread and known:
                    # It was closed at the other end before we used it: nobody has read this.
                    if used:
                        continue
                    raise Unreached(str(problem)) from problem
                raise

    async def _send(self, pipe: io.Pipe, first: bytes, content: Body) -> None:
        """All of it, unless the daemon stops listening: there may be an answer then too, that it is too much."""
        taken = await pipe.send(first)
        if content is not None and not isinstance(content, bytes):
            async for piece in content:
                if not taken:
                    return
                if piece:
                    taken = await pipe.send(chunk(piece))
            await pipe.send(chunk(b""))

    async def aclose(self) -> None:
        """Closes those that are free."""
        while self._free:
            self._free.pop()[1].close()


class AsyncNearbyAnswer:
    """What the daemon answered. Its body is read once; the connection is free again after that."""

    def __init__(self, connections: AsyncNearby, pipe: io.Pipe) -> None:
        self._connections = connections
        self._pipe: io.Pipe | None = pipe
        self._rest = b""
        self._head: AnswerHead

    async def begin(self) -> None:
        """Up to the body."""
        while True:
            self._head = AnswerHead(await self._until(b"\r\n\r\n"))
            if self._head.status >= 200:
                break
        if self._head.length == 0:
            self._done()

    @property
    def status(self) -> int:
        return self._head.status

    def header(self, name: str) -> str | None:
        """By its name in small letters."""
        return self._head.headers.get(name)

    async def read(self) -> bytes:
        """All of the body."""
        return b"".join([piece async for piece in self.pieces()])

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The body as it comes."""
        if self._pipe is None:
            return
        try:
            if self._head.chunked:
                while (length := chunk_length(await self._until(b"\r\n"))) > 0:
                    while length:
                        piece = await self._some(length)
                        length -= len(piece)
                        yield piece
                    await self._until(b"\r\n")
                while await self._until(b"\r\n"):
                    pass  # trailers
            elif self._head.length is not None:
                left = self._head.length
                while left:
                    piece = await self._some(left)
                    left -= len(piece)
                    yield piece
            else:
                self._head.keeps = False
                while piece := self._rest or await self._pipe.receive():
                    self._rest = b""
                    yield piece
            self._done()
        finally:
            await self.aclose()

    async def _more(self) -> bytes:
        piece = await self._pipe.receive() if self._pipe is not None else b""
        if not piece:
            raise Broken("the connection was closed")
        return piece

    async def _until(self, mark: bytes) -> bytes:
        """What comes before the mark."""
        while (at := self._rest.find(mark)) < 0:
            if len(self._rest) > LONGEST:
                raise Broken("what answered does not speak HTTP")
            self._rest += await self._more()
        found, self._rest = self._rest[:at], self._rest[at + len(mark) :]
        return found

    async def _some(self, most: int) -> bytes:
        """What there is, but no more than this."""
        data = self._rest or await self._more()
        if len(data) <= most:
            self._rest = b""
            return data
        self._rest = data[most:]
        return data[:most]

    def _done(self) -> None:
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            if self._head.keeps and not self._rest:
                self._connections.keep(pipe)
            else:
                pipe.close()

    async def aclose(self) -> None:
        """Leaves what has not been read."""
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            pipe.close()
