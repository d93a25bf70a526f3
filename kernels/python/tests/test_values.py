"""The JSON forms of values, as the README has them, and their texts."""

from harness import KernelCase, need


class Values(KernelCase):
    def forms(self, before, cases, **fields):
        self.run_well(before)
        for code, expected in cases:
            with self.subTest(code):
                result = self.run_well(code, **fields)
                self.assertIn("value", result.done, result.done)
                self.assertEqual(result.value, expected)

    def texts_only(self, before, cases):
        self.run_well(before)
        for code in cases:
            with self.subTest(code):
                result = self.run_well(code)
                self.assertNotIn("value", result.done)
                self.assertTrue(result.text)

    def test_plain(self):
        self.forms("", [
            ("True", True), ("-5", -5), ("1.5", 1.5), ("'ü'", "ü"), ("[1, None, [2]]", [1, None, [2]]), ("(1, 'a')", [1, "a"]),
            ("{'a': {'b': 1}}", {"a": {"b": 1}}), ("{3, 1, 2}", [1, 2, 3]), ("frozenset('b')", ["b"]), ("range(3)", [0, 1, 2]),
            ("'a\\ud800'", "a�"), ("'\\x00'", "\0"), ("1e300", 1e300), ("()", []), ("{}", {}), ("''", ""),
        ])  # fmt: skip

    def test_numbers_that_json_lacks(self):
        self.forms("", [
            ("2 ** 64 - 1", 2**64 - 1), ("-2 ** 63", -(2**63)), ("2 ** 64", {"$int": str(2**64)}), ("-10 ** 30", {"$int": str(-(10**30))}),
            ("float('nan')", {"$float": "nan"}), ("float('inf')", {"$float": "inf"}), ("[-float('inf')]", [{"$float": "-inf"}]),
        ])  # fmt: skip
        self.texts_only("", ["10 ** 5000", "1j"])

    def test_dicts(self):
        self.forms("import datetime", [
            ("{1: 'a', 2: 'b'}", {"1": "a", "2": "b"}), ("{None: 1, True: 2, 1.5: 3}", {"null": 1, "true": 2, "1.5": 3}),
            ("{1: 'a', '1': 'b'}", {"$dict": [[1, "a"], ["1", "b"]]}), ("{(1, 2): 3}", {"$dict": [[[1, 2], 3]]}),
            ("{'$bytes': 'x'}", {"$dict": [["$bytes", "x"]]}), ("{'$a': 1, 'b': 2}", {"$a": 1, "b": 2}),
            ("{datetime.date(2024, 1, 2): 3}", {"2024-01-02": 3}),
        ])  # fmt: skip

    def test_types_of_the_standard_library(self):
        before = """
import collections, dataclasses, datetime, decimal, enum, fractions, pathlib, types, uuid, array
Color = enum.Enum('Color', {'RED': 'r'})
class Level(enum.IntEnum): HIGH = 3
class Name(str, enum.Enum): A = 'a'
P = collections.namedtuple('P', 'x y')
@dataclasses.dataclass
class D:
    a: int
    b: list = dataclasses.field(default_factory=list)
class S(str): pass
class L(list): pass
"""
        self.forms(before, [
            ("b'\\xff\\x00'", {"$bytes": "/wA="}), ("bytearray(b'a')", {"$bytes": "YQ=="}), ("memoryview(b'a')", {"$bytes": "YQ=="}),
            ("datetime.datetime(2024, 1, 2, 3, 4, 5)", "2024-01-02T03:04:05"), ("datetime.date(2024, 1, 2)", "2024-01-02"),
            ("datetime.datetime(2024, 1, 2, tzinfo=datetime.timezone.utc)", "2024-01-02T00:00:00+00:00"),
            ("datetime.time(3, 4)", "03:04:00"), ("datetime.timedelta(minutes=1.5)", 90.0), ("decimal.Decimal('1.10')", "1.10"),
            ("fractions.Fraction(1, 3)", "1/3"), ("uuid.UUID(int=1)", "00000000-0000-0000-0000-000000000001"),
            ("pathlib.Path('/a/b')", "/a/b"), ("Color.RED", "r"), ("Level.HIGH", 3), ("Name.A", "a"), ("P(1, 2)", {"x": 1, "y": 2}),
            ("D(1, [D(2)])", {"a": 1, "b": [{"a": 2, "b": []}]}), ("collections.deque([1, 2])", [1, 2]), ("collections.Counter('aab')", {"a": 2, "b": 1}),
            ("collections.OrderedDict(b=1, a=2)", {"b": 1, "a": 2}), ("types.MappingProxyType({'a': 1})", {"a": 1}), ("S('x')", "x"),
            ("L([1])", [1]), ("array.array('i', [1, 2])", [1, 2]),
        ])  # fmt: skip

    def test_what_has_only_a_text(self):
        self.texts_only("class A: pass\na = []; a.append(a)\nd = []\nfor _ in range(100): d = [d]", [
            "object()", "A()", "A", "len", "[A()]", "{'a': lambda: 1}", "a", "d", "(x for x in [])", "iter([])", "...", "NotImplemented",
        ])  # fmt: skip
        self.assertEqual(self.run_well("a").text, "[[...]]")

    def test_bounds(self):
        result = self.run_well("['x' * 100] * 1000", value_bytes=5000)
        self.assertNotIn("value", result.done)
        self.assertLessEqual(len(result.text.encode()), 5000)
        self.assertTrue(result.text.startswith("['xxx") and result.text.endswith("…"))
        self.assertEqual(self.run_well("'ü' * 40", value_bytes=100).value, "ü" * 40)
        result = self.run_well("'ü' * 60", value_bytes=100)
        self.assertNotIn("value", result.done)
        self.assertLessEqual(len(result.text.encode()), 100)

    def test_a_huge_list_is_not_turned_into_text_first(self):
        code = "class Count:\n    n = 0\n    def __repr__(self): Count.n += 1; return 'c'\n[Count()] * 10 ** 6"
        result = self.run_well(code, value_bytes=1000)
        self.assertLessEqual(len(result.text), 1000)
        self.assertLess(self.value_of("Count.n"), 1000)

    def test_texts_that_fail(self):
        for body in ("raise KeyError", "return 5", "return repr(self)", "import sys; sys.exit(1)"):
            result = self.run_well(f"class A:\n    def __repr__(self): {body}\nA()")
            self.assertIn("A object, its repr failed with", result.text, body)
        self.assertLessEqual(len(self.run_well("class A:\n    def __repr__(self): return 'x' * (50 << 20)\nA()").text), 100_000)

    def test_the_text_is_that_of_repr(self):
        for code in (
            "[1, 'a', (2,), {3: [4]}, {5}, frozenset({6}), set(), b'x', object]",
            "(object,)",
            "[[object], object, {}, []]",
        ):
            self.assertEqual(self.run_well(code).text, self.value_of(f"repr({code})"), code)

    def test_objects_that_lie_about_themselves(self):
        self.run_well(
            "class Liar:\n    def __getattr__(self, name): return Liar()\n    def __call__(self, *a, **k): return Liar()\n    __class__ = property(lambda self: dict)"
        )
        self.assertNotIn("value", self.run_well("Liar()").done)
        self.run_well("class D(dict):\n    def items(self): raise KeyError\n    def __iter__(self): raise KeyError")
        self.assertEqual(self.value_of("D(a=1)"), {"a": 1})
        self.assert_works()


