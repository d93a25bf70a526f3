"""A session: one namespace, and the runs in it."""

from .private import BUILTINS as __builtins__  # noqa: F401, I001

import builtins
import os
import sys
from os import _exit, stat
from sys import getprofile, getrecursionlimit, gettrace, path_importer_cache, setprofile, setrecursionlimit, settrace
from types import ModuleType

from . import errors, frames, imports, libraries, naming, streams
from .answers import Answers
from .channel import KERNEL_BROKEN
from .compiling import Compiler, as_parsed, clean
from .displays import Displays
from .ending import end_like_a_script, has_more_to_run
from .outcome import Outcome
from .sources import Sources
from .tasks import Tasks, asks_for_loop, inside
from .tools import Tools
from .values import given
from .watching import Watcher

_COROUTINE = 0x80 | 0x100  # flags of code objects: a coroutine, also one that can be iterated
_LEAST_RECURSION = 500

_REPLACED = ("argv", "stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__")

_modules = sys.modules
_excepthook = sys.excepthook
_environ = os.environ


def _exists(file):
    try:
        stat(file)
        return True
    except (OSError, ValueError):
        return False


def _paths(env):
    """Where modules are besides the usual places."""
    return [path for path in env.get("PYTHONPATH", "").split(":") if path[:1] == "/"]


def _make(paths):
    """One that is not there when it is looked at first is never looked at again."""
    for path in paths:
        try:
            os.makedirs(path, exist_ok=True)
        except OSError:
            pass  # it is there, or cannot be


