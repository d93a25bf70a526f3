"""A session: one namespace, and the runs in it."""

from .private import BUILTINS as __builtins__  # noqa: F401, I001

import builtins
import os
import sys
from os import _exit
from os.path import exists, join
from sys import getrecursionlimit, setprofile, setrecursionlimit, settrace
from types import ModuleType

from . import errors, frames, imports, libraries, streams, texts, values
from .channel import KERNEL_BROKEN
from .compiling import Compiler, clean
from .displays import Displays
from .ending import end_like_a_script, exit_code_of
from .sources import Sources
from .tasks import Tasks
from .tools import Tools
from .watching import Watcher

_COROUTINE = 0x80 | 0x100  # flags of code objects: a coroutine, also one that can be iterated
_LEAST_RECURSION = 500
_VALUE_BYTES = 1 << 20
_MOST_VALUE_BYTES = 6 << 20  # value and text together fit into one frame

_modules = sys.modules
_MISSING = object()


class Outcome:
    """What is known about a run."""

    def __init__(self):
        self.value = None  # as JSON text
        self.text = None
        self.error = None
        self.exit_code = None
        self.interrupted = False

    def to_text(self, run):
        """The `done` frame."""
        ok = self.error is None and not self.exit_code
        parts = ['{"op":"done","id":', frames.to_text(run), ',"ok":true' if ok else ',"ok":false']
        if self.value is not None:
            parts += [',"value":', self.value]
        if self.text is not None:
            parts += [',"value_text":', frames.to_text(self.text)]
        if self.error is not None:
            parts += [',"error":', frames.to_text(self.error)]
        if self.exit_code is not None:
            parts += [',"exit_code":', frames.to_text(self.exit_code)]
        if self.interrupted:
            parts.append(',"interrupted":true')
        parts.append("}")
        return "".join(parts)


