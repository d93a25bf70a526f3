"""A daemon to attack: two tenants, warm interpreters, the canaries' secret in its environment; and a plain client."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
import secrets
import socket
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .canaries import Canaries
from .host import remove

SETTINGS = """
[http]
body_bytes = "4m"
read_timeout = "2s"
write_timeout = "3s"
[pool]
python = 2
[tenants.a]
keys = ["sha256:{a}"]
sandboxes = 12
[tenants.b]
keys = ["sha256:{b}"]
"""


@dataclass
class Answer:
    """What came back over HTTP."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")


class Service:
    """`belljar serve`, and what speaks to it. `a` attacks; `b` is the neighbour."""

    def __init__(self, belljar: str, canaries: Canaries, name: str) -> None:
        self.belljar, self.canaries = belljar, canaries
        self.admin, self.a, self.b = (f"key-{secrets.token_hex(16)}" for _ in range(3))
        self.state = Path(tempfile.mkdtemp(prefix=f"{name}-state-", dir="/var/tmp"))
        hashed = {name: hashlib.sha256(key.encode()).hexdigest() for name, key in (("a", self.a), ("b", self.b))}
        (self.state / "belljar.toml").write_text(SETTINGS.format(**hashed))
        self.process: subprocess.Popen[str]
        self.port = 0
        self.start()

    def start(self) -> None:
        env = {
            "PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": str(self.state), "BELLJAR_STATE_DIR": str(self.state),
            "BELLJAR_TOKEN": self.admin, "BELLJAR_ATTACK_SECRET": self.canaries.env,
        }
        command = [self.belljar, "serve", "--config", str(self.state / "belljar.toml"), "--listen", "127.0.0.1:0"]
        with (self.state / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
                pass_fds=tuple(self.canaries.targets()["fds"]),  # type: ignore[arg-type]
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if "http://" not in line:
            raise RuntimeError(f"the daemon did not start: {line!r} {self.log()[-2000:]}")
        self.port = int(line.split("http://", 1)[1].split()[0].rsplit(":", 1)[1])

    def log(self) -> str:
        return (self.state / "log").read_text(errors="replace")

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def upgrade(self, path: str, headers: str | None = None) -> tuple[socket.socket, bytes]:
        """A connection that asks for a WebSocket, as tenant `a` unless other headers are given, and how the answer begins."""
        link = self.connect()
        key = base64.b64encode(os.urandom(16)).decode()
        headers = f"Authorization: Bearer {self.a}\r\n" if headers is None else headers
        link.sendall(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n{headers}\r\n".encode())
        return link, link.recv(4096)

    def ask(
        self, method: str, path: str, body: object = None, *, key: str | None = "", headers: dict[str, str] | None = None,
        timeout: float = 60,
    ) -> Answer:
        """As tenant `a` unless another key is given; `None` for none. Bytes are sent as they are."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        sent = {"Content-Type": "application/json"}
        if key is not None:
            sent["Authorization"] = f"Bearer {key or self.a}"
        sent |= headers or {}
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        try:
            link.putrequest(method, path, skip_host="Host" in sent, skip_accept_encoding=True)
            for name, value in sent.items():
                link.putheader(name, value)
            if data is not None or method in ("POST", "PUT"):
                link.putheader("Content-Length", str(len(data or b"")))
            link.endheaders()
            try:
                link.send(data or b"")
            except OSError:
                pass  # refused before everything was read
            got = link.getresponse()
            return Answer(got.status, {name.lower(): value for name, value in got.getheaders()}, got.read())
        finally:
            link.close()

    def sandbox(self, key: str = "", **fields: object) -> str:
        made = self.ask("POST", "/v1/sandboxes", fields, key=key)
        if made.status != 201:
            raise RuntimeError(f"no sandbox: {made.status} {made.text}")
        return f"/v1/sandboxes/{made.json()['id']}"

    def wrong(self) -> str:
        """Empty when the daemon lives and an ordinary run is one, else what is wrong."""
        if self.process.poll() is not None:
            return f"the daemon has ended with {self.process.returncode}: {self.log()[-500:]}"
        try:
            ran = self.ask("POST", "/v1/runs", {"code": "print(6 * 7)"}, key=self.b)
        except OSError as error:
            return f"the next ordinary run: {error}"
        return "" if ran.status == 200 and ran.json()["stdout"] == "42\n" else f"the next ordinary run: {ran.text[:300]}"

    def stop(self) -> str:
        """Empty when it ended as told."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                return "the daemon did not stop within a minute"
        return "" if self.process.returncode == 0 else f"the daemon ended with {self.process.returncode}"

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        remove(self.state)
