"""Drives the bash kernel: fields that end in NUL."""

import contextlib
import dataclasses
import os
import pathlib
import shutil
import signal
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))
from started import GUARD, Ended, Started  # noqa: E402, F401

FIELDS = {"shell 1": 0, "ready": 0, "done": 6}


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


def bash():
    found = shutil.which("bash")
    if not found:
        raise RuntimeError("these tests need bash 5: apt-get install bash")
    return found


class Kernel(Started):
    def __init__(self, environment=None):
        super().__init__([bash(), str(HERE.parent / "main.sh")], environment or {}, start_new_session=True)
        assert self.receive() == ["shell 1"]
        assert self.receive() == ["ready"]

    def send(self, *fields):
        self.give(b"".join((field if isinstance(field, bytes) else str(field).encode()) + b"\0" for field in fields))

    def answer(self):
        """A list of fields."""
        *fields, _ = bytes(self.pending).split(b"\0")
        if not fields or len(fields) <= (more := FIELDS[fields[0].decode()]):
            return None
        answer = fields[:more + 1]
        del self.pending[:sum(len(field) + 1 for field in answer)]
        return [field.decode() for field in answer]

    def settle(self):
        """Waits until main.sh has done with every interrupt: on a busy machine it may get to one only after the run that it was
        for, and pass it on to the next."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status")
        deadline = time.monotonic() + GUARD
        while self.process.poll() is None:
            fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines())
            waiting = (int(fields["SigPnd"], 16) | int(fields["ShdPnd"], 16)) & 1 << signal.SIGINT - 1
            if fields["State"].startswith("S") and not waiting:
                return
            assert time.monotonic() < deadline, "an interrupt is not passed on"
            time.sleep(0.001)

    @staticmethod
    def state(process):
        status = pathlib.Path(f"/proc/{process}/status").read_text()
        return next(line for line in status.splitlines() if line.startswith("State:"))

    def ticks(self):
        """Of a processor's time that main.sh has used, of which a second has a hundred."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    def start(self, code, args=(), variables=None, stdin=None, last=False, name="bash"):
        self.settle()
        self.begin()
        variables = variables or {}
        self.send("run", self.id, name, int(last), "none" if stdin is None else "text", stdin or "", len(args), *args,
                  len(variables), *(part for pair in variables.items() for part in pair), code)

    def finish(self, seconds=GUARD):
        op, name, status, interrupted, kind, message, line = self.receive(seconds)
        assert (op, name) == ("done", self.id), (op, name)
        self.drain()
        return Done(name, int(status), interrupted == "1", kind, message, line, self.stdout, self.stderr)

    def run(self, code, seconds=GUARD, **fields):
        self.start(code, **fields)
        return self.finish(seconds)

    def text(self, code, **fields):
        """What a run prints; it must succeed."""
        done = self.run(code, **fields)
        assert done.status == 0, done
        return done.out

    def kill(self):
        for child in (*children(self.process.pid), self.process.pid):
            # The shell, its group and its session; what the code has moved elsewhere ends by itself.
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    kill(child, signal.SIGKILL)


kernel = Kernel.kernel
