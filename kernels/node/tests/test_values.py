"""How values become JSON and text, and what is displayed."""

import base64
import unittest

from harness import kernel


class Values(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.k = cls.enterClassContext(kernel())

    def check(self, code, value, text=None):
        done = self.k.run(code)
        self.assertTrue(done["ok"], done)
        self.assertEqual(done["value"], value, code)
        self.assertIs(type(done["value"]), type(value), code)
        if text is not None:
            self.assertEqual(done["value_text"], text, code)

    def has_no_json(self, code, text, **fields):
        done = self.k.run(code, **fields)
        self.assertTrue(done["ok"], done)
        self.assertNotIn("value", done, code)
        self.assertIn(text, done["value_text"], code)

    def test_primitives(self):
        self.check("'text'", "text", "'text'")
        self.check("1.5", 1.5)
        self.check("true", True)
        self.check("-0", 0, "-0")

    def test_numbers_that_json_lacks(self):
        self.check("[NaN, Infinity, -Infinity]", [{"$float": "nan"}, {"$float": "inf"}, {"$float": "-inf"}])
        self.check("10n", 10, "10n")
        self.check("2n ** 64n", {"$int": "18446744073709551616"})

    def test_undefined_inside(self):
        self.check("({ a: undefined, b: [undefined, () => 1, Symbol('s')], c() {} })", {"b": [None, None, None]})

    def test_dates_and_patterns(self):
        self.check("new Date(0)", "1970-01-01T00:00:00.000Z")
        self.check("[new Date(NaN)]", [None])
        self.check("/a+/gi", "/a+/gi")

    def test_maps_and_sets(self):
        self.check("new Map([['a', 1], ['b', new Set([2, 2, 3])]])", {"a": 1, "b": [2, 3]})
        self.check("new Map([[1, 'x'], [{ k: 1 }, 'y']])", {"$dict": [[1, "x"], [{"k": 1}, "y"]]})
        self.check("({ $bytes: 1 })", {"$dict": [["$bytes", 1]]})

    def test_bytes(self):
        self.check("Buffer.from('hé')", {"$bytes": base64.b64encode("hé".encode()).decode()})
        self.check("new Uint8Array([1, 2, 3]).buffer", {"$bytes": "AQID"})
        self.check("new Uint8Array([0, 1, 2, 3]).subarray(1)", {"$bytes": "AQID"})
        self.check("new Float64Array([1.5, NaN])", [1.5, {"$float": "nan"}])
        self.check("new BigInt64Array([5n])", [5])

    def test_objects_of_classes(self):
        self.check("class Point { #hidden = 1; constructor() { this.x = 1 } get y() { return 2 } }; new Point()", {"x": 1}, "Point { x: 1 }")
        self.check("({ toJSON() { return { as: 'json' } } })", {"as": "json"})
        self.check("new URL('http://a/b')", "http://a/b")
        self.check("[new Number(1), new String('s'), Object(1n), new Boolean(false)]", [1, "s", 1, False])
        self.check("Object.create(null, { k: { value: 1, enumerable: true } })", {"k": 1})
        self.check("new Error('bad')", {"type": "Error", "message": "bad"})
        self.check("[new RangeError('r')]", [{"type": "RangeError", "message": "r"}])
        self.check("JSON.parse('{\"__proto__\": {\"a\": 1}}')", {"__proto__": {"a": 1}})

    def test_without_json(self):
        self.has_no_json("const cycle = { name: 'c' }; cycle.self = cycle; cycle", "[Circular *1]")
        self.has_no_json("() => 1", "[Function (anonymous)]")
        self.has_no_json("Symbol('s')", "Symbol(s)")
        self.has_no_json("new WeakMap()", "WeakMap")
        self.has_no_json("let deep = 1; for (let i = 0; i < 10000; i++) deep = [deep]; deep", "[")
        self.check("const shared = { s: 1 }; [shared, shared]", [{"s": 1}, {"s": 1}])

    def test_bounds(self):
        self.has_no_json("'x'.repeat(5000)", "xxx", value_bytes=1000)
        self.has_no_json("'é'.repeat(5000)", "é", value_bytes=1001)
        self.has_no_json("Array(1e6).fill('some text')", "more items", value_bytes=4000)
        self.has_no_json("Object.fromEntries(Array.from({ length: 2e5 }, (_, i) => ['k' + i, i]))", "200000 keys", value_bytes=4000)
        self.has_no_json("'x'.repeat(2 ** 28)", "xxx")
        self.has_no_json("Array(4e9)", "empty items")
        done = self.k.run("'é'.repeat(5000)", value_bytes=1001)
        self.assertLessEqual(len(done["value_text"].encode()), 1001)

    def test_half_a_surrogate_pair_is_replaced(self):
        self.check("['\\ud800x', '\\\\ud800', '\\u{1f600}', { '\\udc00': 1 }]", ["\ufffdx", "\\ud800", "\U0001f600", {"\ufffd": 1}])

    def test_getters_that_throw(self):
        self.has_no_json("({ get bad() { throw new Error('x') } })", "Getter")
        self.has_no_json("new Proxy({}, { ownKeys() { throw 1 } })", "{}")
        self.has_no_json("({ toJSON() { throw 1 } })", "toJSON")
        self.has_no_json("({ get a() { throw 1 }, [Symbol.for('nodejs.util.inspect.custom')]() { throw 2 } })", "cannot be shown")


class Displays(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.k = cls.enterClassContext(kernel())

    def shown(self, code):
        done = self.k.run(code)
        self.assertTrue(done["ok"], done)
        return [frame["data"] for frame in self.k.displays]

    def test_bundles_and_helpers(self):
        self.assertEqual(self.shown("display({ 'text/html': '<b>', 'text/plain': 'b' })"), [{"text/html": "<b>", "text/plain": "b"}])
        self.assertEqual(self.shown("display.html('<i>'); display.svg('<svg/>'); display.png(Buffer.from([1, 2, 3])); display.json({ a: [1] })"),
                         [{"text/html": "<i>"}, {"image/svg+xml": "<svg/>"}, {"image/png": "AQID"}, {"application/json": '{"a":[1]}'}])
        self.assertEqual(self.shown("display.png('data:image/png;base64,AQID')"), [{"image/png": "AQID"}])
        self.assertEqual(self.shown("display('plain', { k: 1 })"), [{"text/plain": "plain"}, {"text/plain": "{ k: 1 }"}])
        self.k.run("display.html('<u>', 'chart')")
        self.assertEqual(self.k.displays[0]["name"], "chart")

    def test_objects_that_show_themselves(self):
        code = "class Table { _repr_html_() { return '<table>' } _repr_png_() { return null } }; "
        self.assertEqual(self.shown(code + "display(new Table())"), [{"text/html": "<table>"}])
        self.assertEqual(self.shown("new Table()"), [{"text/html": "<table>"}])
        self.assertEqual(self.shown("({ [Symbol.for('Jupyter.display')]() { return { 'text/markdown': '# x' } } })"), [{"text/markdown": "# x"}])

    def test_what_cannot_be_shown(self):
        self.assertEqual(self.k.run("display({ 'image/png': () => 1 })")["error"]["type"], "TypeError")
        self.assertEqual(self.k.run("display.text('x'.repeat(2e7))")["error"]["type"], "RangeError")
        self.assertTrue(self.k.run("({ _repr_html_() { throw new Error('no') } })")["ok"])

    def test_between_runs_it_waits_for_the_next(self):
        self.k.run("globalThis.later = new Promise(r => setTimeout(() => { display.text('kept'); r() }, 10)); 1")
        self.assertIn({"text/plain": "kept"}, self.shown("await later"))


if __name__ == "__main__":
    unittest.main()
