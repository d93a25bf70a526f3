"""The wheel, in an environment that has nothing else."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import zipfile

import pytest

PROJECT = pathlib.Path(__file__).resolve().parent.parent.parent.parent


def wheel() -> pathlib.Path:
    named = os.environ.get("BELLJAR_WHEEL")
    if not named:
        pytest.fail("set BELLJAR_WHEEL to the wheel to test (make python does)")
    return pathlib.Path(named)


def test_what_is_in_it() -> None:
    with zipfile.ZipFile(wheel()) as opened:
        names = opened.namelist()
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        needed = re.findall(r"^Requires-Dist: ([\w-]+)", opened.read(metadata).decode(), re.M)
    assert "belljar/py.typed" in names and "belljar/_sync/sandbox.py" in names
    assert any(name.endswith(".data/scripts/belljar") for name in names)
    assert sorted(needed) == ["httpx", "websockets"]
    assert not [name for name in names if "/tests/" in name or name.endswith(".pyc")]


def test_three_lines_and_nothing_on_the_path(tmp_path: pathlib.Path, state: str) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel())]
    subprocess.run(install, check=True, timeout=300)
    readme = (PROJECT / "README.md").read_text()
    example = re.search(r"^```python\n(.*?)^```", readme, re.M | re.S)
    assert example is not None, "README.md has no example in Python"
    bare = {"PATH": "", "HOME": str(tmp_path), "BELLJAR_STATE_DIR": state, "BELLJAR_IDLE_EXIT": "1m"}
    done = subprocess.run(
        [python, "-c", example[1]], env=bare, cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    promised = re.findall(r"print\(.*\)  # (.*)", example[1])
    assert promised and done.stdout.splitlines() == promised, done
    told = subprocess.run([python, "-m", "belljar", "--version"], env=bare, capture_output=True, text=True)
    assert told.stdout.startswith("belljar "), told
    packaged = str(tmp_path / "venv" / "bin" / "belljar")
    running = pathlib.Path("/proc", str(_peer(state)), "exe").readlink()
    assert os.path.samefile(running, packaged)


def _peer(state: str) -> int:
    from belljar import daemon

    peer = daemon._peer(f"{state}/belljar.sock")
    assert peer is not None
    return peer
