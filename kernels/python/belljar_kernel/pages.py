"""For zygotes: the memory that a copy comes to use, known before it is made.

A copy shares every page with its zygote until it writes to it, and has to find those of programs and libraries again. Nearly all that a first run
does is to wait for hundreds of pages, one at a time, and each of them is an interruption. Which they are hardly depends on what is run: the interpreter
counts references in all that it looks at. So some copies are made to be looked at and thrown away, and all later ones get at once what each of these
has needed. Those that nobody waits for get more: they may take the time, and have less to do when somebody comes.
"""

from .private import BUILTINS as __builtins__  # noqa: F401, I001

from _signal import SIG_DFL, SIGALRM, alarm, signal
from os import _exit, close, fork, listdir, pipe, pread, read, sysconf, waitpid, write
from os import O_CLOEXEC, O_RDONLY
from os import open as open_file

_PAGE = sysconf("SC_PAGE_SIZE")
_ENTRY = 8  # bytes in /proc/self/pagemap for each page
_PRESENT, _SHARED, _ALONE = 1 << 63, 1 << 61, 1 << 56
_READ, _WRITE = 22, 23  # what to tell the kernel: that a page will be read, or written to
_ALL, _EARLY = 1, 2  # who gets it: every copy, or one that nobody waits for
_SECONDS = 10  # a thousand times as long as it takes


def learn(library, trials, early):
    """Tells the library what copies will need: each of the trials does, in one that is thrown away, what some of them do, and calls its argument then.
    `early` is what is done by those that nobody waits for."""
    try:
        if len(listdir("/proc/self/task")) != 1:
            return  # it will not be copied at all
        pieces = _pieces()
        usual = [_try(trial, pieces) for trial in trials]
        first = _try(early, pieces)
    except (OSError, ValueError):
        return
    # It works as well without, only later.
    if first is not None and None not in usual:
        library.need(_ranges(pieces, usual, first))


def _pieces():
    """Memory that is written to, and what is read from files: where each piece begins, its length, and which of both it is."""
    pieces = []
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            place, rights, *_ = line.split(maxsplit=2)
            start, end = (int(bound, 16) for bound in place.split("-"))
            if rights == "rw-p":
                pieces.append((start, end - start, _WRITE))
            elif rights in ("r--p", "r-xp") and "/" in line:
                pieces.append((start, end - start, _READ))
    return pieces


def _try(trial, pieces):
    """What the kernel says of each page of a copy that has done its first steps; None if it does not get there."""
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

            def tell():
                for start, length, _ in pieces:
                    write(sink, pread(pages, length // _PAGE * _ENTRY, start // _PAGE * _ENTRY))
                _exit(0)

            trial(tell)
        finally:
            _exit(1)
    close(sink)
    parts = []
    while part := read(source, 1 << 16):
        parts.append(part)
    close(source)
    found = b"".join(parts)
    _, status = waitpid(child, 0)
    wanted = sum(length // _PAGE for _, length, _ in pieces) * _ENTRY
    return memoryview(found).cast("Q") if status == 0 and len(found) == wanted else None


def _is_needed(page, use):
    """Of what is written to, pages that belong to nobody else; of files, those that were found."""
    if use == _READ:
        return page & _PRESENT != 0
    return page & (_PRESENT | _SHARED | _ALONE) == _PRESENT | _ALONE


def _ranges(pieces, usual, first):
    """Rows of pages that the same copies need: where each begins, its length, what to tell the kernel, and who gets it."""
    ranges = []
    at = 0
    for start, length, use in pieces:
        began = whose = None
        count = length // _PAGE
        for number in range(count + 1):
            now = None
            if number < count:
                needed = [_is_needed(pages[at + number], use) for pages in usual]
                if all(needed):
                    now = _ALL
                elif any(needed) or _is_needed(first[at + number], use):
                    now = _EARLY
            if now != whose:
                if whose is not None:
                    ranges += (start + began * _PAGE, (number - began) * _PAGE, use, whose)
                began, whose = number, now
        at += count
    return b"".join(number.to_bytes(8, "little") for number in ranges)
