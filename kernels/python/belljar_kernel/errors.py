"""Exceptions of the code as the engine wants them: type, message, traceback, where in the code, and what caused them.

Objects of the code are asked for their text here, so everything may raise, loop or be huge. What an exception says is bounded; an
interrupt ends a text that does not end by itself.
"""

from .private import BUILTINS as __builtins__  # noqa: F401, I001

from os.path import dirname

from . import texts

MOST_MESSAGE = 64 << 10
MOST_TRACEBACK = 256 << 10
MOST_CAUSES = 16
MOST_FRAMES = 1000

KERNEL = dirname(__file__) + "/"
_HUNG = "<its text was interrupted>"

_cause = BaseException.__dict__["__cause__"]
_context = BaseException.__dict__["__context__"]
_suppressed = BaseException.__dict__["__suppress_context__"]
_traceback = BaseException.__dict__["__traceback__"]


def describe(exception, sources, filename, own_frames=True):
    """The `error` of a `done` frame, and whether a text had to be interrupted. `own_frames` is false when nothing was executed."""
    traceback = traceback_of(exception) if own_frames else None
    said = [message(one) for one in _chain(exception)]
    hung = None in said
    causes = [
        {"type": texts.name_of(type(one)), "message": _HUNG if text is None else text} for one, text in zip(_chain(exception), said)
    ]
    error = {**causes[0], **place(exception, traceback, sources, filename), "causes": causes[1:]}
    if not hung:
        try:
            error["traceback"] = _format(exception, traceback, sources)
        except KeyboardInterrupt:
            hung = True
        except BaseException:
            pass  # what it needs of the standard library is broken
    if "traceback" not in error:
        error["traceback"] = _format_plainly(error, traceback, sources)
    return error, hung


def message(exception):
    """What the exception says, or that it cannot. None if it was interrupted."""
    try:
        if isinstance(exception, SyntaxError) and type(exception.msg) is str:
            return texts.cut(exception.msg, MOST_MESSAGE)
        return text_of(exception)
    except KeyboardInterrupt:
        return None
    except BaseException as problem:
        return f"<its text failed with {texts.name_of(type(problem))}>"


def brief(exception):
    """Its type, and what it says if that is anything."""
    return _joined(texts.name_of(type(exception)), message(exception))


def _joined(kind, said):
    return f"{kind}: {said}" if said else kind


def text_of(value):
    """What `str` says, or that it failed. An interrupt passes through."""
    try:
        return texts.cut(str.__str__(str(value)), MOST_MESSAGE)
    except KeyboardInterrupt:
        raise
    except BaseException as problem:
        return f"<its text failed with {texts.name_of(type(problem))}>"


def place(exception, traceback, sources, filename):
    """Line, column and text of the line in the code of this run, each None if unknown; both count from 1."""
    line = column = None
    if isinstance(exception, SyntaxError) and exception.filename == filename:
        line, column = exception.lineno, exception.offset
    else:
        found = None
        while traceback is not None:
            if traceback.tb_frame.f_code.co_filename == filename:
                found = traceback
            traceback = traceback.tb_next
        if found is not None:
            line = found.tb_lineno
            column = _column(found, sources.line(filename, line))
    source = sources.line(filename, line) if type(line) is int else None
    return {
        "line": line if type(line) is int and line > 0 else None,
        "column": column if type(column) is int and column > 0 else None,
        "source": None if source is None else texts.cut(source, 1000),
    }


def _column(traceback, source):
    positions = getattr(traceback.tb_frame.f_code, "co_positions", None)
    if positions is None or source is None:
        return None
    try:
        for number, position in enumerate(positions()):
            if number == traceback.tb_lasti // 2:
                line, _, column, _ = position
                if line != traceback.tb_lineno or column is None:
                    return None
                return len(source.encode()[:column].decode("utf-8", "ignore")) + 1
    except Exception:
        pass
    return None


def _chain(exception):
    """The exception and what led to it, as far as it is wanted."""
    chain = [exception]
    seen = {id(exception)}
    while len(chain) <= MOST_CAUSES:
        exception = _next(exception)
        if exception is None or id(exception) in seen:
            break
        seen.add(id(exception))
        chain.append(exception)
    return chain


def _next(exception):
    cause = _cause.__get__(exception)
    if cause is None and not _suppressed.__get__(exception):
        cause = _context.__get__(exception)
    return cause


def traceback_of(exception):
    """The traceback without the frames of the kernel that it begins with."""
    traceback = _traceback.__get__(exception)
    while traceback is not None and is_kernels(traceback.tb_frame.f_code.co_filename):
        traceback = traceback.tb_next
    return traceback


def is_kernels(filename):
    return filename.startswith(KERNEL)


def _format(exception, traceback, sources):
    import linecache
    from traceback import TracebackException

    sources.tell_all(linecache)
    # A chain that is too long is cut while it is looked at.
    last = _chain(exception)[-1]
    before = (_cause.__get__(last), _context.__get__(last), _suppressed.__get__(last))
    _cause.__set__(last, None)
    _context.__set__(last, None)
    try:
        summary = TracebackException(type(exception), exception, traceback, limit=-MOST_FRAMES)
    finally:
        _cause.__set__(last, before[0])
        _context.__set__(last, before[1])
        _suppressed.__set__(last, before[2])
    _clean(summary, sources)
    text = "".join(summary.format())
    if not summary.stack and summary.__cause__ is None and summary.__context__ is None:
        text = text.replace("Traceback (most recent call last):\n", "", 1)
    return _cut_middle(text, MOST_TRACEBACK)


def _clean(summary, sources):
    """Leaves the kernel's frames out, gives files the names to show and syntax errors their lines, also in what led to the exception."""
    waiting, seen = [summary], set()
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if one.stack:
            one.stack[:] = [frame for frame in one.stack if not is_kernels(frame.filename)]
            for frame in one.stack:
                frame.filename = sources.shown(frame.filename) or frame.filename
        if getattr(one, "filename", None) is not None:
            if getattr(one, "text", "") is None and one.lineno is not None:
                one.text = sources.line(one.filename, int(one.lineno))  # the compiler looks for it in a file
            one.filename = sources.shown(one.filename) or one.filename
        waiting += [one.__cause__, one.__context__, *(getattr(one, "exceptions", None) or ())]


def _cut_middle(text, most):
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}\n  …\n{text[-most // 2 :]}"


def _format_plainly(error, traceback, sources):
    """Without help of the standard library, which the code may have broken."""
    lines = []
    while traceback is not None and len(lines) < 2 * MOST_FRAMES:
        code = traceback.tb_frame.f_code
        if not is_kernels(code.co_filename):
            shown = sources.shown(code.co_filename) or code.co_filename
            lines.append(f'  File "{shown}", line {traceback.tb_lineno}, in {code.co_name}\n')
            source = sources.line(code.co_filename, traceback.tb_lineno)
            if source is not None:
                lines.append(f"    {source.strip()}\n")
        traceback = traceback.tb_next
    head = "Traceback (most recent call last):\n" if lines else ""
    return _cut_middle(f"{head}{''.join(lines)}{_joined(error['type'], error['message'])}\n", MOST_TRACEBACK)


def last_resort(exception):
    """When even describing it failed."""
    name = texts.name_of(type(exception))
    return {"type": name, "message": "", "traceback": f"{name}\n", "line": None, "column": None, "source": None, "causes": []}
