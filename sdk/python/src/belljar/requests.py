"""What callers ask for, as the daemon wants to hear it.

The names are those of the command line and the HTTP API. There are no defaults here: what is not given is not sent, and the
daemon decides.
"""

from __future__ import annotations

import datetime
import inspect
import json
import math
import operator
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypedDict, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Unpack as Unpack
elif sys.version_info >= (3, 11):
    from typing import Unpack
else:

    class Unpack:
        """For those who ask for types while the program runs: Python 3.10 has none, and the package needs no other for it."""

        def __class_getitem__(cls, kind):
            return kind


from .errors import InvalidRequest
from .values import content, to_json

Time = float | str | datetime.timedelta
"""Seconds, a text with a unit (``"500ms"``, ``"2m"``), or a timedelta."""
Size = int | str
"""Bytes, or a text with a unit (``"256m"``)."""
Content = str | bytes | pathlib.Path
"""Text, bytes, or the path of a file of yours."""


class _Place(TypedDict, total=False):
    language: str
    env: Mapping[str, str]
    files: Mapping[str, Content]
    timeout: Time
    memory: Size
    cpus: float
    cpu_shares: int
    processes: int
    max_output: Size
    disk: Size
    open_files: int
    network: Literal["none", "all"] | Sequence[str | Mapping[str, Any]] | Mapping[str, Any]
    imports: Sequence[str]
    filesystem: Literal["workspace", "none"]
    read_only: bool
    workdir: str
    volumes: Sequence[str]
    image: str
    template: str
    packages: Sequence[str]
    backend: Literal["native", "docker"]
    container_runtime: str
    labels: Mapping[str, str]


class RunOptions(_Place, total=False):
    """What a run in a sandbox of its own may have."""

    args: Sequence[str]
    stdin: Content
    globals: Mapping[str, Any]
    collect: Sequence[str]


class SandboxOptions(_Place, total=False):
    """What a kept sandbox may have."""

    name: str
    publish: Sequence[str]
    idle_timeout: Time
    lifetime: Time
    max_runs: int
    max_tool_calls: int


class CodeOptions(TypedDict, total=False):
    """What a run in a kept sandbox may have."""

    args: Sequence[str]
    stdin: Content
    globals: Mapping[str, Any]
    collect: Sequence[str]
    timeout: Time
    max_output: Size


class CommandOptions(TypedDict, total=False):
    """What a command in a kept sandbox may have."""

    stdin: Content
    env: Mapping[str, str]
    cwd: str
    timeout: Time
    max_output: Size


class HistoryOptions(TypedDict, total=False):
    """Which runs. Everything given must hold."""

    limit: int
    status: str
    language: str
    since: str | datetime.datetime | datetime.timedelta
    until: str | datetime.datetime | datetime.timedelta
    label: str
    text: str
    sandbox: str
    tenant: str


F = TypeVar("F", bound=Callable[..., Any])


def spelled_out(options: type) -> Callable[[F], F]:
    """Lets ``help`` and editors without types show every name instead of ``**options``."""

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        names = options.__annotations__  # with those of what it is based on
        more = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=..., annotation=_text(kind))
            for name, kind in names.items()
            if name not in signature.parameters
        ]
        function.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        return function

    return decorate


def _text(kind: Any) -> str:
    return str(getattr(kind, "__forward_arg__", kind))


_LIMITS = {
    "timeout": "timeout_ms",
    "memory": "memory_bytes",
    "cpus": "cpus",
    "cpu_shares": "cpu_shares",
    "processes": "processes",
    "max_output": "output_bytes",
    "disk": "disk_bytes",
    "open_files": "open_files",
}


_TEXTS_BY_NAME = ("env", "labels")
_LISTS = ("args", "imports", "packages", "volumes", "publish", "collect")
_COUNTS = ("max_runs", "max_tool_calls")


def _time(name: str, value: Time) -> int | str:
    if isinstance(value, datetime.timedelta):
        value = value.total_seconds()
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InvalidRequest(f"{name}: {value!r} is not accepted; give seconds, or a text with a unit like 500ms")
    return round(value * 1000)


def _content(name: str, data: Content) -> str | dict[str, str]:
    if isinstance(data, os.PathLike):
        return content(pathlib.Path(data).read_bytes())
    if isinstance(data, (str, bytes, bytearray, memoryview)):
        return content(data)
    _refuse(name, data, "text, bytes or a path")


