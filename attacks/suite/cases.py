"""The cases: one file each (`ID-slug.py`, `.c`, `.sh`), or a row each in a family's table (`*.toml`)."""

from __future__ import annotations

import re
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path

CASES = Path(__file__).resolve().parent.parent / "cases"
LANGUAGES = {".py": "python", ".c": "c", ".sh": "bash"}
EXPECTATIONS = ("denied", "killed", "contained", "refused")
LAYERS = (
    "cgroups", "seccomp", "landlock", "userns", "pidns", "netns", "ipcns", "mounts", "capabilities", "rlimits",
)
HEADER = re.compile(r"^(?:#|//) ([a-z]+): (.*)$")
KEYS = {
    "id", "does", "expect", "layer", "args", "argv", "timeout", "alone", "control", "status", "exit", "stdin",
    "collect", "neighbour", "twice", "call", "code", "reach", "language",
}


class CaseError(Exception):
    """A case that is written wrongly."""


@dataclass(frozen=True)
class Case:
    """One attack and what must become of it."""

    id: str
    does: str
    expect: str
    language: str
    code: str
    args: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
    timeout: float = 5.0
    layers: tuple[str, ...] = ()
    statuses: tuple[str, ...] = ()
    exit: int | None = None
    stdin: str = ""
    alone: bool = False
    collect: bool = False
    neighbour: bool = False
    twice: bool = False
    no_control: str = ""

    @property
    def is_one_text(self) -> bool:
        """It finds no files beside itself."""
        return "--no-files" in self.args

    @property
    def family(self) -> str:
        return self.id[0]


def load() -> list[Case]:
    """Every case, in order of its id; a doubled or malformed one is an error."""
    cases: list[Case] = []
    for path in sorted(CASES.iterdir()):
        if path.suffix == ".toml":
            rows = tomllib.loads(path.read_text())["case"]
            cases += [build(row, row.get("language", "python"), row_code(row), path.name) for row in rows]
        elif path.suffix in LANGUAGES:
            text = path.read_text()
            cases.append(build(read_header(text), LANGUAGES[path.suffix], text, path.name))
    seen: set[str] = set()
    for case in cases:
        if case.id in seen:
            raise CaseError(f"two cases are called {case.id}")
        seen.add(case.id)
    return sorted(cases, key=lambda case: case.id)


def read_header(text: str) -> dict[str, str]:
    header: dict[str, str] = {}
    for line in text.splitlines():
        match = HEADER.match(line)
        if match is None:
            break
        header[match[1]] = match[2]
    return header


def row_code(row: dict[str, object]) -> str:
    """The program of a table's row: its code, or one attempted expression."""
    if "call" in row:
        return f"from attack import *\nattempt(lambda: {row['call']}, reach={row.get('reach', [])!r})\n"
    if row.get("language", "python") == "python":
        return f"from attack import *\n{row['code']}"
    return str(row["code"])


def build(row: dict[str, object], language: str, code: str, origin: str) -> Case:
    unknown = set(row) - KEYS
    missing = {"id", "does", "expect"} - set(row)
    if unknown or missing:
        raise CaseError(f"{origin}, {row.get('id', '?')}: unknown {sorted(unknown)}, missing {sorted(missing)}")
    layers = tuple(words(row.get("layer", "")))
    if row["expect"] not in EXPECTATIONS or not set(layers) <= set(LAYERS):
        raise CaseError(f"{origin}, {row['id']}: expect {row['expect']!r}, layer {layers} are not known")
    return Case(
        id=str(row["id"]), does=str(row["does"]), expect=str(row["expect"]), language=language, code=code,
        args=tuple(words(row.get("args", ""))), argv=tuple(words(row.get("argv", ""))),
        timeout=float(str(row.get("timeout", "5"))), layers=layers,
        statuses=tuple(words(row.get("status", ""))),
        exit=int(str(row["exit"])) if "exit" in row else None, stdin=str(row.get("stdin", "")),
        alone=flag(row, "alone"), collect=flag(row, "collect"), neighbour=flag(row, "neighbour"),
        twice=flag(row, "twice"), no_control=str(row.get("control", "")).removeprefix("no, "),
    )


def words(value: object) -> list[str]:
    return [str(word) for word in value] if isinstance(value, list) else shlex.split(str(value))


def flag(row: dict[str, object], key: str) -> bool:
    return row.get(key, False) in (True, "yes")
