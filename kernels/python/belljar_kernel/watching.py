"""Does something to a module of a library right after it was loaded, without loading it."""

from .private import BUILTINS as __builtins__  # noqa: F401, I001

import sys

_modules = sys.modules


class Watcher:
    """A finder that finds nothing itself: it lets the others find, and adds a step to loading."""

    def __init__(self, actions):
        self._actions = dict(actions)

    def install(self):
        """Acts on what is loaded already, and waits for the rest."""
        for name in list(self._actions):
            if name in _modules:
                self._act(name, _modules[name])
        sys.meta_path.insert(0, self)

    def _act(self, name, module):
        action = self._actions.pop(name, None)
        if action is not None:
            try:
                action(module)
            except Exception:
                pass  # another version of the library, or not that library at all

    def find_spec(self, name, path=None, target=None):
        if name not in self._actions:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec = find(name, path, target)
            if spec is not None:
                self._follow(spec, name)
                return spec
        return None

    def _follow(self, spec, name):
        execute = getattr(spec.loader, "exec_module", None)
        if execute is None:
            return

        def execute_and_act(module):
            execute(module)
            self._act(name, module)

        try:
            spec.loader.exec_module = execute_and_act
        except AttributeError:
            pass
