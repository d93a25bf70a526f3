"""What people and programs read: the table, the progress line, the sums, the JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .cases import Case
from .judge import ESCAPED, HELD, NOT_RUN, Verdict

CONTROL_SHARE = 0.95
# Each says why: what it forges or floods is not there without a jar.
NO_CONTROL_SHARE = 0.08


@dataclass
class Report:
    """Everything that was found out, and whether it is good enough."""

    cases: int
    verdicts: list[Verdict] = field(default_factory=list)
    control: list[Verdict] = field(default_factory=list)
    layers: dict[str, list[Verdict]] = field(default_factory=dict)
    reachable: dict[str, list[int]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    passed: int = 0

    def check(self, good: bool, sentence: str) -> None:
        if good:
            self.passed += 1
        else:
            self.failures.append(sentence)

    def count(self) -> None:
        for verdict in self.verdicts:
            self.check(verdict.kind == HELD, f"{verdict.id} ({verdict.mode}): {verdict.kind}: {'; '.join(verdict.reasons)}")

    def control_is_good(self, cases: list[Case]) -> None:
        tripped = sum(verdict.kind == "tripped" for verdict in self.control)
        left_out = [case for case in cases if case.no_control]
        self.check(
            tripped >= CONTROL_SHARE * len(self.control),
            f"control: {tripped} of {len(self.control)} cases tripped a canary, fewer than {CONTROL_SHARE:.0%}",
        )
        self.check(
            len(left_out) < NO_CONTROL_SHARE * len(cases) or len(cases) < 100,
            f"control: {len(left_out)} cases have none",
        )

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


class Progress:
    """A line that rewrites itself on a terminal, and one line per case either way."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self.live = sys.stderr.isatty()

    def tell(self, verdict: Verdict) -> None:
        self.done += 1
        if self.live:
            sys.stderr.write("\r\033[K")
        why = "" if verdict.kind == HELD else "  " + "; ".join(verdict.reasons)[:400].replace("\n", "\\n")
        print(f"{verdict.id:<34} {verdict.mode:<9} {verdict.kind:<14} {verdict.seconds:6.2f} s  {verdict.status}{why}", flush=True)
        if self.live and self.done < self.total:
            sys.stderr.write(f"{self.done}/{self.total}")
            sys.stderr.flush()


def summary(report: Report) -> None:
    escaped = sum(verdict.kind == ESCAPED for verdict in report.verdicts)
    not_run = sum(verdict.kind == NOT_RUN for verdict in report.verdicts)
    if report.verdicts:
        print(f"tried {len(report.verdicts)} / escaped {escaped} / could not run {not_run}")
    for mode, numbers in report.reachable.items():
        print(f"reachable system calls ({mode}): {len(numbers)}")
    if report.control:
        tripped = sum(verdict.kind == "tripped" for verdict in report.control)
        print(f"control: {tripped} of {len(report.control)} tripped a canary with nothing in the way")
    for layer, verdicts in report.layers.items():
        caught = [verdict.id for verdict in verdicts if verdict.kind == ESCAPED]
        print(f"without {layer}: {len(caught)} of {len(verdicts)} noticed it ({', '.join(caught) or 'none'})")
    for sentence in report.failures:
        print("FAILED " + sentence[:600].replace("\n", "\\n"))
    print(f"{report.passed} passed, {len(report.failures)} failed")
