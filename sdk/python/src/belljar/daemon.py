"""The user's own daemon: found, started once, replaced when it is stale, crashed or older than this package.

Where it listens is what the ``belljar`` program says too, so a daemon that the user runs already is used. Whoever starts one
holds a lock; everybody else who comes then waits for it and finds the daemon there.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sysconfig
import threading
import time
from collections.abc import Iterator

from . import _descriptors
from ._version import VERSION
from .errors import Unavailable

_PATIENCE = 20.0
"""Seconds for a daemon to come or to go; it takes a fraction of one."""
_IDLE = "10m"
"""A daemon of our own leaves when nobody has needed it for so long (``BELLJAR_IDLE_EXIT``)."""

_checked: dict[str, int] = {}
_mutex = threading.Lock()
_locks: set[int] = set()
"""Descriptors of files that this process has locked now."""


def _afresh() -> None:
    """In a forked child, where nobody goes on who held any of this. The locks are its parent's; a copy would keep them."""
    global _mutex
    _mutex = threading.Lock()
    while _locks:
        os.close(_locks.pop())


os.register_at_fork(after_in_child=_afresh)


def binary() -> str:
    """The program: the one that came with this package, else the one ``BELLJAR_BIN`` names, else the one on the PATH."""
    schemes = [None, f"{os.name}_user"]
    for scheme in schemes:
        try:
            scripts = sysconfig.get_path("scripts") if scheme is None else sysconfig.get_path("scripts", scheme)
        except KeyError:
            continue
        candidate = os.path.join(scripts, "belljar")
        if _is_program(candidate):
            return candidate
    named = os.environ.get("BELLJAR_BIN")
    if named:
        if _is_program(named):
            return _absolute(named)
        raise Unavailable(f"BELLJAR_BIN names {named}, which is no program")
    import shutil  # brings much that nothing else needs

    found = shutil.which("belljar")
    if found is None:
        raise Unavailable(
            "the program belljar was not found: install the package with pip, set BELLJAR_BIN to where it is, "
            "or set BELLJAR_URL to a daemon that runs"
        )
    return _absolute(found)


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


@functools.cache
def _absolute(path: str) -> str:
    """From where the program was when it first needed it: the daemon works elsewhere, and the program may go elsewhere."""
    try:
        return os.path.abspath(path)
    except OSError as problem:
        raise Unavailable(f"{path} is relative to a directory that is not there: {problem.strerror}") from None


def state_directory() -> pathlib.Path:
    """Where the daemon keeps what outlives it, by the same rules as the program."""
    named = os.environ.get("BELLJAR_STATE_DIR")
    if named:
        return pathlib.Path(_absolute(named))
    if os.geteuid() == 0:
        return pathlib.Path("/var/lib/belljar")
    for variable, below in (("XDG_STATE_HOME", ""), ("HOME", ".local/state")):
        base = os.environ.get(variable, "")
        if base.startswith("/"):
            return pathlib.Path(base, below, "belljar")
    raise Unavailable("set BELLJAR_STATE_DIR, or HOME, so that the daemon has a place for its state")


def ensure() -> str:
    """The socket of a daemon that answers, which is started if there is none."""
    state = state_directory()
    try:
        return _ensure(state)
    except OSError as problem:
        raise Unavailable(
            f"{state} cannot be the daemon's state directory: {problem}; set BELLJAR_STATE_DIR to a directory of yours"
        ) from problem


def _ensure(state: pathlib.Path) -> str:
    path = str(state / "belljar.sock")
    with _mutex:
        peer = _peer(path)
        if peer is not None and _checked.get(path) == peer:
            return path
        if peer is None or _replaceable(state, path, peer):
            state.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _locked(state / "start.lock"):
                peer = _peer(path)
                if peer is not None and _replaceable(state, path, peer):
                    _stop(path, peer)
                    peer = None
                if peer is None:
                    peer = _start(state, path)
        _checked[path] = peer
    return path


def _peer(path: str) -> int | None:
    """The process that listens there, if there is one."""
    with _descriptors.unix_socket() as probe:
        try:
            probe.connect(path)
            data = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        except OSError as problem:
            if isinstance(problem, PermissionError):
                raise Unavailable(
                    f"{path} belongs to another user; set BELLJAR_STATE_DIR to a directory of yours"
                ) from None
            return None
    pid: int = struct.unpack("3i", data)[0]
    return pid


