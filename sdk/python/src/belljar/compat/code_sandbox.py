"""``CodeSandbox`` and ``AutoDebuggerIntegration`` of ``autonomous.code_sandbox``.

Change ``from autonomous.code_sandbox import …`` to ``from belljar.compat.code_sandbox import …``. No Docker is needed;
``BELLJAR_BACKEND=docker`` asks for it, and then the images of the list are used.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

from .. import Result, Sandbox
from ..errors import BelljarError
from . import _cases, _output, _script
from ._place import cores, place
from ._switch import switch

__all__ = ["AutoDebuggerIntegration", "CodeSandbox", "ExecutionResult", "ResourceLimits"]

_LONGEST = 30
_TIMEOUT_EXIT = 124
_SHARES = 1024
"""What everybody has."""
_MOST_SHARES = 262_144
_HISTORY = 10_000


@dataclass
class ExecutionResult:
    """How an execution ended."""

    success: bool
    exit_code: int
    stdout: str
    stderr: str
    execution_time: float
    timeout: bool
    error_message: str | None = None
    container_id: str | None = None
    language: str | None = None
    resource_usage: dict[str, Any] | None = None
    output_files: dict[str, str] = field(default_factory=dict)
    memory_used: str | None = None
    cpu_percent: float | None = None
    timestamp: datetime = field(default_factory=datetime.now)


@dataclass
class ResourceLimits:
    """What an execution may use.

    ``cpu_quota`` of each ``cpu_period`` microseconds. There is never any swap, so ``memory_swap``, which is memory and swap
    together, can only be what it is when absent: ``memory_limit``; more of it is accepted and gives nothing.
    ``cpu_shares`` is the weight among all that execute at the same time, and matters when there are too few processors for them.
    """

    memory_limit: str = "512m"
    memory_swap: str | None = None
    cpu_quota: int = 100000
    cpu_period: int = 100000
    cpu_shares: int = _SHARES
    pids_limit: int = 100
    timeout_seconds: int = 30

    def __post_init__(self) -> None:
        memory = _bytes("memory_limit", self.memory_limit)
        if self.memory_swap is None:
            self.memory_swap = self.memory_limit
        if _bytes("memory_swap", self.memory_swap) < memory:
            raise ValueError("memory_swap is memory and swap together; it cannot be less than memory_limit")
        for name in ("cpu_quota", "cpu_period", "cpu_shares", "pids_limit", "timeout_seconds"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ValueError(f"{name}: {value!r} is not accepted; give a number")
        for name, least in (("cpu_quota", 1), ("cpu_period", 1), ("cpu_shares", 2), ("pids_limit", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: {getattr(self, name)} is not accepted; give at least {least}")
        if self.cpu_shares > _MOST_SHARES:
            raise ValueError(f"cpu_shares: {self.cpu_shares} is not accepted; give at most {_MOST_SHARES}")
        if not self.timeout_seconds > 0:
            raise ValueError(f"timeout_seconds: {self.timeout_seconds} is not accepted; give more than 0")
        self.timeout_seconds = min(self.timeout_seconds, _LONGEST)

    def _options(self) -> dict[str, Any]:
        return {
            "memory": _bytes("memory_limit", self.memory_limit),
            "cpus": cores(max(self.cpu_quota / self.cpu_period, 0.01)),
            "processes": self.pids_limit,
            **({"cpu_shares": self.cpu_shares} if self.cpu_shares != _SHARES else {}),
        }


def _bytes(name: str, text: str) -> int:
    """As Docker reads them: ``512m``, ``1g``, ``1.5gb``, or bytes."""
    found = None
    if isinstance(text, str):
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([bkmgt]?)b?", text.strip().lower())
    if found is None or float(found[1]) == 0:
        raise ValueError(f"{name}: {text!r} is not accepted; give a size like 512m or 1g")
    return int(float(found[1]) * 1024 ** " kmgt".find(found[2].replace("b", "") or " "))


@dataclass(frozen=True)
class _Language:
    """What Belljar itself can run, and what it is with Docker's images."""

    name: str
    runtime: str
    extension: str
    image: str
    description: str
    program: tuple[str, ...]

    def command(self, file: str) -> list[str]:
        return [*self.program, file]

    def config(self) -> dict[str, Any]:
        return {
            "image": self.image,
            "extension": self.extension,
            "command": self.command,
            "runtime_name": self.runtime,
            "description": self.description,
        }


