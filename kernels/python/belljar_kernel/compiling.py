"""From the text of a run to code that can be executed in the namespace of the session.

A run may end with an expression, whose value is wanted; it may `await` and `return` outside of functions. The first two are a change of
the last statement and a flag of the compiler. For `return` the whole text becomes the body of a loop that runs once:

    while True:                         while True:
        for x in y:                         for x in y:
            if x: return x                      if x: VALUE = x; LEFT_1 = True; break
            if not x: break                     if not x: LEFT_1 = False; break
                                            else: LEFT_1 = False
                                            if LEFT_1: break
                                            break

`break` leaves `try`, `with` and `match` exactly as `return` does, and all else stays what it is in a module: the scope, `global`,
`import *`, annotations, `locals()`. The flag of a loop is set wherever the loop is left, because a `finally` may call a return off.
"""

from .private import BUILTINS as __builtins__  # noqa: F401, I001

import __future__
from _ast import (
    Assign,
    AsyncFor,
    AsyncFunctionDef,
    Break,
    ClassDef,
    Constant,
    Continue,
    Expr,
    For,
    FunctionDef,
    If,
    ImportFrom,
    Load,
    Name,
    PyCF_ALLOW_TOP_LEVEL_AWAIT,
    PyCF_ONLY_AST,
    Return,
    Store,
    While,
)

from .sources import lines_of

VALUE = "<value>"  # no identifier, so nothing of the code's can have this name
_LEFT = "<left {}>"

_PARSE = PyCF_ONLY_AST
_AWAIT = PyCF_ALLOW_TOP_LEVEL_AWAIT
_FUTURES = 0
for _name in __future__.all_feature_names:
    _FUTURES |= getattr(__future__, _name).compiler_flag
# Generators have been part of the language for long; their flag has another meaning in code objects.
_FUTURES &= ~__future__.nested_scopes.compiler_flag & ~__future__.generators.compiler_flag

_LOOPS = (For, AsyncFor, While)
_SCOPES = (FunctionDef, AsyncFunctionDef, ClassDef)
_BODIES = ("body", "orelse", "finalbody")


def as_parsed(name):
    """A name as the parser takes it: what is not ASCII can be written in several ways, of which code finds one."""
    if name.isascii():
        return name
    try:
        return compile(name, "", "eval", _PARSE, True).body.id
    except Exception:
        return name  # code cannot use it


class Compiler:
    """Compiles the runs of one session: `from __future__ import` holds for all that follow."""

    def __init__(self):
        self._flags = 0

    def compile(self, text, filename):
        """The code object. It leaves the value of the run under the name `VALUE`, if there is one."""
        flags = self._flags | _AWAIT
        try:
            tree = compile(text, filename, "exec", flags | _PARSE, True)
        except (RecursionError, MemoryError):
            # Too deep for a tree of Python objects; the compiler alone may go further.
            code = compile(text, filename, "exec", flags, True)
        else:
            body = tree.body
            if body:
                if type(body[-1]) is Expr and not _silenced(text, body[-1]):
                    body[-1] = _assign(VALUE, body[-1].value, body[-1])
                if "return" in text and _returns(body):
                    tree.body = _in_a_loop(body, text, filename)
            code = compile(tree, filename, "exec", flags, True)
        self._flags |= code.co_flags & _FUTURES
        return code


def _silenced(text, statement):
    """Whether a semicolon follows."""
    if ";" not in text:
        return False
    line = lines_of(text)[statement.end_lineno - 1].encode("utf-8", "replace")
    return line[statement.end_col_offset :].lstrip()[:1] == b";"


def _place(node):
    return {
        "lineno": node.lineno,
        "col_offset": node.col_offset,
        "end_lineno": node.end_lineno,
        "end_col_offset": node.end_col_offset,
    }


def _assign(name, value, node):
    place = _place(node)
    return Assign(targets=[Name(id=name, ctx=Store(), **place)], value=value, type_comment=None, **place)


def _constant(value, node):
    return Constant(value=value, kind=None, **_place(node))


def _blocks(statement):
    """The lists of statements in a statement, without those that are another scope."""
    if isinstance(statement, _SCOPES):
        return
    for field in _BODIES:
        block = getattr(statement, field, None)
        if type(block) is list and block:
            yield block
    for part in getattr(statement, "handlers", None) or getattr(statement, "cases", None) or ():
        yield part.body


def _returns(body):
    """Whether there is a `return` outside of functions and classes."""
    waiting = [body]
    while waiting:
        for statement in waiting.pop():
            if type(statement) is Return:
                return True
            waiting.extend(_blocks(statement))
    return False


def _in_a_loop(body, text, filename):
    """The statements with the loop around them, and what has to stay at the beginning of a module before it."""
    start = 0
    first = body[0]
    if type(first) is Expr and type(first.value) is Constant and type(first.value.value) is str:
        start = 1
    while start < len(body) and type(body[start]) is ImportFrom and body[start].module == "__future__":
        start += 1
    head, rest = body[:start], body[start:]
    last = rest[-1]
    loops = 0
    waiting = [(rest, ())]  # blocks, and the flags of the loops they are in, the innermost last
    while waiting:
        block, flags = waiting.pop()
        at = 0
        while at < len(block):
            statement = block[at]
            kind = type(statement)
            if kind is Return:
                value = _constant(None, statement) if statement.value is None else statement.value
                leave = [_assign(VALUE, value, statement)]
                leave += [_assign(flag, _constant(True, statement), statement) for flag in flags]
                block[at : at + 1] = [*leave, Break(**_place(statement))]
                at += len(leave)
            elif kind is Break or kind is Continue:
                if not flags:
                    problem = "'break' outside loop" if kind is Break else "'continue' not properly in loop"
                    line = lines_of(text)[statement.lineno - 1][:-1]
                    raise SyntaxError(problem, (filename, statement.lineno, statement.col_offset + 1, line))
                if kind is Break:
                    block.insert(at, _assign(flags[-1], _constant(False, statement), statement))
                    at += 1
            elif kind in _LOOPS:
                waiting.append((statement.orelse, flags))
                if _returns(statement.body):
                    loops += 1
                    flag = _LEFT.format(loops)
                    waiting.append((statement.body, (*flags, flag)))
                    statement.orelse.insert(0, _assign(flag, _constant(False, statement), statement))
                    test = Name(id=flag, ctx=Load(), **_place(statement))
                    leave = If(test=test, body=[Break(**_place(statement))], orelse=[], **_place(statement))
                    block.insert(at + 1, leave)
                    at += 1
            else:
                waiting.extend((inner, flags) for inner in _blocks(statement))
            at += 1
    if not (type(last) is Assign and getattr(last.targets[0], "id", None) == VALUE):
        rest.append(_assign(VALUE, _constant(None, last), last))  # over that of a return that was called off
    rest.append(Break(**_place(last)))
    loop = While(test=_constant(True, last), body=rest, orelse=[], **_place(rest[0]))
    return [*head, loop]


def clean(namespace):
    """Takes the kernel's own names out of the namespace; returns the value, or the namespace itself if there is none."""
    value = namespace.pop(VALUE, namespace)
    number = 1
    while namespace.pop(_LEFT.format(number), None) is not None:
        number += 1
    return value