class Session:
    """Keeps the state between runs."""

    def __init__(self, channel, interrupts):
        self._channel = channel
        self._interrupts = interrupts
        self._sources = self._compiler = self._module = self._names = self._name = self._workspace = self._first = None
        self._paths = ()  # of modules, made in every sandbox
        self._tasks = Tasks(interrupts)
        self._streams = streams.Streams()
        self._displays = Displays(channel, self._streams)
        self._answers = Answers(channel, interrupts, self._input)
        self._tools = Tools(channel, self._answers)
        interrupts.spare(Session.run)

    def install(self):
        """Once in a process, or in the zygote of it: what the code finds besides the interpreter's own."""
        streams.install(self._streams)
        libraries.install()
        self._displays.install()
        self._tools.install()
        actions = self._displays.actions()
        actions["linecache"] = lambda linecache: self._sources.tell_all(linecache)
        actions["threading"] = self._watch_threads
        actions.update(naming.actions(lambda: self._sources, lambda: self._name))
        Watcher(actions).install()
        os.register_at_fork(before=self._streams.flush, after_in_child=self._channel.leave)
        os.environ.setdefault("MPLBACKEND", "Agg")
        self._paths = _paths(os.environ)

    def begin(self):
        """An empty namespace, and this process's own directory and descriptors."""
        self._sources = Sources()
        self._compiler = Compiler()
        self._module = ModuleType("__main__")
        self._names = self._module.__dict__
        # As a script finds them, in versions that have them.
        if sys.version_info < (3, 14):
            self._names["__annotations__"] = {}
        if sys.version_info < (3, 15):
            self._names["__cached__"] = None
        self._name = None  # of the code, in the latest run
        try:
            self._workspace = os.getcwd()
            sys.path.insert(0, self._workspace)
        except OSError:
            self._workspace = None
        if self._paths:
            _make(self._paths)  # before anybody waits for it

    def keep_streams(self):
        """So that no run can take output from the next."""
        self._streams.keep()

    def rehearse(self, runs):
        """Takes the paths that a first run takes, so that the children of a zygote find them taken. Leaves nothing behind."""
        import linecache
        import traceback  # noqa: F401

        kept = {name: getattr(sys, name) for name in _REPLACED}
        # For good: the first run would have to wait until the streams that it replaces have been taken apart.
        self._first = kept
        main, path = _modules.get("__main__"), list(sys.path)
        self.begin()
        self._streams.rehearse(runs)
        for name, value in kept.items():
            setattr(sys, name, value)
        sys.path[:] = path
        _modules["__main__"] = main
        linecache.cache.clear()
        if hasattr(builtins, "_"):
            del builtins._
        self.forget()

    def _watch_threads(self, threading):
        """Before Python 3.13 failures in threads are shown with lines of whatever file has the name of the code."""

        def excepthook(args, /):
            """Show what a thread has failed with."""
            if args.exc_type is SystemExit:
                return
            name = args.thread.name if args.thread is not None else ""
            error, _ = errors.describe(args.exc_value, self._sources, None)
            stream = getattr(sys, "stderr", None)
            if stream is not None:
                print(f"Exception in thread {name}:\n{error['traceback']}", end="", file=stream, flush=True)

        threading.excepthook = threading.__excepthook__ = excepthook

    def set_up(self, frame):
        """The `setup` frame: environment and policy."""
        env = frame.get("env")
        if env is not None:
            os.environ.clear()
            os.environ.update(env)
            os.environ.setdefault("MPLBACKEND", "Agg")
            new = [path for path in _paths(env) if path not in sys.path]
            if new:
                sys.path[1:1] = new
                _make(new)
            if "TZ" in env:
                import time

                time.tzset()
        if frame.get("imports") is not None:
            imports.install(frame["imports"], self._workspace, self._names)

    def add_variables(self, frame):
        """The `env` frame: what the sandbox was given while it lives."""
        try:
            _environ.update(frame.get("env") or {})
        except BaseException:
            pass  # the code has made something else of it

    def _input(self, frame):
        """More input of the run, see `LiveInput`."""
        if self._streams.live is not None:
            self._streams.live.feed(frame.get("data") or "", bool(frame.get("end")))

    def run(self, frame):
        """Runs the code of the frame and reports. Does not return after the last run."""
        run = frame["id"]
        self._channel.may_be_lost = bool(frame.get("last"))
        outcome = Outcome()
        self._channel.begin(run)
        try:
            try:
                self._prepare(frame)
                self._displays.begin(run)
                self._attempt(frame, outcome)
            except BaseException as exception:  # an interrupt that came while the outcome was looked at, or worse
                self._interrupts.armed = False
                outcome.spoil(exception)
            self._interrupts.end()
            self._settle()
        except BaseException as exception:  # a handler of another signal, just before they were blocked
            try:
                self._interrupts.block()  # no code of ours: nothing can be raised before they are
            except BaseException:
                pass
            self._interrupts.end()
            outcome.spoil(exception)
        self._displays.end()
        self._answers.end()
        self._streams.flush()
        self._streams.end()
        last = bool(frame.get("last"))
        # Two frames a moment apart would wake the engine twice.
        self._report(outcome, run, held=last and outcome.status == 0 and not has_more_to_run())
        if last:
            end_like_a_script(self, outcome.status, run)

    def _report(self, outcome, run, held):
        try:
            self._channel.send(outcome.to_text(run), run, True, held)
        except ValueError:  # a text may become six times as long in JSON
            outcome.shorten()
            self._channel.send(outcome.to_text(run), run, True, held)

    def get_ready(self):
        """The `soon` frame: what a run will find, whatever it is."""
        names = self._names
        names["__name__"] = "__main__"
        names["__builtins__"] = builtins
        if _modules.get("__main__") is not self._module:
            _modules["__main__"] = self._module
        self._streams.take_back()

    def _prepare(self, frame):
        self.get_ready()
        names = self._names
        name = frame.get("name") or "main.py"
        if name != self._name:
            self._name = name
            file = name if name[:1] == "/" else f"{self._workspace or ''}/{name}"
            if frame.get("last") or _exists(file):
                names["__file__"] = file
        sys.argv = [name, *(frame.get("args") or ())]
        for key, value in (frame.get("globals") or {}).items():
            names[as_parsed(key)] = given(value)
        try:
            path_importer_cache[self._workspace].invalidate_caches()  # the engine may have written modules a moment ago
        except (KeyError, AttributeError):
            pass  # none was looked for
        self._tools.begin(frame.get("tools"), names)
        self._answers.begin(frame["id"])
        self._streams.begin(frame.get("stdin"), self._channel.descriptor, self._answers.pump)
        self._channel.descriptor = None

    def _attempt(self, frame, outcome):
        """Compiles, runs, and fills in the outcome."""
        names = self._names
        code = failure = None
        text = frame["code"]
        filename = self._sources.add(self._name, text)
        try:
            self._interrupts.begin()
            code = self._compiler.compile(text, filename)
            if code.co_flags & _COROUTINE:
                failure = self._tasks.run(eval(code, names))
            elif not frame.get("last") and asks_for_loop(code):
                failure = self._tasks.run(inside(code, names))
            else:
                exec(code, names)
        except BaseException as exception:
            failure = exception
        self._interrupts.armed = False
        value = self._settle()
        if not self._channel.is_ours():
            self._end_of_a_child(failure, filename)
        self._interrupts.armed = True  # the objects of the code are asked for their texts: that may take long
        try:
            if failure is not None:
                self._fail(outcome, failure, filename, code is not None)
            elif value is not names and value is not None:
                self._value(outcome, value, frame)
            self._wind_up(frame)
        finally:
            del failure  # its traceback holds this frame, and all that the code had in its variables

    def _settle(self):
        """Takes back what the code may have left to hit the kernel. Returns what `clean` does."""
        if getrecursionlimit() < _LEAST_RECURSION:
            setrecursionlimit(1000)
        if gettrace() is not None:
            settrace(None)
        if getprofile() is not None:
            setprofile(None)
        return clean(self._names)

    def _wind_up(self, frame):
        """What belongs to the run after its last line."""
        try:
            self._displays.figures()
        except Exception as problem:
            self._say(f"belljar: a figure cannot be shown: {errors.brief(problem)}\n")
        if frame.get("last"):
            self._tasks.close()
        else:
            self._tasks.turn()
        self._streams.flush_all()

    def _value(self, outcome, value, frame):
        outcome.succeed(value, frame.get("value_bytes"))
        try:
            self._displays.value(value, outcome.text)
        except Exception as problem:
            self._say(f"belljar: the value cannot be shown: {errors.brief(problem)}\n")
        if not frame.get("last"):
            builtins._ = value

    def _fail(self, outcome, failure, filename, compiled):
        outcome.fail(failure, self._sources, filename, compiled)
        if outcome.error is not None:
            self._complain(failure, outcome.error["traceback"])
        elif outcome.farewell is not None:
            self._say(outcome.farewell)

    def _complain(self, failure, traceback):
        """Prints the traceback, as the interpreter would."""
        hook = getattr(sys, "excepthook", None)
        if hook is not _excepthook and callable(hook):
            try:
                hook(type(failure), failure, errors.traceback_of(failure))
                return
            except Exception as problem:
                error, _ = errors.describe(problem, self._sources, None)
                self._say(f"Error in sys.excepthook:\n{error['traceback']}\nOriginal exception was:\n")
        self._say(traceback)

    def _say(self, text):
        self._streams.flush()
        self._streams.complain(text)

    def _end_of_a_child(self, failure, filename):
        """The code has forked, and this is the child, at the end of the code."""
        try:
            outcome = Outcome()
            if failure is not None:
                self._fail(outcome, failure, filename, True)
            end_like_a_script(self, outcome.status)
        finally:
            _exit(KERNEL_BROKEN)

    def flush(self):
        """Writes out everything; whether that worked."""
        works = True
        for name in ("stdout", "stderr"):
            try:
                stream = getattr(sys, name, None)
                if stream is not None and not stream.closed:
                    stream.flush()
            except Exception:
                works = works and name == "stderr"
        self._streams.flush_all()
        return works

    def forget(self):
        """Lets go of everything of the code's, so that its objects end."""
        if _modules.get("__main__") is self._module:
            del _modules["__main__"]
        self._sources = self._compiler = self._module = self._names = None

    def take_leave(self, run, code):
        """Says with which code the process is about to exit."""
        if self._channel.is_ours():
            self._channel.send(f'{{"op":"exit","id":{frames.to_text(run)},"code":{code}}}')

    def hand_over(self):
        """After the last run: signals do what the code wants again."""
        self._interrupts.begin()