_PYTHON = _Language(
    "python", "Python 3.11", ".py", "python:3.11-slim", "Python, with its standard library", ("python3",)
)
_NODE = _Language("javascript", "Node.js 18", ".js", "node:18-alpine", "JavaScript on Node.js", ("node",))
_BASH = _Language("bash", "Bash 5", ".sh", "ubuntu:22.04", "Bash, with the usual commands", ("bash",))
_RUBY = _Language("ruby", "Ruby 3.2", ".rb", "ruby:3.2-alpine", "Ruby, with its standard library", ("ruby",))
_GO = _Language("go", "Go 1.21", ".go", "golang:1.21-alpine", "Go, compiled first", ("go", "run"))
_LANGUAGES = {
    "bash": _BASH,
    "go": _GO,
    "javascript": _NODE,
    "js": _NODE,
    "python": _PYTHON,
    "python3": _PYTHON,
    "ruby": _RUBY,
    "sh": _BASH,
}


# Other names of these, and what Belljar has besides: there are no images to name for that.
_ALIASES = {
    "golang": "go",
    "node": "javascript",
    "nodejs": "javascript",
    "py": "python",
    "rb": "ruby",
    "shell": "bash",
}
_MORE = {
    **{name: name for name in ("c", "cpp", "java", "lua", "perl", "php", "r", "rust", "typescript")},
    "c++": "cpp",
    "ts": "typescript",
}


