"""Programs that use the package pass the strictest check of types, and mistakes do not."""

from __future__ import annotations

import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
MISTAKES = """
import belljar
belljar.run(1)
belljar.run("1", tiemout=3)
belljar.run("1").stdout.nonesuch
belljar.Sandbox(language=3)
"""


def checked(*what: str) -> subprocess.CompletedProcess[str]:
    """By mypy, as in a project that has no settings for it."""
    words = [sys.executable, "-m", "mypy", "--strict", "--python-version", "3.10", "--config-file", ""]
    cache = ["--cache-dir", str(HERE.parent / ".mypy_cache" / "tests")]
    path = {"MYPYPATH": str(HERE.parent / "src"), "PATH": ""}
    return subprocess.run([*words, *cache, *what], env=path, capture_output=True, text=True, timeout=300)


def test_a_program_that_uses_it() -> None:
    done = checked(str(HERE / "using.py"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_mistakes_are_seen() -> None:
    done = checked("-c", MISTAKES)
    lines = [int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line]
    assert sorted(set(lines)) == [3, 4, 5, 6], done.stdout + done.stderr
