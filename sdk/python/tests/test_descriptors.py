"""More connections than a program may begin with."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import belljar

SOURCE = pathlib.Path(belljar.__file__).parent.parent

MANY = """
import asyncio, resource, sys
import belljar
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
opened = [open("/dev/null") for _ in range(int(sys.argv[1]))]

async def square(n: int) -> int:
    return n * n

async def main() -> None:
    sandboxes = [belljar.AsyncSandbox(memory="16m", tools=[square]) for _ in range(70)]
    await asyncio.gather(*[sandbox.start() for sandbox in sandboxes])
    answers = await asyncio.gather(*[sandbox.run(f"await square({n})") for n, sandbox in enumerate(sandboxes)])
    assert [answer.value for answer in answers] == [n * n for n in range(70)]
    await asyncio.gather(*[sandbox.aclose() for sandbox in sandboxes])

asyncio.run(main())
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 64)
"""


def test_as_many_connections_as_the_system_allows() -> None:
    for others in ("0", "45"):
        environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
        words = [sys.executable, "-c", MANY, others]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
        assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr
