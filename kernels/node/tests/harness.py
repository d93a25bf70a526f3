"""Drives a kernel as the engine does: a socket pair at descriptor 3, pipes at 1 and 2."""

import contextlib
import json
import os
import pathlib
import select
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time

# Whoever started this may ignore it, and what is ignored stays so in every program that is started.
signal.signal(signal.SIGINT, signal.default_int_handler)
KERNEL = pathlib.Path(__file__).resolve().parent.parent / "main.js"
GUARD = 30  # seconds after which something counts as hanging


def node():
    found = shutil.which("node") or shutil.which("nodejs")
    if not found:
        raise RuntimeError("these tests need node 18 or newer: apt-get install nodejs")
    return found


class Ended(Exception):
    """The kernel closed the channel."""


class Kernel:
    """A started kernel. `run` gives the `done` frame; output and displays of the run are beside it."""

    def __init__(self, **environment):
        self.directory = tempfile.mkdtemp(prefix="kernel-")
        self.channel, inside = socket.socketpair()
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()

        def descriptors():
            os.dup2(inside.fileno(), 3)

        self.process = subprocess.Popen(
            [node(), str(KERNEL)], cwd=self.directory, env={"PATH": os.environ["PATH"], **environment},
            stdin=subprocess.DEVNULL, stdout=out_write, stderr=err_write, pass_fds=(3,),
            preexec_fn=descriptors)
        for descriptor in (out_write, err_write):
            os.close(descriptor)
        inside.close()
        self.pipes = {out_read: bytearray(), err_read: bytearray()}
        self.out, self.err = self.pipes.values()
        self.pending = bytearray()
        self.frames = []
        self.displays = []
        self.calls = []
        self.count = 0
        frame = self.receive()
        assert frame == {"op": "ready"}, frame

    def send(self, **frame):
        if self.channel is None:
            raise Ended
        body = json.dumps(frame).encode()
        self.channel.sendall(struct.pack("<I", len(body)) + body)

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
        while len(self.pending) >= 4:
            (length,) = struct.unpack_from("<I", self.pending)
            if len(self.pending) < 4 + length:
                break
            self.frames.append(json.loads(bytes(self.pending[4:4 + length])))
            del self.pending[:4 + length]
        return bool(ready)

    def receive(self, seconds=GUARD):
        deadline = time.monotonic() + seconds
        while not self.frames:
            if self.channel is None:
                raise Ended(self.err.decode(errors="replace"))
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"no frame; stderr: {bytes(self.err)!r}")
            self.pump(left)
        return self.frames.pop(0)

    def start(self, code, **fields):
        """Sends a run without waiting for its end."""
        self.count += 1
        self.id = f"run-{self.count}-{os.urandom(4).hex()}"
        self.displays, self.calls = [], []
        self.out.clear()
        self.err.clear()
        run = {"name": f"run{self.count}.js", "args": [], "globals": {}, "tools": [], "stdin": None, "last": False,
               "value_bytes": 1 << 20}
        if fields.pop("tools_kept", False):
            del run["tools"]
        self.send(op="run", id=self.id, code=code, **{**run, **fields})

    def finish(self, tools=None, seconds=GUARD):
        while True:
            frame = self.receive(seconds)
            assert frame["id"] == self.id, frame
            if frame["op"] == "done":
                break
            if frame["op"] == "display":
                self.displays.append(frame)
            elif frame["op"] == "call":
                self.calls.append(frame)
                answer = tools[frame["tool"]](*frame["args"]) if tools else None
                if answer is not None:
                    self.send(op="answer", id=self.id, call=frame["call"], **answer)
        while self.pump(0):
            pass
        return frame

    def run(self, code, tools=None, seconds=GUARD, **fields):
        if tools is not None:
            fields.setdefault("tools", [
                {"name": name, "doc": "", "parameters": [], "async": False} for name in tools])
        self.start(code, **fields)
        return self.finish(tools, seconds)

    def value(self, code, **fields):
        done = self.run(code, **fields)
        assert done["ok"], done["error"]
        return done.get("value")

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

    def close(self):
        self.process.kill()
        self.process.wait()
        for descriptor in list(self.pipes):
            os.close(descriptor)
        self.pipes = {}
        if self.channel:
            self.channel.close()
        shutil.rmtree(self.directory, ignore_errors=True)


@contextlib.contextmanager
def kernel(**environment):
    started = Kernel(**environment)
    try:
        yield started
    finally:
        started.close()
