"""The orchestrator's environment: its document's examples, and what it says besides."""

from __future__ import annotations

import asyncio
import collections.abc
import inspect
import math
import subprocess
import textwrap
import time
from collections.abc import Callable
from typing import Any

import pytest
from reading import Document, parameters

from belljar import AsyncSandbox, InvalidRequest
from belljar.compat.orchestrator import (
    ProgrammaticToolExecutor,
    ResourceLimits,
    SandboxEnvironment,
    SandboxExecutionError,
    SandboxSecurityError,
    _raised,
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


def test_limits_of_other_types() -> None:
    assert str(ResourceLimits(max_memory_mb=256.0, max_tool_calls=5.0).max_memory_mb) == "256"  # type: ignore[arg-type]
    assert execute("return 1", limits=ResourceLimits(max_memory_mb=256.0, max_concurrent=2.0)) == 1  # type: ignore[arg-type]
    assert execute("return 1", limits=ResourceLimits(max_memory_mb=256.5)) == 1  # type: ignore[arg-type]
    for wrong in (
        {"max_memory_mb": "256"},
        {"max_memory_mb": float("inf")},
        {"timeout_seconds": None},
        {"timeout_seconds": float("inf")},
        {"max_tool_calls": 1.5},
        {"max_concurrent": True},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ResourceLimits(**wrong)  # type: ignore[arg-type]


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


def test_no_processes_with_files_either() -> None:
    options: dict[str, Any] = {"filesystem_access": True, "allowed_imports": ["os", "subprocess"]}
    for code in (
        "import os\nos.popen('id').read()",
        "import os\nos.fork()",
        "import subprocess\nsubprocess.run(['id'])",
    ):
        with pytest.raises(OSError):
            execute(code, **options)


def test_filesystem_access_as_text() -> None:
    for text in ("false", "No", "off", "0", 0):
        assert SandboxEnvironment(filesystem_access=text).filesystem_access is False  # type: ignore[arg-type]
    with pytest.raises(PermissionError):
        execute("open('a.txt', 'w')", filesystem_access="false")
    assert execute("open('a.txt', 'w').write('a')", filesystem_access="true") == 1
    with pytest.raises(ValueError, match="filesystem_access"):
        SandboxEnvironment(filesystem_access="perhaps")  # type: ignore[arg-type]


def test_a_sandbox_that_is_gone_is_replaced() -> None:
    def tool() -> int:
        return 7

    async def end(sandbox: SandboxEnvironment) -> None:
        assert sandbox._sandbox is not None
        await AsyncSandbox.attach(sandbox._sandbox.id).delete()

    async def story() -> None:
        async with SandboxEnvironment() as sandbox:
            assert await sandbox.execute_code("x = 1\nreturn tool()", {"tool": tool}) == 7
            await end(sandbox)
            # Who relies on variables is told, once.
            with pytest.raises(SandboxExecutionError, match="gone"):
                await sandbox.execute_code("return x")
            assert await sandbox.execute_code("return 'x' in globals(), 'tool' in globals()") == [False, False]
            await end(sandbox)
            told = await sandbox.execute("return 1")
            assert (told.success, told.error_type) == (False, "SandboxExecutionError")
            assert (await sandbox.execute("return 1")).output == 1
            # After a reset nobody does.
            await end(sandbox)
            await sandbox.reset()
            assert await sandbox.execute_code("return 2") == 2
            await end(sandbox)
            sandbox.reset()
            assert await sandbox.execute_code("return 3") == 3

    run(story())


def test_code_that_is_empty_does_nothing() -> None:
    async def story() -> None:
        async with SandboxEnvironment() as sandbox:
            assert await sandbox.execute_code("") is None
            assert await sandbox.execute_code(" \n", {"x": 1}) is None
            assert await sandbox.execute_code("return x") == 1
            told = await sandbox.execute("")
            assert (told.success, told.output, told.error) == (True, None, None)

    run(story())


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


def test_functions_that_return_coroutines() -> None:
    async def double(x: int) -> int:
        await asyncio.sleep(0.01)
        return 2 * x

    assert execute("return f(3) + f(4)", {"f": lambda x: double(x)}) == 14


@pytest.mark.parametrize("given", [{"a-b": len}, {"class": len}, {"a-b": 1}, {"x": object()}, {5: len}])
def test_names_that_are_refused_are_forgotten(given: dict[str, Any]) -> None:
    async def story() -> None:
        async with SandboxEnvironment() as sandbox:
            assert await sandbox.execute_code("return f()", {"f": lambda: 1}) == 1
            with pytest.raises((InvalidRequest, TypeError)):
                await sandbox.execute_code("return 1", {**given, "f": lambda: 2})
            assert await sandbox.execute_code("return f()") == 1

    run(story())


@pytest.mark.parametrize(
    "code", ["'x' * (1 << 20)", "list(range(300_000))", "b'x' * 900_000", "[float('nan')] * 100_000"]
)
def test_a_value_that_is_too_large_is_not_cut(code: str) -> None:
    async def story() -> None:
        async with SandboxEnvironment() as sandbox:
            with pytest.raises(SandboxExecutionError, match="too large"):
                await sandbox.execute_code(f"return {code}")
            told = await sandbox.execute(f"return {code}")
            assert not told.success and "too large" in str(told.error) and told.error_type == "SandboxExecutionError"
            assert await sandbox.execute_code("return 'x' * 1_000_000") == "x" * 1_000_000
            assert "object at" in await sandbox.execute_code("return object()")

    run(story())


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


def test_exceptions_are_what_they_were() -> None:
    for key in ("k", "it's", 7, ("a", 1), None, b"k"):
        with pytest.raises(KeyError) as missing:
            execute(f"raise KeyError({key!r})")
        assert missing.value.args == (key,)
    with pytest.raises(KeyError) as odd:
        execute("class K:\n    def __repr__(self): return '(' * 5000 + ')'\nraise KeyError(K())")
    assert len(odd.value.args) == 1
    # Nor does any message keep the caller busy.
    began = time.monotonic()
    for piece in (": '' -> '", "b'", ": '\\\\", ': "', "': '"):
        for name in ("OSError", "KeyError"):
            assert str(_raised(name, "[Errno 1] " + piece * 4000)).startswith(("[Errno", "'[Errno", '"[Errno'))
            assert isinstance(_raised(name, "[Errno 1] " + (piece * 4000)[:9000]), Exception)
            assert isinstance(_raised(name, "(" + "-" * 9000 + "1)"), Exception)
    assert time.monotonic() - began < 30
    with pytest.raises(FileNotFoundError) as raised:
        execute('open("it\'s: here")', filesystem_access=True)
    assert (raised.value.errno, raised.value.filename) == (2, "it's: here")
    assert str(raised.value) == '[Errno 2] No such file or directory: "it\'s: here"'
    with pytest.raises(PermissionError) as plain:
        execute("raise PermissionError(13, 'not now')")
    assert (plain.value.errno, plain.value.strerror, plain.value.filename) == (13, "not now", None)
    with pytest.raises(OSError) as two:
        execute("raise OSError(18, 'far', 'a', None, 'b')")
    assert (two.value.errno, two.value.filename, two.value.filename2) == (18, "a", "b")
    with pytest.raises(OSError, match=r"^without a number$"):
        execute("raise OSError('without a number')")


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
        async with SandboxEnvironment(limits=ResourceLimits(timeout_seconds=1, max_memory_mb=100)) as sandbox:
            late = await sandbox.execute("while True: pass")
            assert (late.error_type, late.error) == ("TimeoutError", "Code exceeded 1 second timeout")
            full = await sandbox.execute("x = bytearray(200 << 20)")
            assert (full.error_type, full.error) == ("MemoryError", "Code exceeded 100MB memory limit")

    run(story())


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("result = 6 * 7", 42),
        ("for n in range(3):\n    result = n\nprint('after')", 2),
        ("text = '''\nresult = 1\n'''\nresult = len(text)", 12),
        ("async def __main__():\n    await asyncio.sleep(0)\n    return 5\nimport asyncio", 5),
        ("result = 1\nreturn 2", 2),
        ("if False:\n    result = 1", None),
        ("def f():\n    result = 1\nf()", None),
        ("7", 7),
        ("result = 1\nresult + 2", 3),
    ],
)
def test_execute_gives_the_variable_result(code: str, output: Any) -> None:
    async def story() -> None:
        async with SandboxEnvironment() as sandbox:
            told = await sandbox.execute(code)
            assert (told.success, told.output) == (True, output), told
            has_value = code.splitlines()[-1] in ("7", "return 2", "result + 2")
            assert (await sandbox.execute_code(code)) == (output if has_value else None)

    run(story())


