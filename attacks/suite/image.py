"""An image with what the payloads need, made of this machine's Debian packages, in a store of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "tests/images/root.py"
PACKAGES = ["python3-minimal", "libpython3-stdlib", "bash", "coreutils", "dash", "mawk", "sed", "procps", "util-linux", "gcc", "libc6-dev"]


@dataclass(frozen=True)
class Image:
    """Its name, and the state directory that has it."""

    name: str
    state: Path

    @classmethod
    def make(cls, belljar: str) -> Image:
        image = cls("attack/image", Path(tempfile.mkdtemp(prefix="belljar-image-", dir="/var/tmp")))
        tar = image.state / "root.tar"
        try:
            subprocess.run([sys.executable, str(ROOT), str(tar), *PACKAGES], check=True)
            subprocess.run(
                [os.path.abspath(belljar), "image", "import", str(tar), "--name", image.name], check=True,
                stdout=subprocess.DEVNULL, env={**os.environ, "BELLJAR_STATE_DIR": str(image.state)},
            )
        except subprocess.CalledProcessError:
            image.drop()
            raise
        tar.unlink()
        return image

    def drop(self) -> None:
        shutil.rmtree(self.state, ignore_errors=True)
