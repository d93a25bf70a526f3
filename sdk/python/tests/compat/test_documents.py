"""Every example has a test of its name."""

import re
from pathlib import Path

import pytest
from reading import EXAMPLES, blocks

HERE = Path(__file__).parent


def slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_")


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.md")))
def test_every_example_is_run(name: str) -> None:
    tests = (HERE / f"test_{name}.py").read_text(encoding="utf-8")
    titles = blocks(name)
    assert titles
    for title in titles:
        assert f"def test_{slug(title)}(" in tests, title
        assert f'"{title}"' in tests, title