def body(kind: type, caller: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON object for these options. None is the same as absent."""
    unknown = [name for name in options if name not in kind.__annotations__]
    if unknown:
        raise TypeError(f"{caller}() got an unexpected keyword argument {unknown[0]!r}")
    made: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    for name, value in options.items():
        if value is None:
            continue
        if name in _LIMITS:
            limits[_LIMITS[name]] = _time(name, value) if name == "timeout" else _amount(name, value)
        elif name in ("idle_timeout", "lifetime"):
            made[f"{name}_ms"] = _milliseconds(name, value)
        elif name == "stdin":
            made[name] = _content(name, value)
        elif name == "files":
            made[name] = {path: _content(f"files[{path!r}]", data) for path, data in _named(name, value).items()}
        elif name == "globals":
            made[name] = {key: to_json(item, f"globals[{key!r}]") for key, item in _named(name, value).items()}
        elif name in _TEXTS_BY_NAME:
            made[name] = {key: text(f"{name}[{key!r}]", item) for key, item in _named(name, value).items()}
        elif name in _LISTS:
            made[name] = texts(name, value)
        elif name in _COUNTS:
            made[name] = _amount(name, value)
        elif name == "read_only":
            made[name] = value if isinstance(value, bool) else _refuse(name, value, "True or False")
        elif name == "network":
            made[name] = _network(value)
        else:
            made[name] = text(name, value)
    if limits:
        made["limits"] = limits
    return made


def _refuse(name: str, value: object, accepted: str) -> NoReturn:
    raise InvalidRequest(f"{name}: {type(value).__name__} is not accepted; give {accepted}")


def text(name: str, value: Any) -> str:
    """Nothing but text."""
    return value if isinstance(value, str) else _refuse(name, value, "text")


def texts(name: str, value: Any, accepted: str = "a list of texts") -> list[str]:
    """A list of them. One text is none: it would be taken for the list of its letters."""
    if isinstance(value, (str, bytes, bytearray, Mapping)) or not isinstance(value, Iterable):
        _refuse(name, value, accepted)
    return [text(f"{name}[{at}]", item) for at, item in enumerate(value)]


def _named(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        _refuse(name, value, "a dict")
    for key in value:
        if not isinstance(key, str):
            _refuse(f"a key of {name}", key, "text")
    return value


def _network(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, bytes)) or not isinstance(value, Iterable):
        _refuse("network", value, '"none", "all" or a list of hosts')
    return list(value)


def _amount(name: str, value: Any) -> int | float | str:
    """Which amounts there are is the daemon's to say."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidRequest(f"{name}: {value!r} is not accepted")
        return value
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        _refuse(name, value, "a number")
    return operator.index(value)


def _milliseconds(name: str, value: Time) -> int:
    """For fields that take numbers only."""
    made = _time(name, value)
    if isinstance(made, int):
        return made
    units = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
    digits = made.rstrip("msh")
    unit = made[len(digits) :]
    try:
        return round(float(digits) * units[unit])
    except (ValueError, KeyError, OverflowError):
        raise InvalidRequest(
            f"{name}: {made!r} is not accepted; give seconds, or a text with a unit like 10m"
        ) from None


def encode(made: Mapping[str, Any]) -> bytes:
    """The bytes to send."""
    try:
        text = json.dumps(made, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode()
    except (TypeError, ValueError) as problem:
        raise InvalidRequest(f"the request has no JSON form: {problem}") from None


def history_query(options: Mapping[str, Any]) -> dict[str, str]:
    """The query for these runs."""
    unknown = [name for name in options if name not in HistoryOptions.__annotations__]
    if unknown:
        raise TypeError(f"history() got an unexpected keyword argument {unknown[0]!r}")
    query: dict[str, str] = {}
    for name, value in options.items():
        if value is None:
            continue
        if name == "limit":
            value = operator.index(value) if hasattr(value, "__index__") else _refuse(name, value, "a whole number")
        elif isinstance(value, datetime.timedelta):
            value = f"{round(value.total_seconds() * 1000)}ms"
        elif isinstance(value, datetime.datetime):
            moment = value.astimezone(datetime.timezone.utc)
            value = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        query[name] = str(value)
    return query
