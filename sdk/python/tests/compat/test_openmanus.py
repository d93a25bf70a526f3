"""OpenManus' sandbox: all that its document names."""

from __future__ import annotations

import inspect
import json
import time
from pathlib import Path

import pytest
from reading import parameters
from stories import SMALL, in_sandbox, run

from belljar import AsyncSandbox, NotFound
from belljar.compat import _copying, _output, openmanus
from belljar.compat.openmanus import (
    AsyncDockerizedTerminal,
    BaseSandboxClient,
    DockerSandbox,
    LocalSandboxClient,
    SandboxError,
    SandboxManager,
    SandboxResourceError,
    SandboxSettings,
    SandboxTimeoutError,
)


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
    changed = settings.model_copy(update={"timeout": 5})
    assert (changed.cpu_limit, changed.timeout, settings.timeout) == (0.5, 5, 30)
    assert json.loads(changed.model_dump_json()) == changed.model_dump()
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
        await made.run_command("mkdir -p there /tmp/there")
        await made.copy_to(str(source), "there")
        await made.copy_to(str(source), "/tmp/there")
        assert await made.run_command(f"ls there /tmp/there | grep -c {source.name}") == "2"
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


def test_output_is_whole_or_says_that_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        whole = "\n".join(str(n) for n in range(1, 300_001))
        async with DockerSandbox(SMALL) as sandbox:
            assert await sandbox.run_command("seq 1 300000") == whole
            assert sandbox.container is not None
            async with AsyncDockerizedTerminal(sandbox.container) as terminal:
                assert await terminal.run_command("seq 1 300000") == whole
                monkeypatch.setattr(_output, "MOST", 1000)
                for one in (terminal, sandbox):
                    told = await one.run_command("seq 1 30000")
                    assert told.startswith("1\n2\n") and told.endswith("\n[cut: more than 1000 bytes were printed]")

    run(story())
