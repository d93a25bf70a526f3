"""Drives the JavaScript kernel: frames of JSON."""

import json
import pathlib
import shutil
import struct
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))
from started import GUARD, Ended, Started  # noqa: E402, F401

# Written past the console, which an interrupt may have found in the middle of a line.
BEGUN = "require('fs').writeSync(1, 'begun');"

def node():
    found = shutil.which("node") or shutil.which("nodejs")
    if not found:
        raise RuntimeError("these tests need node 18 or newer: apt-get install nodejs")
    return found


class Kernel(Started):
    """A started kernel. `run` gives the `done` frame; output and displays of the run are beside it."""

    def __init__(self, **environment):
        super().__init__([node(), str(HERE.parent / "main.js")], environment)
        self.displays = []
        self.calls = []
        frame = self.receive()
        assert frame == {"op": "ready"}, frame

    def send(self, **frame):
        body = json.dumps(frame).encode()
        self.give(struct.pack("<I", len(body)) + body)

    def answer(self):
        if len(self.pending) < 4:
            return None
        (length,) = struct.unpack_from("<I", self.pending)
        if len(self.pending) < 4 + length:
            return None
        frame = json.loads(bytes(self.pending[4:4 + length]))
        del self.pending[:4 + length]
        return frame

    def start(self, code, **fields):
        """Sends a run without waiting for its end."""
        self.begin()
        self.displays, self.calls = [], []
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
        self.drain()
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


kernel = Kernel.kernel
