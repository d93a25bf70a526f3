#!/usr/bin/env python3
"""How long a fresh Python session from an image takes beside one from the host, interleaved in one run.

The image is made of this machine's Debian packages, so both have the same interpreter, and the difference is the image's.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
MOST = 1.3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--belljar", default=str(HERE.parent / "target/release/belljar"), help="default: %(default)s")
    parser.add_argument("--sessions", default=str(HERE.parent / "target/release/examples/image_sessions"), help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=60, help="default: %(default)s")
    parser.add_argument("--check", action="store_true", help="exit with 1 if the target is missed")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="belljar-bench-") as place:
        tar, env = Path(place, "root.tar"), {**os.environ, "BELLJAR_STATE_DIR": place}
        subprocess.run([sys.executable, str(HERE.parent / "tests/images/root.py"), str(tar)], check=True)
        subprocess.run([args.belljar, "image", "import", str(tar), "--name", "bench"], check=True, env=env, stdout=subprocess.DEVNULL)
        done = subprocess.run([args.sessions, place, "bench", str(args.rounds)], check=True, env=env, stdout=subprocess.PIPE)
    figures = json.loads(done.stdout)
    print(f"fresh Python sessions, {args.rounds} interleaved rounds, medians in ms (load {os.getloadavg()[0]:.1f}):")
    missed = []
    for kind in ("pooled", "on_demand", "cold"):
        host, image = median(figures[kind]["host"]), median(figures[kind]["image"])
        print(f"  {kind:10} host {host:7.2f}   image {image:7.2f}   ratio {image / host:.2f} (at most {MOST})")
        if image / host > MOST:
            missed.append(kind)
    for trouble in figures["trouble"]:
        print(f"  trouble: {trouble}")
    if missed:
        print(f"missed: {', '.join(missed)}")
    return 1 if missed and args.check else 0


if __name__ == "__main__":
    sys.exit(main())