class Session:
    """Keeps the state between runs."""

    def __init__(self, channel, interrupts):
        self._channel = channel
        self._interrupts = interrupts
        self._sources = Sources()
        self._compiler = Compiler()
        self._tasks = Tasks(interrupts)
        self._streams = streams.Streams()
        self._displays = Displays(channel, self._streams)
        self._tools = Tools(channel, interrupts, self._input)
        self._module = ModuleType("__main__")
        self._names = self._module.__dict__
        try:
            self._workspace = os.getcwd()
        except OSError:
            self._workspace = None

    def install(self):
        """Once, in the process that will run code."""
        streams.install(self._streams)
        libraries.install()
        self._displays.install()
        actions = self._displays.actions()
        actions["linecache"] = self._sources.tell_all
        Watcher(actions).install()
        os.register_at_fork(before=self._streams.flush, after_in_child=self._channel.leave)
        if self._workspace is not None:
            sys.path.insert(0, self._workspace)
        os.environ.setdefault("MPLBACKEND", "Agg")

    def set_up(self, frame):
        """The `setup` frame: environment and policy."""
        env = frame.get("env")
        if env is not None:
            os.environ.clear()
            os.environ.update(env)
            os.environ.setdefault("MPLBACKEND", "Agg")
            sys.path[1:1] = [path for path in env.get("PYTHONPATH", "").split(":") if path]
            if "TZ" in env:
                import time

                time.tzset()
        if frame.get("imports") is not None:
            imports.install(frame["imports"], self._workspace, self._names)

    def _input(self, frame):
        """More input of the run, see `LiveInput`."""
        if self._streams.live is not None:
            self._streams.live.feed(frame.get("data") or "", bool(frame.get("end")))

    def run(self, frame):
        """Runs the code of the frame and reports. Does not return after the last run."""
        run = frame["id"]
        outcome = Outcome()
        failure = None
        self._prepare(frame)
        try:
            self._displays.begin(run)
            failure = self._attempt(frame, outcome)
        except BaseException as exception:  # an interrupt that came while the outcome was looked at, or worse
            self._spoil(outcome, exception)
        self._interrupts.end()
        self._displays.run = None
        self._tools.end()
        self._streams.flush_all()
        self._streams.end()
        self._channel.send(outcome.to_text(run))
        if frame.get("last"):
            end_like_a_script(self, failure)

    def _prepare(self, frame):
        names = self._names
        name = frame.get("name") or "main.py"
        names["__name__"] = "__main__"
        names["__builtins__"] = builtins
        if _modules.get("__main__") is not self._module:
            _modules["__main__"] = self._module
        file = name if self._workspace is None else join(self._workspace, name)
        if frame.get("last") or exists(file):
            names["__file__"] = file
        sys.argv = [name, *(frame.get("args") or ())]
        names.update(frame.get("globals") or ())
        self._tools.begin(frame["id"], frame.get("tools") or [], names)
        self._streams.begin(frame.get("stdin"), self._channel.descriptor, self._tools.pump)
        self._channel.descriptor = None

    def _attempt(self, frame, outcome):
        """Compiles, runs, and fills in the outcome. Returns the exception that ended the code, if one did."""
        names = self._names
        code = failure = None
        text = frame["code"]
        filename = self._sources.add(frame.get("name") or "main.py", text)
        try:
            self._interrupts.begin()
            code = self._compiler.compile(text, filename)
            if code.co_flags & _COROUTINE:
                failure = self._tasks.run(eval(code, names))
            else:
                exec(code, names)
        except BaseException as exception:
            failure = exception
        # The code may have left things that would hit the kernel next. No function of Python's own is called before.
        settrace(None)
        setprofile(None)
        if getrecursionlimit() < _LEAST_RECURSION:
            setrecursionlimit(1000)
        value = clean(names)
        if not self._channel.is_ours():
            self._end_of_a_child(failure, filename)
        if failure is not None:
            self._fail(outcome, failure, filename, code is not None)
        elif value is not names and value is not None:
            self._value(outcome, value, frame)
        self._displays.figures()
        if frame.get("last"):
            self._tasks.close()
        else:
            self._tasks.turn()
        return failure

    def _value(self, outcome, value, frame):
        room = min(frame.get("value_bytes") or _VALUE_BYTES, _MOST_VALUE_BYTES)
        small = False
        try:
            text = frames.to_text(values.to_json(value, room))
            if len(text) <= room // 4 or len(text.encode("utf-8", "replace")) <= room:
                outcome.value = text
                small = True
        except values.NoJson:
            pass
        outcome.text = texts.of(value, room, small)
        self._displays.value(value, outcome.text)
        if not frame.get("last"):
            builtins._ = value

    def _fail(self, outcome, failure, filename, compiled):
        outcome.exit_code = exit_code_of(failure)
        outcome.interrupted = isinstance(failure, KeyboardInterrupt)
        if outcome.exit_code is None:
            outcome.error = errors.describe(failure, self._sources, filename, compiled)
            self._complain(failure, outcome.error["traceback"])
        elif type(failure.code) is not int and failure.code is not None:
            self._say(texts.cut(str(failure.code), errors.MOST_MESSAGE) + "\n")

    def _complain(self, failure, traceback):
        """Prints the traceback, as the interpreter would."""
        hook = sys.excepthook
        if hook is not sys.__excepthook__ and callable(hook):
            try:
                hook(type(failure), failure, errors.users(failure.__traceback__))
                return
            except Exception:
                pass
        self._say(traceback)

    def _say(self, text):
        try:
            self._streams.stdout.flush()
        except Exception:
            pass
        try:
            self._streams.stderr.write(text)
            self._streams.stderr.flush()
        except Exception:
            pass  # the code has closed it

    def _spoil(self, outcome, exception):
        """The outcome could not be found out."""
        outcome.interrupted = outcome.interrupted or isinstance(exception, KeyboardInterrupt)
        if outcome.error is None:
            outcome.value = None
            outcome.error = errors.last_resort(exception)

    def _end_of_a_child(self, failure, filename):
        """The code has forked, and this is the child, at the end of the code."""
        try:
            outcome = Outcome()
            if failure is not None:
                self._fail(outcome, failure, filename, True)
            end_like_a_script(self, failure)
        finally:
            _exit(KERNEL_BROKEN)

    def flush(self):
        """Writes out everything; whether that worked."""
        works = True
        for stream in (sys.stdout, sys.stderr):
            try:
                if stream is not None and not stream.closed:
                    stream.flush()
            except Exception:
                works = works and stream is sys.stderr
        self._streams.flush_all()
        return works

    def forget(self):
        """Lets go of everything of the code's, so that its objects end."""
        if _modules.get("__main__") is self._module:
            del _modules["__main__"]
        self._module = self._names = None

    def hand_over(self):
        """After the last run: signals do what the code wants again."""
        self._interrupts.begin()
