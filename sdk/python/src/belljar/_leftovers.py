"""Sandboxes that a program has not closed when it ends are deleted then, rather than idle until the daemon gives them up."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import threading
import time

from ._address import Address
from ._http import request_head

_left: dict[str, tuple[int, Address, dict[str, str]]] = {}
_registered = False
_PATIENCE = 1.0
_PATIENCE_ALTOGETHER = 5.0
"""Seconds: nobody wants to wait for this at the end."""
_lock = threading.Lock()


def add(id: str, address: Address, headers: dict[str, str]) -> None:
    """This one was made here."""
    global _registered
    with _lock:
        _left[id] = (os.getpid(), address, headers)
        if not _registered:
            _registered = True
            atexit.register(_sweep)


def discard(id: str) -> None:
    """This one is gone."""
    _left.pop(id, None)


def _sweep() -> None:
    # A forked child must not delete what is its parent's.
    own = {id: (address, headers) for id, (pid, address, headers) in _left.items() if pid == os.getpid()}
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
