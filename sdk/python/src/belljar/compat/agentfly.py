"""AgentFly's ``PythonSandboxEnv``, and pools of such environments.

Change ``from agentfly.envs.python_env import …`` to ``from belljar.compat.agentfly import …``.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from .. import AsyncSandbox, Result, Sandbox
from ..errors import BelljarError, NotFound, Unavailable
from ._place import RUNTIME, cores, place

__all__ = ["PythonSandboxEnv", "WarmPool"]

_IMAGE = "reasonwang/python-http-env:latest"
_PROCESSES = 256
_OUTPUT_CHARS = 16_384
_ERROR_CHARS = 8_192
_LOG_CHARS = 65_536
_ROOMY = 8 << 30


class PythonSandboxEnv:
    """A Python whose variables persist from step to step, until it is reset.

    The ``image`` that is the default stands for the host's own Python, unless ``BELLJAR_BACKEND=docker`` asks for Docker;
    ``None`` stands for it in any case, and any other image is used. A ``runtime`` other than ``runc`` is Docker's, and has the
    environment made by Docker.

    What code inside serves at ``container_port`` is at ``base_url``, a free port of ``host_ip``, if the daemon's settings open that
    address (``network.publish``; none by default, and then ``base_url`` is None). :meth:`step` itself needs no port.
    """

    step_timeout: ClassVar[float] = 10.0
    """Seconds that one step may take."""
    pool_size: ClassVar[int] = 1
    """How many environments :meth:`acquire` keeps ready."""

    def __init__(
        self,
        image: str | None = _IMAGE,
        runtime: str = RUNTIME,
        cpu: float = 2,
        mem: str = "2g",
        start_timeout: float = 60.0,
        max_episodes: int = 100,
        host_ip: str = "127.0.0.1",
        container_port: int = 8000,
    ) -> None:
        if max_episodes < 1:
            raise ValueError(f"max_episodes: {max_episodes} is not accepted; give at least 1")
        if not 0 < container_port < 65_536:
            raise ValueError(f"container_port: {container_port} is not accepted; give a port from 1 to 65535")
        self.image = image
        self.runtime = runtime
        self.cpu = cpu
        self.mem = mem
        self.start_timeout = start_timeout
        self.max_episodes = max_episodes
        self.host_ip = host_ip
        self.container_port = container_port
        self.sandbox: AsyncSandbox | None = None
        """What it runs in, once it is started."""
        self.host_port: int | None = None
        """Where ``container_port`` is on the host, if the daemon opens it."""
        self._episodes = 0
        self._logs = ""

    @property
    def container_id(self) -> str | None:
        """The sandbox's id, while it is started."""
        return self.sandbox.id if self.sandbox is not None else None

    async def start(self) -> None:
        """Makes the sandbox, if there is none."""
        if self.sandbox is not None:
            return
        try:
            sandbox = await self._within(self._opened())
        except Unavailable:
            # Those that wait in the pool hold room that is needed here.
            if not await self.pool().drain():
                raise
            sandbox = await self._within(self._opened())
        self.sandbox = sandbox
        self._episodes = 1

    async def _opened(self) -> AsyncSandbox:
        options: dict[str, Any] = {
            "language": "python",
            "memory": self.mem,
            "cpus": cores(self.cpu),
            "processes": _PROCESSES,
            "max_output": _OUTPUT_CHARS * 4,
            **self._place(),
        }
        self.host_port = None
        address = (os.environ.get("BELLJAR_URL"), self.host_ip)
        if address not in _not_open:
            host = f"[{self.host_ip}]" if ":" in self.host_ip else self.host_ip
            try:
                # Code cannot listen without a network; this one leads nowhere.
                opened = AsyncSandbox(network=[], publish=[f"{host}:0:{self.container_port}"], **options)
                await opened.start()
                (published,) = (await opened.info()).published
                self.host_port = int(published.rpartition(":")[0].rpartition(":")[2])
                return opened
            except BelljarError as problem:
                if "publish" not in str(problem):
                    raise
                _not_open.add(address)
        return await AsyncSandbox(**options).start()

    @property
    def base_url(self) -> str | None:
        """Where the host has what is served at ``container_port`` inside, if the daemon opens it."""
        host = f"[{self.host_ip}]" if ":" in self.host_ip else self.host_ip
        return f"http://{host}:{self.host_port}" if self.host_port is not None else None

    def _place(self) -> dict[str, Any]:
        if self.image is None and self.runtime == RUNTIME:
            return {"backend": "native"}
        return place(self.image, _IMAGE, self.runtime)

    async def reset(self, env_args: Mapping[str, Any] | None = None) -> str:
        """Begins another episode: variables and files are gone. After ``max_episodes`` of them the sandbox is replaced."""
        sandbox = self._started()
        if self._episodes >= self.max_episodes:
            await self._replace()
            return ""
        try:
            await sandbox.reset()
        except NotFound:
            await self._replace()
            return ""
        self._episodes += 1
        return ""

    async def step(self, code: str) -> str:
        """What the code printed. If it failed, that and the exception, as text.

        Code that does not end is stopped, and ``TimeoutError`` raised; ``MemoryError`` if it needed more than there is. The
        next step works in any case; variables are gone if the interpreter had to be killed.
        """
        sandbox = self._started()
        if isinstance(code, str) and not code.strip():
            return ""
        try:
            result = await sandbox.run(code, timeout=self.step_timeout)
        except NotFound as problem:
            await self._replace()
            raise RuntimeError("the sandbox was gone, and has been replaced; its variables are gone too") from problem
        self._logs = (self._logs + result.stdout + result.stderr)[-_LOG_CHARS:]
        if result.timed_out:
            raise TimeoutError(f"Execution timed out after {self.step_timeout:g} s")
        if result.status == "out_of_memory":
            raise MemoryError(f"Execution needed more memory than {self.mem}")
        if result.success:
            return result.stdout.removesuffix("\n")[:_OUTPUT_CHARS]
        return result.stdout[:_OUTPUT_CHARS] + _error(result, code)[-_ERROR_CHARS:]

    async def aclose(self) -> None:
        """Ends it. It may be started again."""
        sandbox, self.sandbox = self.sandbox, None
        if sandbox is not None:
            await sandbox.aclose()

    def close(self) -> None:
        """The same for those who cannot await."""
        sandbox, self.sandbox = self.sandbox, None
        if sandbox is not None:
            Sandbox.attach(sandbox.id).delete()

    @staticmethod
    async def acquire() -> PythonSandboxEnv:
        """An environment with the default settings that has been started ahead of time. It is the caller's, to be closed."""
        return await PythonSandboxEnv.pool().take()

    @staticmethod
    def pool() -> WarmPool[PythonSandboxEnv]:
        """What :meth:`acquire` takes from: one for the whole process."""
        process = os.getpid()
        if process not in _pools:
            # A child that was forked must not take what is its parent's.
            _pools.clear()
            _pools[process] = WarmPool(_made, PythonSandboxEnv.pool_size)
        return _pools[process]

    def get_container_logs(self) -> str:
        """What all steps have printed; of very much the end."""
        return self._logs

    async def is_there(self) -> bool:
        """Whether its sandbox is."""
        if self.sandbox is None:
            return False
        try:
            await self.sandbox.info()
        except BelljarError:
            return False
        return True

    async def _within(self, coming: Awaitable[AsyncSandbox]) -> AsyncSandbox:
        try:
            return await asyncio.wait_for(coming, self.start_timeout)
        except asyncio.TimeoutError:
            raise TimeoutError(f"the environment did not start within {self.start_timeout:g} s") from None

    def _started(self) -> AsyncSandbox:
        if self.sandbox is None:
            raise RuntimeError("the environment is not started: await start() first")
        return self.sandbox

    async def _replace(self) -> None:
        await self.aclose()
        await self.start()


