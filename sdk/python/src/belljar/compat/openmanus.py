"""OpenManus' ``app.sandbox``, its ``SandboxSettings``, and its tools that execute Python.

Change ``from app.sandbox import …``, ``from app.config import SandboxSettings`` and ``from app.tool… import …`` to
``from belljar.compat.openmanus import …``. No Docker is needed; ``BELLJAR_BACKEND=docker`` asks for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from .. import AsyncClient, AsyncSandbox
from ..errors import BelljarError
from . import _copying, _output
from ._copying import PathTraversalError
from ._place import cores, place
from ._switch import switch
from ._terminal import (
    AsyncDockerizedTerminal,
    OwnTerminal,
    SandboxError,
    SandboxResourceError,
    SandboxTimeoutError,
)

__all__ = [
    "SANDBOX_CLIENT",
    "AsyncDockerizedTerminal",
    "BaseSandboxClient",
    "BaseTool",
    "DockerSandbox",
    "LocalSandboxClient",
    "NormalPythonExecute",
    "PathTraversalError",
    "PythonExecute",
    "SandboxError",
    "SandboxManager",
    "SandboxResourceError",
    "SandboxSettings",
    "SandboxTimeoutError",
    "create_sandbox_client",
]

_IMAGE = "python:3.12-slim"
_PACKAGES = "/tmp/packages"
"""Where ``pip`` puts what is installed, with a network or without: everything else belongs to the host, which forbids it."""
_IDLE, _LONGEST_IDLE = 3600.0, 10 * 365 * 86_400.0
"""Seconds after which the daemon gives up a sandbox that nobody used: if it is not told otherwise, and at most."""
_NOT_READY = "Sandbox not initialized"
_PATIENCE = 5.0
"""Seconds that a sandbox which is to be deleted waits for what goes on in it."""


@dataclass
class SandboxSettings:
    """What a sandbox is like. The default ``image`` stands for the host's own Python; any other is used."""

    use_sandbox: bool = False
    image: str = _IMAGE
    work_dir: str = "/workspace"
    memory_limit: str = "512m"
    cpu_limit: float = 1.0
    timeout: int = 300
    network_enabled: bool = False

    def __post_init__(self) -> None:
        self.use_sandbox = switch("use_sandbox", self.use_sandbox)
        self.network_enabled = switch("network_enabled", self.network_enabled)
        for name, kind in (("cpu_limit", float), ("timeout", int)):
            try:
                setattr(self, name, kind(getattr(self, name)))
            except (TypeError, ValueError, OverflowError):
                raise ValueError(f"{name}: {getattr(self, name)!r} is not accepted; give a number") from None
        for name in ("image", "work_dir", "memory_limit"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name}: {getattr(self, name)!r} is not accepted; give a text")
        if not self.work_dir.startswith("/"):
            raise ValueError(f"work_dir: {self.work_dir!r} is not accepted; give an absolute path")
        if not self.memory_limit:
            raise ValueError("memory_limit: give a size like 512m")
        for name in ("cpu_limit", "timeout"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name}: {value!r} is not accepted; give more than 0")

    def model_dump(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    def model_dump_json(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> SandboxSettings:
        """The same, with some of it changed."""
        return replace(self, **(update or {}))

    def _options(self) -> dict[str, Any]:
        return {
            "memory": self.memory_limit,
            "cpus": cores(self.cpu_limit),
            "timeout": self.timeout,
            "workdir": self.work_dir,
            "env": {"PIP_TARGET": _PACKAGES, "PYTHONPATH": _PACKAGES},
            **({"network": "all"} if self.network_enabled else {}),
            **place(self.image, _IMAGE),
        }


class DockerSandbox:
    """A sandbox with a shell. ``volume_bindings`` are directories of the host and where they are inside.

    They are read-only unless the place inside ends with ``:rw``, and have to be below directories that the daemon's
    settings allow (``volumes.allowed``).
    """

    def __init__(self, config: SandboxSettings | None = None, volume_bindings: dict[str, str] | None = None) -> None:
        self.config = config or SandboxSettings()
        self.volume_bindings = dict(volume_bindings or {})
        self.client = AsyncClient()
        self.container: AsyncSandbox | None = None
        self.terminal: AsyncDockerizedTerminal | None = None
        self._idle: float | None = None

    async def create(self) -> DockerSandbox:
        """Makes it, in place of one that was there. ``RuntimeError`` if that cannot be."""
        await self.cleanup()
        volumes = [f"{source}:{inside}" for source, inside in self.volume_bindings.items()]
        options = {"idle_timeout": self._idle, **self.config._options()}
        container = self.client.sandbox(language="bash", volumes=volumes, **options)
        try:
            await container.start()
            terminal = OwnTerminal(container, self.config.work_dir, default_timeout=self.config.timeout)
            await terminal.init()
        except BaseException as problem:
            await container.aclose()
            if isinstance(problem, (BelljarError, RuntimeError)):
                raise RuntimeError(f"Failed to create sandbox: {problem}") from problem
            raise
        self.container, self.terminal = container, terminal
        return self

    async def run_command(self, cmd: str, timeout: int | None = None) -> str:
        """What a command of the shell printed. The shell keeps its directory and variables for the next one.

        :class:`SandboxTimeoutError` after ``timeout`` seconds, or those of the settings.
        """
        if self.terminal is None:
            raise RuntimeError(_NOT_READY)
        return await self.terminal.run_command(cmd, timeout)

    async def read_file(self, path: str) -> str:
        """A file, as text. ``FileNotFoundError`` if there is none."""
        with _file_errors(f"Failed to read file {path}"):
            data = await _copying.read(self._ready(), self.config.work_dir, path)
        return data.decode("utf-8", "replace")

    async def write_file(self, path: str, content: str) -> None:
        """Writes a file, and makes the directories on the way to it."""
        with _file_errors(f"Failed to write file {path}"):
            await _copying.write(self._ready(), self.config.work_dir, path, content.encode())

    async def copy_from(self, src_path: str, dst_path: str) -> None:
        """Copies a file or a directory of the sandbox to one of the host. Links are left behind."""
        with _file_errors(f"Failed to copy {src_path}"):
            await _copying.copy_out(self._ready(), self.config.work_dir, src_path, Path(dst_path))

    async def copy_to(self, src_path: str, dst_path: str) -> None:
        """Copies a file or a directory of the host into the sandbox. Links are left behind."""
        with _file_errors(f"Failed to copy {src_path}"):
            await _copying.copy_in(self._ready(), self.config.work_dir, Path(src_path), dst_path)

    async def cleanup(self) -> None:
        """Ends it, and everything in it."""
        container, self.container, self.terminal = self.container, None, None
        if container is not None:
            await container.aclose()

    async def __aenter__(self) -> DockerSandbox:
        return await self.create()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.cleanup()

    def _ready(self) -> AsyncSandbox:
        if self.container is None:
            raise RuntimeError(_NOT_READY)
        return self.container


@contextlib.contextmanager
def _file_errors(what: str) -> Any:
    try:
        yield
    except BelljarError as problem:
        raise RuntimeError(f"{what}: {problem}") from problem


class SandboxManager:
    """Keeps sandboxes: no more than ``max_sandboxes``, none that was idle for more than ``idle_timeout`` seconds, which is
    looked at every ``cleanup_interval`` seconds.
    """

    def __init__(self, max_sandboxes: int = 100, idle_timeout: float = 3600, cleanup_interval: float = 300) -> None:
        self.max_sandboxes = max_sandboxes
        self.idle_timeout = idle_timeout
        self.cleanup_interval = cleanup_interval
        self._sandboxes: dict[str, DockerSandbox] = {}
        self._last_used: dict[str, float] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._active_operations: set[str] = set()
        self._global_lock = asyncio.Lock()
        self._cleanup_task: asyncio.Task[None] | None = None
        self._is_shutting_down = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def ensure_image(self, image: str) -> bool:
        """Whether sandboxes can be made of this image."""
        if not place(image, _IMAGE):
            return True
        try:
            async with AsyncSandbox(language="bash", **place(image, _IMAGE)):
                return True
        except BelljarError:
            return False

    @contextlib.asynccontextmanager
    async def sandbox_operation(self, sandbox_id: str) -> AsyncIterator[DockerSandbox]:
        """A sandbox for as long as the block lasts, with nobody else in such a block. ``KeyError`` if it is not kept here."""
        self._settle()
        lock = self._locks.get(sandbox_id)
        if lock is None:
            raise KeyError(f"Sandbox {sandbox_id} not found")
        async with lock:
            sandbox = self._sandboxes.get(sandbox_id)
            if sandbox is None:
                raise KeyError(f"Sandbox {sandbox_id} not found")
            self._active_operations.add(sandbox_id)
            self._touch(sandbox_id)
            try:
                yield sandbox
            finally:
                self._active_operations.discard(sandbox_id)
                if sandbox_id in self._sandboxes:
                    self._touch(sandbox_id)

    async def create_sandbox(
        self, config: SandboxSettings | None = None, volume_bindings: dict[str, str] | None = None
    ) -> str:
        """The id of a new sandbox. ``RuntimeError`` if there are too many, or it cannot be made."""
        self._settle()
        async with self._global_lock:
            if self._is_shutting_down:
                raise RuntimeError("The manager has been shut down")
            if len(self._sandboxes) >= self.max_sandboxes:
                raise RuntimeError(f"Maximum number of sandboxes ({self.max_sandboxes}) reached")
            sandbox = DockerSandbox(config, volume_bindings)
            # It is the manager that ends it: the daemon does so only after that, if nobody else did.
            sandbox._idle = min(max(self.idle_timeout + self.cleanup_interval + 60, _IDLE), _LONGEST_IDLE)
            await sandbox.create()
            assert sandbox.container is not None
            sandbox_id = sandbox.container.id
            self._sandboxes[sandbox_id] = sandbox
            self._locks[sandbox_id] = asyncio.Lock()
            self._touch(sandbox_id)
        self.start_cleanup_task()
        return sandbox_id

    async def get_sandbox(self, sandbox_id: str) -> DockerSandbox:
        """A sandbox that is kept. ``KeyError`` if it is not."""
        async with self.sandbox_operation(sandbox_id) as sandbox:
            return sandbox

    def start_cleanup_task(self) -> None:
        """Begins to look for idle ones; the first sandbox does so too."""

        async def look() -> None:
            while not self._is_shutting_down:
                await asyncio.sleep(self.cleanup_interval)
                await self._cleanup_idle_sandboxes()

        self._settle()
        if self._cleanup_task is None or self._cleanup_task.done():
            self._cleanup_task = asyncio.get_running_loop().create_task(look())

    def _settle(self) -> None:
        """In an event loop that is not the one from before, which took its tasks and what waited for locks with it."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        self._loop = loop
        self._cleanup_task = None
        self._global_lock = asyncio.Lock()
        self._locks = {sandbox_id: asyncio.Lock() for sandbox_id in self._sandboxes}
        self._active_operations.clear()
        if self._sandboxes and not self._is_shutting_down:
            self.start_cleanup_task()

    async def cleanup(self) -> None:
        """Ends all of them, and makes no more."""
        self._is_shutting_down = True
        self._settle()
        if self._cleanup_task is not None:
            self._cleanup_task.cancel()
            await asyncio.gather(self._cleanup_task, return_exceptions=True)
        async with self._global_lock:
            kept = list(self._sandboxes)
        await asyncio.gather(*(self.delete_sandbox(sandbox_id) for sandbox_id in kept))
        self._locks.clear()
        self._active_operations.clear()

    async def delete_sandbox(self, sandbox_id: str) -> None:
        """Ends one, after the operation that goes on in it unless that takes long. One that is not kept is no error."""
        self._settle()
        lock = self._locks.get(sandbox_id)
        if lock is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(lock.acquire(), _PATIENCE)
                lock.release()
        sandbox = self._sandboxes.pop(sandbox_id, None)
        self._last_used.pop(sandbox_id, None)
        self._locks.pop(sandbox_id, None)
        if sandbox is not None:
            with contextlib.suppress(BelljarError):
                await sandbox.cleanup()

    def get_stats(self) -> dict[str, Any]:
        """Counts and settings."""
        return {
            "total_sandboxes": len(self._sandboxes),
            "active_operations": len(self._active_operations),
            "max_sandboxes": self.max_sandboxes,
            "idle_timeout": self.idle_timeout,
            "cleanup_interval": self.cleanup_interval,
            "is_shutting_down": self._is_shutting_down,
        }

    async def __aenter__(self) -> SandboxManager:
        self.start_cleanup_task()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.cleanup()

    def _touch(self, sandbox_id: str) -> None:
        self._last_used[sandbox_id] = asyncio.get_running_loop().time()

    async def _cleanup_idle_sandboxes(self) -> None:
        now = asyncio.get_running_loop().time()
        for sandbox_id, used in list(self._last_used.items()):
            if sandbox_id not in self._active_operations and now - used > self.idle_timeout:
                await self.delete_sandbox(sandbox_id)


class BaseSandboxClient(ABC):
    """One sandbox at a time."""

    @abstractmethod
    async def create(
        self, config: SandboxSettings | None = None, volume_bindings: dict[str, str] | None = None
    ) -> None: ...

    @abstractmethod
    async def run_command(self, command: str, timeout: int | None = None) -> str: ...

    @abstractmethod
    async def copy_from(self, container_path: str, local_path: str) -> None: ...

    @abstractmethod
    async def copy_to(self, local_path: str, container_path: str) -> None: ...

    @abstractmethod
    async def read_file(self, path: str) -> str: ...

    @abstractmethod
    async def write_file(self, path: str, content: str) -> None: ...

    @abstractmethod
    async def cleanup(self) -> None: ...


class LocalSandboxClient(BaseSandboxClient):
    """A sandbox of this machine, or of the daemon that ``BELLJAR_URL`` names."""

    def __init__(self) -> None:
        self.sandbox: DockerSandbox | None = None

    async def create(
        self, config: SandboxSettings | None = None, volume_bindings: dict[str, str] | None = None
    ) -> None:
        """Makes the sandbox, in place of one that was there."""
        await self.cleanup()
        self.sandbox = await DockerSandbox(config, volume_bindings).create()

    async def run_command(self, command: str, timeout: int | None = None) -> str:
        return await self._ready().run_command(command, timeout)

    async def copy_from(self, container_path: str, local_path: str) -> None:
        await self._ready().copy_from(container_path, local_path)

    async def copy_to(self, local_path: str, container_path: str) -> None:
        await self._ready().copy_to(local_path, container_path)

    async def read_file(self, path: str) -> str:
        return await self._ready().read_file(path)

    async def write_file(self, path: str, content: str) -> None:
        await self._ready().write_file(path, content)

    async def cleanup(self) -> None:
        sandbox, self.sandbox = self.sandbox, None
        if sandbox is not None:
            await sandbox.cleanup()

    def _ready(self) -> DockerSandbox:
        if self.sandbox is None:
            raise RuntimeError(_NOT_READY)
        return self.sandbox


def create_sandbox_client() -> LocalSandboxClient:
    """A client whose sandbox is still to be made."""
    return LocalSandboxClient()


SANDBOX_CLIENT = create_sandbox_client()


class BaseTool(ABC):
    """Something that a model may call."""

    name: str
    description: str
    parameters: dict[str, Any]

    async def __call__(self, **kwargs: Any) -> Any:
        return await self.execute(**kwargs)

    @abstractmethod
    async def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Does it."""

    def to_param(self) -> dict[str, Any]:
        """As models want to be told of it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


class PythonExecute(BaseTool):
    """Executes Python code, each time in a sandbox of its own that is like ``config`` says."""

    name = "python_execute"
    description = "Executes Python code. Only what it prints is seen; print results to see them."
    parameters: dict[str, Any] = {  # noqa: RUF012 - instances of subclasses may have their own
        "type": "object",
        "properties": {"code": {"type": "string", "description": "The Python code to execute."}},
        "required": ["code"],
    }

    def __init__(self, config: SandboxSettings | None = None) -> None:
        self.config = config or SandboxSettings()

    async def execute(self, code: str, timeout: float = 5) -> dict[str, Any]:
        """``observation`` is what was printed, and the error if there was one; ``success`` whether there was none.

        If there were charts, ``charts`` has them (``mime``, and ``data`` as base64), and ``base64_image`` the last picture.
        """
        if isinstance(code, str) and not code.strip():
            return {"observation": "", "success": True}
        try:
            async with AsyncSandbox(language="python", **self.config._options()) as sandbox:
                result = await sandbox.run(code, timeout=timeout, max_output=_output.MOST)
        except BelljarError as problem:
            return {"observation": str(problem), "success": False}
        if result.timed_out:
            return {"observation": f"Execution timeout after {timeout:g} seconds", "success": False}
        observation = _output.told(result.stdout, result.stdout_truncated)
        if result.status == "out_of_memory":
            observation += f"Execution needed more memory than {self.config.memory_limit}"
        elif not result.success:
            stderr = _output.told(result.stderr, result.stderr_truncated)
            observation += stderr or f"Execution ended with exit code {result.exit_code}"
        told: dict[str, Any] = {"observation": observation, "success": result.success}
        charts = [
            {"mime": each["mime"], "data": each["data"]}
            for each in result.raw["displays"]
            if each["mime"].startswith("image/")
        ]
        if charts:
            told |= {"charts": charts, "base64_image": charts[-1]["data"]}
        return told


class NormalPythonExecute(PythonExecute):
    """The same for the analysis of data, with what the code is for."""

    description = "Executes Python code that analyses data, writes a report on it, or does another task without charts of its own."
    parameters: dict[str, Any] = {  # noqa: RUF012
        "type": "object",
        "properties": {
            "code_type": {
                "type": "string",
                "description": "What the code is for: process data, report on what was found, or others.",
                "enum": ["process", "report", "others"],
                "default": "process",
            },
            "code": {"type": "string", "description": "The Python code to execute. It prints what is to be seen."},
        },
        "required": ["code"],
    }

    async def execute(  # type: ignore[override]
        self, code: str, code_type: str | None = None, timeout: float = 5
    ) -> dict[str, Any]:
        """As the other's; ``code_type`` is for the reader."""
        return await super().execute(code, timeout)
