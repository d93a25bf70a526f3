"""Functions of the caller, called over the channel while a run is going on."""

from .private import BUILTINS as __builtins__  # noqa: F401, I001

import __future__
import builtins
from _ast import Attribute, Call, Constant, Name, PyCF_ONLY_AST

from . import frames
from .answers import FutureWaiter, Waiter
from .channel import MOST_OUT
from .compiling import as_parsed
from .values import NoJson, TooLarge, given, to_json

MOST_CLASSES = 256
_NOT_RAISED = (StopIteration, StopAsyncIteration)  # would be taken for something else than a failure


class ToolError(Exception):
    """A tool of the caller failed with an exception that is not one of Python's own."""


ToolError.__module__ = "builtins"


class Tools:
    """The functions that stand for the caller's."""

    def __init__(self, channel, answers):
        self._channel = channel
        self._answers = answers
        self._specs = []
        self._functions = {}
        self._classes = {}

    def install(self):
        builtins.ToolError = ToolError

    def begin(self, specs, namespace):
        """The functions are there for the run; those of an earlier run that are not listed any more are taken away.

        None: as they are, but for names that the code has given another meaning.
        """
        if specs is None:
            for name, function in self._functions.items():
                namespace.setdefault(name, function)
            return
        if specs != self._specs:
            before, self._functions = self._functions, {as_parsed(spec["name"]): self._function(spec) for spec in specs}
            self._specs = specs
            for name, function in before.items():
                if namespace.get(name) is function:
                    del namespace[name]
        if specs:
            namespace.update(self._functions)

    def _function(self, spec):
        name = spec["name"]
        tools = self

        if spec.get("async"):

            async def tool(*args, **kwargs):
                return await tools._call_async(name, args, kwargs)

        else:

            def tool(*args, **kwargs):
                return tools._call(name, args, kwargs)

        tool.__name__ = tool.__qualname__ = name
        tool.__module__ = "__main__"
        tool.__doc__ = spec.get("doc") or None
        signature = _signature(name, spec.get("parameters") or [], spec.get("returns"))
        if signature is not None:
            tool.__wrapped__ = signature  # for `help` and `inspect.signature`
            tool.__annotations__ = signature.__annotations__
        return tool

    def _ask(self, name, args, kwargs, waiter):
        """Sends the call; the waiter will get the answer."""
        too_large = f"the arguments of {name}() are too large: {MOST_OUT} bytes are the most"
        try:
            sent = f'"args":{_encode(list(args))},"kwargs":{_encode(kwargs)}'
        except TooLarge:
            raise ValueError(too_large) from None
        except NoJson as problem:
            raise TypeError(f"the arguments of {name}() have no JSON form: {problem}") from None
        if not self._channel.is_ours():
            raise RuntimeError(f"{name}() is a tool of the caller and cannot be called from a forked process")
        run, number = self._answers.expect(waiter)
        if run is None:
            raise RuntimeError(f"{name}() is a tool of the caller and can be called only while a run is going on")
        head = f'{{"op":"call","id":{frames.to_text(run)},"call":{number},"tool":{frames.to_text(name)},'
        try:
            self._channel.send(f"{head}{sent}}}", run)
        except ValueError:
            self._answers.forget(number, waiter)
            raise ValueError(too_large) from None
        return number

    def _call(self, name, args, kwargs):
        waiter = Waiter()
        number = self._ask(name, args, kwargs, waiter)
        try:
            self._answers.wait(waiter)
        finally:
            self._answers.forget(number, waiter)
        return self._result(waiter.answer)

    async def _call_async(self, name, args, kwargs):
        from asyncio import get_running_loop

        loop = get_running_loop()
        waiter = FutureWaiter(loop, self._answers)
        number = self._ask(name, args, kwargs, waiter)
        self._answers.watch(loop)
        try:
            answer = await waiter.future
        finally:
            if self._answers.forget(number, waiter):
                self._answers.unwatch(loop)
        return self._result(answer)

    def _result(self, answer):
        error = answer.get("error")
        if error is None:
            return given(answer.get("value"))
        raise self._exception(str(error.get("type") or "ToolError"), str(error.get("message") or ""))

    def _exception(self, name, message):
        kind = __builtins__.get(name)
        if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, _NOT_RAISED):
            try:
                return kind(message)
            except TypeError:
                pass  # wants other arguments, as UnicodeDecodeError does
        if name == "ToolError":
            return ToolError(message)
        kind = self._classes.get(name)
        if kind is None:
            kind = type(name, (ToolError,), {"__module__": "builtins"})
            if len(self._classes) < MOST_CLASSES:
                self._classes[name] = kind
        return kind(message)


def _encode(value):
    return frames.to_text(to_json(value, MOST_OUT))


def _signature(name, parameters, returns):
    """A function with these parameters, or None if they are not Python's: "query: str", "limit: int = 5"."""
    for arrow in (f" -> {returns}", "") if returns else ("",):
        try:
            tree = compile(f"def {name}({', '.join(parameters)}){arrow}: ...", "<tool>", "exec", PyCF_ONLY_AST, True)
            break
        except Exception:
            continue
    else:
        return None
    for defaults in (tree.body[0].args.defaults, tree.body[0].args.kw_defaults):
        for at, default in enumerate(defaults):
            # Names have a meaning where the caller is, not here.
            if isinstance(default, (Name, Attribute, Call)):
                place = {"lineno": default.lineno, "col_offset": default.col_offset}
                defaults[at] = Constant(value=..., kind=None, **place)
    for flags in (0, __future__.annotations.compiler_flag):  # types that are unknown here stay texts
        names = {"__name__": "__main__"}
        try:
            exec(compile(tree, "<tool>", "exec", flags, True), names)
            return names[as_parsed(name)]
        except Exception:
            continue
    return None