class Libraries(KernelCase):
    def setUp(self):
        need("numpy", "pandas")
        super().setUp()

    def test_numpy(self):
        self.run_well("import numpy as np")
        for code, expected in [
            ("np.float64(1.5)", 1.5), ("np.int64(3)", 3), ("np.bool_(True)", True), ("np.str_('a')", "a"), ("np.float32(0.5)", 0.5),
            ("np.arange(4).reshape(2, 2)", [[0, 1], [2, 3]]), ("np.array(5)", 5), ("np.array(['a'])", ["a"]), ("np.zeros((2, 0))", [[], []]),
            ("np.array([1.5, np.nan])", [1.5, {"$float": "nan"}]), ("np.array([1, None, 'a'], dtype=object)", [1, None, "a"]),
            ("np.datetime64('2024-01-02')", "2024-01-02"), ("np.array(['2024-01-02', 'NaT'], dtype='M8[D]')", ["2024-01-02", None]),
            ("np.timedelta64(90, 's')", 90.0), ("{'a': np.uint8(3)}", {"a": 3}), ("{np.int64(1): 2}", {"1": 2}), ("np.longdouble(0.5)", 0.5),
            ("np.array([(1, 2.0)], dtype=[('a', int), ('b', float)])", [[1, 2.0]]), ("np.array([b'a'])", [{"$bytes": "YQ=="}]),
        ]:  # fmt: skip
            with self.subTest(code):
                self.assertEqual(self.value_of(code), expected)
        result = self.run_well("np.zeros(10 ** 7)")
        self.assertNotIn("value", result.done)
        self.assertTrue(result.text.startswith("array([0., 0."))
        self.assertNotIn("value", self.run_well("np.array([1j])").done)

    def test_pandas(self):
        self.run_well(
            "import pandas as pd, numpy as np\ndf = pd.DataFrame({'n': [1, 2], 'x': [0.5, np.nan], 't': pd.to_datetime(['2024-01-02', None])})"
        )
        for code, expected in [
            ("df", [{"n": 1, "x": 0.5, "t": "2024-01-02T00:00:00"}, {"n": 2, "x": None, "t": None}]),
            ("df.n", [1, 2]), ("pd.Series([1, 2], index=['a', 'b'])", {"a": 1, "b": 2}), ("pd.Series([1, 2], index=['a', 'a'])", {"$dict": [["a", 1], ["a", 2]]}),
            ("pd.Timestamp('2024-01-02 03:04')", "2024-01-02T03:04:00"), ("[pd.NaT, pd.NA]", [None, None]), ("pd.Timedelta('1min')", 60.0),
            ("pd.Index([1, 2])", [1, 2]), ("pd.Categorical(['a', 'b'])", ["a", "b"]), ("pd.Period('2024-01')", "2024-01"), ("pd.DataFrame()", []),
            ("pd.DataFrame({1: [2]})", [{"1": 2}]), ("df.groupby('n').x.sum()", {"1": 0.5, "2": 0.0}), ("pd.Series([[1], None])", [[1], None]),
        ]:  # fmt: skip
            with self.subTest(code):
                self.assertEqual(self.value_of(code), expected)
        self.assertNotIn("value", self.run_well("pd.DataFrame({'a': range(100000)})").done)
        self.assertIn("n    x", self.run_well("df").text)

    def test_modules_that_are_not_what_they_seem(self):
        self.run_well("import sys, types\nsys.modules['numpy'] = None\nsys.modules['pandas'] = types.ModuleType('pandas')")
        self.assertEqual(self.value_of("[1, {2}]"), [1, [2]])
        self.assertNotIn("value", self.run_well("object()").done)
