# Made from `_async` by `scripts/generate.py`. Do not edit.
"""Sandboxes that nobody has used, made ahead of time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .._io import synchronous as io
from ..errors import BelljarError, NotFound
from ..requests import CodeOptions, SandboxOptions, Unpack, body, spelled_out
from ..results import Result
from ..tools import Tools
from .sandbox import Sandbox

if TYPE_CHECKING:
    from .client import Client


class Pool:
    """Holds ``size`` pristine sandboxes ready. Each is given out once: what is released is deleted, and another is made.

    The other options are those of :class:`Sandbox`.
    """

    @spelled_out(SandboxOptions)
    def __init__(
        self,
        size: int,
        *,
        tools: Tools | None = None,
        client: Client | None = None,
        **options: Unpack[SandboxOptions],
    ) -> None:
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"size: {type(size).__name__} is not accepted; give a whole number")
        if size < 1:
            raise ValueError(f"size: {size} is not accepted; give at least 1")
        body(SandboxOptions, "Pool", options)  # what is wrong is told now, not in the background
        self.size = size
        self._make: dict[str, Any] = {"tools": tools, "client": client, **options}
        self._ready = io.Queue()
        self._work = io.Group()
        self._out: set[Sandbox] = set()
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

    def start(self) -> Pool:
        """Begins to fill it; who acquires waits for the first."""
        if self._closed:
            raise BelljarError("the pool has been closed")
        if not self._started:
            self._started = True
            self._fill()
        return self

    def _fill(self) -> None:
        """Has made what is missing: one for each who waits, and ``size`` more."""
        with self._counting:
            missing = self.size + self._waiting - len(self._ready) - self._coming
            self._coming += max(missing, 0)
        for _ in range(missing):
            self._work.start(self._add)

    def _add(self) -> None:
        with self._counting:
            if len(self._ready) + self._coming > self.size + self._waiting:
                self._coming -= 1  # who wanted it has left
                return
        sandbox = Sandbox(**self._make)
        made: Sandbox | BelljarError = sandbox
        try:
            sandbox.start()
        except BelljarError as problem:
            made = problem
        with self._counting:
            self._coming -= 1
            self._ready.put(made)
        self._trim()

    def _trim(self) -> None:
        """Deletes what is more than is wanted."""
        while True:
            with self._counting:
                wanted = 0 if self._closed else self.size + self._waiting
                one = self._ready.get_now() if len(self._ready) > wanted else None
            if one is None:
                return
            if isinstance(one, Sandbox):
                try:
                    one.close()
                except BelljarError:
                    pass  # its daemon is gone, and it with it

    def acquire(self) -> Sandbox:
        """A sandbox that nobody has used. Another is made in its place at once."""
        self.start()
        while True:
            made = self._next()
            if not isinstance(made, Sandbox):
                raise made
            if self._is_there(made):
                self._out.add(made)
                return made

    def _next(self) -> Any:
        if self._closed:
            raise BelljarError("the pool has been closed")
        with self._counting:
            self._waiting += 1
        try:
            self._fill()
            return self._ready.get()
        except BaseException:
            self._work.start(self._trim)  # what was made for this one nobody wants
            raise
        finally:
            with self._counting:
                self._waiting -= 1

    def _is_there(self, made: Sandbox) -> bool:
        """Whether it still is: one that waited may have been idle for too long, or its daemon gone. Its time starts anew."""
        try:
            made.renew()
        except NotFound:
            made.close()
            return False
        except BaseException:
            self._ready.put(made)
            self._work.start(self._trim)
            raise
        return True

    def release(self, sandbox: Sandbox) -> None:
        """Deletes it: nobody else gets a sandbox that has been used."""
        self._out.discard(sandbox)
        sandbox.close()

    @contextmanager
    def sandbox(self) -> Iterator[Sandbox]:
        """One for the body of an ``with``."""
        sandbox = self.acquire()
        try:
            yield sandbox
        finally:
            io.shielded(self.release, sandbox)

    @spelled_out(CodeOptions)
    def run(self, code: str, *, check: bool = False, **options: Unpack[CodeOptions]) -> Result:
        """Runs code in a sandbox that is thrown away afterwards."""
        with self.sandbox() as sandbox:
            return sandbox.run(code, check=check, **options)

    def close(self) -> None:
        """Deletes those that wait, and those that were not released."""
        self._closed = True
        self._work.join()
        self._trim()
        for _ in range(self._waiting):
            self._ready.put(BelljarError("the pool has been closed"))
        for sandbox in list(self._out):
            self.release(sandbox)

    def __enter__(self) -> Pool:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Pool of {self.size}, {self.ready} ready>"
