"""The canaries: things of the host that hold a secret or must stay untouched, and the check that they did."""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from .host import HostState, about, remove

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.shmat.restype = ctypes.c_void_p
PAYLOADS = Path(__file__).resolve().parent.parent / "payload"
SESSION_KEYRING = -3
ADD_KEY, KEYCTL = 248, 250


class CanaryError(Exception):
    """A canary could not be put up, so nothing could be judged by it."""


class Listener:
    """Sockets of the host which nobody may reach: loopback TCP and UDP, a unix path, an abstract name."""

    def __init__(self, place: Path, name: str, token: str) -> None:
        self.token = token
        self.visits: list[str] = []
        self.sockets: dict[str, socket.socket] = {}
        self.port = self._bind_port()
        self.path = place / "canary.sock"
        self._bind("unix", socket.AF_UNIX, socket.SOCK_STREAM, str(self.path))
        os.chmod(self.path, 0o777)
        self.abstract = f"{name}-abstract"
        self._bind("abstract", socket.AF_UNIX, socket.SOCK_STREAM, "\0" + self.abstract)
        for label, link in self.sockets.items():
            threading.Thread(target=self._serve, args=(label, link), daemon=True).start()

    def _bind_port(self) -> int:
        """One number that is free for all three; which one is, is not known before."""
        for left in reversed(range(20)):
            try:
                self.tcp = self._bind("tcp", socket.AF_INET, socket.SOCK_STREAM, ("0.0.0.0", 0))
                port = int(self.tcp.getsockname()[1])
                self._bind("udp", socket.AF_INET, socket.SOCK_DGRAM, ("0.0.0.0", port))
                if socket.has_ipv6 and os.path.exists("/proc/net/if_inet6"):
                    self._bind("tcp6", socket.AF_INET6, socket.SOCK_STREAM, ("::", port))
                return port
            except OSError as error:
                if error.errno != errno.EADDRINUSE or not left:
                    raise
                self.close()
                self.sockets.clear()
        raise AssertionError

    def _bind(self, label: str, family: int, kind: int, address: object) -> socket.socket:
        link = self.sockets[label] = socket.socket(family, kind)
        if family == socket.AF_INET6:
            link.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        link.bind(address)  # type: ignore[arg-type]
        return link

    def _serve(self, label: str, link: socket.socket) -> None:
        stream = link.type == socket.SOCK_STREAM
        if stream:
            link.listen(64)
        while True:
            try:
                if stream:
                    visitor, _ = link.accept()
                    self.visits.append(label)
                    visitor.sendall(self.token.encode())
                    visitor.close()
                elif link.recv(2048):
                    self.visits.append(label)
            except OSError:
                if link.fileno() < 0:
                    return

    def close(self) -> None:
        for link in self.sockets.values():
            try:
                link.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            link.close()


