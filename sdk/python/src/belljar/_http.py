"""HTTP/1.1 as bytes: heads of requests, heads of answers."""

from __future__ import annotations

import select
import socket
from collections.abc import Mapping


class Broken(Exception):
    """The connection did not hold until the answer was there."""


class Unreached(Broken):
    """There was no connection, so nothing was sent."""


LONGEST = 64 << 10
"""Bytes of a head, or of a line between chunks. The daemon needs a few hundred."""


def request_head(method: str, target: str, headers: Mapping[str, str], length: int | None) -> bytes:
    """The head of a request whose body has this length, or comes in pieces."""
    lines = [f"{method} {target} HTTP/1.1", "host: localhost"]
    for name, value in headers.items():
        if "\r" in value or "\n" in value:
            raise ValueError(f"the header {name} has more than one line")
        lines.append(f"{name}: {value}")
    if length is None:
        lines.append("transfer-encoding: chunked")
    elif length or method not in ("GET", "DELETE"):
        lines.append(f"content-length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def chunk(data: bytes) -> bytes:
    """A piece of a body whose length nobody knows; an empty one is its end."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class AnswerHead:
    """The first lines of an answer."""

    __slots__ = ("chunked", "headers", "keeps", "length", "status")

    def __init__(self, data: bytes) -> None:
        first, *lines = data.decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
            raise Broken("what answered does not speak HTTP")
        self.status = int(rest[:3])
        self.headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            self.headers[name.lower()] = value.strip()
        self.chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        self.keeps = version == "HTTP/1.1" and self.headers.get("connection", "").lower() != "close"
        self.length: int | None = None
        """Of the body; None if it goes on until the end, of its chunks or of the connection."""
        if self.status in (204, 304):
            self.length = 0
        elif not self.chunked:
            length = self.headers.get("content-length")
            if length is not None and not (length.isascii() and length.isdigit()):
                raise Broken("what answered does not speak HTTP")
            self.length = None if length is None else int(length)


def chunk_length(line: bytes) -> int:
    """What the line before a chunk says."""
    digits = line.split(b";", 1)[0].strip()
    try:
        if not digits or len(digits) > 15 or not digits.isalnum():
            raise ValueError
        return int(digits, 16)
    except ValueError:
        raise Broken("what answered does not speak HTTP") from None


def is_readable(stream: socket.socket) -> bool:
    """Whether the other end said something, or left: of a connection that nobody uses, it is the same."""
    watch = select.poll()
    watch.register(stream, select.POLLIN)
    return bool(watch.poll(0))
