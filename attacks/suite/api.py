"""Attacks on the daemon itself. Each takes the service and returns what it achieved, one line each; nothing is good."""

from __future__ import annotations

import http.client
import json
import os
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .host import read
from .service import Service

Attack = Callable[[Service], Iterator[str]]
CASES: dict[str, Attack] = {}


def case(name: str) -> Callable[[Attack], Attack]:
    def add(attack: Attack) -> Attack:
        CASES[name] = attack
        return attack

    return add


def expect(what: str, got: int, *wanted: int) -> Iterator[str]:
    if got not in wanted:
        yield f"{what}: {got}, not {' or '.join(map(str, wanted))}"


def resident(service: Service) -> int:
    line = next(line for line in read(f"/proc/{service.process.pid}/status").splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) << 10


@case("A01-id-traversal")
def ids(service: Service) -> Iterator[str]:
    for name in ("..", "%2e%2e%2f%2e%2e", "sbx_..%2fx", "a%00b", "-rf", "x" * 300, "%ff", "sbx_%F0%9F%98%80", "sbx_" + "a" * 25):
        for method, path in (("GET", f"/v1/sandboxes/{name}"), ("DELETE", f"/v1/sandboxes/{name}"), ("GET", f"/v1/runs/{name}")):
            yield from expect(f"{method} {path[:60]}", service.ask(method, path).status, 400, 404, 405)


