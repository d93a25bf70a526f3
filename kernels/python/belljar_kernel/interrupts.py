"""SIGINT stops the code, never the kernel.

While a run is going on and the code is in charge, the signal raises `KeyboardInterrupt`. Between runs it does nothing. While a frame
is read or written it waits until that is done. Other signals may have handlers of the code's that raise as well, so all of
them are blocked then, and between runs.
"""

from .private import BUILTINS as __builtins__  # noqa: F401, I001

from _signal import SIG_BLOCK, SIG_SETMASK, SIGINT, getsignal, pthread_sigmask, signal, valid_signals
from _functools import partial
from _thread import get_ident

_ALL = frozenset(int(number) for number in valid_signals())


class Interrupts:
    """The kernel's handler of SIGINT and its mask of signals. One exists in a kernel, made by the main thread."""

    def __init__(self):
        self.block = partial(pthread_sigmask, SIG_BLOCK, _ALL)
        self.armed = False
        self.divert = None  # of an asynchronous run: takes the interrupted frame, says whether it has taken care
        self._held = 0
        self._pending = False
        self._spared = set()
        self.spare(Interrupts.end)
        self._main = get_ident()
        self._handler = self._handle
        self._before = self._code_mask = None

    def install(self):
        """From now on signals are the kernel's, except while code is in charge."""
        self._before = (pthread_sigmask(SIG_BLOCK, _ALL), getsignal(SIGINT))
        self._code_mask = set()  # code begins with no signal blocked, whatever a zygote does
        signal(SIGINT, self._handler)

    def uninstall(self):
        """As they were before."""
        mask, handler = self._before
        signal(SIGINT, handler)
        pthread_sigmask(SIG_SETMASK, mask)

    def spare(self, *functions):
        """Nothing is raised while one of these is what is being executed: they stand between the code and the loop."""
        self._spared.update(function.__code__ for function in functions)

    def _handle(self, _signal, frame):
        if not self.armed or frame.f_code in self._spared:
            return
        if self._held:
            self._pending = True
        elif self.divert is None or not self.divert(frame):
            raise KeyboardInterrupt

    def begin(self):
        """Hands over to the code. Handlers of signals that came since the last run are called here, and may raise."""
        if getsignal(SIGINT) is not self._handler:
            signal(SIGINT, self._handler)
        self._pending = False
        pthread_sigmask(SIG_SETMASK, self._code_mask)
        self.armed = True

    def end(self):
        """The code is no longer in charge. Does not raise."""
        self.armed = False
        for _ in range(3):  # a handler of the code's may raise in here; it has had its turn then
            try:
                before = pthread_sigmask(SIG_BLOCK, _ALL)
                if len(before) < len(_ALL) - 4:  # not blocked by an earlier attempt
                    self._code_mask = before - {SIGINT}
                if getsignal(SIGINT) is not self._handler:
                    signal(SIGINT, self._handler)
                return
            except BaseException:
                continue

    def hold(self):
        """Before a frame is moved while code is in charge; what it returns is for `release`."""
        if get_ident() != self._main:
            return None  # Python calls handlers in the main thread only
        self._held += 1
        try:
            return pthread_sigmask(SIG_BLOCK, _ALL)
        except BaseException:
            self._held -= 1
            pthread_sigmask(SIG_SETMASK, self._code_mask)
            raise

    def release(self, mask):
        """After the frame was moved: what came meanwhile happens now."""
        if mask is None:
            return
        self._held -= 1
        pthread_sigmask(SIG_SETMASK, mask)
        if self._pending and not self._held:
            self._pending = False
            if self.armed:
                raise KeyboardInterrupt
