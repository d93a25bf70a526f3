"""A sandbox of OpenManus for a test, and its event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from belljar.compat.openmanus import (
    DockerSandbox,
    SandboxSettings,
)

SMALL = SandboxSettings(memory_limit="128m")


def run(story: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(story)


@asynccontextmanager
async def sandbox(config: SandboxSettings = SMALL) -> AsyncIterator[DockerSandbox]:
    async with DockerSandbox(config) as made:
        yield made


def in_sandbox(story: Callable[[DockerSandbox], Awaitable[Any]], config: SandboxSettings = SMALL) -> Any:
    async def whole() -> Any:
        async with sandbox(config) as made:
            return await story(made)

    return run(whole())
