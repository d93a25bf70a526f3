"""The orchestrator's environment: its document's examples, and what it says besides."""

from __future__ import annotations

import asyncio
import inspect
import textwrap
import time
from collections.abc import Callable
from typing import Any

import pytest
from reading import Document, parameters

from belljar.compat.orchestrator import (
    ProgrammaticToolExecutor,
    ResourceLimits,
    SandboxEnvironment,
    SandboxExecutionError,
    SandboxSecurityError,
)


def run(story: Any) -> Any:
    return asyncio.run(story)


def execute(code: str, globals_dict: dict[str, Any] | None = None, **options: Any) -> Any:
    async def story() -> Any:
        async with SandboxEnvironment(**options) as sandbox:
            return await sandbox.execute_code(textwrap.dedent(code), globals_dict)

    return run(story())


def test_technical_explanation(document: Callable[[str], Document]) -> None:
    names = document("orchestrator").run("Technical Explanation")
    assert names["SandboxEnvironment"] is SandboxEnvironment


def test_technical_explanation_2(document: Callable[[str], Document]) -> None:
    # Annotations of the document name types it does not import.
    names = document("orchestrator").run("Technical Explanation 2", ResourceLimits=ResourceLimits, Any=Any)
    shown = names["SandboxEnvironment"]
    assert parameters(SandboxEnvironment.__init__) == parameters(shown.__init__)
    assert parameters(SandboxEnvironment.execute_code) == parameters(shown.execute_code)
    assert inspect.iscoroutinefunction(SandboxEnvironment.execute_code)


def test_basic_sandbox_usage(document: Callable[[str], Document], capsys: pytest.CaptureFixture[str]) -> None:
    names = document("orchestrator").run("Basic Sandbox Usage")
    assert capsys.readouterr().out == "Result: 328350\n"
    assert names["result"] == 328350


def test_with_custom_globals(document: Callable[[str], Document], capsys: pytest.CaptureFixture[str]) -> None:
    document("orchestrator").run("With Custom Globals")
    assert capsys.readouterr().out == "Result: 30\n"


def test_restricted_imports(document: Callable[[str], Document]) -> None:
    text = document("orchestrator")
    names = text.run("Restricted Imports")
    assert names["result1"] == '{"key": "value"}'
    with pytest.raises(ImportError) as raised:
        text.wait(names["sandbox"].execute_code(names["code2"]))
    assert str(raised.value) == "Import 'os' not allowed"


