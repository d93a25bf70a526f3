"""For zygotes: the memory that a copy comes to write to, known before it is made.

A copy shares every page with its zygote until it writes to it. Nearly all that a first run does is to wait for hundreds of pages, one at
a time, and each of them is an interruption. Which they are hardly depends on what is run: the interpreter counts references in all that it
looks at. So one copy is made to be looked at and thrown away, and all later ones get the same pages at once.
"""

from .private import BUILTINS as __builtins__  # noqa: F401, I001

from _signal import SIG_DFL, SIGALRM, alarm, signal
from os import _exit, close, fork, listdir, pipe, pread, read, sysconf, waitpid, write
from os import O_CLOEXEC, O_RDONLY
from os import open as open_file

_PAGE = sysconf("SC_PAGE_SIZE")
_ENTRY = 8  # bytes in /proc/self/pagemap for each page
_PRESENT, _SHARED, _ALONE = 1 << 63, 1 << 61, 1 << 56
_SECONDS = 10  # a thousand times as long as it takes


def learn(library, trial):
    """Tells the library what copies will need. `trial` does, in one that is thrown away, what all of them do."""
    try:
        if len(listdir("/proc/self/task")) != 1:
            return  # it will not be copied at all
        writable = _writable()
        pages = _try(trial, writable)
    except (OSError, ValueError):
        pages = None
    # It works as well without, only later.
    if pages is not None:
        library.own(_ranges(writable, pages))


def _writable():
    """Where each piece of memory begins that is written to, and its length."""
    writable = []
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            place, rights, *_ = line.split(maxsplit=2)
            start, end = (int(bound, 16) for bound in place.split("-"))
            if rights == "rw-p":
                writable.append((start, end - start))
    return writable


def _try(trial, writable):
    """What the kernel says of each writable page of a copy that has done its first steps; None if it does not get there."""
    source, sink = pipe()
    try:
        child = fork()
    except OSError:
        close(source)
        close(sink)
        raise
    if child == 0:
        try:
            signal(SIGALRM, SIG_DFL)
            alarm(_SECONDS)  # should a library wait for something that was not copied
            pages = open_file("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)
            trial()
            for start, length in writable:
                write(sink, pread(pages, length // _PAGE * _ENTRY, start // _PAGE * _ENTRY))
        finally:
            _exit(0)
    close(sink)
    parts = []
    while part := read(source, 1 << 16):
        parts.append(part)
    close(source)
    found = b"".join(parts)
    _, status = waitpid(child, 0)
    wanted = sum(length // _PAGE for _, length in writable) * _ENTRY
    return memoryview(found).cast("Q") if status == 0 and len(found) == wanted else None


def _ranges(writable, pages):
    """The pages that belong to nobody else: where each row of them begins, and its length."""
    ranges = []
    at = 0
    for start, length in writable:
        first = None
        count = length // _PAGE
        for number in range(count + 1):
            own = number < count and pages[at + number] & (_PRESENT | _SHARED | _ALONE) == _PRESENT | _ALONE
            if own and first is None:
                first = number
            elif not own and first is not None:
                ranges += (start + first * _PAGE, (number - first) * _PAGE)
                first = None
        at += count
    return b"".join(number.to_bytes(8, "little") for number in ranges)
