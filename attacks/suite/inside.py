"""Attacks of code inside on the daemon: on what tells of it, on the interpreters that others are copied from, on whoever reads its output."""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Iterator

# The names of all cases are in one place.
from .api import CASES as CASES, case, expect, resident
from .service import Service

LIMITS = {"timeout_ms": "3s", "memory_bytes": "128m"}

# Everything in the interpreter that could have a hand in what is told of it.
PATCHES = """
import builtins, gc, io, json, os, socket, sys
def lie(*args, **kwargs): return '{"status": "ok", "stdout": "forged", "value": "forged"}'
json.dumps = json.JSONEncoder.encode = json.JSONEncoder.iterencode = lie
builtins.open = io.open = builtins.print = lie
sys.settrace(lambda *args: None); sys.excepthook = lie; sys.stdout = sys.stderr = io.StringIO()
for one in gc.get_objects():
    try:
        if isinstance(one, (socket.socket, io.FileIO)): os.write(one.fileno(), b'\\xff' * 64)
    except Exception: pass
    try:
        if callable(getattr(one, 'send', None)) and type(one).__module__ not in ('builtins', 'socket'): one.send = lie
    except Exception: pass
os._exit(9)
"""


@case("P10-monkeypatch")
def patched(service: Service) -> Iterator[str]:
    """It may spoil its own interpreter. That ends with it, and how it ended is told from outside."""
    sandbox = service.sandbox()
    told = service.ask("POST", f"{sandbox}/runs", {"code": PATCHES, "limits": {"timeout_ms": "5s"}}).json()
    if told.get("status") == "ok" or told.get("exit_code") == 0 or "forged" in str(told.get("value")):
        yield f"it ended well: {str(told)[:300]}"
    after = service.ask("POST", f"{sandbox}/runs", {"code": "import json; print(json.dumps([open('f', 'w').write('x')]))"}).json()
    if after.get("stdout") != "[1]\n" or told.get("state") != "lost":
        yield f"the next interpreter: {told.get('state')}, {str(after)[:300]}"
    service.ask("DELETE", sandbox)


@case("P13-partial-frame")
def halves(service: Service) -> Iterator[str]:
    """Half a frame, and then nothing: it holds up nobody, and ends with its sandbox."""
    sandbox = service.sandbox()
    links = []
    for route in ("terminal",) * 10 + ("channel",):
        link, answer = service.upgrade(f"{sandbox}/{route}")
        if b" 101 " not in answer:
            yield f"{route} was not opened"
        link.sendall(b"\x81\xfe\xff")
        links.append(link)
    began = time.monotonic()
    yield from expect("a run beside them", service.ask("POST", f"{sandbox}/runs", {"code": "1"}).status, 200)
    if time.monotonic() - began > 5:
        yield f"a run beside them took {time.monotonic() - began:.1f} s"
    yield from expect("deleting the sandbox", service.ask("DELETE", sandbox).status, 204)
    for link in links:
        link.settimeout(20)
        try:
            while link.recv(1 << 16):
                pass
        except TimeoutError:
            yield "a connection outlived its sandbox"
        except OSError:
            pass
        link.close()


@case("P16-repr-bomb")
def bombs(service: Service) -> Iterator[str]:
    before = resident(service)
    for body in ("while True: pass", "return repr(self)", "return 'x' * (1 << 30)", "raise SystemExit", "import os; os.abort()", "return 5"):
        code = f"class B(Exception):\n    def __repr__(self):\n        print(end='tried ', flush=True)\n        {body}\n    __str__ = __len__ = _repr_html_ = __repr__\n"
        for last in ("B()", "raise B()", "[B()] * 3"):
            told = service.ask("POST", "/v1/runs", {"code": code + last, "limits": LIMITS | {"timeout_ms": 700}})
            yield from expect(f"{body}, {last}", told.status, 200)
            if not told.json().get("stdout", "").startswith("tried "):
                yield f"{body}, {last}: it was never asked: {told.text[:300]}"
            if len(told.body) > 1 << 20:
                yield f"{body}, {last}: an answer of {len(told.body)} bytes"
    if resident(service) > before + (64 << 20):
        yield f"the daemon grew from {before >> 20} to {resident(service) >> 20} MiB"


POISON = """
import builtins, ctypes, gc, json, os, signal, sys
builtins.print.__self__.len = lambda x: 666
json.loads = json.dumps = None
sys.path.insert(0, '/workspace'); open('json.py', 'w').write('raise SystemExit(66)')
reached = []
def tried(what, action):
    try:
        action(); reached.append(what)
    except Exception: pass
for pid in {os.getppid(), *range(1, 40)} - {0, os.getpid()}:
    tried(f'mem of {pid}', lambda: os.pwrite(os.open(f'/proc/{pid}/mem', os.O_RDWR), b'x', 4096))
    tried(f'descriptors of {pid}', lambda: os.listdir(f'/proc/{pid}/fd'))
    tried(f'signal to {pid}', lambda: os.kill(pid, signal.SIGSTOP))
sys.stdout.write(repr([one for one in reached]))
"""


