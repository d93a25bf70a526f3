"""The orchestrator's ``SandboxEnvironment``, ``ResourceLimits`` and ``ProgrammaticToolExecutor``.

Change ``from orchestrator import …`` to ``from belljar.compat.orchestrator import …``.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import functools
import inspect
import math
import re
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from .. import AsyncSandbox, Result
from ..errors import InvalidRequest, NotFound, from_result
from ._names import also
from ._outcome import asked
from ._place import cores, place
from ._switch import switch

__all__ = [
    "ExecutionResult",
    "Logs",
    "ProgrammaticToolExecutor",
    "ResourceLimits",
    "SandboxEnvironment",
    "SandboxExecutionError",
    "SandboxSecurityError",
]

_SAFE = ["safe"]
"""The daemon's name for modules that reach nothing outside of the interpreter."""
_BLOCKED = frozenset({"os", "sys", "subprocess", "socket", "requests"})
_LOG_CHARS = 1_000_000
# What would end the caller's own program, or be mistaken by its event loop, does not leave the sandbox.
_NOT_RAISED = frozenset({"StopIteration", "StopAsyncIteration", "ExceptionGroup"})
_WHOLE = ("max_memory_mb", "max_tool_calls", "max_concurrent")


class SandboxSecurityError(Exception):
    """The code asks for something that it may not have."""


class SandboxExecutionError(RuntimeError):
    """The code ended with an exception of a kind that only it knows, or in another way that is not a Python exception."""


def _limits(limits: ResourceLimits, given: Mapping[str, Any]) -> dict[str, Any]:
    for name in ("allow_network", "allow_file_io"):
        if name in given:
            setattr(limits, name, switch(name, given[name]))
    return {"timeout_seconds": given["max_duration"]} if "max_duration" in given else {}


