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
    scheme, _, rest = url.partition("://")
    if scheme.lower() == "unix" and "/" in rest and "\0" not in rest:
        # A path as it is: nothing in it has another meaning.
        return nearby(rest)
    if scheme.lower() in ("http", "https") and _is_place(url):
        return Address(None, url.rstrip("/"))
    raise InvalidRequest(f"url: {url!r} is not accepted; give http://HOST:PORT, https://HOST or unix:///PATH")


def nearby(path: str) -> Address:
    """A daemon that listens at a unix socket."""
    return Address(path, "http://localhost")


def _is_place(url: str) -> bool:
    """Whether requests can be sent there, at all."""
    try:
        parts = urlsplit(url)
        named = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return named and not parts.query and not parts.fragment and url.isprintable() and " " not in url


def configured(url: str | None) -> Address | None:
    """The one that was named, here or in ``BELLJAR_URL``; None for the user's own daemon."""
    named = url if url is not None and url != "" else os.environ.get("BELLJAR_URL")
    return parse(named) if named else None
