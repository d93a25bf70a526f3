"""The list of modules that the code may import. A policy for honest code: the sandbox is what confines.

The guard takes the place of `builtins.__import__` and looks at who asks: modules of the library may import what they need, the code
of runs and modules of the workspace only what is listed.
"""

from .private import BUILTINS as __builtins__  # noqa: F401, I001

import builtins
import sys

from .errors import KERNEL

_modules = sys.modules
_import = builtins.__import__
_getframe = sys._getframe


SAFE = frozenset(
    """__future__ abc array asyncio base64 binascii bisect calendar cmath collections colorsys contextlib copy csv dataclasses
    datetime decimal difflib enum fractions functools graphlib hashlib heapq hmac html itertools json keyword math numbers
    operator pprint queue random re reprlib secrets statistics string struct textwrap time timeit tomllib traceback types
    typing unicodedata uuid warnings zlib zoneinfo""".split()
)


class Guard:
    """Decides about imports by name."""

    def __init__(self, names, workspace, namespace):
        listed = set()
        for name in names:
            listed.update(SAFE if name == "safe" else (name,))
        self._listed = listed
        self._parents = {parent for name in listed for parent in _parents(name)}
        self._workspace = workspace.rstrip("/") + "/" if workspace else None
        self._namespace = namespace

    def __call__(self, name, globals=None, locals=None, fromlist=(), level=0):
        if type(name) is str and level == 0:
            frame = _getframe(1)
            if not self._is_library(frame) and not _is_internal(frame, globals, locals, fromlist):
                self._check(name, fromlist)
        return _import(name, globals, locals, fromlist, level)

    def _check(self, name, fromlist):
        if name in self._listed or not self._listed.isdisjoint(_parents(name)):
            return
        if name in self._parents:
            # Only a part of the package is listed: that part may be taken out of it.
            for item in fromlist or ():
                if not isinstance(item, str) or f"{name}.{item}" not in self._listed | self._parents:
                    raise _refusal(f"{name}.{item}")
            return
        raise _refusal(name.partition(".")[0])

    def _is_library(self, frame):
        """Whether a loaded module that is not of the code asks. What `exec` runs counts as the code's."""
        names = frame.f_globals
        if frame.f_code.co_filename.startswith(KERNEL):
            return True
        module = _modules.get(names.get("__name__"))
        if names is self._namespace or module is None or getattr(module, "__dict__", None) is not names:
            return False
        file = names.get("__file__")
        return not (type(file) is str and self._workspace and file.startswith(self._workspace))


def _is_internal(frame, globals, locals, fromlist):
    """Whether a function written in C imports what it needs, as `strptime` does: that looks like an import by its caller."""
    looks_so = type(fromlist) is list and not fromlist and globals is locals and globals is frame.f_globals
    return looks_so and "__import__" not in frame.f_code.co_names


def _parents(name):
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def _refusal(name):
    return ImportError(f"Import '{name}' not allowed", name=name)


def install(names, workspace, namespace):
    """From now on only these modules."""
    builtins.__import__ = Guard(names, workspace, namespace)
