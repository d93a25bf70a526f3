"""A cold start of the kernel: `python3 -I main.py`, with the channel at descriptor 3."""

import sys
from os.path import abspath, dirname

sys.path.insert(0, dirname(abspath(__file__)))
import belljar_kernel  # noqa: E402

del sys.path[0]
belljar_kernel.serve(3)
