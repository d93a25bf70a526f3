"""All tests share one daemon of their own, which the package itself starts, in a state directory that is thrown away."""

from __future__ import annotations

import atexit
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator

import pytest

PACKAGE = pathlib.Path(__file__).resolve().parent.parent
PROJECT = PACKAGE.parent.parent
if "BELLJAR_BIN" not in os.environ:
    pytest.exit("set BELLJAR_BIN to the program to test (make python does)", 1)
# Not the user's, and a short path: that of a unix socket has a hundred bytes.
STATE = tempfile.mkdtemp(prefix="bj-")
# Also where no test is run: in the process that hands them to others.
atexit.register(shutil.rmtree, STATE, ignore_errors=True)
for name in ("BELLJAR_URL", "BELLJAR_TOKEN", "BELLJAR_CONFIG"):
    os.environ.pop(name, None)
os.environ["BELLJAR_STATE_DIR"] = STATE
os.environ["BELLJAR_IDLE_EXIT"] = "5m"
sys.path.insert(0, str(PACKAGE / "src"))


def end(state: str) -> None:
    """Ends the daemon of a state directory, if there is one, and forgets the directory."""
    from belljar import daemon

    peer = daemon._peer(f"{state}/belljar.sock")
    if peer is not None:
        os.kill(peer, signal.SIGTERM)
        for _ in range(1500):
            try:
                if " Z " in pathlib.Path(f"/proc/{peer}/stat").read_text():
                    break
            except OSError:
                break  # it is gone
            time.sleep(0.01)
    shutil.rmtree(state, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def _daemon() -> Iterator[None]:
    yield
    end(STATE)


@pytest.fixture
def state() -> Iterator[str]:
    """Another state directory, with whatever daemon comes to be there."""
    path = tempfile.mkdtemp(prefix="bj-")
    yield path
    end(path)
