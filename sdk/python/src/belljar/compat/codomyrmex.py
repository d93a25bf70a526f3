"""codomyrmex's ``coding.sandbox``, ``coding.execution`` and ``coding.monitoring``.

Change ``from codomyrmex.coding.sandbox import …`` to ``from belljar.compat.codomyrmex import …``. No Docker is needed;
``BELLJAR_BACKEND=docker`` asks for it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import Result, Sandbox
from ..errors import BelljarError, NotFound
from . import _script
from ._monitoring import ExecutionMonitor, MetricsCollector, ResourceMonitor
from ._place import cores, docker_is_there, place

__all__ = [
    "DEFAULT_DOCKER_ARGS",
    "DEFAULT_TIMEOUT",
    "MAX_TIMEOUT",
    "MIN_TIMEOUT",
    "SUPPORTED_LANGUAGES",
    "ExecutionLimits",
    "ExecutionMonitor",
    "MetricsCollector",
    "ResourceMonitor",
    "check_docker_available",
    "cleanup_temp_files",
    "close_session",
    "execute_code",
    "execute_with_limits",
    "prepare_code_file",
    "prepare_stdin_file",
    "resource_limits_context",
    "run_code_in_docker",
    "sandbox_process_isolation",
    "validate_language",
    "validate_session_id",
    "validate_timeout",
]

DEFAULT_TIMEOUT = 30
MAX_TIMEOUT = 300
MIN_TIMEOUT = 1
_PROCESSES = 50
_MEGABYTE = 1 << 20
_LEAST_MEGABYTES = 4
_MOST_OUTPUT = 64 << 20

DEFAULT_DOCKER_ARGS = [
    "--network=none",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    "--read-only",
    "--memory=256m",
    "--memory-swap=256m",
    "--cpus=0.5",
    f"--pids-limit={_PROCESSES}",
]
"""What holds for every execution, as Docker would be told. Belljar's own isolation has all of it without being told."""

SUPPORTED_LANGUAGES: dict[str, dict[str, str]] = {
    "python": {"extension": "py", "image": "python:3.11-slim"},
    "javascript": {"extension": "js", "image": "node:18-slim"},
    "java": {"extension": "java", "image": "eclipse-temurin:17"},
    "cpp": {"extension": "cpp", "image": "gcc:12"},
    "c": {"extension": "c", "image": "gcc:12"},
    "go": {"extension": "go", "image": "golang:1.21"},
    "rust": {"extension": "rs", "image": "rust:1"},
    "bash": {"extension": "sh", "image": "bash:5"},
}


@dataclass
class ExecutionLimits:
    """What one execution may use: seconds, megabytes, cores, and characters of each of its two outputs."""

    time_limit: int = 30
    memory_limit: int = 256
    cpu_limit: float = 0.5
    max_output_chars: int = 100_000

    def __post_init__(self) -> None:
        for name in ("time_limit", "memory_limit", "cpu_limit", "max_output_chars"):
            _number(name, getattr(self, name))
        if not MIN_TIMEOUT <= self.time_limit <= MAX_TIMEOUT:
            raise ValueError(
                f"Time limit (time_limit) must be from {MIN_TIMEOUT} to {MAX_TIMEOUT} seconds, not {self.time_limit}"
            )
        if not self.memory_limit >= 1:
            raise ValueError(f"Memory limit (memory_limit) must be at least 1 MB, not {self.memory_limit}")
        if not 0 < self.cpu_limit <= 4:
            raise ValueError(f"CPU limit (cpu_limit) must be above 0 and at most 4 cores, not {self.cpu_limit}")
        if not self.max_output_chars >= 1000:
            raise ValueError(f"Max output chars (max_output_chars) must be at least 1000, not {self.max_output_chars}")

    def _options(self) -> dict[str, Any]:
        return {
            "memory": int(max(self.memory_limit, _LEAST_MEGABYTES) * _MEGABYTE),
            "cpus": max(cores(self.cpu_limit), 0.01),
            "processes": _PROCESSES,
            # It is counted in bytes, of which a character has up to four.
            "max_output": min(self.max_output_chars * 4, _MOST_OUTPUT),
        }

    def _applied(self, result: Result) -> dict[str, Any]:
        """What held, which is not all that was asked for: a session has its own, and no host has more cores than it has."""
        return {
            "time_limit_seconds": self.time_limit,
            "memory_limit_mb": _megabytes(result),
            "cpu_limit_cores": result.limits.cpus,
            "max_output_chars": min(self.max_output_chars, _MOST_OUTPUT),
        }