@case("A02-body-size")
def bodies(service: Service) -> Iterator[str]:
    before = resident(service)
    head = f"POST /v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {service.a}\r\nContent-Type: application/json\r\n"
    for more in ("Content-Length: 1099511627776\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n"):
        with service.connect() as link:
            link.sendall((head + more).encode())
            try:
                for _ in range(1000):
                    link.sendall(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
            except OSError:
                pass
            try:
                answer = link.recv(64)
            except OSError:
                answer = b""
            if answer and b" 413" not in answer:
                yield f"an endless body: {answer[:40]!r}"
    bomb = service.ask("POST", "/v1/runs", b"\x1f\x8b" + b"\0" * 100, headers={"Content-Encoding": "gzip"})
    yield from expect("a compressed body", bomb.status, 400, 415)
    if resident(service) > before + (64 << 20):
        yield f"the daemon grew from {before >> 20} to {resident(service) >> 20} MiB"


@case("A04-slowloris")
def slow(service: Service) -> Iterator[str]:
    held = []
    for number in range(1000):
        link = service.connect()
        link.sendall((b"", b"POST /v1/runs HTTP/1.1\r\nHo", b"GET /healthz HTTP/1.1\r\n")[number % 3])
        held.append(link)
    yield from expect("health beside them", service.ask("GET", "/healthz", timeout=10).status, 200)
    until = time.monotonic() + 30
    for link in held:
        link.settimeout(max(0.1, until - time.monotonic()))
        try:
            while link.recv(4096):
                pass
        except TimeoutError:
            yield "a connection that says nothing was kept"
            break
        except OSError:
            pass
    for link in held:
        link.close()


@case("A05-slow-reader")
def unread(service: Service) -> Iterator[str]:
    before = resident(service)
    body = json.dumps({"code": "while True: print('x' * 10000)", "limits": {"timeout_ms": "3s", "output_bytes": "60m"}}).encode()
    links = []
    for _ in range(4):
        link = service.connect()
        link.sendall(
            f"POST /v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {service.a}\r\nAccept: text/event-stream\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        links.append(link)
    time.sleep(1.5)
    yield from expect("health beside them", service.ask("GET", "/healthz", timeout=10).status, 200)
    # Each run may keep what its limit says, of both streams, once as it is and once as text.
    if resident(service) > before + 4 * (300 << 20):
        yield f"the daemon grew from {before >> 20} to {resident(service) >> 20} MiB"
    for link in links:
        link.close()


@case("A06-auth-timing")
def timing(service: Service) -> Iterator[str]:
    """A key that begins like the right one takes no longer to refuse than another. Generous: this is a busy machine."""
    times: dict[str, list[float]] = {"near": [], "far": []}
    keys = {"near": service.a[:-1] + "~", "far": "~" * len(service.a)}
    for _ in range(150):
        for kind, key in keys.items():
            began = time.perf_counter()
            status = service.ask("GET", "/v1/sandboxes", key=key).status
            times[kind].append(time.perf_counter() - began)
            if status != 401:
                yield f"a wrong key: {status}"
                return
    near, far = (statistics.median(times[kind]) for kind in ("near", "far"))
    if not 0.5 < near / far < 2:
        yield f"refusing takes {near * 1e6:.0f} µs for a key that is nearly right, {far * 1e6:.0f} for another"


@case("A08-csrf")
def forms(service: Service) -> Iterator[str]:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        answer = service.ask("POST", "/v1/runs", b'{"code": "print(1)"}', headers={"Content-Type": kind})
        yield from expect(f"a body of type {kind!r}", answer.status, 415)
    for origin in ("http://evil.example", "null", f"http://evil.example:{service.port}"):
        answer = service.ask("POST", "/v1/runs", {"code": "print(1)"}, headers={"Origin": origin})
        yield from expect(f"origin {origin}", answer.status, 403)
        if "access-control-allow-origin" in answer.headers:
            yield f"origin {origin} is let in"


@case("A09-dns-rebinding")
def rebinding(service: Service) -> Iterator[str]:
    for host in ("evil.example", f"evil.example:{service.port}", "127.evil.example", "127.0.0.1.evil.example", "localhost.evil.example"):
        for path in ("/v1/runs", "/", "/healthz", "/metrics"):
            yield from expect(f"host {host} {path}", service.ask("GET", path, headers={"Host": host}).status, 403, 404, 421)


def upgrade(service: Service, path: str, headers: str) -> bytes:
    link, answer = service.upgrade(path, headers)
    link.close()
    return answer


@case("A10-ws-origin")
def sockets(service: Service) -> Iterator[str]:
    sandbox = service.sandbox()
    bearer = f"Authorization: Bearer {service.a}\r\n"
    for route in ("channel", "terminal"):
        for label, headers in (
            ("a foreign origin", f"{bearer}Origin: http://evil.example\r\n"), ("no key", ""), ("a wrong key", "Authorization: Bearer x\r\n"),
            ("another tenant", f"Authorization: Bearer {service.b}\r\n"),
        ):
            if b" 101 " in upgrade(service, f"{sandbox}/{route}", headers):
                yield f"{route}: {label} was let in"
        if b" 101 " not in upgrade(service, f"{sandbox}/{route}", bearer):
            yield f"{route}: its owner was not let in, so the others prove nothing"
    service.ask("DELETE", sandbox)


@case("A12-ssrf-callback")
def callbacks(service: Service) -> Iterator[str]:
    there = f"http://127.0.0.1:{service.canaries.listener.port}/"
    for field in ("callback", "callback_url", "webhook", "url", "stdin_url"):
        answer = service.ask("POST", "/v1/runs", {"code": "1", field: there})
        yield from expect(f"the field {field}", answer.status, 400)
    for image in (f"127.0.0.1:{service.canaries.listener.port}/x", f"localhost:{service.canaries.listener.port}/x:y"):
        answer = service.ask("POST", "/v1/runs", {"code": "1", "image": image})
        yield from expect(f"the image {image}", answer.status, 400, 403, 404, 422, 503)


@case("A13-arg-inject")
def arguments(service: Service) -> Iterator[str]:
    marker = service.canaries.drop / "injected"
    for word in (f"$(touch {marker})", f"; touch {marker}", f"`touch {marker}`", f"x\ntouch {marker}", "--help", "-rf", "-", "--"):
        for body in (
            {"code": "print(1)", "files": {word: "x"}}, {"code": "print(1)", "env": {word: "x"}}, {"code": "print(1)", "packages": [word]},
            {"code": "print(1)", "args": [word]}, {"code": "print(1)", "language": word}, {"code": "print(1)", "workdir": word},
            {"code": "print(1)", "template": word},
        ):
            answer = service.ask("POST", "/v1/runs", body)
            yield from expect(str(body)[:80], answer.status, 200, 400, 404, 422)


@case("A14-backend-inject")
def images(service: Service) -> Iterator[str]:
    for body in (
        {"image": "--privileged"}, {"image": "../../etc"}, {"image": "x -v /:/h"}, {"volumes": ["/:/h"]}, {"volumes": ["/etc:/h:rw"]},
        {"volumes": [f"{service.canaries.place}:/h"]}, {"network": "host"}, {"network": ["--network=host"]}, {"backend": "none"},
        {"weaken": ["seccomp"]}, {"container_runtime": "--privileged", "backend": "docker"}, {"limits": {"memory_bytes": 0}},
        {"limits": {"timeout_ms": -1}}, {"limits": {"cpus": 1e308}},
    ):
        for path, code in (("/v1/runs", {"code": "print(1)"}), ("/v1/sandboxes", {})):
            yield from expect(f"{path} {body}", service.ask("POST", path, code | body).status, 400, 403, 404, 422, 503)


@case("N13-empty-allowlist")
def nothing_allowed(service: Service) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as ear:
        port = ear.getsockname()[1]
        code = (
            "import os, socket, urllib.request\n"
            f"def direct(): socket.create_connection(('127.0.0.1', {port}), 1).close()\n"
            f"def asked(): urllib.request.urlopen('http://127.0.0.1:{port}/', timeout=1)\n"
            "def spoken():\n"
            "    host, _, port = os.environ['http_proxy'].rpartition('/')[2].rpartition(':')\n"
            f"    socket.create_connection((host, int(port)), 1).sendall(b'CONNECT 127.0.0.1:{port} HTTP/1.1\\r\\n\\r\\n')\n"
            "for way in direct, asked, spoken:\n"
            "    try: way()\n"
            "    except Exception: pass\n"
        )
        for given in ({"network": []}, {"network": None}, {"network": "none"}, {"network": {"allow": []}}, {}):
            yield from expect(f"a run with {given}", service.ask("POST", "/v1/runs", {"code": code} | given).status, 200, 400)
        ear.setblocking(False)
        try:
            ear.accept()[0].close()
            yield "it got through with no rule"
        except BlockingIOError:
            pass
        # With nothing around it, it does get there: else all this has shown nothing.
        subprocess.run(["/usr/bin/python3", "-c", code], check=True, timeout=30)
        try:
            ear.accept()[0].close()
        except BlockingIOError:
            yield "could not run: it gets nowhere without a jar either"


@case("A16-open-bind")
def bind(service: Service) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as state:
        env = {"PATH": os.environ["PATH"], "HOME": state, "BELLJAR_STATE_DIR": state}
        try:
            done = subprocess.run([service.belljar, "serve", "--listen", "0.0.0.0:0"], env=env, capture_output=True, timeout=20, check=False)
        except subprocess.TimeoutExpired:
            yield "it listens for everybody with a key that nobody chose"
            return
        yield from expect("serve for everybody without a key", done.returncode, 125)


@case("A17-unix-socket")
def other_user(service: Service) -> Iterator[str]:
    path = service.state / "belljar.sock"
    if path.stat().st_mode & 0o777 != 0o600:
        yield f"its mode is {path.stat().st_mode & 0o777:o}"
    os.chmod(service.state, 0o755)
    os.chmod(path, 0o777)  # what protects it then is who asks
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            link = socket.socket(socket.AF_UNIX)
            link.settimeout(5)
            link.connect(str(path))
            link.sendall(b"GET /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\n\r\n")
            os._exit(1 if b" 200 " in link.recv(64) else 0)
        except OSError:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    os.chmod(path, 0o600)
    os.chmod(service.state, 0o700)
    if os.waitstatus_to_exitcode(status):
        yield "another user was answered"


@case("A18-token-leak")
def leaks(service: Service) -> Iterator[str]:
    keys = (service.admin, service.a, service.b)
    code = "marker-of-the-code = 1 +"
    sandbox = service.sandbox(env={"OWN": "value-of-the-environment"})
    service.ask("POST", f"{sandbox}/runs", {"code": code})
    said = [service.ask("GET", "/v1/nowhere").text, service.ask("POST", "/v1/runs", b"{").text, service.ask("GET", "/v1/runs", key=service.a + "x").text]
    for where, text in [("an error", "".join(said)), ("the log", service.log())]:
        yield from (f"a key is in {where}" for key in keys if key in text)
    for word in ("marker-of-the-code", "value-of-the-environment"):
        if word in service.log():
            yield f"{word} is in the log"
    for pid in below(service.process.pid):
        # The daemon itself has what the operator gave it; its keeper, a copy of it, does not.
        for part in ("cmdline",) if pid == service.process.pid else ("cmdline", "environ"):
            if any(key in read(f"/proc/{pid}/{part}") for key in keys):
                yield f"a key is in {part} of process {pid}: {read(f'/proc/{pid}/cmdline')[:60]!r}"
    service.ask("DELETE", sandbox)


def below(root: int) -> list[int]:
    found, all_parents = [root], {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            stat = read(entry / "stat")
            if stat:
                all_parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    for pid in sorted(all_parents):
        if all_parents[pid] in found:
            found.append(pid)
    return found


@case("A20-lifecycle")
def lifecycle(service: Service) -> Iterator[str]:
    """Everything at once to one sandbox: whatever the order, each is answered and nothing is left."""
    for _ in range(3):
        sandbox = service.sandbox()
        seen: list[int] = []
        jobs: list[tuple[str, str, object]] = [
            ("POST", "/runs", {"code": "import time; time.sleep(.2)"}), ("PUT", "/files/x", b"x" * 100_000), ("GET", "/archive", None),
            ("POST", "/reset", None), ("POST", "/commands", {"shell": "sleep .1"}), ("DELETE", "", None), ("DELETE", "", None),
            ("POST", "/interrupt", None), ("POST", "/runs", {"code": "1"}),
        ]

        def ask(method: str, path: str, body: object) -> None:
            try:
                seen.append(service.ask(method, sandbox + path, body).status)
            except http.client.IncompleteRead:
                # An archive that was on its way breaks off with its sandbox, and its reader notices.
                seen.append(200 if path == "/archive" else 599)

        threads = [threading.Thread(target=ask, args=job) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        if len(seen) != len(jobs) or any(status >= 500 for status in seen):
            yield f"{sorted(seen)} for {len(jobs)} requests"
        yield from expect("it afterwards", service.ask("GET", sandbox).status, 404)


@case("A21-quota-bypass")
def quota(service: Service) -> Iterator[str]:
    made, refused = [], 0
    for _ in range(16):
        answer = service.ask("POST", "/v1/sandboxes", {"language": "bash"})
        if answer.status == 201:
            made.append(answer.json()["id"])
        else:
            refused += answer.status == 429 and int(answer.headers.get("retry-after", 0)) > 0
    if len(made) > 12 or refused != 16 - len(made):
        yield f"{len(made)} sandboxes of 12, {refused} told to wait"
    for name in made:
        service.ask("DELETE", f"/v1/sandboxes/{name}")


@case("P14-json")
def json_bombs(service: Service) -> Iterator[str]:
    before = resident(service)
    for text in (
        b"[" * 1_000_000, b'{"code":' * 100_000, b'{"code": "1", "globals": {"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
        b'{"code": "1", "code": "2"}', b'{"code": "\\ud800"}', b'{"code": NaN}', b'{"code": "1", "limits": {"cpus": 1e999}}',
        b'{"code": "1", "limits": {"timeout_ms": ' + b"9" * 1_000_000 + b"}}", b'{"code": "\xff\xfe"}', b"null", b"", b"\0" * 1000,
    ):
        yield from expect(repr(text[:30]), service.ask("POST", "/v1/runs", text).status, 400, 413)
    if resident(service) > before + (128 << 20):
        yield f"the daemon grew from {before >> 20} to {resident(service) >> 20} MiB"


@case("P12-frames")
def hostile_frames(service: Service) -> Iterator[str]:
    """Lengths that are lies, halves of frames, and silence, on both WebSockets."""
    before = resident(service)
    sandbox = service.sandbox()
    for route in ("channel", "terminal"):
        for bytes_ in (
            b"\x81\xff" + b"\xff" * 8 + b"\0\0\0\0", b"\x81\xff\x00\x00\x00\x01\x00\x00\x00\x00\0\0\0\0x", b"\x81\xfe", b"\x01", b"\xff" * 100,
            b"\x89\xff\x00\x00\x00\x00\x00\x01\x00\x00\0\0\0\0", b"\x81\x05hello",
        ):
            link, answer = service.upgrade(f"{sandbox}/{route}")
            if b" 101 " not in answer:
                yield f"{route} was not opened"
            try:
                link.sendall(bytes_)
            except OSError:
                pass
            link.close()
    if resident(service) > before + (64 << 20):
        yield f"the daemon grew from {before >> 20} to {resident(service) >> 20} MiB"
    service.ask("DELETE", sandbox)


@case("P17-callback-flood")
def tool_flood(service: Service) -> Iterator[str]:
    code = "n = 0\nfor i in range(100_000):\n  try: t('x' * 100)\n  except Exception: n += 1\nprint('refused', n)"
    body = {"code": code, "tools": [{"name": "t", "parameters": ["x"]}], "limits": {"timeout_ms": "5s"}}
    before = resident(service)
    answer = service.ask("POST", "/v1/runs", body, headers={"Accept": "text/event-stream"})
    calls = answer.text.count("event: tool_call")
    if calls > 1000:
        yield f"{calls} calls were passed on"
    huge = {"code": "t('x' * 100_000_000)", "tools": [{"name": "t", "parameters": ["x"]}], "limits": {"timeout_ms": "5s"}}
    answer = service.ask("POST", "/v1/runs", huge, headers={"Accept": "text/event-stream"})
    if resident(service) > before + (256 << 20):
        yield f"the daemon grew from {before >> 20} to {resident(service) >> 20} MiB"


@case("P18-confused-deputy")
def deputy(service: Service) -> Iterator[str]:
    """Another tenant answers the calls of a run that it knows the name of."""
    sandbox = service.sandbox(key=service.b)
    body = {"code": "t()", "tools": [{"name": "t"}], "limits": {"timeout_ms": "3s"}}
    got: list[str] = []
    stream = {"Accept": "text/event-stream"}
    thread = threading.Thread(target=lambda: got.append(service.ask("POST", f"{sandbox}/runs", body, key=service.b, headers=stream).text))
    thread.start()
    while thread.is_alive():
        yield from expect("an answer of another", service.ask("POST", f"{sandbox}/answers", {"call": 1, "value": "forged"}).status, 404)
        time.sleep(0.1)
    if "forged" in got[0]:
        yield "the answer was taken"
    service.ask("DELETE", sandbox, key=service.b)


@case("X12-id-guess")
def guesses(service: Service) -> Iterator[str]:
    """What is another's looks like what is nobody's, on every route."""
    sandbox = service.sandbox(key=service.b)
    run = service.ask("POST", f"{sandbox}/runs", {"code": "1"}, key=service.b).json()["id"]
    own = sandbox.rsplit("/", 1)[1]
    for method, path in (
        ("GET", sandbox), ("DELETE", sandbox), ("PATCH", sandbox), ("GET", f"{sandbox}/usage"), ("GET", f"{sandbox}/files"), ("GET", f"{sandbox}/files/x"),
        ("PUT", f"{sandbox}/files/x"), ("GET", f"{sandbox}/archive"), ("POST", f"{sandbox}/runs"), ("POST", f"{sandbox}/commands"),
        ("POST", f"{sandbox}/interrupt"), ("POST", f"{sandbox}/reset"), ("POST", f"{sandbox}/renew"), ("POST", f"{sandbox}/answers"),
        ("GET", f"{sandbox}/connections"), ("GET", f"/v1/runs/{run}"), ("GET", f"/v1/runs/{run}/debug"), ("POST", f"/v1/runs/{run}/answers"),
    ):
        body = {"code": "1"} if path.endswith("runs") else {}
        theirs = service.ask(method, path, body)
        absent_path = path.replace(own, "sbx_aaaqeayeaudaocajbifqydiob4").replace(run, "run_aaaqeayeaudaocajbifqydiob4")
        absent = service.ask(method, absent_path, body)
        same = [answer.json()["error"] | {"request_id": "", "message": ""} for answer in (theirs, absent)]
        if theirs.status != 404 or absent.status != 404 or same[0] != same[1]:
            yield f"{method} {path}: {theirs.status} {theirs.text[:80]}, for nobody's {absent.status}"
    yield from expect("it is still there", service.ask("GET", sandbox, key=service.b).status, 200)
    service.ask("DELETE", sandbox, key=service.b)


@case("X16-crash")
def crash(service: Service) -> Iterator[str]:
    """The daemon is killed while code runs: nothing of that code outlives it, and the next start is clean."""
    sandbox = service.sandbox()
    word = f"survivor-{os.urandom(6).hex()}"
    body = {"argv": ["bash", "-c", f"exec -a {word} sleep 300"]}
    thread = threading.Thread(target=lambda: quietly(lambda: service.ask("POST", f"{sandbox}/commands", body)), daemon=True)
    thread.start()
    until = time.monotonic() + 20
    while not lives(word):
        if time.monotonic() > until:
            yield "the code did not start"
            return
        time.sleep(0.05)
    service.process.kill()
    service.process.wait()
    until = time.monotonic() + 20
    while lives(word):
        if time.monotonic() > until:
            yield "the code outlived the daemon"
            break
        time.sleep(0.05)
    thread.join(20)
    service.start()
    yield from expect("its sandbox after a restart", service.ask("GET", sandbox).status, 404)


def quietly(action: Callable[[], object]) -> None:
    try:
        action()
    except (OSError, ValueError, ConnectionError):
        pass


def lives(word: str) -> bool:
    return any(word in read(entry / "cmdline") for entry in Path("/proc").iterdir() if entry.name.isdigit())
