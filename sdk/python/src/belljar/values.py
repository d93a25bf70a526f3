"""Values that travel: Python's to JSON, and JSON's back.

What JSON lacks travels as an object with one key that begins with ``$``, both ways, and arrives as what it was. Nothing that
comes from a sandbox is ever unpickled or evaluated.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import datetime
import enum
import math
import sys
from collections.abc import Mapping
from typing import Any

from .errors import InvalidRequest

_TEXTS = (
    ("decimal", "Decimal"),
    ("fractions", "Fraction"),
    ("uuid", "UUID"),
    ("pathlib", "PurePath"),
    ("ipaddress", "IPv4Address"),
    ("ipaddress", "IPv6Address"),
)
"""Classes whose values travel as text. Who has such a value has loaded the module; nobody else needs it."""
_DATES = (datetime.datetime, datetime.date, datetime.time)
_DEEPEST = 64
_SMALLEST, _LARGEST = -(1 << 63), (1 << 64) - 1
_MOST_BITS = 14_000
"""About as many digits as Python turns into a number by default."""


def from_json(value: Any) -> Any:
    """What a sandbox said, as Python has it."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((key, inner),) = value.items()
        if key.startswith("$"):
            return _marked(key, inner, value)
    return {key: from_json(item) for key, item in value.items()}


def _marked(key: str, inner: Any, whole: dict[str, Any]) -> Any:
    """A form that JSON lacks; anything malformed stays as it came, since code inside may write what it likes."""
    try:
        if key == "$bytes":
            return base64.b64decode(inner, validate=True)
        if key == "$int":
            return int(inner)
        if key == "$float" and inner in ("nan", "inf", "-inf"):
            return float(inner)
        if key == "$dict":
            return {_hashable(from_json(name)): from_json(item) for name, item in inner}
    except (ValueError, TypeError, binascii.Error):
        pass
    return {name: from_json(item) for name, item in whole.items()}


def _hashable(key: Any) -> Any:
    return tuple(_hashable(item) for item in key) if isinstance(key, list) else key


def to_json(value: Any, what: str = "value") -> Any:
    """A value of the caller in a form that JSON has; :class:`InvalidRequest` names what has none."""
    return _encode(value, what, 0)


def _encode(value: Any, what: str, depth: int) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if depth > _DEEPEST:
        raise InvalidRequest(f"{what} is nested more than {_DEEPEST} deep")
    if isinstance(value, enum.Enum):
        return _encode(value.value, what, depth + 1)
    if isinstance(value, int):
        if _SMALLEST <= value <= _LARGEST:
            return int(value)
        if value.bit_length() > _MOST_BITS:
            raise InvalidRequest(f"{what} has more than {_MOST_BITS} bits; give it as text")
        return {"$int": str(int(value))}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"$bytes": base64.b64encode(bytes(value)).decode("ascii")}
    if isinstance(value, Mapping):
        return _mapping(value, what, depth)
    if isinstance(value, (list, tuple, set, frozenset, range)):
        return [_encode(item, f"{what}[{at}]", depth + 1) for at, item in enumerate(value)]
    if isinstance(value, _DATES):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if any(name in sys.modules and isinstance(value, getattr(sys.modules[name], kind, ())) for name, kind in _TEXTS):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: _encode(getattr(value, field.name), f"{what}.{field.name}", depth + 1) for field in fields}
    if hasattr(value, "columns") and callable(getattr(value, "to_dict", None)):  # a table of pandas
        return _encode(value.to_dict("records"), what, depth + 1)
    if callable(getattr(value, "tolist", None)):  # numpy, pandas, torch
        return _encode(value.tolist(), what, depth + 1)
    raise InvalidRequest(f"{what} is of type {type(value).__name__}, which has no JSON form")


def _mapping(value: Mapping[Any, Any], what: str, depth: int) -> dict[str, Any]:
    made = {key: _encode(item, f"{what}[{key!r}]", depth + 1) for key, item in value.items()}
    if all(isinstance(key, str) for key in made) and not (len(made) == 1 and next(iter(made)).startswith("$")):
        return {str(key): item for key, item in made.items()}
    # Keys of other kinds, or one that would be taken for one of the marks.
    return {"$dict": [[_encode(key, f"a key of {what}", depth + 1), item] for key, item in made.items()]}


def piece(data: Any) -> bytes:
    """A part of a file, as it is sent."""
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise InvalidRequest(f"a piece of a file: {type(data).__name__} is not accepted; give text or bytes")


def content(data: str | bytes | bytearray | memoryview) -> str | dict[str, str]:
    """Text or bytes, as requests have them."""
    if isinstance(data, str):
        return data
    return {"base64": base64.b64encode(bytes(data)).decode("ascii")}