def _number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name}: {value!r} is not accepted; give a number")


def _megabytes(result: Result) -> float:
    megabytes = result.limits.memory_bytes / _MEGABYTE
    return int(megabytes) if megabytes.is_integer() else round(megabytes, 2)


_current: ContextVar[ExecutionLimits | None] = ContextVar("limits", default=None)


@contextlib.contextmanager
def resource_limits_context(limits: ExecutionLimits) -> Iterator[ExecutionLimits]:
    """What is executed within the block has these limits, unless it says otherwise; afterwards those from before hold again.

    The calling process itself is not limited: nothing untrusted runs in it.
    """
    token = _current.set(limits)
    try:
        yield limits
    finally:
        _current.reset(token)


def check_docker_available() -> bool:
    """Whether Docker is installed and runs. Nothing here needs it unless ``BELLJAR_BACKEND=docker`` asks for it."""
    return docker_is_there()


def validate_language(language: str) -> bool:
    """Whether code of this language can be executed."""
    return isinstance(language, str) and language in SUPPORTED_LANGUAGES


def validate_session_id(session_id: str | None) -> str | None:
    """The id if it is one: up to 64 letters, digits, ``_`` and ``-``."""
    return session_id if isinstance(session_id, str) and re.fullmatch(r"[A-Za-z0-9_-]{0,64}", session_id) else None


def validate_timeout(timeout: int | None) -> int:
    """Seconds within what is accepted. ``ValueError`` for what is no number."""
    if timeout is None:
        return DEFAULT_TIMEOUT
    _number("timeout", timeout)
    return max(MIN_TIMEOUT, min(MAX_TIMEOUT, timeout))


def prepare_code_file(code: str, language: str) -> tuple[str, str]:
    """A new directory of its own with the code in a file: the directory, and the file's name in it."""
    if not validate_language(language):
        raise ValueError(_unsupported(language))
    temp_dir = tempfile.mkdtemp(prefix="codomyrmex_")
    name = f"main.{SUPPORTED_LANGUAGES[language]['extension']}"
    try:
        Path(temp_dir, name).write_text(code, encoding="utf-8")
    except BaseException:
        cleanup_temp_files(temp_dir)
        raise
    return temp_dir, name


def prepare_stdin_file(stdin: str | None, temp_dir: str) -> str | None:
    """The path of a file with the input, if there is any."""
    if not stdin:
        return None
    path = Path(temp_dir, "stdin.txt")
    path.write_text(stdin, encoding="utf-8")
    return str(path)


def cleanup_temp_files(temp_dir: str) -> None:
    """Removes the directory and everything in it. One that is gone already is no error."""
    shutil.rmtree(temp_dir, ignore_errors=True)


class _Unsaid(int):
    """A default that is known from the same number when somebody says it."""


def run_code_in_docker(
    language: str,
    code_file_path: str,
    temp_dir: str,
    stdin_file: str | None = None,
    timeout: int = _Unsaid(DEFAULT_TIMEOUT),
    session_id: str | None = None,
) -> dict[str, Any]:
    """Executes a file of ``temp_dir`` in a sandbox that has a copy of that directory, with the limits of
    :data:`DEFAULT_DOCKER_ARGS`. The answer is that of :func:`execute_code`.
    """
    if not validate_language(language):
        return _refused(_unsupported(language))
    try:
        files = _copied(temp_dir)
        name = _below(code_file_path, temp_dir)
        if name not in files:
            raise ValueError(f"code_file_path: {code_file_path} is no file in {temp_dir}")
        code = files[name].decode()
        command = _script.interpreted(language, name)
        if command is None:
            # The daemon puts code that is compiled into a file of its own.
            del files[name]
        stdin = _input(stdin_file, temp_dir, files)
        limits = _limits(None if isinstance(timeout, _Unsaid) else timeout)
    except (OSError, ValueError, TypeError) as problem:
        return _refused(str(problem))
    return _execute(language, code, limits, stdin, session_id, files, command=command)