class Names:
    """A name server that leads where no name should: names of the suite, each with the answers it gives in turn."""

    ANSWERS = {
        "inside.test": ("127.0.0.1",), "metadata.test": ("169.254.169.254",), "allowed.test": ("203.0.113.9",),
        "rebind.test": ("203.0.113.9", "127.0.0.1"),
    }

    def __init__(self) -> None:
        self.link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.link.bind(("127.0.0.1", 0))
        self.port = self.link.getsockname()[1]
        self.asked: dict[str, int] = {}
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                question, sender = self.link.recvfrom(512)
                self.link.sendto(self._answer(question), sender)
            except (OSError, IndexError):
                if self.link.fileno() < 0:
                    return

    def _answer(self, question: bytes) -> bytes:
        labels, at = [], 12
        while question[at]:
            labels.append(question[at + 1:at + 1 + question[at]].decode(errors="replace"))
            at += 1 + question[at]
        name, kind = ".".join(labels).lower(), question[at + 2]
        answers = self.ANSWERS.get(name, ())
        section = question[12:at + 5]
        if not answers or kind != 1:
            return question[:2] + bytes([0x81, 0x80 | (0 if answers else 3), 0, 1, 0, 0, 0, 0, 0, 0]) + section
        turn = self.asked.get(name, 0)
        self.asked[name] = turn + 1
        address = socket.inet_aton(answers[turn % len(answers)])
        return question[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + section + b"\xc0\x0c\0\1\0\1\0\0\0\0\0\4" + address

    def close(self) -> None:
        self.link.close()


class Victim:
    """A process of the host, owned by whoever runs Belljar, that tells of signals and changed memory."""

    def __init__(self, token: str, user: tuple[int, int] | None) -> None:
        def become() -> None:
            if user is not None:
                os.setgroups([])
                os.setgid(user[1])
                os.setuid(user[0])

        self.process = subprocess.Popen(
            [sys.executable, "-I", str(PAYLOADS / "victim.py"), f"argv-{token}"], text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/", preexec_fn=become,
            env={"VICTIM_SECRET": token},
        )
        words = self._line().split()
        if words[:1] != ["ready"]:
            raise CanaryError("the victim process did not start")
        self.address, self.file = int(words[1]), int(words[2])
        self.nice = os.getpriority(os.PRIO_PROCESS, self.process.pid)
        self.score = self._score()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def _score(self) -> str:
        return Path(f"/proc/{self.process.pid}/oom_score_adj").read_text()

    def harm(self) -> list[str]:
        """What was done to the victim; it is put back as it was, a stopped or traced one let go again."""
        pid = self.process.pid
        if self.process.poll() is not None:
            return [f"victim died ({self.process.returncode})"]
        found = []
        if (row := about(pid)) and (state := row[1]) in "Tt":
            found.append(f"victim is {'stopped' if state == 'T' else 'traced'}")
            os.kill(pid, signal.SIGCONT)
        if os.getpriority(os.PRIO_PROCESS, pid) != self.nice or self._score() != self.score:
            found.append("victim's priority or oom score changed")
            # Otherwise every later case would seem to have done it.
            os.setpriority(os.PRIO_PROCESS, pid, self.nice)
            Path(f"/proc/{pid}/oom_score_adj").write_text(self.score)
        assert self.process.stdin is not None
        self.process.stdin.write("?\n")
        while (line := self._line()) != "intact":
            if line.startswith("signal") and line != f"signal {signal.SIGCONT.value}":
                found.append(f"victim got {line}")
            elif not line.startswith("signal"):
                return [*found, f"victim's memory: {line or 'gone'}"]
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class Canaries:
    """All canaries of one worker. `targets` tells a payload where they are, never what they hold."""

    def __init__(self, name: str, user: tuple[int, int] | None, guarded: tuple[str, ...]) -> None:
        self.tokens: dict[str, str] = {}
        self.place = Path(tempfile.mkdtemp(prefix=f"{name}-", dir="/var/tmp"))
        os.chmod(self.place, 0o777)
        self.user = user
        self.host = HostState.take(guarded)
        self.secret = self._file("secret.txt", self.token("file"))
        self.victim_file = self._file("untouched.txt", "untouched")
        self.drop = self.place / "drop"
        self.drop.mkdir()
        os.chmod(self.drop, 0o777)
        self.listener = Listener(self.place, name, self.token("network"))
        self.names = Names()
        self.victim = Victim(self.token("victim"), user)
        self.key = int.from_bytes(secrets.token_bytes(3), "big") | 0x42000000
        self.shm, self.queue = self._sysv(self.token("sysv"))
        self.key_name = f"{name}-key"
        self._kernel_key(self.token("key"))
        self.env = self.token("environment")
        self.pipe_read, self.pipe_write = os.pipe()
        os.set_blocking(self.pipe_read, False)
        self.directory_fd = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY)
        self.tty_master, self.tty = os.openpty()
        os.set_blocking(self.tty, False)

    def token(self, what: str) -> str:
        return self.tokens.setdefault(what, f"canary-{what}-{secrets.token_hex(12)}")

    def _file(self, name: str, text: str) -> Path:
        """World-readable and world-writable, so that permissions are not what protects it."""
        path = self.place / name
        path.write_text(text)
        os.chmod(path, 0o666)
        return path

    def _sysv(self, token: str) -> tuple[int, int]:
        shm = LIBC.shmget(self.key, 4096, 0o1666)
        queue = LIBC.msgget(self.key, 0o1666)
        if shm < 0 or queue < 0:
            raise CanaryError("no System V IPC for the canary")
        address = LIBC.shmat(shm, None, 0)
        ctypes.memmove(address, token.encode(), len(token))
        LIBC.shmdt(ctypes.c_void_p(address))
        message = struct.pack("l", 1) + token.encode()
        LIBC.msgsnd(queue, message, len(token), 0)
        return shm, queue

    def _kernel_key(self, token: str) -> None:
        """A key in a session keyring of our own, which every child inherits."""
        data = token.encode()
        if LIBC.syscall(KEYCTL, 1, None) < 0:
            raise CanaryError("no session keyring for the canary (CONFIG_KEYS)")
        number = LIBC.syscall(ADD_KEY, b"user", self.key_name.encode(), data, len(data), SESSION_KEYRING)
        if number < 0:
            raise CanaryError("the kernel took no key for the canary")
        LIBC.syscall(KEYCTL, 5, number, 0x3F3F3F3F)

    def targets(self) -> dict[str, object]:
        spaces = ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup")
        return {
            "file": str(self.secret), "write": str(self.victim_file), "drop": str(self.drop),
            "place": str(self.place), "port": self.listener.port, "unix": str(self.listener.path),
            "abstract": self.listener.abstract, "victim": self.victim.process.pid,
            "address": self.victim.address, "victim_fd": self.victim.file, "length": len(self.tokens["victim"]),
            "key": self.key, "key_name": self.key_name, "fds": [self.pipe_write, self.directory_fd],
            "hostname": os.uname().nodename,
            "namespaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in spaces},
        }

    def found_in(self, text: str) -> list[str]:
        """Which secrets, or lines of the host's password file, show up in what came out."""
        found = [f"the {what} token came out" for what, token in self.tokens.items() if token in text]
        try:
            lines = [line for line in Path("/etc/shadow").read_text().splitlines() if len(line) > 12]
        except OSError:
            lines = []
        return found + ["a line of /etc/shadow came out" for line in lines if line in text][:1]

    def trips(self) -> list[str]:
        """What was touched since the last time; whatever can be is put back."""
        found = [f"the {label} canary was reached" for label in sorted(set(self.listener.visits))]
        self.listener.visits.clear()
        if self.victim_file.read_text(errors="replace") != "untouched":
            found.append("the canary file was changed")
            self.victim_file.write_text("untouched")
        if self.secret.read_text(errors="replace") != self.tokens["file"]:
            found.append("the secret file was changed")
            self.secret.write_text(self.tokens["file"])
        for path in (self.victim_file, self.secret):
            if os.stat(path).st_nlink != 1 or os.stat(path).st_mode & 0o777 != 0o666:
                found.append(f"links or mode of {path.name} changed")
                os.chmod(path, 0o666)
        found += [f"{name} was dropped on the host" for name in os.listdir(self.drop)]
        remove(*self.drop.iterdir())
        for label, end in (("inherited pipe", self.pipe_read), ("terminal", self.tty)):
            try:
                if os.read(end, 4096):
                    found.append(f"the {label} was written")
            except OSError:
                pass
        harm = self.victim.harm()
        if any("died" in line or "memory" in line for line in harm):
            self.victim.close()
            self.victim = Victim(self.tokens["victim"], self.user)
        found += harm
        found += self.host.changes()
        return found

    def close(self) -> None:
        self.victim.close()
        self.listener.close()
        self.names.close()
        LIBC.shmctl(self.shm, 0, None)
        LIBC.msgctl(self.queue, 0, None)
        for descriptor in (self.pipe_read, self.pipe_write, self.directory_fd, self.tty, self.tty_master):
            os.close(descriptor)
        remove(self.place)
