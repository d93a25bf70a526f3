"""A daemon for these tests alone, with settings that allow a directory as a volume."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from reading import Document

from belljar import daemon


@pytest.fixture(scope="session")
def allowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that the daemon may give to sandboxes."""
    path = tmp_path_factory.mktemp("allowed")
    # Sandboxes have users of their own, who have to get there.
    for each in (path, *path.parents[:-2]):
        each.chmod(each.stat().st_mode | 0o055)
    return path


@pytest.fixture(scope="session", autouse=True)
def own_daemon(tmp_path_factory: pytest.TempPathFactory, allowed: Path) -> Iterator[None]:
    state = tmp_path_factory.mktemp("state")
    settings = state / "belljar.toml"
    settings.write_text(f'[volumes]\nallowed = ["{allowed}"]\n')
    path = state / "belljar.sock"
    words = [daemon.binary(), "serve", "--listen", "", "--unix", str(path), "--config", str(settings)]
    before = {name: os.environ.get(name) for name in ("BELLJAR_URL", "BELLJAR_TOKEN")}
    log = (state / "log").open("wb")
    process = subprocess.Popen(words, env={**os.environ, "BELLJAR_STATE_DIR": str(state)}, stdout=log, stderr=log)
    try:
        end = time.monotonic() + 60
        while not path.exists():
            assert process.poll() is None and time.monotonic() < end, (state / "log").read_text()
            time.sleep(0.02)
        os.environ.pop("BELLJAR_TOKEN", None)
        os.environ["BELLJAR_URL"] = f"unix://{path}"
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        process.terminate()
        process.wait(30)
        log.close()


@pytest.fixture
def document() -> Iterator[Callable[[str], Document]]:
    opened: list[Document] = []

    def open_document(name: str) -> Document:
        opened.append(Document(name))
        return opened[-1]

    yield open_document
    for each in opened:
        each.close()