def _replaceable(state: pathlib.Path, path: str, peer: int) -> bool:
    """Whether it is one that an older package started, and older than this one. Others are their owners' business."""
    if _checked.get(path) == peer:
        return False
    try:
        if (state / "embedded.pid").read_text() != str(peer):
            return False
    except (OSError, ValueError):
        return False
    # A program that is older than the package stays so: another one would be no newer.
    return _number(_starter(state, peer)) < _number(VERSION) and _number(_version(path)) < _number(VERSION)


def _starter(state: pathlib.Path, peer: int) -> str:
    """The version of the package that started it. One that does not say is older than any that does."""
    with contextlib.suppress(OSError, ValueError):
        pid, _, version = (state / "embedded.version").read_text().partition(" ")
        if pid == str(peer):
            return version
    return "0"


def _number(version: str) -> tuple[int, ...]:
    parts = []
    for part in version.split("+")[0].split("-")[0].split("."):
        parts.append(int(part) if part.isdigit() else 0)
    return tuple(parts)


def _version(path: str) -> str:
    """What the daemon says it is. One that does not say is older than any that does."""
    with contextlib.suppress(OSError, ValueError, AttributeError), socket.socket(socket.AF_UNIX) as stream:
        stream.settimeout(_PATIENCE)
        stream.connect(path)
        stream.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = b""
        while len(answer) < 65_536 and (piece := stream.recv(65_536)):
            answer += piece
        return str(json.loads(answer.partition(b"\r\n\r\n")[2]).get("version", "0"))
    return "0"


@contextlib.contextmanager
def _lock_file(path: pathlib.Path) -> Iterator[int]:
    """A descriptor of a file that may be locked; afterwards it is not, whoever was forked meanwhile."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    _locks.add(descriptor)
    try:
        yield descriptor
    finally:
        _locks.discard(descriptor)
        # Not by closing it alone: it is locked as long as anybody has a copy.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[None]:
    with _lock_file(path) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def _stop(path: str, peer: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(peer, signal.SIGTERM)
    end = time.monotonic() + _PATIENCE
    while _peer(path) is not None and time.monotonic() < end:
        time.sleep(0.01)


def _await_directory(state: pathlib.Path, path: str) -> None:
    """Until no daemon holds the state directory: one that is leaving does so until its very end."""
    end = time.monotonic() + _PATIENCE
    with _lock_file(state / "lock") as descriptor:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if _peer(path) is not None:
                    return
                if time.monotonic() > end:
                    raise Unavailable(
                        f"a daemon uses {state} but does not listen at {path}; set BELLJAR_URL to where it listens, "
                        "or BELLJAR_STATE_DIR to another directory"
                    ) from None
                time.sleep(0.005)


def _start(state: pathlib.Path, path: str) -> int:
    program = binary()
    _await_directory(state, path)
    peer = _peer(path)
    if peer is not None:
        return peer
    log = state / "daemon.log"
    if log.exists():
        # What the last one said before it ended.
        log.replace(state / "daemon.log.old")
    environment = {"BELLJAR_LOG": "warn", **os.environ}
    for name in ("BELLJAR_STATE_DIR", "BELLJAR_CONFIG"):
        if environment.get(name):
            environment[name] = _absolute(environment[name])
    idle = os.environ.get("BELLJAR_IDLE_EXIT", _IDLE)
    with open(log, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as output:
        child = subprocess.Popen(
            [program, "serve", "--listen", "", "--unix", path, "--idle-exit", idle],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=output,
            cwd="/",
            env=environment,
            start_new_session=True,
        )
    # It outlives us on purpose; without a waiter Python would complain about that, or leave it a zombie.
    threading.Thread(target=child.wait, name="belljar-daemon", daemon=True).start()
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        peer = _peer(path)
        if peer is not None:
            (state / "embedded.version").write_text(f"{peer} {VERSION}")
            (state / "embedded.pid").write_text(str(peer))
            return peer
        if child.returncode is not None:
            break
        time.sleep(0.002)
    with contextlib.suppress(OSError):
        child.kill()  # or it would hold the directory, unheard
    told = log.read_text(errors="replace").strip()[-2000:]
    raise Unavailable(f"the daemon did not start ({program} serve): {told or 'it said nothing'}; try belljar doctor")
