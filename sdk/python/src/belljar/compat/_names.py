"""Other names for the options of a class, which its documents do not have and its users know all the same."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T", bound=type)


def also(taken: Callable[[Any, Mapping[str, Any]], dict[str, Any]], *names: str) -> Callable[[T], T]:
    """Has ``taken`` say, of those of ``names`` that somebody gives, which options they stand for. The signature stays as it is."""

    def decorate(kind: T) -> T:
        owner: Any = kind
        plain = owner.__init__

        @functools.wraps(plain)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            given = {name: kwargs.pop(name) for name in names if name in kwargs}
            more = taken(self, given) if given else {}
            if twice := sorted(more.keys() & kwargs.keys()):
                raise TypeError(f"{twice[0]} is given twice, under two names")
            plain(self, *args, **kwargs, **more)

        owner.__init__ = init
        return kind

    return decorate
