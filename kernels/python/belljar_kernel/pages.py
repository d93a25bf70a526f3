"""For zygotes: the memory that a copy comes to use, known before it is made.

A copy shares every page with its zygote until it writes to it, and has to find those of programs and libraries again. Nearly all that a first run
does is to wait for hundreds of pages, one at a time, and each of them is an interruption. Which they are hardly depends on what is run: the interpreter
counts references in all that it looks at. So some copies are made to be looked at and thrown away, and all later ones get at once what each of these
has needed. Those that nobody waits for get more: they may take the time, and have less to do when somebody comes.

What is only read, code above all, is the same in every copy, so it need not be found again in each: it goes over with the fork. And a fork is
quicker the fewer pages there are: what has been written to is put into large ones, of which copies get small ones where they write, and so is the
interpreter's own code.
"""

from .private import BUILTINS as __builtins__  # noqa: F401, I001

from _signal import SIG_DFL, SIGALRM, alarm, signal
from gc import collect
from os import _exit, close, fork, getpid, getppid, listdir, pipe, pread, read, sysconf, waitpid, write
from os import O_CLOEXEC, O_RDONLY
from os import open as open_file

_PAGE = sysconf("SC_PAGE_SIZE")
_LEAST = 64  # KiB in a piece that is gathered
# May be read, written to and made executable, counts as memory that was asked for, and has not been looked at. A stack also grows.
_PLAIN = {"rd", "wr", "mr", "mw", "me", "ac", "sd"}
_BLOCK = 2 << 20  # a large page
_PIECE = 24  # bytes that say where one is, how long, and what may be done with it
_ENTRY = 8  # bytes in /proc/self/pagemap for each page
_PRESENT, _SHARED, _ALONE = 1 << 63, 1 << 61, 1 << 56
_READ, _WRITE = 22, 23  # what to tell the kernel: that a page will be read, or written to
_W, _X = 2, 4
_RIGHTS = {"rw-p": 1 | _W, "r--p": 1, "r-xp": 1 | _X}
_ALL, _EARLY = 1, 2  # who gets it: every copy, or one that nobody waits for
_SECONDS = 10  # a thousand times as long as it takes


def learn(library, trials, early):
    """Tells the library what copies will need: each of the trials does, in one that is thrown away, what some of them do, and calls its argument then.
    `early` is what is done by those that nobody waits for."""
    try:
        if len(listdir("/proc/self/task")) != 1:
            return  # it will not be copied at all
        library.gather(numbers(_blocks() + _filled()))
        collect()  # else copies would be given what was left here, instead of what lies together
        # In a copy, too: here it would change the memory that it is about.
        found = from_copy(library, lambda tell: tell(_findings(library, trials, early)))
    except (OSError, ValueError):
        return
    # It works as well without, only later.
    if found:
        code, constants, needed = _parts(found)
        # Of libraries, which other processes have in the processor's caches as well, as long as it is in the same place: not gathered.
        library.share(code)
        if library.gather(constants) < len(constants) // _PIECE:
            library.share(constants)  # those that were gathered, too, are what they were
        library.need(needed)
    collect()


def _findings(library, trials, early):
    """What all copies read, code and other things, and what each of them needs besides. Nothing if a trial fails."""
    pieces = _pieces()
    usual = [_try(library, trial, pieces) for trial in trials]
    first = _try(library, early, pieces)
    if first is None or None in usual:
        return b""
    shared = _shared(pieces, usual)
    code = [piece for piece in shared if piece[2] & _X]
    constants = [piece for piece in shared if not piece[2] & _X]
    parts = [numbers(rows) for rows in (code, constants, _ranges(pieces, usual, first, shared))]
    return numbers([[len(part) for part in parts]]) + b"".join(parts)


def _parts(found):
    at = 3 * _ENTRY
    for size in memoryview(found)[:at].cast("Q"):
        yield found[at : at + size]
        at += size


def _pieces():
    """Memory that is written to, and what is read from files: where each piece begins, its length, and what may be done with it."""
    pieces = []
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            place, rights, *_ = line.split(maxsplit=2)
            start, end = (int(bound, 16) for bound in place.split("-"))
            if rights == "rw-p" or rights in _RIGHTS and "/" in line:
                pieces.append((start, end - start, _RIGHTS[rights]))
    return pieces


