"""A program of somebody who checks types strictly. It is not run: `test_types.py` has it checked."""

from __future__ import annotations

import datetime
import pathlib

import belljar
from belljar import (
    AsyncPool,
    AsyncSandbox,
    Client,
    ImportNotAllowed,
    OutOfMemory,
    Pool,
    Result,
    Sandbox,
    SandboxTimeout,
)
from belljar.compat import code_sandbox, codomyrmex, openmanus
from belljar.compat.agentfly import PythonSandboxEnv, WarmPool
from belljar.compat.orchestrator import ResourceLimits, SandboxEnvironment


def search(query: str) -> list[str]:
    return [query]


async def fetch(query: str) -> str:
    return query


def blocking() -> tuple[str, int | None, bytes]:
    files: dict[str, str | bytes | pathlib.Path] = {"a": b"x", "b": "text", "c": pathlib.Path("c.csv")}
    result: Result = belljar.run("1", language="python", timeout=5, memory="64m", files=files, network=["example.org"])
    with Sandbox(timeout=datetime.timedelta(seconds=10), tools={"search": search, "fetch": fetch}) as sandbox:
        sandbox.run("x + 1", globals={"x": 1}).check()
        sandbox.files.write("a.csv", b"1")
        for event in sandbox.stream("1"):
            if event.type == "stdout":
                print(event.text)
            elif event.type == "result":
                print(event.result.value)
        with sandbox.terminal(rows=2, cols=3) as terminal:
            terminal.send("x")
            print(terminal.receive(1).decode())
        print(sandbox.usage().now.cpu_ms + result.usage.wall_ms)
        data = sandbox.files.read("out.png")
    pool = Pool(size=8)
    pool.release(pool.acquire())
    try:
        belljar.run("1", check=True)
    except (SandboxTimeout, OutOfMemory, ImportNotAllowed) as error:
        print(error.result, error.code)
    print(belljar.history(limit=3)[0].status, belljar.stats().runs, Client("unix:///x").runtimes())
    return result.stdout, result.exit_code, data


async def waiting() -> None:
    async with AsyncSandbox(tools=[fetch]) as sandbox:
        print((await sandbox.run("1")).value, await sandbox.files.read_text("a"))
        async for event in sandbox.stream("1"):
            print(event.type)
    async with AsyncPool(size=2) as pool, pool.sandbox() as one:
        print((await one.run("1")).success, (await belljar.arun("1")).stdout)


async def moved() -> str:
    env = PythonSandboxEnv(cpu=1, mem="1g", start_timeout=30.0)
    await env.start()
    warm: WarmPool[PythonSandboxEnv] = WarmPool(PythonSandboxEnv.acquire, 2)
    await warm.release(await warm.acquire(), finished=True)
    environment = SandboxEnvironment(limits=ResourceLimits(max_memory_mb=256), allowed_imports=["json"])
    await environment.execute_code("return f(1)", globals_dict={"f": lambda x: x})
    await environment.reset()
    print(environment.get_logs().upper(), codomyrmex.execute_code("python", "1")["status"])
    async with openmanus.DockerSandbox(openmanus.SandboxSettings(timeout=3), {"/a": "/b"}) as sandbox:
        print(await sandbox.run_command("ls", timeout=3))
    limits = code_sandbox.ResourceLimits(memory_limit="256m", cpu_shares=512)
    print(code_sandbox.CodeSandbox(default_limits=limits).execute("1", "python", files={"a": "b"}).timestamp.year)
    return await env.step("1")
