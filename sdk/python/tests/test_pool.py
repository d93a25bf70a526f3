"""Sandboxes that nobody has used."""

from __future__ import annotations

import asyncio

import pytest

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


def test_what_is_wrong_is_told() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        belljar.Pool(size=0)
    with belljar.Pool(size=1, language="nonesuch") as pool, pytest.raises(belljar.InvalidRequest):
        pool.acquire()
    with pytest.raises(belljar.BelljarError, match="closed"):
        pool.acquire()
