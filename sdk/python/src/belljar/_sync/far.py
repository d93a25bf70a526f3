# Made from `_async` by `scripts/generate.py`. Do not edit.
"""A daemon elsewhere, over TCP."""

from __future__ import annotations

import ssl
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING

import httpx

from .._address import Address
from .._http import Broken, Unreached
from .._io import synchronous as io

if TYPE_CHECKING:
    from .wire import Body

_TOGETHER = 8
_IDLE = 10
"""Seconds; less than the daemon keeps a connection that nobody uses."""


class _Group:
    def __init__(self, transport: httpx.HTTPTransport) -> None:
        self.transport = transport
        # A set, because threads share it, and unlike a number it cannot be miscounted by two of them.
        self.busy: set[object] = set()


class Far:
    """As many connections as there are requests at one time: every run that goes on holds one, and the daemon has its own limits.

    They are kept in small groups. In a large one the transport looks through all of them at every request, which takes
    longer than the request itself when there are hundreds.
    """

    def __init__(self, address: Address) -> None:
        io.prepare()
        self.address = address
        secure = address.base.startswith("https:")
        # Made once: reading the certificates takes many milliseconds.
        self._tls = httpx.create_ssl_context() if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._limits = httpx.Limits(max_connections=None, max_keepalive_connections=_TOGETHER, keepalive_expiry=_IDLE)
        self._groups: list[_Group] = []

    def _free(self) -> _Group:
        for group in self._groups:
            if len(group.busy) < _TOGETHER:
                return group
        self._groups.append(_Group(httpx.HTTPTransport(verify=self._tls, limits=self._limits)))
        return self._groups[-1]

    def exchange(
        self, method: str, target: str, headers: Mapping[str, str], content: Body = None
    ) -> FarAnswer:
        """The answer, whose body has not been read yet."""
        request = httpx.Request(method, self.address.base + target, headers=dict(headers), content=content)
        group = self._free()
        one = object()
        group.busy.add(one)
        try:
            return FarAnswer(group.transport.handle_request(request))
        except httpx.ConnectError as problem:
            raise Unreached(str(problem)) from problem
        except httpx.HTTPError as problem:
            raise Broken(str(problem)) from problem
        finally:
            group.busy.discard(one)

    def close(self) -> None:
        """Closes all of them."""
        groups, self._groups = self._groups, []
        for group in groups:
            group.transport.close()


class FarAnswer:
    """What the daemon answered. Its body is read once."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response

    @property
    def status(self) -> int:
        return self._response.status_code

    def header(self, name: str) -> str | None:
        """By its name in small letters."""
        found: str | None = self._response.headers.get(name)
        return found

    def read(self) -> bytes:
        """All of the body."""
        try:
            return self._response.read()
        except httpx.HTTPError as problem:
            raise Broken(str(problem)) from problem

    def pieces(self) -> Generator[bytes, None, None]:
        """The body as it comes."""
        try:
            for piece in self._response.iter_bytes():
                yield piece
        except httpx.HTTPError as problem:
            raise Broken(str(problem)) from problem
        finally:
            self.close()

    def close(self) -> None:
        """Leaves what has not been read."""
        self._response.close()
