"""For `_sync`: everything blocks the calling thread."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from .. import _descriptors
from .._address import Address
from .._http import Broken, is_readable
from ..errors import InvalidRequest
from ..events import ToolCallEvent
from ..tools import Toolbox, answer, failure, is_async, value_of
from ..values import piece

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

    from websockets.sync.client import ClientConnection

    WebSocket = ClientConnection

T = TypeVar("T")
Lock = threading.Lock
Event = threading.Event
sleep = time.sleep

_PIECE = 256 << 10


def acquire(lock: threading.Lock, timeout: float) -> bool:
    """Whether it could be had in so many seconds."""
    return lock.acquire(timeout=timeout)


def place() -> Hashable:
    """What connections belong to: they cannot be used from a forked process."""
    return os.getpid()


def prepare() -> None:
    """Before the first connection."""


def is_over(place: Hashable) -> bool:
    """Whether connections of that place are of no use any more."""
    return place != os.getpid()


def off(function: Callable[..., T], *args: Any) -> T:
    """Calls what blocks."""
    return function(*args)


class Pipe:
    """A connection over a unix socket."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self.unread = False
        """Whether the other end left before it had read all that was sent."""

    def send(self, data: bytes) -> bool:
        """Whether the other end still listens."""
        try:
            self._stream.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            self.unread = True
            return False
        except OSError as problem:
            raise Broken(str(problem)) from problem
        return True

    def receive(self) -> bytes:
        """What comes next; empty at the end."""
        try:
            return self._stream.recv(_PIECE)
        except OSError as problem:
            self.unread = self.unread or isinstance(problem, ConnectionResetError)
            raise Broken(str(problem)) from problem

    def stale(self) -> bool:
        """Whether it is of no use any more."""
        return is_readable(self._stream)

    def close(self) -> None:
        self._stream.close()

    def __del__(self) -> None:
        # Those that are free when the program ends are nobody's.
        self._stream.close()


def open_pipe(path: str) -> Pipe:
    stream = _descriptors.unix_socket()
    try:
        stream.connect(path)
    except BaseException:
        stream.close()
        raise
    return Pipe(stream)


_managers: weakref.WeakKeyDictionary[WebSocket, contextlib.ExitStack] = weakref.WeakKeyDictionary()


def open_websocket(address: Address, path: str, headers: dict[str, str]) -> WebSocket:
    # Not before it is needed: most programs have no tools.
    from websockets.sync.client import connect, unix_connect

    _descriptors.look_ahead()
    options: dict[str, Any] = {"compression": None, "max_size": None, "additional_headers": headers}
    stack = contextlib.ExitStack()
    if address.socket is not None:
        # The kernel says when the other end is gone; older versions of the library have no such option.
        made = unix_connect(address.socket, address.websocket + path, **options)
    else:
        made = connect(address.websocket + path, **options)
    # What is made is a context manager in all versions of the library, and a connection only in some.
    websocket: WebSocket = stack.enter_context(made)
    _managers[websocket] = stack
    return websocket


def close_websocket(websocket: WebSocket) -> None:
    stack = _managers.pop(websocket, None)
    if stack is not None:
        stack.close()


class Calls:
    """The calls of tools that are open in one run.

    Functions are called in the thread that called ``run``, one after the other; those that are ``async`` in an event loop
    beside it, all at the same time.
    """

    def __init__(self, toolbox: Toolbox, answer: Callable[[str], None]) -> None:
        self._toolbox = toolbox
        self._answer = answer
        self._futures: set[Future[None]] = set()
        self._over = False

    def begin(self, run: str, call: ToolCallEvent) -> None:
        function = self._toolbox.functions.get(call.tool)
        if function is not None and is_async(function):
            import asyncio

            future = asyncio.run_coroutine_threadsafe(self._one(run, call, function), _event_loop())
            self._futures.add(future)
            future.add_done_callback(self._futures.discard)
            return
        try:
            if function is None:
                raise NameError(f"there is no tool {call.tool!r}")
            outcome = value_of(call.tool, function(*call.args, **call.kwargs))
        except (Exception, SystemExit) as error:
            # What code inside can bring about must not end the caller's program.
            outcome = failure(error)
        self._send(run, call, outcome)

    async def _one(self, run: str, call: ToolCallEvent, function: Callable[..., Any]) -> None:
        try:
            outcome = value_of(call.tool, await function(*call.args, **call.kwargs))
        except GeneratorExit:
            raise
        except BaseException as error:
            if self._over:
                raise
            # Also what would end the event loop, which others use too.
            outcome = failure(error)
        import asyncio

        await asyncio.to_thread(self._send, run, call, outcome)

    def _send(self, run: str, call: ToolCallEvent, outcome: dict[str, Any]) -> None:
        self._answer(answer(run, call.call, call.tool, outcome))

    def end(self) -> None:
        """The run is over: nobody waits for what is still open."""
        self._over = True
        for future in list(self._futures):
            future.cancel()


_loops: dict[int, asyncio.AbstractEventLoop] = {}
_loops_lock = threading.Lock()


def _afresh() -> None:
    """In a forked child, where nobody goes on who may have held it."""
    global _loops_lock
    _loops_lock = threading.Lock()


os.register_at_fork(after_in_child=_afresh)


def _event_loop() -> asyncio.AbstractEventLoop:
    """One for the async tools of all blocking sandboxes of this process."""
    # Not before it is needed: it takes longer to load than the package.
    import asyncio

    with _loops_lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = asyncio.new_event_loop()
            _loops[os.getpid()] = loop
            threading.Thread(target=loop.run_forever, name="belljar-tools", daemon=True).start()
        return loop


class Group:
    """Work that goes on beside the caller."""

    def __init__(self) -> None:
        self._threads: set[threading.Thread] = set()

    def start(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            finally:
                self._threads.discard(thread)

        thread = threading.Thread(target=run, name="belljar-pool", daemon=True)
        self._threads.add(thread)
        thread.start()

    def join(self) -> None:
        """Until all of it is done."""
        for thread in list(self._threads):
            thread.join()


class Queue:
    """Things that wait to be taken, first in, first out."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def put(self, item: Any) -> None:
        self._queue.put(item)

    def get(self) -> Any:
        return self._queue.get()

    def get_now(self) -> Any:
        """None if nothing waits."""
        try:
            return self._queue.get_nowait()
        except queue.Empty:
            return None

    def __len__(self) -> int:
        return self._queue.qsize()


def shielded(work: Callable[..., None], *args: Any) -> None:
    """To its end."""
    work(*args)


def unhurried(work: Callable[[], None]) -> None:
    """To its end."""
    work()


def receive(websocket: WebSocket, timeout: float | None) -> str | bytes:
    """The next message; ``TimeoutError`` if there is none in time."""
    return websocket.recv(timeout)


def pieces(data: Any) -> bytes | Iterator[bytes]:
    """What is to be sent, as a request takes it."""
    if isinstance(data, (str, bytes, bytearray, memoryview)):
        return piece(data)
    if isinstance(data, os.PathLike) or hasattr(data, "read"):
        return _pieces(data)
    if isinstance(data, Mapping) or not isinstance(data, Iterable):
        raise InvalidRequest(
            f"{type(data).__name__} is no content of a file; give text, bytes, a path, an open file, or pieces"
        )
    return _pieces(data)


def _pieces(data: Any) -> Iterator[bytes]:
    if isinstance(data, os.PathLike):
        with open(data, "rb") as file:
            while some := file.read(_PIECE):
                yield piece(some)
    elif hasattr(data, "read"):
        while some := data.read(_PIECE):
            yield piece(some)
    else:
        for some in data:
            yield piece(some)
