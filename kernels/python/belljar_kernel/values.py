"""Values of Python as JSON, as the README has it: what arrives looks like what was there, or there is only its text.

A form that JSON lacks is an object with one key that begins with `$`: {"$bytes": base64}, {"$float": "nan"}, {"$int": digits},
{"$dict": pairs}.
"""

from .private import BUILTINS as __builtins__  # noqa: F401, I001

import sys
from binascii import a2b_base64, b2a_base64

from . import frames

DEEPEST = 64
LARGEST_INT = (1 << 64) - 1
SMALLEST_INT = -(1 << 63)
MOST_BITS = 14_000  # about as many digits as Python converts by default

_modules = sys.modules


class NoJson(Exception):
    """The value has no JSON form; says why."""


class TooLarge(NoJson):
    """It would have one, but a longer one than is wanted."""


class _Mapping:
    """One conversion: how much room is left, and what it is inside of."""

    def __init__(self, room):
        self.room = room
        self.inside = set()

    def spend(self, size):
        self.room -= size
        if self.room < 0:
            raise TooLarge("it is too large")

    def map(self, value):
        kind = type(value)
        if kind is str:
            self.spend(len(value) + 2)
            return value
        if kind is int:
            return self.integer(value)
        if value is None or kind is bool:
            self.spend(4)
            return value
        if kind is float:
            return self.float(value)
        if kind is list or kind is tuple:
            return self.enter(value, self.items)
        if kind is dict:
            return self.enter(value, self.dict)
        return self.other(value, kind)

    def enter(self, value, convert):
        """Converts something that contains others."""
        key = id(value)
        if key in self.inside:
            raise NoJson("it contains itself")
        if len(self.inside) >= DEEPEST:
            raise NoJson(f"it is nested more than {DEEPEST} deep")
        self.inside.add(key)
        try:
            return convert(value)
        finally:
            self.inside.discard(key)

    def integer(self, value):
        if SMALLEST_INT <= value <= LARGEST_INT:
            self.spend(len(str(value)))
            return value
        self.spend(value.bit_length() // 3)
        if value.bit_length() > MOST_BITS:
            raise NoJson("it has too many digits")
        return {"$int": str(value)}

    def float(self, value):
        if value - value == 0:
            self.spend(len(repr(value)))
            return value
        self.spend(16)
        return {"$float": "nan" if value != value else "inf" if value > 0 else "-inf"}

    def items(self, values):
        self.spend(2 + len(values))
        convert = self.map
        return [convert(value) for value in values]

    def set(self, values):
        try:
            values = sorted(values)
        except Exception:
            pass
        return self.items(list(values))

    def dict(self, values):
        result = {}
        self.spend(2)
        pairs = list(dict.items(values)) if isinstance(values, dict) else list(values.items())
        for key, value in pairs:
            name = self.key(key)
            if name is None or name in result:
                return self.pairs(pairs)
            self.spend(len(name) + 4)
            result[name] = self.map(value)
        if len(result) == 1 and name[:1] == "$":
            return self.pairs(pairs)  # or it would be taken for one of the special forms
        return result

    def pairs(self, pairs):
        return {"$dict": [self.items(pair) if type(pair) is tuple else self.map(pair) for pair in pairs]}

    def key(self, key):
        """The key as text, or None if it has none that is unmistakable."""
        if type(key) is str:
            return key
        form = self.map(key)
        kind = type(form)
        if kind is str:
            return form
        if kind is int or kind is float or kind is bool or form is None:
            return frames.to_text(form)
        return None

    def bytes(self, value):
        self.spend(len(value) * 4 // 3 + 16)
        return {"$bytes": b2a_base64(value, newline=False).decode("ascii")}

    def other(self, value, kind):
        """What is not one of the plain types, by its class."""
        if isinstance(value, str):
            return self.map(str.__str__(value))
        if isinstance(value, int):
            return self.integer(int.__int__(value))
        if isinstance(value, float):
            return self.float(float.__float__(value))
        if isinstance(value, tuple):
            fields = getattr(kind, "_fields", None)
            if type(fields) is tuple and len(fields) == len(value):
                return self.enter(dict(zip(fields, value)), self.dict)
            return self.enter(value, self.items)
        if isinstance(value, dict):
            return self.enter(value, self.dict)
        if isinstance(value, list):
            return self.enter(value, self.items)
        if isinstance(value, (set, frozenset)):
            return self.enter(value, self.set)
        if isinstance(value, (bytes, bytearray)):
            return self.bytes(value)
        if kind is memoryview:
            self.spend(value.nbytes)
            return self.bytes(value.tobytes())
        if kind is range:
            self.spend(len(value) * 2)
            return self.items(list(value))
        for converter in _CONVERTERS:
            module = _modules.get(converter.module)
            if module is not None:
                form = converter.convert(self, value, kind, module)
                if form is not converter:
                    return form
        raise NoJson(f"{kind.__name__} has no JSON form")


class Converter:
    """Converts values of a module that may or may not be loaded; returns itself for those it does not know."""

    def __init__(self, module, convert):
        self.module = module
        self._convert = convert

    def convert(self, mapping, value, kind, module):
        form = self._convert(mapping, value, kind, module)
        return self if form is NotImplemented else form


def _enum(mapping, value, _kind, enum):
    return mapping.map(value._value_) if isinstance(value, enum.Enum) else NotImplemented


def _datetime(mapping, value, _kind, datetime):
    if isinstance(value, (datetime.date, datetime.time)):
        text = value.isoformat()
        return None if text == "NaT" else mapping.map(text)
    if isinstance(value, datetime.timedelta):
        return mapping.float(value.total_seconds())
    return NotImplemented


def _as_text(names):
    def convert(mapping, value, _kind, module):
        for name in names:
            base = getattr(module, name, None)
            if base is not None and isinstance(value, base):
                return mapping.map(str(value))
        return NotImplemented

    return convert


def _dataclass(mapping, value, kind, dataclasses):
    if type(getattr(kind, "__dataclass_fields__", None)) is not dict:
        return NotImplemented
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if hasattr(value, field.name)}
    return mapping.enter(value, lambda _: mapping.dict(fields))


def _sequence(name):
    def convert(mapping, value, _kind, module):
        if isinstance(value, getattr(module, name)):
            mapping.spend(len(value))
            return mapping.enter(value, lambda _: mapping.items(list(value)))
        return NotImplemented

    return convert


def _mapping_proxy(mapping, value, _kind, types):
    if isinstance(value, types.MappingProxyType):
        return mapping.enter(value, mapping.dict)
    return NotImplemented


_CONVERTERS = [
    Converter("enum", _enum),
    Converter("datetime", _datetime),
    Converter("decimal", _as_text(["Decimal"])),
    Converter("fractions", _as_text(["Fraction"])),
    Converter("uuid", _as_text(["UUID"])),
    Converter("pathlib", _as_text(["PurePath"])),
    Converter("ipaddress", _as_text(["_IPAddressBase"])),
    Converter("dataclasses", _dataclass),
    Converter("collections", _sequence("deque")),
    Converter("array", _sequence("array")),
    Converter("types", _mapping_proxy),
]


def to_json(value, room):
    """The value in JSON's types, or `NoJson`. `room` bounds the length of its text, roughly."""
    try:
        return _Mapping(room).map(value)
    except NoJson:
        raise
    except Exception as problem:  # of the objects' own, or of a library that is not what it seems
        raise NoJson(f"asking for its parts failed with {type(problem).__name__}") from None


def given(value):
    """What the caller gave, parsed a moment ago, with the forms that JSON lacks as what they stand for. Any other stays as it is."""
    if type(value) is list:
        for at, item in enumerate(value):
            if type(item) is dict or type(item) is list:
                value[at] = given(item)
    elif type(value) is dict:
        if len(value) == 1:
            ((mark, inner),) = value.items()
            if mark[:1] == "$":
                try:
                    return _FORMS[mark](inner)
                except (KeyError, ValueError, TypeError):
                    pass  # somebody has keys like this
        for key, item in value.items():
            if type(item) is dict or type(item) is list:
                value[key] = given(item)
    return value


def _given_float(text):
    if text not in ("nan", "inf", "-inf"):
        raise ValueError
    return float(text)


def _given_bytes(text):
    data = a2b_base64(text)
    # What is almost base64 is somebody's own text: read as far as it goes, it would be other bytes than were meant.
    if b2a_base64(data, newline=False) != text.encode():
        raise ValueError
    return data


def _given_int(digits):
    if type(digits) is not str:
        raise TypeError
    number = int(digits)
    if not digits.lstrip("-").isdigit() or not digits.isascii():
        raise ValueError  # a spelling of Python's
    return number


def _given_pairs(pairs):
    return {_hashable(given([key])[0]): given([item])[0] for key, item in pairs}


def _hashable(key):
    return tuple([_hashable(part) for part in key]) if type(key) is list else key


_FORMS = {"$bytes": _given_bytes, "$float": _given_float, "$int": _given_int, "$dict": _given_pairs}


def add(converter):
    """For libraries, see `libraries.py`. The latest is asked first."""
    _CONVERTERS.insert(0, converter)
