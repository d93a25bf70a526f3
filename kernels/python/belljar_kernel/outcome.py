"""How a run ended, and the frame that says so."""

from .private import BUILTINS as __builtins__  # noqa: F401, I001

from . import errors, frames, texts, values
from .ending import INTERRUPTED, argument_of, exit_code_of

VALUE_BYTES = 1 << 20
MOST_VALUE_BYTES = 6 << 20  # value and text together fit into one frame


class Outcome:
    """What is known about a run. Objects of the code are asked for their texts: that may take long, or be interrupted."""

    def __init__(self):
        self.value = None  # as JSON text
        self.text = None
        self.error = None
        self.exit_code = None
        self.farewell = None  # what `sys.exit` was to print
        self.interrupted = False
        self.status = 0  # with which a script would exit

    def succeed(self, value, room):
        """The run has this value. `room` bounds its JSON and its text."""
        room = VALUE_BYTES if room is None else min(room, MOST_VALUE_BYTES)
        try:
            form = frames.to_text(values.to_json(value, room))
            if len(form) <= room // 4 or len(form.encode("utf-8", "replace")) <= room:
                self.value = form
        except values.NoJson:
            pass
        self.text = texts.of(value, room, self.value is not None)

    def fail(self, failure, sources, filename, compiled):
        """The run was ended by this exception."""
        self.exit_code = exit_code_of(failure)
        self.interrupted = isinstance(failure, KeyboardInterrupt)
        self.status = INTERRUPTED if self.interrupted else 1 if self.exit_code is None else self.exit_code
        if self.exit_code is None:
            try:
                self.error, hung = errors.describe(failure, sources, filename, compiled)
                self.interrupted = self.interrupted or hung
            except Exception:
                self.error = errors.last_resort(failure)  # it resists
            return
        argument = argument_of(failure)
        if argument is not None and not isinstance(argument, int):
            self.farewell = errors.text_of(argument) + "\n"

    def spoil(self, exception):
        """The outcome could not be found out."""
        self.interrupted = self.interrupted or isinstance(exception, KeyboardInterrupt)
        if self.error is None:
            self.value = None
            self.error = errors.last_resort(exception)
            self.status = INTERRUPTED if self.interrupted else 1

    def shorten(self):
        """The frame was too large."""
        self.value = None
        self.text = self.text and texts.cut(self.text, 1 << 20)

    def to_text(self, run):
        """The `done` frame."""
        ok = self.error is None and not self.exit_code
        parts = ['{"op":"done","id":', frames.to_text(run), ',"ok":true' if ok else ',"ok":false']
        if self.value is not None:
            parts += [',"value":', self.value]
        if self.text is not None:
            parts += [',"value_text":', frames.to_text(self.text)]
        if self.error is not None:
            parts += [',"error":', frames.to_text(self.error)]
        if self.exit_code is not None:
            parts += [',"exit_code":', frames.to_text(self.exit_code)]
        if self.interrupted:
            parts.append(',"interrupted":true')
        parts.append("}")
        return "".join(parts)
