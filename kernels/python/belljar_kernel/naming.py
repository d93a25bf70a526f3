"""What the standard library says about the code of runs: under the name to show, not the one that keeps the texts apart.

Each text has a file name of its own, which is how `linecache` finds its lines. So names are exchanged where they are printed, after the
lines have been found: of warnings, of tracebacks that the code prints itself, and in the debugger. A warning about what the kernel let go
of, such as the value of a run, has the name of the run that goes on, and no line.
"""

from .private import BUILTINS as __builtins__  # noqa: F401, I001

from .errors import is_kernels

_FILE = '  File "'


def actions(sources, current):
    """By module, what to do once it is loaded. `sources` gives those of the session, `current` the name of the run."""

    def shown(filename):
        known = sources()
        return known.shown(filename) if known is not None and type(filename) is str else None

    def warnings(module):
        plain = module._formatwarnmsg_impl

        def _formatwarnmsg_impl(msg):
            if type(msg.filename) is str and is_kernels(msg.filename):
                return f"{current()}: {msg.category.__name__}: {msg.message}\n"
            text, name = plain(msg), shown(msg.filename)
            return text if name is None else _exchanged(text, f"{msg.filename}:", f"{name}:")

        module._formatwarnmsg_impl = _formatwarnmsg_impl

    def traceback(module):
        stack = module.StackSummary
        plain = stack.format

        def format(self, *args, **kwargs):
            return [_of_frame(text) for text in plain(self, *args, **kwargs)]

        def _of_frame(text):
            filename, quote, _ = text[len(_FILE) :].partition('"')
            name = shown(filename) if quote else None
            return text if name is None else _exchanged(text, f'{_FILE}{filename}"', f'{_FILE}{name}"')

        format.__doc__ = plain.__doc__
        stack.format = format

    def bdb(module):
        kind = module.Bdb
        canonic, entry = kind.canonic, kind.format_stack_entry

        def of_file(self, filename):
            # A path would be one that nothing is found under.
            return canonic(self, filename) if shown(filename) is None else filename

        def format_stack_entry(self, frame_lineno, *args, **kwargs):
            text, filename = entry(self, frame_lineno, *args, **kwargs), frame_lineno[0].f_code.co_filename
            name = shown(filename)
            return text if name is None else _exchanged(text, f"{filename}(", f"{name}(")

        kind.canonic, kind.format_stack_entry = of_file, format_stack_entry

    return {"warnings": warnings, "traceback": traceback, "bdb": bdb}


def _exchanged(text, beginning, other):
    """With another beginning, if it begins like that."""
    return other + text[len(beginning) :] if text.startswith(beginning) else text
