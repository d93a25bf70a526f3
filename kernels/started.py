"""For tests: a kernel's process, driven as the engine does: a socket pair at descriptor 3, pipes at 1 and 2."""

import abc
import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time

# Whoever started this may ignore them, and what is ignored stays so in every program that is started.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
GUARD = 30  # seconds after which something counts as hanging


class Ended(Exception):
    """The kernel closed the channel."""


class Started(abc.ABC):
    """What kernels have in common. One that speaks its own language has `answer`, which takes the next one from `pending`."""

    def __init__(self, command, environment, **options):
        self.directory = tempfile.mkdtemp(prefix="kernel-")
        self.channel, inside = socket.socketpair()
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        self.process = subprocess.Popen(
            command, cwd=self.directory, env={"PATH": os.environ["PATH"], **environment},
            stdin=subprocess.DEVNULL, stdout=out_write, stderr=err_write, pass_fds=(3,),
            preexec_fn=lambda: os.dup2(inside.fileno(), 3), **options)
        for descriptor in (out_write, err_write):
            os.close(descriptor)
        inside.close()
        self.pipes = {out_read: bytearray(), err_read: bytearray()}
        self.out, self.err = self.pipes.values()
        self.pending = bytearray()
        self.count = 0

    @abc.abstractmethod
    def answer(self):
        """The next whole answer, taken off `pending`; None while there is none."""

    def give(self, data):
        if self.channel is None:
            raise Ended
        try:
            self.channel.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            raise Ended from None

    def pump(self, seconds):
        """Moves what has come to where it belongs. False when nothing came in time."""
        sources = [*self.pipes, *([self.channel] if self.channel else [])]
        ready, _, _ = select.select(sources, [], [], seconds)
        for source in ready:
            if source is self.channel:
                try:
                    data = self.channel.recv(1 << 20)
                except ConnectionError:
                    data = b""
                if not data:
                    self.channel.close()
                    self.channel = None
                self.pending += data
            else:
                data = os.read(source, 1 << 20)
                self.pipes[source] += data
                if not data:
                    os.close(source)
                    del self.pipes[source]
        return bool(ready)

    def receive(self, seconds=GUARD):
        deadline = time.monotonic() + seconds
        while (answer := self.answer()) is None:
            if self.channel is None:
                raise Ended(self.err.decode(errors="replace"))
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"no answer; stderr: {bytes(self.err[:2000])!r}")
            self.pump(left)
        return answer

    def begin(self):
        """A name for the next run, whose output is apart from what came before."""
        self.count += 1
        self.id = f"run-{self.count}-{os.urandom(4).hex()}"
        self.out.clear()
        self.err.clear()
        return self.id

    def drain(self):
        """Collects what has been printed until now: a pipe holds less than one look takes, so code that goes on printing keeps
        nobody here."""
        for _ in range(8):
            if not self.pump(0):
                break

    def begun(self):
        """Waits for the run to print `begun`: an interrupt that comes before the run has begun is none of its."""
        while "begun" not in self.stdout:
            assert self.pump(GUARD), "the run does not begin"

    def there(self, name):
        """Waits until the code has made something of that name in its directory."""
        deadline = time.monotonic() + GUARD
        while not os.path.exists(os.path.join(self.directory, name)):
            assert time.monotonic() < deadline, f"{name} does not appear"
            time.sleep(0.01)

    def make(self, name):
        """A directory, for code that waits for it."""
        os.mkdir(os.path.join(self.directory, name))

    def interrupt(self, after=0.3):
        time.sleep(after)
        self.process.send_signal(signal.SIGINT)

    def wait(self, seconds=GUARD):
        """The exit code, when the process ends by itself. What it still printed is collected."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < deadline, "the kernel does not end"
            self.pump(0.02)
        while self.pipes and self.pump(0.2):
            pass
        return self.process.returncode

    @property
    def stdout(self):
        return self.out.decode()

    @property
    def stderr(self):
        return self.err.decode()

    def kill(self):
        self.process.kill()

    def close(self):
        self.kill()
        self.process.wait()
        for descriptor in list(self.pipes):
            os.close(descriptor)
        self.pipes = {}
        if self.channel:
            self.channel.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    @classmethod
    @contextlib.contextmanager
    def kernel(cls, **environment):
        started = cls(**environment)
        try:
            yield started
        finally:
            started.close()
