"""Runs the examples of `examples/*.md`: each as it stands, `await` at top level included."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import types
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parent / "examples"
BLOCK = re.compile(r"^## (?P<title>.*?)\n\n```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(name: str) -> dict[str, str]:
    text = (EXAMPLES / f"{name}.md").read_text(encoding="utf-8")
    return {found["title"]: found["code"] for found in BLOCK.finditer(text)}


class Document:
    """The examples of one document, run in one namespace and one event loop, as a reader would."""

    def __init__(self, name: str) -> None:
        self.blocks = blocks(name)
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.loop = asyncio.new_event_loop()

    def run(self, title: str, **given: Any) -> dict[str, Any]:
        self.names.update(given)
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(self.blocks[title], title, "exec", flags=flags, dont_inherit=True)
        if code.co_flags & inspect.CO_COROUTINE:
            self.wait(types.FunctionType(code, self.names)())
        else:
            exec(code, self.names)
        return self.names

    def wait(self, something: Any) -> Any:
        async def waited() -> Any:
            return await something

        return self.loop.run_until_complete(waited())

    def signature(self, title: str, call: str) -> dict[str, Any]:
        """Parameters and defaults from lines like `x = call(a: int = 1) -> int`, which are no Python."""
        pattern = rf"{re.escape(call)}\(\s*(.*?)\s*\)( ->|$)"
        found = re.search(pattern, self.blocks[title], re.MULTILINE | re.DOTALL)
        assert found, f"{title} does not show {call}"
        names: dict[str, Any] = {}
        exec(f"from __future__ import annotations\ndef shown({found[1]}): ...", names)
        return parameters(names["shown"])

    def close(self) -> None:
        pending = asyncio.all_tasks(self.loop)
        for task in pending:
            task.cancel()
        if pending:
            self.loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        self.loop.close()


def parameters(function: Any) -> dict[str, Any]:
    """Names and defaults, without `self`."""
    signature = inspect.signature(function)
    return {name: each.default for name, each in signature.parameters.items() if name != "self"}
