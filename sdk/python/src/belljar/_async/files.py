"""The workspace of a sandbox. Paths are below it, or as code inside has them (``/workspace/…``)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from typing import IO, Any

from .. import records
from .._io import asynchronous as io
from .._saving import saved
from ..errors import InvalidRequest, NotFound
from ..records import FileEntry
from .wire import AsyncWire, below, part

Data = str | bytes | os.PathLike[str] | IO[bytes] | Iterable[bytes] | AsyncIterable[bytes]
_BINARY = "application/octet-stream"


class AsyncFiles:
    """Reads, writes, lists and deletes what is in a sandbox's workspace."""

    def __init__(self, wire: AsyncWire, sandbox: Callable[[], Awaitable[str]], workdir: str | None = None) -> None:
        self._wire = wire
        self._sandbox = sandbox
        self._workdir = workdir.rstrip("/") if workdir else None

    def _inside(self, path: str | os.PathLike[str]) -> str:
        """The path below the workspace of one that may be written as code inside has it."""
        named = os.fspath(path) if isinstance(path, os.PathLike) else path
        if not isinstance(named, str):
            raise InvalidRequest(f"path: {type(path).__name__} is not accepted; give text")
        if self._workdir and f"{named}/".startswith(f"{self._workdir}/"):
            return named[len(self._workdir) :].lstrip("/")
        return named

    async def _path(self, rest: str) -> str:
        return f"/v1/sandboxes/{part(await self._sandbox())}{rest}"

    async def read(self, path: str) -> bytes:
        """All of a file."""
        response = await self._wire.send("GET", await self._path(f"/files/{below(self._inside(path))}"))
        return b"".join([piece async for piece in self._wire.pieces(response)])

    async def read_text(self, path: str, encoding: str = "utf-8") -> str:
        """All of a file, as text."""
        return (await self.read(path)).decode(encoding)

    async def stream(self, path: str) -> AsyncIterator[bytes]:
        """A file in pieces, however large it is."""
        response = await self._wire.send("GET", await self._path(f"/files/{below(self._inside(path))}"))
        async for piece in self._wire.pieces(response):
            yield piece

    async def write(self, path: str, data: Data) -> FileEntry:
        """Writes a file: text, bytes, a file of yours by its path, an open file, or pieces. Directories on the way are made."""
        content = io.pieces(data)
        return records.entry(
            await self._wire.json("PUT", await self._path(f"/files/{below(self._inside(path))}"), content, kind=_BINARY)
        )

    async def list(self, path: str = "", *, depth: int | None = None) -> list[FileEntry]:
        """What is in a directory; with ``depth`` so many levels below it too."""
        query: dict[str, str] = {}
        below_it = self._inside(path)
        if below_it not in ("", "."):
            query["path"] = below_it
        if depth is not None:
            query["depth"] = str(depth)
        found: list[FileEntry] = []
        while True:
            answer = await self._wire.json("GET", await self._path("/files"), query=query)
            found += [records.entry(each) for each in answer["files"]]
            if answer.get("next") is None:
                return found
            query["skip"] = str(answer["next"])

    async def exists(self, path: str) -> bool:
        """Whether there is such a file or directory."""
        parent, _, name = self._inside(path).rstrip("/").rpartition("/")
        try:
            entries = await self.list(parent)
        except NotFound:
            return False
        return any(entry.path.rpartition("/")[2] == name for entry in entries)

    async def delete(self, path: str) -> None:
        """Deletes a file, or a directory with what is in it."""
        await self._wire.json("DELETE", await self._path(f"/files/{below(self._inside(path))}"))

    async def mkdir(self, path: str) -> FileEntry:
        """Makes a directory, and those on the way to it."""
        where = await self._path(f"/files/{below(self._inside(path))}")
        return records.entry(await self._wire.json("PUT", where, query={"kind": "directory"}))

    async def download(self, path: str, to: str | os.PathLike[str]) -> None:
        """Copies a file to one of yours, in pieces. Yours is as it was until all of it is there."""
        with saved(to) as file:
            async for piece in self.stream(path):
                file.write(piece)

    async def upload(self, file: str | os.PathLike[str], path: str) -> FileEntry:
        """Copies a file of yours in, in pieces."""
        with open(file, "rb") as opened:
            return await self.write(path, opened)

    async def archive(self, path: str = "") -> bytes:
        """A directory, or all of the workspace, as a tar archive."""
        return b"".join([piece async for piece in self.archive_stream(path)])

    async def archive_stream(self, path: str = "") -> AsyncIterator[bytes]:
        """The same in pieces, however large it is."""
        query = {"path": below_it} if (below_it := self._inside(path)) else None
        response = await self._wire.send("GET", await self._path("/archive"), query=query)
        async for piece in self._wire.pieces(response):
            yield piece

    async def unpack(self, archive: Data, path: str = "") -> dict[str, Any]:
        """Unpacks a tar archive into a directory, or the workspace. Says how many ``files`` and ``bytes`` came."""
        query = {"path": below_it} if (below_it := self._inside(path)) else None
        answer: dict[str, Any] = await self._wire.json(
            "PUT", await self._path("/archive"), io.pieces(archive), kind="application/x-tar", query=query
        )
        return answer
