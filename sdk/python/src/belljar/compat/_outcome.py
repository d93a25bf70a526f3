"""What code has to show for itself, if it neither returns nor ends with anything."""

from __future__ import annotations

import ast

_VARIABLE = "result"
_MAIN = "__main__"


def asked(code: str) -> str:
    """The code, and a last line that asks for its variable ``result``, or for what its ``async def __main__()`` returns.

    As it is if it has neither, or returns something itself, or ends with something to look at. A call at its end is no such thing: it
    may well print the variable.
    """
    try:
        statements = ast.parse(f"async def code():\n{_indented(code)}").body[0]
        assert isinstance(statements, ast.AsyncFunctionDef)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code  # what is wrong with it is for the interpreter to say
    here = list(_at_top(statements))
    if any(isinstance(node, ast.Return) for node in here):
        return code
    last = statements.body[-2] if len(statements.body) > 1 else None
    if isinstance(last, ast.Expr) and not isinstance(last.value, (ast.Call, ast.Await)):
        return code
    if any(isinstance(node, ast.AsyncFunctionDef) and node.name == _MAIN for node in here):
        return f"{code}\nawait {_MAIN}()"
    if any(isinstance(node, ast.Name) and node.id == _VARIABLE and isinstance(node.ctx, ast.Store) for node in here):
        # It may not have come to that.
        return f"{code}\n{_VARIABLE} if {_VARIABLE!r} in globals() else None"
    return code


def _indented(code: str) -> str:
    # Texts of several lines are other texts then; nothing here looks at them.
    return "".join(f" {line}" for line in code.splitlines(keepends=True)) + "\n pass"


def _at_top(node: ast.AST) -> list[ast.AST]:
    """Everything that is not inside of a function or class of the code's own."""
    found: list[ast.AST] = []
    left = list(ast.iter_child_nodes(node))
    while left:
        one = left.pop()
        found.append(one)
        if not isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            left.extend(ast.iter_child_nodes(one))
    return found
