"""Tests in Python that are written for a runner: functions and classes that nothing in their own text calls."""

from __future__ import annotations

import ast

_RUNNERS = frozenset({"unittest", "pytest", "doctest"})


def called(tests: str) -> str:
    """Lines that run them, in their order; the first that fails ends the program, as an assertion outside of a function does.

    None if they run themselves, or take arguments that only a runner has for them.
    """
    try:
        module = ast.parse(tests)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""  # what is wrong with it is for the interpreter to say
    # What is said outside of them, `if __name__ == "__main__": unittest.main()` for example.
    outside = [one for one in module.body if not isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))]
    said = [one for one in outside if not isinstance(one, (ast.Import, ast.ImportFrom))]
    used = {node.id for one in said for node in ast.walk(one) if isinstance(node, ast.Name)}
    if used & _RUNNERS:
        return ""
    lines: list[str] = []
    has_cases = False
    for one in module.body:
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if one.name not in used:
                lines += _call(one, "")
        elif isinstance(one, ast.ClassDef) and one.name not in used:
            if any(ast.unparse(base).endswith("TestCase") for base in one.bases):
                has_cases = True
            elif one.name.startswith("Test") and not one.bases:
                for method in one.body:
                    if isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)):
                        lines += _call(method, f"{one.name}()")
    if has_cases:
        lines.append("__import__('unittest').main()")
    return "\n".join(lines)


def _call(function: ast.FunctionDef | ast.AsyncFunctionDef, owner: str) -> list[str]:
    arguments = function.args
    positional = len(arguments.posonlyargs) + len(arguments.args) - len(arguments.defaults) - bool(owner)
    wanted = positional > 0 or None in arguments.kw_defaults
    if not function.name.startswith("test") or wanted or function.decorator_list:
        return []
    call = f"{owner}.{function.name}()" if owner else f"{function.name}()"
    return [f"__import__('asyncio').run({call})" if isinstance(function, ast.AsyncFunctionDef) else call]
