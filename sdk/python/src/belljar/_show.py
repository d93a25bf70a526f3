"""How results look: in a line, and in a notebook.

What a notebook is given comes from code that is not trusted: text is escaped, pictures are pictures (a drawing in an
``img`` runs no script), and pages stay in a frame that may neither run scripts nor reach the notebook.
"""

from __future__ import annotations

import base64
import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .results import Display, Result

_LINE = 60
_PICTURES = ("image/png", "image/svg+xml", "image/jpeg", "image/gif", "image/webp")
_SHOWN = 20_000


def cut(text: str, most: int = _LINE) -> str:
    """As a literal, with its end left out if it is long."""
    return repr(text) if len(text) <= most else f"{text[:most]!r}…"


def one_line(text: str, most: int = _LINE) -> str:
    """In a line, with its end left out if it is long."""
    line = " ".join(text[: 4 * most].split())
    return line if len(line) <= most and len(text) <= 4 * most else f"{line[:most]}…"


def result_line(result: Result) -> str:
    parts = [f"<Result {result.status}"]
    if not result.success:
        if result.exit_code is not None:
            parts.append(f"exit_code={result.exit_code}")
        if result.signal is not None:
            parts.append(f"signal={result.signal}")
        if result.error is not None:
            where = f" (line {result.error.line})" if result.error.line is not None else ""
            message = f": {result.error.message}" if result.error.message else ""
            parts.append(one_line(f"{result.error.type}{message}", 2 * _LINE) + where)
    if result.value_text is not None:
        parts.append(f"value={one_line(result.value_text)}")
    if result.stdout:
        parts.append(f"stdout={cut(result.stdout)}")
    if result.stderr and result.error is None:
        parts.append(f"stderr={cut(result.stderr)}")
    if result.displays:
        kinds = ", ".join(display.mime for display in result.displays[:3])
        parts.append(f"displays=[{kinds}{', …' if len(result.displays) > 3 else ''}]")
    if result.files:
        paths = ", ".join(file.path for file in result.files[:3])
        parts.append(f"files=[{paths}{', …' if len(result.files) > 3 else ''}]")
    if result.state == "lost":
        parts.append("state=lost")
    parts.append(f"{result.usage.wall_ms:.1f} ms>")
    return " ".join(parts)


def _pre(text: str, color: str = "inherit") -> str:
    text = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    return f'<pre style="color:{color};margin:0">{html.escape(text)}</pre>'


def display_html(display: Display) -> str:
    forms = {each.mime: each for each in (display, *display.alternatives)}
    if "text/html" in forms:
        page = html.escape(forms["text/html"].text, quote=True)
        style = "border:0;width:100%;height:20em"
        return f'<iframe sandbox="" srcdoc="{page}" style="{style}" referrerpolicy="no-referrer"></iframe>'
    for mime in _PICTURES:
        if mime in forms:
            data = base64.b64encode(forms[mime].data).decode("ascii")
            return f'<img src="data:{mime};base64,{data}" style="max-width:100%">'
    if display.mime.startswith("text/") or display.mime.endswith("json"):
        return _pre(display.text)
    return _pre(repr(display))


def result_html(result: Result) -> str:
    parts = []
    if result.stdout:
        parts.append(_pre(result.stdout))
    if result.stderr and (result.error is None or result.error.traceback not in result.stderr):
        parts.append(_pre(result.stderr, "#b00"))
    parts += [display_html(display) for display in result.displays]
    if result.value_text is not None and not result.displays:
        parts.append(_pre(result.value_text))
    if result.error is not None:
        parts.append(_pre(str(result.error), "#b00"))
    how = f"{result.status}, {result.usage.wall_ms:.1f} ms"
    parts.append(f'<small style="color:#888">{html.escape(how)}</small>')
    return f"<div>{''.join(parts)}</div>"
