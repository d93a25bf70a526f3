"""The socket to the engine: whole frames, in both directions.

Code that is run may close the descriptor, or put something else in its place. There is nobody left to talk to then, and
the process ends at once with a code that says so; half a frame is never followed by another one.
"""

from .private import BUILTINS as __builtins__  # noqa: F401, I001

import _socket
from _thread import allocate_lock
from os import _exit, close, getpid, set_blocking, set_inheritable
from sys import byteorder

from . import frames

ENGINE_GONE = 0
KERNEL_BROKEN = 70
CHANNEL_LOST = 74
NOT_A_FRAME = 76

MOST_IN = 72 << 20
MOST_OUT = 16 << 20

_PEEK = _socket.MSG_PEEK
_DONTWAIT = _socket.MSG_DONTWAIT
_CLOEXEC = getattr(_socket, "MSG_CMSG_CLOEXEC", 0)
_RIGHTS = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS)
_ROOM = _socket.CMSG_SPACE(4 * 4)


class Channel:
    """Frames over a connected stream socket."""

    def __init__(self, interrupts):
        self._fd = self._socket = self._process = None
        self._interrupts = interrupts
        self._sending = allocate_lock()
        self._run = None
        self._held = b""  # goes out in front of the next frame
        self.descriptor = None  # came with the last frame
        self.may_be_lost = False  # a script may close every descriptor, and ends as it would have

    def attach(self, fd):
        """Takes a socket over, for this process and no child of it."""
        set_inheritable(fd, False)
        self._fd = fd
        self._socket = _socket.socket(fileno=fd)
        self._socket.settimeout(None)
        self._process = getpid()

    def fileno(self):
        return self._fd

    def is_ours(self):
        """False in a process that the code has forked: it shares the socket and must not use it."""
        return getpid() == self._process

    def leave(self):
        """Closes it, also in a process that the code has forked."""
        if self._socket is not None:
            try:
                self._socket.close()
            except OSError:
                pass

    def begin(self, run):
        """From now on frames are about this run."""
        with self._sending:
            self._run = run

    def send(self, text, run=None, last=False, held=False):
        """Sends a frame, given as JSON text. One that is about a run is sent only while that goes on; says whether it was.

        A thread of the code's may be late, and after `last`, the run's `done`, the engine would take its frame for a forgery.
        What is `held` goes out together with the next frame.
        """
        data = frames.to_bytes(text)
        if len(data) > MOST_OUT:
            raise ValueError(f"{len(data)} bytes are more than the {MOST_OUT} a message may have")
        if not self.is_ours():
            raise RuntimeError("this process was forked by the code: only its parent can talk to the caller")
        # Between runs the signals are blocked anyway.
        mask = self._interrupts.hold() if self._interrupts.armed else None
        try:
            with self._sending:
                if run is not None and run != self._run:
                    return False
                if last:
                    self._run = None
                data = self._held + len(data).to_bytes(4, "little") + data
                self._held = data if held else b""
                if not held:
                    self._socket.sendall(data)
                return True
        except BaseException:
            if self.may_be_lost:
                return False
            _exit(CHANNEL_LOST)
        finally:
            self._interrupts.release(mask)

    def wait(self):
        """Until a frame begins to arrive. May be interrupted, and takes nothing out of the channel."""
        try:
            while True:
                try:
                    if not self._socket.recv(1, _PEEK):
                        _exit(ENGINE_GONE)
                    return
                except BlockingIOError:
                    set_blocking(self._fd, True)
        except OSError:
            _exit(CHANNEL_LOST)

    def has_something(self):
        """Whether a frame has begun to arrive."""
        try:
            if self._socket.recv(1, _PEEK | _DONTWAIT):
                return True
        except BlockingIOError:
            return False
        except OSError:
            _exit(CHANNEL_LOST)
        _exit(ENGINE_GONE)

    def receive(self):
        """The next frame, waiting for it. `descriptor` is what came with it."""
        mask = self._interrupts.hold() if self._interrupts.armed else None
        try:
            length = int.from_bytes(self._head(), "little")
            if length > MOST_IN:
                _exit(NOT_A_FRAME)
            data = self._body(length)
        except BaseException:
            _exit(CHANNEL_LOST)
        try:
            frame = frames.from_bytes(data)
            if type(frame) is not dict:
                _exit(NOT_A_FRAME)
        except BaseException:
            _exit(NOT_A_FRAME)
        self._interrupts.release(mask)
        return frame

    def _head(self):
        head, ancillary, _, _ = self._socket.recvmsg(4, _ROOM, _CLOEXEC)
        self.descriptor = None
        for level, kind, data in ancillary:
            if (level, kind) == _RIGHTS:
                for at in range(0, len(data) - 3, 4):
                    fd = int.from_bytes(data[at : at + 4], byteorder)
                    if self.descriptor is None:
                        self.descriptor = fd
                    else:
                        close(fd)
        while len(head) < 4:
            head += self._some(4 - len(head))
        return head

    def _body(self, length):
        data = self._some(length) if length else b""
        if len(data) < length:
            parts = [data]
            missing = length - len(data)
            while missing:
                parts.append(self._some(min(missing, 1 << 20)))
                missing -= len(parts[-1])
            data = b"".join(parts)
        return data

    def _some(self, most):
        data = self._socket.recv(most)
        if not data:
            _exit(ENGINE_GONE)
        return data
