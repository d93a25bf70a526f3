"""Connections to one daemon."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from .._address import Address
from .._io import asynchronous as io

if TYPE_CHECKING:
    import httpx

_TOGETHER = 8
_IDLE = 10
"""Seconds; less than the daemon keeps a connection that nobody uses."""


class _Group:
    def __init__(self, transport: httpx.AsyncHTTPTransport) -> None:
        self.transport = transport
        # A set, because threads share it, and unlike a number it cannot be miscounted by two of them.
        self.busy: set[object] = set()


class AsyncConnections:
    """As many as there are requests at one time: every run that goes on holds one, and the daemon has its own limits.

    They are kept in small groups. In a large one the transport looks through all of them at every request, which takes
    longer than the request itself when there are hundreds.
    """

    def __init__(self, address: Address) -> None:
        import httpx

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
        import httpx

        transport = httpx.AsyncHTTPTransport(uds=self.address.socket, verify=self._tls, limits=self._limits)
        self._groups.append(_Group(transport))
        return self._groups[-1]

    async def exchange(self, request: httpx.Request) -> httpx.Response:
        """The answer, whose body has not been read yet."""
        group = self._free()
        one = object()
        group.busy.add(one)
        try:
            return await group.transport.handle_async_request(request)
        finally:
            group.busy.discard(one)

    async def aclose(self) -> None:
        """Closes all of them."""
        groups, self._groups = self._groups, []
        for group in groups:
            await group.transport.aclose()
