"""For zygotes: what is done once before forking, and what has to be different in every child."""

from .private import BUILTINS as __builtins__  # noqa: F401, I001


def prewarm():
    """Before forking."""


def after_fork():
    """In a forked child."""