class CodeSandbox:
    """Executes code, each time in a sandbox of its own. Nothing is raised for code that fails.

    Besides the languages of the list, all that Belljar has are accepted.
    """

    LANGUAGE_CONFIGS: ClassVar[dict[str, dict[str, Any]]] = {name: known.config() for name, known in _LANGUAGES.items()}
    """The languages by name. One that is added has an ``image``, an ``extension``, a ``command`` (what to run for a file: a function
    of its name, or words with ``{file}``), a ``runtime_name`` and a ``description``; without Docker the host has to have its program.
    """

    def __init__(self, default_limits: ResourceLimits | None = None, use_docker_api: bool = True) -> None:
        self.default_limits = default_limits or ResourceLimits()
        self.use_docker_api = use_docker_api
        self.execution_history: list[dict[str, Any]] = []
        self._usage: dict[str, dict[str, Any]] = {}
        self._running: dict[str, Sandbox] = {}
        self._lock = threading.Lock()

    def execute(
        self,
        code: str,
        language: str,
        limits: ResourceLimits | None = None,
        network_enabled: bool = False,
        env_vars: dict[str, str] | None = None,
        files: dict[str, str] | None = None,
        read_only: bool = True,
    ) -> ExecutionResult:
        """Executes code. ``files`` are in ``/sandbox``, where the code runs; what it writes there comes back as
        ``output_files``. With ``read_only=False`` it may write anywhere, to a layer of its own.
        """
        return self._execute(code, language, limits, network_enabled, env_vars, files, read_only)

    def execute_with_input(
        self, code: str, language: str, stdin_input: str, limits: ResourceLimits | None = None
    ) -> ExecutionResult:
        """Executes code that reads this from its standard input."""
        return self._execute(code, language, limits, stdin=stdin_input)

    def execute_tests(
        self, code: str, test_code: str, language: str, limits: ResourceLimits | None = None
    ) -> ExecutionResult:
        """Executes code and, in the same program, tests of it.

        Those in Python may be written for a runner: functions and classes of tests that they do not call themselves are called.
        """
        for part in (code, test_code):
            if not isinstance(part, str):
                return self._execute(part, language, limits)
        program = f"{code}\n\n{test_code}"
        if isinstance(language, str) and language.lower().strip() in ("python", "python3", "py"):
            program = f"{program}\n\n{_cases.called(test_code)}".rstrip()
        return self._execute(program, language, limits)

    def list_supported_languages(self) -> list[dict[str, str]]:
        """The names that are accepted, and what they stand for with Docker's images.

        Without Docker it is what the host has; each result's ``language`` says what that was.
        """
        return [
            {
                "language": name,
                "runtime": config.get("runtime_name", name),
                "extension": config["extension"],
                "image": config["image"],
                "description": config.get("description", ""),
            }
            for name, config in self.LANGUAGE_CONFIGS.items()
        ]

    def get_execution_history(self, limit: int | None = None) -> list[dict[str, Any]]:
        """What was executed here, oldest first; of that the last ``limit``."""
        with self._lock:
            history = [dict(entry) for entry in self.execution_history]
        return history if limit is None else history[len(history) - min(max(limit, 0), len(history)) :]

    def get_resource_usage(self, container_id: str) -> dict[str, Any] | None:
        """What an execution uses now, or used in all if it has ended; None if it is not known here."""
        with self._lock:
            running = self._running.get(container_id)
            known = self._usage.get(container_id)
        if running is not None:
            with contextlib.suppress(BelljarError):
                now = running.usage().now
                return {
                    "memory_usage": now.memory_bytes,
                    "cpu_time_ms": now.cpu_ms,
                    "cpu_percent": None,
                    "timestamp": now.time,
                }
        return dict(known) if known is not None else None

    def cleanup_all_containers(self) -> None:
        """Ends whatever is executed here now."""
        with self._lock:
            running = list(self._running.values())
        for sandbox in running:
            with contextlib.suppress(BelljarError):
                sandbox.delete()

    def _execute(
        self,
        code: str,
        language: str,
        limits: ResourceLimits | None,
        network_enabled: bool = False,
        env_vars: dict[str, str] | None = None,
        files: Mapping[str, str] | None = None,
        read_only: bool = True,
        stdin: str | None = None,
    ) -> ExecutionResult:
        limits = limits or self.default_limits
        name = language.lower().strip() if isinstance(language, str) else str(language)
        if name not in self.LANGUAGE_CONFIGS:
            name = _ALIASES.get(name, name)
        config = self.LANGUAGE_CONFIGS.get(name)
        try:
            if config is None and name not in _MORE:
                accepted = ", ".join(sorted({*self.LANGUAGE_CONFIGS, *_MORE}))
                raise ValueError(f"Unsupported language: {language}. Supported: {accepted}")
            if not isinstance(code, str):
                raise ValueError(f"code: {type(code).__name__} is not accepted; give a text")
            if not code.strip():
                raise ValueError("There is no code to execute")
            if not isinstance(limits, ResourceLimits):
                raise ValueError(f"limits: {type(limits).__name__} is not accepted; give ResourceLimits")
            for option, value in (("files", files), ("env_vars", env_vars)):
                if value is not None and not isinstance(value, Mapping):
                    raise ValueError(f"{option}: {type(value).__name__} is not accepted; give a dict")
            network_enabled = switch("network_enabled", network_enabled)
            read_only = switch("read_only", read_only)
        except ValueError as problem:
            told = _refused(str(problem), name)
            self._remember(name, told)
            return told
        known = _LANGUAGES.get(name)
        options = {
            **limits._options(),
            "max_output": _output.MOST,
        }
        if config is None:
            options |= place(None)
        else:
            options |= place(config["image"], known.image if known is not None else config["image"])
            if known is None or config["command"] != known.command:
                options["command"] = _command(config, files)
        if network_enabled:
            options["network"] = "all"
        container: list[str] = []
        runtime = config.get("runtime_name", name) if config is not None else name

        def started(sandbox: Sandbox) -> None:
            nonlocal runtime
            container.append(sandbox.id)
            with self._lock:
                self._running[sandbox.id] = sandbox
            if "command" not in options:
                # The result of a command knows only the command.
                runtime = _short(sandbox.info().runtime)

        began = time.monotonic()
        try:
            ended = _script.run(
                known.name if known is not None else "bash" if "command" in options else _MORE[name],
                code,
                files=files,
                env=env_vars,
                stdin=stdin,
                timeout=limits.timeout_seconds,
                collect=True,
                read_only=read_only,
                started=started,
                **options,
            )
            told = _told(ended, limits)
        except BelljarError as problem:
            told = _refused(str(problem), name)
        finally:
            with self._lock:
                for identity in container:
                    self._running.pop(identity, None)
        told.execution_time = round(time.monotonic() - began, 3)
        told.container_id = container[0] if container else None
        told.language = f"{name} ({runtime})" if told.resource_usage is not None else name
        self._remember(name, told)
        return told

    def _remember(self, language: str, told: ExecutionResult) -> None:
        entry = {
            "timestamp": told.timestamp.isoformat(),
            "language": language,
            "success": told.success,
            "exit_code": told.exit_code,
            "execution_time": told.execution_time,
            "container_id": told.container_id,
        }
        with self._lock:
            self.execution_history.append(entry)
            if told.container_id is not None and told.resource_usage is not None:
                self._usage[told.container_id] = told.resource_usage
            if len(self.execution_history) > _HISTORY:
                forgotten = self.execution_history.pop(0)
                self._usage.pop(str(forgotten["container_id"]), None)


def _command(config: Mapping[str, Any], files: Mapping[str, str] | None) -> tuple[str, list[str]]:
    """The file for code of a language that was added, and what to run."""
    file = _script.file_for(config["extension"], files)
    command = config["command"]
    words = command(file) if callable(command) else [word.replace("{file}", file) for word in command]
    return file, list(words)


def _refused(reason: str, language: str) -> ExecutionResult:
    return ExecutionResult(False, -1, "", "", 0.0, False, error_message=reason, language=language)


