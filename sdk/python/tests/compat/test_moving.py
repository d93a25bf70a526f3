"""`docs/moving.md`: every Python block runs, and prints what is written below it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from reading import Document

from belljar.compat import codomyrmex

PAGE = Path(__file__).resolve().parents[4] / "docs" / "moving.md"
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n\n```text\n(?P<printed>.*?)^```$", re.MULTILINE | re.DOTALL)


def sections() -> dict[str, list[re.Match[str]]]:
    text = PAGE.read_text(encoding="utf-8")
    parts = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    return {part.partition("\n")[0]: list(BLOCK.finditer(part)) for part in parts}


def test_no_block_is_left_out() -> None:
    blocks = [block for found in sections().values() for block in found]
    assert len(blocks) == PAGE.read_text(encoding="utf-8").count("```python\n") >= 5


@pytest.mark.parametrize("title", list(sections()))
def test_section(title: str, document: Callable[[str], Document], capsys: pytest.CaptureFixture[str]) -> None:
    page = document("agentfly")
    for block in sections()[title]:
        page.blocks[title] = block["code"]
        page.run(title)
        assert capsys.readouterr().out == block["printed"]
    codomyrmex.close_session("mine")
