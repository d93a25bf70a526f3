"""Who stops waiting for a run ends that run, and no other."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import belljar
from belljar._async.wire import AsyncWire

# Files do not wait for a run's turn: they tell when it has begun, and when it may end.
BEGUN = "open('begun', 'w').close()\n"
WAITING = f"{BEGUN}import os, time\nwhile not os.path.exists('go'): time.sleep(.01)\ndone = True\n7"


async def value(sandbox: belljar.AsyncSandbox, way: str, code: str) -> Any:
    """What code gives, asked for in one of the ways to do that."""
    if way == "run":
        return (await sandbox.run(code, tools={})).value
    if way == "run with tools":
        return (await sandbox.run(code)).value
    if way == "stream":
        return (await sandbox.stream(code, tools={}).until_done()).value
    return (await sandbox.stream(code).until_done()).value


WAYS = ["run", "run with tools", "stream", "stream with tools"]


async def there(sandbox: belljar.AsyncSandbox, name: str) -> None:
    for _ in range(3000):
        if await sandbox.files.exists(name):
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{name} does not appear")


async def given_up(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("way", WAYS)
def test_one_that_waits_for_its_turn_never_begins(way: str) -> None:
    async def main() -> None:
        async with belljar.AsyncSandbox(tools={"f": lambda: 1}) as sandbox:
            await sandbox.run("seen = []")
            # Asked for in different ways, so that the daemon and not this side has them wait.
            first = asyncio.create_task(value(sandbox, "run" if "tools" in way else "run with tools", WAITING))
            await there(sandbox, "begun")
            second = asyncio.create_task(value(sandbox, way, "seen.append(2)"))
            third = asyncio.create_task(value(sandbox, "stream", "seen.append(3)\nseen"))
            await asyncio.sleep(0.2)
            await given_up(second)
            await asyncio.sleep(0.2)
            await sandbox.files.write("go", "")
            assert await first == 7
            assert await third == [3]
            assert (await sandbox.run("done, seen")).value == [True, [3]]

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("way", WAYS)
def test_one_that_goes_on_is_interrupted_and_the_next_begins(way: str) -> None:
    async def main() -> None:
        async with belljar.AsyncSandbox(tools={"f": lambda: 1}) as sandbox:
            await sandbox.run("x = 5")
            code = f"x = 6\n{BEGUN}import time\ntime.sleep(600)\nx = 7"
            first = asyncio.create_task(value(sandbox, way, code))
            await there(sandbox, "begun")
            second = asyncio.create_task(value(sandbox, "run", "x + 1"))
            await asyncio.sleep(0.1)
            await given_up(first)
            assert await second == 7

    asyncio.run(asyncio.wait_for(main(), 60))


GONE = """
import os, time
def command(process):
    try:
        with open(f'/proc/{process}/cmdline', 'rb') as file: return file.read()
    except OSError: return b''
end = time.monotonic() + 20
while left := [name for name in os.listdir('/proc') if name.isdigit() and b'600' in command(name)]:
    if time.monotonic() > end: break
    time.sleep(.02)
left
"""


def test_a_command_is_ended_and_what_runs_beside_it_is_not() -> None:
    async def main() -> None:
        async with belljar.AsyncSandbox() as sandbox:
            code = asyncio.create_task(sandbox.run(WAITING))
            command = asyncio.create_task(sandbox.shell("echo $$ >pid; sleep 600; echo no >after"))
            await there(sandbox, "begun")
            await there(sandbox, "pid")
            await given_up(command)
            await sandbox.files.write("go", "")
            assert (await code).value == 7
            assert (await sandbox.run(GONE)).value == []
            # The other way round.
            command = asyncio.create_task(sandbox.shell("until [ -e again ]; do sleep 0.02; done; echo yes"))
            await sandbox.files.delete("begun")
            code = asyncio.create_task(sandbox.run(f"{BEGUN}import time; time.sleep(600)"))
            await there(sandbox, "begun")
            await given_up(code)
            await sandbox.files.write("again", "")
            assert (await command).stdout == "yes\n"

    asyncio.run(asyncio.wait_for(main(), 60))


def test_languages_whose_programs_start_anew() -> None:
    async def main() -> None:
        async with belljar.AsyncSandbox(language="perl") as sandbox:
            first = asyncio.create_task(sandbox.run("sleep 600"))
            await asyncio.sleep(0.3)
            await given_up(first)
            assert (await sandbox.run("print 6 * 7")).stdout == "42"

    asyncio.run(asyncio.wait_for(main(), 60))


def test_nobody_else_who_uses_the_sandbox_is_disturbed() -> None:
    with belljar.Sandbox() as sandbox:
        other = belljar.Sandbox.attach(sandbox.id)
        results: list[belljar.Result] = []
        thread = threading.Thread(target=lambda: results.append(other.run(WAITING)))
        thread.start()
        while not sandbox.files.exists("begun"):
            assert thread.is_alive()
            time.sleep(0.02)

        async def main() -> None:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(belljar.AsyncSandbox.attach(sandbox.id).run("1"), 0.2)

        asyncio.run(main())
        sandbox.files.write("go", "")
        thread.join(60)
        assert [result.value for result in results] == [7]


@pytest.mark.parametrize("tools", [{}, {"f": lambda: 1}])
def test_a_stream_that_is_left(tools: dict[str, Callable[..., Any]]) -> None:
    with belljar.Sandbox(tools=tools) as sandbox:
        with sandbox.stream("x = 1\nprint(1, flush=True)\nimport time\ntime.sleep(600)") as stream:
            assert next(stream).type == "stdout"
        began = time.monotonic()
        assert sandbox.run("x + 1").value == 2
        assert time.monotonic() - began < 30


def test_a_run_within_a_stream_waits_for_it() -> None:
    async def main() -> None:
        async with belljar.AsyncSandbox() as sandbox:
            inner: list[Awaitable[belljar.Result]] = []
            async for event in sandbox.stream("print(1, flush=True)\nx = 2"):
                if event.type == "stdout":
                    inner.append(asyncio.ensure_future(sandbox.run("x")))
            assert (await inner[0]).value == 2

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("kept", [False, True])
def test_one_whose_creation_is_given_up_is_deleted(monkeypatch: pytest.MonkeyPatch, kept: bool) -> None:
    async def main() -> None:
        made = asyncio.Event()

        async def slowly(wire: AsyncWire, method: str, path: str, *args: Any, **options: Any) -> Any:
            answer = await real(wire, method, path, *args, **options)
            if (method, path) == ("POST", "/v1/sandboxes"):
                # It is there, and its maker has not heard of it yet.
                made.set()
                await asyncio.sleep(0.1)
            return answer

        real = AsyncWire.json
        monkeypatch.setattr(AsyncWire, "json", slowly)
        sandbox: belljar.AsyncSandbox | None = belljar.AsyncSandbox(labels={"given": "up"})
        assert sandbox is not None
        task = asyncio.create_task(sandbox.start())
        await asyncio.wait_for(made.wait(), 60)
        await given_up(task)
        del task
        if kept:
            await sandbox.aclose()
        else:
            sandbox = None
        client = belljar.AsyncClient()
        for _ in range(500):
            if not await client.sandboxes(label="given=up"):
                return
            await asyncio.sleep(0.02)
        raise AssertionError("it is still there")

    asyncio.run(main())