def execute_code(
    language: str,
    code: str,
    stdin: str | None = None,
    timeout: int | None = None,
    session_id: str | None = None,
) -> dict[str, Any]:
    """Executes code. With a ``session_id``, in the session of that name, which keeps what the code leaves there.

    Nothing is raised: ``status`` is ``success``, ``timeout``, ``execution_error`` or ``setup_error``.
    """
    try:
        limits = _limits(timeout)
    except ValueError as problem:
        return _refused(str(problem))
    return _execute(language, code, limits, stdin, session_id)


def execute_with_limits(
    language: str,
    code: str,
    limits: ExecutionLimits,
    stdin: str | None = None,
    session_id: str | None = None,
) -> dict[str, Any]:
    """Executes code and measures what it uses, from outside. A session keeps the memory and the cores it was made with."""
    return _execute(language, code, limits, stdin, session_id, measured=True)


def sandbox_process_isolation(
    language: str,
    code: str,
    limits: ExecutionLimits,
    stdin: str | None = None,
) -> dict[str, Any]:
    """Executes code that shares nothing with any other, and measures what it uses."""
    return _execute(language, code, limits, stdin, None, measured=True)


def close_session(session_id: str) -> None:
    """Ends a session. They end with the program too, and when nobody has used them for an hour."""
    with _sessions_lock:
        ended = [_sessions.pop(key) for key in list(_sessions) if key[0] == session_id]
    for sandbox in ended:
        with contextlib.suppress(BelljarError):
            sandbox.close()


def _limits(timeout: int | None) -> ExecutionLimits:
    known = _current.get() or ExecutionLimits()
    seconds = known.time_limit if timeout is None else validate_timeout(timeout)
    return ExecutionLimits(seconds, known.memory_limit, known.cpu_limit, known.max_output_chars)


_sessions: dict[tuple[str, str, int], Sandbox] = {}
_sessions_lock = threading.Lock()


def _execute(
    language: str,
    code: str,
    limits: ExecutionLimits,
    stdin: str | None,
    session_id: str | None,
    files: dict[str, bytes] | None = None,
    measured: bool = False,
    command: tuple[str, list[str]] | None = None,
) -> dict[str, Any]:
    if not validate_language(language):
        return _refused(_unsupported(language))
    if not isinstance(code, str) or not code.strip():
        return _refused("the code must be a text that is not empty")
    session_id = validate_session_id(session_id)
    options = {**limits._options(), **place(None, SUPPORTED_LANGUAGES[language]["image"])}
    try:
        if session_id:
            ended = _in_session((session_id, language, os.getpid()), code, limits, stdin, files, options)
        else:
            ended = _script.run(
                language,
                code,
                files=files,
                stdin=stdin,
                timeout=limits.time_limit,
                command=command,
                sample=measured,
                **options,
            )
    except BelljarError as problem:
        return _refused(str(problem))
    told = _told(ended.result, limits)
    if measured:
        told |= {"resource_usage": _usage(ended), "limits_applied": limits._applied(ended.result)}
    return told


def _in_session(
    key: tuple[str, str, int],
    code: str,
    limits: ExecutionLimits,
    stdin: str | None,
    files: dict[str, bytes] | None,
    options: dict[str, Any],
) -> _script.Ended:
    session_id, language, _ = key
    with _sessions_lock:
        sandbox = _sessions.get(key)
        if sandbox is None:
            sandbox = Sandbox(language=language, workdir=_script.WORKDIR, name=session_id, **options)
            _sessions[key] = sandbox
    try:
        sandbox.start()
    except BaseException:
        # It never came about: the next one may ask for what can be.
        with _sessions_lock:
            if _sessions.get(key) is sandbox:
                del _sessions[key]
        raise
    try:
        for path, data in (files or {}).items():
            sandbox.files.write(path, data)
        before = sandbox.usage().now
        more: Any = {"stdin": stdin, "timeout": limits.time_limit, "max_output": options["max_output"]}
        result = sandbox.run(code, **more)
    except NotFound:
        # Idle for too long: the next one finds a new session.
        close_session(session_id)
        raise
    return _script.Ended(result, {}, [_script.Sample(before.cpu_ms, before.memory_bytes)])


