"""codomyrmex's ``coding.monitoring``: what the caller itself uses, and sums over results."""

from __future__ import annotations

import resource
import time
from typing import Any


class ResourceMonitor:
    """What the calling process itself uses. What code uses is in the answer of ``execute_with_limits``."""

    def __init__(self) -> None:
        self.start_time: float | None = None
        self.start_memory = 0.0
        self.peak_memory = 0.0
        self.cpu_usage: list[float] = []
        self._last = (0.0, 0.0)

    def start_monitoring(self) -> None:
        self.start_time = time.monotonic()
        self.start_memory = self.peak_memory = _own_memory()
        self._last = (self.start_time, time.process_time())

    def update_monitoring(self) -> None:
        now, spent = time.monotonic(), time.process_time()
        self.peak_memory = max(self.peak_memory, _own_memory())
        if now > self._last[0]:
            self.cpu_usage.append(100 * (spent - self._last[1]) / (now - self._last[0]))
        self._last = (now, spent)

    def get_resource_usage(self) -> dict[str, Any]:
        shares = self.cpu_usage
        elapsed = time.monotonic() - self.start_time if self.start_time is not None else 0.0
        return {
            "execution_time_seconds": round(elapsed, 3),
            "memory_start_mb": round(self.start_memory, 2),
            "memory_peak_mb": round(self.peak_memory, 2),
            "cpu_samples": len(shares),
            "cpu_average_percent": round(sum(shares) / len(shares), 2) if shares else 0.0,
            "cpu_peak_percent": round(max(shares), 2) if shares else 0.0,
        }


def _own_memory() -> float:
    """Megabytes; the most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class ExecutionMonitor:
    """Keeps track of executions by the names that their caller gives them."""

    def __init__(self) -> None:
        self.executions: list[dict[str, Any]] = []
        self.start_time: float | None = None
        self.end_time: float | None = None

    def start_execution(self, execution_id: str, language: str, code_length: int) -> None:
        self.start_time = time.time()
        entry = {"execution_id": execution_id, "language": language, "code_length": code_length}
        self.executions.append(entry | {"start_time": self.start_time, "status": "running"})

    def end_execution(self, execution_id: str, status: str, result: dict[str, Any] | None = None) -> None:
        self.end_time = time.time()
        for entry in self.executions:
            if entry["execution_id"] == execution_id and "end_time" not in entry:
                entry |= {"end_time": self.end_time, "execution_time": self.end_time - entry["start_time"]}
                entry |= {"status": status} if result is None else {"status": status, "result": result}
                return

    def get_execution_stats(self) -> dict[str, Any]:
        times = [entry["execution_time"] for entry in self.executions if "execution_time" in entry]
        good = sum(entry["status"] == "success" for entry in self.executions)
        return {
            "total_executions": len(self.executions),
            "completed_executions": len(times),
            "average_execution_time": round(sum(times) / len(times), 3) if times else 0,
            "success_count": good,
            "error_count": len(times) - good,
        }


class MetricsCollector:
    """Sums up answers."""

    def __init__(self) -> None:
        self.metrics: list[dict[str, Any]] = []

    def record_execution(self, execution_result: dict[str, Any]) -> None:
        kept = ("timestamp", "language", "status", "execution_time", "exit_code", "resource_usage")
        absent: dict[str, Any] = {"execution_time": 0, "exit_code": -1, "resource_usage": {}}
        self.metrics.append({name: execution_result.get(name, absent.get(name)) for name in kept})

    def get_language_stats(self) -> dict[str, dict[str, Any]]:
        languages: dict[str, list[dict[str, Any]]] = {}
        for metric in self.metrics:
            languages.setdefault(str(metric["language"] or "unknown"), []).append(metric)
        return {language: _sum(metrics, "count") for language, metrics in languages.items()}

    def get_summary(self) -> dict[str, Any]:
        return _sum(self.metrics, "total_executions")

    def clear(self) -> None:
        self.metrics.clear()


def _sum(metrics: list[dict[str, Any]], count: str) -> dict[str, Any]:
    total = len(metrics)
    good = sum(metric["status"] == "success" for metric in metrics)
    spent = sum(metric["execution_time"] for metric in metrics)
    return {
        count: total,
        "success_count": good,
        "error_count": total - good,
        "success_rate": round(100 * good / total, 2) if total else 0,
        "average_execution_time": round(spent / total, 3) if total else 0,
        "total_execution_time": round(spent, 3),
    }
