"""For `_async`: everything waits in the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import importlib.util
import os
import socket
import sys
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Hashable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from .. import _descriptors
from .._address import Address
from .._http import Broken, is_readable
from ..errors import InvalidRequest
from ..events import ToolCallEvent
from ..tools import Toolbox, answer, failure, is_async, value_of
from ..values import piece

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

    WebSocket = ClientConnection

T = TypeVar("T")
Lock = asyncio.Lock
Event = asyncio.Event
sleep = asyncio.sleep

_threads: ThreadPoolExecutor | None = None
_MOST_THREADS = 64
_PIECE = 256 << 10


async def acquire(lock: asyncio.Lock, timeout: float) -> bool:
    """Whether it could be had in so many seconds."""
    try:
        return await asyncio.wait_for(lock.acquire(), timeout)
    except asyncio.TimeoutError:
        return False


def place() -> Hashable:
    """What connections belong to: they cannot be used from another event loop."""
    return asyncio.get_running_loop()


def prepare() -> None:
    """Before the first connection."""
    # The transport asks for this module many times in every request, to learn which event loop there is. Where it is not
    # installed, each of these failed imports takes longer than anything else; like this they fail at once.
    if importlib.util.find_spec("sniffio") is None:
        sys.modules.setdefault("sniffio", None)  # type: ignore[arg-type]


def is_over(place: Hashable) -> bool:
    """Whether connections of that place are of no use any more."""
    return isinstance(place, asyncio.AbstractEventLoop) and place.is_closed()


def _afresh() -> None:
    """In a forked child, where none of the parent's threads goes on."""
    global _threads
    _threads = None


os.register_at_fork(after_in_child=_afresh)


async def off(function: Callable[..., T], *args: Any) -> T:
    """Calls what blocks, beside the event loop."""
    global _threads
    if _threads is None:
        _threads = ThreadPoolExecutor(_MOST_THREADS, "belljar")
    call = functools.partial(contextvars.copy_context().run, function, *args)
    return await asyncio.get_running_loop().run_in_executor(_threads, call)


class Pipe:
    """A connection over a unix socket."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self.unread = False
        """Whether the other end left before it had read all that was sent."""

    async def send(self, data: bytes) -> bool:
        """Whether the other end still listens."""
        try:
            await asyncio.get_running_loop().sock_sendall(self._stream, data)
        except (BrokenPipeError, ConnectionResetError):
            self.unread = True
            return False
        except OSError as problem:
            raise Broken(str(problem)) from problem
        return True

    async def receive(self) -> bytes:
        """What comes next; empty at the end."""
        try:
            return await asyncio.get_running_loop().sock_recv(self._stream, _PIECE)
        except OSError as problem:
            self.unread = self.unread or isinstance(problem, ConnectionResetError)
            raise Broken(str(problem)) from problem

    def stale(self) -> bool:
        """Whether it is of no use any more."""
        return is_readable(self._stream)

    def close(self) -> None:
        self._stream.close()

    def __del__(self) -> None:
        # Those that are free when their event loop ends are nobody's.
        self._stream.close()


async def open_pipe(path: str) -> Pipe:
    stream = _descriptors.unix_socket()
    try:
        stream.setblocking(False)
        await asyncio.get_running_loop().sock_connect(stream, path)
    except BaseException:
        stream.close()
        raise
    return Pipe(stream)


async def open_websocket(address: Address, path: str, headers: dict[str, str]) -> WebSocket:
    # Not before it is needed: most programs have no tools.
    from websockets.asyncio.client import connect, unix_connect

    _descriptors.look_ahead()
    options: dict[str, Any] = {"compression": None, "max_size": None, "additional_headers": headers}
    if address.socket is not None:
        # The kernel says when the other end is gone.
        options["ping_interval"] = None
        return await unix_connect(address.socket, address.websocket + path, **options)
    return await connect(address.websocket + path, **options)


async def close_websocket(websocket: WebSocket) -> None:
    await websocket.close()


class Calls:
    """The calls of tools that are open in one run: all at the same time, functions that block in threads."""

    def __init__(self, toolbox: Toolbox, answer: Callable[[str], Awaitable[None]]) -> None:
        self._toolbox = toolbox
        self._answer = answer
        self._tasks: set[asyncio.Task[None]] = set()
        self._over = False

    async def begin(self, run: str, call: ToolCallEvent) -> None:
        task = asyncio.create_task(self._one(run, call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _one(self, run: str, call: ToolCallEvent) -> None:
        function = self._toolbox.functions.get(call.tool)
        try:
            if function is None:
                raise NameError(f"there is no tool {call.tool!r}")
            if is_async(function):
                value = await function(*call.args, **call.kwargs)
            else:
                value = await off(functools.partial(function, *call.args, **call.kwargs))
            outcome = value_of(call.tool, value)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            if self._over:
                raise
            # Also a SystemExit, or a task of the tool's own that was cancelled: code inside waits for an answer.
            outcome = failure(error)
        await self._answer(answer(run, call.call, call.tool, outcome))

    async def end(self) -> None:
        """The run is over: nobody waits for what is still open."""
        self._over = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)


class Group:
    """Work that goes on beside the caller."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            await work()

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def join(self) -> None:
        """Until all of it is done."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)


class Queue:
    """Things that wait to be taken, first in, first out."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue()

    def put(self, item: Any) -> None:
        self._queue.put_nowait(item)

    async def get(self) -> Any:
        return await self._queue.get()

    def get_now(self) -> Any:
        """None if nothing waits."""
        return None if self._queue.empty() else self._queue.get_nowait()

    def __len__(self) -> int:
        return self._queue.qsize()


