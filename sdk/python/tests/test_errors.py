"""Every code of the daemon becomes the exception that the table of codes says."""

from __future__ import annotations

import pathlib
import re

from belljar import errors

TABLE = pathlib.Path(__file__).resolve().parents[3] / "crates/spec/src/error.rs"


def test_the_class_of_each_code() -> None:
    table = re.findall(r'code\("(\w+)", \d+, "(\w+)"\)', TABLE.read_text())
    assert len(table) > 20
    found = {code: type(errors.from_answer({"error": {"code": code, "message": "no"}})).__name__ for code, _ in table}
    assert found == dict(table)
