"""``python -m belljar`` is the command ``belljar``."""

from __future__ import annotations

import os
import sys

from . import daemon
from .errors import BelljarError


def main() -> None:
    try:
        program = daemon.binary()
    except BelljarError as problem:
        print(f"belljar: {problem}", file=sys.stderr)
        sys.exit(125)
    sys.stdout.flush()
    os.execv(program, ["belljar", *sys.argv[1:]])


if __name__ == "__main__":
    main()
