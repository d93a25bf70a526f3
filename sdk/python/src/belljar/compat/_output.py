"""What was printed, for callers who want all of it."""

from __future__ import annotations

MOST = 16 << 20
"""Bytes of each of the two outputs. A sandbox keeps much less of them unless it is told."""


def told(text: str, truncated: bool) -> str:
    """The text; where it is not all that was printed, it says so at its end."""
    return f"{text}\n[cut: more than {MOST} bytes were printed]\n" if truncated else text
