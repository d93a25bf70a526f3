"""How many of the kernel's system calls a program in the jar can reach at all."""

from __future__ import annotations

import json
import re

from .canaries import PAYLOADS
from .cases import Case


def probe_case() -> Case:
    return Case(
        id="S01-reachable-syscalls", does="calls every number with harmless arguments and counts the answers",
        expect="contained", language="python", code=(PAYLOADS / "probe.py").read_text(), timeout=60.0,
    )


def reachable(text: str) -> list[int] | None:
    """The numbers the probe found, from its report."""
    match = re.search(r"^@reachable (\[.*\])$", text, re.MULTILINE)
    return json.loads(match[1]) if match else None
