"""Where the code of a class runs that speaks of Docker and of images."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Any

RUNTIME = "runc"
"""Docker's own; any other can only be meant for Docker."""


def place(image: str | None, usual: str | None = None, runtime: str = RUNTIME) -> dict[str, Any]:
    """Options of a sandbox for this image.

    ``usual`` is the image that a class names if its user names none. It stands for "something to run code with", which
    the host has already. Another image was named for what is in it. Docker is used if it was asked for: by
    ``BELLJAR_BACKEND=docker``, or by a runtime that only it has.
    """
    options: dict[str, Any] = {}
    if os.environ.get("BELLJAR_BACKEND") == "docker" or runtime != RUNTIME:
        options["backend"] = "docker"
        options["image"] = image or usual
        if runtime != RUNTIME:
            options["container_runtime"] = runtime
    elif image is not None and image != usual:
        options["image"] = image
    return options


def cores(wanted: float) -> float:
    """No more than this host has: more is no limit, and the daemon would refuse it."""
    return min(wanted, float(os.cpu_count() or 1))


def docker_is_there() -> bool:
    """Whether there is a Docker that answers."""
    program = shutil.which("docker")
    if program is None:
        return False
    try:
        asked = subprocess.run(
            [program, "info", "--format", "{{.ServerVersion}}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0
