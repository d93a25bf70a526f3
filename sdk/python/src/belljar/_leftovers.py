"""Sandboxes that a program has not closed when it ends are deleted then, rather than idle until the daemon gives them up."""

from __future__ import annotations

import atexit
import os
import threading

from ._address import Address

_left: dict[str, tuple[int, Address, dict[str, str]]] = {}
_registered = False
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
    import httpx

    for id, (address, headers) in own.items():
        try:
            with httpx.HTTPTransport(uds=address.socket, verify=address.base.startswith("https:")) as transport:
                request = httpx.Request("DELETE", f"{address.base}/v1/sandboxes/{id}", headers=headers)
                request.extensions["timeout"] = {"connect": 1.0, "read": 1.0, "write": 1.0, "pool": 1.0}
                transport.handle_request(request).read()
        except httpx.HTTPError:
            return
