"""What comes back from a run: plain, frozen data."""

from __future__ import annotations

import base64
import builtins
from dataclasses import dataclass, field
from typing import Any, Literal

from . import _show, errors
from .values import from_json

Status = Literal["ok", "failed", "compile_failed", "timed_out", "out_of_memory", "killed"]
State = Literal["kept", "lost", "none"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What was allowed, as resolved."""

    timeout_ms: int = 0
    memory_bytes: int = 0
    cpus: float = 0.0
    processes: int = 0
    output_bytes: int = 0
    disk_bytes: int = 0
    open_files: int = 0
    cpu_shares: int | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What was measured, from outside. ``start_ms``: from the request to the first instruction of the code.
    ``cpu_ms`` is None where nothing could be counted, as when a container was lost."""

    wall_ms: float = 0.0
    cpu_ms: float | None = None
    memory_peak_bytes: int = 0
    processes_peak: int = 0
    start_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Cause:
    """What led to an error."""

    type: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """The exception that ended the code, as the code tells it."""

    type: str = ""
    message: str = ""
    traceback: str = ""
    line: int | None = None
    column: int | None = None
    causes: tuple[Cause, ...] = ()
    category: str | None = None
    hint: str | None = None

    def __repr__(self) -> str:
        where = f" (line {self.line})" if self.line is not None else ""
        message = f": {_show.one_line(self.message)}" if self.message else ""
        return f"<ErrorInfo {self.type}{message}{where}>"

    def __str__(self) -> str:
        return self.traceback.rstrip() or (f"{self.type}: {self.message}" if self.message else self.type)


@dataclass(frozen=True, slots=True)
class Display:
    """Something that the code showed: a picture, a table. ``alternatives`` has the same in other forms."""

    mime: str
    data: bytes
    alternatives: tuple[Display, ...] = ()

    @property
    def text(self) -> str:
        """The data, of a medium that is text."""
        return self.data.decode("utf-8", "replace")

    def form(self, mime: str) -> bytes | None:
        """The data in this form, if it came in it."""
        return next((each.data for each in (self, *self.alternatives) if each.mime == mime), None)

    def __repr__(self) -> str:
        return f"<Display {self.mime}, {len(self.data)} bytes>"

    def _repr_png_(self) -> bytes | None:
        return self.form("image/png")

    def _repr_jpeg_(self) -> bytes | None:
        return self.form("image/jpeg")

    def _repr_html_(self) -> str:
        return _show.display_html(self)


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file that the code wrote to its workspace."""

    path: str
    bytes: int
    content: builtins.bytes | None = None
    """What is in it, if the request had it collected."""

    @property
    def text(self) -> str:
        """What is in it, as text."""
        return (self.content or b"").decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection that the code tried to make, and why it was not allowed or did not come about."""

    host: str
    port: int
    address: str | None = None
    allowed: bool = False
    reason: str | None = None
    bytes_sent: int = 0
    bytes_received: int = 0
    started_at: str = ""
    duration_ms: float = 0.0
    count: int = 1
    """How often: refusals for the same reason, and look-ups of a name (port 53, no address), are told once for each run."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The compile stage."""

    status: Status
    exit_code: int | None
    signal: int | None
    stdout: str
    stderr: str
    usage: Usage
    limits: Limits


@dataclass(frozen=True, slots=True)
class Result:
    """How a run ended."""

    id: str
    sandbox: str
    language: str
    runtime: str
    backend: str
    status: Status
    success: bool
    exit_code: int | None
    signal: int | None
    stdout: str
    stderr: str
    stdout_truncated: bool
    stderr_truncated: bool
    compile: Stage | None
    value: Any
    value_text: str | None
    displays: tuple[Display, ...]
    error: ErrorInfo | None
    state: State
    usage: Usage
    limits: Limits
    report: dict[str, Any]
    files: tuple[FileInfo, ...]
    files_truncated: bool
    connections: tuple[Connection, ...]
    started_at: str
    raw: dict[str, Any] = field(repr=False, compare=False)
    """The daemon's answer as it came."""
    connections_omitted: int = 0
    """How many connections there were beyond those in the list."""

    @property
    def stdout_bytes(self) -> bytes:
        """What was printed, also where it is no UTF-8."""
        return _bytes(self.raw, "stdout")

    @property
    def stderr_bytes(self) -> bytes:
        """What was printed to standard error, also where it is no UTF-8."""
        return _bytes(self.raw, "stderr")

    @property
    def timed_out(self) -> bool:
        """Whether the time was up."""
        return self.status == "timed_out"

    @property
    def png(self) -> bytes | None:
        """The last picture that the code showed."""
        pictures = [picture for display in self.displays if (picture := display.form("image/png")) is not None]
        return pictures[-1] if pictures else None

    def check(self) -> Result:
        """Itself if the code succeeded, else the exception for how it failed: :class:`SandboxTimeout`,
        :class:`OutOfMemory`, :class:`ImportNotAllowed` or :class:`RunFailed`.
        """
        error = errors.from_result(self)
        if error is not None:
            raise error
        return self

    def __repr__(self) -> str:
        return _show.result_line(self)

    def _repr_html_(self) -> str:
        return _show.result_html(self)

    def _repr_png_(self) -> bytes | None:
        return self.png


def _bytes(raw: dict[str, Any], stream: str) -> bytes:
    encoded = raw.get(f"{stream}_base64")
    if encoded is not None:
        return base64.b64decode(encoded)
    return str(raw[stream]).encode("utf-8", "replace")


def known(kind: Any, raw: dict[str, Any]) -> Any:
    """The fields that this version knows; a newer daemon may have more."""
    names = kind.__dataclass_fields__
    return kind(**{name: value for name, value in raw.items() if name in names})


def limits(raw: dict[str, Any]) -> Limits:
    made: Limits = known(Limits, raw)
    return made


def display(raw: dict[str, Any]) -> Display:
    """One thing that was shown."""
    others = raw.get("alternatives")
    return Display(
        raw["mime"],
        base64.b64decode(raw["data"]),
        tuple(display(other) for other in others) if others else (),
    )


def error_info(raw: dict[str, Any] | None) -> ErrorInfo | None:
    """What the code said about its end."""
    if raw is None:
        return None
    causes = tuple(known(Cause, cause) for cause in raw.get("causes") or ())
    made: ErrorInfo = known(ErrorInfo, {**raw, "causes": causes})
    return made


def _stage(raw: dict[str, Any] | None) -> Stage | None:
    if raw is None:
        return None
    stage: Stage = known(Stage, {**raw, "usage": known(Usage, raw["usage"]), "limits": limits(raw["limits"])})
    return stage


def _file(raw: dict[str, Any]) -> FileInfo:
    content = raw.get("content")
    data: bytes | None = None
    if isinstance(content, str):
        data = content.encode()
    elif isinstance(content, dict):
        data = base64.b64decode(content["base64"])
    return FileInfo(raw["path"], raw["bytes"], data)


def result(raw: dict[str, Any]) -> Result:
    """A result from the daemon's answer."""
    return Result(
        raw["id"],
        raw["sandbox"],
        raw["language"],
        raw["runtime"],
        raw["backend"],
        raw["status"],
        raw["success"],
        raw["exit_code"],
        raw["signal"],
        raw["stdout"],
        raw["stderr"],
        raw["stdout_truncated"],
        raw["stderr_truncated"],
        _stage(raw["compile"]),
        from_json(raw["value"]),
        raw["value_text"],
        tuple(display(each) for each in raw["displays"]),
        error_info(raw["error"]),
        raw["state"],
        known(Usage, raw["usage"]),
        limits(raw["limits"]),
        raw["report"],
        tuple(_file(each) for each in raw["files"]),
        raw.get("files_truncated", False),
        tuple(known(Connection, each) for each in raw.get("connections") or ()),
        raw["started_at"],
        raw,
        raw.get("connections_omitted", 0),
    )
