"""The Python kernel: keeps an interpreter alive between runs of untrusted code, and speaks with the engine over a socket.

`serve` is the whole life of a kernel. A zygote, which forks kernels, calls `prewarm` and `learn` before it forks, and `after_fork` and `touch` in the child;
one that is a scout, `prewarm` and `tell_layout`.
"""

from .fresh import after_fork, learn, prewarm, tell_layout
from .serving import serve, touch

__all__ = ["after_fork", "learn", "prewarm", "serve", "tell_layout", "touch"]
