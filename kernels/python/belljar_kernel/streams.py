"""Standard input, output and error of the code.

Output is buffered by lines, as on a terminal: a line costs one system call, is not lost when the process is killed, and stands in
order with what child processes write, because unfinished lines are written out before a child starts.
"""

from .private import BUILTINS as __builtins__  # noqa: F401, I001

import builtins
import os
import sys
from errno import EAGAIN
from io import BufferedReader, BufferedWriter, FileIO, RawIOBase, TextIOWrapper
from os import close, dup, dup2, fstat, lseek, pipe, set_inheritable, write

_modules = sys.modules
_open = os.open
_memfd_create = getattr(os, "memfd_create", None)
_real_input = builtins.input

_PIPE_HOLDS = 1 << 16


def _writer(fd, name, errors):
    try:
        raw = FileIO(fd, "w", closefd=False)
    except OSError:
        return None  # closed; Python itself does the same
    raw.name = name
    stream = TextIOWrapper(BufferedWriter(raw), "utf-8", errors, "\n", line_buffering=True)
    stream.mode = "w"
    return stream


def _identity(fd):
    try:
        found = fstat(fd)
    except OSError:
        return None
    return (found.st_dev, found.st_ino)


def _is_open(stream):
    try:
        return stream is not None and not stream.closed
    except ValueError:
        return False  # its buffer was taken out of it


def _reader(raw):
    raw.name = "<stdin>"
    stream = TextIOWrapper(BufferedReader(raw), "utf-8", "surrogateescape")
    stream.mode = "r"
    return stream


def _write_all(fd, data):
    view = memoryview(data)
    while view:
        view = view[write(fd, view) :]


def _holding(text):
    """A descriptor from which the text can be read."""
    data = text.encode("utf-8", "surrogateescape")
    if _memfd_create is not None:
        try:
            fd = _memfd_create("stdin")
            _write_all(fd, data)
            lseek(fd, 0, 0)
            return fd
        except OSError:
            pass
    if len(data) <= _PIPE_HOLDS:
        fd, end = pipe()
        _write_all(end, data)
        close(end)
        return fd
    import tempfile

    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        return dup(file.fileno())


class LiveInput(RawIOBase):
    """Input that arrives in frames while the code runs. Child processes do not see it."""

    def __init__(self, pump):
        self._pump = pump  # reads frames until there is something, or the input has ended
        self._data = bytearray()
        self._ended = False

    def feed(self, text, end):
        self._data += text.encode("utf-8", "replace")
        self._ended = self._ended or end

    def has_something(self):
        return bool(self._data) or self._ended

    def readable(self):
        return True

    def fileno(self):
        return 0

    def readinto(self, target):
        if not self.has_something():
            self._pump(self.has_something)
        count = min(len(target), len(self._data))
        target[:count] = self._data[:count]
        del self._data[:count]
        return count


