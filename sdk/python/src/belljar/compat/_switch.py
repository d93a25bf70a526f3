"""Whether something is to be: as settings files and environment variables say it too."""

from __future__ import annotations

_WORDS = {
    **dict.fromkeys(("true", "yes", "on", "1", "t", "y"), True),
    **dict.fromkeys(("false", "no", "off", "0", "f", "n"), False),
}


def switch(name: str, value: object) -> bool:
    """``ValueError`` for what is neither. A text is not taken for yes because it is one: ``"false"`` is not."""
    if isinstance(value, (bool, int)) and value in (0, 1):
        return bool(value)
    known = _WORDS.get(value.strip().lower()) if isinstance(value, str) else None
    if known is None:
        raise ValueError(f"{name}: {value!r} is not accepted; give True or False")
    return known