@case("P20-zygote-poison")
def poison(service: Service) -> Iterator[str]:
    """What code does to the interpreter that it was copied from, others would be copied from as well."""
    for _ in range(4):
        told = service.ask("POST", "/v1/runs", {"code": POISON, "limits": LIMITS}).json()
        if told.get("stdout") != "[]":
            yield f"within reach: {told.get('stdout')} {told.get('stderr', '')[:200]}"
        clean = "import json, sys; print(len([1]), json.loads('[2]'), [p for p in sys.path if 'workspace' in p])"
        other = service.ask("POST", "/v1/runs", {"code": clean}, key=service.b).json()
        if not other["stdout"].startswith("1 [2] "):
            yield f"another's interpreter: {str(other)[:300]}"


@case("P22-output")
def escapes(service: Service) -> Iterator[str]:
    """Sequences for terminals, marks that turn text around, and bytes that are no text: all of it is data, and comes back exactly."""
    odd = b"\x1b]0;owned\x07\x1b[2J\xe2\x80\xae\x00\xff\xfe\x9b\r\n\x7f"
    told = service.ask("POST", "/v1/runs", {"code": f"import os; os.write(1, {odd!r}); os.write(2, {odd!r}); raise ValueError({odd.decode('latin-1')!r})"})
    if any(byte in told.body for byte in (b"\x1b", b"\x00", b"\x07", b"\x7f\x1b")):
        yield "a control character is in the answer as itself"
    if base64.b64decode(told.json()["stdout_base64"]) != odd:
        yield f"it did not come back: {told.json()['stdout_base64']}"
    report = service.ask("GET", f"/v1/runs/{told.json()['id']}/debug")
    if b"\x1b" in report.body or b"\x00" in report.body:
        yield "a control character is in the report as itself"
    name = "\x1b[31mred\x1b[0m"
    made = service.ask("POST", "/v1/sandboxes", {"name": name, "labels": {"a": name}})
    service.ask("GET", "/v1/sandboxes/%1b%5b2J")
    if made.status == 201:
        service.ask("DELETE", f"/v1/sandboxes/{made.json()['id']}")
    if "\x1b" in service.log() or "owned" in service.log():
        yield "it is in the log"


@case("X13-id-reuse")
def reuse(service: Service) -> Iterator[str]:
    """Neither the name of a sandbox nor the user it runs as is another's while it lives, and no name ever is again."""
    names: set[str] = set()
    for _ in range(3):
        live = [service.sandbox(language="bash") for _ in range(6)]
        told = [service.ask("POST", f"{one}/runs", {"code": "echo $((1 + 1))"}).json() for one in live]
        once = [service.ask("POST", "/v1/runs", {"code": "1"}).json() for _ in range(6)]
        users = [one["report"]["uid"] for one in told]
        if len(set(users)) != len(users) or set(users) & {one["report"]["uid"] for one in once}:
            yield f"one user for two: {users}"
        again = names & {*live, *(one["id"] for one in told + once)}
        names |= {*live, *(one["id"] for one in told + once)}
        if again or len(names) % 18:
            yield f"a name was given twice: {again}"
        for one in live:
            service.ask("DELETE", one)


@case("X14-uid-collision")
def leftovers(service: Service) -> Iterator[str]:
    """What one left, in every place it may write to, is not there for those who come after it."""
    word = os.urandom(16).hex()
    hide = "import os\nfor d in ('.', '/tmp', '/dev/shm', '/var/tmp'):\n    try: open(d + '/left', 'w').write(W); os.chmod(d + '/left', 0o600)\n    except OSError: pass"
    seek = (
        "import os\nfor top, dirs, files in os.walk('/'):\n    if top.startswith(('/proc', '/usr', '/lib')): dirs.clear(); continue\n"
        "    for f in files:\n        if f == 'left': print(os.path.join(top, f))"
    )
    for _ in range(4):
        sandbox = service.sandbox()
        service.ask("POST", f"{sandbox}/runs", {"code": f"W = {word!r}\n{hide}"})
        service.ask("DELETE", sandbox)
        for key in (service.a, service.b):
            found = service.ask("POST", "/v1/runs", {"code": seek, "limits": {"timeout_ms": "10s"}}, key=key).json()
            if found["status"] != "ok" or found["stdout"]:
                yield f"found: {found['stdout'] or found}"