def test_timeout_protection(document: Callable[[str], Document], capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    document("orchestrator").run("Timeout Protection")
    assert capsys.readouterr().out == "Code exceeded 5 second timeout\n"
    assert 5 <= time.monotonic() - began < 15


def test_memory_limit(document: Callable[[str], Document], capsys: pytest.CaptureFixture[str]) -> None:
    document("orchestrator").run("Memory Limit")
    assert capsys.readouterr().out == "Code exceeded 100MB memory limit\n"


def test_filesystem_isolation(document: Callable[[str], Document]) -> None:
    text = document("orchestrator")
    names = text.run("Filesystem Isolation", SandboxEnvironment=SandboxEnvironment)
    with pytest.raises(PermissionError):
        text.wait(names["sandbox"].execute_code(names["code"]))


def test_limits_and_their_defaults() -> None:
    assert parameters(ResourceLimits.__init__) == {
        "max_memory_mb": 512,
        "max_cpu_percent": 50.0,
        "timeout_seconds": 30,
        "max_tool_calls": 100,
        "max_concurrent": 5,
        "max_total_cost_usd": 10.0,
    }
    for wrong in ({"max_memory_mb": 0}, {"max_cpu_percent": -1}, {"timeout_seconds": 0}, {"max_concurrent": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ResourceLimits(**wrong)


def test_limits_reach_the_sandbox() -> None:
    async def story() -> Any:
        limits = ResourceLimits(max_memory_mb=200, max_cpu_percent=25, timeout_seconds=7)
        async with SandboxEnvironment(limits=limits) as sandbox:
            await sandbox.execute_code("x = 1")
            assert sandbox.result is not None
            return sandbox.result.limits

    limits = run(story())
    assert limits.memory_bytes == 200 << 20
    assert limits.cpus == 0.25
    assert limits.timeout_ms == 7000


def test_cpu_is_capped_at_a_percentage() -> None:
    async def story() -> float:
        async with SandboxEnvironment(limits=ResourceLimits(max_cpu_percent=20)) as sandbox:
            await sandbox.execute_code("import time\nend = time.monotonic() + 1\nwhile time.monotonic() < end: pass")
            assert sandbox.result is not None
            usage = sandbox.result.usage
            assert usage.cpu_ms is not None
            return usage.cpu_ms / usage.wall_ms

    assert run(story()) < 0.4


def test_modules_without_a_list() -> None:
    async def story() -> None:
        async with SandboxEnvironment() as sandbox:
            for module in ("json", "math", "datetime", "asyncio", "typing"):
                assert await sandbox.execute_code(f"import {module}\nreturn {module}.__name__") == module
            for module in ("os", "sys", "subprocess", "socket", "requests"):
                with pytest.raises(ImportError, match=f"Import '{module}' not allowed"):
                    await sandbox.execute_code(f"import {module}")

    run(story())


def test_no_network_and_no_processes_even_where_the_modules_are_listed() -> None:
    with pytest.raises(OSError):
        execute("import socket\nsocket.create_connection(('192.0.2.1', 80), 1)", allowed_imports=["socket"])
    with pytest.raises(OSError):
        execute("import subprocess\nsubprocess.run(['/bin/true'])", allowed_imports=["subprocess"])


def test_filesystem_access() -> None:
    code = "open('a.txt', 'w').write('text')\nreturn open('a.txt').read()"
    assert execute(code, filesystem_access=True) == "text"
    with pytest.raises(PermissionError):
        execute(code)
    with pytest.raises(FileNotFoundError):
        execute("open('/etc/shadow')", filesystem_access=True)


def test_state_is_kept_until_reset() -> None:
    async def story() -> None:
        async with SandboxEnvironment() as sandbox:
            await sandbox.execute_code("x = 1\ndef f(): return x + 1")
            assert await sandbox.execute_code("return f()") == 2
            sandbox.reset()
            with pytest.raises(NameError):
                await sandbox.execute_code("return f()")
            await sandbox.execute_code("x = 5")
            await sandbox.reset()
            with pytest.raises(NameError):
                await sandbox.execute_code("return x")

    run(story())


def test_logs() -> None:
    async def story() -> None:
        async with SandboxEnvironment() as sandbox:
            assert sandbox.get_logs() == ""
            await sandbox.execute_code("print('one')")
            with pytest.raises(ZeroDivisionError, match="division by zero"):
                await sandbox.execute_code("print('two')\n1 / 0")
            logs = sandbox.get_logs()
            assert "one" in logs and "two" in logs and "ZeroDivisionError" in logs
            assert logs.stdout == logs["stdout"] == "one\ntwo\n"
            assert "ZeroDivisionError" in logs.stderr
            await sandbox.reset()
            assert sandbox.get_logs() == ""

    run(story())


def test_await() -> None:
    async def slow(n: int) -> int:
        await asyncio.sleep(0.01)
        return n * 2

    code = "import asyncio\nawait asyncio.sleep(0)\nreturn sum(await asyncio.gather(slow(1), slow(2)))"
    assert execute(code, {"slow": slow}) == 6


def test_data_of_many_kinds_comes_and_goes() -> None:
    data = {"text": "ä", "numbers": [1, 2.5, None, True], "nested": {"deep": [{"a": 1}]}}
    assert execute("return data", {"data": data}) == data
    assert execute("return b'\\xff', 2 ** 70, {1: 2}") == [b"\xff", 2**70, {"1": 2}]
    assert execute("x = 1") is None
    with pytest.raises(TypeError, match="thing"):
        execute("return thing", {"thing": object()})


def test_functions_of_the_caller() -> None:
    def greet(name: str, *, loud: bool = False) -> str:
        """Says hello."""
        return name.upper() if loud else name

    assert execute("return greet('a', loud=True), greet.__doc__", {"greet": greet}) == ["A", "Says hello."]

    def broken() -> None:
        raise KeyError("nothing")

    assert execute("try:\n    broken()\nexcept KeyError as e:\n    return 'caught'", {"broken": broken}) == "caught"


def test_tool_calls_are_limited() -> None:
    calls: list[int] = []
    limits = ResourceLimits(max_tool_calls=3)
    with pytest.raises(RuntimeError, match="3 tool calls"):
        execute("for i in range(10): tool(i)", {"tool": calls.append}, limits=limits)
    assert calls == [0, 1, 2]


def test_concurrent_calls_are_limited() -> None:
    running, most = 0, 0

    async def tool() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1

    code = "import asyncio\nawait asyncio.gather(*(tool() for _ in range(8)))"
    execute(code, {"tool": tool}, limits=ResourceLimits(max_concurrent=2))
    assert most == 2


def test_costs_are_limited() -> None:
    def paid() -> int:
        return 1

    paid.cost_usd = 0.4  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match=r"1\.0"):
        execute("for i in range(10): paid()", {"paid": paid}, limits=ResourceLimits(max_total_cost_usd=1.0))


def test_errors_of_the_code() -> None:
    with pytest.raises(ValueError, match=r"^too big$"):
        execute("raise ValueError('too big')")
    with pytest.raises(SyntaxError):
        execute("def")
    with pytest.raises(SandboxExecutionError, match="Odd: why"):
        execute("class Odd(Exception): pass\nraise Odd('why')")
    # What would end the caller stays inside.
    with pytest.raises(SandboxExecutionError, match="exited with 3"):
        execute("raise SystemExit(3)")
    for name in ("KeyboardInterrupt", "GeneratorExit", "StopIteration"):
        with pytest.raises(SandboxExecutionError, match=name):
            execute(f"raise {name}")


def test_execute_tells_instead_of_raising() -> None:
    async def story() -> None:
        async with SandboxEnvironment() as sandbox:
            good = await sandbox.execute("print('hi')\nreturn n + 1", {"n": 1})
            assert (good.success, good.output, good.stdout, good.error) == (True, 2, "hi\n", None)
            assert good.duration > 0
            bad = await sandbox.execute("1 / 0")
            assert (bad.success, bad.error_type) == (False, "ZeroDivisionError")
            assert "division by zero" in str(bad.error)
            with pytest.raises(SandboxSecurityError):
                sandbox.validate_code("import os")
            sandbox.validate_code("import json")

    run(story())


def test_programmatic_tool_executor() -> None:
    async def story() -> None:
        async def search(query: str) -> list[str]:
            return [query, query]

        executor = ProgrammaticToolExecutor({"search": search}, timeout=10, max_tool_calls=5)
        answer = await executor.execute("found = await search('a')\nprint(len(found))\nreturn found")
        assert answer["result"] == ["a", "a"]
        assert answer["output"] == "2\n"
        assert [call["tool"] for call in answer["tool_calls"]] == ["search"]
        assert answer["error"] is None
        assert answer["execution_time"] > 0
        failed = await executor.execute("nothing()")
        assert "NameError" in failed["error"]
        await executor.aclose()

    run(story())


def test_nothing_stays_behind() -> None:
    async def story() -> None:
        sandbox = SandboxEnvironment()
        await sandbox.execute_code("x = 1")
        await sandbox.aclose()
        # And it can be used again.
        with pytest.raises(NameError):
            await sandbox.execute_code("return x")
        await sandbox.aclose()

    run(story())


def test_one_environment_in_two_event_loops() -> None:
    sandbox = SandboxEnvironment()
    assert run(sandbox.execute_code("return 1")) == 1
    assert run(sandbox.execute_code("return 2")) == 2
    run(sandbox.aclose())
