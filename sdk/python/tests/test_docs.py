"""Every example in Python of the documents runs, and prints what is written behind its `print`s."""

from __future__ import annotations

import contextlib
import io
import pathlib
import re

import pytest

PACKAGE = pathlib.Path(__file__).resolve().parent.parent
PROJECT = PACKAGE.parent.parent
DOCUMENTS = [PROJECT / "README.md", PROJECT / "docs" / "python.md", PACKAGE / "README.md"]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
PROMISE = re.compile(r"^\s*print\(.*\)  # (.*)$", re.M)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(PROJECT)))
def test_examples_print_what_they_promise(document: pathlib.Path) -> None:
    text = document.read_text()
    examples = list(BLOCK.finditer(text))
    assert examples, f"{document} has no example"
    names: dict[str, object] = {"__name__": "__main__"}
    for example in examples:
        code = example[1]
        line = text.count("\n", 0, example.start()) + 1
        # So that a traceback names the line of the document.
        compiled = compile("\n" * line + code, str(document), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compiled, names)
        said = printed.getvalue().splitlines()
        promised = PROMISE.findall(code)
        assert said == promised, f"{document}:{line}: printed {said}, promised {promised}"


def test_every_print_says_what_it_prints() -> None:
    for document in DOCUMENTS:
        for code in BLOCK.findall(document.read_text()):
            bare = [each for each in re.findall(r"^\s*print\(.*", code, re.M) if not PROMISE.match(each)]
            assert not bare, (document, bare)
