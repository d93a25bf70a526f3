"""JSON forms of the types of numpy and pandas. Neither is ever loaded from here."""

from .private import BUILTINS as __builtins__  # noqa: F401, I001

from .values import Converter, NoJson, TooLarge, add


def _numpy(mapping, value, _kind, numpy):
    if isinstance(value, numpy.generic):
        return _array(mapping, numpy.asarray(value), numpy)
    if isinstance(value, numpy.ndarray):
        return mapping.enter(value, lambda array: _array(mapping, array, numpy))
    return NotImplemented


def _array(mapping, array, numpy):
    # Each number takes two characters at least: what cannot fit is not copied first.
    if array.size * 2 > mapping.room:
        raise TooLarge("it is too large")
    kind = array.dtype.kind
    if kind == "M":
        array = numpy.where(numpy.isnat(array), None, numpy.datetime_as_string(array))
    elif kind == "m":
        array = numpy.where(numpy.isnat(array), None, array / numpy.timedelta64(1, "s"))
    elif kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(float)
    elif kind not in "biufSUOV":
        raise NoJson(f"numbers of type {array.dtype} have no JSON form")
    return mapping.map(array.tolist())


def _pandas(mapping, value, kind, pandas):
    if value is pandas.NaT or value is getattr(pandas, "NA", None):
        return None
    if isinstance(value, pandas.DataFrame):
        return mapping.enter(value, lambda frame: _frame(mapping, frame, pandas))
    if isinstance(value, pandas.Series):
        return mapping.enter(value, lambda series: _series(mapping, series, pandas))
    if isinstance(value, (pandas.Index, pandas.api.extensions.ExtensionArray)):
        return mapping.enter(value, lambda column: mapping.items(_column(mapping, column, pandas)))
    if isinstance(value, (pandas.Period, pandas.Interval)):
        return mapping.map(str(value))
    return NotImplemented


def _column(mapping, values, pandas):
    """As a list, with None for what is missing."""
    if len(values) * 2 > mapping.room:
        raise TooLarge("it is too large")
    missing = pandas.isna(values)
    return [None if absent is True else one for one, absent in zip(values.tolist(), missing.tolist())]


def _series(mapping, series, pandas):
    values = _column(mapping, series, pandas)
    index = series.index
    if isinstance(index, pandas.RangeIndex) and index.start == 0 and index.step == 1:
        return mapping.items(values)
    pairs = list(zip(index.tolist(), values))
    try:
        as_dict = dict(pairs)
    except TypeError:
        return mapping.pairs(pairs)
    return mapping.dict(as_dict) if len(as_dict) == len(pairs) else mapping.pairs(pairs)


def _frame(mapping, frame, pandas):
    rows, columns = frame.shape
    if rows * max(columns, 1) * 5 > mapping.room:
        raise TooLarge("it is too large")
    names = [mapping.key(name) for name in frame.columns.tolist()]
    if None in names or len(set(names)) < columns:
        raise NoJson("its columns have no names of their own")
    data = [_column(mapping, frame.iloc[:, number], pandas) for number in range(columns)]
    mapping.spend(2 + rows * (2 + sum(len(name) + 4 for name in names)))
    return [{name: mapping.map(column[row]) for name, column in zip(names, data)} for row in range(rows)]


def install():
    """Makes the forms known."""
    add(Converter("numpy", _numpy))
    add(Converter("pandas", _pandas))
