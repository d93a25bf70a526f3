"""OpenManus' manager, client and tools, which have sandboxes of their own."""

from __future__ import annotations

import asyncio
import base64
import inspect
from pathlib import Path

import pytest
from reading import parameters
from stories import SMALL, run

from belljar.compat import _output, openmanus
from belljar.compat.openmanus import (
    SANDBOX_CLIENT,
    BaseSandboxClient,
    BaseTool,
    LocalSandboxClient,
    NormalPythonExecute,
    PythonExecute,
    SandboxManager,
    SandboxTimeoutError,
    create_sandbox_client,
)


def test_manager() -> None:
    async def story() -> None:
        async with SandboxManager(max_sandboxes=2, idle_timeout=60, cleanup_interval=30) as manager:
            first = await manager.create_sandbox(SMALL)
            assert first in manager._sandboxes and first in manager._last_used
            made = await manager.get_sandbox(first)
            assert (await made.run_command("echo 'test'")).strip() == "test"
            second = await manager.create_sandbox(SMALL)
            with pytest.raises(RuntimeError) as raised:
                await manager.create_sandbox(SMALL)
            assert str(raised.value) == "Maximum number of sandboxes (2) reached"
            assert manager.get_stats() == {
                "total_sandboxes": 2,
                "active_operations": 0,
                "max_sandboxes": 2,
                "idle_timeout": 60,
                "cleanup_interval": 30,
                "is_shutting_down": False,
            }
            with pytest.raises(KeyError, match=r"Sandbox .* not found"):
                await manager.get_sandbox("nonexistent-id")
            await manager.delete_sandbox("nonexistent-id")
            await manager.delete_sandbox(first)
            assert first not in manager._sandboxes and first not in manager._last_used
            with pytest.raises(RuntimeError):
                await made.run_command("true")
            kept = await manager.get_sandbox(second)
        assert not manager._sandboxes and not manager._last_used and not manager._locks
        assert manager.get_stats()["is_shutting_down"] is True
        with pytest.raises(RuntimeError):
            await kept.run_command("true")
        with pytest.raises(RuntimeError):
            await manager.create_sandbox(SMALL)

    run(story())


def test_manager_makes_no_more_than_allowed_at_once() -> None:
    async def story() -> None:
        async with SandboxManager(max_sandboxes=2) as manager:
            made = await asyncio.gather(*(manager.create_sandbox(SMALL) for _ in range(5)), return_exceptions=True)
            assert sum(isinstance(each, str) for each in made) == 2

    run(story())


def test_operations_have_a_sandbox_to_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openmanus, "_PATIENCE", 60.0)

    async def story() -> None:
        async with SandboxManager(max_sandboxes=2) as manager:
            identity = await manager.create_sandbox(SMALL)
            order: list[str] = []

            async def operation(name: str) -> None:
                async with manager.sandbox_operation(identity) as made:
                    order.append(f"{name} in")
                    assert manager.get_stats()["active_operations"] == 1
                    await made.run_command("sleep 0.1")
                    order.append(f"{name} out")

            await asyncio.gather(operation("a"), operation("b"))
            assert order in (["a in", "a out", "b in", "b out"], ["b in", "b out", "a in", "a out"])
            assert manager._active_operations == set()
            order.clear()
            going_on = asyncio.create_task(operation("c"))
            await asyncio.sleep(0.02)
            await manager.delete_sandbox(identity)
            assert order == ["c in", "c out"]
            await going_on
            with pytest.raises(KeyError):
                async with manager.sandbox_operation("nothing"):
                    pass

    run(story())


def test_idle_sandboxes_are_removed() -> None:
    async def story() -> None:
        async with SandboxManager(idle_timeout=1, cleanup_interval=1) as manager:
            idle = await manager.create_sandbox(SMALL)
            busy = await manager.create_sandbox(SMALL)
            for _ in range(60):
                async with manager.sandbox_operation(busy) as made:
                    await made.run_command("sleep 0.1")
                if idle not in manager._sandboxes:
                    break
            assert idle not in manager._sandboxes
            assert busy in manager._sandboxes

    run(story())


def test_a_manager_s_patience_is_the_daemon_s() -> None:
    async def story() -> None:
        for idle, interval, most in ((7200, 300, 7560), (1, 1, 3600), (float("inf"), 300, openmanus._LONGEST_IDLE)):
            async with SandboxManager(idle_timeout=idle, cleanup_interval=interval) as manager:
                made = await manager.get_sandbox(await manager.create_sandbox(SMALL))
                assert made.container is not None
                assert (await made.container.info()).idle_timeout_ms == most * 1000

    run(story())


def test_images() -> None:
    async def story() -> None:
        async with SandboxManager() as manager:
            assert await manager.ensure_image("python:3.12-slim") is True

    run(story())


