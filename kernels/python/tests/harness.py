"""Starts a kernel as the engine would and speaks frames with it."""

import contextlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time
import unittest
from pathlib import Path

# Whoever started this may ignore it, and what is ignored stays so in every program that is started.
signal.signal(signal.SIGINT, signal.default_int_handler)
HERE = Path(__file__).resolve().parent
MAIN = HERE.parent / "main.py"
ZYGOTE = HERE / "zygote.py"
PYTHON = os.environ.get("KERNEL_PYTHON", sys.executable)
# Generous: only a kernel that hangs takes so long.
HANG = 60


class Ended(Exception):
    """The kernel ended instead of answering."""


class Result:
    """One run: its `done` frame, and what came before."""

    def __init__(self, done, displays, calls, stdout, stderr):
        self.done = done
        self.displays = displays
        self.calls = calls
        self.stdout = stdout
        self.stderr = stderr

    ok = property(lambda self: self.done["ok"])
    value = property(lambda self: self.done.get("value"))
    text = property(lambda self: self.done.get("value_text"))
    error = property(lambda self: self.done.get("error"))


class Kernel:
    """A kernel process with a channel at 3 and pipes at 1 and 2."""

    def __init__(self, *command, env=None, cwd=None):
        self.channel, theirs = socket.socketpair()
        null = os.open("/dev/null", os.O_RDONLY)
        out, out_theirs = os.pipe()
        err, err_theirs = os.pipe()
        actions = [
            (os.POSIX_SPAWN_DUP2, null, 0),
            (os.POSIX_SPAWN_DUP2, out_theirs, 1),
            (os.POSIX_SPAWN_DUP2, err_theirs, 2),
            (os.POSIX_SPAWN_DUP2, theirs.fileno(), 3),
        ]
        command = command or (PYTHON, "-I", str(MAIN))
        before = os.getcwd()
        if cwd is not None:
            os.chdir(cwd)
        try:
            environment = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"} if env is None else env
            self.pid = os.posix_spawn(command[0], command, environment, file_actions=actions)
        finally:
            os.chdir(before)
        for fd in (null, out_theirs, err_theirs):
            os.close(fd)
        theirs.close()
        self.output = {out: bytearray(), err: bytearray()}
        self.out, self.err = out, err
        for fd in (out, err):
            os.set_blocking(fd, False)
        self.received = bytearray()
        self.count = 0
        self.status = None

    def __enter__(self):
        assert self.next() == {"op": "ready"}
        return self

    def __exit__(self, *_):
        self.channel.close()
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.wait()
        for fd in (self.out, self.err):
            os.close(fd)

    def send(self, fds=(), **frame):
        data = json.dumps(frame).encode()
        data = struct.pack("<I", len(data)) + data
        try:
            if fds:
                sent = socket.send_fds(self.channel, [data], fds)
                data = data[sent:]
            self.channel.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            self.wait()
            raise Ended(self.status) from None

    def _drain(self, fd):
        """False at the end."""
        while True:
            try:
                data = os.read(fd, 1 << 16)
            except BlockingIOError:
                return True
            if not data:
                return False
            self.output[fd] += data

    def next(self, until=None):
        """The next frame, collecting output meanwhile; None as soon as `until` is in the standard output."""
        end = time.monotonic() + HANG
        watched = [self.channel.fileno(), self.out, self.err]
        while True:
            if len(self.received) >= 4:
                (length,) = struct.unpack_from("<I", self.received)
                if len(self.received) >= 4 + length:
                    frame = json.loads(self.received[4 : 4 + length])
                    del self.received[: 4 + length]
                    return frame
            if until is not None and until in self.output[self.out]:
                return None
            ready, _, _ = select.select(watched, [], [], max(0, end - time.monotonic()))
            if not ready:
                raise TimeoutError(f"no frame; output so far: {self.output}")
            for fd in ready:
                if fd == self.channel.fileno():
                    try:
                        data = self.channel.recv(1 << 20)
                    except ConnectionResetError:
                        data = b""
                    if not data:
                        self.wait()
                        raise Ended(self.status)
                    self.received += data
                elif not self._drain(fd):
                    watched.remove(fd)

    def start(self, code, fds=(), **fields):
        self.count += 1
        self.id = f"run-{self.count}"
        for stream in self.output.values():
            stream.clear()
        self.displays, self.calls = [], []
        frame = {"op": "run", "id": self.id, "code": code, "name": "main.py", "value_bytes": 100_000, **fields}
        self.send(fds, **frame)

    def finish(self, answer=None):
        """Until `done`. `answer(call)` gives the fields of the answer to a call, or None to leave it open."""
        while True:
            frame = self.next()
            assert frame["id"] == self.id, frame
            if frame["op"] == "done":
                break
            if frame["op"] == "display":
                self.displays.append(frame["data"])
            elif frame["op"] == "call":
                self.calls.append(frame)
                fields = answer(frame) if answer is not None else None
                if fields is not None:
                    self.send(op="answer", call=frame["call"], **fields)
            else:
                raise AssertionError(frame)
        self._drain(self.out)
        self._drain(self.err)
        stdout = self.output[self.out].decode("utf-8", "replace")
        stderr = self.output[self.err].decode("utf-8", "replace")
        return Result(frame, self.displays, self.calls, stdout, stderr)

    def run(self, code, answer=None, **fields):
        self.start(code, **fields)
        return self.finish(answer)

    def await_output(self, text):
        assert self.next(text.encode()) is None

    def interrupt(self):
        os.kill(self.pid, signal.SIGINT)

    def wait(self):
        """How the process ended: its exit code, or the negative number of a signal."""
        if self.status is None:
            end = time.monotonic() + HANG
            watched = [self.out, self.err]
            while watched and time.monotonic() < end:
                ready, _, _ = select.select(watched, [], [], 0.05)
                watched = [fd for fd in watched if fd not in ready or self._drain(fd)]
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.status = os.waitstatus_to_exitcode(status)
                    break
            if self.status is None:
                if time.monotonic() >= end:
                    raise TimeoutError("the kernel does not end")
                self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            self._drain(self.out)
            self._drain(self.err)
        return self.status


