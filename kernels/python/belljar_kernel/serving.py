"""The life of a kernel: says that it is ready, and does what the frames say until the engine is gone."""

from .private import BUILTINS as __builtins__  # noqa: F401, I001

import _socket
import gc
from os import _exit, write

from . import channel, ending
from .channel import KERNEL_BROKEN, NOT_A_FRAME, Channel
from .frames import to_bytes, to_text
from .interrupts import Interrupts
from .session import Session

_REHEARSAL = (
    "1 + 1",
    "x = [1, 'é', {2.5: None}]\nprint(x)\nx",
    "def f():\n    return g\nf()",
    "for x in 1, 2:\n    return x",
    "1 +",
)
# As the engine's first is.
_FRAME = {"op": "run", "id": "", "code": "", "name": "main.py", "args": [], "globals": {}, "tools": [], "value_bytes": 1 << 20}
# The interpreter adapts what it runs for the first dozens of times, and writes that into the code: once here is better than in every
# copy, each of which would have its own pages for it.
_OFTEN = 12


class Kernel:
    """All parts of a kernel. A zygote makes one before it forks, and every child uses its copy."""

    def __init__(self):
        self._interrupts = Interrupts()
        self._channel = Channel(self._interrupts)
        self._session = Session(self._channel, self._interrupts)
        self._session.install()

    def rehearse(self, codes):
        """Runs these, as if somebody sat at the other end."""
        ours, theirs = _socket.socketpair()

        def run():
            for code in codes:
                frame = to_bytes(to_text(_FRAME | {"code": code}))
                ours.sendall(len(frame).to_bytes(4, "little") + frame)
                self._next()
                ours.recv(1 << 16)  # or there would soon be no room for another answer
            ending.rehearse(self._session, "")
            self._interrupts.end()

        self._interrupts.install()
        try:
            self._channel.attach(theirs.detach())
            self._session.rehearse(run)
        finally:
            self._channel.leave()
            ours.close()
            self._interrupts.uninstall()

    def serve(self, fd):
        """Until the engine is gone. Does not return."""
        try:
            self._interrupts.install()
            self._channel.attach(fd)
            self._session.begin()
            self._session.keep_streams()
            ending.begin()
            self._channel.send('{"op":"ready"}')
            while True:
                self._next()
        except BaseException as exception:
            _confess(exception)
        finally:
            _exit(KERNEL_BROKEN)

    def _next(self):
        try:
            self._channel.wait()
        except BaseException:
            return  # a signal handler of the code's has raised; nothing was taken out of the channel
        frame = self._channel.receive()
        op = frame.get("op")
        if op == "run":
            if type(frame.get("id")) is not str or type(frame.get("code")) is not str:
                _exit(NOT_A_FRAME)
            self._session.run(frame)
        elif op == "soon":
            self._session.get_ready()
        elif op == "setup":
            self._session.set_up(frame)
        elif op == "env":
            self._session.add_variables(frame)
        # Answers and input that come too late are for nobody.


def _confess(exception):
    """Says on stderr where the kernel itself has failed."""
    places = []
    traceback = exception.__traceback__
    while traceback is not None:
        places.append(f"{traceback.tb_frame.f_code.co_filename.rpartition('/')[2]}:{traceback.tb_lineno}")
        traceback = traceback.tb_next
    write(2, f"belljar: the kernel failed: {type(exception).__name__} at {' '.join(places[-9:])}\n".encode())


_prewarmed = []


def prewarm():
    """Makes a kernel for `serve` to use, and runs something in it."""
    _prewarmed[:] = [Kernel()]
    _prewarmed[0].rehearse(_REHEARSAL * _OFTEN)


def touch():
    """In a copy: a small run, so that the pages which a run writes to are the copy's own before the first one comes."""
    if _prewarmed:
        _prewarmed[0].rehearse(("print(0)", "0"))


def run_once(code, last, end):
    """In a copy that is thrown away: all that one does until it has run something, but that it calls this instead of waiting for more, or of exiting."""
    ours, theirs = _socket.socketpair()
    for frame in {"op": "soon"}, _FRAME | {"code": code, "last": last}:
        text = to_bytes(to_text(frame))
        ours.sendall(len(text).to_bytes(4, "little") + text)
    ours.shutdown(_socket.SHUT_WR)

    def replaced(status):
        if status == 0:
            end()
        _exit(status)

    ending._exit = channel._exit = replaced
    serve(theirs.detach())


def serve(fd=3):
    """Runs code for the engine at the other end of the descriptor. Does not return.

    A zygote calls this in a child that it has forked, after `after_fork`, with nothing on the stack that has to be cleaned up.
    """
    if _prewarmed:
        kernel = _prewarmed.pop()
    else:
        kernel = Kernel()
        gc.freeze()  # what is loaded so far is here to stay
    kernel.serve(fd)
