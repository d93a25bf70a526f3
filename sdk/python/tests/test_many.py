"""Many sandboxes from one event loop."""

from __future__ import annotations

import asyncio
import os

import belljar

RUNS = int(os.environ.get("BELLJAR_TEST_RUNS", "20"))


def test_two_hundred_sessions_with_tools_answer_right() -> None:
    calls = 0

    async def lookup(n: int) -> int:
        """Squares, after a moment."""
        nonlocal calls
        calls += 1
        await asyncio.sleep(0.001)
        return n * n

    async def one(number: int, all_there: asyncio.Barrier) -> None:
        async with belljar.AsyncSandbox(memory="48m", tools=[lookup]) as sandbox:
            await all_there.wait()
            for turn in range(RUNS):
                code = (
                    f"turns = globals().get('turns', 0) + 1\nprint({number})\n(await lookup({number} + {turn})) + turns"
                )
                result = await sandbox.run(code, timeout=120)
                assert result.value == (number + turn) ** 2 + turn + 1, result
                assert result.stdout == f"{number}\n"

    async def main() -> None:
        all_there = asyncio.Barrier(200)
        await asyncio.gather(*[one(number, all_there) for number in range(200)])

    asyncio.run(asyncio.wait_for(main(), 300))
    assert calls == 200 * RUNS


def test_a_thousand_sandboxes_at_once() -> None:
    async def main() -> None:
        sandboxes = [belljar.AsyncSandbox() for _ in range(1000)]
        try:
            await asyncio.gather(*[sandbox.start() for sandbox in sandboxes])
            assert len({sandbox.id for sandbox in sandboxes}) == 1000
            results = await asyncio.gather(
                *[sandbox.run(f"{n} + 1", timeout=120) for n, sandbox in enumerate(sandboxes)]
            )
            assert [result.value for result in results] == list(range(1, 1001))
        finally:
            await asyncio.gather(*[sandbox.aclose() for sandbox in sandboxes])

    asyncio.run(asyncio.wait_for(main(), 300))


def test_more_than_there_is_room_for_take_turns() -> None:
    async def one(n: int) -> object:
        async with belljar.AsyncSandbox() as sandbox:
            return (await sandbox.run(f"{n} * 2")).value

    async def main() -> list[object]:
        return await asyncio.gather(*[one(n) for n in range(60)])

    assert asyncio.run(asyncio.wait_for(main(), 300)) == [n * 2 for n in range(60)]
