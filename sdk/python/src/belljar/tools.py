"""Functions of the caller that code inside may call."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import json
import keyword
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from .errors import BelljarError, InvalidRequest
from .values import to_json

Function = Callable[..., Any]
Tools = Mapping[str, Function] | Iterable[Function]
MOST_BYTES = 16 << 20
"""Of one message to the daemon. A longer one would end the connection."""


class Toolbox:
    """Functions by the names that code inside knows them by."""

    def __init__(self, tools: Tools) -> None:
        if isinstance(tools, Mapping):
            self.functions = dict(tools)
        else:
            if callable(tools) or not isinstance(tools, Iterable):
                raise TypeError(f"tools: {type(tools).__name__} is not accepted; give a list or a dict of functions")
            self.functions = {}
            for function in tools:
                name = name_of(function)
                if callable(function) and name in self.functions:
                    raise InvalidRequest(f"tools: two are called {name!r}; give each a name of its own, as in a dict")
                self.functions[name] = function
        for name, function in self.functions.items():
            if not callable(function):
                raise TypeError(f"the tool {name!r} is of type {type(function).__name__}; give a function")
            if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
                raise InvalidRequest(f"tools: {name!r} is not accepted; give names that code can call, as in a dict")
        self.specs = [_spec(name, function) for name, function in self.functions.items()]

    def __bool__(self) -> bool:
        return bool(self.functions)


class Serving:
    """A run whose calls of tools are answered. Until it is over, other code in its sandbox waits."""

    def __init__(self, sandbox: str) -> None:
        self.sandbox = sandbox
        self.is_over = False

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """What is begun in here, also in other threads and tasks, is known to be done for this run."""
        token = _serving.set((*_serving.get(), self))
        try:
            yield
        finally:
            _serving.reset(token)


_serving: ContextVar[tuple[Serving, ...]] = ContextVar("belljar_serving", default=())


def is_serving(sandbox: str | None) -> bool:
    """Whether a tool that code of this sandbox waits for is what asks."""
    return any(one.sandbox == sandbox and not one.is_over for one in _serving.get())


def toolbox(tools: Tools | None) -> Toolbox | None:
    """None stays None: the sandbox's own tools then hold."""
    return None if tools is None else Toolbox(tools)


def name_of(function: Function) -> str:
    name = getattr(function, "__name__", None) or type(function).__name__
    return str(name)


def is_async(function: Function) -> bool:
    """Whether code inside has to await it."""
    inner: Any = inspect.unwrap(function) if inspect.isfunction(function) else function
    while hasattr(inner, "func"):  # functools.partial
        inner = inner.func
    if inspect.iscoroutinefunction(inner):
        return True
    return inspect.iscoroutinefunction(getattr(type(inner), "__call__", None))  # noqa: B004


def _spec(name: str, function: Function) -> dict[str, Any]:
    spec: dict[str, Any] = {"name": name, "doc": _doc(function), "async": is_async(function)}
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return {**spec, "parameters": ["*args", "**kwargs"]}
    spec["parameters"] = _parameters(signature)
    returns = signature.return_annotation
    if returns is not signature.empty:
        spec["returns"] = returns if isinstance(returns, str) else inspect.formatannotation(returns)
    return spec


def _doc(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    told = inspect.getdoc(function)
    if not told and not inspect.isroutine(function) and not inspect.isclass(function):
        told = inspect.getdoc(type(function).__call__)
    return told or ""


def _parameters(signature: inspect.Signature) -> list[str]:
    """Each as it is written in a definition, with the marks ``/`` and ``*`` where they stand."""
    written: list[str] = []
    kinds = inspect.Parameter
    parameters = list(signature.parameters.values())
    starred = False
    for at, parameter in enumerate(parameters):
        if parameter.kind is kinds.KEYWORD_ONLY and not starred:
            written.append("*")
            starred = True
        starred = starred or parameter.kind is kinds.VAR_POSITIONAL
        written.append(_written(parameter))
        after = parameters[at + 1].kind if at + 1 < len(parameters) else None
        if parameter.kind is kinds.POSITIONAL_ONLY and after is not kinds.POSITIONAL_ONLY:
            written.append("/")
    return written


def _written(parameter: inspect.Parameter) -> str:
    if isinstance(parameter.annotation, str):
        # As it stands in the source; it would be shown in quotes.
        text = str(parameter.replace(annotation=parameter.empty, default=parameter.empty)) + f": {parameter.annotation}"
    else:
        text = str(parameter.replace(default=parameter.empty))
    if parameter.default is not parameter.empty:
        annotated = parameter.annotation is not parameter.empty
        text += (" = " if annotated else "=") + _default(parameter.default)
    return text


def _default(value: Any) -> str:
    text = repr(value)
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return "..."
    return text


def value_of(tool: str, value: Any) -> dict[str, Any]:
    """The part of an answer that has what a tool returned."""
    try:
        return {"value": to_json(value, f"what {tool}() returned")}
    except BelljarError as problem:
        return failure(TypeError(str(problem)))


def failure(error: BaseException) -> dict[str, Any]:
    """The part of an answer that says that a tool failed; raised inside, where it was called."""
    try:
        message = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    except Exception:
        message = ""  # It cannot say it. Code inside waits for an answer all the same.
    return {"error": {"type": type(error).__name__, "message": message[:65_536]}}


def answer(run: str, call: int, tool: str, outcome: dict[str, Any]) -> str:
    """The message with the outcome of a call. If that is too long, the code is told so instead."""
    text = json.dumps({"op": "answer", "run": run, "call": call, **outcome})
    if len(text) > MOST_BYTES:
        told = failure(ValueError(f"what {tool}() returned has {len(text)} bytes; {MOST_BYTES} are the most"))
        text = json.dumps({"op": "answer", "run": run, "call": call, **told})
    return text
