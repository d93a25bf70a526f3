"""What travels over a unix socket, with whatever is at the other end of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

import belljar

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]"
Serve = Callable[[socket.socket], None]
Ask = Callable[[str], Any]


def heard(stream: socket.socket) -> bytes:
    """A request with its body, which has a length."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = stream.recv(65_536)
        if not piece:
            return data
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    while len(body) < length:
        body += stream.recv(65_536)
    return head + b"\r\n\r\n" + body


@contextlib.contextmanager
def daemon(*connections: Serve) -> Iterator[tuple[str, list[str]]]:
    """Something that listens: each connection is served by the next of these. Its trouble is in the list at the end."""
    with tempfile.TemporaryDirectory(prefix="bj-") as directory, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{directory}/s")
        listener.listen()
        trouble: list[str] = []

        def work() -> None:
            for serve in connections:
                stream, _ = listener.accept()
                with stream:
                    stream.settimeout(30)
                    try:
                        serve(stream)
                    except Exception as problem:
                        trouble.append(repr(problem))

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        yield f"unix://{directory}/s", trouble
        thread.join(30)
        assert not thread.is_alive() and not trouble, trouble


@pytest.fixture(params=["blocking", "waiting"])
def face(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def asked(face: str, url: str, count: int = 1) -> list[Any]:
    """The answers to so many questions, one after the other, with one client."""
    if face == "blocking":
        with belljar.Client(url) as client:
            return [client.runtimes() for _ in range(count)]

    async def main() -> list[Any]:
        async with belljar.AsyncClient(url) as client:
            return [await client.runtimes() for _ in range(count)]

    return asyncio.run(main())


def saying(*answers: bytes) -> Serve:
    """A connection on which these are the answers, and which is closed after the last."""

    def serve(stream: socket.socket) -> None:
        for answer in answers:
            assert heard(stream).startswith(b"GET /v1/runtimes HTTP/1.1\r\nhost: localhost\r\n")
            stream.sendall(answer)

    return serve


def test_one_connection_for_all(face: str) -> None:
    with daemon(saying(OK, OK, OK)) as (url, _):
        assert asked(face, url, 3) == [[], [], []]


def test_answers_of_all_shapes(face: str) -> None:
    def in_drops(stream: socket.socket) -> None:
        heard(stream)
        whole = (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            b'4;more=less\r\n["ab\r\n3\r\n\xc3\xa4"\r\n1\r\n]\r\n0\r\ntrailer: yes\r\n\r\n'
        )
        for at in range(len(whole)):
            stream.sendall(whole[at : at + 1])
        # And another on the same connection.
        heard(stream)
        stream.sendall(b"HTTP/1.1 200 OK\r\nCONTENT-LENGTH:   2\r\nconnection: close\r\n\r\n{}")

    until_closed = saying(b"HTTP/1.0 200 OK\r\n\r\n[1, 2]")
    with daemon(in_drops, until_closed, saying(OK)) as (url, _):
        assert asked(face, url, 4) == [["abä"], {}, [1, 2], []]


def test_a_connection_that_was_closed_meanwhile_is_not_used(face: str) -> None:
    with daemon(saying(OK), saying(OK)) as (url, _):
        assert asked(face, url, 2) == [[], []]


@pytest.mark.parametrize(
    "answer",
    [
        b"220 smtp.example.org\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nx: " + b"x" * 100_000,
        b"",
    ],
)
def test_what_is_no_answer_is_unavailable(face: str, answer: bytes) -> None:
    with daemon(saying(answer)) as (url, _), pytest.raises(belljar.Unavailable, match=r"went away|does not speak"):
        asked(face, url)


def test_a_connection_that_nobody_took_is_made_again(face: str) -> None:
    def killed(stream: socket.socket) -> None:
        stream.recv(1)  # so that it has been sent; the rest of it nobody reads

    def alive(stream: socket.socket) -> None:
        heard(stream)
        stream.sendall(OK)

    with daemon(killed, alive) as (url, _):
        assert asked(face, url) == [[]]


def test_a_refusal_that_comes_before_everything_was_sent(face: str) -> None:
    told = json.dumps({"error": {"code": "too_large", "message": "too much"}}).encode()

    def serve(stream: socket.socket) -> None:
        stream.recv(1000)
        stream.sendall(b"HTTP/1.1 413 Too Large\r\ncontent-length: %d\r\n\r\n%b" % (len(told), told))

    def endless() -> Iterable[bytes]:
        while True:
            yield b"x" * 65_536

    with daemon(serve) as (url, _), pytest.raises(belljar.InvalidRequest, match="too much"):
        if face == "blocking":
            belljar.Client(url).attach("sbx_1").files.write("a", endless())
        else:
            asyncio.run(belljar.AsyncClient(url).attach("sbx_1").files.write("a", endless()))


def test_trouble_with_what_is_sent_is_the_callers_own(face: str) -> None:
    def broken() -> Iterable[bytes]:
        yield b"x"
        raise FileNotFoundError("mine")

    with belljar.Sandbox() as sandbox:
        with pytest.raises(FileNotFoundError, match="mine"):
            if face == "blocking":
                sandbox.files.write("a", broken())
            else:
                asyncio.run(belljar.AsyncSandbox.attach(sandbox.id).files.write("a", broken()))
        assert sandbox.run("1").value == 1


def test_who_stops_waiting_hangs_up() -> None:
    gone = threading.Event()

    def serve(stream: socket.socket) -> None:
        heard(stream)
        assert stream.recv(1) == b""
        gone.set()

    async def main(url: str) -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(belljar.AsyncClient(url).runtimes(), 0.2)
        assert await asyncio.to_thread(gone.wait, 10)

    with daemon(serve) as (url, _):
        asyncio.run(main(url))


def test_large_files_both_ways(face: str, tmp_path: pathlib.Path) -> None:
    data = os.urandom(1 << 20) * 9
    (tmp_path / "large").write_bytes(data)
    with belljar.Sandbox() as sandbox:
        if face == "blocking":
            sandbox.files.upload(tmp_path / "large", "large")
            assert sandbox.files.read("large") == data
            sandbox.files.download("large", tmp_path / "back")
        else:

            async def main() -> None:
                other = belljar.AsyncSandbox.attach(sandbox.id)
                await other.files.upload(tmp_path / "large", "large")
                assert await other.files.read("large") == data
                await other.files.download("large", tmp_path / "back")

            asyncio.run(main())
        assert (tmp_path / "back").read_bytes() == data


def test_a_daemon_nearby_needs_nothing_large() -> None:
    code = (
        "import sys, belljar\n"
        "with belljar.Sandbox() as sandbox:\n"
        "    assert sandbox.run('1').value == 1 and belljar.run('print(1)').success\n"
        "print([m for m in ('httpx', 'websockets', 'asyncio', 'ssl') if m in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(belljar.__file__).parent.parent)}
    told = subprocess.run([sys.executable, "-X", "dev", "-c", code], capture_output=True, text=True, env=environment)
    # Nor does it leave anything open.
    assert (told.stdout, told.stderr) == ("[]\n", "")
