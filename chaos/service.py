"""A daemon of its own, and the smallest client that can talk to it."""

import json
import os
import socket
import subprocess
import time
from pathlib import Path

TOKEN = "token-of-the-chaos-0123456789"
# A daemon closes what has been silent for a while (`http.read_timeout`). Nobody may close what is in use.
SILENT = 5


class Broken(Exception):
    """The connection ended before the answer did."""


class Client:
    """One connection, kept as long as it lasts."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.socket: socket.socket | None = None
        self.last = 0.0

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def send(self, method: str, path: str, body: bytes, accept: str = "*/*") -> None:
        if self.socket is None:
            self.socket = socket.create_connection(("127.0.0.1", self.port), timeout=120)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nAuthorization: Bearer {TOKEN}\r\n"
            f"Content-Type: application/json\r\nAccept: {accept}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.socket.sendall(head.encode() + body)

    def receive(self) -> tuple[int, bytes]:
        assert self.socket is not None
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self.more()
        head, _, body = answer.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next((int(line[16:]) for line in lines if line.startswith(b"content-length: ")), 0)
        if b"transfer-encoding: chunked" in lines:
            body = self.chunks(body)
        while len(body) < length:
            body += self.more()
        if b"connection: close" in lines:
            self.close()
        return int(head.split(b" ", 2)[1]), body

    def chunks(self, rest: bytes) -> bytes:
        body = b""
        while True:
            while b"\r\n" not in rest:
                rest += self.more()
            size, _, rest = rest.partition(b"\r\n")
            length = int(size, 16)
            while len(rest) < length + 2:
                rest += self.more()
            body, rest = body + rest[:length], rest[length + 2 :]
            if length == 0:
                return body

    def more(self) -> bytes:
        assert self.socket is not None
        if not (got := self.socket.recv(1 << 16)):
            raise Broken
        return got

    def ask(self, method: str, path: str, body: object = None, raw: bytes | None = None, accept: str = "*/*") -> tuple[int, bytes]:
        """Status and body. One that has been silent for long may have been closed meanwhile, and is opened anew."""
        data = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        if time.monotonic() - self.last > SILENT:
            self.close()
        try:
            self.send(method, path, data, accept)
            answer = self.receive()
        except (Broken, OSError) as error:
            self.close()
            raise Broken(f"{method} {path}: {error!r}") from error
        self.last = time.monotonic()
        return answer


class Daemon:
    """`belljar serve` with a state directory that may have been used before."""

    def __init__(self, belljar: str, state: Path, settings: str) -> None:
        (state / "belljar.toml").write_text(settings)
        env = os.environ | {"BELLJAR_STATE_DIR": str(state), "BELLJAR_TOKEN": TOKEN}
        command = [belljar, "serve", "--config", str(state / "belljar.toml"), "--listen", "127.0.0.1:0", "--unix", ""]
        with (state / "log").open("ab") as log:
            self.process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if "http://" not in line:
            raise SystemExit(f"chaos: the daemon did not start: {line!r} {(state / 'log').read_text()[-2000:]}")
        self.port = int(line.split("http://", 1)[1].split()[0].rsplit(":", 1)[1])

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