class KernelCase(unittest.TestCase):
    """Each test has a kernel of its own, in a directory of its own."""

    def setUp(self):
        import tempfile

        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.workspace = Path(os.path.realpath(directory.name))
        self.kernel = self.start_kernel()

    def start_kernel(self, *command, **options):
        kernel = Kernel(*command, cwd=self.workspace, **options)
        kernel.__enter__()
        self.addCleanup(kernel.__exit__)
        return kernel

    def run_code(self, code, answer=None, **fields):
        return self.kernel.run(code, answer, **fields)

    def run_well(self, code, answer=None, **fields):
        result = self.kernel.run(code, answer, **fields)
        self.assertTrue(result.ok, result.done)
        return result

    def value_of(self, code, **fields):
        return self.run_well(code, **fields).value

    def ends(self, code, **fields):
        """Runs code after which the kernel is not there any more; how it ended."""
        self.kernel.start(code, **fields)
        with self.assertRaises(Ended):
            while True:
                frame = self.kernel.next()
                self.assertNotEqual(frame["op"], "done", frame)
        return self.kernel.status

    def make(self, name):
        """A directory, for code that waits for it."""
        (self.workspace / name).mkdir()

    def there(self, name):
        """Waits until the code has made something of that name in its directory."""
        end = time.monotonic() + HANG
        while not (self.workspace / name).exists():
            self.assertLess(time.monotonic(), end, f"{name} does not appear")
            time.sleep(0.01)

    def assert_works(self):
        """The session goes on."""
        result = self.kernel.run("print('still', 'here'); 40 + 2")
        self.assertEqual((result.value, result.stdout), (42, "still here\n"), result.done)


def need(*modules):
    """The modules a test needs, or a failure that says what to install."""
    import subprocess

    for module in modules:
        found = subprocess.run([PYTHON, "-I", "-c", f"import {module}"], capture_output=True, check=False)
        if found.returncode:
            raise AssertionError(f"{PYTHON} has no {module}: apt-get install python3-{module.lower()}, or scripts/setup kernels")