class Streams:
    """The three streams of the process, put in place for each run."""

    def __init__(self):
        self.stdout = self.stderr = self._stdin = None
        self._nothing = None  # /dev/null, while descriptor 0 is something else
        self._given = False  # the run has input
        self._replaced = False  # descriptor 0 is not what the kernel was started with
        self.live = None
        self._kept = {}  # of descriptors 1 and 2: another of the same, and what it is
        self._lent = False  # to code, which may have done anything to them
        self._c = None

    def rehearse(self, action):
        """Makes the streams for later, and does something while what is printed goes nowhere.

        They are made of pipes, because they remember whether one can seek in them, and the children of a zygote get pipes.
        """
        before = []
        for fd in range(3):
            try:
                before.append(dup(fd))
            except OSError:
                before.append(None)
        source, sink = pipe()
        for fd, end in ((0, source), (1, sink), (2, sink)):
            dup2(end, fd)
        try:
            action()
        finally:
            self.flush()
            for fd, old in enumerate(before):
                if old is None:
                    close(fd)
                else:
                    dup2(old, fd)
                    close(old)
            close(source)
            close(sink)

    def keep(self):
        """Once in a process that serves: whatever a run does to descriptors 1 and 2, the next one has them again."""
        self._lent = False
        for fd in (1, 2):
            try:
                self._kept[fd] = (dup(fd), _identity(fd))
            except OSError:
                pass

    def _restore(self):
        for fd, (copy, identity) in self._kept.items():
            try:
                if _identity(fd) != identity and _identity(copy) == identity:
                    dup2(copy, fd)
            except OSError:
                pass

    def _drop(self, fd, stream):
        """What the run before could not write, because it had closed or replaced the descriptor, is not the next one's."""
        try:
            type(stream).flush(stream)
        except OSError as problem:
            if problem.errno == EAGAIN or fd not in self._kept:
                return
            try:
                null = _open("/dev/null", os.O_WRONLY)
                if null != fd:
                    dup2(null, fd)
                    close(null)
                type(stream).flush(stream)
            except OSError:
                pass
        except (ValueError, AttributeError):
            pass  # there is none

    def take_back(self):
        """Makes of descriptors 1 and 2 what they were before the run before."""
        if self._lent:
            self._lent = False
            self._drop(1, self.stdout)
            self._drop(2, self.stderr)
            self._restore()

    def begin(self, stdin, descriptor, pump):
        """Puts the streams of a run in place, after `take_back`. `pump` is for input that will come in frames."""
        self._lent = True
        if stdin:
            self._give(stdin, descriptor, pump)
        elif self._given:
            self._take_input_back()
        if not _is_open(self._stdin):
            self._stdin = self._make_stdin()
        if not _is_open(self.stdout):
            self.stdout = _writer(1, "<stdout>", "surrogateescape")
        if not _is_open(self.stderr):
            self.stderr = _writer(2, "<stderr>", "backslashreplace")
        sys.stdin = sys.__stdin__ = self._stdin
        sys.stdout = sys.__stdout__ = self.stdout
        sys.stderr = sys.__stderr__ = self.stderr

    def end(self):
        """What is left of the run's input is not for the next one."""
        if self._given:
            self._take_input_back()

    def flush(self):
        """Writes out what is held back. Errors are the code's: it has closed or replaced the descriptors."""
        for stream in (self.stdout, self.stderr):
            try:
                type(stream).flush(stream)  # not what the code may have put there
            except (OSError, ValueError, AttributeError):
                pass

    def complain(self, text):
        """Writes to the standard error, if there is one."""
        try:
            stream = self.stderr
            type(stream).write(stream, text)
            type(stream).flush(stream)
        except (OSError, ValueError, AttributeError):
            pass

    def flush_all(self):
        """At the end of a run: also what the code has put in place, and what C code holds back."""
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name, None)
            if stream is not None and stream is not getattr(self, name):
                try:
                    stream.flush()
                except Exception:
                    pass
        self.flush()
        ctypes = _modules.get("ctypes")
        if ctypes is not None:
            try:
                if self._c is None:
                    self._c = ctypes.CDLL(None)
                self._c.fflush(None)
            except Exception:
                pass

    def _make_stdin(self):
        try:
            return _reader(self.live or FileIO(0, "r", closefd=False))
        except OSError:
            return None

    def _give(self, stdin, descriptor, pump):
        self._stdin = self.live = None
        self._given = True
        if stdin.get("live"):
            self.live = LiveInput(pump)
            self._back_to_nothing()
            return
        if descriptor is None:
            descriptor = _holding(stdin.get("text") or "")
        if self._nothing is None:
            try:
                self._nothing = dup(0)
            except OSError:
                pass  # the code has closed it
        if descriptor == 0:
            set_inheritable(0, True)  # the code has closed 0, and this took its place
        else:
            dup2(descriptor, 0)
            close(descriptor)
        self._replaced = True

    def _take_input_back(self):
        self._given = False
        self._stdin = self.live = None
        self._back_to_nothing()

    def _back_to_nothing(self):
        if not self._replaced:
            return
        self._replaced = False
        try:
            dup2(self._nothing, 0)
        except (OSError, TypeError):
            try:
                null = _open("/dev/null", os.O_RDONLY)
                if null != 0:
                    dup2(null, 0)
                    close(null)
            except OSError:
                pass


def _input(prompt="", /):
    """Read a line from standard input, without its end. The prompt, if given, is printed before."""
    try:
        return _real_input(prompt)
    except EOFError:
        pass
    raise EOFError("EOF when reading a line: the run was given no standard input, or all of it has been read")


_input.__name__ = _input.__qualname__ = "input"
_input.__module__ = "builtins"


def install(streams):
    """Once in a process: `input`, and output in order with that of child processes."""
    builtins.input = _input

    def flushing(function):
        def start(*args, **kwargs):
            streams.flush()
            return function(*args, **kwargs)

        start.__name__ = start.__qualname__ = function.__name__
        start.__doc__ = function.__doc__
        return start

    for name in ("system", "posix_spawn", "posix_spawnp"):
        if hasattr(os, name):
            setattr(os, name, flushing(getattr(os, name)))
    try:
        import _posixsubprocess
    except ImportError:
        return
    fork_exec = _posixsubprocess.fork_exec
    _posixsubprocess.fork_exec = flushing(fork_exec)
    subprocess = _modules.get("subprocess")
    if getattr(subprocess, "_fork_exec", None) is fork_exec:
        subprocess._fork_exec = _posixsubprocess.fork_exec