def test_names_that_only_the_implementation_has() -> None:
    limits = ResourceLimits(max_duration=7, allow_file_io=True)  # type: ignore[call-arg]
    assert (limits.timeout_seconds, limits.allow_file_io, limits.allow_network) == (7, True, False)
    assert not ResourceLimits().allow_file_io
    with pytest.raises(TypeError, match="timeout_seconds"):
        ResourceLimits(max_duration=7, timeout_seconds=8)  # type: ignore[call-arg]
    assert execute("open('a', 'w').write('x')\nreturn open('a').read()", limits=limits) == "x"
    assert execute("import os, json\nreturn os.getcwd()", allowed_modules={"os"}) == "/workspace"
    with pytest.raises(ImportError, match="Import 'sys' not allowed"):
        execute("import sys", allowed_modules={"os"})
    sandbox = SandboxEnvironment(allowed_modules=["os"])  # type: ignore[call-arg]
    sandbox.validate_code("import os, json")
    with pytest.raises(SandboxSecurityError):
        sandbox.validate_code("import sys")
    executor = ProgrammaticToolExecutor({}, sandbox_limits=limits)
    assert executor.environment.filesystem_access


def test_modules_among_the_globals() -> None:
    given = {"m": math, "abc": collections.abc, "n": 2.5}
    assert execute("return [m.floor(n), isinstance([], abc.Sequence)]", given) == [2, True]
    with pytest.raises(ImportError, match="Import 'subprocess' not allowed"):
        execute("return 1", {"s": subprocess})


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


def test_both_limits_of_an_executor_hold() -> None:
    def limits(given: ResourceLimits | None, **more: Any) -> tuple[float, int, int]:
        made = ProgrammaticToolExecutor({}, sandbox_limits=given, **more).environment.limits
        return made.timeout_seconds, made.max_tool_calls, made.max_memory_mb

    assert limits(None) == (30, 100, 512)
    assert limits(None, timeout=1, max_tool_calls=2) == (1, 2, 512)
    assert limits(ResourceLimits(max_memory_mb=128), timeout=60, max_tool_calls=2) == (60, 2, 128)
    assert limits(ResourceLimits(timeout_seconds=5, max_tool_calls=200)) == (5, 200, 512)
    assert limits(ResourceLimits(timeout_seconds=5, max_tool_calls=3), timeout=9, max_tool_calls=2) == (5, 2, 512)

    async def story() -> None:
        executor = ProgrammaticToolExecutor({"f": lambda: 1}, 1, 1, sandbox_limits=ResourceLimits(max_memory_mb=128))
        assert (await executor.execute("while True: pass"))["error"] == "TimeoutError: Code exceeded 1 second timeout"
        assert "1 tool call" in (await executor.execute("f(); f()"))["error"]
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
