"""What the code shows besides its output: `display(...)`, rich forms of values, figures.

The protocol is the one notebooks use: an object with `_repr_png_`, `_repr_html_` and the like gives its forms itself. Figures of
matplotlib are shown by `show()` and, those still open, at the end of the run; the library is never loaded from here.
"""

from .private import BUILTINS as __builtins__  # noqa: F401, I001

import builtins
import sys
from binascii import b2a_base64

from . import frames, texts
from .channel import MOST_OUT
from .values import NoJson, to_json

MOST_WAITING = 64
MOST_TEXT = 1 << 20

_modules = sys.modules

_METHODS = (
    ("image/png", "_repr_png_"),
    ("image/jpeg", "_repr_jpeg_"),
    ("image/svg+xml", "_repr_svg_"),
    ("application/pdf", "_repr_pdf_"),
    ("text/html", "_repr_html_"),
    ("text/markdown", "_repr_markdown_"),
    ("text/latex", "_repr_latex_"),
    ("application/json", "_repr_json_"),
    ("application/javascript", "_repr_javascript_"),
)


def _text_form(mime, data):
    """The data of one form as a frame carries it, or None if it is none."""
    if type(data) is tuple:  # with metadata, which nobody asks for
        data = data[0] if data else None
    if data is None:
        return None
    if isinstance(data, (bytes, bytearray, memoryview)):
        if mime.startswith("text/") or mime == "image/svg+xml" or mime.endswith("json"):
            return bytes(data).decode("utf-8", "replace")
        return b2a_base64(data, newline=False).decode("ascii")
    if isinstance(data, str):
        return str.__str__(data)
    if mime == "application/json" or mime.endswith("+json"):
        return frames.to_text(to_json(data, MOST_OUT))
    return None


def _ask(value, method, *args, **kwargs):
    """Calls a method of the class, not of the object: some objects claim to have every attribute."""
    function = getattr(type(value), method, None)
    if function is None or isinstance(value, type):
        return None
    try:
        return function(value, *args, **kwargs)
    except Exception:
        return None  # as notebooks do: the other forms are still good


def rich(value):
    """The forms of the value other than its plain text: {mime: text or base64}."""
    kind = type(value)
    if kind.__module__ == "builtins":
        return {}
    data = {}
    figure = _modules.get("matplotlib.figure")
    if figure is not None and isinstance(value, getattr(figure, "Figure", ())):
        image = render(value)
        return {} if image is None else {"image/png": image}
    bundle = _ask(value, "_repr_mimebundle_", include=None, exclude=None)
    if type(bundle) is tuple and bundle:
        bundle = bundle[0]
    if isinstance(bundle, dict):
        data.update((str(mime), form) for mime, form in bundle.items())
    for mime, method in _METHODS:
        if mime not in data:
            data[mime] = _ask(value, method)
    if data.get("image/png") is not None:
        data["image/jpeg"] = None  # images of PIL offer both
    result = {}
    for mime, form in data.items():
        try:
            text = _text_form(mime, form)
        except (NoJson, ValueError, TypeError):
            text = None
        if text is not None:
            result[mime] = text
    return result


def render(figure):
    """A figure of matplotlib as PNG in base64; None if there is nothing in it."""
    from io import BytesIO

    if not (figure.axes or figure.lines or figure.texts or figure.images or figure.patches):
        return None
    file = BytesIO()
    figure.savefig(file, format="png", bbox_inches="tight")
    return b2a_base64(file.getbuffer(), newline=False).decode("ascii")


def _frame(run, text):
    return f'{{"op":"display","id":{frames.to_text(run)},{text[1:]}'


class Displays:
    """Sends what is shown during a run, and keeps what is shown between two."""

    def __init__(self, channel, streams):
        self._channel = channel
        self._streams = streams
        self._waiting = []
        self._run = None  # the id of the run that is going on

    def begin(self, run):
        """What was shown since the last run belongs to this one."""
        self._run = run
        waiting, self._waiting = self._waiting, []
        for text in waiting:
            self._channel.send(_frame(run, text), run)

    def end(self):
        self._run = None

    def send(self, data, name=None):
        """One display: the forms of one thing."""
        sizes = {mime: len(form) for mime, form in data.items()}
        while sum(sizes.values()) > MOST_OUT - (1 << 20):
            largest = max(sizes, key=sizes.get)
            del sizes[largest]
            data = {mime: form for mime, form in data.items() if mime != largest}
            data["text/plain"] = f"<{largest}: too large to be shown>"
            sizes["text/plain"] = len(data["text/plain"])
        text = frames.to_text({"data": data} if name is None else {"data": data, "name": str(name)[:200]})
        self._streams.flush()
        run = self._run
        sent = run is not None and self._channel.send(_frame(run, text), run)
        if not sent and len(self._waiting) < MOST_WAITING and self._channel.is_ours():
            self._waiting.append(text)

    def display(self, *values, name=None, raw=False, **_):
        """Show values in their richest forms: images, HTML, …, and always as text."""
        for value in values:
            if raw and isinstance(value, dict):
                forms = ((str(mime), _text_form(str(mime), form)) for mime, form in value.items())
                data = {mime: form for mime, form in forms if form is not None}
            else:
                data = rich(value)
                data.setdefault("text/plain", texts.of(value, MOST_TEXT))
                self._close_figure(value)
            self.send(data, name)

    def value(self, value, text):
        """The value of the last expression is shown too, if there is more to it than its text."""
        data = rich(value)
        if data:
            data.setdefault("text/plain", text)
            self.send(data)
            self._close_figure(value)

    def figures(self):
        """Shows and closes the figures that are still open."""
        helpers = _modules.get("matplotlib._pylab_helpers")
        if helpers is None:
            return
        for manager in list(helpers.Gcf.get_all_fig_managers()):
            self.show_manager(manager)

    def show_manager(self, manager):
        figure = manager.canvas.figure
        try:
            image = render(figure)
            if image is not None:
                self.send({"image/png": image, "text/plain": texts.of(figure, 1000)})
        finally:
            self._close_figure(figure)

    def _close_figure(self, value):
        helpers = _modules.get("matplotlib._pylab_helpers")
        manager = getattr(getattr(value, "canvas", None), "manager", None) if helpers is not None else None
        if manager is not None:
            helpers.Gcf.destroy(manager)

    def actions(self):
        """What is changed in libraries when they are loaded, see `Watcher`."""

        def backend_bases(module):
            displays = self

            def show(self):
                """Show the figure and close it."""
                displays.show_manager(self)

            # Of all backends without windows; `pyplot.show()` and `figure.show()` both come here.
            module.FigureManagerBase.show = show

        def image(module):
            module.Image.show = lambda value, *_, **__: self.display(value)

        def ipython(module):
            module.display = self.display

        return {
            "matplotlib.backend_bases": backend_bases,
            "PIL.Image": image,
            "IPython.core.display_functions": ipython,
        }

    def install(self):
        def display(*values, **options):
            self.display(*values, **options)

        display.__doc__ = self.display.__doc__
        display.__qualname__ = "display"
        display.__module__ = "builtins"
        builtins.display = display
