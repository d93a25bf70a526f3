"""Sandboxes that a program has not closed, and forgets or leaves behind when it ends, are deleted then.

Otherwise they would be idle until the daemon gives them up.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import queue
import socket
import threading
import time
import weakref

from ._address import Address
from ._http import request_head

_left: dict[str, tuple[int, Address, dict[str, str]]] = {}
_forgotten: queue.SimpleQueue[str] = queue.SimpleQueue()
_working = _thread.allocate_lock()
_registered = False
_PATIENCE = 1.0
_PATIENCE_ALTOGETHER = 5.0
"""Seconds: nobody wants to wait for this at the end."""
_lock = threading.Lock()


def add(owner: object, id: str, address: Address, headers: dict[str, str]) -> None:
    """This one was made here; it is not needed longer than its owner."""
    global _registered
    with _lock:
        _left[id] = (os.getpid(), address, headers)
        if not _registered:
            _registered = True
            atexit.register(_sweep)
            os.register_at_fork(after_in_child=_afresh)
    # At the end of the program there is the sweep.
    weakref.finalize(owner, _forget, id).atexit = False


def discard(id: str) -> None:
    """This one is gone."""
    _left.pop(id, None)


def is_own(id: str | None) -> bool:
    """Whether this process may end it: a forked child must not delete what is its parent's."""
    known = _left.get(id) if id is not None else None
    return known is None or known[0] == os.getpid()


def _afresh() -> None:
    """In a forked child, where no thread of the parent's goes on, whatever it held."""
    global _forgotten, _working, _lock
    _forgotten, _working, _lock = queue.SimpleQueue(), _thread.allocate_lock(), threading.Lock()


def _forget(id: str) -> None:
    """Nobody refers to it any more. This may be called anywhere and at any moment, so it waits for nothing and takes no lock."""
    known = _left.get(id)
    if known is not None and known[0] == os.getpid():
        _forgotten.put(id)
        _begin()


def _begin() -> None:
    if _working.acquire(blocking=False):
        try:
            # Not by `threading`, which has locks of its own.
            _thread.start_new_thread(_work, ())
        except RuntimeError:
            _working.release()  # no threads any more: the program ends, and sweeps


def _work() -> None:
    try:
        while True:
            id = _forgotten.get_nowait()
            known = _left.get(id)
            if known is not None:
                # If it cannot be done now, it is tried once more at the end.
                with contextlib.suppress(Exception):
                    _delete(f"/v1/sandboxes/{id}", *known[1:])
                    discard(id)
    except queue.Empty:
        pass
    finally:
        _working.release()
    if not _forgotten.empty():
        _begin()  # it came between the last look and the release


def _sweep() -> None:
    own = {id: (address, headers) for id, (pid, address, headers) in _left.copy().items() if pid == os.getpid()}
    if not own:
        return
    end = time.monotonic() + _PATIENCE_ALTOGETHER
    for id, (address, headers) in own.items():
        # One that is slow to go does not keep the others.
        with contextlib.suppress(OSError):  # the daemon is gone, or will find it idle
            _delete(f"/v1/sandboxes/{id}", address, headers)
        if time.monotonic() > end:
            break


def _delete(path: str, address: Address, headers: dict[str, str]) -> None:
    if address.socket is not None:
        with socket.socket(socket.AF_UNIX) as stream:
            stream.settimeout(_PATIENCE)
            stream.connect(address.socket)
            stream.sendall(request_head("DELETE", path, {**headers, "connection": "close"}, 0))
            while stream.recv(65_536):
                pass
        return
    import httpx

    try:
        with httpx.HTTPTransport(verify=address.base.startswith("https:")) as transport:
            request = httpx.Request("DELETE", address.base + path, headers=headers)
            request.extensions["timeout"] = dict.fromkeys(("connect", "read", "write", "pool"), _PATIENCE)
            transport.handle_request(request).read()
    except httpx.HTTPError as problem:
        raise OSError(str(problem)) from problem
