from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from reading import Document


@pytest.fixture
def document() -> Iterator[Callable[[str], Document]]:
    opened: list[Document] = []

    def open_document(name: str) -> Document:
        opened.append(Document(name))
        return opened[-1]

    yield open_document
    for each in opened:
        each.close()
