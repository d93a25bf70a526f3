"""Functions of the caller's that code in a sandbox calls."""

from __future__ import annotations

import asyncio
import functools
import threading
import time

import pytest

import belljar


def search(query: str, limit: int = 3, *, exact: bool = False) -> list[str]:
    """Finds documents.

    Best first.
    """
    return [f"{query}{n}{'!' if exact else ''}" for n in range(limit)]


def now() -> str:
    return "now"


def test_tools_are_functions_inside_too() -> None:
    with belljar.Sandbox(tools={"search": search, "twice": lambda x: 2 * x}) as sandbox:
        assert sandbox.run("search('a', limit=2, exact=True)").value == ["a0!", "a1!"]
        help_text = sandbox.run("help(search)").stdout
        assert "search(query: str, limit: int = 3, *, exact: bool = False) -> list[str]\n" in help_text
        assert "Finds documents." in help_text and "Best first." in help_text
        assert "twice(x)\n" in sandbox.run("help(twice)").stdout
        assert "most(*args, **kwargs)\n" in sandbox.run("help(most)", tools={"most": max}).stdout
        assert "now() -> str\n" in sandbox.run("help(now)", tools={"now": now}).stdout
        assert sandbox.run("twice(21)").value == 42
        # Others for one run.
        assert sandbox.run("other()", tools={"other": lambda: "o"}).value == "o"
        assert "NameError" in sandbox.run("search('x')", tools={}).stderr
        assert sandbox.run("search('x', 1)").value == ["x0"]


class Counter:
    def __call__(self, step: int = 1) -> int:
        """Counts on."""
        return step


def test_documentation_of_what_is_no_plain_function() -> None:
    tools = {"count": Counter(), "part": functools.partial(search, limit=1), "bound": Counter().__call__}
    with belljar.Sandbox(tools=tools) as sandbox:
        told = sandbox.run("[count.__doc__, part.__doc__.splitlines()[0], bound.__doc__]", check=True).value
    assert told == ["Counts on.", "Finds documents.", "Counts on."]


def test_names_of_tools() -> None:
    def other() -> None: ...

    other.__name__ = "now"
    for tools in ([now, other], {"class": now}, {"a-b": now}, [lambda: 1], {1: now}):
        with pytest.raises(belljar.InvalidRequest, match=r"tools: .* give"):
            belljar.Sandbox(tools=tools)  # type: ignore[arg-type]
    for wrong in (now, 5, [5, 6], "ab"):
        with pytest.raises(TypeError, match="give a"):
            belljar.Sandbox(tools=wrong)  # type: ignore[arg-type]


def test_a_tool_that_fails_fails_inside() -> None:
    def broken(kind: str) -> object:
        if kind == "key":
            raise KeyError("k")
        if kind == "own":
            raise belljar.NotFound("nobody")
        return object()

    with belljar.Sandbox(tools=[broken]) as sandbox:
        code = "try:\n    broken({!r})\nexcept {} as e:\n    answer = type(e).__name__, str(e)\nanswer"
        assert sandbox.run(code.format("key", "KeyError")).value == ["KeyError", "'k'"]
        assert sandbox.run(code.format("own", "ToolError")).value == ["NotFound", "nobody"]
        kind, message = sandbox.run(code.format("value", "TypeError")).value
        assert kind == "TypeError" and "no JSON form" in message