def _copied(temp_dir: str) -> dict[str, bytes]:
    """The regular files of a directory. Links are left out: they may lead anywhere."""
    root = Path(temp_dir)
    found: dict[str, bytes] = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            if stat.S_ISREG(path.lstat().st_mode):
                found[path.relative_to(root).as_posix()] = path.read_bytes()
    return found


def _input(stdin_file: str | None, temp_dir: str, files: dict[str, bytes]) -> str | None:
    if stdin_file is None:
        return None
    name = _below(stdin_file, temp_dir)
    if name not in files:
        raise ValueError(f"stdin_file: {stdin_file} is no file in {temp_dir}")
    return files.pop(name).decode()


def _below(path: str, temp_dir: str) -> str:
    """As the files of the directory are named. One that is elsewhere has no such name."""
    given = Path(path)
    return given.relative_to(temp_dir).as_posix() if given.is_relative_to(temp_dir) else given.as_posix()


def _unsupported(language: object) -> str:
    return f"the language {language!r} is not supported; give one of {', '.join(SUPPORTED_LANGUAGES)}"


def _refused(reason: str) -> dict[str, Any]:
    return {
        "stdout": "",
        "stderr": reason,
        "exit_code": -1,
        "execution_time": 0.0,
        "status": "setup_error",
        "error_message": reason,
    }


def _told(result: Result, limits: ExecutionLimits) -> dict[str, Any]:
    stderr = result.stderr
    exit_code = result.exit_code
    status = "execution_error"
    message: str | None
    if result.success:
        status, message = "success", None
    elif result.timed_out:
        status, exit_code = "timeout", -1
        message = f"Execution timed out after {limits.time_limit} seconds"
    elif result.status == "out_of_memory":
        # Whatever it was that ended; it may have been a part of the code whose end was not noticed.
        exit_code = 137
        message = f"Execution ran out of memory ({_megabytes(result)} MB)"
    elif result.status == "compile_failed" and result.compile is not None:
        stderr = result.compile.stdout + result.compile.stderr
        exit_code = result.compile.exit_code
        message = "The code does not compile"
    elif result.signal is not None:
        message = f"Execution error: ended by signal {result.signal}"
    else:
        message = f"Execution error: ended with exit code {exit_code}"
    if exit_code is None:
        exit_code = 128 + result.signal if result.signal is not None else -1
    return {
        "stdout": result.stdout[: limits.max_output_chars],
        "stderr": stderr[: limits.max_output_chars],
        "exit_code": exit_code,
        "execution_time": round(result.usage.wall_ms / 1000, 3),
        "status": status,
        "error_message": message,
    }


def _usage(ended: _script.Ended) -> dict[str, Any]:
    usage, samples = ended.result.usage, ended.samples
    average = 100 * (usage.cpu_ms or 0.0) / usage.wall_ms if usage.wall_ms else 0.0
    steps = itertools.pairwise(samples)
    # Over the whole run, and over each of the steps that were looked at.
    shares = [average, *(100 * (after.cpu_ms - before.cpu_ms) / (1000 * _script.EVERY) for before, after in steps)]
    return {
        "execution_time_seconds": round(usage.wall_ms / 1000, 3),
        "memory_start_mb": round(samples[0].memory_bytes / _MEGABYTE, 2) if samples else 0.0,
        "memory_peak_mb": round((usage.memory_peak_bytes or 0) / _MEGABYTE, 2),
        "cpu_samples": len(shares),
        "cpu_average_percent": round(average, 2),
        "cpu_peak_percent": round(max(shares), 2),
    }
