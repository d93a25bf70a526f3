"""The classes that speak of Docker, with one: scripts/test-docker has it. Each proves by the image's own variable where it ran."""

from __future__ import annotations

import asyncio
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "src"))

import belljar
from belljar import daemon
from belljar.compat import agentfly, code_sandbox, codomyrmex, openmanus, orchestrator

IMAGE = os.environ.get("BELLJAR_TEST_IMAGE", "")
CODE = "import os\nprint(os.environ.get('FROM_IMAGE'))"
OTHER_NAME = "io.containerd.runc.v2"
"""Of the runtime that every Docker has, so that it is seen to have been asked for."""


@pytest.fixture(scope="session", autouse=True)
def _daemon() -> Iterator[None]:
    if not IMAGE:
        pytest.exit("run this by scripts/test-docker: it brings a Docker and BELLJAR_TEST_IMAGE", 1)
    # The names that the classes give; nothing is fetched.
    for name in ("python:3.11-slim", "python:3.12-slim", "reasonwang/python-http-env:latest"):
        subprocess.run(["docker", "tag", IMAGE, name], check=True)
    state = tempfile.mkdtemp(prefix="bj-")
    settings = pathlib.Path(state, "belljar.toml")
    settings.write_text(f'[docker]\nimage = "{IMAGE}"\npull = "never"\nruntimes = ["{OTHER_NAME}"]\n')
    environment = {**os.environ, "BELLJAR_STATE_DIR": state, "BELLJAR_CONFIG": str(settings)}
    serve = [daemon.binary(), "serve", "--listen", "", "--unix", f"{state}/b.sock"]
    with open(f"{state}/log", "wb") as log:
        process = subprocess.Popen(serve, env=environment, stdout=log, stderr=log)
    try:
        end = time.monotonic() + 60
        while not os.path.exists(f"{state}/b.sock"):
            assert process.poll() is None and time.monotonic() < end, pathlib.Path(state, "log").read_text()
            time.sleep(0.02)
        os.environ["BELLJAR_URL"] = f"unix://{state}/b.sock"
        yield
    finally:
        process.terminate()
        process.wait(60)
        shutil.rmtree(state, ignore_errors=True)


@pytest.fixture
def asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BELLJAR_BACKEND", "docker")


def test_docker_is_there_and_not_used_unless_asked_for() -> None:
    assert codomyrmex.check_docker_available() is True
    assert codomyrmex.execute_code("python", CODE)["stdout"] == "None\n"


@pytest.mark.usefixtures("asked_for")
def test_codomyrmex() -> None:
    directory, name = codomyrmex.prepare_code_file(CODE + "\nprint(input())", "python")
    try:
        stdin = codomyrmex.prepare_stdin_file("typed\n", directory)
        told = codomyrmex.run_code_in_docker("python", name, directory, stdin)
    finally:
        codomyrmex.cleanup_temp_files(directory)
    assert (told["status"], told["stdout"]) == ("success", "yes\ntyped\n"), told
    directory, name = codomyrmex.prepare_code_file("while True: pass", "python")
    try:
        told = codomyrmex.run_code_in_docker("python", name, directory, timeout=1)
    finally:
        codomyrmex.cleanup_temp_files(directory)
    assert told["status"] == "timeout"


@pytest.mark.usefixtures("asked_for")
def test_openmanus() -> None:
    async def main() -> None:
        async with openmanus.DockerSandbox(openmanus.SandboxSettings(memory_limit="256m")) as sandbox:
            assert await sandbox.run_command("echo $FROM_IMAGE; cd /tmp") == "yes"
            assert await sandbox.run_command("pwd") == "/tmp"
            await sandbox.write_file("a.txt", "text")
            assert await sandbox.read_file("a.txt") == "text"
            with pytest.raises(openmanus.SandboxTimeoutError):
                await sandbox.run_command("sleep 60", timeout=1)
        async with openmanus.SandboxManager() as manager:
            assert await manager.ensure_image(IMAGE) and not await manager.ensure_image("no-such-image:here")

    asyncio.run(main())


def test_agentfly_with_a_runtime_of_dockers() -> None:
    async def main() -> None:
        env = agentfly.PythonSandboxEnv(image=IMAGE, runtime=OTHER_NAME, cpu=1, mem="256m")
        await env.start()
        try:
            assert await env.step(CODE) == "yes"
            await env.step("x = [1]")
            assert await env.step("print(x)") == "[1]"
            await env.reset()
            assert await env.step("print(x)") == "NameError: name 'x' is not defined"
            assert env.sandbox is not None
            assert (await env.sandbox.run("1")).backend == "docker"
        finally:
            await env.aclose()
        refused = agentfly.PythonSandboxEnv(runtime="nonesuch", mem="256m")
        with pytest.raises(belljar.BelljarError, match="nonesuch"):
            await refused.start()

    asyncio.run(main())


@pytest.mark.usefixtures("asked_for")
def test_shares_reach_the_container() -> None:
    limits = code_sandbox.ResourceLimits(memory_limit="256m", cpu_shares=333)
    sandbox = code_sandbox.CodeSandbox(limits)
    running = threading.Thread(target=sandbox.execute, args=("import time; time.sleep(20)", "python"))
    running.start()
    seen = ""
    while running.is_alive() and "333" not in seen.split():
        ids = subprocess.run(["docker", "ps", "-q"], check=True, capture_output=True, text=True).stdout.split()
        if ids:
            told = ["docker", "inspect", "--format", "{{.HostConfig.CpuShares}}", *ids]
            seen = subprocess.run(told, check=False, capture_output=True, text=True).stdout
    sandbox.cleanup_all_containers()
    running.join()
    assert "333" in seen.split()


@pytest.mark.usefixtures("asked_for")
def test_the_others() -> None:
    sandbox = code_sandbox.CodeSandbox(code_sandbox.ResourceLimits(memory_limit="256m"))
    assert sandbox.execute(CODE, "python").stdout == "yes\n"

    async def main() -> None:
        for image, where in ((agentfly.PythonSandboxEnv().image, "yes"), (None, "None")):
            env = agentfly.PythonSandboxEnv(image, mem="256m", cpu=1)
            await env.start()
            assert await env.step(CODE) == where
            await env.aclose()
        async with orchestrator.SandboxEnvironment(filesystem_access=True, allowed_imports=["os"]) as environment:
            code = "import os\nreturn os.environ['FROM_IMAGE'], double(4)"
            assert await environment.execute_code(code, {"double": lambda n: 2 * n}) == ["yes", 8]

    asyncio.run(main())