@pytest.mark.parametrize("face", ["blocking", "waiting"])
def test_a_tool_that_would_end_the_program_does_not(face: str) -> None:
    def leave() -> None:
        raise SystemExit(3)

    async def leave_later() -> None:
        raise SystemExit(4)

    async def given_up() -> None:
        raise asyncio.CancelledError

    tools = [leave, leave_later, given_up]
    code = "told = []\nfor call in (lambda: leave(), lambda: leave_later(), lambda: given_up()):\n"
    code += "    try:\n        value = call()\n        if hasattr(value, '__await__'): await value\n"
    code += "    except Exception as error: told.append(type(error).__name__)\ntold"
    if face == "blocking":
        with belljar.Sandbox(tools=tools) as sandbox:
            value = sandbox.run(code, timeout=30, check=True).value
    else:

        async def main() -> object:
            async with belljar.AsyncSandbox(tools=tools) as sandbox:
                return (await sandbox.run(code, timeout=30, check=True)).value

        value = asyncio.run(main())
    assert value == ["SystemExit", "SystemExit", "CancelledError"]

    def interrupted() -> None:
        raise KeyboardInterrupt

    with belljar.Sandbox(tools=[interrupted]) as sandbox:
        with pytest.raises(KeyboardInterrupt):
            sandbox.run("interrupted()")
        assert sandbox.run("1").value == 1


def test_tools_of_a_blocking_sandbox_run_in_its_callers_thread() -> None:
    seen = []
    with belljar.Sandbox(tools={"look": lambda: seen.append(threading.get_ident())}) as sandbox:
        sandbox.run("look(); look()", check=True)
    assert seen == [threading.get_ident()] * 2


@pytest.mark.parametrize("face", ["blocking", "waiting"])
def test_tools_that_await_run_at_the_same_time(face: str) -> None:
    most = now = 0

    async def slow(n: int) -> int:
        nonlocal most, now
        now += 1
        most = max(most, now)
        # Until all are there.
        for _ in range(2000):
            if most == 8:
                break
            await asyncio.sleep(0.01)
        now -= 1
        return n * n

    code = "import asyncio\nsum(await asyncio.gather(*[slow(n) for n in range(8)]))"
    if face == "blocking":
        with belljar.Sandbox(tools=[slow]) as sandbox:
            value = sandbox.run(code, check=True).value
    else:

        async def main() -> object:
            async with belljar.AsyncSandbox(tools=[slow]) as sandbox:
                return (await sandbox.run(code, check=True)).value

        value = asyncio.run(main())
    assert value == 140 and most == 8


def test_functions_that_block_do_not_hold_the_event_loop_up() -> None:
    async def main() -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        def wait() -> bool:
            before, end = ticks, time.monotonic() + 20
            while ticks < before + 5 and time.monotonic() < end:
                time.sleep(0.01)
            return ticks >= before + 5

        ticking = asyncio.create_task(tick())
        async with belljar.AsyncSandbox(tools=[wait]) as sandbox:
            assert (await sandbox.run("wait()", check=True)).value is True
        ticking.cancel()

    asyncio.run(main())


def test_a_limit_on_calls_of_tools() -> None:
    with belljar.Sandbox(tools={"f": lambda: 1}, max_tool_calls=3) as sandbox:
        assert sandbox.run("f() + f() + f()").value == 3
        assert not sandbox.run("for _ in range(4): f()").success
        assert sandbox.run("f()").value == 1


def test_a_tool_that_would_wait_for_itself_is_told_so() -> None:
    def inner() -> object:
        return sandbox.run("1").value

    def without() -> object:
        return sandbox.run("1", tools={}).value

    async def later() -> object:
        return sandbox.run("1").value

    def beside() -> str:
        return sandbox.shell("echo hi").stdout

    with belljar.Sandbox(tools=[inner, without, later, beside]) as sandbox:
        for call in ("inner()", "without()", "await later()"):
            result = sandbox.run(call, timeout=20)
            assert result.error is not None and "another sandbox" in result.error.message, (call, result)
        assert sandbox.run("beside()").value == "hi\n"
        assert sandbox.run("1 + 1").value == 2

    async def story() -> None:
        async def inner() -> object:
            return (await sandbox.run("1")).value

        async with belljar.AsyncSandbox(tools=[inner]) as sandbox:
            result = await sandbox.run("await inner()", timeout=20)
            assert result.error is not None and "another sandbox" in result.error.message, result
            assert (await sandbox.run("1 + 1")).value == 2

    asyncio.run(story())
