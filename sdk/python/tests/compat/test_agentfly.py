"""AgentFly's environment: its document's examples, and what it says besides."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from reading import Document, parameters

from belljar import Client
from belljar.compat import agentfly
from belljar.compat._place import place
from belljar.compat.agentfly import PythonSandboxEnv, WarmPool

DEFAULTS = {
    "image": "reasonwang/python-http-env:latest",
    "runtime": "runc",
    "cpu": 2,
    "mem": "2g",
    "start_timeout": 60.0,
    "max_episodes": 100,
    "host_ip": "127.0.0.1",
    "container_port": 8000,
}


@pytest.fixture
def started(document: Callable[[str], Document]) -> Iterator[Document]:
    text = document("agentfly")
    env = PythonSandboxEnv(cpu=1, mem="256m")
    text.wait(env.start())
    text.names["env"] = env
    yield text
    text.wait(env.aclose())


def test_basic_usage_with_direct_instantiation(document: Callable[[str], Document]) -> None:
    names = document("agentfly").run("Basic usage with direct instantiation")
    assert names["result"] == "3.141592653589793"
    env = names["env"]
    assert (env.cpu, env.mem, env.start_timeout) == (1, "1g", 30.0)


def test_using_the_factory_method_for_pool_management(document: Callable[[str], Document]) -> None:
    title = "Using the factory method for pool management"
    names = document("agentfly").run(title, PythonSandboxEnv=PythonSandboxEnv)
    assert names["result"] == "Ready to use!"


def test_error_handling_and_recovery(started: Document, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PythonSandboxEnv, "step_timeout", 4.0)
    began = time.monotonic()
    names = started.run("Error Handling and Recovery")
    assert names["result"] == "Recovered!"
    assert time.monotonic() - began < 30


def test_state_persistence_within_sessions(started: Document) -> None:
    env = started.names["env"]
    seen: list[str] = []

    class Watched:
        async def step(self, code: str) -> str:
            seen.append(await env.step(code))
            return seen[-1]

        async def reset(self) -> None:
            await env.reset()

    names = started.run("State persistence within sessions", env=Watched())
    started.names["env"] = env
    assert seen[2] == "[1, 2, 3, 4]"
    assert names["result"] == "NameError: name 'x' is not defined"


def test_a_step_of_nothing_prints_nothing(started: Document) -> None:
    env = started.names["env"]
    assert [started.wait(env.step(code)) for code in ("", " \n\t", "print(1)")] == ["", "", "1"]
    with pytest.raises(RuntimeError, match="start"):
        started.wait(PythonSandboxEnv().step(""))


def test_options_and_defaults() -> None:
    assert parameters(PythonSandboxEnv.__init__) == DEFAULTS
    env = PythonSandboxEnv()
    assert {name: getattr(env, name) for name in DEFAULTS} == DEFAULTS
    with pytest.raises(ValueError, match="max_episodes"):
        PythonSandboxEnv(max_episodes=0)
    with pytest.raises(ValueError, match="container_port"):
        PythonSandboxEnv(container_port=0)


SERVER = """
import http.server, threading
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"from inside")
    def log_message(self, *_): pass
