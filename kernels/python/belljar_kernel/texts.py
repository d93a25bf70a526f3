"""The text forms of values, bounded, whatever the objects do."""

from .private import BUILTINS as __builtins__  # noqa: F401, I001

from sys import exc_info

CUT = "…"
_CONTAINERS = {list: "[]", tuple: "()", set: "{}", frozenset: ("frozenset({", "})"), dict: "{}"}


def cut(text, most):
    """The text in at most so many bytes of UTF-8."""
    if len(text) * 4 <= most:
        return text
    data = text[:most].encode("utf-8", "surrogatepass")
    if len(data) <= most and len(text) <= most:
        return text
    return data[: max(most - 3, 0)].decode("utf-8", "ignore") + CUT


def name_of(kind):
    """The name of a class as tracebacks show it."""
    try:
        name = type.__dict__["__qualname__"].__get__(kind)
        module = kind.__module__
        if module in ("builtins", "__main__") or type(module) is not str:
            return name
        return f"{module}.{name}"
    except Exception:
        return "object"


def of(value, most, known_small=False):
    """What `repr` says. If that fails or is no text, a description of the value. An interrupt passes through."""
    kind = type(value)
    try:
        if kind is str or kind is bytes:
            return cut(repr(value[:most]) if len(value) > most else repr(value), most)
        if kind in _CONTAINERS and not known_small:
            return cut(_of_container(value, most, set()), most)
        text = repr(value)
        if type(text) is not str:
            text = str.__str__(text)
        return cut(text, most)
    except KeyboardInterrupt:
        raise
    except BaseException:
        if isinstance(value, int):
            return f"<{name_of(kind)} of {int.bit_length(value)} bits>"
        return f"<{name_of(kind)} object, its repr failed with {name_of(exc_info()[0])}>"


def _of_container(value, most, inside):
    """As `repr`, but it stops when there is enough."""
    kind = type(value)
    opening, closing = _CONTAINERS[kind]
    if not value or len(inside) > 100:
        return repr(value)
    if id(value) in inside:
        return f"{opening}...{closing}"
    inside.add(id(value))
    parts = []
    for item in value.items() if kind is dict else value:
        if kind is dict:
            part = f"{_of_item(item[0], most, inside)}: {_of_item(item[1], most, inside)}"
        else:
            part = _of_item(item, most, inside)
        parts.append(part)
        most -= len(part) + 2
        if most < 0:
            break
    inside.discard(id(value))
    if kind is tuple and len(value) == 1:
        closing = ",)"
    return opening + ", ".join(parts) + closing


def _of_item(value, most, inside):
    kind = type(value)
    if kind in _CONTAINERS:
        return _of_container(value, most, inside)
    if (kind is str or kind is bytes) and len(value) > most:
        return repr(value[: max(most, 0)]) + CUT
    return repr(value)