def test_client(tmp_path: Path) -> None:
    async def story() -> None:
        client = create_sandbox_client()
        assert isinstance(client, LocalSandboxClient) and isinstance(client, BaseSandboxClient)
        with pytest.raises(RuntimeError, match="not initialized"):
            await client.run_command("true")
        await client.create(SMALL)
        assert await client.run_command("echo 'test'") == "test"
        with pytest.raises(SandboxTimeoutError):
            await client.run_command("sleep 10", timeout=1)
        await client.write_file("/workspace/test.txt", "Hello")
        assert await client.read_file("/workspace/test.txt") == "Hello"
        (tmp_path / "src.txt").write_text("Copy")
        await client.copy_to(str(tmp_path / "src.txt"), "/workspace/copied.txt")
        await client.copy_from("/workspace/copied.txt", str(tmp_path / "dst.txt"))
        assert (tmp_path / "dst.txt").read_text() == "Copy"
        await client.cleanup()
        await client.cleanup()
        with pytest.raises(RuntimeError):
            await client.read_file("test.txt")

    assert isinstance(SANDBOX_CLIENT, LocalSandboxClient)
    run(story())


def test_python_execute() -> None:
    async def story() -> None:
        tool = PythonExecute()
        assert isinstance(tool, BaseTool)
        assert tool.name == "python_execute"
        param = tool.to_param()
        assert param["type"] == "function" and param["function"]["parameters"]["required"] == ["code"]
        assert await tool.execute("print('hi')\n42") == {"observation": "hi\n", "success": True}
        assert await tool(code="print(1)") == {"observation": "1\n", "success": True}
        assert await tool.execute("") == {"observation": "", "success": True}
        failed = await tool.execute("print('first')\n1 / 0")
        assert failed["success"] is False
        assert failed["observation"].startswith("first\n") and "division by zero" in failed["observation"]
        late = await tool.execute("while True: pass", timeout=1)
        assert late == {"observation": "Execution timeout after 1 seconds", "success": False}
        # Each execution by itself, and none of them here.
        await tool.execute("x = 1; open('left.txt', 'w')")
        left = await tool.execute("import os; print('x' in globals(), os.path.exists('left.txt'), os.getuid())")
        assert left["observation"] == "False False 1000\n"

    assert parameters(PythonExecute.execute) == {"code": inspect.Parameter.empty, "timeout": 5}
    run(story())


def test_charts_come_back() -> None:
    code = """
import matplotlib.pyplot as plt
plt.plot([1, 2, 3])
plt.show()
print('drawn')
"""

    async def story() -> None:
        tool = NormalPythonExecute()
        assert isinstance(tool, PythonExecute)
        assert tool.parameters["properties"]["code_type"]["enum"] == ["process", "report", "others"]
        result = await tool.execute(code, code_type="process", timeout=60)
        assert (result["observation"], result["success"]) == ("drawn\n", True)
        (chart,) = result["charts"]
        assert chart["mime"] == "image/png"
        assert base64.b64decode(chart["data"]).startswith(b"\x89PNG")
        assert result["base64_image"] == chart["data"]
        plain = await tool.execute("print(1)", code_type="report")
        assert plain == {"observation": "1\n", "success": True}

    assert list(parameters(NormalPythonExecute.execute)) == ["code", "code_type", "timeout"]
    run(story())


def test_tools_tell_all_that_was_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        tool = PythonExecute()
        told = await tool.execute("for n in range(300_000): print(n)", timeout=60)
        assert told["observation"].splitlines() == [str(n) for n in range(300_000)]
        monkeypatch.setattr(_output, "MOST", 1000)
        told = await tool.execute("print('x' * 5000)", timeout=60)
        assert told["observation"] == "x" * 1000 + "\n[cut: more than 1000 bytes were printed]\n"

    run(story())


def test_a_manager_in_one_event_loop_after_the_other() -> None:
    manager = SandboxManager(max_sandboxes=5, idle_timeout=600, cleanup_interval=0.1)

    async def contended() -> str:
        made = await asyncio.gather(*(manager.create_sandbox(SMALL) for _ in range(2)))
        await asyncio.gather(*(manager.get_sandbox(made[0]) for _ in range(3)))
        return made[0]

    first = run(contended())

    async def again() -> None:
        assert (await (await manager.get_sandbox(first)).run_command("echo 1")) == "1"
        await asyncio.gather(*(manager.get_sandbox(first) for _ in range(3)))
        # Idle ones are looked for here too.
        manager.idle_timeout = 0.2
        for _ in range(1000):
            if not manager._sandboxes:
                break
            await asyncio.sleep(0.02)
        assert manager.get_stats()["total_sandboxes"] == 0
        manager.idle_timeout = 600
        await manager.create_sandbox(SMALL)

    run(again())
    run(manager.cleanup())
    assert manager.get_stats()["total_sandboxes"] == 0
