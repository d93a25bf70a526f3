"""The end of a process, as it would be had the code been a script.

Not all of the interpreter is taken apart: with large libraries loaded that would take longer than most runs.
"""

from .private import BUILTINS as __builtins__  # noqa: F401, I001

import gc
import sys
from _signal import SIG_DFL, SIGINT, signal
from _thread import _count
from atexit import _ncallbacks, _run_exitfuncs
from os import _exit, getpid, kill, sched_yield

FLUSH_FAILED = 120
INTERRUPTED = 256 + 130  # ends by the signal itself, as the interpreter does; 130 if that does not help
_LONG = 1 << 63  # the interpreter takes what does not fit into C's `long` for -1

_modules = sys.modules
_collect = gc.collect
_stats = gc.get_stats
_before = []  # how often garbage had been collected when the kernel began to serve
_code = SystemExit.__dict__["code"]


def argument_of(failure):
    """What `SystemExit` was raised with, whatever its class says."""
    return _code.__get__(failure)


def exit_code_of(failure):
    """What the process would exit with, were the code a script: eight bits of it, as everywhere. None for anything but `SystemExit`."""
    if not isinstance(failure, SystemExit):
        return None
    code = argument_of(failure)
    if code is None:
        return 0
    if not isinstance(code, int):
        return 1
    number = int.__int__(code)
    return number & 0xFF if -_LONG <= number < _LONG else 0xFF


def has_more_to_run():
    """Whether the code has left threads or exit handlers, which may take long, or end the process in their own way."""
    return _count() > 0 or _ncallbacks() > 0


def begin():
    """What there is from now on is the code's."""
    _before[:] = _collections()


def _collections():
    return [generation["collections"] for generation in _stats()]


def _collect_rest():
    """Ends objects that only hold each other. The kernel's own are never looked at."""
    # Objects grow older in a collection. While there was none, all of the code's are young, and the rest need not be touched.
    _collect(0 if _collections() == _before else 2)


def rehearse(session, run):
    """What the end of a script does, without what belongs to the code or cannot be taken back."""
    _guarded(session.hand_over)
    session.forget()
    _guarded(_collect_rest)
    session.flush()
    session.take_leave(run, 0)


def end_like_a_script(session, status, run=None):
    """Waits for threads, calls exit handlers, lets objects end, and exits with the status the script would have. Does not return.

    With a run, the engine is told that status before: it need not wait until the kernel has taken the process apart.
    """
    code = 1
    try:
        code = status & 0xFF
        _guarded(session.hand_over)
        _guarded(getattr(_modules.get("threading"), "_shutdown", None))
        _guarded(_run_exitfuncs)
        session.forget()
        _guarded(_collect_rest)
        if not session.flush():
            code = FLUSH_FAILED
        if status == INTERRUPTED:
            signal(SIGINT, SIG_DFL)
            kill(getpid(), SIGINT)
        elif run is not None:
            session.take_leave(run, code)
            sched_yield()  # to the engine, should it be on this core: to end takes longer than to read that
    finally:
        _exit(code)


def _guarded(step):
    """A step whose failure, or interruption, does not keep the others from happening."""
    try:
        if step is not None:
            step()
    except BaseException as problem:
        try:
            sys.excepthook(type(problem), problem, problem.__traceback__)
        except BaseException:
            return