def heap():
    """Where objects are: memory that is no file's."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            place, rights, _, _, node, *_ = line.split()
            if rights == "rw-p" and node == "0":
                start, end = (int(bound, 16) for bound in place.split("-"))
                yield start, end - start, 1 | _W


def _blocks():
    """Pieces as large as a large page, which each becomes as a whole: they have code in them, more than half of it in use, and are not written to.
    What is only read in them may be executed then, too: to code that can bring instructions of its own, that is nothing new."""
    known, used, code = {}, {}, set()
    with open("/proc/self/pagemap", "rb", buffering=0) as pages:
        for start, length, rights in _pieces():
            if rights & _W:
                continue
            there = memoryview(pread(pages.fileno(), length // _PAGE * _ENTRY, start // _PAGE * _ENTRY)).cast("Q")
            for number, page in enumerate(there):
                block = (start + number * _PAGE) // _BLOCK * _BLOCK
                known[block] = known.get(block, 0) + 1
                used[block] = used.get(block, 0) + (page >> 63)
                if rights & _X:
                    code.add(block)
    whole = _BLOCK // _PAGE
    return [(block, _BLOCK, 1 | _X) for block in code if known[block] == whole and used[block] > whole // 2]


def _filled():
    """Pieces that are written to, of which more than half has been, and which are as plain as memory can be: nothing is said of what a fork does to them."""
    filled = []
    with open("/proc/self/smaps", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            name, *rest = line.split()
            if name == "Size:":
                size = int(rest[0])
            elif name == "Rss:":
                there = int(rest[0])
            elif name == "VmFlags:":
                if plain and set(rest) <= _PLAIN and there * 2 > size >= _LEAST:
                    filled.append((start, end - start, 1 | _W))
            elif name[-1] != ":":
                start, end = (int(bound, 16) for bound in name.split("-"))
                plain = rest[0] == "rw-p"
    return filled


def _try(library, trial, pieces):
    """What the kernel says of each page of a copy that has done its first steps; None if it does not get there."""

    def act(tell):
        pages = open_file("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)

        def look():
            for start, length, _ in pieces:
                tell(pread(pages, length // _PAGE * _ENTRY, start // _PAGE * _ENTRY))
            _exit(0)

        trial(look)
        _exit(1)

    found = from_copy(library, act)
    wanted = sum(length // _PAGE for _, length, _ in pieces) * _ENTRY
    return memoryview(found).cast("Q") if found is not None and len(found) == wanted else None


def from_copy(library, act, seconds=_SECONDS):
    """What a copy of this process tells before it is thrown away; None if it fails. It ends with this process."""
    source, sink = pipe()
    parent = getpid()
    try:
        child = fork()
    except OSError:
        close(source)
        close(sink)
        raise
    if child == 0:
        try:
            if not library.end_with_parent() or getppid() != parent:
                _exit(1)
            signal(SIGALRM, SIG_DFL)
            alarm(seconds)  # should a library wait for something that was not copied

            def tell(data):
                while data:
                    data = data[write(sink, data) :]

            act(tell)
            _exit(0)
        finally:
            _exit(1)
    close(sink)
    parts = []
    while part := read(source, 1 << 16):
        parts.append(part)
    close(source)
    _, status = waitpid(child, 0)
    return b"".join(parts) if status == 0 else None


def _is_needed(page, rights):
    """Of what is written to, pages that belong to nobody else; of files, those that were found."""
    if not rights & _W:
        return page & _PRESENT != 0
    return page & (_PRESENT | _SHARED | _ALONE) == _PRESENT | _ALONE


def _shared(pieces, usual):
    """The pieces of files of which all copies read much: to have one copied by a fork costs a fraction of finding it."""
    shared = []
    at = 0
    for start, length, rights in pieces:
        count = length // _PAGE
        if not rights & _W:
            needed = sum(all(_is_needed(pages[number], rights) for pages in usual) for number in range(at, at + count))
            if needed * 4 >= count:
                shared.append((start, length, rights))
        at += count
    return shared


def _ranges(pieces, usual, first, shared):
    """Rows of pages that the same copies need: where each begins, its length, what to tell the kernel, and who gets it."""
    ranges = []
    at = 0
    for start, length, rights in pieces:
        began = whose = None
        count = length // _PAGE
        for number in range(count + 1):
            now = None
            if number < count and (start, length, rights) not in shared:
                needed = [_is_needed(pages[at + number], rights) for pages in usual]
                if all(needed):
                    now = _ALL
                elif any(needed) or _is_needed(first[at + number], rights):
                    now = _EARLY
            if now != whose:
                if whose is not None:
                    use = _WRITE if rights & _W else _READ
                    ranges.append((start + began * _PAGE, (number - began) * _PAGE, use, whose))
                began, whose = number, now
        at += count
    return ranges


def numbers(rows):
    """As the library takes them."""
    return b"".join(number.to_bytes(8, "little") for row in rows for number in row)
