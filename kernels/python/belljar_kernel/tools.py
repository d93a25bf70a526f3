"""Functions of the caller, called over the channel while a run is going on.

Any thread may call. Whoever waits for an answer and finds nobody reading the channel reads it, hands out what is for others, and
passes the reading on when its own answer has come. Loops of `asyncio` read when the channel is readable.
"""

from .private import BUILTINS as __builtins__  # noqa: F401, I001

import builtins
from _thread import allocate_lock, get_ident

from . import frames
from .channel import MOST_OUT
from .values import NoJson, TooLarge, to_json

MOST_CLASSES = 256
LOOK_MS = 50
_NOT_RAISED = (StopIteration, StopAsyncIteration)  # would be taken for something else than a failure


class ToolError(Exception):
    """A tool of the caller failed with an exception that is not one of Python's own."""


ToolError.__module__ = "builtins"


class _Waiter:
    """Somebody who waits for an answer, or for input."""

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
                pass


class _AsyncWaiter(_Waiter):
    """A future of an event loop that waits."""

    def __init__(self, loop, forget):
        self.answer = None
        self._loop = loop
        self.future = loop.create_future()
        self._forget = forget

    def is_done(self):
        return self.answer is not None

    def wake(self):
        if self.answer is None:
            return
        try:
            self._loop.call_soon_threadsafe(self._resolve)
        except RuntimeError:
            pass  # the loop was closed

    def _resolve(self):
        self._forget(self._loop)
        if not self.future.done():
            self.future.set_result(self.answer)


