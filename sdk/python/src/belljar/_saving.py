"""Files of the caller that are written whole, or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from typing import IO


@contextlib.contextmanager
def saved(to: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """What is written takes the place of the file at the end; if something fails before, the file is as it was."""
    path = os.path.realpath(to)
    if os.path.isdir(path):
        raise IsADirectoryError(f"{os.fspath(to)} is a directory; give the name of a file")
    there = os.stat(path) if os.path.exists(path) else None
    beside = os.path.join(os.path.dirname(path), f".{os.urandom(8).hex()}.part")
    file = _made(beside) if there is None or stat.S_ISREG(there.st_mode) else None
    if file is None:
        # A device, or a directory where nothing may be made: at least nothing is touched before all is here.
        with tempfile.TemporaryFile() as kept:
            yield kept
            kept.seek(0)
            with open(path, "wb") as file:
                shutil.copyfileobj(kept, file)
        return
    try:
        with file:
            if there is not None:
                with contextlib.suppress(OSError):
                    os.chown(file.fileno(), there.st_uid, there.st_gid)
                os.chmod(file.fileno(), stat.S_IMODE(there.st_mode))
            yield file
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


def _made(path: str) -> IO[bytes] | None:
    try:
        return open(path, "xb")
    except PermissionError:
        return None