def _told(ended: _script.Ended, limits: ResourceLimits) -> ExecutionResult:
    result, usage = ended.result, ended.result.usage
    message: str | None = None
    stderr, exit_code = result.stderr, _exit_code(result)
    if result.timed_out:
        message = f"Execution timed out after {limits.timeout_seconds}s"
        exit_code = _TIMEOUT_EXIT
    elif result.status == "out_of_memory":
        message = f"Execution ran out of memory ({limits.memory_limit})"
        exit_code = 137
    elif result.status == "compile_failed" and result.compile is not None:
        message = "The code does not compile"
        stderr = result.compile.stdout + result.compile.stderr
        exit_code = result.compile.exit_code or 1
    elif result.status == "killed":
        message = "Execution was ended from outside"
    share = round(100 * (usage.cpu_ms or 0.0) / usage.wall_ms, 2) if usage.wall_ms else 0.0
    return ExecutionResult(
        success=result.success,
        exit_code=exit_code,
        stdout=_output.told(result.stdout, result.stdout_truncated),
        stderr=_output.told(stderr, result.stderr_truncated),
        execution_time=0.0,
        timeout=result.timed_out,
        error_message=message,
        resource_usage={
            "memory_usage": usage.memory_peak_bytes,
            "cpu_percent": share,
            "cpu_time_ms": usage.cpu_ms,
            "processes": usage.processes_peak,
            "timestamp": result.started_at,
        },
        output_files={path: data.decode("utf-8", "replace") for path, data in ended.files.items()},
        memory_used=f"{(usage.memory_peak_bytes or 0) / (1 << 20):.1f}MiB",
        cpu_percent=share,
    )


def _exit_code(result: Result) -> int:
    if result.exit_code is not None:
        return result.exit_code
    return 128 + result.signal if result.signal is not None else -1


def _short(runtime: str) -> str:
    """``Python 3.11.2`` as ``Python 3.11``, ``Node.js 20.1.0`` as ``Node.js 20``, ``bash 5.2.15`` as ``Bash 5``."""
    name, _, version = runtime.partition(" ")
    parts = version.split(".")
    kept = 1 if name.lower() in ("node.js", "bash") else 2
    return f"{name[:1].upper()}{name[1:]} {'.'.join(parts[:kept])}".strip()


# What Python says of code that it cannot even begin with.
_UNTRACED = re.compile(r"\w+(Error|Exception)\b")


class AutoDebuggerIntegration:
    """Results in the form that debuggers want to have them."""

    @staticmethod
    def create_debug_report(result: ExecutionResult) -> dict[str, Any]:
        """What happened, as plain data."""
        report: dict[str, Any] = {
            "status": "success" if result.success else "failure",
            "exit_code": result.exit_code,
            "execution_time": result.execution_time,
            "timestamp": result.timestamp.isoformat(),
            "language": result.language,
            "container_id": result.container_id,
            "output": {"stdout": result.stdout, "stderr": result.stderr},
            "resource_usage": result.resource_usage,
        }
        if result.timeout or result.error_message:
            report["error_type"] = "timeout" if result.timeout else "execution_error"
            report["error_message"] = result.error_message
        if result.output_files:
            report["output_files"] = result.output_files
        return report

    @staticmethod
    def analyze_error(result: ExecutionResult) -> dict[str, Any]:
        """What kind of failure it was."""
        analysis: dict[str, Any] = {"is_error": not result.success, "error_type": "unknown"}
        if result.timeout:
            analysis["error_type"] = "timeout"
            analysis["suggestion"] = "The time limit was reached: make the code do less, or give it more time"
        elif result.exit_code == -1 and result.error_message:
            analysis |= {"error_type": "sandbox_error", "error": result.error_message}
        elif result.exit_code != 0:
            analysis["error_type"] = "execution_failure"
            lines = result.stderr.splitlines()
            if "Traceback (most recent call last)" in result.stderr:
                analysis["error_type"] = "python_exception"
                # Below the places of the last one. What comes after that line belongs to the message, or is something else.
                begin = max(at for at, line in enumerate(lines) if "Traceback (most recent call last)" in line)
                raised = [line for line in lines[begin + 1 :] if re.match(r"[\w.]+(:|$)", line)]
                if raised:
                    analysis["exception"] = raised[0].strip()
            elif lines and (result.language or "").startswith("python") and _UNTRACED.match(lines[-1]):
                analysis |= {"error_type": "python_exception", "exception": lines[-1].strip()}
        elif result.error_message:
            analysis |= {"error_type": "sandbox_error", "error": result.error_message}
        return analysis
