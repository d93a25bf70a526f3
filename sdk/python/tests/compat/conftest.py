"""A daemon for these tests alone, with settings that allow a directory as a volume."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from reading import Document

from belljar import daemon


@pytest.fixture(scope="session")
def allowed() -> Iterator[Path]:
    """A directory that the daemon may give to sandboxes. They have users of their own, who have to get there: not where pytest
    keeps its directories, which each of its processes closes to others again."""
    path = Path(tempfile.mkdtemp(prefix="bj-", dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def serve() -> Iterator[Callable[[str], str]]:
    """Starts a daemon with these settings; where it is."""
    with contextlib.ExitStack() as daemons:
        yield lambda settings: daemons.enter_context(_serving(settings))


@contextlib.contextmanager
def _serving(settings: str) -> Iterator[str]:
    # A short path: that of a unix socket has a hundred bytes.
    state = Path(tempfile.mkdtemp(prefix="bj-"))
    config, path, log = state / "belljar.toml", state / "b.sock", state / "log"
    config.write_text(settings)
    words = [daemon.binary(), "serve", "--listen", "", "--unix", str(path), "--config", str(config)]
    environment = {**os.environ, "BELLJAR_STATE_DIR": str(state)}
    with log.open("wb") as output:
        process = subprocess.Popen(words, env=environment, stdout=output, stderr=output)
    try:
        end = time.monotonic() + 60
        while not path.exists():
            assert process.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.02)
        yield f"unix://{path}"
    finally:
        process.terminate()
        process.wait(30)
        shutil.rmtree(state, ignore_errors=True)


@pytest.fixture(scope="session")
def address(serve: Callable[[str], str], allowed: Path) -> str:
    """Where the daemon is."""
    return serve(f'[volumes]\nallowed = ["{allowed}"]\n')


@pytest.fixture(autouse=True)
def own_daemon(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BELLJAR_URL", address)
    monkeypatch.delenv("BELLJAR_TOKEN", raising=False)
    monkeypatch.delenv("BELLJAR_BACKEND", raising=False)


@pytest.fixture
def document() -> Iterator[Callable[[str], Document]]:
    opened: list[Document] = []

    def open_document(name: str) -> Document:
        opened.append(Document(name))
        return opened[-1]

    yield open_document
    for each in opened:
        each.close()
