"""A warm interpreter: loads what its copies will need, then waits for orders to fork itself into sandboxes.

Its orders come on descriptor 3; the library that carries them out is a file that is removed once it is loaded. The arguments are
modules to load.
"""

import os
import sys
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from os.path import abspath, dirname

# The library knows the objects of the usual interpreter only.
if sys.implementation.name != "cpython" or "t" in sys.abiflags:
    sys.exit("this interpreter cannot be copied")
sys.path.insert(0, dirname(abspath(__file__)))
import belljar_kernel  # noqa: E402

# What an image or a template adds; the interpreter was told not to look at variables itself.
sys.path[:1] = [path for path in os.environ.get("PYTHONPATH", "").split(":") if path[:1] == "/"]
# It was for this process; what the code starts is linked as it always is.
os.environ.pop("LD_BIND_NOW", None)


def load_library():
    path = "/tmp/belljar-zygote.so"
    loader = ExtensionFileLoader("_belljar", path)
    library = loader.create_module(ModuleSpec("_belljar", loader, origin=path))
    os.unlink(path)
    return library


def main():
    library = load_library()
    for name in sys.argv[1:]:
        __import__(name)
    belljar_kernel.prewarm()
    del sys.argv[1:]
    belljar_kernel.learn(library)
    early = library.serve(3)
    belljar_kernel.after_fork()
    if early:
        belljar_kernel.touch()
    belljar_kernel.serve(3)


main()
