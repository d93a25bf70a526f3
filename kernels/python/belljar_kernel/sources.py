"""The source text of runs, under the names that tracebacks use.

Functions of an earlier run may fail in a later one, so each text needs a file name of its own: the first run called `main.py` is
`main.py`, another text of the same name `main.py#2`. What the kernel shows says `main.py` for both.
"""

from .private import BUILTINS as __builtins__  # noqa: F401, I001

import sys
from io import StringIO

MOST_TEXTS = 256
MOST_CHARACTERS = 8 << 20

_modules = sys.modules


def lines_of(text):
    """The lines as the interpreter counts them, each with its end: a form feed or U+2028 ends none, other than for `splitlines`."""
    lines = StringIO(text, newline=None).readlines()
    if lines and lines[-1][-1:] != "\n":
        lines[-1] += "\n"
    return lines


class Sources:
    """Remembers the latest texts, and tells `linecache` of them."""

    def __init__(self):
        self._texts = {}  # file name: (shown name, text), the oldest first
        self._latest = {}  # shown name: file name
        self._characters = 0
        self._count = 0

    def add(self, shown, text):
        """The file name for this text."""
        latest = self._latest.get(shown)
        if latest is not None and self._texts.get(latest, ("", None))[1] == text:
            filename = latest
        else:
            self._count += 1
            filename = shown if latest is None else f"{shown}#{self._count}"
            while filename in self._texts:
                self._count += 1
                filename = f"{shown}#{self._count}"
            self._texts[filename] = (shown, text)
            self._latest[shown] = filename
            self._characters += len(text)
            if len(self._texts) > MOST_TEXTS or self._characters > MOST_CHARACTERS:
                self._forget(filename)
        linecache = _modules.get("linecache")
        if linecache is not None:
            self._tell(linecache, filename, text)
        return filename

    def shown(self, filename):
        """The name to show, or None for a file that is not a run's."""
        entry = self._texts.get(filename)
        return None if entry is None else entry[0]

    def line(self, filename, number):
        """One line of a text, or None."""
        entry = self._texts.get(filename)
        if entry is None:
            return None
        lines = lines_of(entry[1])
        return lines[number - 1][:-1] if 0 < number <= len(lines) else None

    def tell_all(self, linecache):
        """For a `linecache` that is new, or that the code has emptied."""
        for filename, (_, text) in self._texts.items():
            self._tell(linecache, filename, text)

    def _tell(self, linecache, filename, text):
        try:
            cache = linecache.cache
            if filename not in cache:
                # Without a time of change it is taken as it is, whether or not such a file exists.
                cache[filename] = (len(text), None, lines_of(text), filename)
        except Exception:
            pass  # the code has replaced it by something else

    def _forget(self, current):
        linecache = _modules.get("linecache")
        while len(self._texts) > 1 and (len(self._texts) > MOST_TEXTS or self._characters > MOST_CHARACTERS):
            filename = next(iter(self._texts))
            if filename == current:
                break
            shown, text = self._texts.pop(filename)
            self._characters -= len(text)
            if self._latest.get(shown) == filename:
                del self._latest[shown]
            try:
                linecache.cache.pop(filename, None)
            except Exception:
                pass
