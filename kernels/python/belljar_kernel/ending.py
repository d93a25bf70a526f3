"""The end of a process, as it would be had the code been a script.

Not all of the interpreter is taken apart: with large libraries loaded that would take longer than most runs.
"""

from .private import BUILTINS as __builtins__  # noqa: F401, I001

import gc
import sys
from _signal import SIG_DFL, SIGINT, signal
from os import _exit, getpid, kill

FLUSH_FAILED = 120

_modules = sys.modules
_collect = gc.collect


def exit_code_of(failure):
    """The code of `SystemExit`, None for anything else."""
    if not isinstance(failure, SystemExit):
        return None
    code = failure.code
    if code is None:
        return 0
    return int(code) if isinstance(code, int) and -(1 << 31) <= code < 1 << 32 else 1


def end_like_a_script(session, failure):
    """Waits for threads, calls exit handlers, lets objects end, and exits with the code the script would have. Does not return."""
    code = exit_code_of(failure)
    if code is None:
        code = 0 if failure is None else 1
    interrupted = isinstance(failure, KeyboardInterrupt)
    try:
        session.hand_over()
        del failure
        _guarded("threading", "_shutdown")
        _guarded("atexit", "_run_exitfuncs")
        session.forget()
        _guarded(None, _collect)
        if not session.flush():
            code = FLUSH_FAILED
        if interrupted:
            signal(SIGINT, SIG_DFL)
            kill(getpid(), SIGINT)
            code = 130
    finally:
        _exit(code & 0xFF)


def _guarded(module, function):
    """A step whose failure, or interruption, does not keep the others from happening."""
    try:
        if module is None:
            function()
        elif module in _modules:
            getattr(_modules[module], function)()
        elif module == "atexit":
            import atexit

            getattr(atexit, function)()
    except BaseException as problem:
        try:
            sys.excepthook(type(problem), problem, problem.__traceback__)
        except BaseException:
            pass