class Tools:
    """The functions that stand for the caller's, and the answers that are awaited."""

    def __init__(self, channel, interrupts, on_input):
        self._channel = channel
        self._interrupts = interrupts
        self._main = get_ident()
        self._on_input = on_input
        self._run = None
        self._count = 0
        self._counting = allocate_lock()
        self._reading = allocate_lock()
        self._waiting = {}  # number of the call (or the waiter itself): who waits
        self._loops = {}  # event loops that watch the channel: how many futures of theirs are open
        self._specs = []
        self._functions = {}
        self._classes = {}
        builtins.ToolError = ToolError

    def begin(self, run, specs, namespace):
        """The functions are there for the run; those of an earlier run that are not listed any more are taken away."""
        self._run = run
        self._count = 0
        if specs != self._specs:
            before, self._functions = self._functions, {spec["name"]: self._function(spec) for spec in specs}
            self._specs = specs
            for name, function in before.items():
                if namespace.get(name) is function:
                    del namespace[name]
        if specs:
            namespace.update(self._functions)

    def end(self):
        """Calls that are still open fail: nobody will answer them."""
        self._run = None
        if self._waiting:
            gone = {"error": {"type": "RuntimeError", "message": "the run in which the tool was called has ended"}}
            for key, waiter in list(self._waiting.items()):
                if self._waiting.pop(key, None) is not None:
                    waiter.answer = gone
                    waiter.wake()
            # A thread that reads the channel has to stop before the next run's frame arrives.
            if self._reading.acquire(True, 1):
                self._reading.release()
            else:
                self._reading = allocate_lock()
        for loop in list(self._loops):
            self._unwatch(loop)

    def _function(self, spec):
        name = spec["name"]
        tools = self

        if spec.get("async"):

            async def tool(*args, **kwargs):
                return await tools._call_async(name, args, kwargs)

        else:

            def tool(*args, **kwargs):
                return tools._call(name, args, kwargs)

        tool.__name__ = tool.__qualname__ = name
        tool.__module__ = "__main__"
        tool.__doc__ = spec.get("doc") or None
        signature = _signature(name, spec.get("parameters"))
        if signature is not None:
            tool.__wrapped__ = signature  # for `help` and `inspect.signature`
            tool.__annotations__ = signature.__annotations__
        return tool

    def _ask(self, name, args, kwargs, waiter):
        """Sends the call; the waiter will get the answer."""
        try:
            sent = f'"args":{_encode(list(args))},"kwargs":{_encode(kwargs)}'
        except TooLarge:
            raise ValueError(f"the arguments of {name}() are too large: {MOST_OUT} bytes are the most") from None
        except NoJson as problem:
            raise TypeError(f"the arguments of {name}() have no JSON form: {problem}") from None
        if self._run is None:
            raise RuntimeError(f"{name}() is a tool of the caller and can be called only while a run is going on")
        if not self._channel.is_ours():
            raise RuntimeError(f"{name}() is a tool of the caller and cannot be called from a forked process")
        with self._counting:
            self._count += 1
            number = self._count
        self._waiting[number] = waiter
        head = f'{{"op":"call","id":{frames.to_text(self._run)},"call":{number},"tool":{frames.to_text(name)},'
        try:
            self._channel.send(f"{head}{sent}}}")
        except ValueError:
            del self._waiting[number]
            raise ValueError(f"the arguments of {name}() are too large: {MOST_OUT} bytes are the most") from None
        return number

    def _call(self, name, args, kwargs):
        waiter = _Waiter()
        number = self._ask(name, args, kwargs, waiter)
        try:
            self._wait(waiter)
        finally:
            self._waiting.pop(number, None)
        return self._result(waiter.answer)

    def pump(self, is_done):
        """Reads frames until something that they bring has come true."""
        waiter = _Waiter(is_done)
        self._waiting[waiter] = waiter
        try:
            if self._run is not None:
                self._wait(waiter)
        finally:
            self._waiting.pop(waiter, None)

    def _wait(self, waiter):
        while not waiter.is_done():
            if not self._read(waiter):
                waiter.sleep()

    def _read(self, waiter):
        """Reads one frame, unless the waiter needs none any more or somebody else reads: then it is false."""
        reading = self._reading
        ours = False
        try:
            mask = self._interrupts.hold()  # or an interrupt could come between taking the lock and knowing of it
            ours = reading.acquire(False)
            self._interrupts.release(mask)
            if not ours:
                return False
            if waiter is None:
                arrives = self._channel.has_something()
            else:
                arrives = not waiter.is_done() and self._arrives(waiter) and not waiter.is_done()
            if arrives:
                self._dispatch(self._channel.receive())
        finally:
            if ours:
                reading.release()
                # Somebody else has to read, if this one has what it wanted or was interrupted.
                for other in list(self._waiting.values()):
                    if other is not waiter and type(other) is _Waiter:
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
            waiters = [waiter for waiter in list(self._waiting.values()) if waiter.is_done()]
        elif op == "answer" and frame.get("id", self._run) == self._run:
            waiter = self._waiting.pop(frame.get("call"), None)
            if waiter is None:
                return  # the caller of it was interrupted
            waiter.answer = frame
            waiters = [waiter]
        else:
            return
        for waiter in waiters:
            waiter.wake()

    async def _call_async(self, name, args, kwargs):
        from asyncio import get_running_loop

        loop = get_running_loop()
        waiter = _AsyncWaiter(loop, self._release)
        number = self._ask(name, args, kwargs, waiter)
        self._watch(loop)
        try:
            answer = await waiter.future
        finally:
            if self._waiting.pop(number, None) is not None:
                self._release(loop)
        return self._result(answer)

    def _watch(self, loop):
        self._loops[loop] = self._loops.get(loop, 0) + 1
        if self._loops[loop] == 1:
            loop.add_reader(self._channel.fileno(), self._readable)

    def _release(self, loop):
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

    def _readable(self):
        self._read(None)

    def _result(self, answer):
        error = answer.get("error")
        if error is None:
            return answer.get("value")
        raise self._exception(str(error.get("type") or "ToolError"), str(error.get("message") or ""))

    def _exception(self, name, message):
        kind = __builtins__.get(name)
        if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, _NOT_RAISED):
            try:
                return kind(message)
            except TypeError:
                pass  # wants other arguments, as UnicodeDecodeError does
        if name == "ToolError":
            return ToolError(message)
        kind = self._classes.get(name)
        if kind is None:
            kind = type(name, (ToolError,), {"__module__": "builtins"})
            if len(self._classes) < MOST_CLASSES:
                self._classes[name] = kind
        return kind(message)


def _encode(value):
    return frames.to_text(to_json(value, MOST_OUT))


def _signature(name, parameters):
    """A function with these parameters, or None if they are not Python's: "query: str", "limit: int = 5"."""
    if not parameters:
        return None
    text = f"def {name}({', '.join(parameters)}): ..."
    for before in ("", "from __future__ import annotations\n"):  # for types that are unknown here
        names = {"__name__": "__main__"}
        try:
            exec(compile(before + text, "<tool>", "exec", 0, True), names)
            return names[name]
        except Exception:
            continue
    return None