@also(_limits, "max_duration", "allow_network", "allow_file_io")
@dataclass
class ResourceLimits:
    """What code may use. ``max_cpu_percent`` is of one core.

    ``max_concurrent`` is how many calls of functions of the caller may be open at once, ``max_tool_calls`` how many one
    execution may make. ``max_total_cost_usd`` bounds the sum over functions that have an attribute ``cost_usd``.
    ``max_duration`` is accepted for ``timeout_seconds``, ``allow_file_io`` is what ``filesystem_access`` is elsewhere, and
    ``allow_network`` lets code reach public addresses.
    """

    allow_network = False
    allow_file_io = False

    max_memory_mb: int = 512
    max_cpu_percent: float = 50.0
    timeout_seconds: float = 30
    max_tool_calls: int = 100
    max_concurrent: int = 5
    max_total_cost_usd: float = 10.0

    def __post_init__(self) -> None:
        for name, least in (
            ("max_memory_mb", 4),
            ("max_cpu_percent", 1),
            ("timeout_seconds", 0.001),
            ("max_tool_calls", 0),
            ("max_concurrent", 1),
            ("max_total_cost_usd", 0),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ValueError(f"{name}: {value!r} is not accepted; give a number")
            if not value >= least:
                raise ValueError(f"{name}: {value!r} is not accepted; give at least {least}")
            if not math.isfinite(value) and name != "max_total_cost_usd":
                raise ValueError(f"{name}: {value!r} is not accepted; give a number that has an end")
            if isinstance(value, float) and name in _WHOLE:
                if value.is_integer():
                    setattr(self, name, int(value))
                elif name != "max_memory_mb":
                    raise ValueError(f"{name}: {value!r} is not accepted; give a whole number")


class Logs(str):
    """What was printed: standard output, then standard error; each by itself as ``stdout`` and ``stderr``, or by that key."""

    stdout: str
    stderr: str

    def __new__(cls, stdout: str, stderr: str) -> Logs:
        made = super().__new__(cls, stdout + stderr)
        made.stdout, made.stderr = stdout, stderr
        return made

    def __getitem__(self, key: Any) -> str:
        if key in ("stdout", "stderr"):
            return self.stdout if key == "stdout" else self.stderr
        return super().__getitem__(key)


@dataclass
class ExecutionResult:
    """What :meth:`SandboxEnvironment.execute` tells."""

    success: bool
    output: Any = None
    stdout: str = ""
    stderr: str = ""
    duration: float = 0.0
    error: str | None = None
    error_type: str | None = None


class _Reset:
    """Done when it is awaited, else before the next execution."""

    def __init__(self, environment: SandboxEnvironment) -> None:
        self._environment = environment

    def __await__(self) -> Generator[Any, None, None]:
        return self._environment._refresh().__await__()


def _modules(_: SandboxEnvironment, given: Mapping[str, Any]) -> dict[str, Any]:
    modules = given["allowed_modules"]
    return {"allowed_imports": None if modules is None else [*_SAFE, *modules]}


@also(_modules, "allowed_modules")
class SandboxEnvironment:
    """Executes Python code that keeps its state from call to call, until :meth:`reset`.

    Without ``allowed_imports`` code may import what reaches nothing outside: ``json``, ``math``, ``datetime``,
    ``asyncio``, ``typing`` and their like; ``allowed_modules`` are others besides. Without ``filesystem_access`` it can open no files.
    """

    def __init__(
        self,
        limits: ResourceLimits | None = None,
        allowed_imports: list[str] | None = None,
        filesystem_access: bool = False,
    ) -> None:
        self.limits = limits or ResourceLimits()
        self.allowed_imports = allowed_imports
        self.filesystem_access = switch("filesystem_access", filesystem_access) or self.limits.allow_file_io
        self.result: Result | None = None
        """How the last execution ended, in all detail."""
        self._sandbox: AsyncSandbox | None = None
        self._stale = False
        self._functions: dict[str, Callable[..., Any]] = {}
        self._stdout = self._stderr = ""

    async def execute_code(self, code: str, globals_dict: dict[str, Any] | None = None) -> Any:
        """What the code returns at top level, or the value of its last expression.

        ``globals_dict`` has data, which is copied in, functions, which are called here, in the caller's process, and modules,
        which are imported inside if code may do that. What the code raises is raised here if Python itself has an exception of
        that name; else it is :class:`SandboxExecutionError`. So is it, once, if the sandbox was gone with its state: after an
        hour in which nobody used it, for example.
        """
        result = await self._run(code, globals_dict or {})
        if not result.success:
            raise self._exception(result) from from_result(result)
        return _returned(result)

    async def execute(self, code: str, context: dict[str, Any] | None = None) -> ExecutionResult:
        """The same without raising anything that the code did.

        Code that returns nothing has as its ``output`` what its variable ``result`` is, if it sets one, or what its
        ``async def __main__()`` returns.
        """
        began = time.monotonic()
        try:
            result = await self._run(asked(code) if isinstance(code, str) else code, context or {})
        except SandboxExecutionError as gone:
            return ExecutionResult(
                False, duration=time.monotonic() - began, error=str(gone), error_type=type(gone).__name__
            )
        told = ExecutionResult(result.success, result.value, result.stdout, result.stderr, time.monotonic() - began)
        if result.success:
            try:
                _returned(result)
            except SandboxExecutionError as large:
                told.success, told.error, told.error_type = False, str(large), type(large).__name__
        else:
            raised = self._exception(result)
            told.error = str(raised)
            told.error_type = result.error.type if result.error is not None else type(raised).__name__
        return told

    def validate_code(self, code: str) -> None:
        """:class:`SandboxSecurityError` for imports, as they are usually written, that would be refused."""
        for module in re.findall(r"^[ \t]*(?:from|import)[ \t]+([\w.]+)", code, re.MULTILINE):
            top = module.partition(".")[0]
            allowed = self.allowed_imports
            listed = allowed is not None and top in {name.partition(".")[0] for name in allowed}
            if not listed and ((allowed is not None and _SAFE[0] not in allowed) or top in _BLOCKED):
                raise SandboxSecurityError(f"Import '{top}' not allowed")

    def reset(self) -> _Reset:
        """Forgets variables, files and logs. It may be awaited, and need not be."""
        self._stale = self._sandbox is not None
        self._functions.clear()
        self._stdout = self._stderr = ""
        return _Reset(self)

    def get_logs(self) -> Logs:
        """What has been printed since the last :meth:`reset`; of very much the end."""
        return Logs(self._stdout, self._stderr)

    async def aclose(self) -> None:
        """Ends the sandbox. It happens by itself when the program ends."""
        sandbox, self._sandbox = self._sandbox, None
        self._stale = False
        self._functions.clear()
        if sandbox is not None:
            await sandbox.aclose()

    async def __aenter__(self) -> SandboxEnvironment:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _refresh(self) -> None:
        if self._stale and self._sandbox is not None:
            self._stale = False
            try:
                await self._sandbox.reset()
            except NotFound:
                # Nothing of it was to be kept: the next execution has a new one.
                await self._forget()

    async def _forget(self) -> None:
        """Lets go of a sandbox that is gone, and of what was known there."""
        sandbox, self._sandbox = self._sandbox, None
        self._functions.clear()
        if sandbox is not None:
            await sandbox.aclose()

    async def _run(self, code: str, given: Mapping[str, Any]) -> Result:
        await self._refresh()
        if self._sandbox is None:
            limits = self.limits
            self._sandbox = AsyncSandbox(
                language="python",
                memory=int(limits.max_memory_mb * 2**20),
                cpus=cores(limits.max_cpu_percent / 100),
                timeout=limits.timeout_seconds,
                **self._alone(),
                imports=_SAFE if self.allowed_imports is None else list(self.allowed_imports),
                filesystem="workspace" if self.filesystem_access else "none",
                max_tool_calls=limits.max_tool_calls,
                network="all" if limits.allow_network else "none",
                **place(None),
            )
        modules = {name: value.__name__ for name, value in given.items() if _is_importable(name, value)}
        given = {name: value for name, value in given.items() if name not in modules}
        data = {name: value for name, value in given.items() if not callable(value)}
        functions = {name: one for name, one in self._functions.items() if name not in data}
        functions |= {name: value for name, value in given.items() if callable(value)}
        known, self._functions = self._functions, functions
        if isinstance(code, str) and not code.strip():
            code = "pass"  # nothing to do is no mistake, and what was given is there for the next one
        try:
            tools = _Counter(self.limits).around(functions)
            if modules:
                lines = [f"import {module} as {name}" for name, module in modules.items()]
                self.result = await self._sandbox.run("\n".join(lines))
                if not self.result.success:
                    return self.result
            self.result = await self._sandbox.run(code, globals=data, tools=tools)
        except NotFound as problem:
            await self._forget()
            raise SandboxExecutionError(
                "the sandbox was gone, and its variables with it; the next execution has a new one"
            ) from problem
        except InvalidRequest as problem:
            self._functions = known  # nothing was executed, and the next one may be right
            if "globals" in str(problem):
                raise TypeError(str(problem)) from None
            raise
        self._stdout = (self._stdout + self.result.stdout)[-_LOG_CHARS:]
        self._stderr = (self._stderr + self.result.stderr)[-_LOG_CHARS:]
        return self.result

    def _alone(self) -> dict[str, Any]:
        """What keeps other programs from being started."""
        if not self.filesystem_access:
            # None can be opened. These are itself, and the threads of asyncio.
            return {"processes": _PROCESSES}
        # Threads are processes too for the kernel; libraries that would start some at once are told not to.
        return {"processes": 1, "env": _ONE_THREAD}

    def _exception(self, result: Result) -> Exception:
        if result.timed_out:
            return TimeoutError(f"Code exceeded {self.limits.timeout_seconds} second timeout")
        if result.status == "out_of_memory":
            return MemoryError(f"Code exceeded {self.limits.max_memory_mb}MB memory limit")
        if result.error is not None:
            return _raised(result.error.type, result.error.message)
        if result.signal is not None:
            return SandboxExecutionError(f"the code was ended by signal {result.signal}")
        return SandboxExecutionError(f"the code exited with {result.exit_code}")


_PROCESSES = 16
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_LONGEST_TEXT = 128 << 10


def _is_importable(name: object, value: object) -> bool:
    """Whether it is a module that has the same name elsewhere, and can have this one."""
    if not isinstance(value, ModuleType) or not isinstance(name, str) or value.__name__ == "__main__":
        return False
    return all(part.isidentifier() for part in (name, *value.__name__.split(".")))


def _returned(result: Result) -> Any:
    """The value; of one that has no JSON form its text."""
    if result.value is not None:
        return result.value
    # The daemon leaves out values with more than a mebibyte of JSON, and cuts their texts, which are shorter at most by a few times.
    if result.value_text is not None and len(result.value_text) > _LONGEST_TEXT:
        raise SandboxExecutionError(
            "the value is too large: what comes back has at most 1 MiB as JSON; return less of it, or print it"
        )
    return result.value_text


def _raised(name: str, message: str) -> Exception:
    """The exception of Python's own with this name. Both are words of the code, and made into nothing else."""
    kind = getattr(builtins, name, None) if name not in _NOT_RAISED else None
    if isinstance(kind, type) and issubclass(kind, Exception):
        for arguments in (_arguments(kind, message), (message,)):
            try:
                made = kind(*arguments)
            except TypeError:
                continue  # it wants something else
            if str(made) == message or arguments == (message,):
                return made
    return SandboxExecutionError(f"{name}: {message}" if message else name)


# The message is the code's: none of these takes long over any.
_ERRNO = re.compile(r"\[Errno (\d{1,9})\] ")
_QUOTED = r"""b?(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_NAMES = re.compile(rf": ({_QUOTED})(?: -> ({_QUOTED}))?\Z", re.DOTALL)
_KEY = re.compile(rf"{_QUOTED}|-?\d+(?:\.\d+)?|None|True|False|\([^()]{{0,500}}\)", re.DOTALL)
_LONGEST = 10_000


def _arguments(kind: type[Exception], message: str) -> tuple[Any, ...]:
    """What an exception was made of whose text is more than that."""
    try:
        if len(message) > _LONGEST:
            return (message,)
        if kind is KeyError and _KEY.fullmatch(message):
            return (ast.literal_eval(message),)
        if issubclass(kind, OSError) and (number := _ERRNO.match(message)) is not None:
            ending = _NAMES.search(message, number.end())
            text = message[number.end() : ending.start() if ending else None]
            names = [ast.literal_eval(name) for name in ending.groups() if name is not None] if ending else []
            if len(names) == 2:
                names.insert(1, None)  # between the two is an argument that only Windows has
            return (int(number[1]), text, *names)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        pass
    return (message,)


class _Counter:
    """Holds functions to what limits say about calls."""

    def __init__(self, limits: ResourceLimits, calls: list[dict[str, Any]] | None = None) -> None:
        self._limits = limits
        self._calls = calls
        self._cost = 0.0
        self._lock = threading.Lock()
        self._blocking = threading.BoundedSemaphore(limits.max_concurrent)
        self._waiting = asyncio.Semaphore(limits.max_concurrent)
        self._loop = asyncio.get_running_loop()

    def around(self, functions: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
        return {name: self._one(name, function) for name, function in functions.items()}

    def _one(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                self._count(name, function, args, kwargs)
                async with self._waiting:
                    return await function(*args, **kwargs)

            return awaited

        @functools.wraps(function, updated=())
        def called(*args: Any, **kwargs: Any) -> Any:
            self._count(name, function, args, kwargs)
            with self._blocking:
                returned = function(*args, **kwargs)
                if inspect.iscoroutine(returned):
                    # Of a lambda nobody could know that before. It is called beside the event loop that is to run this.
                    return asyncio.run_coroutine_threadsafe(returned, self._loop).result()
                return returned

        return called

    def _count(self, name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        with self._lock:
            self._cost += float(getattr(function, "cost_usd", 0.0))
            most = self._limits.max_total_cost_usd
            if self._cost > most:
                raise RuntimeError(f"the calls of this execution would cost more than {most} USD")
            if self._calls is not None:
                self._calls.append({"tool": name, "args": list(args), "kwargs": kwargs, "timestamp": time.time()})


class ProgrammaticToolExecutor:
    """Executes code that calls the functions of a catalog.

    ``enable_stubs`` and ``stub_dir`` are accepted: code sees the functions' signatures and documentation without stubs.
    Of ``timeout`` and ``max_tool_calls`` and what ``sandbox_limits`` says of them, the lower one holds; a default says nothing.
    """

    def __init__(
        self,
        tool_catalog: Mapping[str, Callable[..., Any]],
        timeout: float = 30,
        max_tool_calls: int = 100,
        logger: Any = None,
        enable_stubs: bool = True,
        stub_dir: Any = None,
        use_sandbox: bool = True,
        sandbox_limits: ResourceLimits | None = None,
    ) -> None:
        if not switch("use_sandbox", use_sandbox):
            raise ValueError("use_sandbox=False is not accepted: code is never executed in the caller's process")
        self.tool_catalog = dict(tool_catalog)
        self.timeout = timeout
        self.max_tool_calls = max_tool_calls
        self.logger = logger
        self.enable_stubs = enable_stubs
        self.stub_dir = stub_dir
        self.use_sandbox = use_sandbox
        limits = ResourceLimits(timeout_seconds=timeout, max_tool_calls=max_tool_calls)
        if sandbox_limits is not None:
            limits = replace(
                sandbox_limits,
                timeout_seconds=_lower(limits.timeout_seconds, sandbox_limits.timeout_seconds, 30),
                max_tool_calls=int(_lower(limits.max_tool_calls, sandbox_limits.max_tool_calls, 100)),
                **{name: getattr(sandbox_limits, name) for name in ("allow_network", "allow_file_io")},
            )
        self.environment = SandboxEnvironment(limits)

    async def execute(self, code: str, context: dict[str, Any] | None = None) -> dict[str, Any]:
        """``output`` that was printed, the ``result``, the ``tool_calls``, the ``execution_time`` and the ``error``, if any."""
        calls: list[dict[str, Any]] = []
        counter = _Counter(self.environment.limits, calls)
        told = await self.environment.execute(code, {**(context or {}), **counter.around(self.tool_catalog)})
        error = f"{told.error_type}: {told.error}" if told.error_type else None
        if self.logger is not None and error is not None:
            self.logger.warning(error)
        return {
            "output": told.stdout,
            "result": told.output,
            "tool_calls": calls,
            "execution_time": told.duration,
            "error": error,
        }

    async def aclose(self) -> None:
        """Ends the sandbox."""
        await self.environment.aclose()


def _lower(one: float, other: float, default: float) -> float:
    return min((value for value in (one, other) if value != default), default=default)