_not_open: set[tuple[str | None, str]] = set()
"""Addresses that a daemon said it does not open; it is not asked again."""


async def _made() -> PythonSandboxEnv:
    env = PythonSandboxEnv()
    await env.start()
    return env


def _error(result: Result, code: str) -> str:
    error = result.error
    if error is None:
        ended = f"signal {result.signal}" if result.signal is not None else f"exit code {result.exit_code}"
        return result.stderr.removesuffix("\n") or f"the code ended with {ended}"
    if "\n" in code.strip() and error.traceback:
        return error.traceback.removesuffix("\n")
    # The traceback of a single line says nothing more.
    return f"{error.type}: {error.message}" if error.message else error.type


def _is_roomy() -> bool:
    """Whether an environment that waits leaves enough memory to others. The daemon has sandboxes ready in any case."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >= _ROOMY


class _Env(Protocol):
    async def reset(self, env_args: Mapping[str, Any] | None = None) -> str: ...

    async def aclose(self) -> None: ...

    async def is_there(self) -> bool: ...


T = TypeVar("T", bound=_Env)


class WarmPool(Generic[T]):
    """Environments made ahead of time by ``factory``, ``size`` of them.

    What is acquired is released again, and reset then, so that nobody meets what somebody else left.
    """

    def __init__(self, factory: Callable[[], Awaitable[T]], size: int) -> None:
        if size < 1:
            raise ValueError(f"size: {size} is not accepted; give at least 1")
        self._factory = factory
        self.size = size
        self.waiting: deque[T] = deque()
        """Those that nobody has."""
        self._filling: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Makes as many as are missing."""
        await self._fill(self.size - len(self.waiting))

    async def add_envs(self, size: int) -> None:
        """Makes the pool larger."""
        self.size += size
        await self._fill(size)

    async def acquire(self) -> T:
        """One that waits, else a new one. To be released."""
        while self.waiting:
            env = self.waiting.popleft()
            if await env.is_there():
                return env
        return await self._factory()

    async def take(self) -> T:
        """One to keep. Another is made in its place, in the background."""
        env = await self.acquire()
        missing = self.size - len(self.waiting) - len(self._filling) if _is_roomy() else 0
        for _ in range(missing):
            task = asyncio.ensure_future(self._refill())
            self._filling.add(task)
            task.add_done_callback(self._filling.discard)
        return env

    async def release(self, env: T, *, finished: bool = True) -> None:
        """Gives it back: reset if it is ``finished``, else as it is. More than ``size`` are not kept."""
        if finished:
            await env.reset()
        if len(self.waiting) < self.size:
            self.waiting.append(env)
        else:
            await env.aclose()

    async def reset(self, env: T) -> None:
        """Makes one that was acquired as it was when it was new."""
        await env.reset()

    async def drain(self) -> bool:
        """Ends those that wait; whether there were any."""
        waiting = list(self.waiting)
        self.waiting.clear()
        await asyncio.gather(*(env.aclose() for env in waiting))
        return bool(waiting)

    async def aclose(self) -> None:
        """Ends those that wait, and makes no more."""
        for task in list(self._filling):
            task.cancel()
        await asyncio.gather(*self._filling, return_exceptions=True)
        await self.drain()

    async def _fill(self, missing: int) -> None:
        self.waiting.extend(await asyncio.gather(*(self._factory() for _ in range(max(missing, 0)))))

    async def _refill(self) -> None:
        try:
            env = await self._factory()
        except BelljarError:
            return  # who needs one will be told why there is none
        if len(self.waiting) < self.size:
            self.waiting.append(env)
        else:
            await env.aclose()


_pools: dict[int, WarmPool[PythonSandboxEnv]] = {}
