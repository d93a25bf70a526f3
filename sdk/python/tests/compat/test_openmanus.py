"""OpenManus' sandbox: all that its document names."""

from __future__ import annotations

import asyncio
import base64
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from reading import parameters

from belljar import AsyncSandbox, NotFound
from belljar.compat import _copying, openmanus
from belljar.compat.openmanus import (
    SANDBOX_CLIENT,
    AsyncDockerizedTerminal,
    BaseSandboxClient,
    BaseTool,
    DockerSandbox,
    LocalSandboxClient,
    NormalPythonExecute,
    PythonExecute,
    SandboxError,
    SandboxManager,
    SandboxResourceError,
    SandboxSettings,
    SandboxTimeoutError,
    create_sandbox_client,
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


def test_names() -> None:
    assert set(openmanus.__all__) >= {
        "DockerSandbox",
        "SandboxManager",
        "BaseSandboxClient",
        "LocalSandboxClient",
        "create_sandbox_client",
        "SandboxError",
        "SandboxTimeoutError",
        "SandboxResourceError",
        "SandboxSettings",
        "AsyncDockerizedTerminal",
        "PythonExecute",
        "NormalPythonExecute",
    }


def test_settings() -> None:
    assert SandboxSettings().model_dump() == {
        "use_sandbox": False,
        "image": "python:3.12-slim",
        "work_dir": "/workspace",
        "memory_limit": "512m",
        "cpu_limit": 1.0,
        "timeout": 300,
        "network_enabled": False,
    }
    settings = SandboxSettings(cpu_limit="0.5", timeout="30")  # type: ignore[arg-type]
    assert (settings.cpu_limit, settings.timeout) == (0.5, 30)
    for wrong in (
        {"cpu_limit": 0},
        {"cpu_limit": "much"},
        {"timeout": 0},
        {"timeout": None},
        {"work_dir": "relative"},
        {"memory_limit": ""},
        {"memory_limit": 512},
    ):
        with pytest.raises(ValueError):
            SandboxSettings(**wrong)


def test_switches_as_text() -> None:
    for value in ("false", "False", "no", "off", "0", 0, False):
        settings = SandboxSettings(network_enabled=value, use_sandbox=value)  # type: ignore[arg-type]
        assert (settings.network_enabled, settings.use_sandbox) == (False, False)
        assert "network" not in settings._options()
    for value in ("true", " Yes ", "on", "1", 1, True):
        assert SandboxSettings(network_enabled=value).network_enabled is True  # type: ignore[arg-type]
    for wrong in ("perhaps", "", 2, None, []):
        with pytest.raises(ValueError, match="network_enabled"):
            SandboxSettings(network_enabled=wrong)  # type: ignore[arg-type]


def test_errors() -> None:
    assert issubclass(SandboxTimeoutError, SandboxError)
    assert issubclass(SandboxResourceError, SandboxError)
    assert issubclass(SandboxTimeoutError, TimeoutError)
    assert SandboxError.__base__ is Exception


def test_signatures() -> None:
    assert parameters(DockerSandbox.__init__) == {"config": None, "volume_bindings": None}
    assert parameters(SandboxManager.__init__) == {"max_sandboxes": 100, "idle_timeout": 3600, "cleanup_interval": 300}
    assert parameters(AsyncDockerizedTerminal.__init__) == {
        "container": inspect.Parameter.empty,
        "working_dir": "/workspace",
        "env_vars": None,
        "default_timeout": 60,
    }
    for name in ("create", "run_command", "read_file", "write_file", "copy_from", "copy_to", "cleanup"):
        assert inspect.iscoroutinefunction(getattr(DockerSandbox, name)), name
        assert inspect.iscoroutinefunction(getattr(LocalSandboxClient, name)), name
        assert name in BaseSandboxClient.__abstractmethods__


def test_commands() -> None:
    async def story(made: DockerSandbox) -> None:
        assert await made.run_command("echo 'test'") == "test"
        assert await made.run_command("seq 3") == "1\n2\n3"  # lines of digits are lines
        assert await made.run_command("pwd") == "/workspace"
        assert "no-such" in await made.run_command("ls no-such")
        assert await made.run_command("python -c 'print(6 * 7)'") == "42"
        assert await made.run_command("timeout 9 python -c 'print(7)'") == "7"
        await made.run_command("cd /tmp; X=kept")
        assert await made.run_command("pwd; echo $X") == "/tmp\nkept"
        assert made.terminal is not None
        assert made.terminal.last_exit_code == 0
        await made.run_command("false")
        assert made.terminal.last_exit_code == 1

    in_sandbox(story)


def test_commands_end_where_they_end() -> None:
    async def story(made: DockerSandbox) -> None:
        assert made.container is not None and made.terminal is not None
        async with AsyncDockerizedTerminal(made.container) as beside:
            for terminal in (made.terminal, beside):
                assert await terminal.run_command("# only a comment") == ""
                assert await terminal.run_command("echo a # and one") == "a"
                assert (await terminal.run_command("echo a \\")).startswith("a")
                assert await terminal.run_command("cat <<E\n'x' \"$((1 + 1))\"\nE") == "'x' \"2\""
                assert "not found" in await terminal.run_command("-x")
                assert "syntax error" in await terminal.run_command("echo }; }; echo {")
                assert await terminal.run_command("(exit 3); echo $?; false") == "3"
                assert terminal.last_exit_code == 1
                assert await terminal.run_command("echo out; echo err >&2; echo out") == "out\nerr\nout"

    in_sandbox(story)


def test_packages_are_installed_without_a_network_too() -> None:
    async def story(made: DockerSandbox) -> None:
        await made.write_file("hollow-1.0/hollow.py", "n = 7")
        await made.write_file(
            "hollow-1.0/hollow-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: hollow\nVersion: 1.0\n"
        )
        await made.write_file(
            "hollow-1.0/hollow-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        await made.write_file("hollow-1.0/hollow-1.0.dist-info/RECORD", "")
        await made.run_command("cd hollow-1.0 && python3 -m zipfile -c ../hollow-1.0-py3-none-any.whl *; cd ..")
        told = await made.run_command("python3 -m pip install ./hollow-1.0-py3-none-any.whl")
        assert await made.run_command("python3 -c 'import hollow; print(hollow.n)'") == "7", told

    in_sandbox(story)


def test_timeouts_end_and_are_told() -> None:
    async def story(made: DockerSandbox) -> None:
        began = time.monotonic()
        with pytest.raises(SandboxTimeoutError, match="1 second"):
            await made.run_command("sleep 100", timeout=1)
        assert time.monotonic() - began < 30
        assert await made.run_command("pgrep sleep || echo gone") == "gone"
        assert await made.run_command("echo again") == "again"

    in_sandbox(story)
    with pytest.raises(SandboxTimeoutError):
        in_sandbox(lambda made: made.run_command("sleep 100"), SandboxSettings(memory_limit="128m", timeout=1))


def test_memory_is_limited() -> None:
    async def story(made: DockerSandbox) -> None:
        with pytest.raises(SandboxResourceError):
            await made.run_command("python3 -c 'x = bytearray(300 << 20); print(len(x))'")
        assert await made.run_command("echo again") == "again"

    in_sandbox(story)


def test_what_the_document_says_of_isolation() -> None:
    async def story(made: DockerSandbox) -> None:
        assert "unreachable" in await made.run_command(
            "python3 -c 'import socket; socket.create_connection((\"192.0.2.1\", 80), 1)' 2>/dev/null || echo unreachable"
        )
        assert await made.run_command("touch /usr/x 2>/dev/null || echo read-only") == "read-only"
        assert await made.run_command("cat /etc/shadow 2>/dev/null || echo none") == "none"
        assert await made.run_command("grep CapEff /proc/self/status | cut -f2") == "0000000000000000"

    in_sandbox(story)


def test_network() -> None:
    # An address that is nobody's: the daemon's gateway answers that it may not be reached, and without a network nobody does.
    command = "python3 -c 'import urllib.request as u; u.urlopen(\"http://192.0.2.1\")' 2>&1 | tail -1"
    open_network = SandboxSettings(memory_limit="128m", network_enabled=True)
    assert "403" in in_sandbox(lambda made: made.run_command(command), open_network)
    closed = in_sandbox(lambda made: made.run_command(command))
    assert "urlopen error" in closed and "403" not in closed


def test_files() -> None:
    async def story(made: DockerSandbox) -> None:
        await made.write_file("/workspace/test.txt", "Hello, World!\n")
        assert await made.read_file("/workspace/test.txt") == "Hello, World!\n"
        assert await made.read_file("test.txt") == "Hello, World!\n"
        await made.write_file("nested/deep/file.txt", "ä")
        assert await made.run_command("cat nested/deep/file.txt") == "ä"
        await made.write_file("/tmp/x.txt", "elsewhere")
        assert await made.read_file("/tmp/x.txt") == "elsewhere"
        with pytest.raises(FileNotFoundError, match="not found"):
            await made.read_file("/nonexistent.txt")
        with pytest.raises(FileNotFoundError):
            await made.read_file("nothing.txt")
        with pytest.raises(RuntimeError):
            await made.write_file("/usr/x", "no")

    in_sandbox(story)


@pytest.mark.parametrize("path", ["../x", "/workspace/../etc/passwd", "a/../../b", ".."])
def test_paths_do_not_climb(path: str, tmp_path: Path) -> None:
    async def story(made: DockerSandbox) -> None:
        here = tmp_path / "here"
        here.write_text("x")
        for attempt in (
            made.read_file(path),
            made.write_file(path, "x"),
            made.copy_from(path, str(tmp_path / "there")),
            made.copy_to(str(here), path),
        ):
            with pytest.raises((ValueError, RuntimeError), match=r"\.\.") as raised:
                await attempt
            assert isinstance(raised.value, ValueError) and isinstance(raised.value, RuntimeError)
        assert not (tmp_path / "there").exists()

    in_sandbox(story)


def test_links_do_not_lead_out(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host")

    async def story(made: DockerSandbox) -> None:
        await made.run_command(f"ln -s {secret} link; ln -s / root; mkdir d; ln -s {tmp_path} d/out")
        with pytest.raises((FileNotFoundError, RuntimeError)):
            await made.read_file("link")
        with pytest.raises((FileNotFoundError, RuntimeError)):
            await made.read_file(f"root{secret}")
        await made.copy_from("d", str(tmp_path / "copied"))
        assert not (tmp_path / "copied" / "out").exists()
        assert secret.read_text() == "of the host"

    in_sandbox(story)


def test_directories_larger_than_they_are_stay_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_copying, "_MOST_ARCHIVE", 8 << 20)

    async def story(made: DockerSandbox) -> None:
        await made.run_command("mkdir holes && for i in $(seq 20); do truncate -s 100M holes/$i; done")
        with pytest.raises(RuntimeError, match="one by one"):
            await made.copy_from("holes", str(tmp_path / "out"))

    in_sandbox(story)


def test_copies(tmp_path: Path) -> None:
    async def story(made: DockerSandbox) -> None:
        source = tmp_path / "source.bin"
        source.write_bytes(b"\xff\x00 bytes")
        await made.copy_to(str(source), "/workspace/in/copied.bin")
        await made.copy_from("/workspace/in/copied.bin", str(tmp_path / "back" / "again.bin"))
        assert (tmp_path / "back" / "again.bin").read_bytes() == b"\xff\x00 bytes"
        tree = tmp_path / "tree"
        (tree / "sub").mkdir(parents=True)
        (tree / "a.txt").write_text("a")
        (tree / "sub" / "b.txt").write_text("b")
        (tree / "sub" / "link").symlink_to("/etc/passwd")
        await made.copy_to(str(tree), "tree")
        assert await made.run_command("cd tree && find . -type f | sort") == "./a.txt\n./sub/b.txt"
        (tree / "empty" / "more").mkdir(parents=True)
        (tree / "away").symlink_to("/etc")
        for place in ("tree", "/tmp/tree"):
            await made.copy_to(str(tree), place)
            assert await made.run_command(f"cd /workspace; cd {place} && find . -type d | sort") == (
                ".\n./empty\n./empty/more\n./sub"
            )
        (tmp_path / "hollow").mkdir()
        for place in ("deep/hollow", "/tmp/hollow", "."):
            await made.copy_to(str(tmp_path / "hollow"), place)
        assert await made.run_command("cd /workspace; ls -d deep/hollow /tmp/hollow") == "/tmp/hollow\ndeep/hollow"
        await made.copy_to(str(source), "into/")
        await made.copy_to(str(source), "/tmp/into/")
        await made.copy_to(str(source), ".")
        await made.copy_to(str(source), "/workspace/")
        places = "/workspace/into/source.bin /tmp/into/source.bin /workspace/source.bin"
        assert await made.run_command(f"cat {places} | wc -c") == "24"
        await made.copy_from("tree", str(tmp_path / "out"))
        assert (tmp_path / "out" / "empty" / "more").is_dir()
        assert (tmp_path / "out" / "sub" / "b.txt").read_text() == "b"
        await made.run_command("cd /workspace")
        await made.copy_to(str(source), "/tmp/x.bin")
        await made.copy_from("/tmp/x.bin", str(tmp_path / "tmp.bin"))
        assert (tmp_path / "tmp.bin").read_bytes() == b"\xff\x00 bytes"
        with pytest.raises(FileNotFoundError, match="not found"):
            await made.copy_from("/nonexistent.txt", str(tmp_path / "x"))
        with pytest.raises(FileNotFoundError):
            await made.copy_to(str(tmp_path / "nothing"), "x")

    in_sandbox(story)


def test_risky_commands_are_refused() -> None:
    async def story(made: DockerSandbox) -> None:
        for command in ("rm -rf /", "rm -rf /*", "mkfs.ext4 /dev/sda", ":(){:|:&};:", "dd if=/dev/zero of=/dev/sda"):
            with pytest.raises(ValueError, match="risky"):
                await made.run_command(command)
        await made.run_command("mkdir x && rm -rf ./x /workspace/x")

    in_sandbox(story)


def test_life() -> None:
    async def story() -> None:
        made = DockerSandbox(SMALL)
        assert made.config is SMALL and made.volume_bindings == {}
        with pytest.raises(RuntimeError, match="not initialized"):
            await made.run_command("true")
        with pytest.raises(RuntimeError, match="not initialized"):
            await made.read_file("x")
        assert await made.create() is made
        container = made.container
        assert container is not None and container.id and made.client is not None
        # A second one is in its place, not beside it.
        await made.create()
        assert made.container is not None and made.container.id != container.id
        with pytest.raises(NotFound):
            await AsyncSandbox.attach(container.id).info()
        await made.cleanup()
        await made.cleanup()
        assert made.container is None and made.terminal is None
        with pytest.raises(RuntimeError):
            await made.run_command("true")
        with pytest.raises(RuntimeError):
            await DockerSandbox(SandboxSettings(work_dir="/usr/x")).create()
        assert (await DockerSandbox().create()).config == SandboxSettings()

    run(story())


def test_work_dir() -> None:
    async def story(made: DockerSandbox) -> None:
        assert await made.run_command("pwd") == "/data"
        await made.write_file("a.txt", "a")
        assert await made.read_file("/data/a.txt") == "a"

    in_sandbox(story, SandboxSettings(work_dir="/data", memory_limit="128m"))


def test_volumes_outside_of_what_is_allowed_are_refused(tmp_path: Path) -> None:
    async def story() -> None:
        with pytest.raises(RuntimeError, match="allow"):
            await DockerSandbox(SMALL, {"/etc": "/data"}).create()

    run(story())


def test_volumes(allowed: Path) -> None:
    (allowed / "in.txt").write_text("Volume test")
    writable = allowed / "writable"
    writable.mkdir(mode=0o777)
    writable.chmod(0o777)

    async def story() -> None:
        bindings = {str(allowed): "/data", str(writable): "/out:rw"}
        async with DockerSandbox(SMALL, bindings) as made:
            assert await made.read_file("/data/in.txt") == "Volume test"
            assert await made.run_command("touch /data/x 2>/dev/null || echo read-only") == "read-only"
            await made.run_command("echo out > /out/o.txt")

    run(story())
    assert (writable / "o.txt").read_text() == "out\n"


def test_terminal() -> None:
    async def story(made: DockerSandbox) -> None:
        assert made.container is not None
        async with AsyncDockerizedTerminal(
            made.container, working_dir="/tmp", env_vars={"TEST_VAR": "test_value"}, default_timeout=5
        ) as terminal:
            assert await terminal.run_command("echo $TEST_VAR") == "test_value"
            assert await terminal.run_command("pwd") == "/tmp"
            with pytest.raises(TimeoutError):
                await terminal.run_command("sleep 60")
            assert await terminal.run_command("echo $TEST_VAR; pwd") == "test_value\n/tmp"
        # By its id, and beside the sandbox's own.
        other = AsyncDockerizedTerminal(made.container.id)
        await other.init()
        assert other.session is not None
        assert await other.run_command("pwd") == "/workspace"
        await other.close()
        with pytest.raises(RuntimeError):
            await other.run_command("pwd")
        assert await made.run_command("pwd") == "/workspace"

    in_sandbox(story)


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
