"""Sandboxes that nobody has used, made ahead of time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from .._io import asynchronous as io
from ..errors import BelljarError, NotFound
from ..requests import CodeOptions, SandboxOptions, Unpack, body, spelled_out
from ..results import Result
from ..tools import Tools
from .sandbox import AsyncSandbox

if TYPE_CHECKING:
    from .client import AsyncClient


class AsyncPool:
    """Holds ``size`` pristine sandboxes ready. Each is given out once: what is released is deleted, and another is made.

    The other options are those of :class:`AsyncSandbox`.
    """

    @spelled_out(SandboxOptions)
    def __init__(
        self,
        size: int,
        *,
        tools: Tools | None = None,
        client: AsyncClient | None = None,
        **options: Unpack[SandboxOptions],
    ) -> None:
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"size: {type(size).__name__} is not accepted; give a whole number")
        if size < 1:
            raise ValueError(f"size: {size} is not accepted; give at least 1")
        body(SandboxOptions, "AsyncPool", options)  # what is wrong is told now, not in the background
        self.size = size
        self._make: dict[str, Any] = {"tools": tools, "client": client, **options}
        self._ready = io.Queue()
        self._work = io.Group()
        self._out: set[AsyncSandbox] = set()
        self._counting = io.Lock()
        self._coming = 0
        self._waiting = 0
        """How many are being made, and how many wait for one."""
        self._started = False
        self._closed = False

    @property
    def ready(self) -> int:
        """How many wait."""
        return len(self._ready)

    async def start(self) -> AsyncPool:
        """Begins to fill it; who acquires waits for the first."""
        if self._closed:
            raise BelljarError("the pool has been closed")
        if not self._started:
            self._started = True
            await self._fill()
        return self

    async def _fill(self) -> None:
        """Has made what is missing: one for each who waits, and ``size`` more."""
        async with self._counting:
            missing = self.size + self._waiting - len(self._ready) - self._coming
            self._coming += max(missing, 0)
        for _ in range(missing):
            self._work.start(self._add)

    async def _add(self) -> None:
        async with self._counting:
            if len(self._ready) + self._coming > self.size + self._waiting:
                self._coming -= 1  # who wanted it has left
                return
        sandbox = AsyncSandbox(**self._make)
        made: AsyncSandbox | BelljarError = sandbox
        try:
            await sandbox.start()
        except BelljarError as problem:
            made = problem
        async with self._counting:
            self._coming -= 1
            self._ready.put(made)
        await self._trim()

    async def _trim(self) -> None:
        """Deletes what is more than is wanted."""
        while True:
            async with self._counting:
                wanted = 0 if self._closed else self.size + self._waiting
                one = self._ready.get_now() if len(self._ready) > wanted else None
            if one is None:
                return
            if isinstance(one, AsyncSandbox):
                try:
                    await one.aclose()
                except BelljarError:
                    pass  # its daemon is gone, and it with it

    async def acquire(self) -> AsyncSandbox:
        """A sandbox that nobody has used. Another is made in its place at once."""
        await self.start()
        while True:
            made = await self._next()
            if not isinstance(made, AsyncSandbox):
                raise made
            if await self._is_there(made):
                self._out.add(made)
                return made

    async def _next(self) -> Any:
        if self._closed:
            raise BelljarError("the pool has been closed")
        async with self._counting:
            self._waiting += 1
        try:
            await self._fill()
            return await self._ready.get()
        except BaseException:
            self._work.start(self._trim)  # what was made for this one nobody wants
            raise
        finally:
            async with self._counting:
                self._waiting -= 1

    async def _is_there(self, made: AsyncSandbox) -> bool:
        """Whether it still is: one that waited may have been idle for too long, or its daemon gone. Its time starts anew."""
        try:
            await made.renew()
        except NotFound:
            await made.aclose()
            return False
        except BaseException:
            self._ready.put(made)
            self._work.start(self._trim)
            raise
        return True

    async def release(self, sandbox: AsyncSandbox) -> None:
        """Deletes it: nobody else gets a sandbox that has been used."""
        self._out.discard(sandbox)
        await sandbox.aclose()

    @asynccontextmanager
    async def sandbox(self) -> AsyncIterator[AsyncSandbox]:
        """One for the body of an ``async with``."""
        sandbox = await self.acquire()
        try:
            yield sandbox
        finally:
            await io.shielded(self.release, sandbox)

    @spelled_out(CodeOptions)
    async def run(self, code: str, *, check: bool = False, **options: Unpack[CodeOptions]) -> Result:
        """Runs code in a sandbox that is thrown away afterwards."""
        async with self.sandbox() as sandbox:
            return await sandbox.run(code, check=check, **options)

    async def aclose(self) -> None:
        """Deletes those that wait, and those that were not released."""
        self._closed = True
        await self._work.join()
        await self._trim()
        for _ in range(self._waiting):
            self._ready.put(BelljarError("the pool has been closed"))
        for sandbox in list(self._out):
            await self.release(sandbox)

    async def __aenter__(self) -> AsyncPool:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<AsyncPool of {self.size}, {self.ready} ready>"
