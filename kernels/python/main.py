"""A cold start of the kernel: `python3 -I main.py`, with the channel at descriptor 3. Arguments are modules to load first."""

import os
import sys
from os.path import abspath, dirname

sys.path.insert(0, dirname(abspath(__file__)))
import belljar_kernel  # noqa: E402

# What an image or a caller adds; the interpreter was told not to look at variables itself.
sys.path[:1] = [path for path in os.environ.get("PYTHONPATH", "").split(":") if path[:1] == "/"]
for name in sys.argv[1:]:
    __import__(name)
del sys.argv[1:]
belljar_kernel.serve(3)
