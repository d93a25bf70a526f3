"""Drives the bash kernel as the engine does: a socket pair at descriptor 3, pipes at 1 and 2, fields that end in NUL."""

import contextlib
import dataclasses
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time

# Whoever started this may ignore it, and what is ignored stays so in every program that is started.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
KERNEL = pathlib.Path(__file__).resolve().parent.parent / "main.sh"
GUARD = 30  # seconds after which something counts as hanging
FIELDS = {"shell 1": 0, "ready": 0, "done": 6}


class Ended(Exception):
    """The kernel closed the channel."""


@dataclasses.dataclass
class Done:
    id: str
    status: int
    interrupted: bool
    type: str
    message: str
    line: str
    out: str = ""
    err: str = ""


def children(process):
    with contextlib.suppress(OSError):
        return [int(word) for word in pathlib.Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    return []


class Kernel:
    def __init__(self, environment=None):
        bash = shutil.which("bash")
        if not bash:
            raise RuntimeError("these tests need bash 5: apt-get install bash")
        self.directory = tempfile.mkdtemp(prefix="kernel-")
        self.channel, inside = socket.socketpair()
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        self.process = subprocess.Popen(
            [bash, str(KERNEL)], cwd=self.directory, env={"PATH": os.environ["PATH"], **(environment or {})},
            stdin=subprocess.DEVNULL, stdout=out_write, stderr=err_write, pass_fds=(3,),
            preexec_fn=lambda: os.dup2(inside.fileno(), 3), start_new_session=True)
        for descriptor in (out_write, err_write):
            os.close(descriptor)
        inside.close()
        self.pipes = {out_read: bytearray(), err_read: bytearray()}
        self.out, self.err = self.pipes.values()
        self.pending = bytearray()
        self.fields = []
        self.count = 0
        assert self.receive() == ["shell 1"]
        assert self.receive() == ["ready"]

    def send(self, *fields):
        if self.channel is None:
            raise Ended
        self.channel.sendall(b"".join((field if isinstance(field, bytes) else str(field).encode()) + b"\0" for field in fields))

    def pump(self, seconds):
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
        *whole, rest = bytes(self.pending).split(b"\0")
        self.fields += [field.decode() for field in whole]
        self.pending = bytearray(rest)
        return bool(ready)

    def receive(self, seconds=GUARD):
        """The next answer, as a list of its fields."""
        deadline = time.monotonic() + seconds
        while not self.fields or len(self.fields) <= FIELDS[self.fields[0]]:
            if self.channel is None:
                raise Ended(bytes(self.err).decode(errors="replace"))
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"no answer; stderr: {bytes(self.err[:2000])!r}")
            self.pump(left)
        count = FIELDS[self.fields[0]] + 1
        answer, self.fields = self.fields[:count], self.fields[count:]
        return answer

    def start(self, code, args=(), variables=None, stdin=None, last=False, name="bash"):
        self.count += 1
        self.id = f"run-{self.count}-{os.urandom(4).hex()}"
        self.out.clear()
        self.err.clear()
        variables = variables or {}
        self.send("run", self.id, name, int(last), "none" if stdin is None else "text", stdin or "", len(args), *args,
                  len(variables), *(part for pair in variables.items() for part in pair), code)

    def finish(self, seconds=GUARD):
        op, name, status, interrupted, kind, message, line = self.receive(seconds)
        assert (op, name) == ("done", self.id), (op, name)
        while self.pump(0):
            pass
        return Done(name, int(status), interrupted == "1", kind, message, line, self.stdout, self.stderr)

    def run(self, code, seconds=GUARD, **fields):
        self.start(code, **fields)
        return self.finish(seconds)

    def text(self, code, **fields):
        """What a run prints; it must succeed."""
        done = self.run(code, **fields)
        assert done.status == 0, done
        return done.out

    def interrupt(self, after=0.3):
        time.sleep(after)
        self.process.send_signal(signal.SIGINT)

    def wait(self, seconds=GUARD):
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

    def close(self):
        for child in (*children(self.process.pid), self.process.pid):
            # The shell, its group and its session; what the code has moved elsewhere ends by itself.
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    kill(child, signal.SIGKILL)
        self.process.wait()
        for descriptor in list(self.pipes):
            os.close(descriptor)
        self.pipes = {}
        if self.channel:
            self.channel.close()
        shutil.rmtree(self.directory, ignore_errors=True)


@contextlib.contextmanager
def kernel(**fields):
    started = Kernel(**fields)
    try:
        yield started
    finally:
        started.close()
