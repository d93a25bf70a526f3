"""How a run ended, and the frame that says so."""

from .private import BUILTINS as __builtins__  # noqa: F401, I001

from . import frames


class Outcome:
    """What is known about a run."""

    def __init__(self):
        self.value = None  # as JSON text
        self.text = None
        self.error = None
        self.exit_code = None
        self.interrupted = False
        self.status = 0  # with which a script would exit

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
