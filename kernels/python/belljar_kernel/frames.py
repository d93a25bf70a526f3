"""JSON to and from the bytes of a frame.

The C parts of the standard library's `json` are used directly: `json` itself loads `re`, which doubles the time of a cold start, and
code may replace what is in it.
"""

from .private import BUILTINS as __builtins__  # noqa: F401, I001

try:
    from _json import encode_basestring, make_encoder, make_scanner
except ImportError:  # another implementation of Python
    make_encoder = None


def _refuse(value):
    raise TypeError(f"{type(value).__name__} has no JSON form")


class _Context:
    """What the C scanner wants to know."""

    strict = False
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = None


if make_encoder is not None:
    _encode = make_encoder(None, _refuse, encode_basestring, None, ":", ",", False, False, False)
    _scan = make_scanner(_Context())

    def to_text(value):
        """Compact JSON. The value consists of plain dict (text keys), list, str, int, float, bool and None."""
        return "".join(_encode(value, 0))

    def from_bytes(data):
        """The value of a JSON text. What follows it is ignored."""
        return _scan(str(data, "utf-8"), 0)[0]

else:
    import json

    to_text = json.JSONEncoder(ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":")).encode
    from_bytes = json.JSONDecoder(strict=False).decode


def to_bytes(text):
    """UTF-8, with U+FFFD for surrogates that stand alone."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
