"""For zygotes: what is done once before forking, and what has to be different in every child.

What forking cannot make different is the seed of `hash` and where things lie in memory: both are set when the zygote is
executed, so zygotes are replaced from time to time.
"""

from .private import BUILTINS as __builtins__  # noqa: F401, I001

import gc
import os
import sys

from . import layout, pages, serving

_modules = sys.modules
_generators = []  # of random numbers, that libraries made while they were loaded


def prewarm():
    """Before forking, after the modules to preload: makes a kernel, runs something in it, and settles memory."""
    serving.prewarm()
    gc.collect()
    _find_generators()
    gc.freeze()  # a collection in a child would write to, and so copy, all of it


def learn(library):
    """Before forking, after `prewarm`: finds out which memory all copies need, and has the library get it at once."""

    def one_run(tell):
        library.begin_copy()
        after_fork()
        serving.run_once("print(1)", True, tell)

    def session(tell):
        library.begin_copy()
        after_fork()
        serving.run_once("x = 1", False, tell)

    def early(tell):
        library.begin_copy()
        _early(tell)

    pages.learn(library, (one_run, session), early)


def tell_layout(library, control):
    """In a zygote that is no more than a scout: what its copies write to, for those that come after it. Does not return."""
    layout.tell(library, _early, control)


def _early(end):
    after_fork()
    serving.touch()
    serving.run_once("print(1)", True, end)


def _find_generators():
    random, numpy = _modules.get("random"), _modules.get("numpy.random")
    kinds = tuple(
        kind for kind in (getattr(random, "Random", None), getattr(numpy, "BitGenerator", None)) if isinstance(kind, type)
    )
    # The ones behind the functions of these modules have a quicker way, below.
    known = (
        getattr(random, "_inst", None),
        getattr(getattr(getattr(numpy, "mtrand", None), "_rand", None), "_bit_generator", None),
    )
    objects = gc.get_objects() if kinds else ()
    _generators[:] = [one for one in objects if isinstance(one, kinds) and not any(one is other for other in known)]


def after_fork():
    """In the child of `os.fork`, before `serve`: nothing that should be random is what it is in other children."""
    for generator in _generators:
        try:
            if hasattr(generator, "seed"):
                generator.seed()
            else:
                generator.state = type(generator)().state
        except Exception:
            continue  # one that takes its numbers from the system has no state
    for name, renew in _RENEW.items():
        module = _modules.get(name)
        if module is not None:
            try:
                renew(module)
            except Exception:
                continue  # another version of it


def _numpy(random):
    numpy = _modules["numpy"]
    random.seed(numpy.frombuffer(os.urandom(32), numpy.uint32))


def _tempfile(tempfile):
    tempfile._name_sequence = None
    tempfile.tempdir = None


def _uuid(uuid):
    uuid._last_timestamp = uuid._node = None


def _multiprocessing(process):
    process.current_process().authkey = os.urandom(32)


def _torch(torch):
    torch.manual_seed(int.from_bytes(os.urandom(8), "little") >> 1)


_RENEW = {
    "random": lambda random: random.seed(),
    "numpy.random": _numpy,
    "tempfile": _tempfile,
    "uuid": _uuid,
    "multiprocessing.process": _multiprocessing,
    "torch": _torch,
}
