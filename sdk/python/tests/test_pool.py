"""Sandboxes that nobody has used."""

from __future__ import annotations

import asyncio

import pytest
from test_daemon import run_python, wait_until

import belljar


def test_each_is_given_out_once() -> None:
    with belljar.Pool(size=3, memory="128m", tools={"f": lambda: 1}) as pool:
        seen = set()
        for _ in range(6):
            sandbox = pool.acquire()
            assert sandbox.run("'x' in globals()").value is False
            sandbox.run("x = f()", check=True)
            seen.add(sandbox.id)
            pool.release(sandbox)
            assert sandbox.closed
        assert len(seen) == 6
        with pool.sandbox() as sandbox:
            assert sandbox.info().limits.memory_bytes == 128 << 20
        assert pool.run("6 * 7").value == 42
        forgotten = pool.acquire()
    assert forgotten.closed
    left = {info.id for info in belljar.Client().sandboxes()}
    assert not left & {*seen, forgotten.id}


def test_for_code_that_awaits_more_at_once_than_wait() -> None:
    async def main() -> None:
        async with belljar.AsyncPool(size=2) as pool:
            results = await asyncio.gather(*[pool.run(f"{n} * {n}") for n in range(10)])
            assert [result.value for result in results] == [n * n for n in range(10)]

    asyncio.run(main())


def test_those_that_are_gone_are_not_given_out() -> None:
    client = belljar.Client()
    with belljar.Pool(size=2, name="waits") as pool:
        pool.release(pool.acquire())
        wait_until(lambda: pool.ready == 2)
        gone = {info.id for info in client.sandboxes(name="waits")}
        for id in gone:
            client.attach(id).delete()
        for _ in range(3):
            sandbox = pool.acquire()
            assert sandbox.id not in gone and sandbox.run("6 * 7").value == 42
        assert pool.run("1").value == 1


def test_those_whose_daemon_is_gone_are_not_given_out(state: str) -> None:
    code = """
import asyncio, belljar, belljar.daemon as d, os, signal, time
async def main():
    async with belljar.AsyncPool(size=2) as pool:
        while pool.ready < 2: await asyncio.sleep(0.01)
        os.kill(d._peer(d.ensure()), signal.SIGKILL)
        while d._peer(str(d.state_directory() / "belljar.sock")) is not None: time.sleep(0.01)
        print((await pool.run("6 * 7")).value)
asyncio.run(main())
"""
    assert run_python(code, BELLJAR_STATE_DIR=state) == "42"


def test_what_is_wrong_is_told() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        belljar.Pool(size=0)
    with belljar.Pool(size=1, language="nonesuch") as pool, pytest.raises(belljar.InvalidRequest):
        pool.acquire()
    with pytest.raises(belljar.BelljarError, match="closed"):
        pool.acquire()


def test_who_stops_waiting_leaves_none_behind() -> None:
    async def main() -> None:
        async with belljar.AsyncPool(size=2, labels={"pool": "left"}) as pool:
            client = belljar.AsyncClient()
            waiting = [asyncio.create_task(pool.acquire()) for _ in range(12)]
            await asyncio.sleep(0)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            for _ in range(6):
                # At whatever moment.
                task = asyncio.create_task(pool.acquire())
                await asyncio.sleep(0.002)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            for _ in range(1000):
                held = len(await client.sandboxes(label="pool=left"))
                if pool.ready == 2 and held == 2 + len(pool._out):
                    break
                await asyncio.sleep(0.02)
            assert pool.ready == 2 and held == 2 + len(pool._out)
            assert (await pool.run("1 + 1")).value == 2
        assert await client.sandboxes(label="pool=left") == []

    asyncio.run(main())


def test_who_waits_for_a_pool_that_is_closed_is_told() -> None:
    async def main() -> None:
        pool = await belljar.AsyncPool(size=1).start()
        waiting = [asyncio.create_task(pool.acquire()) for _ in range(3)]
        await asyncio.sleep(0)
        await pool.aclose()
        for ended in await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60):
            assert isinstance(ended, belljar.BelljarError | belljar.AsyncSandbox)

    asyncio.run(main())
