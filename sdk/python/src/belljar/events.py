"""What happens during a run, as it happens."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, Literal

from . import results
from .results import Display, Result
from .values import from_json


@dataclass(frozen=True, slots=True)
class StdoutEvent:
    """The code printed something."""

    text: str
    data: bytes
    type: Literal["stdout"] = "stdout"


@dataclass(frozen=True, slots=True)
class StderrEvent:
    """The code printed something to standard error."""

    text: str
    data: bytes
    type: Literal["stderr"] = "stderr"


@dataclass(frozen=True, slots=True)
class DisplayEvent:
    """The code showed something."""

    display: Display
    type: Literal["display"] = "display"


@dataclass(frozen=True, slots=True)
class ToolCallEvent:
    """The code called a tool. It is answered without further ado."""

    call: int
    tool: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    type: Literal["tool_call"] = "tool_call"


@dataclass(frozen=True, slots=True)
class ResultEvent:
    """The run is over. Always the last."""

    result: Result
    type: Literal["result"] = "result"


Event = StdoutEvent | StderrEvent | DisplayEvent | ToolCallEvent | ResultEvent


def event(name: str, data: dict[str, Any]) -> Event | None:
    """An event from what the daemon said; None for one that this version does not know."""
    if name == "stdout" or name == "stderr":
        text = data["text"]
        encoded = data.get("base64")
        content = text.encode("utf-8", "replace") if encoded is None else base64.b64decode(encoded)
        return StdoutEvent(text, content) if name == "stdout" else StderrEvent(text, content)
    if name == "display":
        return DisplayEvent(results.display(data["display"]))
    if name == "tool_call":
        args = tuple(from_json(arg) for arg in data["args"])
        kwargs = {key: from_json(value) for key, value in data["kwargs"].items()}
        return ToolCallEvent(data["call"], data["tool"], args, kwargs)
    if name == "result":
        return ResultEvent(results.result(data["result"]))
    return None