threading.Thread(target=http.server.HTTPServer(("0.0.0.0", 8123), Answer).serve_forever, daemon=True).start()
"""


def test_what_is_served_at_the_container_port_is_at_the_host_ip(
    document: Callable[[str], Document], serve: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = document("agentfly").wait
    monkeypatch.setenv("BELLJAR_URL", serve('[network]\npublish = ["127.0.0.2"]\n'))
    env = PythonSandboxEnv(mem="256m", host_ip="127.0.0.2", container_port=8123)
    wait(env.start())
    try:
        assert env.base_url == f"http://127.0.0.2:{env.host_port}"
        for _ in range(2):
            assert wait(env.step(SERVER)) == ""
            assert urllib.request.urlopen(env.base_url, timeout=20).read() == b"from inside"
            wait(env.reset())
        assert "Error" in wait(env.step("import socket; socket.create_connection(('192.0.2.1', 80), 1)"))
    finally:
        wait(env.aclose())
    # An address that the daemon does not open: all else works.
    closed = PythonSandboxEnv(mem="256m", host_ip="127.0.0.3")
    wait(closed.start())
    assert (closed.base_url, wait(closed.step("print(1)"))) == (None, "1")
    wait(closed.aclose())


def test_limits_are_those_of_the_document(started: Document) -> None:
    env, wait = started.names["env"], started.wait
    limits = wait(env.sandbox.info()).limits
    assert limits.memory_bytes == 256 << 20
    assert limits.cpus == 1.0
    assert limits.processes == 256
    assert "Errno" in wait(env.step("open('/usr/x', 'w')"))
    assert "0000000000000000" in wait(env.step("print([l for l in open('/proc/self/status') if 'CapEff' in l])"))
    assert "Error" in wait(env.step("import socket; socket.create_connection(('192.0.2.1', 80), 1)"))


def test_what_was_printed_before_an_error_is_not_lost(started: Document) -> None:
    text = started.wait(started.names["env"].step("print('first')\nprint(1 / 0)"))
    assert text.startswith("first\n")
    assert text.endswith("ZeroDivisionError: division by zero")
    assert "line 2" in text


def test_long_output_is_cut(started: Document) -> None:
    assert len(started.wait(started.names["env"].step("print('x' * 100_000)"))) == 16_384


def test_code_that_does_not_yield_is_killed(started: Document, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PythonSandboxEnv, "step_timeout", 4.0)
    env, wait = started.names["env"], started.wait
    assert wait(env.step("y = 1")) == ""
    deaf = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass"
    with pytest.raises(TimeoutError):
        wait(env.step(deaf))
    assert "NameError" in wait(env.step("y"))


def test_out_of_memory_recovers(started: Document) -> None:
    env, wait = started.names["env"], started.wait
    with pytest.raises(MemoryError):
        wait(env.step("x = bytearray(1 << 30); print(len(x))"))
    assert wait(env.step("print('again')")) == "again"


def test_before_start_and_after_close(document: Callable[[str], Document]) -> None:
    wait = document("agentfly").wait
    env = PythonSandboxEnv(image=None, mem="256m")
    with pytest.raises(RuntimeError, match="start"):
        wait(env.step("1"))
    wait(env.start())
    assert wait(env.reset()) == ""
    assert wait(env.step("print(1)")) == "1"
    wait(env.aclose())
    wait(env.aclose())
    with pytest.raises(RuntimeError, match="start"):
        wait(env.step("1"))


def test_a_start_that_takes_too_long(document: Callable[[str], Document]) -> None:
    with pytest.raises(TimeoutError, match="did not start"):
        document("agentfly").wait(PythonSandboxEnv(start_timeout=0.0).start())


def test_close_works_without_a_loop(document: Callable[[str], Document]) -> None:
    text = document("agentfly")
    env = PythonSandboxEnv(mem="256m")
    text.wait(env.start())
    identity = env.container_id
    env.close()
    assert env.sandbox is None
    assert identity not in [each.id for each in Client().sandboxes()]


def test_episodes_use_up_a_sandbox(document: Callable[[str], Document]) -> None:
    async def story() -> list[Any]:
        env = PythonSandboxEnv(mem="256m", max_episodes=2)
        await env.start()
        identities = []
        for _ in range(5):
            identities.append(env.container_id)
            await env.step("x = 1")
            await env.reset()
            assert "NameError" in await env.step("x")
        await env.aclose()
        return identities

    first, second, third, fourth, fifth = document("agentfly").wait(story())
    assert first == second != third == fourth != fifth


def test_acquire_takes_from_a_pool(document: Callable[[str], Document], monkeypatch: pytest.MonkeyPatch) -> None:
    async def small() -> PythonSandboxEnv:
        env = PythonSandboxEnv(mem="256m")
        await env.start()
        return env

    # So that it does not depend on how much memory the host has.
    monkeypatch.setattr(agentfly, "_made", small)
    monkeypatch.setattr(agentfly, "_ROOMY", 0)
    monkeypatch.setattr(agentfly, "_pools", {})

    async def story() -> None:
        pool = PythonSandboxEnv.pool()
        await pool.start()
        waiting = {env.container_id for env in pool.waiting}
        assert len(waiting) == pool.size > 0
        first = await PythonSandboxEnv.acquire()
        assert first.container_id in waiting
        second = await PythonSandboxEnv.acquire()
        assert first.container_id != second.container_id
        await first.step("x = 1")
        assert "NameError" in await second.step("x")
        await asyncio.gather(first.aclose(), second.aclose())
        for _ in range(1200):
            if len(pool.waiting) == pool.size:
                break
            await asyncio.sleep(0.05)
        assert len(pool.waiting) == pool.size
        await pool.aclose()

    document("agentfly").wait(story())


def test_a_pool_of_ones_own(document: Callable[[str], Document]) -> None:
    async def story() -> None:
        async def factory() -> PythonSandboxEnv:
            env = PythonSandboxEnv(mem="128m")
            await env.start()
            return env

        pool: WarmPool[PythonSandboxEnv] = WarmPool(factory, 1)
        await pool.start()
        await pool.add_envs(1)
        assert pool.size == 2
        env = await pool.acquire()
        await env.step("x = 1")
        await pool.release(env, finished=False)
        again = await pool.acquire()
        other = await pool.acquire()
        assert env in (again, other)
        assert "1" in await env.step("print(x)")
        await pool.release(again)
        await pool.release(other)
        taken = [await pool.acquire() for _ in range(2)]
        for each in taken:
            assert "NameError" in await each.step("x")
            await each.aclose()
        await pool.aclose()

    document("agentfly").wait(story())


def test_logs(started: Document) -> None:
    env = started.names["env"]
    started.wait(env.step("import sys; print('out'); print('err', file=sys.stderr)"))
    assert "out" in env.get_container_logs()
    assert "err" in env.get_container_logs()


def test_images_and_runtimes_reach_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = DEFAULTS["image"]
    assert isinstance(usual, str)
    assert place(None, usual) == place(usual, usual) == {}
    assert place("python:3.12-slim", usual) == {"image": "python:3.12-slim"}
    asked = place(None, usual, "runsc")
    assert asked == {"backend": "docker", "image": usual, "container_runtime": "runsc"}
    monkeypatch.setenv("BELLJAR_BACKEND", "docker")
    assert place(None, usual) == {"backend": "docker", "image": usual}
