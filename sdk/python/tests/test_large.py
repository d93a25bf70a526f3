"""What is too large for one message, between tools and the code that calls them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import belljar
from belljar._io import synchronous

MOST = 16 << 20
LARGE = """
try:
    told = len(give(%d))
except ValueError as problem:
    told = str(problem)
told
"""


@pytest.fixture(params=["blocking", "waiting"])
def face(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def in_one(face: str, codes: list[str], **options: Any) -> list[Any]:
    """The values of code that runs in one sandbox, or what was raised for it."""
    options = {"timeout": 20, "memory": "1g", **options}
    if face == "blocking":
        told: list[Any] = []
        with belljar.Sandbox(**options) as sandbox:
            for code in codes:
                try:
                    told.append(sandbox.run(code, check=True).value)
                except belljar.BelljarError as problem:
                    told.append(problem)
        return told

    async def main() -> list[Any]:
        told: list[Any] = []
        async with belljar.AsyncSandbox(**options) as sandbox:
            for code in codes:
                try:
                    told.append((await sandbox.run(code, check=True)).value)
                except belljar.BelljarError as problem:
                    told.append(problem)
        return told

    return asyncio.run(main())


def test_an_answer_that_is_too_large_is_told_inside(face: str) -> None:
    def give(size: int) -> str:
        return "x" * size

    right, wrong, after = in_one(face, [LARGE % (MOST - 1000), LARGE % MOST, "len(give(5))"], tools=[give])
    assert right == MOST - 1000 and after == 5
    assert "give() returned" in wrong and str(MOST) in wrong


def test_a_request_that_is_too_large_is_refused_and_the_next_is_not() -> None:
    with belljar.Sandbox(tools={"f": len}, memory="1g") as sandbox:
        for _ in range(2):
            with pytest.raises(belljar.InvalidRequest, match="globals"):
                sandbox.run("f(g)", globals={"g": "x" * MOST})
            assert sandbox.run("f(g)", globals={"g": "x" * (MOST - 10_000)}).value == MOST - 10_000


def test_answers_to_a_run_that_is_over_are_not_sent_with_the_next() -> None:
    with belljar.Sandbox(tools={"f": lambda: 1}) as sandbox:
        assert sandbox.run("f()").value == 1
        assert sandbox._channel is not None and sandbox._channel._websocket is not None
        sandbox._channel._unsent.append("x" * (MOST + 1))
        sandbox._channel._websocket.socket.shutdown(2)
        assert sandbox.run("f()").value == 1


def test_a_connection_that_is_closed_at_once_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    def brief(*args: Any) -> Any:
        websocket = real(*args)
        websocket.close()
        return websocket

    real = synchronous.open_websocket
    with belljar.Sandbox(tools={"f": lambda: 1}) as sandbox:
        monkeypatch.setattr(synchronous, "open_websocket", brief)
        with pytest.raises(belljar.Unavailable, match=r"closed|bye"):
            sandbox.run("f()")
        monkeypatch.undo()
        assert sandbox.run("f() + 2").value == 3


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("nothing to say")


class Silent(KeyError):
    def __init__(self) -> None:
        super().__init__(Mute())


@pytest.mark.parametrize("kind", [Mute, Silent])
def test_an_exception_that_cannot_be_told_is_told_by_its_name(face: str, kind: type[Exception]) -> None:
    def fail() -> None:
        raise kind

    code = "try:\n    fail()\nexcept Exception as problem:\n    told = type(problem).__name__, str(problem)\ntold"
    first, second = in_one(face, [code, "1"], tools=[fail])
    assert kind.__name__ in str(first) and second == 1
