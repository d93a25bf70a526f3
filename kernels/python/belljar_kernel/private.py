"""A copy of the builtins that the code which is run cannot reach by chance.

Every module of the kernel begins with `from .private import BUILTINS as __builtins__`: its functions then look up `len`, `isinstance`
or `__import__` here, and go on working after `builtins.len = None`.
"""

import builtins

BUILTINS = dict(vars(builtins))