async def shielded(work: Callable[..., Awaitable[None]], *args: Any) -> None:
    """To its end, even if the caller is cancelled meanwhile."""
    await asyncio.shield(asyncio.ensure_future(work(*args)))


_GRACE = 1.0
_unhurried: set[asyncio.Task[None]] = set()


async def unhurried(work: Callable[[], Awaitable[None]]) -> None:
    """If the caller is cancelled, it has a moment more to come to its end, beside what the caller does then."""
    task: asyncio.Task[None] = asyncio.ensure_future(_done(work))
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        _unhurried.add(task)
        task.add_done_callback(_over)
        asyncio.get_running_loop().call_later(_GRACE, task.cancel)
        raise
    task.result()


async def _done(work: Callable[[], Awaitable[None]]) -> None:
    await work()


def _over(task: asyncio.Task[None]) -> None:
    _unhurried.discard(task)
    if not task.cancelled():
        task.exception()  # nobody is there to hear it


async def receive(websocket: WebSocket, timeout: float | None) -> str | bytes:
    """The next message; ``TimeoutError`` if there is none in time."""
    if timeout is None:
        return await websocket.recv()
    try:
        return await asyncio.wait_for(websocket.recv(), timeout)
    except asyncio.TimeoutError:
        raise TimeoutError("nothing came in time") from None


def pieces(data: Any) -> bytes | AsyncIterator[bytes]:
    """What is to be sent, as a request takes it."""
    if isinstance(data, (str, bytes, bytearray, memoryview)):
        return piece(data)
    if isinstance(data, os.PathLike) or hasattr(data, "read"):
        return _pieces(data)
    if isinstance(data, Mapping) or not isinstance(data, (Iterable, AsyncIterable)):
        raise InvalidRequest(
            f"{type(data).__name__} is no content of a file; give text, bytes, a path, an open file, or pieces"
        )
    return _pieces(data)


async def _pieces(data: Any) -> AsyncIterator[bytes]:
    if isinstance(data, os.PathLike):
        with open(data, "rb") as file:
            while some := await off(file.read, _PIECE):
                yield piece(some)
    elif hasattr(data, "read"):
        while some := await off(data.read, _PIECE):
            yield piece(some)
    elif hasattr(data, "__aiter__"):
        async for some in data:
            yield piece(some)
    else:
        for some in data:
            yield piece(some)
