"""Processes that were forked, at whatever moment."""

from __future__ import annotations

import pytest
from test_daemon import run_python

# A child that hangs is ended by its alarm, and its status is not 0.
CHILD = """
import asyncio, os, signal, threading, time
import belljar
from belljar import daemon

def in_child(work):
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        work()
        os._exit(0)
    return child

def ended(child):
    return os.waitpid(child, 0)[1]
"""


def test_the_waiting_face_goes_on_in_a_child() -> None:
    code = """
def tool(x):
    return x + 1

async def main():
    assert (await belljar.arun("print(1)")).stdout == "1\\n"
    async with belljar.AsyncSandbox(tools=[tool]) as sandbox:
        assert (await sandbox.run("tool(1)")).value == 2

asyncio.run(main())
print(ended(in_child(lambda: asyncio.run(main()))))
"""
    assert run_python(CHILD + code) == "0"
