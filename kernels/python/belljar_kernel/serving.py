"""The life of a kernel: says that it is ready, and does what the frames say until the engine is gone."""

from .private import BUILTINS as __builtins__  # noqa: F401, I001

import gc
from os import _exit

from .channel import KERNEL_BROKEN, NOT_A_FRAME, Channel
from .interrupts import Interrupts
from .session import Session


def serve(fd=3):
    """Runs code for the engine at the other end of the descriptor. Does not return.

    A zygote calls this in a child that it has forked, after `after_fork`, with nothing on the stack that has to be cleaned up.
    """
    try:
        interrupts = Interrupts()
        channel = Channel(fd, interrupts)
        session = Session(channel, interrupts)
        session.install()
        gc.freeze()  # the kernel's own objects are here to stay
        channel.send('{"op":"ready"}')
        while True:
            _next(channel, session)
    finally:
        _exit(KERNEL_BROKEN)


def _next(channel, session):
    try:
        channel.wait()
    except BaseException:
        return  # a signal handler of the code's has raised; nothing was taken out of the channel
    frame = channel.receive()
    op = frame.get("op")
    if op == "run":
        if type(frame.get("id")) is not str or type(frame.get("code")) is not str:
            _exit(NOT_A_FRAME)
        session.run(frame)
    elif op == "setup":
        session.set_up(frame)
    # Answers and input that come too late are for nobody.
