"""What the daemon knows: sandboxes, runs that ended, its host."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from . import results
from .results import ErrorInfo, Limits, Result, Status, known


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """A sandbox that is kept."""

    id: str
    name: str | None
    labels: dict[str, str]
    tenant: str
    template: str | None
    backend: str
    language: str
    runtime: str
    keeps_state: bool
    busy: bool
    runs: int
    limits: Limits
    published: tuple[str, ...]
    """Ports inside that the host listens for: ``127.0.0.1:8080:8000``."""
    created_at: str
    last_used_at: str
    idle_timeout_ms: int
    expires_at: str | None
    raw: dict[str, Any] = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Sample:
    """What a sandbox used at one moment, as counted from outside."""

    time: str = ""
    cpu_ms: float = 0.0
    memory_bytes: int = 0
    memory_peak_bytes: int = 0
    processes: int = 0
    processes_peak: int = 0
    disk_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SandboxUsage:
    """What a sandbox uses now, and did over the last ten minutes."""

    now: Sample
    samples: tuple[Sample, ...]
    limits: Limits


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Something in a workspace. ``kind``: ``file``, ``directory``, ``link`` or ``other``."""

    path: str
    kind: str
    bytes: int
    modified_at: str
    mode: str

    @property
    def is_file(self) -> bool:
        return self.kind == "file"

    @property
    def is_directory(self) -> bool:
        return self.kind == "directory"


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One line of the history."""

    id: str
    sandbox: str | None
    language: str
    status: Status
    started_at: str
    exit_code: int | None = None
    queue_ms: float = 0.0
    start_ms: float | None = None
    wall_ms: float | None = None
    cpu_ms: float | None = None
    memory_peak_bytes: int | None = None
    error: str | None = None
    digest: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """All that is kept of one run. ``result`` is None where nobody was there to take it."""

    id: str
    sandbox: str | None
    language: str
    status: Status
    started_at: str
    queue_ms: float
    digest: str
    labels: dict[str, str]
    code: str | None
    request: dict[str, Any]
    result: Result | None
    tenant: str
    shortened: bool = False
    """Whether the run printed, showed or wrote more than is kept of it here."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles; None where there was nothing to measure."""

    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None


@dataclass(frozen=True, slots=True)
class Stats:
    """Totals and percentiles of runs."""

    runs: int
    by_status: dict[str, int]
    by_language: dict[str, int]
    cpu_ms: float
    queue_ms: Spread
    start_ms: Spread
    wall_ms: Spread


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line near the one that failed."""

    line: int
    text: str
    failing: bool


@dataclass(frozen=True, slots=True)
class DebugReport:
    """How a run ended and, if it failed, why. ``text`` is all of it, to be read by a person or handed to a model."""

    id: str
    language: str
    runtime: str | None
    status: Status
    summary: str
    error: ErrorInfo | None
    source: tuple[SourceLine, ...]
    stdout: str
    stderr: str
    text: str

    def __str__(self) -> str:
        return self.text


def sandbox(raw: dict[str, Any]) -> SandboxInfo:
    more = {"limits": results.limits(raw["limits"]), "published": tuple(raw["published"]), "raw": raw}
    made: SandboxInfo = known(SandboxInfo, {**raw, **more})
    return made


def usage(raw: dict[str, Any]) -> SandboxUsage:
    samples = tuple(known(Sample, each) for each in raw["samples"])
    return SandboxUsage(known(Sample, raw["now"]), samples, results.limits(raw["limits"]))


def entry(raw: dict[str, Any]) -> FileEntry:
    made: FileEntry = known(FileEntry, raw)
    return made


def summary(raw: dict[str, Any]) -> RunSummary:
    made: RunSummary = known(RunSummary, raw)
    return made


def record(raw: dict[str, Any]) -> RunRecord:
    ended = raw.get("result")
    made: RunRecord = known(RunRecord, {**raw, "result": results.result(ended) if ended is not None else None})
    return made


def stats(raw: dict[str, Any]) -> Stats:
    spreads = {name: known(Spread, raw[name]) for name in ("queue_ms", "start_ms", "wall_ms")}
    made: Stats = known(Stats, {**raw, **spreads})
    return made


def debug(raw: dict[str, Any]) -> DebugReport:
    source = tuple(known(SourceLine, each) for each in raw["source"])
    made: DebugReport = known(DebugReport, {**raw, "error": results.error_info(raw["error"]), "source": source})
    return made
