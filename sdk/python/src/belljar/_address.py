"""Where a daemon is."""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import urlsplit

from .errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Address:
    """``socket`` is the path of a unix socket, or None; ``base`` is what comes before the paths of requests."""

    socket: str | None
    base: str

    @property
    def websocket(self) -> str:
        """The base of WebSockets."""
        return "ws" + self.base.removeprefix("http")


def parse(url: str) -> Address:
    """``http://…``, ``https://…`` or ``unix:///…``."""
    if not isinstance(url, str):
        raise InvalidRequest(f"url: {type(url).__name__} is not accepted; give text like http://HOST:PORT")
    parts = urlsplit(url)
    if parts.scheme == "unix" and parts.path:
        return Address(parts.netloc + parts.path, "http://localhost")
    if parts.scheme in ("http", "https") and parts.netloc:
        return Address(None, url.rstrip("/"))
    raise InvalidRequest(f"url: {url!r} is not accepted; give http://HOST:PORT, https://HOST or unix:///PATH")


def configured(url: str | None) -> Address | None:
    """The one that was named, here or in ``BELLJAR_URL``; None for the user's own daemon."""
    named = url if url is not None and url != "" else os.environ.get("BELLJAR_URL")
    return parse(named) if named else None
