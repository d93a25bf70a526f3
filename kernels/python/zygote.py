"""A warm interpreter: loads what its copies will need, then waits for orders to fork itself into sandboxes.

Its orders come on descriptor 3; the library that carries them out is a file that is removed once it is loaded. The arguments are
modules to load. One that is only a scout gets no orders: it tells what its copies write to, and ends.
"""

import os
import sys
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from os.path import abspath, dirname

LIBRARY = "/tmp/belljar-zygote.so"

# The library knows the objects of the usual interpreter only.
if sys.implementation.name != "cpython" or "t" in sys.abiflags:
    sys.exit("this interpreter cannot be copied")
sys.path.insert(0, dirname(abspath(__file__)))
import belljar_kernel  # noqa: E402


def load_library():
    loader = ExtensionFileLoader("_belljar", LIBRARY)
    library = loader.create_module(ModuleSpec("_belljar", loader, origin=LIBRARY))
    os.unlink(LIBRARY)
    return library


# First, because it looks for the variables that were for it.
library = load_library()
# What an image or a template adds; the interpreter was told not to look at variables itself.
sys.path[:1] = [path for path in os.environ.get("PYTHONPATH", "").split(":") if path[:1] == "/"]
# This was for this process; what the code starts is linked as it always is.
os.environ.pop("LD_BIND_NOW", None)


def main():
    for name in sys.argv[1:]:
        __import__(name)
    belljar_kernel.prewarm()
    del sys.argv[1:]
    if library.settle():
        belljar_kernel.tell_layout(library, 3)
    belljar_kernel.learn(library)
    early = library.serve(3)
    belljar_kernel.after_fork()
    if early:
        belljar_kernel.touch()
    belljar_kernel.serve(3)


main()
