"""Frames that arrive while a run is going on: answers of the caller, and input.

Any thread may wait. Whoever waits and finds nobody reading the channel reads it, hands out what is for others, and passes the
reading on when its own answer has come. Loops of `asyncio` read when the channel is readable.
"""

from .private import BUILTINS as __builtins__  # noqa: F401, I001

from _thread import allocate_lock, get_ident

LOOK_MS = 50
_ENDED = {"error": {"type": "RuntimeError", "message": "the run in which the tool was called has ended"}}


class Waiter:
    """A thread that waits for an answer, or until something is true."""

    def __init__(self, is_done=None):
        self.answer = None
        self._is_done = is_done
        self._wake = allocate_lock()
        self._wake.acquire()

    def is_done(self):
        return self.answer is not None or (self._is_done is not None and self._is_done())

    def sleep(self):
        self._wake.acquire()

    def wake(self):
        if self._wake.locked():
            try:
                self._wake.release()
            except RuntimeError:
                pass  # somebody else did


class FutureWaiter:
    """A future of an event loop that waits for an answer."""

    def __init__(self, loop, answers):
        self.answer = None
        self.future = loop.create_future()
        self._loop = loop
        self._answers = answers

    def is_done(self):
        return self.answer is not None

    def wake(self):
        try:
            self._loop.call_soon_threadsafe(self._resolve)
        except Exception:
            pass  # the loop was closed, or is one of the code's making

    def _resolve(self):
        self._answers.unwatch(self._loop)
        if not self.future.done():
            self.future.set_result(self.answer)


class Answers:
    """Who waits for what, and the reading of the channel for them."""

    def __init__(self, channel, interrupts, on_input):
        self._channel = channel
        self._interrupts = interrupts
        self._on_input = on_input
        self._main = get_ident()
        self._run = None
        self._count = 0
        self._counting = allocate_lock()
        self._reading = allocate_lock()
        self._waiting = {}  # number of the call, or the waiter itself: who waits
        self._loops = {}  # event loops that watch the channel: how many futures of theirs are open

    def begin(self, run):
        """Calls are counted anew."""
        with self._counting:
            self._run = run
            self._count = 0

    def end(self):
        """Calls that are still open fail: nobody will answer them."""
        with self._counting:
            self._run = None
            waiting, self._waiting = self._waiting, {}
        for waiter in waiting.values():
            waiter.answer = _ENDED
            waiter.wake()
        # A thread that reads the channel has to stop before the next run's frame arrives.
        if self._reading.acquire(True, 1):
            self._reading.release()
        else:
            self._reading = allocate_lock()
        for loop in list(self._loops):
            self._unwatch(loop)

    def expect(self, waiter):
        """The run and the number of a new call, whose answer the waiter will get. The run is None if none is going on."""
        with self._counting:
            if self._run is not None:
                self._count += 1
                self._waiting[self._count] = waiter
            return self._run, self._count

    def forget(self, number, waiter):
        """Whether the answer was still awaited. In a later run the number is another call's."""
        with self._counting:
            awaited = self._waiting.get(number) is waiter
            if awaited:
                del self._waiting[number]
            return awaited

    def pump(self, is_done):
        """Reads frames until something that they bring has come true, or the run has ended."""
        waiter = Waiter(is_done)
        with self._counting:
            if self._run is None:
                return
            self._waiting[waiter] = waiter
        try:
            self.wait(waiter)
        finally:
            self._waiting.pop(waiter, None)

    def wait(self, waiter):
        """Until the waiter has what it wants."""
        while not waiter.is_done():
            if not self._read(waiter):
                waiter.sleep()

    def _read(self, waiter):
        """Reads one frame, for a waiter or, with None, for a loop. False if somebody else reads."""
        reading = self._reading
        ours = False
        try:
            mask = self._interrupts.hold()  # or an interrupt could come between taking the lock and knowing of it
            ours = reading.acquire(False)
            self._interrupts.release(mask)
            if not ours:
                return False
            if self._run is None:
                arrives = False  # what arrives now is for the kernel
            elif waiter is None:
                arrives = self._channel.has_something()
            else:
                arrives = not waiter.is_done() and self._arrives(waiter) and not waiter.is_done()
            if arrives:
                mask = self._interrupts.hold()  # it may be somebody else's answer, and must not be lost
                try:
                    self._dispatch(self._channel.receive())
                finally:
                    self._interrupts.release(mask)
        finally:
            if ours:
                reading.release()
                # Somebody else has to read, if this one has what it wanted or was interrupted.
                for other in list(self._waiting.values()):
                    if other is not waiter and type(other) is Waiter:
                        other.wake()
        return True

    def _arrives(self, waiter):
        """Waits for a frame. The main thread can be interrupted; others look now and then whether the run has ended."""
        if get_ident() == self._main:
            self._channel.wait()
            return True
        from select import POLLIN, poll

        poller = poll()
        poller.register(self._channel.fileno(), POLLIN)
        while not waiter.is_done():
            if poller.poll(LOOK_MS):
                return True
        return False

    def _dispatch(self, frame):
        op = frame.get("op")
        if op == "input":
            self._on_input(frame)
            for waiter in list(self._waiting.values()):
                if waiter.is_done():
                    waiter.wake()
        elif op == "answer" and frame.get("id", self._run) == self._run:
            with self._counting:
                waiter = self._waiting.pop(frame.get("call"), None)
            if waiter is not None:  # else its caller was interrupted
                waiter.answer = frame
                waiter.wake()

    def watch(self, loop):
        """A future of this loop waits."""
        self._loops[loop] = self._loops.get(loop, 0) + 1
        if self._loops[loop] == 1:
            loop.add_reader(self._channel.fileno(), self._read, None)

    def unwatch(self, loop):
        """It waits no longer."""
        left = self._loops.get(loop, 0) - 1
        if left > 0:
            self._loops[loop] = left
        elif left == 0:
            self._unwatch(loop)

    def _unwatch(self, loop):
        self._loops.pop(loop, None)
        try:
            loop.remove_reader(self._channel.fileno())
        except Exception:
            pass  # closed
