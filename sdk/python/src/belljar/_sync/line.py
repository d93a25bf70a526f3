# Made from `_async` by `scripts/generate.py`. Do not edit.
"""Those whom the daemon had no room for."""

from __future__ import annotations

import time

from .._io import synchronous as io
from ..errors import Unavailable

_LEAST = 0.02
_MOST = 0.25


class Line:
    """They try again one after the other, so that a thousand who wait ask no more often than one does.

    A daemon nearby is asked soon, since that costs next to nothing; one elsewhere when it said, or later.
    """

    def __init__(self, nearby: bool) -> None:
        self._nearby = nearby
        self._turn = io.Lock()
        self._pause = _LEAST
        self.last = 0.0
        """When somebody got in."""

    def wait(self, told: float, left: float) -> None:
        """Until it is worth trying again; no longer than what is left of somebody's patience."""
        if not self._nearby:
            import random

            # Not all at the same moment.
            io.sleep(min(told * (0.5 + random.random()), left))
            return
        if io.acquire(self._turn, left):
            try:
                self._pause = min(2 * self._pause, _MOST)
                io.sleep(min(self._pause, told, left))
            finally:
                self._turn.release()

    def moved(self) -> None:
        """Somebody got in, so the next may too."""
        self._pause = _LEAST
        self.last = time.monotonic()


class Waiter:
    """One of them. As long as others get in, it is worth waiting; patience is for when nobody does."""

    def __init__(self, line: Line, patience: float, advice: str) -> None:
        self._line = line
        self._patience = patience
        self._advice = advice
        self._since = time.monotonic()

    def again(self, problem: Unavailable) -> None:
        """Until it may be tried again. Without any patience left, the problem is raised."""
        left = max(self._since, self._line.last) + self._patience - time.monotonic()
        if self._patience <= 0:
            raise problem
        if left <= 0:
            told = f"{problem}. Nobody got in for {self._patience:g} s: {self._advice}"
            last = Unavailable(told, code=problem.code, request_id=problem.request_id)
            last.retry_after = problem.retry_after
            raise last from None
        self._line.wait(problem.retry_after or 1.0, left)
