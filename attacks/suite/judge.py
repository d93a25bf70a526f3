"""From what the host saw to a verdict."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .cases import Case
from .jar import MEMORY, OUTPUT, PROCESSES, Ran

HELD, ESCAPED, NOT_RUN = "held", "ESCAPED", "could not run"
# From deadline to the end of the run. Where the deadline is not what is attacked, a slow machine gets more; what attacks it
# goes on for much longer than a busy machine may be late.
DEADLINE_GRACE = {"killed": 1.5}
OTHER_GRACE = LEAST_GRACE = 5.0
# Belljar's own threads, seen beside those of the jar
OWN_THREADS = 24
ENDED_BY_LIMIT = ("timed_out", "out_of_memory", "killed")
REACHED = re.compile(r"^@reached ?(.*)$", re.MULTILINE)
TOLD = re.compile(r"^@.{0,4000}", re.MULTILINE)
SPECIAL = re.compile(r"^@special.*$", re.MULTILINE)


@dataclass
class Verdict:
    """What became of one case in one mode."""

    id: str
    mode: str
    kind: str
    seconds: float
    reasons: list[str] = field(default_factory=list)
    status: str = ""
    told: list[str] = field(default_factory=list)


def made_in(ran: Ran) -> float:
    """The seconds that a container engine took to make a container."""
    result = ran.result or {}
    usage = result.get("usage")
    if result.get("backend") != "docker" or not isinstance(usage, dict):
        return 0.0
    return float(usage.get("start_ms", 0.0)) / 1000


def effects(case: Case, ran: Ran, patience: float) -> list[str]:
    """What the payload achieved, apart from the canaries: told success, broken limits, odd files given back."""
    found = [f"succeeded: {match[1][:160]}" for match in REACHED.finditer(ran.text)][:3]
    found += [match[0] for match in SPECIAL.finditer(ran.files)][:3]
    found += [note for note in ran.notes if not note.startswith("note: ")]
    watched = ran.watched
    wall = watched.wall - made_in(ran)
    grace = max(LEAST_GRACE, DEADLINE_GRACE.get(case.expect, OTHER_GRACE) * patience)
    if watched.hung or wall > case.timeout + grace:
        found.append(f"outlived its {case.timeout:g} s by {wall - case.timeout:.1f} s")
    if watched.threads > PROCESSES + OWN_THREADS:
        found.append(f"{watched.threads} processes and threads, allowed {PROCESSES}")
    if watched.resident > MEMORY * 1.3:
        found.append(f"{watched.resident >> 20} MiB in one process, allowed {MEMORY >> 20}")
    size = watched.stdout_total if ran.result is None else len(str(ran.result.get("stdout", "")).encode(errors="replace"))
    if size > OUTPUT * 1.05:
        found.append(f"{size} bytes came out, allowed {OUTPUT}")
    return found


def judge(case: Case, ran: Ran, trips: list[str], leaks: list[str], patience: float, mode: str) -> Verdict:
    """Belljar's run of one case. Whatever the host noticed outweighs what the result says."""
    reasons = trips + effects(case, ran, patience) + leaks
    status = str((ran.result or {}).get("status", f"exit {ran.watched.code}"))
    kind = ESCAPED if reasons else HELD
    if case.expect == "refused":
        if not reasons and (ran.watched.code != 125 or ran.watched.stdout or not ran.watched.stderr):
            kind, reasons = ESCAPED, [f"not refused: {status}, exit {ran.watched.code}"]
    elif ran.result is None and (ran.watched.code == 125 or not reasons):
        kind = NOT_RUN
        reasons = [f"no result, exit {ran.watched.code}: {ran.watched.stderr[:200].decode(errors='replace')}"]
    elif "@tried" not in ran.text and case.language != "c" and not reasons:
        kind, reasons = NOT_RUN, [f"the attempt was never made ({status}): {ran.text[-200:]}"]
    elif not reasons and (wrong := wrong_facts(case, ran)):
        kind, reasons = ESCAPED, [wrong]
    return Verdict(case.id, mode, kind, ran.watched.wall, reasons, status, TOLD.findall(ran.text)[:8])


def wrong_facts(case: Case, ran: Ran) -> str:
    """A result that does not say what happened."""
    result = ran.result or {}
    wanted = case.statuses or (ENDED_BY_LIMIT if case.expect == "killed" else ())
    if wanted and result.get("status") not in wanted:
        return f"the result says {result.get('status')}, not {' or '.join(wanted)}"
    if case.exit is not None and result.get("exit_code") != case.exit:
        return f"the result says exit code {result.get('exit_code')}, not {case.exit}"
    return ""


def judge_control(case: Case, ran: Ran, trips: list[str], patience: float) -> Verdict:
    """The bare run: it must trip something, or the case proves nothing."""
    reasons = trips + effects(case, ran, patience)
    text = "" if reasons else ran.text[-200:]
    return Verdict(case.id, "control", "tripped" if reasons else "silent", ran.watched.wall, reasons or [text], told=TOLD.findall(ran.text)[:8])
